"""A slider's change is drawn within one frame of a 60 Hz display. `speed` says what exactly is measured."""

import pytest

from tests.browser.site_pages import explorers
from tests.browser.speed import FRAME, measure, unlimited_chromium
from tests.chromium import watched_page

pytestmark = pytest.mark.browser
FIGURES = explorers()


@pytest.fixture(scope="module")
def browser():
    with unlimited_chromium() as started:
        yield started


def test_frames_come_without_waiting_for_a_display(browser, site):
    page, _ = watched_page(browser)
    page.goto(f"{site}/index.html")
    # Each frame changes what is seen, as a slider does: Chromium holds frames that change nothing to 60 a second.
    frames = page.evaluate("""async () => {
      const box = document.createElement("div");
      box.style = "position: fixed; top: 0; left: 0; width: 9px; height: 9px; z-index: 9999";
      document.body.append(box);
      const start = performance.now();
      for (let i = 0; i < 60; i += 1) {
        box.style.background = i % 2 ? "red" : "blue";
        await new Promise(requestAnimationFrame);
      }
      return performance.now() - start;
    }""")
    page.context.close()
    assert frames < 60 * FRAME / 2, "60 frames take far less than a second, or the wait would be measured too"


@pytest.mark.parametrize("figure", FIGURES, ids=[figure.name for figure in FIGURES])
def test_a_change_is_drawn_within_one_frame(opened, figure):
    page, watch = opened(figure.page)
    # Other work on the machine can only make it slower, so a slow measurement is taken again, twice at most.
    for _ in range(3):
        timing = measure(page, figure)
        if timing.p95 <= FRAME:
            break
    assert timing.p95 <= FRAME, timing
    assert watch.clean(), watch

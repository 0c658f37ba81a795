"""A slider's change is drawn within one frame of a 60 Hz display. `speed` says what exactly is measured."""

import pytest

from tests.browser.looks import kept_open
from tests.browser.site_pages import originals
from tests.browser.speed import FRAME, measure, unlimited_chromium
from tests.chromium import watched_page

pytestmark = [pytest.mark.browser, pytest.mark.alone]
FIGURES = originals()


@pytest.fixture(scope="module")
def unlimited(playwright):
    with unlimited_chromium(playwright) as started:
        yield started


@pytest.fixture(scope="module")
def in_time(unlimited, site):
    with kept_open(unlimited, site) as open_page:
        yield open_page


def test_frames_come_without_waiting_for_a_display(unlimited, site):
    page, _ = watched_page(unlimited)
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


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.label)
def test_a_change_is_drawn_within_one_frame(in_time, measured_again, figure):
    page, watch = in_time(figure.page)
    # Other work on the machine can only make it slower, so a slow measurement is taken again, and longer.
    for rounds in (1, 3, 3):
        timing = measure(page, figure, rounds=rounds)
        if timing.p95 <= FRAME:
            break
        measured_again(f"p50 {timing.p50:.1f} ms, p95 {timing.p95:.1f} ms; the limit is {FRAME:.1f} ms")
    assert timing.p95 <= FRAME, timing
    assert watch.clean(), watch

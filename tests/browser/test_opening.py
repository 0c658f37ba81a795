"""A page is light, and nothing on it moves. `opening` says what exactly is measured."""

import pytest

from tests.browser.looks import LOOKS
from tests.browser.opening import EXPLORER_READY, cumulative_shift, read_through, standing
from tests.browser.site_pages import ONE_OF_EACH, explorers, others_slow, pages

pytestmark = pytest.mark.browser
WEIGHT = 900_000  # bytes
SHIFT = 0.05
WITH_EXPLORERS = sorted({figure.page for figure in explorers()})


@pytest.mark.parametrize("name", others_slow(pages(), {*ONE_OF_EACH, *WITH_EXPLORERS}))
def test_a_page_is_light_and_nothing_on_it_moves(browser, site, name):
    check_opening(browser, site, name, "light")


@pytest.mark.parametrize("name", others_slow(WITH_EXPLORERS, ("index.html", "chapters/04_pipeline_parallelism.html")))
def test_on_a_phone_a_page_is_light_and_nothing_on_it_moves(browser, site, name):
    check_opening(browser, site, name, "phone")


def check_opening(browser, site, name, look):
    opening = read_through(browser, site, name, LOOKS[look]["viewport"])
    assert opening.weight["html"] > 0
    assert opening.weight["css"] > 0
    assert opening.total < WEIGHT, dict(opening.weight)
    assert opening.shift < SHIFT
    assert opening.grown == pytest.approx(dict.fromkeys(opening.grown, 0), abs=1)


def test_an_address_that_names_no_place_stops_no_explorer(browser, site):
    """Not even one that is no text: `%` announces two digits."""
    for place in ("#%", "#nowhere", "#explorer-nowhere"):
        assert standing(browser, f"{site}/index.html{place}", EXPLORER_READY) > 0


def test_the_shift_of_a_page_is_that_of_its_worst_window():
    steady = [(100 * i, 0.01) for i in range(100)]
    assert cumulative_shift(steady) == pytest.approx(0.51)  # a window ends after five seconds
    assert cumulative_shift([(0, 0.2), (1001, 0.3)]) == pytest.approx(0.3)  # and after one without a shift
    assert cumulative_shift([]) == 0


def test_a_page_that_moves_is_seen_to_move(browser, tmp_path):
    (tmp_path / "page.html").write_text(
        "<!doctype html><meta charset=utf-8><title>Moves</title><link rel=icon href='data:,'>"
        "<style>html { overflow-anchor: none }</style>"  # or what was scrolled past would move without a trace
        "<div id=late></div><p style='height:300px'>Words</p>"
        "<script>requestAnimationFrame(() => setTimeout(() => late.style.height = '400px', 60))</script>"
        + "<p style='height:900px'>More" * 3,
        encoding="utf-8")
    opening = read_through(browser, tmp_path.as_uri(), "page.html", {"width": 800, "height": 600},
                           drawn="() => ownShifts.length > 0")
    assert opening.shift > 0.1

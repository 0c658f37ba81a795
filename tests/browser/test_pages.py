"""Every page of the book, as readers meet it: light and dark, on a phone, printed, from disk, by keyboard, aloud."""

import pytest
from axe_playwright_python.sync_playwright import Axe

from tests.browser.looks import LOOKS, picture
from tests.browser.moving import Explorer, steps
from tests.browser.oracles import ORACLES
from tests.browser.site_pages import ONE_OF_EACH, SITE, explorers, others_slow, pages
from tests.chromium import watched_page

pytestmark = pytest.mark.browser
PAGES = pages()
FIGURES = explorers()
WITH_EXPLORERS = sorted({figure.page for figure in FIGURES})
each_page = pytest.mark.parametrize("name", others_slow(PAGES))
SOME_WITH_EXPLORERS = ("index.html", "chapters/04_pipeline_parallelism.html")
one_page_with_explorers_of_each_kind = pytest.mark.parametrize(
    "name", others_slow(WITH_EXPLORERS, SOME_WITH_EXPLORERS))

# Of what passes axe then reports one element a rule, and not every one. The size of targets it looks at when asked.
AXE = {"resultTypes": ["violations"], "rules": {"target-size": {"enabled": True}}}
WCAG = {"wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"}
SCREENSHOTS = SITE.parent / "screenshots"
BOXES = """() => Object.fromEntries([...document.querySelectorAll("figure.explorer")].map((figure) => {
  const { x, y, width, height } = figure.getBoundingClientRect();
  return [figure.id, { x, y: y + scrollY, width, height }];
}))"""
OVERFLOW = """() => [...document.querySelectorAll('figure.explorer')].flatMap((figure) => {
  const outer = figure.parentElement.getBoundingClientRect();
  return [...figure.querySelectorAll('svg, canvas, input, select, output, label, figcaption')]
    .filter((part) => part.getBoundingClientRect().width > 0)
    .filter((part) => { const box = part.getBoundingClientRect();
      return box.left < outer.left - 1 || box.right > Math.min(outer.right, innerWidth) + 1; })
    .map((part) => `${figure.id}: ${part.tagName} ${part.id}`);
})"""
EQUATIONS = """() => [...document.querySelectorAll('div.math:has(> .eqno)')].map((equation) => {
  const [number, formula] = ['.eqno', 'mjx-container'].map((part) =>
    equation.querySelector(part).getBoundingClientRect());
  return [formula.right, number.left, number.right, equation.parentElement.getBoundingClientRect().right];
})"""


@pytest.mark.parametrize("name", PAGES)
def test_a_page_opens_without_an_error_and_fits_its_window(visit, name):
    check_page(visit, name, "light")


@pytest.mark.parametrize("name", others_slow(PAGES, {*ONE_OF_EACH, *WITH_EXPLORERS}))
def test_a_page_fits_a_phone(visit, name):
    check_page(visit, name, "phone")


@each_page
def test_a_page_opens_in_the_dark(visit, name):
    check_page(visit, name, "dark")


def check_page(visit, name, look):
    page, watch = visit(name, look)
    width = LOOKS[look]["viewport"]["width"]
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width, "the page scrolls sideways"
    assert page.evaluate(OVERFLOW) == []
    assert watch.clean(), watch


@pytest.mark.slow
@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("name", PAGES)
def test_a_page_and_its_explorers_have_their_pictures_taken(visit, name, look):
    """Saves the page, as far as Chromium draws one picture, and each of its explorers: for people to look at."""
    page, _ = visit(name, look)
    SCREENSHOTS.mkdir(exist_ok=True)
    page.evaluate("() => scrollTo(0, 0)")
    boxes = page.evaluate(BOXES)
    boxes[name.replace("/", "-").removesuffix(".html")] = {
        "x": 0, "y": 0, "width": LOOKS[look]["viewport"]["width"],
        "height": min(page.evaluate("() => document.documentElement.scrollHeight"), 16_000)}
    for called, box in boxes.items():
        assert min(box["width"], box["height"]) > 0, called
        (SCREENSHOTS / f"{called}-{look}.png").write_bytes(picture(page, box, beyond=True))


def test_the_number_of_an_equation_stands_at_its_right(opened):
    page, _ = opened("chapters/03_tensor_parallelism.html")
    found = page.evaluate(EQUATIONS)
    assert len(found) > 2
    for formula, number, end, column in found:
        assert formula <= number < end <= column + 1


def test_an_equation_is_reached_by_keyboard_where_it_scrolls_and_only_there(visit):
    focused = """() => [...document.querySelectorAll("div.math > mjx-container")].map(
      (one) => [one.scrollWidth > one.clientWidth, one.getAttribute("tabindex")])"""
    for look, some in (("light", False), ("phone", True)):
        page, _ = visit("chapters/04_pipeline_parallelism.html", look)
        page.wait_for_function(f"() => ({focused})().some(([_, tab]) => tab === '0') === {str(some).lower()}")
        found = page.evaluate(focused)
        assert len(found) > 10
        assert [tab for scrolls, tab in found if scrolls] == ["0"] * sum(scrolls for scrolls, _ in found)
        assert {tab for scrolls, tab in found if not scrolls} == {None}


@pytest.mark.parametrize("look", LOOKS)
@each_page
def test_axe_finds_nothing_against_wcag_and_nothing_serious(visit, name, look):
    """Of WCAG 2.2's levels A and AA nothing at all, however slight; of good practice beyond them nothing serious."""
    page, watch = visit(name, look)
    with watch.looking_away():  # axe reads the style sheets itself, and takes some imports for another folder's
        violations = Axe().run(page, options=AXE).response["violations"]
    wrong = [f"{one['help']} ({one['id']}, {one['impact']}), {len(one['nodes'])} times, such as "
             f"{one['nodes'][0]['html'][:300]}: {one['nodes'][0]['failureSummary']}"
             for one in violations if WCAG & set(one["tags"]) or one["impact"] in ("serious", "critical")]
    assert wrong == []


@each_page
def test_a_page_and_its_explorers_work_from_disk_with_the_network_off(browser, name):
    page, watch = watched_page(browser, viewport={"width": 1280, "height": 900})
    page.context.set_offline(True)
    page.goto((SITE / name).as_uri(), wait_until="load")
    try:
        if 'class="math' in (SITE / name).read_text(encoding="utf-8"):
            page.wait_for_selector("mjx-container")
        for figure in [one for one in FIGURES if one.page == name]:
            explorer = Explorer(page, figure)
            for one in figure.inputs:
                if explorer.disabled(one):
                    continue
                start, end = steps(one.positions)[0]
                explorer.put(one, start)
                before = explorer.pixels()
                explorer.step(one, end)
                assert explorer.pixels() != before, f"{one.identity} changes nothing"
                assert explorer.wrong(ORACLES[figure.name]) == []
            explorer.reset()
        assert watch.clean(), watch
    finally:
        page.context.close()


@one_page_with_explorers_of_each_kind
def test_print_shows_the_still_and_hides_the_controls(visit, name):
    page, _ = visit(name, "dark")
    page.emulate_media(media="print", color_scheme="dark")
    for figure in [one for one in FIGURES if one.page == name]:
        still = page.locator(f"#{figure.identity} img.explorer-still")
        assert still.is_visible()
        assert still.bounding_box()["width"] > 300
        assert len(still.get_attribute("alt").split()) > 5
        assert still.evaluate("async (image) => { await image.decode(); return image.naturalWidth; }") >= 600
        assert page.locator(f"#{figure.identity} .explorer-controls").is_hidden()
        assert page.locator(f"#{figure.identity} .explorer-view").is_hidden()
    page.emulate_media(media="screen")
    assert page.locator("figure.explorer .explorer-still").first.is_hidden()


@one_page_with_explorers_of_each_kind
def test_without_scripts_the_stills_stand_and_no_control_is_dead(browser, site, name):
    page, _ = watched_page(browser, java_script_enabled=False)
    page.goto(f"{site}/{name}")
    try:
        for figure in [one for one in FIGURES if one.page == name]:
            assert page.locator(f"#{figure.identity} img.explorer-still").is_visible()
            for one in figure.inputs:
                assert page.locator(f"[id='{one.identity}']").is_hidden()
    finally:
        page.context.close()


@each_page
def test_vega_is_fetched_only_when_an_explorer_comes_near(browser, site, name):
    asked = []
    page, _ = watched_page(browser, viewport={"width": 1280, "height": 600})
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{site}/{name}")
    page.wait_for_load_state("networkidle")
    near = page.evaluate("() => [...document.querySelectorAll('figure.explorer')]"
                         ".some((f) => f.getBoundingClientRect().top < innerHeight + 800)")
    assert any(url.endswith("explorer/vega.js") for url in asked) == near
    assert any(url.endswith("explorer/page.js") or "explorer/page.js?" in url for url in asked) == (
        name in WITH_EXPLORERS)
    page.context.close()

"""Every page of the book, as readers meet it: light and dark, on a phone, printed, from disk, by keyboard, aloud."""

import base64
import re

import pytest
from axe_playwright_python.sync_playwright import Axe

from tests.browser.looks import LOOKS, picture
from tests.browser.moving import Explorer, steps
from tests.browser.oracles import ORACLES
from tests.browser.site_pages import SITE, explorers, pages
from tests.chromium import watched_page

pytestmark = pytest.mark.browser
PAGES = pages()
FIGURES = explorers()
WITH_EXPLORERS = sorted({figure.page for figure in FIGURES})
each_page = pytest.mark.parametrize("name", PAGES)
each_page_with_explorers = pytest.mark.parametrize("name", WITH_EXPLORERS)
each_explorer = pytest.mark.parametrize("explorer", FIGURES, indirect=True, ids=[figure.name for figure in FIGURES])
SCREENSHOTS = SITE.parent / "screenshots"
BOXES = """() => Object.fromEntries([...document.querySelectorAll("figure.explorer")].map((figure) => {
  const { x, y, width, height } = figure.getBoundingClientRect();
  return [figure.id, { x, y: y + scrollY, width, height }];
}))"""
DRAWN = "() => [...document.querySelectorAll('figure.explorer')].every((f) => f.dataset.state === 'ready')"
INK = "(figure) => getComputedStyle(figure.querySelector('.explorer-view')).color"
# The colours of the words that Vega wrote on the axes and, in a picture that has none, beside its legend's marks.
AXIS_INKS = """(figure) => {
  const inks = (roles) => {
    const found = new Set();
    const walk = (group) => group.items.forEach((mark) => {
      if (roles.includes(mark.role)) mark.items.forEach((item) => found.add(item.fill));
      if (mark.marktype === "group") mark.items.forEach(walk);
    });
    figure.explorer.view.scenegraph().root.items.forEach(walk);
    return [...found];
  };
  const onAxes = inks(["axis-label", "axis-title"]);
  return onAxes.length ? onAxes : inks(["legend-label"]);
}"""
OVERFLOW = """() => [...document.querySelectorAll('figure.explorer')].flatMap((figure) => {
  const outer = figure.parentElement.getBoundingClientRect();
  return [...figure.querySelectorAll('svg, canvas, input, select, output, label, figcaption')]
    .filter((part) => part.getBoundingClientRect().width > 0)
    .filter((part) => { const box = part.getBoundingClientRect();
      return box.left < outer.left - 1 || box.right > Math.min(outer.right, innerWidth) + 1; })
    .map((part) => `${figure.id}: ${part.tagName} ${part.id}`);
})"""


@pytest.fixture
def visit(opened):
    """A function that opens a page in a look, or finds it open, and waits until all of its explorers are drawn."""
    def open_page(name, look):
        page, watch = opened(name, look)
        if not page.evaluate(DRAWN):
            for figure in page.locator("figure.explorer").all():
                figure.scroll_into_view_if_needed()
            page.wait_for_function(DRAWN)
        return page, watch

    return open_page


@pytest.mark.parametrize("look", LOOKS)
@each_page
def test_a_page_opens_without_an_error_and_fits_its_window(visit, name, look):
    page, watch = visit(name, look)
    take_screenshots(page, name, look)
    width = LOOKS[look]["viewport"]["width"]
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width, "the page scrolls sideways"
    assert page.evaluate(OVERFLOW) == []
    assert watch.clean(), watch


def take_screenshots(page, name, look):
    """Save the page, as far as Chromium draws one picture, and each of its explorers."""
    SCREENSHOTS.mkdir(exist_ok=True)
    page.evaluate("() => scrollTo(0, 0)")
    boxes = page.evaluate(BOXES)
    boxes[name.replace("/", "-").removesuffix(".html")] = {
        "x": 0, "y": 0, "width": LOOKS[look]["viewport"]["width"],
        "height": min(page.evaluate("() => document.documentElement.scrollHeight"), 16_000)}
    for called, box in boxes.items():
        (SCREENSHOTS / f"{called}-{look}.png").write_bytes(picture(page, box, beyond=True))


@pytest.mark.parametrize("look", ["light", "dark"])
@each_page
def test_axe_finds_nothing_serious(visit, name, look):
    page, watch = visit(name, look)
    with watch.looking_away():  # axe reads the style sheets itself, and takes some imports for another folder's
        # Of what passes axe then reports one element a rule, and not every one.
        violations = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
    serious = [f"{one['help']} ({one['id']}), {len(one['nodes'])} times, such as {one['nodes'][0]['html'][:300]}: "
               f"{one['nodes'][0]['failureSummary']}"
               for one in violations if one["impact"] in ("serious", "critical")]
    assert serious == []


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


@each_page_with_explorers
def test_print_shows_the_still_and_hides_the_controls(visit, name):
    page, _ = visit(name, "dark")
    page.emulate_media(media="print", color_scheme="dark")
    for figure in [one for one in FIGURES if one.page == name]:
        still = page.locator(f"#{figure.identity} img.explorer-still")
        assert still.is_visible()
        assert still.bounding_box()["width"] > 300
        assert len(still.get_attribute("alt").split()) > 5
        assert still.evaluate("(image) => image.complete && image.naturalWidth") >= 600
        assert page.locator(f"#{figure.identity} .explorer-controls").is_hidden()
        assert page.locator(f"#{figure.identity} .explorer-view").is_hidden()
    page.emulate_media(media="screen")
    assert page.locator("figure.explorer .explorer-still").first.is_hidden()


@each_page_with_explorers
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


@pytest.fixture
def then_light(explorer):
    """Leaves the page in its light theme for the tests that follow."""
    yield
    use_theme(explorer.page, "light")


@pytest.mark.usefixtures("then_light")
@each_explorer
def test_the_theme_button_redraws_in_the_ink_of_the_page_and_keeps_the_controls(explorer):
    page, figure = explorer.page, explorer.figure
    one = figure.inputs[0]
    explorer.put(one, one.positions[-1])
    before = explorer.look().marks
    inks = set()
    for theme in ("dark", "light"):
        use_theme(page, theme)
        ink = explorer.locator.evaluate(INK)
        inks.add(ink)
        page.wait_for_function(f"([figure, ink]) => {{ const found = ({AXIS_INKS})(figure);"
                               " return found.length === 1 && found[0] === ink; }",
                               arg=[explorer.locator.element_handle(), ink])
        look = explorer.look()
        assert positions(look.marks) == positions(before)
        assert explorer.wrong(ORACLES[figure.name], look) == []
    assert len(inks) == 2, "the two themes must have inks of their own"
    explorer.put(one, one.positions[0])
    assert explorer.wrong(ORACLES[figure.name]) == []


def use_theme(page, theme):
    """Press the theme's own button until the page has this theme."""
    for _ in range(4):
        if page.evaluate("() => document.documentElement.dataset.theme") == theme:
            return
        page.locator(".theme-switch-button").first.click()
    raise AssertionError(f"the button does not lead to the {theme} theme")


def positions(marks):
    return {name: [(item.get("x"), item.get("y"), item.get("text")) for item in mark["items"]]
            for name, mark in marks.items()}


@each_explorer
def test_the_keyboard_alone_reaches_and_moves_every_control(explorer):
    page, figure = explorer.page, explorer.figure
    explorer.input(figure.inputs[0]).focus()
    for index, one in enumerate(figure.inputs):
        if index:
            page.keyboard.press("Tab")
        if explorer.disabled(one):
            page.keyboard.press("Shift+Tab")
            continue
        assert page.evaluate("() => document.activeElement.id") == one.identity
        before = explorer.pixels()
        at_the_end = explorer.first[one.signal] == one.positions[-1]
        down, up = ("ArrowLeft", "ArrowRight") if one.kind in ("range", "labels") else ("ArrowUp", "ArrowDown")
        page.keyboard.press("Space" if one.kind == "checkbox" else down if at_the_end else up)
        assert explorer.pixels() != before, f"{one.identity} does not answer the keyboard"


@each_page
def test_vega_is_fetched_only_when_an_explorer_comes_near(browser, site, name):
    asked = []
    page, _ = watched_page(browser, viewport={"width": 1280, "height": 600})
    page.route("**/mathjax/**", lambda route: route.abort())  # takes seconds, and is not asked about
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{site}/{name}")
    page.wait_for_load_state("networkidle")
    near = page.evaluate("() => [...document.querySelectorAll('figure.explorer')]"
                         ".some((f) => f.getBoundingClientRect().top < innerHeight + 800)")
    assert any(url.endswith("explorer/vega.js") for url in asked) == near
    assert any(url.endswith("explorer/page.js") or "explorer/page.js?" in url for url in asked) == (
        name in WITH_EXPLORERS)
    page.context.close()


@each_explorer
def test_the_still_is_the_chart_at_its_first_positions(explorer):
    """The still was drawn by the same specification: its picture is drawn anew here from the page's, and compared."""
    from scalebook.explorer import spec as specification

    page, figure = explorer.page, explorer.figure
    spec = page.locator(f"#{figure.identity} .explorer-spec").evaluate("(script) => JSON.parse(script.textContent)")
    picture = page.locator(f"#{figure.identity} img.explorer-still").evaluate(
        """async (image) => { const bytes = new Uint8Array(await (await fetch(image.src)).arrayBuffer());
           return btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join("")); }""")
    alt = page.locator(f"#{figure.identity} img.explorer-still").get_attribute("alt")
    assert alt == spec["description"]
    assert re.match(rb"\x89PNG", base64.b64decode(picture))
    assert _difference(page, picture, base64.b64encode(specification.still(spec)).decode()) < 0.02


def _difference(page, first, second):
    """The share of the pixels in which two PNG pictures differ clearly (fonts differ between machines)."""
    return page.evaluate("""async ([first, second]) => {
      const pixels = await Promise.all([first, second].map(async (text) => {
        const image = new Image();
        image.src = "data:image/png;base64," + text;
        await image.decode();
        const canvas = new OffscreenCanvas(640, 480);
        canvas.getContext("2d").drawImage(image, 0, 0, 640, 480);
        return canvas.getContext("2d").getImageData(0, 0, 640, 480).data;
      }));
      let wrong = 0;
      for (let i = 0; i < pixels[0].length; i += 4) {
        const gap = Math.max(...[0, 1, 2].map((c) => Math.abs(pixels[0][i + c] - pixels[1][i + c])));
        if (gap > 60) wrong += 1;
      }
      return wrong / (pixels[0].length / 4);
    }""", [first, second])

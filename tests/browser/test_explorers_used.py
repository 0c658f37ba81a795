"""Explorers as readers use them: light and dark, by keyboard alone, and beside the picture that stands on paper."""

import base64
import re

import pytest

from tests.browser.moving import Explorer
from tests.browser.oracles import ORACLES
from tests.browser.site_pages import explorers

pytestmark = pytest.mark.browser
FIGURES = explorers()
each_explorer = pytest.mark.parametrize("explorer", FIGURES, indirect=True, ids=lambda figure: figure.label)
INK = "(figure) => getComputedStyle(figure.querySelector('.explorer-view')).color"
# The colours of the words that Vega wrote on the axes, in a picture that has none beside its legend, or else in it.
# There they have the colour of the element they stand in.
AXIS_INKS = """(figure) => {
  const inherited = getComputedStyle(figure.querySelector(".explorer-view :is(svg, canvas)")).color;
  const inks = (roles) => {
    const found = new Set();
    const walk = (group) => group.items.forEach((mark) => {
      const words = mark.role !== "mark" || mark.marktype === "text";
      if (words && roles.includes(mark.role)) {
        mark.items.forEach((item) => found.add(item.fill === "currentColor" ? inherited : item.fill));
      }
      if (mark.marktype === "group") mark.items.forEach(walk);
    });
    figure.explorer.view.scenegraph().root.items.forEach(walk);
    return [...found];
  };
  const onAxes = inks(["axis-label", "axis-title"]);
  const beside = onAxes.length ? onAxes : inks(["legend-label"]);
  return beside.length ? beside : inks(["mark"]);
}"""


@pytest.mark.parametrize("name", sorted({figure.page for figure in FIGURES}))
def test_the_theme_button_redraws_in_the_ink_of_the_page_and_keeps_the_controls(visit, name):
    page, _ = visit(name, "light")
    shown = [Explorer.kept(page, figure) for figure in FIGURES if figure.page == name]
    inks = set()
    try:
        put_first_inputs(shown, -1)
        before = [explorer.look() for explorer in shown]
        for theme in ("dark", "light"):
            use_theme(page, theme)
            inks.update(check_redrawn(explorer, look) for explorer, look in zip(shown, before, strict=True))
        put_first_inputs(shown, 0)
        assert [wrong for explorer in shown for wrong in explorer.wrong(ORACLES[explorer.figure.name])] == []
    finally:
        use_theme(page, "light")
        for explorer in shown:
            explorer.reset()
    assert len(inks) == 2, "the two themes must have inks of their own"


def put_first_inputs(explorers, place):
    """Put the first input of each explorer at its first (0) or last (-1) position."""
    for explorer in explorers:
        one = explorer.figure.inputs[0]
        explorer.put(one, one.positions[place])


def check_redrawn(explorer, before):
    """Wait until an explorer is drawn in the page's ink, and return it; what it shows is what it showed before."""
    ink = explorer.locator.evaluate(INK)
    explorer.page.wait_for_function(f"([figure, ink]) => {{ const found = ({AXIS_INKS})(figure);"
                                    " return found.length === 1 && found[0] === ink; }",
                                    arg=[explorer.locator.element_handle(), ink])
    look = explorer.look()
    assert look.values == before.values
    assert positions(look.marks) == positions(before.marks)
    assert explorer.wrong(ORACLES[explorer.figure.name], look) == []
    return ink


def use_theme(page, theme):
    """Press the theme's own button until the page has this theme."""
    for _ in range(4):
        if page.evaluate("() => document.documentElement.dataset.theme") == theme:
            return
        page.locator(".theme-switch-button").first.click()
    raise AssertionError(f"the button does not lead to the {theme} theme")


def positions(marks):
    """Where each mark's items are, in an order of their own: a chart drawn anew may draw its items in another one."""
    return {name: sorted((repr(item.get("x")), repr(item.get("y")), repr(item.get("text"))) for item in mark["items"])
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
        before = explorer.look()
        at_the_end = explorer.first[one.signal] == one.positions[-1]
        down, up = ("ArrowLeft", "ArrowRight") if one.kind in ("range", "labels") else ("ArrowUp", "ArrowDown")
        page.keyboard.press("Space" if one.kind == "checkbox" else down if at_the_end else up)
        after = explorer.look()
        assert after.values != before.values, f"{one.identity} does not answer the keyboard"
        assert after.marks != before.marks, f"the chart does not follow {one.identity}"


@each_explorer
def test_the_still_is_the_chart_at_its_first_positions(explorer):
    """The still was drawn from the same chart: its picture is drawn anew here from the page's, and compared."""
    page, figure = explorer.page, explorer.figure
    spec = page.locator(f"#{figure.identity} .explorer-spec").evaluate("(script) => JSON.parse(script.textContent)")
    picture = page.locator(f"#{figure.identity} img.explorer-still").evaluate(
        """async (image) => { const bytes = new Uint8Array(await (await fetch(image.src)).arrayBuffer());
           return btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join("")); }""")
    alt = page.locator(f"#{figure.identity} img.explorer-still").get_attribute("alt")
    assert alt == spec["description"]
    assert re.match(rb"\x89PNG", base64.b64decode(picture))
    assert _difference(page, picture, base64.b64encode(drawn_as_a_still(spec)).decode()) < 0.02


def drawn_as_a_still(chart):
    """A page's chart, in Vega, as a PNG with the size and the ground of the stills."""
    import vl_convert

    from scalebook.explorer.spec import STILL_WIDTH

    wide = [signal | {"init": str(STILL_WIDTH)} if signal["name"] == "width" else signal
            for signal in chart["signals"]]
    return vl_convert.vega_to_png(chart | {"signals": wide, "background": "white"}, scale=2)


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

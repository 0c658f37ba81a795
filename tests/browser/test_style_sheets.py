"""The site's style sheets lack what no page has a use for; what readers see is what the whole sheets would show."""

import pytest

from scalebook.book.lean import SHEET, TRIMMED, without_icon_font
from tests.browser.looks import LOOKS
from tests.browser.site_pages import SITE, others_slow, pages
from tests.chromium import watched_page

pytestmark = pytest.mark.browser
WHOLE = SITE.parent / ".doctrees" / "style_sheets"
SHEETS = sorted(path.relative_to(WHOLE).as_posix() for path in WHOLE.rglob("*.css"))
SOME = {"index.html", "search.html", "chapters/exercises.html", "chapters/00_collectives.html"}
# The style of every element and of what stands before and after it, as one number an element.
STYLES = """() => [...document.body.querySelectorAll("*")].map((element) => {
  let sum = 0;
  for (const part of [null, "::before", "::after"]) {
    const style = getComputedStyle(element, part);
    if (part && style.content === "none") continue;
    for (const property of style) {
      if (property.startsWith("--")) continue;
      const text = property + style.getPropertyValue(property);
      for (let i = 0; i < text.length; i += 1) sum = (sum * 31 + text.charCodeAt(i)) | 0;
    }
  }
  return `${element.tagName}.${element.getAttribute("class")} ${sum}`;
})"""


def styles(browser, site, name, look, whole):
    """The style of every element of a page, with the site's sheets or the whole ones; and the sheets it asked for."""
    page, _ = watched_page(browser, reduced_motion="reduce", **LOOKS[look])
    asked = set()

    def answer(route):
        sheet = route.request.url.partition("/_static/")[2].partition("?")[0]
        asked.add(sheet)
        if whole:
            text = (WHOLE / sheet).read_text(encoding="utf-8")
            route.fulfill(body=without_icon_font(text) if sheet == SHEET else text, content_type="text/css")
        else:
            route.continue_()

    page.route("**/*.css*", answer)
    page.route("**/page.js", lambda route: route.abort())  # a chart that is drawn, or not yet, would be a difference
    page.goto(f"{site}/{name}", wait_until="load")
    page.evaluate("() => document.fonts.ready")
    found = page.evaluate(STYLES)
    page.context.close()
    return found, asked


@pytest.mark.parametrize("look", ["light", "phone"])
@pytest.mark.parametrize("name", others_slow(pages(), SOME))
def test_no_element_looks_other_than_with_the_whole_style_sheets(browser, site, name, look):
    ours, asked = styles(browser, site, name, look, whole=False)
    theirs, _ = styles(browser, site, name, look, whole=True)
    assert len(ours) > 100
    assert asked <= set(SHEETS)
    assert "styles/pydata-sphinx-theme.css" in asked
    other = [(one, two) for one, two in zip(ours, theirs, strict=True) if one != two]
    assert not other, other[:5]


def test_the_sheets_of_the_site_are_trimmed():
    trimmed = [(SITE / "_static" / sheet).read_text(encoding="utf-8") for sheet in SHEETS]
    assert all(sheet.startswith(TRIMMED) for sheet in trimmed)
    assert sum(map(len, trimmed)) < 0.5 * sum((WHOLE / sheet).stat().st_size for sheet in SHEETS)

"""Listings with fewer elements read and look as those with all."""

import re
from html.parser import HTMLParser

import pytest
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer
from pygments.styles import get_style_by_name
from pygments.token import STANDARD_TYPES

from scalebook.book import notebooks, plain_code

STYLES = ("a11y-high-contrast-light", "a11y-high-contrast-dark")
KINDS = {short: kind for kind, short in STANDARD_TYPES.items()}


class Letters(HTMLParser):
    """Each letter of a listing with the class of the element that it stands in."""

    def __init__(self, html):
        super().__init__()
        self.found, self._classes = [], [""]
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self._classes.append(dict(attrs).get("class") or "")

    def handle_endtag(self, tag):
        self._classes.pop()

    def handle_data(self, data):
        self.found += [(letter, self._classes[-1]) for letter in data]


@pytest.fixture(scope="module", params=[path.stem for path in notebooks.chapters()])
def listings(request):
    path = next(path for path in notebooks.chapters() if path.stem == request.param)
    cells = notebooks.read(path).cells
    return "\n".join(cell.source for cell in cells if cell.cell_type == "code")


def test_every_letter_of_a_chapters_listings_has_the_colour_that_it_had(listings):
    lexer = PythonLexer()
    lean = Letters(highlight(listings, lexer, plain_code.formatter(*STYLES)(nowrap=True))).found
    full = Letters(highlight(listings, lexer, HtmlFormatter(nowrap=True))).found
    assert [letter for letter, _ in lean] == [letter for letter, _ in full]
    for name in STYLES:
        style = get_style_by_name(name)
        looks = {short: style.style_for_token(kind) for short, kind in KINDS.items()}
        assert [looks[short] for _, short in lean] == [looks[short] for _, short in full]


def test_it_saves_half_of_the_elements(listings):
    lexer = PythonLexer()
    lean, full = (len(re.findall("<span", highlight(listings, lexer, kind(nowrap=True))))
                  for kind in (plain_code.formatter(*STYLES), HtmlFormatter))
    assert lean < 0.5 * full


def test_what_one_of_the_styles_colours_keeps_its_element():
    assert "<span" in highlight("f(x)", PythonLexer(), plain_code.formatter(STYLES[0], "nord")(nowrap=True))

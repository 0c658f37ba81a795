"""The book on paper: printed by Chromium, joined, with bookmarks and links, and nothing cut off."""

import re
import unicodedata
from io import BytesIO
from itertools import pairwise

import pytest
from pypdf import PdfReader

from scalebook.book import notebooks, pdf
from tests.browser.site_pages import SITE, others_slow

pytestmark = pytest.mark.browser
NAMES = ("index", "chapters/05_zero", "chapters/errata")
POINTS_A4 = (595, 842)
CHAPTERS = [f"chapters/{path.stem}" for path in notebooks.find([])]
INSIDE = [name for name in pdf.page_names() if name.startswith("chapters/")]
# The pages are printed once, for the tests that read them: those stay on one worker.
reads_the_print = pytest.mark.xdist_group("the printed book")
# What is wider than the paper's text, of all that holds code, output, tables, pictures and formulas.
CUT_OFF = """() => [...document.querySelectorAll("pre, table, .cell_output img, .cell_output svg, mjx-container")]
  .filter((e) => e.offsetParent && (e.scrollWidth > e.clientWidth + 1 && e.tagName === "PRE"
                                    || e.getBoundingClientRect().right > document.documentElement.clientWidth + 1))
  .map((e) => e.outerHTML.slice(0, 120))"""


@pytest.fixture(scope="module")
def printed(browser):
    """Three pages of the book as one PDF."""
    whole, file = pdf.print_book(SITE, names=NAMES, browser=browser), BytesIO()
    whole.write(file)
    return PdfReader(file)


@pytest.fixture(scope="module")
def sheets(printed):
    """The text of each printed page."""
    return [page.extract_text() for page in printed.pages]


def squeezed(text):
    """The text without white space and without ligatures, which a printed heading may have."""
    return "".join(unicodedata.normalize("NFKC", text).split())


def flat(outline):
    return [item for mark in outline for item in (flat(mark) if isinstance(mark, list) else [mark])]


@reads_the_print
def test_the_bookmarks_are_the_headings_and_lead_to_them(printed, sheets):
    marks = flat(printed.outline)
    assert {"The question", "Derive", "In one breath", "Tensor parallelism"} <= {mark.title for mark in marks}
    for mark in marks:
        sheet = sheets[printed.get_destination_page_number(mark)]
        assert squeezed(mark.title) in squeezed(sheet), mark.title


@reads_the_print
def test_a_link_between_pages_leads_into_the_pdf_and_no_path_of_this_machine_is_left(printed):
    links = [link.get_object() for page in printed.pages for link in page.get("/Annots") or ()]
    addresses = [str(link["/A"]["/URI"]) for link in links if "/URI" in link.get("/A", {})]
    assert addresses, "the chapter cites papers"
    assert not [address for address in addresses if address.startswith("file:")]
    first = [link.get_object() for page in printed.pages[:3] for link in page.get("/Annots") or ()]
    assert any("/Dest" in link for link in first), "the book's first page links to the chapters"


@reads_the_print
def test_pages_are_a4_and_numbered_through(printed, sheets):
    for number, (page, sheet) in enumerate(zip(printed.pages, sheets, strict=True), start=1):
        assert [round(float(side)) for side in page.mediabox[2:]] == pytest.approx(POINTS_A4, abs=1)
        assert re.search(rf"(?<!\d){number}(?!\d)", sheet), number


@reads_the_print
def test_all_code_of_a_chapter_is_printed(sheets):
    """Every line of a listing is in the PDF's text, to its end; where it goes on overleaf, both parts are."""
    sheets = [squeezed(sheet) for sheet in sheets]
    notebook = notebooks.read(notebooks.CHAPTERS / "05_zero.ipynb")
    code = [[squeezed(line) for line in cell.source.splitlines() if line.strip()]
            for cell in notebook.cells if cell.metadata.get("listing")]
    assert code
    for lines in code:
        for line, after in pairwise([*lines, ""]):
            assert any(line in sheet for sheet in sheets) or goes_on_overleaf(line, after, sheets), line


def goes_on_overleaf(line, after, sheets):
    """Whether a line is broken at a page's end: it is the last there, and the rest stands overleaf before the next."""
    return any(sheet.endswith(line[:place]) and line[place:] + after in overleaf
               for sheet, overleaf in pairwise(sheets) for place in range(1, len(line)))


def test_a_line_that_is_cut_is_not_taken_for_one_that_goes_on_overleaf():
    assert goes_on_overleaf("return(x+y)", "defg():", ["1a=1return(x", "2+y)defg():"])
    assert not goes_on_overleaf("return(x+y)", "defg():", ["1a=1return(x", "2+)defg():"])
    assert not goes_on_overleaf("return(x+y)", "defg():", ["1a=1return(xb=2", "2+y)defg():"])
    assert not goes_on_overleaf("return(x+y)", "defg():", ["1a=1return(x", "2b=2"])


@pytest.mark.parametrize("page_name", others_slow(INSIDE, [*CHAPTERS, "chapters/notation"]))
def test_nothing_is_wider_than_the_paper(browser, page_name):
    page = browser.new_page(viewport={"width": 673, "height": 1000})  # A4 less its margins, at 96 dots an inch
    try:
        page.goto((SITE / f"{page_name}.html").as_uri())
        page.emulate_media(media="print")
        page.evaluate(pdf.PREPARE, 0)
        assert page.evaluate(CUT_OFF) == []
    finally:
        page.close()


def test_a_site_that_lacks_a_page_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"site = .* has no index.html"):
        pdf.print_book(tmp_path)

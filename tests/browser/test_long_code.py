"""A long cell of a chapter shows its first lines until a reader unfolds it; listings and paper show all."""

import nbformat
import pytest

from scalebook.book.build import ROOT
from scalebook.book.long_code import LONGEST

pytestmark = pytest.mark.browser
CHAPTER = "04_pipeline_parallelism"
PAGE = f"chapters/{CHAPTER}.html"
CUT = """(pre) => pre.scrollHeight - pre.clientHeight"""
ALL_CUT = """() => [...document.querySelectorAll(".cell_input pre")].filter((pre) =>
  pre.scrollHeight > pre.clientHeight + 1).map((pre) => pre.textContent)"""


def code_cells():
    return [cell for cell in nbformat.read(ROOT / "chapters" / f"{CHAPTER}.ipynb", as_version=4).cells
            if cell.cell_type == "code"]


def test_long_cells_are_cut_and_listings_are_whole(visit):
    page, _ = visit(PAGE, "light")
    long = [cell.source for cell in code_cells() if len(cell.source.splitlines()) > LONGEST
            and not cell.metadata.get("listing") and "hide-input" not in cell.metadata.get("tags", [])]
    assert len(long) >= 3
    assert any(len(cell.source.splitlines()) > LONGEST for cell in code_cells() if cell.metadata.get("listing"))
    assert [text.rstrip("\n") for text in page.evaluate(ALL_CUT)] == long
    says = page.locator(".whole-code > summary").all_inner_texts()
    assert says == [f"Show all {len(source.splitlines())} lines" for source in long]


def test_a_long_cell_unfolds_by_keyboard_and_folds_again(visit):
    page, _ = visit(PAGE, "light")
    cell = page.locator(".cell_input", has=page.locator(".whole-code")).first
    summary, code = cell.locator("summary"), cell.locator("pre")
    assert code.evaluate(CUT) > 100
    summary.focus()
    page.keyboard.press("Enter")
    assert code.evaluate(CUT) <= 1
    assert summary.inner_text() == "Show fewer lines"
    page.keyboard.press("Enter")
    assert code.evaluate(CUT) > 100


def test_paper_has_all_the_code(visit):
    page, _ = visit(PAGE, "light")
    page.emulate_media(media="print")
    try:
        assert page.evaluate(ALL_CUT) == []
        assert page.locator(".whole-code").first.is_hidden()
    finally:
        page.emulate_media(media="screen")

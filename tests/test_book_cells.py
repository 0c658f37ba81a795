"""Each cell of a chapter has an address, and a link to a cell that does not exist ends the build."""

import json
import re

import pytest

from scalebook.book import build, cells, notebooks
from tests import small_books

NOTEBOOK = {
    "nbformat": 4, "nbformat_minor": 5, "metadata": {"language_info": {"name": "python", "pygments_lexer": "ipython3"}},
    "cells": [
        {"id": "title", "cell_type": "markdown", "metadata": {}, "source": "# A chapter\n\nSee [below](#cell-sum)."},
        {"id": "sum", "cell_type": "code", "metadata": {}, "execution_count": 1, "source": "print(1 + 1)",
         "outputs": [{"output_type": "stream", "name": "stdout", "text": "2\n"}]},
        {"id": "words", "cell_type": "markdown", "metadata": {}, "source": ["Two lines\n", "of words."]},
        {"id": "table", "cell_type": "markdown", "metadata": {}, "source": "| a |\n|---|\n| 1 |"},
        {"id": "exercise", "cell_type": "markdown", "metadata": {},
         "source": "```{exercise} One line\n:label: ex-one\n\nHow many?\n```"},
        {"id": "solution-start", "cell_type": "markdown", "metadata": {},
         "source": "```{solution-start} ex-one\n:label: solution-one\n:class: dropdown\n```\n\nTwo."},
        {"id": "solution", "cell_type": "code", "metadata": {}, "execution_count": 2, "source": "2", "outputs": []},
        {"id": "solution-end", "cell_type": "markdown", "metadata": {}, "source": "```{solution-end}\n```"},
    ],
}


@pytest.fixture(scope="module")
def small_book(tmp_path_factory):
    """A book of one chapter and a page of links, one of them to no cell; and whether its strict build succeeded."""
    folder = small_books.begun(tmp_path_factory.mktemp("small"), "chapters/05_zero")
    (folder / "chapters" / "05_zero.ipynb").write_text(json.dumps(NOTEBOOK))
    lines = [f"[{cell['id']}](chapters/05_zero.ipynb#{cells.address(cell)})" for cell in NOTEBOOK["cells"]
             if cells.address(cell)]
    good = "\n".join(["# Links\n", *lines, ""])
    (folder / "index.md").write_text(good)
    assert build.build(folder) == 0
    (folder / "index.md").write_text(f"{good}[gone](chapters/05_zero.ipynb#cell-gone)\n")
    code = build.build(folder)
    return folder / "_build" / "html", code


def test_each_cell_is_found_under_its_id(small_book):
    html = (small_book[0] / "chapters" / "05_zero.html").read_text()
    ids = re.findall(r'\bid="([^"]+)"', html)
    wanted = {"cell-title", "cell-sum", "cell-words", "cell-table", "cell-exercise", "cell-solution-start",
              "cell-solution"}
    assert wanted == {found for found in ids if found.startswith("cell-")}
    assert len(ids) == len(set(ids))
    assert cells.MARK not in html
    assert re.search(r'<a[^>]*href="#cell-sum"', html)


def test_a_link_to_no_cell_ends_the_build_and_the_others_lead_to_theirs(small_book):
    html, code = small_book
    page = (html / "index.html").read_text()
    assert code != 0
    assert set(re.findall(r'href="chapters/05_zero.html#(cell-[\w-]+)"', page)) >= {
        "cell-title", "cell-sum", "cell-words", "cell-table", "cell-exercise", "cell-solution"}


@pytest.mark.parametrize("path", notebooks.chapters(), ids=lambda path: path.stem)
def test_every_cell_of_a_chapter_has_an_address_of_its_own_but_ends_of_solutions(path):
    found = [cells.address(cell) for cell in cells.read(path)]
    named = [name for name in found if name]
    assert len(named) == len(set(named))
    assert [cell["id"] for cell, name in zip(cells.read(path), found, strict=True) if name is None] == [
        cell["id"] for cell in cells.read(path) if cells.text_of(cell).lstrip("`:").startswith("{solution-end}")]


def test_marking_changes_no_code_and_keeps_the_words():
    notebook = json.loads(json.dumps(NOTEBOOK))
    cells.mark(notebook)
    for before, after in zip(NOTEBOOK["cells"], notebook["cells"], strict=True):
        assert cells.text_of(after).endswith(cells.text_of(before))
        assert after["cell_type"] == "markdown" or after["source"] == before["source"]


def test_a_cell_is_named_by_its_chapter_and_heading():
    assert cells.heading_of(5, "trap-count") == "The trap"
    assert cells.heading_of(5, "derive-peak") == "Resident and peak"
    assert cells.heading_of(5, "solution-half") == "Nine tenths of the limit"


def test_a_chapter_not_yet_written_has_no_cells_and_two_of_one_number_are_refused(tmp_path):
    assert cells.find(7, "trap", tmp_path) is None
    for name in ("07_a.ipynb", "07_b.ipynb"):
        (tmp_path / name).write_text(json.dumps(NOTEBOOK))
    with pytest.raises(ValueError, match=r"07_a\.ipynb, 07_b\.ipynb"):
        cells.find(7, "trap", tmp_path)

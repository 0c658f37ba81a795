"""Each row of the page of errata leads to a cell that shows it."""

import re

import pytest

from scalebook.book import build, cells

PAGE = build.ROOT / "chapters" / "errata.md"
ROWS = [line for line in PAGE.read_text(encoding="utf-8").splitlines()
        if re.match(r"\| (\d+, )?(critical|major|minor) \|", line)]
# Who said it first is no matter for an assert: these lead to a history that links to papers.
AUTHORSHIP = {8, 9, 29, 30, 41, 52, 53}


def number(row):
    return int(re.match(r"\| (\d*)", row)[1] or 0)


def shown_in(row):
    return [(int(chapter), name) for chapter, name in re.findall(r"\{cell\}`(\d)#([\w-]+)`", row)]


def test_there_are_sixty_one_numbered_rows_each_once():
    assert sorted(number(row) for row in ROWS if number(row)) == list(range(1, 62))
    assert all(row.count(" | ") == 2 for row in ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(number(row)))
def test_a_row_leads_to_a_cell_that_asserts_or_to_the_papers(row):
    places = shown_in(row)
    assert places
    found = [cells.find(*place) for place in places]
    if all(cell is None for cell in found):
        assert {chapter for chapter, _ in places} == {6}, "only the last chapter may be missing"
        return
    written = [cell for cell in found if cell is not None]
    asserting = [cell for cell in written
                 if cell["cell_type"] == "code" and re.search(r"^\s*assert\b", cells.text_of(cell), re.M)]
    papers = [cell for cell in written if cell["cell_type"] == "markdown" and "](http" in cells.text_of(cell)]
    assert asserting or (number(row) in AUTHORSHIP and papers)

"""What a chart shows can be read as a table and is spoken: without seeing it, without a kernel."""

import pytest

from tests.browser.oracles import ORACLES
from tests.browser.site_pages import explorers

pytestmark = pytest.mark.browser
FIGURES = explorers()
each_explorer = pytest.mark.parametrize("explorer", FIGURES, indirect=True, ids=lambda figure: figure.label)
CELLS = """(figure) => [...figure.querySelectorAll('.explorer-data table')].map((table) => ({
  columns: [...table.rows[0].cells].map((cell) => cell.textContent),
  rows: [...table.tBodies[0].rows].map((row) => [...row.cells].map((cell) => cell.textContent)),
}))"""


@pytest.fixture
def folded_again(explorer):
    """Folds the table after the test."""
    yield
    explorer.locator.evaluate("(figure) => { figure.querySelector('.explorer-data').open = false; }")


@pytest.mark.usefixtures("folded_again")
@each_explorer
def test_the_data_behind_a_picture_unfold_by_keyboard_and_follow_the_controls(explorer):
    page, figure, one = explorer.page, explorer.figure, explorer.figure.inputs[0]
    explorer.locator.locator(".explorer-data summary").focus()
    page.keyboard.press("Enter")
    page.wait_for_function("(figure) => figure.querySelector('.explorer-data div').childElementCount",
                           arg=explorer.locator.element_handle())
    before = explorer.locator.evaluate(CELLS)
    assert sum(len(table["rows"]) for table in before) >= 3, "a chart has at least three values"
    assert all(len(row) == len(table["columns"]) for table in before for row in table["rows"])
    text = explorer.locator.locator(".explorer-data").inner_text()
    explorer.put(one, one.positions[-1] if explorer.first[one.signal] != one.positions[-1] else one.positions[0])
    assert explorer.locator.locator(".explorer-data").inner_text() != text
    assert explorer.wrong(ORACLES[figure.name]) == []


@each_explorer
def test_a_moved_control_is_spoken_with_its_value(explorer):
    page, one = explorer.page, explorer.figure.inputs[0]
    position = one.positions[-1] if explorer.first[one.signal] != one.positions[-1] else one.positions[0]
    explorer.put(one, position)
    label = page.locator(f"label[for='{one.identity}']").inner_text().strip()
    shown = explorer.look().texts[one.name]
    said = f"{label}: {('on' if position else 'off') if shown is None else shown}. "
    # What was said before is of a control that another test moved.
    page.wait_for_function("([status, said]) => status.textContent.startsWith(said)",
                           arg=[explorer.locator.locator(".explorer-spoken[role=status]").element_handle(), said])


def test_the_table_of_the_bubble_has_the_numbers_of_its_formula(opened):
    from scalebook.formulas import pipeline as formulas

    page, _ = opened("chapters/04_pipeline_parallelism.html")
    figure = page.locator("#explorer-bubble")
    figure.scroll_into_view_if_needed()
    page.locator("#explorer-bubble[data-state=ready]").wait_for()
    figure.locator(".explorer-data summary").click()
    page.wait_for_function("document.querySelector('#explorer-bubble .explorer-data tbody')")
    tables = figure.evaluate(CELLS)
    figure.locator(".explorer-data summary").click()
    rows = next(table["rows"] for table in tables if len(table["rows"]) > 100)
    stages = int(page.locator("#explorer-bubble-P").input_value())
    overhead = {int(row[0]): row[1] for row in rows if row[2].startswith("overhead")}
    assert len(overhead) > 100
    for microbatches, read in overhead.items():
        exact = 100 * float(formulas.bubble_overhead(P=stages, M=microbatches))
        assert float(read.removesuffix("%")) == pytest.approx(exact, rel=1e-4)

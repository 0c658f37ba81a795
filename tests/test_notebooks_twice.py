"""What people do with a chapter: run a cell again or before another, in an empty folder, on another number of cores."""

from copy import deepcopy

import pytest

from scalebook.book import execute, notebooks
from tests import cell_order
from tests import sample_chapter as sample

CHAPTERS = notebooks.chapters()
for_every_chapter = pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)


def doubled(notebook):
    """A notebook in which each code cell stands twice in a row."""
    made = deepcopy(notebook)
    made.cells = []
    for cell in notebook.cells:
        made.cells.append(cell)
        if cell.cell_type == "code":
            again = deepcopy(cell)
            again["id"] = f"{cell['id'][:50]}-again"
            made.cells.append(again)
    return made


def run_doubled(path, folder):
    """Run each cell of a chapter twice in a row; raises CellFailed when one cannot be.

    Returns the seconds by cell, and the text outputs of the first runs and of the second ones, in the cells' order.
    """
    copy = folder / f"twice-{path.name}"
    notebooks.write(copy, doubled(notebooks.read(path)))
    notebook, seconds = execute.run(copy)
    found = text_outputs(notebook)
    again = [cell["id"] for cell in notebooks.code_cells(notebook)][1::2]
    first = [shown for cell, shown in found.items() if cell not in again]
    return seconds, first, [found[cell] for cell in again if cell in found]


def text_outputs(notebook):
    """What nbval compares: the text of each cell's outputs, measured cells and pictures left out."""
    found = {}
    for cell in notebooks.code_cells(notebook):
        if "nbval-ignore-output" not in cell.metadata.get("tags", []):
            found[cell["id"]] = [(o.name, o.text) if o.output_type == "stream" else
                                 {kind: data for kind, data in o.data.items() if kind != "image/png"}
                                 for o in cell.outputs]
    return found


def run_with_threads(path, folder, threads):
    """Run a chapter in an empty folder with so many threads; return (text outputs, seconds by cell)."""
    folder.mkdir()
    count = {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    notebook, seconds = execute.run(path, folder=folder, environment=count)
    assert list(folder.iterdir()) == [], "the chapter leaves files in the folder where it runs"
    return text_outputs(notebook), seconds


def run_out_of_order(path, folder):
    """Run the cells in another order (`cell_order`); return (how many pairs are turned round, text outputs)."""
    notebook = notebooks.read(path)
    order = cell_order.order_of(notebook)
    cells = notebooks.code_cells(notebook)
    notebook.cells = [cells[number] for number in order]
    copy = folder / f"turned-{path.name}"
    notebooks.write(copy, notebook)
    return cell_order.turned(order), text_outputs(execute.run(copy)[0])


@pytest.mark.slow
@pytest.mark.timeout(900)
@for_every_chapter
def test_cells_that_do_not_need_each_other_give_what_is_stored_in_the_other_order_too(path, tmp_path):
    turned, found = run_out_of_order(path, tmp_path)
    assert turned > 50
    assert found == text_outputs(notebooks.read(path))


@pytest.mark.slow
@pytest.mark.timeout(900)
@for_every_chapter
def test_every_cell_can_be_run_twice_in_a_row_and_shows_the_same(path, tmp_path):
    seconds, first, second = run_doubled(path, tmp_path)
    assert len(seconds) == 2 * len(notebooks.code_cells(notebooks.read(path)))
    assert second == first


@pytest.mark.slow
@pytest.mark.timeout(900)
@for_every_chapter
def test_a_chapter_gives_the_same_text_in_an_empty_folder_with_one_thread_and_with_two(path, tmp_path):
    one, _ = run_with_threads(path, tmp_path / "one", 1)
    two, seconds = run_with_threads(path, tmp_path / "two", 2)
    assert one == two
    assert execute.over_limits(execute.report_of({path.stem: seconds})) == []


def book(tmp_path, *sources):
    cells = [sample.code(f"cell-{number}", source) for number, source in enumerate(sources)]
    path = tmp_path / "01_x.ipynb"
    notebooks.write(path, sample.v4.new_notebook(cells=cells))
    return path


def test_a_cell_that_cannot_be_run_again_is_caught(tmp_path):
    path = book(tmp_path, "x = [1]", "last = x.pop()")
    execute.run(path)
    with pytest.raises(execute.CellFailed, match="cell cell-1-again failed"):
        run_doubled(path, tmp_path)


def test_a_cell_that_shows_something_else_the_second_time_is_caught(tmp_path):
    path = book(tmp_path, "x = [1, 2]", "print(x.pop())", "print(1)")
    execute.run(path)
    _, first, second = run_doubled(path, tmp_path)
    assert first[1] != second[1]
    assert first[2] == second[2]


def test_a_cell_that_leans_on_one_that_it_does_not_name_is_caught(tmp_path):
    path = book(tmp_path, "import random", "random.seed(1)\nprint(random.random())", "print(random.random())")
    stored, _ = execute.run(path)
    turned, found = run_out_of_order(path, tmp_path)
    assert turned == 1
    assert found != text_outputs(stored)


@pytest.mark.parametrize(("sources", "order"), [
    (["a = 1", "b = 2", "print(a)", "print(b)"], [1, 3, 0, 2]),
    (["a = 1", "print(a)", "a = 2", "print(a)"], [0, 1, 2, 3]),
    (["a = [1]", "print(a)", "a[0] = 2", "print(a)"], [0, 1, 2, 3]),
    (["a = {}", "a['b'].c[0] = 2", "a['d'] = 1", "1"], [3, 0, 1, 2]),
    (["a = 1", "a += 1", "a += 1"], [0, 1, 2]),
    (["def f():\n    return g()", "def g():\n    return a", "a = 1", "f()"], [2, 1, 0, 3]),
    (["a = 1", "def f():\n    return a", "f()", "a = 2", "f()"], [1, 0, 2, 3, 4]),
    (["a = 1", "[a for b in range(2)]", "class C:\n    c = a", "sorted([], key=lambda d: a)"], [0, 3, 2, 1]),
    (["import os", "def f(os):\n    return os", "f(1)", "os.name"], [1, 2, 0, 3]),
    (["def list():\n    pass", "1", "list()"], [1, 0, 2])])
def test_a_cell_comes_after_what_it_needs_and_else_as_early_as_can_be(sources, order):
    assert cell_order.last_first(cell_order.needs(sources)) == order


def test_a_file_left_behind_and_a_print_that_depends_on_threads_are_caught(tmp_path):
    path = book(tmp_path, "open('left.txt', 'w').close()")
    with pytest.raises(AssertionError, match="leaves files"):
        run_with_threads(path, tmp_path / "left", 1)
    path = book(tmp_path, "import os\nprint(os.environ['OMP_NUM_THREADS'])")
    one, _ = run_with_threads(path, tmp_path / "one", 1)
    two, _ = run_with_threads(path, tmp_path / "two", 2)
    assert one != two

"""`python -m scalebook.book.execute`: outputs that depend on the results alone, or no change at all."""

import atexit
import json
import re
import socket
import subprocess
import sys

import nbclient
import pytest

from scalebook.book import execute, notebooks
from tests import sample_chapter as sample

ROOT = notebooks.CHAPTERS.parent

GOOD = """import os, sys
assert os.environ["SCALEBOOK_STATIC"] == "1"
assert os.path.basename(os.getcwd()) == "book"
for word in ("one", "two"):
    print(word)
    sys.stdout.flush()"""


def book(tmp_path, *sources):
    folder = tmp_path / "book"
    folder.mkdir(exist_ok=True)
    cells = [sample.code(f"cell-{name}", source, **metadata) for name, source, metadata in sources]
    notebook = sample.v4.new_notebook(cells=[sample.text("title", "# T"), *cells])
    notebook.cells[-1].metadata["execution"] = {"iopub.execute_input": "2026"}
    notebook.metadata["widgets"] = {"application/vnd.jupyter.widget-state+json": {}}
    notebook.metadata["kept"] = {"a": 1}
    path = folder / "01_x.ipynb"
    notebooks.write(path, notebook)
    return path


def run(path, *arguments):
    return subprocess.run([sys.executable, "-m", "scalebook.book.execute", "--folder", str(path.parent),
                           *map(str, arguments)], text=True, capture_output=True, check=False, timeout=120,
                          stdin=subprocess.DEVNULL)


def test_outputs_are_written_normalised_and_the_same_twice(tmp_path):
    path = book(tmp_path, ("print", GOOD, {}), ("value", "6 * 7", {"tags": ["kept"]}),
                ("html", "from IPython.display import HTML, display\n_ = display(HTML('<p>é</p>'))", {}))
    report = tmp_path / "reports" / "execution.json"
    result = run(path, "01_x", "--report", report)
    assert result.returncode == 0, result.stderr
    assert re.fullmatch(r"01_x\.ipynb: \d+\.\d s, slowest cell cell-\w+ \d+\.\d s, written\n", result.stdout)
    written = path.read_text(encoding="utf-8")
    notebook = notebooks.read(path)
    printed, value, html = notebooks.code_cells(notebook)
    assert [(o.name, o.text) for o in printed.outputs] == [("stdout", "one\ntwo\n")]
    assert (value.execution_count, value.outputs[0].execution_count) == (2, 2)
    assert value.outputs[0].data == {"text/plain": "42"}
    assert html.outputs[0].data["text/html"] == "<p>é</p>"
    assert [cell["id"] for cell in notebook.cells] == ["title", "cell-print", "cell-value", "cell-html"]
    assert value.metadata == {"tags": ["kept"]}
    assert html.metadata == {}
    assert notebook.metadata == {"kept": {"a": 1}, "kernelspec": execute.KERNELSPEC,
                                 "language_info": execute.LANGUAGE_INFO}
    assert written.endswith("}\n")
    seconds = json.loads(report.read_text())["01_x"]
    assert set(seconds["cells"]) == {"cell-print", "cell-value", "cell-html"}
    assert seconds["seconds"] == pytest.approx(sum(seconds["cells"].values()), abs=0.01)
    assert run(path).stdout.endswith("unchanged\n")
    assert path.read_text(encoding="utf-8") == written
    assert [file.name for file in path.parent.iterdir()] == ["01_x.ipynb"]


@pytest.mark.parametrize(("source", "says"), [
    ("x = 1\nraise ValueError('no such stage')", "ValueError: no such stage"),
    ("import warnings\nwarnings.warn('old')", "wrote to stderr"),
    ("import os\nos.kill(os.getpid(), 9)", "Kernel died"),
    ("import time\ntime.sleep(60)", "timed out")], ids=["raises", "stderr", "dies", "hangs"])
def test_a_failure_shows_the_cell_and_leaves_the_chapter_as_it_was(tmp_path, source, says):
    path = book(tmp_path, ("fine", "print('fine')", {}), ("bad", source, {}))
    before = path.read_bytes()
    result = run(path, "--timeout", 8)
    assert result.returncode == 1
    assert "01_x.ipynb, cell cell-bad failed:\n    " + source.splitlines()[0] in result.stderr
    assert says in result.stderr
    assert "\x1b" not in result.stderr
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == ["01_x.ipynb"]


def test_a_write_that_fails_leaves_the_old_file_whole(tmp_path, monkeypatch):
    path = book(tmp_path, ("fine", "1", {}))
    before = path.read_bytes()
    notebook = notebooks.read(path)
    notebook.cells[1].source = "2"

    def refuse(self, target):
        raise OSError("disk full")

    monkeypatch.setattr("pathlib.Path.replace", refuse)
    with pytest.raises(OSError, match="disk full"):
        notebooks.write(path, notebook)
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == ["01_x.ipynb"]


def test_an_invalid_or_old_notebook_is_refused(tmp_path):
    path = book(tmp_path, ("fine", "1", {}))
    notebook = notebooks.read(path)
    notebook.cells[1].outputs = [{"output_type": "unheard"}]
    with pytest.raises(ValueError, match="not valid at cells/1"):
        notebooks.write(path, notebook)
    text = path.read_text()
    path.write_text(text.replace('"nbformat_minor": 5', '"nbformat_minor": 4'))
    with pytest.raises(ValueError, match=r"must be 4\.5 or later"):
        notebooks.read(path)
    path.write_text(text.replace('"id": "cell-fine",\n', ""))
    with pytest.raises(ValueError, match=r"cell 1 .* has no id"):
        notebooks.read(path)


def test_limits_hold_for_a_cell_a_chapter_and_the_book():
    def entry(*seconds):
        return execute.report_of({"x": {f"c{i}": s for i, s in enumerate(seconds)}})["x"]

    assert execute.over_limits({"01_a": entry(59, 30), "02_quantization": entry(59, 59, 31)}) == []
    assert execute.over_limits({"01_a": entry(45.5, 45)}) == ["01_a took 90.5 s; the limit is 90 s"]
    assert execute.over_limits({"01_a": entry(61)}) == ["01_a: cell c0 took 61 s; the limit is 60 s"]
    assert execute.over_limits({"02_quantization": entry(59, 59, 59)}) == [
        "02_quantization took 177 s; the limit is 150 s"]
    many = {f"0{i}_x": entry(50, 35) for i in range(6)}
    assert execute.over_limits(many) == ["the book took 510 s; the limit is 480 s"]


# nbval, strict, as `pytest --nbval chapters` runs it -----------------------------------------------------------------

CHANGES = {
    "stream": ("printed", lambda cell: cell.outputs[0].update(text="other\n"), False),
    "html": ("html", lambda cell: cell.outputs[0].data.update({"text/html": "<p>other</p>"}), False),
    "png": ("png", lambda cell: cell.outputs[0].data.update({"image/png": "AAAA"}), True),
    "alt": ("png", lambda cell: cell.outputs[0].data.update({"text/plain": "other"}), False),
    "measured": ("measured", lambda cell: cell.outputs[0].update(text="0.1\n"), True),
    "assert": ("measured", lambda cell: cell.update(source="assert 1 > 2"), False),
}
PNG = """from IPython.display import display
_ = display({"image/png": "iVBORw0KGgo=", "text/plain": "a line"}, raw=True)"""


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    path = book(tmp_path_factory.mktemp("nbval"), ("printed", GOOD, {}),
                ("html", "from IPython.display import HTML\nHTML('<p>é</p>')", {}), ("png", PNG, {}),
                ("measured", "import time\nt = time.perf_counter()\nprint(t)\nassert t > 0",
                 {"tags": ["nbval-ignore-output"]}))
    assert run(path).returncode == 0
    (path.parent / "conftest.py").write_text((ROOT / "chapters" / "conftest.py").read_text())
    return path


def nbval(path):
    return subprocess.run([sys.executable, "-m", "pytest", "-q", "--nbval", "-p", "no:cacheprovider", "-c",
                           str(ROOT / "pyproject.toml"), "--rootdir", str(path.parent), str(path.parent)],
                          text=True, capture_output=True, check=False, stdin=subprocess.DEVNULL, cwd=path.parent)


def test_nbval_passes_on_what_was_executed(executed):
    result = nbval(executed)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "4 passed" in result.stdout


@pytest.mark.parametrize("change", CHANGES)
def test_nbval_compares_text_and_html_not_png_and_runs_asserts_everywhere(executed, change):
    identity, do, passes = CHANGES[change]
    before = executed.read_text(encoding="utf-8")
    notebook = notebooks.read(executed)
    do(next(cell for cell in notebook.cells if cell["id"] == f"cell-{identity}"))
    try:
        notebooks.write(executed, notebook)
        result = nbval(executed)
    finally:
        executed.write_text(before, encoding="utf-8")
    assert result.returncode == (0 if passes else 1), result.stdout + result.stderr
    assert ("4 passed" if passes else "1 failed, 3 passed") in result.stdout


@pytest.mark.parametrize("taken", [1, 2])
def test_a_kernel_whose_port_is_taken_is_started_once_more(taken):
    notebook = sample.v4.new_notebook(cells=[sample.code("cell-sum", "1 + 1")])
    managers = []

    class Client(nbclient.NotebookClient):
        def create_kernel_manager(self):
            manager = super().create_kernel_manager()
            managers.append(manager)
            if len(managers) <= taken:
                manager.cache_ports, manager.shell_port = False, busy.getsockname()[1]
            return manager

    with socket.create_server(("127.0.0.1", 0)) as busy:
        client = Client(notebook, timeout=60, kernel_name="python3")
        if taken == 1:
            execute.start(client)
            assert notebook.cells[0].outputs[0].data["text/plain"] == "2"
        else:
            with pytest.raises(RuntimeError, match="Kernel died before replying"):
                execute.start(client)
            assert notebook.cells[0].outputs == []
            atexit.unregister(client._cleanup_kernel)  # nbclient forgets it when a kernel does not start
    assert len(managers) == 2

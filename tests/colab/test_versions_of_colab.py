"""Every chapter, as the one file that a reader takes along, runs in an empty folder under the versions of Colab."""

import json
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import nbclient
import nbformat
import pytest

from scalebook.book import colab, execute
from scalebook.explorer import assets

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = sorted((ROOT / "chapters").glob("*.ipynb"))
PINS = dict(re.findall(r"^([\w.-]+)==([^\s;]+)", (ROOT / "requirements-colab.txt").read_text(encoding="utf-8"), re.M))
COLAB = {"ipywidgets": "7.7.1", "ipython": "7.34.0", "ipykernel": "6.17.1", "anywidget": "0.9.21", "altair": "5.5.0",
         "numpy": "2.1.3", "matplotlib": "3.10.0"}
WIDGET = "application/vnd.jupyter.widget-view+json"

# Runs first. Colab may lack the package that draws stills and brings Vega for the site; here it is as if it were not
# installed.
WITHOUT_STILLS = "import sys; sys.modules['vl_convert'] = None"
# Runs last, in the kernel that has shown every explorer as widgets: each as a figure, Vega as a browser gets it, and
# where this process and one that it starts have the library from.
ASKED_LAST = """
import gc, json, subprocess, sys, scalebook
from scalebook.explorer import Explorer, assets
shown = [one for one in gc.get_objects() if type(one) is Explorer and one._box is not None]
child = subprocess.run([sys.executable, "-c", "import scalebook; print(scalebook.__file__)"], capture_output=True,
                       text=True, check=True)
print(json.dumps({"library": scalebook.__file__, "of a child": child.stdout.strip(),
                  "figures": sorted(one.html for one in shown), "Vega": len(assets.vega_bundle())}))
"""


@pytest.mark.parametrize("package", COLAB)
def test_this_environment_has_the_version_of_colab(package):
    assert PINS[package] == COLAB[package] == version(package)


@pytest.fixture
def surroundings(tmp_path, monkeypatch):
    """An empty folder, an empty folder for temporary files, and no way to the library but the notebook's own."""
    for name in ("SCALEBOOK_STATIC", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    folders = tmp_path / "empty", tmp_path / "temporary"
    for folder in folders:
        folder.mkdir()
    return folders


@pytest.fixture(scope="session")
def book():
    return colab.Book(ROOT, "A title", assets.vega_bundle(), lambda key: (key, None))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("chapter", CHAPTERS, ids=[path.stem for path in CHAPTERS])
def test_a_chapter_runs_alone_in_an_empty_folder_and_shows_its_explorers_in_both_forms(chapter, book, surroundings):
    folder, temporary = surroundings
    found = subprocess.run([sys.executable, "-c", "import scalebook"], cwd=folder, capture_output=True, check=False)
    assert found.returncode, f"the library must not be installed here: {sys.executable} -m pip uninstall scalebook"
    stored = static_figures(nbformat.read(chapter, as_version=4).cells)
    [written] = colab.write_all(book, [chapter], folder)
    notebook = nbformat.read(written, as_version=4)
    written.unlink()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    new_cell = nbformat.v4.new_code_cell
    notebook.cells = [new_cell(WITHOUT_STILLS), *notebook.cells, new_cell(ASKED_LAST)]
    execute.start(nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3",
                                          resources={"metadata": {"path": str(folder)}}))
    *own, last = notebook.cells
    assert static_figures(own) == []
    assert len([one for one in outputs_of(own) if WIDGET in one.get("data", {})]) == len(stored), \
        "every explorer is displayed as widgets"
    answer = json.loads("".join(output["text"] for output in outputs_of([last])))
    assert answer["figures"] == sorted(stored), "the figures are the same to the byte under both sets of versions"
    assert answer["Vega"] == len(book.vega), "a browser that asks for Vega gets it"
    assert Path(answer["library"]).is_relative_to(temporary), "the library is the one that the notebook carries"
    assert answer["of a child"] == answer["library"], "the processes that it starts have the same"
    assert list(folder.iterdir()) == [], "a notebook leaves nothing behind"
    assert [path.name for path in temporary.iterdir() if path.name.startswith("scalebook-")] == []


def outputs_of(cells):
    return [output for cell in cells if cell.cell_type == "code" for output in cell.outputs]


def static_figures(cells):
    """The HTML of every explorer in the outputs of cells."""
    found = [output.get("data", {}).get("text/html", "") for output in outputs_of(cells)]
    return [html for html in found if 'class="explorer"' in html]


def test_the_chapters_are_there_and_hold_explorers():
    assert CHAPTERS
    for chapter in CHAPTERS:
        notebook = nbformat.read(chapter, as_version=4)
        least = 1 if chapter.stem.startswith("00") else 3  # a page before the chapters has one
        assert len(static_figures(notebook.cells)) >= least, chapter.name
        assert json.dumps(notebook.metadata).count("widgets") == 0

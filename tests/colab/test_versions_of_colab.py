"""Every chapter runs under the versions that Colab gives a reader, with widgets and without, in an empty folder."""

import json
import re
from importlib.metadata import version
from pathlib import Path

import nbclient
import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = sorted((ROOT / "chapters").glob("*.ipynb"))
PINS = dict(re.findall(r"^([\w.-]+)==([^\s;]+)", (ROOT / "requirements-colab.txt").read_text(encoding="utf-8"), re.M))
COLAB = {"ipywidgets": "7.7.1", "ipython": "7.34.0", "ipykernel": "6.17.1", "anywidget": "0.9.21", "altair": "5.5.0",
         "numpy": "2.1.3", "matplotlib": "3.10.0"}
WIDGET = "application/vnd.jupyter.widget-view+json"


@pytest.mark.parametrize("package", COLAB)
def test_this_environment_has_the_version_of_colab(package):
    assert PINS[package] == COLAB[package] == version(package)


# Runs last, in the kernel that has shown every explorer as widgets: shows them again, as figures.
AS_FIGURES = """
import gc, os
from scalebook.explorer import Explorer
os.environ["SCALEBOOK_STATIC"] = "1"
for explorer in [one for one in gc.get_objects() if type(one) is Explorer and one._box is not None]:
    explorer._ipython_display_()
"""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("chapter", CHAPTERS, ids=[path.stem for path in CHAPTERS])
def test_a_chapter_runs_in_an_empty_folder_and_shows_its_explorers_in_both_forms(chapter, tmp_path, monkeypatch):
    monkeypatch.delenv("SCALEBOOK_STATIC", raising=False)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    folder = tmp_path / "empty"
    folder.mkdir()
    notebook = nbformat.read(chapter, as_version=4)
    stored = static_figures(notebook.cells)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    notebook.cells.append(nbformat.v4.new_code_cell(AS_FIGURES))
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3",
                            resources={"metadata": {"path": str(folder)}}).execute()
    assert list(folder.iterdir()) == [], "a notebook leaves nothing behind"
    *own, added = notebook.cells
    assert static_figures(own) == []
    assert len([one for one in outputs_of(own) if WIDGET in one.get("data", {})]) == len(stored), \
        "every explorer is displayed as widgets"
    assert [one for one in outputs_of([added]) if WIDGET in one.get("data", {})] == []
    assert sorted(static_figures([added])) == sorted(stored), \
        "the figures are the same to the byte under both sets of versions"


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

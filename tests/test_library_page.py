"""The page on the library: what it reads from the sources is what Python says of the imported objects."""

import ast
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from scalebook.book import library_page

ROOT = Path(__file__).resolve().parents[1]
PARTS = re.findall(r"\{library\} (\S+)", (ROOT / "chapters" / "library.md").read_text(encoding="utf-8"))


def test_the_page_has_every_part_that_is_no_chapter_s_inside():
    assert {"scalebook.pipeline", "scalebook.zero", "scalebook.moe", "scalebook.quantization", "scalebook.mesh",
            "scalebook.planner", "scalebook.ranks", "scalebook.published"} <= set(PARTS)


@pytest.mark.parametrize("part", PARTS)
def test_names_docstrings_and_arguments_are_those_of_the_objects(part):
    module = importlib.import_module(part)
    words, found = library_page.entries(part)
    assert words == inspect.getdoc(module)
    assert found
    for entry in found:
        thing = getattr(module, entry.name)
        assert entry.words == inspect.getdoc(thing), entry.name
        assert arguments(entry.signature) == expected_arguments(thing), entry.name
        for member in entry.members:
            assert member.words == inspect.getdoc(getattr(thing, member.name)), f"{entry.name}.{member.name}"


def arguments(signature):
    """The names of the arguments in a printed signature."""
    if "(" not in signature:
        return []
    call = re.sub(r" -> .*$", "", signature, flags=re.DOTALL)
    name, _, rest = call.partition("(")
    given = ast.parse(f"def {name}({rest}: pass").body[0].args
    parts = [*given.posonlyargs, *given.args, given.vararg, *given.kwonlyargs, given.kwarg]
    return [part.arg for part in parts if part is not None]


def expected_arguments(thing):
    if inspect.isclass(thing) and thing.__init__ is object.__init__ and thing.__new__ is object.__new__:
        return []
    if inspect.isclass(thing) and issubclass(thing, Exception) and "__init__" not in vars(thing):
        return []
    return list(inspect.signature(thing).parameters)


def test_the_printed_names_of_a_public_list_are_all_there():
    for part in ("scalebook.ranks", "scalebook.published", "scalebook.explorer"):
        listed = [name for name in importlib.import_module(part).__all__ if not name.isupper()]
        assert [entry.name for entry in library_page.entries(part)[1]] == sorted(listed)


@pytest.mark.parametrize("part", ["scalebook.gardening", "os", "scalebook.ranks.nothing"])
def test_a_part_that_is_not_there_is_refused(part):
    with pytest.raises(ValueError, match=re.escape(repr(part))):
        library_page.entries(part)


def test_reading_needs_no_torch():
    program = ("import sys; sys.modules['torch'] = None; from scalebook.book.library_page import entries; "
               f"print(sum(len(entries(part)[1]) for part in {PARTS}))")
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(done.stdout) > 150


def test_a_docstring_becomes_paragraphs_and_examples():
    found = library_page.body("Words with `code`.\n\nMore.\n\n>>> 1 + 1\n2\n\n    a shell line")
    assert [node.tagname for node in found] == ["paragraph", "paragraph", "doctest_block", "literal_block"]
    assert found[0].astext() == "Words with code."
    assert found[2].astext() == ">>> 1 + 1\n2"

"""Labelled equations: each label is one of the whole book, is named by the text, and every name has its equation."""

import json
import re

import pytest

from scalebook.book import build, cells, equations, notebooks


def texts():
    """The Markdown of the book: where it stands, and what it says."""
    for path in notebooks.chapters():
        for cell in cells.read(path):
            if cell["cell_type"] == "markdown":
                yield f"{path.name}, cell {cell['id']}", cells.text_of(cell)
    for path in [build.ROOT / "index.md", *sorted(notebooks.CHAPTERS.glob("*.md"))]:
        yield path.name, path.read_text(encoding="utf-8")


def offences(book):
    """What is wrong with the labels and references of a book, given as pairs of a place and its Markdown."""
    labelled, named = {}, {}
    for where, text in book:
        labelled |= dict.fromkeys(equations.labels(text), where)
        named |= dict.fromkeys(equations.REFERENCE.findall(text), where)
    return ([f"{where}: no text names {label}" for label, where in labelled.items() if label not in named]
            + [f"{where}: no equation has the label {label}" for label, where in named.items() if label not in labelled]
            + [f"{where}: {label} must be eq- and words" for label, where in labelled.items()
               if not re.fullmatch(r"eq(-[a-z0-9]+)+", label)])


def test_every_label_is_named_and_every_name_has_its_equation():
    assert offences(texts()) == []


@pytest.mark.parametrize(("text", "says"), [
    ("$$a$$ (eq-a)", ["x: no text names eq-a"]),
    ("See {eq}`eq-a`.", ["x: no equation has the label eq-a"]),
    ("$$a$$ (Eq a) {eq}`eq-a`", ["x: no equation has the label eq-a"]),
    ("$$a$$ (sum_a)\n\n{eq}`sum_a`", ["x: sum_a must be eq- and words"]),
    ("$$a$$ (eq-a)\n\n{eq}`eq-a`", []),
])
def test_what_is_wrong_with_a_label_is_found(text, says):
    assert offences([("x", text)]) == says


def test_each_chapter_labels_some_of_its_equations_and_numbers_them_in_order():
    found = equations.of_all_chapters()
    for path in notebooks.chapters():
        own = [equation.number for equation in found.values() if equation.chapter == path]
        assert own == [f"{int(path.name[:2])}.{count}" for count in range(1, len(own) + 1)]
        assert own


def test_a_label_that_stands_twice_is_refused(tmp_path):
    def written(name, *sources):
        found = [{"cell_type": "markdown", "id": "x", "metadata": {}, "source": source} for source in sources]
        (tmp_path / name).write_text(json.dumps({"cells": found}))

    written("01_a.ipynb", "$$a$$", "$$a$$ (eq-a)\n\n$$b$$ (eq-b)\n")
    written("02_b.ipynb", "$$c$$ (eq-c)")
    assert {label: found.number for label, found in equations.of_all_chapters(tmp_path).items()} == {
        "eq-a": "1.1", "eq-b": "1.2", "eq-c": "2.1"}
    written("03_c.ipynb", "$$c$$ (eq-a)")
    with pytest.raises(ValueError, match=r"'eq-a' stands in 01_a\.ipynb and again in 03_c\.ipynb"):
        equations.of_all_chapters(tmp_path)

"""The page of claims has every assert, test, formula and table, and is the same whenever it is made."""

import ast
import json
import re
import time

import pytest

from scalebook import published
from scalebook.book import build, cells, claims, notebooks
from scalebook.formulas import catalogue

FOUND = claims.all_chapters()
FILES = claims.proving_files()


@pytest.mark.parametrize("chapter", FOUND, ids=lambda chapter: chapter.path.stem)
def test_every_assert_of_a_chapter_is_counted(chapter):
    source = [cells.text_of(cell) for cell in cells.read(chapter.path) if cell["cell_type"] == "code"]
    lines = sum(len(re.findall(r"^\s*assert\b", text, re.M)) for text in source)
    assert chapter.asserts == lines >= 20
    assert all(cell.heading for cell in chapter.cells)


def test_every_test_is_claimed_once():
    names = [name for path in (build.ROOT / "tests").rglob("test_*.py")
             for name in re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.M)]
    assert sum(len(file.claims) for file in FILES) == len(names) > 1000
    assert all(file.about.endswith((".", "!", "?")) for file in FILES)
    assert {file.chapter for file in FILES} >= {0, 1, 2, 3, 4, 5, 6, None}


def test_every_formula_is_some_chapters_and_has_a_source():
    listed = {id(formula) for chapter in FOUND for formula in chapter.formulas}
    modules = {name.split(".")[0] for name, formula in catalogue().items() if id(formula) not in listed}
    written = {chapter.number for chapter in FOUND}
    assert modules == (set() if 6 in written else {"planner"})
    assert all(formula.source.strip() for formula in catalogue().values())


def test_every_published_table_belongs_to_a_chapter_and_has_a_source():
    listed = {name for subjects in claims.TABLES.values() for name, _, _ in claims.tables(*subjects)}
    assert listed == set(published.tables())
    assert all(published.table(name).source.strip() for name in listed)


@pytest.mark.parametrize("oracle", claims.oracles(), ids=lambda oracle: oracle[0])
def test_an_oracle_that_is_named_is_asked(oracle):
    _, _, files, chapters = oracle
    assert files or chapters


@pytest.mark.alone
def test_reading_it_all_takes_under_two_seconds():
    start = time.process_time()
    claims.all_chapters(), claims.proving_files(), claims.oracles()
    assert time.process_time() - start < 2


def test_it_is_the_same_each_time():
    assert claims.all_chapters() == FOUND
    assert claims.proving_files() == FILES


def test_asserts_are_read_from_the_code_and_not_from_its_words(tmp_path):
    code = '%pip install x\ntext = "assert 1 == 2"\n# assert False\nif True:\n    assert (1 +\n1) == 2, "no"\n'
    listed = [{"cell_type": "markdown", "id": "t", "source": "# Title", "metadata": {}},
              {"cell_type": "code", "id": "c", "source": code, "metadata": {"tags": ["nbval-ignore-output"]}}]
    (tmp_path / "07_x.ipynb").write_text(json.dumps({"cells": listed}))
    [found] = claims.asserting_cells(tmp_path / "07_x.ipynb")
    assert (found.asserts, found.heading, found.measured) == (("1 + 1 == 2",), "Title", True)
    assert ast.parse(found.asserts[0])


def test_the_chapters_are_those_of_the_book():
    assert [chapter.path for chapter in FOUND] == notebooks.chapters()

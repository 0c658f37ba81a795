"""Build the book strictly, and never show an unsound one: `python -m scalebook.book.build`.

Sphinx reports a page's warnings only when it reads that page. So a build that failed or was stopped must not be
continued: the next one would skip the page and look green. A stamp written after success says that the build on disk is
sound, and of what it was made: when the library, the pins or the configuration differ, the next build starts anew.
Pages and notebooks are not in the stamp, since Sphinx itself sees which of them changed.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from scalebook.book.repository import VARIABLE, parse

ROOT = Path(__file__).resolve().parents[2]
# Jupyter Book has no module to start it with, and its script breaks when a folder on the way has a space.
JUPYTER_BOOK = "from jupyter_book.cli.main import main; main()"
INPUTS = ("_config.yml", "_toc.yml", "requirements-book.txt", "pyproject.toml",
          "scalebook/book", "scalebook/explorer", "scalebook/formulas", "scalebook/colours.py")


def fingerprint(root):
    """Return a hash of everything that every page depends on, as hexadecimal text."""
    repository = os.environ.get(VARIABLE, "")
    digest = hashlib.sha256(f"{sys.version} {root} {repository}".encode())
    for entry in INPUTS:
        path = root / entry
        files = [path] if path.is_file() else sorted(
            file for file in path.rglob("*") if file.suffix in {".py", ".js", ".css", ".html", ".toml"})
        for file in files:
            digest.update(f"{file.relative_to(root)}\n".encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()


def build(root=ROOT, output=None):
    """Build the book of `root` into `output`/_build (by default its own) and return Jupyter Book's exit code."""
    folder = Path(output or root) / "_build"
    stamp = folder / "sound"
    expected = fingerprint(root)
    if not stamp.exists() or stamp.read_text() != expected:
        for name in ("html", ".doctrees", "jupyter_execute"):
            shutil.rmtree(folder / name, ignore_errors=True)
    stamp.unlink(missing_ok=True)  # from here on the build is unsound, until it has succeeded
    command = [sys.executable, "-c", JUPYTER_BOOK, "build", "-W", "-n", "--keep-going"]
    if output:
        command += ["--path-output", str(output)]
    result = subprocess.run([*command, "."], cwd=root, env={**os.environ, "SCALEBOOK_STATIC": "1"}, check=False)
    if result.returncode == 0:
        stamp.write_text(expected)
    return result.returncode


def main():
    """Build, and print how long it took and where the book is."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", help="the folder that gets _build (default: the repository)")
    parser.add_argument("--repository", default=os.environ.get(VARIABLE, ""), metavar="OWNER/NAME",
                        help="where the book lies on GitHub, for the links to it (default: as _config.yml says)")
    given = parser.parse_args()
    output = given.output
    try:
        parse(given.repository)
    except ValueError as error:
        parser.error(str(error))
    os.environ[VARIABLE] = given.repository
    start = time.monotonic()
    code = build(ROOT, output)
    if code:
        sys.exit("The book was not built: see the warnings and errors above. The next build starts anew.")
    page = Path(output or ROOT).resolve() / "_build" / "html" / "index.html"
    print(f"The book was built in {time.monotonic() - start:.0f} s. Open it in a browser:\n{page.as_uri()}")


if __name__ == "__main__":
    main()

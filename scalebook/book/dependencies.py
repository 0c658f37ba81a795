"""What the book is built on: why each package was asked for, and under which licence each one stands.

    python -m scalebook.book.dependencies          the packages that are asked for, each with its reason
    python -m scalebook.book.dependencies --write  write the licences of all installed ones into `dependencies.toml`,
                                                   and the reasons into `CONTRIBUTING.md`

The reasons are written by hand, in `dependencies.toml`. The licences are what the packages say of themselves, in the
names of SPDX.
"""

import argparse
import re
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
TABLE = "dependencies.toml"
PAGE = "CONTRIBUTING.md"
BEGIN = "<!-- reasons: written by `python -m scalebook.book.dependencies --write` -->\n"
END = "<!-- end of the reasons -->\n"
FOR = {"build": "the build", "notebooks": "the notebooks and the tests", "data": "data"}
# What packages wrote before there was one way to write it, and the classifiers.
SPDX = {
    "mit": "MIT", "mit license": "MIT", "the mit license (mit)": "MIT", "mit-license": "MIT",
    "apache software license": "Apache-2.0", "apache 2.0": "Apache-2.0", "apache-2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0", "apache 2.0 license": "Apache-2.0", "apache license 2.0": "Apache-2.0",
    "bsd license": "BSD-3-Clause", "bsd": "BSD-3-Clause", "bsd-3-clause": "BSD-3-Clause", "new bsd": "BSD-3-Clause",
    "bsd-2-clause": "BSD-2-Clause", "isc license (iscl)": "ISC", "isc": "ISC",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0", "mpl-2.0": "MPL-2.0",
    "python software foundation license": "PSF-2.0", "the unlicense (unlicense)": "Unlicense",
    "dfsg approved, mit license": "MIT", "mpl-2.0 and mit": "MPL-2.0 AND MIT",
}
# What may stand beside Apache-2.0 when nothing of it is copied: permissive ones, and MPL-2.0, which asks of its own
# files alone.
COMPATIBLE = {
    "0BSD", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0",
    "CNRI-Python", "ISC", "MIT", "MIT-0", "MIT-CMU", "MPL-2.0", "PSF-2.0", "Python-2.0", "Unlicense", "Zlib",
}


def table(folder=ROOT):
    """`dependencies.toml`: `asked_for` has the reasons, by part and name, and `licences` the licences by name."""
    return tomllib.loads((folder / TABLE).read_text(encoding="utf-8"))


def pinned(path):
    """The versions in a requirements file by name, with what it includes.

    >>> import tempfile, pathlib
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "r.txt"
    >>> _ = file.write_text("# a comment\\nNarwhals==2.29.0\\nappnope==0.1.4; sys_platform == 'darwin'\\n")
    >>> pinned(file)
    {'narwhals': '2.29.0', 'appnope': '0.1.4'}
    """
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("-r "):
            found |= pinned(path.parent / line[3:].strip())
        elif line and not line.startswith(("#", " ")):
            one = Requirement(line.partition(" --hash")[0].rstrip(" \\"))
            found[canonicalize_name(one.name)] = str(one.specifier).removeprefix("==")
    return found


def needed(names):
    """All packages that the named ones need here, themselves included, as they are installed."""
    found, waiting = set(), [Requirement(name) for name in names]
    while waiting:
        one = waiting.pop()
        name = canonicalize_name(one.name)
        wanted = {(name, extra) for extra in ["", *one.extras]}
        if wanted <= found:
            continue
        found |= wanted
        for text in distribution(name).requires or []:
            other = Requirement(text)
            if other.marker is None or any(other.marker.evaluate({"extra": extra}) for extra in ["", *one.extras]):
                waiting.append(other)
    return {name for name, _ in found}


def licence(name):
    """The licence of an installed package in the names of SPDX, or what it says where that has no such name.

    >>> licence("numpy").startswith("BSD-3-Clause")
    True
    """
    said = distribution(name).metadata
    classified = [one.rpartition(" :: ")[2] for one in said.get_all("Classifier") or [] if one.startswith("License ::")]
    words = said.get("License-Expression") or ", ".join(classified) or (said.get("License") or "").splitlines()[:1]
    words = words if isinstance(words, str) else "".join(words)
    return SPDX.get(words.strip().lower(), words.strip()) or "not said"


def parts(licence):
    """The single licences in an expression.

    >>> sorted(parts("(MIT OR Apache-2.0) AND BSD-3-Clause"))
    ['Apache-2.0', 'BSD-3-Clause', 'MIT']
    """
    return {part.strip(" ()") for part in re.split(r"\s+(?:AND|OR)\s+", licence)}


def everything():
    """What is pinned for the build, the notebooks, the tests and the data: versions by name."""
    return pinned(ROOT / "requirements.txt") | pinned(ROOT / "requirements-data.txt")


def installed(names):
    """Those of the names that are installed here: what is for another system is not."""
    found = set()
    for name in names:
        try:
            distribution(name)
        except PackageNotFoundError:
            continue
        found.add(name)
    return found


def write():
    """Write the licences of the installed packages; those of other systems, and what was corrected by hand, stay."""
    path = ROOT / TABLE
    by_hand = {name: words for name, words in table()["licences"].items() if name not in installed([name])}
    by_hand |= table().get("corrected", {})
    found = {name: licence(name) for name in installed(everything())} | by_hand
    head = path.read_text(encoding="utf-8").partition("[licences]\n")[0]
    lines = [f'{name} = "{found[name]}"' for name in sorted(found)]
    path.write_text(head + "[licences]\n" + "\n".join(lines) + "\n", encoding="utf-8")


def reasons():
    """The packages that are asked for as a table in Markdown: what for, the package, its line.

    >>> reasons().splitlines()[4]
    '| the build | mini-racer | runs MathJax while the book is built, so that the pages carry typeset mathematics |'
    """
    lines = [f"| {FOR[part]} | {name} | {reason} |"
             for part, named in table()["asked_for"].items() for name, reason in named.items()]
    return "\n".join(["| For | Package | It |", "|---|---|---|", *lines]) + "\n"


def with_reasons(text):
    """A page whose part between the two marks is the table of reasons. Raises ValueError for a page without them."""
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not end:
        raise ValueError(f"{PAGE} lacks the lines between which the reasons stand: {BEGIN.strip()} and {END.strip()}")
    return head + begin + reasons() + end + tail


def main():
    """Print the reasons, or write what is written of the packages."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true",
                        help=f"write the licences into {TABLE} and the reasons into {PAGE}")
    if parser.parse_args().write:
        write()
        page = ROOT / PAGE
        page.write_text(with_reasons(page.read_text(encoding="utf-8")), encoding="utf-8")
        return
    for name, reason in (pair for part in table()["asked_for"].values() for pair in part.items()):
        print(f"{name}: {reason}")


if __name__ == "__main__":
    main()

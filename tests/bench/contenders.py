"""Packages that others would install, to measure beside: `python -m tests.bench.contenders` puts them in their place.

They lie in a folder of their own, `share/scalebook-contenders/` of the environment, about 300 MB, and nothing but the
bench looks there. Whatever the environment has itself comes first, so that both sides run on the same PyTorch.
"""

import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

COMMAND = "python -m tests.bench.contenders"
PINS = Path(__file__).with_name("contenders.txt")
FOLDER = Path(sys.prefix) / "share" / "scalebook-contenders"


@contextmanager
def importable(folder=FOLDER):
    """In a `with` block, find packages also in the folder, after all others."""
    sys.path.append(str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def installed(package, folder=FOLDER):
    """The version of a package in the folder or in the environment; None when it is in neither."""
    with importable(folder):
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            return None


def fetch():
    """Install what `contenders.txt` pins, whole or not at all; what lay there before is replaced."""
    FOLDER.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="scalebook-", dir=FOLDER.parent) as part:
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input",
                        "--no-deps", "--target", f"{part}/new", "--requirement", str(PINS)], check=True)
        shutil.rmtree(FOLDER, ignore_errors=True)
        Path(part, "new").rename(FOLDER)


if __name__ == "__main__":
    fetch()
    print(f"The packages lie in {FOLDER}")

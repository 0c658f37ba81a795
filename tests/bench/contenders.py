"""Packages that others would install, to measure beside: `python -m tests.bench.contenders` puts them in their place.

They lie in two folders of their own, `share/scalebook-contenders/` of the environment, about 300 MB, and
`share/scalebook-contenders-web/`, about 60 MB of scripts for pages, which need npm. Nothing but the bench looks there.
Whatever the environment has itself comes first, so that both sides run on the same PyTorch.
"""

import shutil
import subprocess
import sys
import tarfile
import tempfile
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

COMMAND = "python -m tests.bench.contenders"
PINS = Path(__file__).with_name("contenders.txt")
WEB_PINS = Path(__file__).with_name("contenders_web.txt")
FOLDER = Path(sys.prefix) / "share" / "scalebook-contenders"
WEB = FOLDER.with_name("scalebook-contenders-web")
REQUIRE = "require.min.js"


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


@contextmanager
def replacing(folder):
    """A new folder for the block, which takes the place of `folder` when the block has succeeded, and only then."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="scalebook-", dir=folder.parent) as part:
        new = Path(part, "new")
        new.mkdir()
        yield new
        shutil.rmtree(folder, ignore_errors=True)
        new.rename(folder)


def fetch():
    """Install what `contenders.txt` pins, whole or not at all; what lay there before is replaced."""
    with replacing(FOLDER) as new:
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input",
                        "--no-deps", "--target", str(new), "--requirement", str(PINS)], check=True)


def web_pins():
    """The packages that `contenders_web.txt` pins, as "name@version"."""
    lines = WEB_PINS.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def web_missing(folder=WEB):
    """Which of these packages do not lie in the folder."""
    return [pin for pin in web_pins() if not (folder / pin).is_dir()]


def fetch_web():
    """Unpack what `contenders_web.txt` pins, each below its "name@version", whole or not at all."""
    with replacing(WEB) as new:
        for pin in web_pins():
            unpack(new, pin)
        package = next(new.glob("requirejs@*"))
        # The package has the script only at its full length; pages load it shortened by its own tool.
        subprocess.run(["node", "bin/r.js", "-o", "name=short", "paths.short=require", "baseUrl=.", "logLevel=4",
                        f"out={REQUIRE}"], cwd=package, check=True)


def unpack(folder, pin):
    """Fetch one package, which the registry's checksum vouches for, and keep all but the maps of its sources."""
    with tempfile.TemporaryDirectory() as part:
        subprocess.run(["npm", "pack", "--silent", "--pack-destination", part, pin], check=True,
                       stdout=subprocess.DEVNULL)
        with tarfile.open(next(Path(part).iterdir())) as archive:
            wanted = [one for one in archive.getmembers() if one.isfile() and not one.name.endswith(".map")]
            archive.extractall(Path(part, "out"), wanted, filter="data")
        (folder / pin).parent.mkdir(exist_ok=True)
        shutil.move(next(Path(part, "out").iterdir()), folder / pin)


def main():
    """Put everything in its place."""
    fetch()
    print(f"The packages lie in {FOLDER}")
    if not shutil.which("npm"):
        sys.exit("The scripts for pages were left out: there is no npm")
    fetch_web()
    print(f"The scripts lie in {WEB}")


if __name__ == "__main__":
    main()

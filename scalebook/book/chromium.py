"""Find a Chromium, or get one: `python -m scalebook.book.chromium` prints the path of the one that is used.

The tests open pages in it, and `make pdf` prints with it.
"""

import os
import shutil
import subprocess
import sys
from contextlib import contextmanager, nullcontext
from pathlib import Path

# What one starts on a Mac lies inside of what one sees there.
APPLICATION = "Google Chrome.app/Contents/MacOS/Google Chrome"
ON_PATH = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MAC = ("/Applications/Chromium.app/Contents/MacOS/Chromium", f"/Applications/{APPLICATION}",
       str(Path.home() / "Applications" / APPLICATION))
FLAGS = (
    "--no-sandbox",  # root has no sandbox, and a container often none either
    "--disable-gpu", "--disable-quic", "--no-first-run",
    # Chromium asks its maker's hosts for updates at every start; nothing here may need a network.
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
)
MISSING = ("No Chromium was found and none could be installed: install Chromium or Google Chrome, "
           f"or set CHROMIUM to the path of its program (on a Mac that ends in {APPLICATION}).")


def find_chromium(playwright=None):
    """Return the path of a Chromium: $CHROMIUM, one on the PATH, a Mac's application, Playwright's own; or None.

    A process runs one Playwright at a time: give the one that runs, if any.
    """
    from playwright.sync_api import sync_playwright

    chosen = os.environ.get("CHROMIUM")
    if chosen:
        if not shutil.which(chosen):
            raise ValueError(f"CHROMIUM = {chosen!r} is not allowed: it must be the path of a program "
                             f"(on a Mac that ends in {APPLICATION})")
        return shutil.which(chosen)
    for candidate in (*ON_PATH, *MAC):
        if shutil.which(candidate):
            return shutil.which(candidate)
    with nullcontext(playwright) if playwright else sync_playwright() as running:
        own = running.chromium.executable_path
    return own if Path(own).exists() else None


def get_chromium():
    """Install a Chromium: from Debian's packages as root, otherwise by Playwright. Return its path, or None."""
    if shutil.which("apt-get") and os.geteuid() == 0:
        quiet = {"env": {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}, "stdout": sys.stderr,
                 "stdin": subprocess.DEVNULL, "check": False}
        subprocess.run(["apt-get", "update", "-qq"], **quiet)
        subprocess.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium"], **quiet)
    if not find_chromium():
        subprocess.run([sys.executable, "-m", "playwright", "install", "chromium"], stdout=sys.stderr,
                       stdin=subprocess.DEVNULL, check=False)
    return find_chromium()


@contextmanager
def chromium(*flags, playwright=None):
    """Start a headless Chromium, with more `flags`, for the time of the block.

    A process runs one Playwright at a time: give the one that runs, if any.
    """
    from playwright.sync_api import sync_playwright

    path = find_chromium(playwright)
    if path is None:
        raise RuntimeError("no Chromium: run `python -m scalebook.book.chromium`")
    with nullcontext(playwright) if playwright else sync_playwright() as running:
        browser = running.chromium.launch(executable_path=path, args=[*FLAGS, *flags])
        try:
            yield browser
        finally:
            browser.close()


def main():
    """Print the path, after installing one when there is none."""
    path = find_chromium() or get_chromium()
    if path is None:
        sys.exit(MISSING)
    print(f"Chromium: {path}")


if __name__ == "__main__":
    main()

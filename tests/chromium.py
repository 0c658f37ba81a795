"""Find a Chromium, or get one, and open pages in it with every request to another host refused.

`python -m tests.chromium` prints the path of the one that the tests use.
"""

import os
import re
import shutil
import subprocess
import sys
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from playwright.sync_api import sync_playwright

ON_PATH = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MAC = ("/Applications/Chromium.app/Contents/MacOS/Chromium",
       "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome")
FLAGS = (
    "--no-sandbox",  # root has no sandbox, and a container often none either
    "--disable-gpu", "--disable-quic", "--no-first-run",
    # Chromium asks its maker's hosts for updates at every start; the tests must need no network.
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
)
MISSING = ("No Chromium was found and none could be installed: install Chromium or Google Chrome, "
           "or set CHROMIUM to the path of one.")
PATIENCE = 120_000  # ms: on a busy machine a chapter takes its time to open
FOREIGN = re.compile(r"^(https?|wss?)://(?!(127\.0\.0\.1|localhost)[:/])")


def find_chromium():
    """Return the path of a Chromium: $CHROMIUM, one on the PATH, a Mac's application, Playwright's own; or None."""
    chosen = os.environ.get("CHROMIUM")
    if chosen:
        if not shutil.which(chosen):
            raise ValueError(f"CHROMIUM = {chosen!r} is not allowed: it must be the path of a program")
        return shutil.which(chosen)
    for candidate in (*ON_PATH, *MAC):
        if shutil.which(candidate):
            return shutil.which(candidate)
    with sync_playwright() as playwright:
        own = playwright.chromium.executable_path
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
    path = find_chromium()
    if path is None:
        raise RuntimeError("no Chromium: run `python -m tests.chromium`")
    with nullcontext(playwright) if playwright else sync_playwright() as running:
        browser = running.chromium.launch(executable_path=path, args=[*FLAGS, *flags])
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Watch:
    """What a page did that a good page does not: requests to other hosts, failed requests, errors."""

    foreign: list = field(default_factory=list)
    failed: list = field(default_factory=list)
    errors: list = field(default_factory=list)

    def clean(self):
        """Whether there was none of it."""
        return not (self.foreign or self.failed or self.errors)

    @contextmanager
    def looking_away(self):
        """Not to record what fails in the block: a tool's own requests, and not the page's."""
        failed, errors = len(self.failed), len(self.errors)
        yield
        del self.failed[failed:], self.errors[errors:]


def watched_page(browser, **context_options):
    """Return a new page, in a context of its own, and its `Watch`; requests to other hosts are refused and recorded.

    `context_options` are Playwright's: viewport, color_scheme, java_script_enabled, ...
    """
    context = browser.new_context(**context_options)
    context.set_default_timeout(PATIENCE)
    watch = Watch()

    def refuse(route):
        watch.foreign.append(route.request.url)
        route.abort()

    def note_response(response):
        if response.status >= 400:
            watch.failed.append(f"{response.status} {response.url}")

    def note_console(message):
        if message.type == "error":
            watch.errors.append(message.text)

    context.route(FOREIGN, refuse)
    page = context.new_page()
    page.on("requestfailed", lambda request: watch.failed.append(f"{request.failure} {request.url}"))
    page.on("response", note_response)
    page.on("console", note_console)
    page.on("pageerror", lambda error: watch.errors.append(str(error)))
    page.on("websocket", lambda socket: FOREIGN.match(socket.url) and watch.foreign.append(socket.url))
    return page, watch


def main():
    path = find_chromium() or get_chromium()
    if path is None:
        sys.exit(MISSING)
    print(f"Chromium: {path}")


if __name__ == "__main__":
    main()

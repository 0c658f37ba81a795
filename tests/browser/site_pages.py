"""The built site as the tests meet it: its pages, its explorers, and a server that hands them out."""

import json
import os
import re
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SITE = Path(os.environ.get("SCALEBOOK_SITE", ROOT / "_build" / "html"))  # another built copy can be tested too
# One page of each kind: every run tries these in every way, and all pages are tried so where there is time.
ONE_OF_EACH = ("index.html", "search.html", "chapters/04_pipeline_parallelism.html", "chapters/notation.html")
MISSING = f"the book is not built: run `make book` first (there is no {SITE.name}/index.html in {SITE.parent.name}/)"


@dataclass(frozen=True)
class Input:
    """One control as its HTML says: its id, its signal and its positions, from the first to the last."""

    identity: str
    signal: str
    kind: str
    positions: tuple

    @property
    def name(self):
        """The name under which the chart sees its value."""
        selects = self.kind == "select" or self.kind == "labels"
        return self.signal.removesuffix("_index") if selects else self.signal


@dataclass(frozen=True)
class Figure:
    """One explorer of a page."""

    page: str
    identity: str
    inputs: tuple

    @property
    def name(self):
        """The name that the author gave it."""
        return self.identity.removeprefix("explorer-")

    @property
    def is_shown_again(self):
        """Whether it stands on a page that shows a chapter's explorer once more, and not in the chapter."""
        return not self.page.startswith("chapters/")

    @property
    def label(self):
        """What a test of it is called."""
        return f"{self.page.removesuffix('.html')}-{self.name}" if self.is_shown_again else self.name


class _Figures(HTMLParser):
    def __init__(self):
        super().__init__()
        self.figures, self._selects = [], None

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if tag == "figure" and "explorer" in (attrs.get("class") or "").split():
            self.figures.append((attrs["id"], []))
        elif tag in ("input", "select") and "data-signal" in attrs:
            self.figures[-1][1].append([tag, attrs, []])
            self._selects = self.figures[-1][1][-1][2]
        elif tag == "option" and self._selects is not None:
            self._selects.append(int(attrs["value"]))


def explorers_of(path, page):
    """Return the `Figure`s in the HTML file `path`, called `page`."""
    parser = _Figures()
    parser.feed(path.read_text(encoding="utf-8"))
    return [Figure(page, identity, tuple(_input(*parts) for parts in inputs)) for identity, inputs in parser.figures]


def _input(tag, attrs, options):
    if tag == "select":
        return Input(attrs["id"], attrs["data-signal"], "select", tuple(options))
    if attrs["type"] == "checkbox":
        return Input(attrs["id"], attrs["data-signal"], "checkbox", (False, True))
    low, high, step = (float(attrs[key]) for key in ("min", "max", "step"))
    count = int((high - low) / step + 1e-9)
    positions = tuple(_plain(low + i * step) for i in range(count + 1))
    if "data-labels" in attrs:
        labels = json.loads(attrs["data-labels"])
        if len(labels) != len(positions):
            raise ValueError(f"{attrs['id']} has {len(labels)} labels for {len(positions)} positions")
    return Input(attrs["id"], attrs["data-signal"], "labels" if "data-labels" in attrs else "range", positions)


def _plain(number):
    number = round(number, 10)
    return int(number) if number.is_integer() else number


def pages():
    """Return every page of the site, as paths below it; empty where it is not built."""
    return sorted(str(path.relative_to(SITE)) for path in SITE.rglob("*.html") if "_static" not in path.parts)


def others_slow(names, kept=ONE_OF_EACH):
    """Return names of pages as a test's parameters: every run tries the `kept`, `make test-all` the others too.

    Raises ValueError when one to keep is not there, for then no run would try it.
    """
    lost = set(kept) - set(names)
    if lost and pages():
        raise ValueError(f"kept = {kept} is not allowed: the site has no {', '.join(sorted(lost))}")
    return [name if name in kept else pytest.param(name, marks=pytest.mark.slow) for name in names]


def explorers():
    """Return every explorer of the site."""
    return [figure for page in pages() for figure in explorers_of(SITE / page, page)]


def originals():
    """Return every explorer of the chapters, and not where another page shows one of them again."""
    return [figure for figure in explorers() if not figure.is_shown_again]


def html_of(figure):
    """Return a figure's HTML without its caption, which a page words anew, and as from the site's first folder."""
    text = (SITE / figure.page).read_text(encoding="utf-8")
    [found] = re.findall(rf'<figure class="explorer" id="{figure.identity}".*?</figure>', text, re.S)
    return re.sub(r"<figcaption>.*?</figcaption>", "", found, flags=re.S).replace('"../_images/', '"_images/')


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        """Say nothing."""


@contextmanager
def served(folder):
    """Serve `folder` on this machine for the time of the block; gives the address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=folder))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

"""What it costs to open each page of the book; what is measured says `tests/browser/opening.py`."""

import statistics
import sys

from tests.bench.rows import Row
from tests.browser.opening import read_through, readiness
from tests.browser.site_pages import MISSING, SITE, explorers, pages, served
from tests.browser.test_opening import SHIFT, WEIGHT
from tests.chromium import chromium

READY = 600  # ms
VIEWPORT = {"width": 1280, "height": 900}
KINDS = {"html": ("html",), "css": ("css",), "scripts": ("js",), "fonts": ("woff", "woff2"), "pictures": ("svg", "png")}


def run(options):
    """Print the table; return the rows."""
    if not (SITE / "index.html").exists():
        sys.exit(MISSING)
    first = {figure.page: figure for figure in reversed(explorers())}
    found = []
    print(f"{'page':38}" + "".join(f"{kind:>9}" for kind in KINDS) + f"{'all, kB':>9}{'ready, ms':>11}{'shift':>9}")
    with served(SITE) as site, chromium() as browser:
        for name in pages():
            opening = read_through(browser, site, name, VIEWPORT)
            times = [readiness(browser, site, first[name]) for _ in range(options.rounds or 3)] if name in first else []
            ready = statistics.median(times) if times else None
            parts = [sum(opening.weight[suffix] for suffix in suffixes) for suffixes in KINDS.values()]
            print(f"{name:38}" + "".join(f"{part / 1000:9.0f}" for part in parts)
                  + f"{opening.total / 1000:9.0f}{'' if ready is None else f'{ready:.0f}':>11}{opening.shift:9.4f}")
            found.append(Row("pages", f"{name}: all it loads", opening.total / 1000, "the limit", WEIGHT / 1000, "kB",
                             1))
            found.append(Row("pages", f"{name}: layout shift", opening.shift, "the limit", SHIFT, "", 1))
            if ready is not None:
                found.append(Row("pages", f"{name}: first explorer ready", ready, "the limit", READY, "ms", 1))
    print("Bytes as gzip sends them, the page read to its end; from a server on this machine.")
    return found

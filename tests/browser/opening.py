"""What it costs to open a page: how much it loads, when its first explorer answers, and how far it moves.

Weight: every response while the page is opened and read to its end, each as gzip would send it. Readiness: from the
start of the navigation to the first explorer's own "ready", opened at that explorer, as one comes from a link or a list
of sections. Movement: the cumulative layout shift, as browsers define it (the worst window of at most five seconds with
no gap over one), while the page is opened and read to its end.
"""

import gzip
from collections import Counter
from dataclasses import dataclass
from pathlib import PurePosixPath
from urllib.parse import urlsplit

from tests.chromium import Watch, watched_page

WATCH_MOVEMENT = """
window.ownShifts = [];
new PerformanceObserver((list) => {
  for (const one of list.getEntries()) if (!one.hadRecentInput) ownShifts.push([one.startTime, one.value]);
}).observe({ type: "layout-shift", buffered: true });
"""
EXPLORER_READY = "figure.explorer[data-state=ready]"
WATCH_READINESS = """
window.ownReady = new Promise((done) => {
  new MutationObserver((_, observer) => {
    if (!document.querySelector("READY")) return;
    observer.disconnect();
    done(performance.now());
  }).observe(document, { subtree: true, childList: true, attributes: true, attributeFilter: ["data-state"] });
});
"""
# A reader sees each place before going on: the browser tells what came near only when it makes a picture.
READ_ON = """async () => {
  const step = innerHeight * 0.8;
  for (let top = 0; top < document.documentElement.scrollHeight; top += step) {
    scrollTo({ top, behavior: "instant" });
    await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 50))));
  }
}"""
HEIGHTS = """() => Object.fromEntries([...document.querySelectorAll("figure.explorer")].map(
  (one) => [one.id, { drawn: "state" in one.dataset, height: one.getBoundingClientRect().height }]))"""
ENDED = "(figure) => ['ready', 'failed'].includes(figure.dataset.state)"
STATES = "() => [...document.querySelectorAll('figure.explorer')].map((one) => one.dataset.state)"


@dataclass(frozen=True)
class Opening:
    """What opening a page and reading it to its end took: bytes by kind of file, and the layout shift.

    `grown` says by how many pixels each explorer's figure is higher once it is drawn: on a fast machine it is drawn
    before one sees it, and nothing shifts; on a slow one that is what shifts.
    """

    weight: Counter
    shift: float
    grown: dict

    @property
    def total(self):
        """All bytes together."""
        return sum(self.weight.values())


def draw_all(page):
    """Go to each explorer of a page that is not drawn yet and wait there until it is; fail when it says it can't be."""
    states = page.evaluate(STATES)
    for figure, state in zip(page.query_selector_all("figure.explorer"), states, strict=True):
        if state != "ready":
            figure.scroll_into_view_if_needed()
            page.wait_for_function(ENDED, arg=figure)
    assert page.evaluate(STATES) == ["ready"] * len(states)


def read_through(browser, site, name, viewport, drawn=None, sound=Watch.clean):
    """Open a page in a window of its own, read it to its end, wait until it is `drawn`, and return its `Opening`.

    `drawn` is a condition in JavaScript; without one, all explorers must be. `sound` says of the page's `Watch` whether
    what it did may pass.
    """
    page, watch = watched_page(browser, viewport=viewport, reduced_motion="reduce")
    responses = {}
    page.on("response", lambda response: responses.setdefault(response.url, response))
    try:
        page.add_init_script(WATCH_MOVEMENT)
        page.goto(f"{site}/{name}")
        first = page.evaluate(HEIGHTS)
        page.evaluate(READ_ON)
        if drawn:
            page.wait_for_function(drawn)
        else:
            draw_all(page)
        page.evaluate("() => document.fonts.ready")
        weight = Counter()
        for url, response in responses.items():
            weight[PurePosixPath(urlsplit(url).path).suffix.lstrip(".")] += len(gzip.compress(response.body(), mtime=0))
        shifts = page.evaluate("() => ownShifts")
        last = page.evaluate(HEIGHTS)
    finally:
        page.context.close()
    assert sound(watch), watch
    grown = {name: last[name]["height"] - was["height"] for name, was in first.items() if not was["drawn"]}
    return Opening(weight, cumulative_shift(shifts), grown)


def cumulative_shift(shifts):
    """The cumulative layout shift of (time in ms, value) pairs: the largest sum within a session window.

    >>> cumulative_shift([(0, 0.25), (500, 0.25), (9000, 0.1)])
    0.5
    """
    worst = total = 0
    begun = last = float("-inf")
    for time, value in sorted(shifts):
        if time - last > 1000 or time - begun > 5000:
            begun, total = time, 0
        last, total = time, total + value
        worst = max(worst, total)
    return worst


def readiness(browser, site, figure):
    """Milliseconds until the explorer `figure` answers, its page opened at it with nothing in the cache."""
    return standing(browser, f"{site}/{figure.page}#{figure.identity}", EXPLORER_READY)


def standing(browser, address, selector):
    """Milliseconds until something that the selector finds stands in the page, with nothing in the cache."""
    page, _ = watched_page(browser, viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    try:
        page.add_init_script(WATCH_READINESS.replace("READY", selector))
        page.goto(address, wait_until="commit")
        return page.evaluate("() => ownReady")
    finally:
        page.context.close()

"""Open pages in a Chromium with every request to another host refused."""

import re
from contextlib import contextmanager
from dataclasses import dataclass, field

from scalebook.book.chromium import chromium, find_chromium  # noqa: F401 - the tests take them from here

PATIENCE = 120_000  # ms: on a busy machine a chapter takes its time to open
FOREIGN = re.compile(r"^(https?|wss?)://(?!(127\.0\.0\.1|localhost)[:/])")


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

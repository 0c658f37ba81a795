"""Fixtures of the tests in a browser: the built site, a Chromium, and pages that may ask no other host."""

import pytest

from tests.browser.site_pages import MISSING, SITE, served
from tests.chromium import chromium, watched_page


@pytest.fixture(scope="module")
def browser():
    """A headless Chromium for the tests of a module."""
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def site():
    """The address of the built site, served on this machine."""
    if not (SITE / "index.html").exists():
        pytest.fail(MISSING)
    with served(SITE) as address:
        yield address


@pytest.fixture(scope="module")
def opened(browser, site):
    """A function that opens a page of the site, each once a module: it gives the page and what it did wrong."""
    found = {}

    def open_page(name):
        if name not in found:
            page, watch = watched_page(browser, viewport={"width": 1280, "height": 900}, reduced_motion="reduce",
                                       color_scheme="light")
            page.goto(f"{site}/{name}")
            found[name] = page, watch
        return found[name]

    yield open_page
    for page, _ in found.values():
        page.context.close()

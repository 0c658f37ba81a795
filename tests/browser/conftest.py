"""Fixtures of the tests in a browser: the built site, a Chromium, and pages that may ask no other host."""

from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

from tests.browser.looks import kept_open
from tests.browser.moving import Explorer
from tests.browser.opening import draw_all
from tests.browser.site_pages import MISSING, SITE, Figure, served
from tests.chromium import chromium

HERE = Path(__file__).parent
# What a page is like when it is opened comes before what it is like when it is used, and what measures comes last.
LAST = ("test_pages", "test_explorers_used", "test_explorers_draw", "test_speed")


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items):
    """Put the tests that look at one page one after the other, and on one worker."""
    own = [position for position, item in enumerate(items) if item.path.parent == HERE]
    ordered = sorted((items[position] for position in own), key=lambda item: (
        item.path.stem == LAST[-1], page_of(item), LAST.index(item.path.stem) if item.path.stem in LAST else -1))
    for position, item in zip(own, ordered, strict=True):
        items[position] = item
        if page_of(item):
            item.add_marker(pytest.mark.xdist_group(page_of(item)))


def page_of(item):
    """The page that a test looks at, by its parameters; "" where it looks at none of the site's, or at several."""
    for value in item.callspec.params.values() if hasattr(item, "callspec") else ():
        if isinstance(value, Figure):
            return value.page
        if isinstance(value, str) and value.endswith(".html"):
            return value
    return ""


@pytest.fixture(scope="package")
def playwright():
    """Playwright: one for the package, as a process runs one at a time."""
    with sync_playwright() as running:
        yield running


@pytest.fixture(scope="package")
def browser(playwright):
    """A headless Chromium."""
    with chromium(playwright=playwright) as started:
        yield started


@pytest.fixture(scope="package")
def site():
    """The address of the built site, served on this machine."""
    if not (SITE / "index.html").exists():
        pytest.fail(MISSING)
    with served(SITE) as address:
        yield address


@pytest.fixture(scope="package")
def opened(browser, site):
    """A function that opens a page of the site, or finds it open: it gives the page and what it did wrong."""
    with kept_open(browser, site) as open_page:
        yield open_page


@pytest.fixture
def visit(opened):
    """A function that opens a page in a look, or finds it open, and waits until all of its explorers are drawn."""
    def open_page(name, look):
        page, watch = opened(name, look)
        draw_all(page)
        return page, watch

    return open_page


@pytest.fixture
def explorer(opened, request):
    """The explorer that a test asks for by parameter, in a page that the tests share.

    Before the test and after it the controls stand where the page has them at first.
    """
    page, watch = opened(request.param.page)
    found = Explorer.kept(page, request.param)
    yield found
    found.reset()
    assert watch.clean(), watch

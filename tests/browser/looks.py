"""The ways in which readers look at a page, pages of the site kept open in them, and pictures of pages."""

import base64
from contextlib import contextmanager

from playwright.sync_api import Error

from tests.chromium import watched_page

LOOKS = {"light": {"color_scheme": "light", "viewport": {"width": 1280, "height": 900}},
         "dark": {"color_scheme": "dark", "viewport": {"width": 1280, "height": 900}},
         "phone": {"color_scheme": "light", "viewport": {"width": 390, "height": 844}}}


@contextmanager
def kept_open(browser, site):
    """Gives a function that opens a page of the site in a look, or finds it open: (page, what it did wrong).

    To open a chapter costs seconds, for its mathematics above all. The tests go page by page, so the looks of one page
    are open at a time.
    """
    found = {}

    def close(keys):
        for key in keys:
            found.pop(key)[0].context.close()

    def open_page(name, look="light"):
        if (name, look) not in found:
            close([key for key in found if key[0] != name])
            page, watch = watched_page(browser, reduced_motion="reduce", **LOOKS[look])
            page.first_positions = {}
            try:
                page.goto(f"{site}/{name}")
            except Error:
                page.context.close()
                raise
            found[name, look] = page, watch
        return found[name, look]

    try:
        yield open_page
    finally:
        close(list(found))


def picture(page, box, beyond=False):
    """A PNG of a part of a page; `beyond` where the part is not whole in the window.

    `box` has x, y, width and height in pixels from the page's upper left corner. Playwright's own screenshot gives
    the same picture, and takes several times as long.
    """
    if not hasattr(page, "own_protocol"):
        page.own_protocol = page.context.new_cdp_session(page)
    taken = page.own_protocol.send("Page.captureScreenshot", {
        "format": "png", "optimizeForSpeed": True, "captureBeyondViewport": beyond, "clip": box | {"scale": 1}})
    return base64.b64decode(taken["data"])

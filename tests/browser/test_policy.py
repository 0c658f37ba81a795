"""The site under a strict Content-Security-Policy, as a careful host would send it.

No code is made from text (no `unsafe-eval`), only the scripts run that the build wrote (by their hashes), nothing comes
from another host, and no text becomes markup.
"""

import base64
import hashlib
import re

import ipywidgets as widgets
import pytest

from scalebook.explorer import explore
from tests.browser.moving import Explorer
from tests.browser.site_pages import ONE_OF_EACH, SITE, explorers, served
from tests.browser.small_page import write_page
from tests.chromium import watched_page
from tests.elements import Elements

pytestmark = pytest.mark.browser

FIGURES = explorers()
EVIL = "</script><script>window.taken = 1</script><img src=x onerror='window.taken = 2'>\"'&amp;"


def policy(text):
    """The policy that lets a page run its own scripts and nothing else."""
    inline = Elements(text)
    hashes = [f"'sha256-{base64.b64encode(hashlib.sha256(one.encode()).digest()).decode()}'"
              for one in dict.fromkeys([*inline.programs, *inline.handlers])]
    handlers = ["'unsafe-hashes'"] if inline.handlers else []
    return "; ".join([
        "default-src 'none'", " ".join(["script-src 'self'", *handlers, *hashes]), "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data:", "font-src 'self'", "connect-src 'self'", "base-uri 'none'", "form-action 'self'",
        "object-src 'none'", "frame-ancestors 'none'"])


def opened_strictly(browser, address, folder, name):
    """Open a page with its policy in the header of the answer."""
    page, watch = watched_page(browser, bypass_csp=False, viewport={"width": 1280, "height": 900})
    header = {"content-type": "text/html; charset=utf-8",
              "content-security-policy": policy((folder / name).read_text(encoding="utf-8"))}
    page.route(f"{address}/{name}*", lambda route: route.fulfill(path=folder / name, headers=header))
    page.goto(f"{address}/{name}?q=pipeline", wait_until="load")  # the search takes the word from the address
    return page, watch


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_page_works_under_a_strict_policy(browser, site, name):
    page, watch = opened_strictly(browser, site, SITE, name)
    try:
        for figure in [one for one in FIGURES if one.page == name][:2]:
            assert Explorer(page, figure).look().marks
        if name == "search.html":
            page.wait_for_selector("#search-results li")
        assert watch.clean(), watch
    finally:
        page.context.close()


def test_the_policy_forbids_what_the_page_did_not_bring(browser, tmp_path):
    (tmp_path / "index.html").write_text("<!doctype html><title>t</title><link rel=icon href='data:,'><p>words</p>"
                                         "<script>window.own = 1</script>")
    with served(tmp_path) as address:
        page, watch = opened_strictly(browser, address, tmp_path, "index.html")
        try:
            assert page.evaluate("window.own") == 1
            page.evaluate("""() => {
              const script = document.createElement("script");
              script.textContent = "window.taken = 1";
              document.body.append(script);
              const timer = setTimeout("window.taken = 2", 0);
            }""")
            page.wait_for_timeout(200)
            assert page.evaluate("window.taken") is None
            assert [error for error in watch.errors if "Content Security Policy" in error]
        finally:
            page.context.close()


def evil_explorer():
    """An explorer in which every text is markup."""
    chart = {"data": {"values": [{"x": 1, "name": EVIL}, {"x": 2, "name": "b"}]}, "mark": "bar",
             "title": EVIL, "transform": [{"calculate": "datum.x * P", "as": "y"}],
             "encoding": {"y": {"field": "name", "type": "nominal", "title": EVIL},
                          "x": {"field": "y", "type": "quantitative"}}}
    return explore(chart, caption=EVIL, alt=EVIL, name="evil",
                   P=widgets.Dropdown(options=[(EVIL, 1), ("two", 2)], value=1, description=EVIL))


def test_no_text_of_an_explorer_becomes_markup(browser, tmp_path):
    explorer = evil_explorer()
    page_file, (figure,) = write_page(tmp_path, explorer)
    assert len(re.findall("<script", page_file.read_text(encoding="utf-8"))) == 2  # the page's own, and its data
    page, watch = watched_page(browser)  # without a policy: nothing but the escaping holds it back
    with served(tmp_path) as address:
        try:
            page.goto(f"{address}/index.html")
            assert Explorer(page, figure).look().marks
            assert page.evaluate("window.taken") is None
            assert page.inner_text("figcaption") == EVIL
            assert page.inner_text("label") == EVIL
            assert page.evaluate("document.querySelector('option').text") == EVIL
            assert page.evaluate("document.querySelectorAll('img[src=x]').length") == 0
            assert watch.clean(), watch
        finally:
            page.context.close()

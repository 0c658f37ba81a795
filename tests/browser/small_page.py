"""A page of one or more explorers, written to a folder: what the tests of the tests look at."""

from pathlib import Path

from scalebook.book.stills import compiled
from scalebook.explorer import assets
from tests.browser.site_pages import explorers_of


def write_page(folder, *explorers):
    """Write explorers (of `explore`) as a page with its scripts. Return its path and its `Figure`s."""
    folder = Path(folder)
    scripts = folder / "_static"
    scripts.mkdir(exist_ok=True)
    (scripts / "vega.js").write_text(assets.page_bundle(), encoding="utf-8")
    (scripts / "page.js").write_text(assets.page_script(), encoding="utf-8")
    (scripts / "explorer.css").write_text(assets.stylesheet(), encoding="utf-8")
    body = "\n".join(compiled(explorer.html) for explorer in explorers)
    page = folder / "index.html"
    page.write_text(
        "<!doctype html><html lang=en><head><meta charset=utf-8><title>Small</title>"
        "<link rel=stylesheet href=_static/explorer.css><link rel=icon href='data:,'>"
        f"<script defer src=_static/page.js></script></head><body>{body}</body></html>", encoding="utf-8")
    return page, explorers_of(page, "index.html")

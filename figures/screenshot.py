"""Photograph the built landing page for the README: `python figures/screenshot.py` writes screenshot.png beside itself.

The book must have been built. What the picture shows depends on this machine's fonts, so no test compares it.
"""

from pathlib import Path

from scalebook.book import chromium, pdf

if __name__ == "__main__":
    with chromium.chromium() as browser:
        page = browser.new_page(viewport={"width": 1240, "height": 940}, color_scheme="light")
        page.goto((pdf.SITE / "index.html").as_uri())
        page.wait_for_selector("figure.explorer .explorer-controls:not([hidden])")
        page.wait_for_timeout(500)  # until the sidebar's icons and the chart are painted
        page.screenshot(path=Path(__file__).with_suffix(".png"))

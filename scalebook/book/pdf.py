"""Print the built book as one PDF: `make pdf`, or `python -m scalebook.book.pdf`.

Chromium prints each page of the site with its own fonts, its mathematics set and the still pictures in place of the
explorers; the printed pages are joined in the order of the contents, with the headings as bookmarks. A link from one
page of the book to another leads to that page in the PDF.
"""

import argparse
import sys
from contextlib import nullcontext
from io import BytesIO
from itertools import starmap
from pathlib import Path
from urllib.parse import unquote, urlsplit

import yaml

from scalebook.book import chromium

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "_build" / "html"
# Shows what a click would show, waits until all is drawn, and numbers the pages after those of the pages before.
PREPARE = """async (before) => {
  document.documentElement.dataset.theme = "light";
  document.documentElement.dataset.mode = "light";
  for (const toggle of document.querySelectorAll(".toggle-hidden")) toggle.classList.remove("toggle-hidden");
  for (const folded of document.querySelectorAll("details:not(.prediction-choice)")) folded.open = true;
  for (const extra of document.querySelectorAll("a.headerlink, #jb-print-toc")) extra.remove();
  for (const image of document.querySelectorAll("img")) image.loading = "eager";
  const style = document.createElement("style");
  style.textContent = `@page { size: A4; margin: 17mm 16mm 19mm;
      @bottom-center { content: counter(page); font: 9pt sans-serif; color: #444; } }
    html { counter-reset: page ${before}; }`;
  document.head.append(style);
  if (window.MathJax) await window.MathJax.startup.promise;
  await Promise.all([...document.images].map((image) => image.decode().catch(() => null)));
  await document.fonts.ready;
}"""


def page_names(root=ROOT):
    """Return the names of the book's pages in the order of its contents, such as "chapters/05_zero"."""
    contents = yaml.safe_load((root / "_toc.yml").read_text(encoding="utf-8"))
    parts = contents.get("parts", [contents])
    return [contents["root"], *(chapter["file"] for part in parts for chapter in part.get("chapters", []))]


def print_book(site=SITE, root=ROOT, names=None, browser=None):
    """Print the pages of `site` and return the joined PDF as a `pypdf.PdfWriter`.

    `names` are the pages to print (default: all, as `page_names` orders them), `browser` a running one of
    Playwright's (default: one is started, and ended). Raises ValueError when the site has not
    got one of them, and RuntimeError when there is no Chromium.
    """
    from pypdf import PdfReader, PdfWriter

    names = list(names or page_names(root))
    for name in names:
        if not (Path(site) / f"{name}.html").exists():
            raise ValueError(f"site = {str(site)!r} is not allowed: it has no {name}.html (run `make book` first)")
    whole, starts = PdfWriter(), {}
    with nullcontext(browser) if browser else chromium.chromium() as browser:
        for name in names:
            starts[name] = len(whole.pages)
            printed, titles = _print_page(browser, Path(site) / f"{name}.html", starts[name])
            reader = PdfReader(printed)
            whole.append(reader, import_outline=False)
            _add_bookmarks(whole, reader, titles, starts[name])
    _join_links(whole, Path(site).resolve(), starts)
    whole.add_metadata({"/Title": yaml.safe_load((root / "_config.yml").read_text(encoding="utf-8"))["title"]})
    return whole


def _print_page(browser, path, before):
    page = browser.new_page(color_scheme="light", reduced_motion="reduce")
    page.set_default_timeout(120_000)
    try:
        page.goto(path.as_uri())
        page.emulate_media(media="print")
        page.evaluate(PREPARE, before)
        titles = page.evaluate("[...document.querySelectorAll('h1, h2, h3, h4')].filter(h => h.offsetParent)"
                               ".map(h => [Number(h.tagName[1]), h.textContent.trim().replace(/\\s+/g, ' ')])")
        return BytesIO(page.pdf(prefer_css_page_size=True, print_background=True, outline=True, tagged=True)), titles
    finally:
        page.close()


def _add_bookmarks(whole, reader, titles, start):
    """Make a bookmark of each heading: its words from the page, its place from Chromium's own bookmarks.

    (Chromium's words lack the space at which a heading is broken into two lines, and stand twice near a page's end.)
    """
    marks = [mark for mark in _flat(reader.outline) if mark.title.strip()]
    found = ["".join(mark.title.split()) for mark in marks]
    wanted = ["".join(words.split()) for _, words in titles]
    if len(found) != len(wanted) or not all(starmap(_same, zip(found, wanted, strict=True))):
        raise ValueError(f"the bookmarks {found} are not the headings {wanted}")
    parents = {}
    for mark, (level, words) in zip(marks, titles, strict=True):
        parent = next((parents[above] for above in range(level - 1, 0, -1) if above in parents), None)
        page = start + reader.get_destination_page_number(mark)
        parents = {above: item for above, item in parents.items() if above < level}
        parents[level] = whole.add_outline_item(title=words, page_number=page, parent=parent,
                                                   fit=_at(mark))


def _same(mark, words):
    return mark in (words, 2 * words)


def _flat(outline):
    for item in outline:
        if isinstance(item, list):
            yield from _flat(item)
        else:
            yield item


def _at(mark):
    from pypdf.generic import Fit

    return Fit.xyz(left=mark.left, top=mark.top)


def _join_links(whole, site, starts):
    """Turn each link to another file of the site into one to its first page in the PDF, or to its bare address."""
    from pypdf.generic import ArrayObject, NameObject, NumberObject

    for page in whole.pages:
        for reference in page.get("/Annots") or ():
            link = reference.get_object()
            action = (link.get("/A") or {}).get("/URI")
            address = urlsplit(str(action or ""))
            if address.scheme != "file":
                continue
            path = Path(unquote(address.path))
            name = str(path.relative_to(site).with_suffix("")) if path.is_relative_to(site) else ""
            del link["/A"]  # a path of the machine that printed helps no reader
            if name in starts:
                target = whole.pages[starts[name]].indirect_reference
                link[NameObject("/Dest")] = ArrayObject([target, NameObject("/XYZ"), *[NumberObject(0)] * 3])


def main():
    """Print the book and say where it is."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", default=str(SITE / "scalebook.pdf"), help="the PDF (default: beside the pages)")
    output = Path(parser.parse_args().output)
    try:
        whole = print_book()
    except (ValueError, RuntimeError) as error:
        sys.exit(str(error))
    partial = output.with_suffix(".partial")  # renamed at the end: a file cut short must not look complete
    whole.write(partial)
    partial.rename(output)
    print(f"The book was printed: {len(whole.pages)} pages, {output.stat().st_size / 1e6:.1f} MB:\n{output.resolve()}")


if __name__ == "__main__":
    main()

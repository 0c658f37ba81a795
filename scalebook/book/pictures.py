"""The pictures of a page: each says how large it is, is fetched when it comes near, and has a twin for the dark page.

With its size in the page, a picture has its place before it is there, and nothing moves when it comes.
"""

import re
import struct
from pathlib import Path
from urllib.parse import unquote

from scalebook.book import night


def setup(app):
    """Look at each page before it is written."""
    app.connect("html-page-context", _complete_pictures, priority=800)


def png_size(content):
    """Return (width, height) of a PNG, given as bytes."""
    return struct.unpack(">II", content[16:24])


def size(path):
    """Return (width, height) of a PNG or SVG file in pixels of a page; None for another kind.

    Raises ValueError for an SVG that does not say its size.
    """
    path = Path(path)
    if path.suffix == ".png":
        return png_size(path.read_bytes())
    if path.suffix != ".svg":
        return None
    head = path.read_text(encoding="utf-8")[:4000]
    tag = re.search(r"<svg[^>]*>", head)
    box = tag and re.search(r'viewBox="[-\d.]+ [-\d.]+ ([\d.]+) ([\d.]+)"', tag[0])
    if not box:
        raise ValueError(f"{path.name} has no viewBox, which says how large it is")
    unit = 96 / 72 if re.search(r'width="[\d.]+pt"', tag[0]) else 1
    return tuple(round(float(number) * unit) for number in box.groups())


def completed(html, find):
    """Return the HTML with the size of each picture, fetched late; `find` gives a picture's file, or None.

    >>> completed('<img alt="A curve." src="../_images/a.png" />', lambda name: None)
    '<img loading="lazy" alt="A curve." src="../_images/a.png" />'
    """
    def complete(match):
        tag = match[0]
        source = re.search(r'src="([^"]*)"', tag)
        file = find(unquote(source[1]).rsplit("/", 1)[-1]) if source else None
        if file and " width=" not in tag and "style=" not in tag and size(file):
            width, height = size(file)
            tag = tag.replace("<img ", f'<img width="{width}" height="{height}" ', 1)
        return tag if " loading=" in tag else tag.replace("<img ", '<img loading="lazy" ', 1)

    return re.sub(r"<img [^>]*>", complete, html)


def twin(path):
    """Return the bytes of a drawing's twin for the dark page: X.svg for X_light.svg, else what `night` makes of it."""
    path = Path(path)
    drawn = path.with_stem(path.stem.removesuffix("_light"))
    if drawn != path and drawn.exists():
        return night.without_paper(drawn.read_text(encoding="utf-8")).encode()
    if path.suffix == ".svg":
        return night.dark_svg(path.read_text(encoding="utf-8")).encode()
    return night.dark_png(path.read_bytes())


def twinned(html, find):
    """Return the HTML with a second picture beside each, and the second ones: file name to its drawing's file.

    The style sheet shows one of the two; `find` gives a picture's file, or None.

    >>> twinned('<img src="../_images/a.svg" />', lambda name: Path(name))
    ('<img class="by-day" src="../_images/a.svg" /><img class="by-night" src="../_images/a-dark.svg" />', \
{'a-dark.svg': PosixPath('a.svg')})
    """
    found = {}

    def add(match):
        tag = match[0]
        source = re.search(r'src="([^"]*)"', tag)
        name = unquote(source[1]).rsplit("/", 1)[-1] if source else ""
        file = find(name)
        if not file or file.suffix not in (".svg", ".png"):
            return tag
        stem, suffix = source[1].rsplit(".", 1)
        found[f"{name.rsplit('.', 1)[0]}-dark.{suffix}"] = file
        return (_classed(tag, "by-day")
                + _classed(tag.replace(source[0], f'src="{stem}-dark.{suffix}"'), "by-night"))

    return re.sub(r"<img [^>]*>", add, html), found


def _classed(tag, name):
    if ' class="' in tag:
        return tag.replace(' class="', f' class="{name} ', 1)
    return tag.replace("<img ", f'<img class="{name}" ', 1)


def _complete_pictures(app, pagename, templatename, context, doctree):
    if "body" not in context or app.builder.format != "html":
        return
    files = {name: Path(app.srcdir) / source for source, name in app.builder.images.items()}
    context["body"], twins = twinned(completed(context["body"], files.get), files.get)
    folder = Path(app.outdir) / app.builder.imagedir
    for name, file in twins.items():
        folder.mkdir(exist_ok=True)
        (folder / name).write_bytes(twin(file))

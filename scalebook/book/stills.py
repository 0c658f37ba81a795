"""Put each explorer's still picture into its figure.

An explorer's cell has two outputs: a picture (for print, for a notebook viewer, for a reader without JavaScript) and
the figure that the page brings to life. On the page they are one thing. This module works on the notebook's own JSON,
before Sphinx parses it, so it needs nothing of Sphinx and can be tested alone.
"""

import base64
import hashlib
import json
import re
from functools import cache
from html import escape

from scalebook.book.cells import html_of, joined
from scalebook.book.pictures import png_size
from scalebook.explorer import spec
from scalebook.explorer.static import script_text

MARK = "<!--explorer-still-->"
VIEW = '<div class="explorer-view"'
SPEC = re.compile(r'class="explorer-spec">(.*?)</script>', re.DOTALL)
PHONE = 323  # pixels that a page leaves a figure on a phone 390 wide


def merge_stills(notebook, prefix):
    """Move the still pictures of `notebook` (its JSON, changed in place) into the figures they belong to.

    `prefix` is what the page writes before a picture's file name. Returns the pictures: file name to PNG bytes.
    Raises ValueError when a still has no figure or no alternative text, or a figure has no still.

    >>> import struct
    >>> png = base64.b64encode(bytes(16) + struct.pack(">II", 4, 2)).decode()
    >>> still = {"output_type": "display_data", "data": {"image/png": png, "text/plain": "A line."},
    ...          "metadata": {"scalebook": {"still": "explorer-a"}}}
    >>> figure = {"output_type": "display_data", "data": {"text/html": '<figure id="explorer-a">' + MARK}}
    >>> cell = {"cell_type": "code", "outputs": [still, figure]}
    >>> list(merge_stills({"cells": [cell]}, "../"))
    ['explorer-a-d314cd51.png']
    >>> cell["outputs"][0]["data"]["text/html"][:63]
    '<figure id="explorer-a"><img class="explorer-still" loading="la'
    """
    pictures = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell["outputs"] = _merge_outputs(cell["outputs"], prefix, pictures)
    return pictures


def _merge_outputs(outputs, prefix, pictures):
    stills = {_still_name(output): output for output in outputs if _still_name(output)}
    kept = [output for output in outputs if not _still_name(output)]
    for output in kept:
        html = html_of(output)
        if MARK not in html:
            continue
        name = next((name for name in stills if f'id="{name}"' in html), None)
        if name is None:
            raise ValueError(f"a figure has no still picture among {sorted(stills)}: {html[:80]!r}")
        file_name, png, height, image = _image(name, stills.pop(name), prefix)
        pictures[file_name] = png
        output["data"]["text/html"] = _ready_to_draw(html.replace(MARK, image, 1), height)
    if stills:
        raise ValueError(f"a still picture has no figure: {sorted(stills)}")
    return kept


def compiled(html):
    """Return the HTML of a figure with its chart in Vega: what a page needs, for it has no Vega-Lite.

    >>> chart = {"mark": "point", "config": {}}
    >>> compiled(f'<script class="explorer-spec">{json.dumps(chart)}</script>')[:60]
    '<script class="explorer-spec">{"$schema":"https://vega.githu'
    """
    body = SPEC.search(html)
    return html[:body.start(1)] + _in_vega(body[1]) + html[body.end(1):]


def _ready_to_draw(html, height):
    """Compile a figure's chart, and keep its place, so that nothing moves when it is drawn.

    It will be as high as its still, `height`; on a phone higher, for there a legend has one entry to a row.
    """
    body = SPEC.search(html)
    if body is None:
        return html  # nothing will be drawn
    sizes = f"--chart-height: {height}px; --narrow-chart-height: {_height_on_a_phone(body[1])}px"
    return compiled(html).replace(VIEW, f'{VIEW} style="{sizes}"', 1)


@cache  # a figure may stand on several pages
def _height_on_a_phone(body):
    return spec.height(json.loads(body), PHONE)


@cache
def _in_vega(body):
    return script_text(spec.compiled(json.loads(body)))


def _still_name(output):
    return output.get("metadata", {}).get("scalebook", {}).get("still")


def _image(name, output, prefix):
    alt = joined(output["data"].get("text/plain", "")).strip()
    if not alt:
        raise ValueError(f"the still picture of {name} has no alternative text (its text/plain)")
    png = base64.b64decode(joined(output["data"]["image/png"]))
    size = output["metadata"].get("image/png") or dict(zip(("width", "height"), png_size(png), strict=True))
    # The name changes with the picture, so that a browser never shows an old one from its cache.
    file_name = f"{name}-{hashlib.sha256(png).hexdigest()[:8]}.png"
    image = (f'<img class="explorer-still" loading="lazy" src="{prefix}{file_name}" alt="{escape(alt)}" '
             f'width="{size["width"]}" height="{size["height"]}">')
    return file_name, png, round(size["height"] * spec.STILL_WIDTH / size["width"]), image

"""The pictures of a page in the dark: the same drawing on the dark page, its ideas in their own colours.

A drawing is made for white paper. On a dark page it would be a bright card. So the build makes a twin of each: what is
grey (paper, axes, words) goes from dark on light to light on dark, and what has a colour keeps it, since the colours of
`scalebook.colours` are made for both pages. The page holds both pictures and shows one; the other is never fetched.
"""

import re
import struct
import zlib

import numpy as np

from scalebook.colours import DARK_PAGE, contrast

INK = "#d6dbe1"  # of words on the dark page
GREYS = re.compile(r"#([0-9a-f]{2})\1\1\b")
KEPT = 0x8C  # the grey of what is idle: seen on both pages
FULL = 60  # the chroma, of 255, from which a colour is an idea's own
READ = 4.5  # the contrast of words (WCAG 2.2, section 1.4.3)
GAMMA = 1.25  # greys are a little lighter than halfway: a word in grey must be read
SIGNATURE = b"\x89PNG\r\n\x1a\n"


def dark_svg(text):
    """Return an SVG drawing for the dark page: paper is clear, greys change sides, white words stay white.

    >>> dark_svg('<svg width="9"><path style="fill: #333333"/><path style="fill: #0072b2"/></svg>')
    '<svg fill="#d6dbe1" width="9"><path style="fill: #bcc1c7"/><path style="fill: #0072b2"/></svg>'
    """
    text = text.replace("<svg ", f'<svg fill="{INK}" ', 1)
    words = re.split(r"(<text .*?>)", without_paper(text), flags=re.DOTALL)
    return "".join(_dark_words(part) if part.startswith("<text ") else GREYS.sub(_changed, part) for part in words)


def _dark_words(tag):
    """The words of a drawing: white ones stand on a colour and stay, others are light enough to be read."""
    if "#ffffff" in tag:
        return tag
    return re.sub("#[0-9a-f]{6}", lambda match: _readable(match[0]), GREYS.sub(_changed, tag))


def _readable(colour):
    """The colour, with as much of the ink mixed in as it needs for a contrast of 4.5 on the dark page."""
    own, ink = (np.array([int(one[i:i + 2], 16) for i in (1, 3, 5)]) for one in (colour, INK))
    mixed = ("#" + "".join(f"{round(value):02x}" for value in own + share * (ink - own))
             for share in np.linspace(0, 1, 21))
    return next(one for one in mixed if contrast(one, DARK_PAGE) >= READ)


def without_paper(text):
    """Return a drawing of Matplotlib's without its sheet of paper, which is its first patch."""
    return re.sub(r'(<g id="patch_1">\s*<path d="[^"]*" style="fill: )#[0-9a-f]{6}', r"\1none", text, count=1)


def _changed(match):
    grey = int(match[1], 16)
    if grey == KEPT:
        return match[0]
    return "#" + "".join(f"{round(value):02x}" for value in _side(grey / 255))


def _side(light):
    """The grey of the dark page for one of the light page, from 0 (ink) to 1 (paper); three numbers to 255."""
    ink, page = (np.array([int(colour[i:i + 2], 16) for i in (1, 3, 5)], dtype=float) for colour in (INK, DARK_PAGE))
    return ink + np.asarray(light)[..., None] ** GAMMA * (page - ink)


def dark_png(content):
    """Return a picture for the dark page, given and returned as the bytes of a PNG (8 bits, RGB with or without alpha).

    Raises ValueError for another kind of PNG.
    """
    pixels = read_png(content).astype(float)
    if pixels.shape[2] == 4:
        alpha = pixels[..., 3:] / 255
        pixels = pixels[..., :3] * alpha + 255 * (1 - alpha)
    least, most = pixels.min(axis=2), pixels.max(axis=2)
    own = np.clip((most - least) / FULL, 0, 1)[..., None]
    # Near the paper's white a colour is a tint, or a letter's soft edge: it is one of the dark page, too.
    tint = _side(least / 255) + (pixels - least[..., None])
    strong = np.clip((255 - least) / 255, 0, 1)[..., None]
    coloured = strong * pixels + (1 - strong) * np.minimum(tint, 255)
    return write_png(np.round(own * coloured + (1 - own) * _side((least + most) / 510)).astype(np.uint8))


def read_png(content):
    """Return the pixels of a PNG as an array (height, width, 3 or 4) of bytes; only 8 bits, not interlaced."""
    width, height, depth, kind, _, _, interlaced = struct.unpack(">IIBBBBB", content[16:29])
    if not content.startswith(SIGNATURE) or depth != 8 or kind not in (2, 6) or interlaced:
        raise ValueError(f"content = {content[:29]!r} is not allowed: it must be a PNG of 8 bits, RGB or RGBA")
    packed, place = b"", len(SIGNATURE)
    while place < len(content):
        length, name = struct.unpack(">I4s", content[place:place + 8])
        packed += content[place + 8:place + 8 + length] if name == b"IDAT" else b""
        place += length + 12
    size = 3 if kind == 2 else 4
    rows = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(height, 1 + width * size)
    return _unfiltered(rows[:, 0], rows[:, 1:].reshape(height, width, size).astype(np.int16))


def _unfiltered(filters, coded):
    """Undo the filters of a PNG's rows, a diagonal of pixels at a time: a pixel needs its left and its upper ones."""
    height, width, size = coded.shape
    y, x = np.indices((height, width))
    slanted = np.zeros((height + width, height, size), np.int16)
    slanted[x + y, y] = coded
    found = np.zeros((height + width + 1, height + 1, size), np.int16)  # a diagonal and a row of zeros come before
    kinds = [(filters == kind).astype(np.int16)[:, None] for kind in range(5)]
    for diagonal in range(height + width - 1):
        first, last = max(0, diagonal - width + 1), min(height, diagonal + 1)
        left = found[diagonal + 1, first + 1:last + 1]
        up, corner = found[diagonal + 1, first:last], found[diagonal, first:last]
        to_left, to_up = abs(up - corner), abs(left - corner)
        to_corner = abs(left + up - 2 * corner)
        paeth = np.where((to_left <= to_up) & (to_left <= to_corner), left, np.where(to_up <= to_corner, up, corner))
        _, sub, above, average, nearest = (kind[first:last] for kind in kinds)
        add = sub * left + above * up + average * ((left + up) >> 1) + nearest * paeth
        found[diagonal + 2, first + 1:last + 1] = (slanted[diagonal, first:last] + add) & 255
    return found[x + y + 2, y + 1].astype(np.uint8)


def write_png(pixels):
    """Return an array (height, width, 3) of bytes as a PNG."""
    height, width, _ = pixels.shape
    lines = pixels.reshape(height, -1)
    differences = np.vstack([lines[:1], np.diff(lines, axis=0)])  # of each row to the one above, modulo 256
    rows = np.hstack([np.full((height, 1), 2, np.uint8), differences])
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
              (b"IDAT", zlib.compress(rows.tobytes(), 9)), (b"IEND", b"")]
    return SIGNATURE + b"".join(struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
                                for name, body in chunks)

"""An address for each cell: what a chapter shows in its cell `validate-more` is `05_zero.html#cell-validate-more`.

A notebook's cells have ids, and a page that is made from it forgets them. So before a notebook is parsed, each cell is
marked with its address: a code cell in its metadata, a Markdown cell by a comment in front of its text. After parsing
the marks become ids, and MyST learns of them, so that a page can link to `05_zero.ipynb#cell-validate-more`. Cells that
only end a solution show nothing and get no address.

This module reads notebooks as JSON and needs neither Jupyter's packages nor Sphinx; `cell_links` is the build's part.
"""

import json
import re
from functools import cache

from scalebook.book.notebooks import CHAPTERS, chapters

PREFIX = "cell-"
MARK = "cell-address:"
ENDS_SOLUTION = re.compile(r"[`:]{3,}\{(solution|exercise)-end\}")


def joined(text):
    """Return a text of a notebook's JSON, which may be a list of lines.

    >>> joined(["a\\n", "b"]), joined("a")
    ('a\\nb', 'a')
    """
    return "".join(text)


def text_of(cell):
    """Return the source of a cell (its JSON)."""
    return joined(cell["source"])


def html_of(output):
    """Return what an output of a cell (its JSON) shows as HTML, or an empty text."""
    return joined(output.get("data", {}).get("text/html", ""))


def address(cell):
    """Return the id that a cell of a notebook (its JSON) has on the page, or None when it shows nothing.

    >>> address({"cell_type": "code", "id": "setup", "source": ["import math"]})
    'cell-setup'
    >>> address({"cell_type": "markdown", "id": "solution-end", "source": "```{solution-end}\\n```"}) is None
    True
    """
    text = text_of(cell)
    return None if not text.strip() or ENDS_SOLUTION.match(text) else PREFIX + cell["id"]


def mark(notebook):
    """Mark each cell of `notebook` (its JSON, changed in place) with its address.

    >>> notebook = {"cells": [{"cell_type": "markdown", "id": "title", "source": "# ZeRO", "metadata": {}}]}
    >>> mark(notebook)
    >>> notebook["cells"][0]["source"]
    '% cell-address:cell-title\\n\\n# ZeRO'
    """
    for cell in notebook["cells"]:
        name = address(cell)
        if name and cell["cell_type"] == "code":
            cell["metadata"]["address"] = name
        elif name and cell["cell_type"] == "markdown":
            cell["source"] = f"% {MARK}{name}\n\n" + text_of(cell)


def number_of(path):
    """Return the number of a chapter, which its file's name begins with.

    >>> number_of(path_of(5))
    5
    """
    return int(path.name[:2])


def title_of(path):
    """Return the title of a chapter.

    >>> title_of(path_of(5))
    'ZeRO'
    """
    return re.search(r"^# (.+)$", text_of(read(path)[0]), re.M)[1]


def path_of(number, folder=CHAPTERS):
    """Return the notebook of chapter `number`, or None when there is none yet; ValueError when there are several."""
    found = [path for path in chapters(folder) if path.name.startswith(f"{number:02d}_")]
    if len(found) > 1:
        raise ValueError(f"number = {number} is not allowed: {', '.join(path.name for path in found)} have it")
    return found[0] if found else None


@cache
def _read(path, changed):
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def read(path):
    """Return the cells of a notebook as its JSON has them. Do not change them: they are kept between calls."""
    return _read(path, path.stat().st_mtime_ns)


def find(number, name, folder=CHAPTERS):
    """Return the cell `name` of chapter `number`; None when there is no such chapter yet.

    Raises ValueError when the chapter has no such cell, or none that a page shows.

    >>> find(5, "trap")["cell_type"]
    'markdown'
    >>> find(5, "no-such-cell")
    Traceback (most recent call last):
    ...
    ValueError: name = 'no-such-cell' is not allowed: 05_zero.ipynb shows no such cell
    """
    path = path_of(number, folder)
    if path is None:
        return None
    for cell in read(path):
        if cell["id"] == name and address(cell):
            return cell
    raise ValueError(f"name = {name!r} is not allowed: {path.name} shows no such cell")


@cache
def _headings(path, changed):
    found, heading = {}, ""
    for cell in _read(path, changed):
        titles = re.findall(r"^(?:#{1,4}|[`:]{3,}\{exercise\}) +(.+)$", text_of(cell), re.M) \
            if cell["cell_type"] == "markdown" else []
        # A cell with several headings is known by its first one, and what follows it stands under its last one.
        found[cell["id"]] = _plain(titles[0] if titles else heading)
        heading = titles[-1] if titles else heading
    return found


def _plain(heading):
    return re.sub(r"[*`$]", "", heading).strip()


def heading_of(number, name, folder=CHAPTERS):
    """Return the heading, or the exercise's title, that a cell stands under.

    >>> heading_of(5, "validate-more")
    'Accumulation, ties, two ranks, 16 bits'
    """
    path = path_of(number, folder)
    found = _headings(path, path.stat().st_mtime_ns)
    if name not in found:
        raise ValueError(f"name = {name!r} is not allowed: chapter {number} has no such cell")
    return found[name]

"""A long cell shows its first lines and, below them, a line that unfolds the others: a page stays one to be read.

It works without a script: the style sheet cuts the code while the `details` below it are closed. Listings of the
library are what a chapter is about and stand whole, and so does everything on paper.
"""

from docutils import nodes

from scalebook.book.cell_links import code_cells

LONGEST = 24  # lines that a cell may have and stand whole; of a longer one `styles/3_code.css` shows the first 16


def setup(app):
    """Connect to Sphinx."""
    app.connect("doctree-read", _fold)


def fold(lines):
    """Return the HTML that follows the code of a cell with so many lines.

    >>> fold(65).count("65 lines")
    1
    """
    return (f'<details class="whole-code"><summary><span class="more">Show all {lines} lines</span>'
            '<span class="less">Show fewer lines</span></summary></details>')


def _fold(app, doctree):
    for cell, metadata in code_cells(doctree):
        if metadata.get("listing") or "hide-input" in metadata.get("tags", []):
            continue
        for code in cell.findall(nodes.literal_block):
            lines = len(code.astext().splitlines())
            if code.parent.get("nb_element") == "cell_code_source" and lines > LONGEST:
                code.parent += nodes.raw("", fold(lines), format="html")

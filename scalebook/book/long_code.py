"""A long cell shows its first lines and, below them, a line that unfolds the others: a page stays one to be read.

It works without a script: the style sheet cuts the code while the `details` below it are closed. Listings of the
library are what a chapter is about and stand whole, and so does everything on paper.
"""

from docutils import nodes

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
    for cell in list(doctree.findall(nodes.container)):
        metadata = cell.get("cell_metadata") or {}
        if cell.get("nb_element") != "cell_code" or metadata.get("listing") or "hide-input" in metadata.get("tags", []):
            continue
        for source in cell.findall(nodes.container):
            code = next(iter(source.findall(nodes.literal_block)), None)
            if source.get("nb_element") == "cell_code_source" and code is not None:
                lines = len(code.astext().rstrip("\n").splitlines())
                if lines > LONGEST:
                    source += nodes.raw("", fold(lines), format="html")

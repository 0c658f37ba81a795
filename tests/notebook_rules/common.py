"""What the rules share: looking at cells, their source and their stored outputs."""

import ast
import io
import itertools
import re
import tokenize

from scalebook.book import notebooks

EXPLORER_OUTPUT = re.compile(r'<figure[^>]*class="[^"]*\bexplorer\b')


def code_cells(notebook):
    return notebooks.code_cells(notebook)


def where(cell):
    return f"cell {cell.get('id', '(no id)')}"


def tree_of(cell):
    """The cell's syntax tree; magics become calls, and what is no Python at all is an empty tree."""
    try:
        return ast.parse(notebooks.python_source(cell))
    except SyntaxError:
        return ast.Module([], [])


def tokens_of(cell):
    """The cell's tokens, as far as they can be read."""
    found = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(notebooks.python_source(cell)).readline):
            found.append(token)
    except (tokenize.TokenError, IndentationError):
        pass
    return found


def comments_of(cell):
    return [token.string for token in tokens_of(cell) if token.type == tokenize.COMMENT]


def texts(cell, html=True):
    """Each stored text of a cell's outputs, as (kind, text): streams, text/plain and, if asked, HTML, SVG and JSON."""
    for output in cell.get("outputs", []):
        if output.output_type == "stream":
            yield output.name, output.text
        for kind, data in output.get("data", {}).items():
            if kind.startswith("image/") and kind != "image/svg+xml":
                continue
            if kind == "text/plain" or html:
                yield kind, data if isinstance(data, str) else str(data)


def shows_explorer(cell):
    return any(EXPLORER_OUTPUT.search(text) for kind, text in texts(cell) if kind == "text/html")


def is_still(output):
    """Whether an output is the still picture of an explorer."""
    return bool(output.get("metadata", {}).get("scalebook", {}).get("still"))


def calls(tree):
    """Each call in a tree with the last part of the name that it calls: `a.b.c(...)` gives "c"."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            function = node.func
            yield node, getattr(function, "attr", None) or getattr(function, "id", "")


def without_fences(text):
    """Markdown without what stands inside code fences."""
    return re.sub(r"^(`{3,}|~{3,})[^\n]*\n.*?^\1`*[ ]*$", "", text, flags=re.M | re.S)


def headings(notebook, level=2):
    """The headings of one level, as (index of the cell, text)."""
    found = []
    for index, cell in enumerate(notebook.cells):
        if cell.cell_type == "markdown":
            found += [(index, match.group(1).strip()) for match in
                      re.finditer(rf"^{'#' * level} +(.+?)#*\s*$", without_fences(cell.source), re.M)]
    return found


def section(notebook, name):
    """The cells of the level-2 section whose heading begins with `name`; [] when there is none."""
    bounds = [*headings(notebook), (len(notebook.cells), "")]
    for (start, text), (end, _) in itertools.pairwise(bounds):
        if text.lower().startswith(name.lower()):
            return notebook.cells[start:end]
    return []

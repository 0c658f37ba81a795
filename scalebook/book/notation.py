"""Directives that print the book's symbols and formulas from where the chapters have them.

    ```{symbols}
    ```
    ```{letters}
    ```
    ```{formulas} pipeline
    ```

The first prints every symbol that a chapter uses, from `scalebook.book.symbols`; the second those that mean one thing
in one chapter and another in another; the third the formulas of a module of `scalebook.formulas`. So no symbol and no
formula is typed a second time.
"""

import re
from pathlib import Path

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.util.docutils import SphinxDirective

import scalebook.formulas
from scalebook.book import cells, symbols

ARXIV = re.compile(r"arXiv:\d{4}\.\d{4,5}")


def formulas_of(module):
    """Return the formulas of one module of `scalebook.formulas`, by name; raise ValueError when it has none.

    >>> "bubble_overhead" in formulas_of("pipeline")
    True
    >>> formulas_of("gardening")
    Traceback (most recent call last):
    ...
    ValueError: module = 'gardening' is not allowed: no formula stands in scalebook.formulas.gardening
    """
    found = {key.split(".")[1]: formula for key, formula in scalebook.formulas.catalogue().items()
             if key.split(".")[0] == module}
    if not found:
        raise ValueError(f"module = {module!r} is not allowed: no formula stands in scalebook.formulas.{module}")
    return found


class _Table(SphinxDirective):
    def run(self):
        for path in (*sorted(Path(scalebook.formulas.__file__).parent.glob("*.py")), symbols.REGISTRY):
            self.env.note_dependency(str(path))
        try:
            return [table(self.headings, self.rows(), self.kind)]
        except ValueError as error:
            raise self.error(str(error)) from error


class Symbols(_Table):
    """The table of all symbols: how each is written, what it means, its unit, its name in code, its chapters."""

    headings, kind = ("Symbol", "Meaning", "Unit", "In code", "Chapters"), "symbols"

    def rows(self):
        """The rows, by letter; a symbol with the same meaning in several chapters has one."""
        return [[[[nodes.math(text=found.latex)]], [[nodes.Text(found.meaning)]], [[nodes.Text(found.unit)]],
                 [[nodes.literal(text=found.code)] if found.code else []], [_chapters(numbers)]]
                for found, numbers in symbols.all_meanings()]


class Letters(_Table):
    """The table of symbols that have several meanings, each in its own chapters."""

    headings, kind = ("Symbol", "Chapters, and what it means there"), "letters"

    def rows(self):
        """The rows, by letter: a line for each meaning."""
        return [[[[nodes.math(text=meanings[0][0].latex)]],
                 [[*_chapters(numbers), nodes.Text(f": {found.meaning}")] for found, numbers in meanings]]
                for meanings in symbols.letters()]


class Formulas(_Table):
    """The table of a module's formulas: name and source, unit, equation and its conditions."""

    required_arguments = 1
    headings, kind = ("Name in code, and source", "Unit", "Formula"), "formulas"

    def rows(self):
        """The formulas, in the order of the module."""
        return [self.row(name, formula) for name, formula in formulas_of(self.arguments[0]).items()]

    def row(self, name, formula):
        """One row of the table."""
        left = f"{formula.result} = " if formula.result else ""
        equation = [[nodes.math(text=rf"\displaystyle {left}{formula.latex}")]]
        equation += [[nodes.emphasis(text=condition)] for _, condition in formula.requires]
        return [[nodes.literal(text=name)], linked(formula.source)], [[nodes.Text(_unit(formula.unit))]], equation


def _chapters(numbers):
    """The chapters' numbers, each a link to its page."""
    parts = []
    for number in numbers:
        path = cells.path_of(number)
        shown = nodes.inline("", str(number))
        parts += [nodes.Text(", ") if parts else nodes.Text(""), shown if path is None else pending_xref(
            "", shown, refdomain="std", reftype="doc", reftarget=f"/chapters/{path.stem}", refexplicit=True)]
    return parts[1:]


def _unit(unit):
    return "none" if unit == "1" else unit


def linked(source):
    """Return a source as text, with each arXiv number a link."""
    parts, start = [], 0
    for match in ARXIV.finditer(source):
        number = match.group().removeprefix("arXiv:")
        parts += [nodes.Text(source[start:match.start()]),
                  nodes.reference("", match.group(), refuri=f"https://arxiv.org/abs/{number}", internal=False)]
        start = match.end()
    return [*parts, nodes.Text(source[start:])]


def table(headings, rows, kind=None):
    """Return a table; a row is a list of cells, a cell a list of paragraphs, a paragraph a list of inline nodes.

    The style sheet lays out the columns of a table of a `kind`; those of others have the width of what they hold.
    """
    group = nodes.tgroup(cols=len(headings))
    group += [nodes.colspec(colwidth=1) for _ in headings]
    group += nodes.thead("", _row(words(*headings)))
    group += nodes.tbody("", *[_row(row) for row in rows])
    return nodes.table("", group, classes=["notation", kind, "colwidths-auto"] if kind else ["colwidths-auto"])


def words(*values):
    """Return the cells of a row of `table` that hold a text each."""
    return [[[nodes.Text(str(value))]] for value in values]


def _row(cells):
    """A row whose cells are lists of paragraphs, each a list of inline nodes."""
    return nodes.row("", *[nodes.entry("", *[nodes.paragraph("", "", *line) for line in cell]) for cell in cells])


def setup(app):
    """Register the three directives."""
    app.add_directive("symbols", Symbols)
    app.add_directive("letters", Letters)
    app.add_directive("formulas", Formulas)

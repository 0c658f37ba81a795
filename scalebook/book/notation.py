"""Directives that print the book's symbols and formulas from `scalebook.formulas`.

    ```{symbols} pipeline
    ```
    ```{formulas} pipeline
    ```

The argument names a module of `scalebook.formulas`. So no symbol and no formula is typed a second time.
"""

import re
from pathlib import Path

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

import scalebook.formulas

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


def symbols_of(formulas):
    """Return the variables of `formulas`, each once, in order of appearance.

    Raises ValueError when one symbol has two meanings or two units.

    >>> [variable.name for variable in symbols_of(formulas_of("pipeline").values())][:2]
    ['M', 't_f']
    """
    found = {}
    for formula in formulas:
        for variable in formula.symbols:
            known = found.setdefault(variable.name, variable)
            if (known.meaning, known.unit, known.latex) != (variable.meaning, variable.unit, variable.latex):
                raise ValueError(f"{variable.name} means both {known.meaning!r} ({known.unit}) and "
                                 f"{variable.meaning!r} ({variable.unit}, in {formula.name})")
    return list(found.values())


class _Table(SphinxDirective):
    required_arguments = 1

    def run(self):
        folder = Path(scalebook.formulas.__file__).parent
        for path in sorted(folder.glob("*.py")):
            self.env.note_dependency(str(path))
        try:
            found = formulas_of(self.arguments[0])
            return [_table(self.headings, [self.row(name, item) for name, item in self.items(found)])]
        except ValueError as error:
            raise self.error(str(error)) from error


class Symbols(_Table):
    """The table of a module's symbols: how it is written, what it means, its unit."""

    headings = ("Symbol", "In code", "Meaning", "Unit")

    def items(self, formulas):
        """The variables of all formulas, by name."""
        return [(variable.name, variable) for variable in symbols_of(formulas.values())]

    def row(self, name, variable):
        """One row of the table."""
        latex = variable.latex or name
        unit = "count" if variable.count else _unit(variable.unit)
        return ([[nodes.math(text=latex)]], [[nodes.literal(text=name)]], [[nodes.Text(variable.meaning)]],
                [[nodes.Text(unit)]])


class Formulas(_Table):
    """The table of a module's formulas: name and source, unit, equation and its conditions."""

    headings = ("Name in code, and source", "Unit", "Formula")

    def items(self, formulas):
        """The formulas, by name."""
        return list(formulas.items())

    def row(self, name, formula):
        """One row of the table."""
        left = f"{formula.result} = " if formula.result else ""
        equation = [[nodes.math(text=rf"\displaystyle {left}{formula.latex}")]]
        equation += [[nodes.emphasis(text=words)] for _, words in formula.requires]
        return [[nodes.literal(text=name)], _linked(formula.source)], [[nodes.Text(_unit(formula.unit))]], equation


def _unit(unit):
    return "none" if unit == "1" else unit


def _linked(source):
    """The source as text, with each arXiv number a link."""
    parts, start = [], 0
    for match in ARXIV.finditer(source):
        number = match.group().removeprefix("arXiv:")
        parts += [nodes.Text(source[start:match.start()]),
                  nodes.reference("", match.group(), refuri=f"https://arxiv.org/abs/{number}", internal=False)]
        start = match.end()
    return [*parts, nodes.Text(source[start:])]


def _table(headings, rows):
    group = nodes.tgroup(cols=len(headings))
    group += [nodes.colspec(colwidth=1) for _ in headings]
    group += nodes.thead("", _row([[[nodes.Text(heading)]] for heading in headings]))
    group += nodes.tbody("", *[_row(row) for row in rows])
    return nodes.table("", group, classes=["notation"])


def _row(cells):
    """A row whose cells are lists of paragraphs, each a list of inline nodes."""
    return nodes.row("", *[nodes.entry("", *[nodes.paragraph("", "", *line) for line in cell]) for cell in cells])


def setup(app):
    """Register the two directives."""
    app.add_directive("symbols", Symbols)
    app.add_directive("formulas", Formulas)

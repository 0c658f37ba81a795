"""In which other orders the cells of a chapter may run: every one in which each name means what it means in the text.

A cell needs another when it reads a name that the other one gave its value, or changes what the name stands for
(`x[0] = 1`, `x.a = 1`, `x += 1`); and no cell may give or change a name before those that read the value before it. A
function reads its names when it is called, so whoever uses a function uses what it reads.
"""

import ast
import symtable
from dataclasses import dataclass

from scalebook.book import notebooks


@dataclass(frozen=True)
class Names:
    """What a cell does with names: those it reads, those it gives or changes, and what its functions read."""

    reads: frozenset
    writes: frozenset
    later: dict


def names(source):
    """The names of one cell's source, in plain Python."""
    top = symtable.symtable(source, "cell", "exec")
    reads, writes, later = set(), set(), {}
    for symbol in top.get_symbols():
        if symbol.is_referenced():
            reads.add(symbol.get_name())
        if symbol.is_assigned() or symbol.is_imported():
            writes.add(symbol.get_name())
    for inner in top.get_children():
        used = _globals(inner)
        if inner.get_name() in writes and inner.get_type() == "function":
            later.setdefault(inner.get_name(), set()).update(used)
        else:  # a class body, a comprehension, a lambda: it may run at once
            reads |= used
    changed = set(_changed(ast.parse(source)))
    return Names(frozenset(reads | changed), frozenset(writes | changed), later)


def _globals(scope):
    """The global names that a function, and every scope inside it, reads."""
    own = {symbol.get_name() for symbol in scope.get_symbols() if symbol.is_global() and symbol.is_referenced()}
    return own.union(*map(_globals, scope.get_children()))


def _changed(tree):
    """The names of which a part is given, changed or deleted."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript | ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            of = node
            while isinstance(of, ast.Subscript | ast.Attribute):
                of = of.value
            if isinstance(of, ast.Name):
                yield of.id


def needs(sources):
    """For each cell the numbers of the cells that must run before it."""
    written_by, read_by, meaning = {}, {}, {}
    needed = []
    for number, source in enumerate(sources):
        cell = names(source)
        reads = _with_what_functions_read(cell.reads, meaning | cell.later)
        before = {written_by[name] for name in reads | cell.writes if name in written_by}
        before |= {reader for name in cell.writes for reader in read_by.get(name, ())}
        needed.append(before - {number})
        for name in reads:
            read_by.setdefault(name, set()).add(number)
        for name in cell.writes:
            written_by[name], read_by[name] = number, set()
            meaning.pop(name, None)
        meaning.update(cell.later)
    return needed


def _with_what_functions_read(read, meaning):
    found, new = set(), set(read)
    while new:
        found |= new
        new = {used for name in new for used in meaning.get(name, ())} - found
    return found


def last_first(needed):
    """An order of all the cells in which, of those that may be run, the one that stands last in the text comes next."""
    order, left = [], set(range(len(needed)))
    while left:
        order.append(max(number for number in left if needed[number] <= set(order)))
        left.discard(order[-1])
    return order


def turned(order):
    """How many pairs of cells stand the other way round."""
    return sum(first > second for place, first in enumerate(order) for second in order[place + 1:])


def order_of(notebook):
    """The order of a notebook's code cells that differs from the text's, and keeps to the rule."""
    return last_first(needs([notebooks.python_source(cell) for cell in notebooks.code_cells(notebook)]))

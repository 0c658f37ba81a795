"""Listings: cells that show a function of the library, verbatim.

A code cell whose metadata has `"listing": "scalebook.module:name"` holds that object's source, word for word. Several
names stand with commas between them (`"scalebook.moe:route,capacity"`; each may name its own module), a method is
`module:Class.method` (its indentation is taken off, so that the cell runs), a constant is named like a function. The
command

    python -m scalebook.book.listings            # rewrite every listing from the library
    python -m scalebook.book.listings --check    # change nothing; exit 1 when one differs

reads the library's files and imports none of them, so it needs no torch. A listing runs in the notebook like any other
cell: the names that its source uses must come from the notebook, and the command says which line is missing when they
do not. A name that is used as the source is run (a decorator, a default, a base class, an annotation) must be defined
in an earlier cell; a name used inside a function may also be defined in a later one, since it is looked up when called.
"""

import argparse
import ast
import builtins
import importlib.util
import symtable
import sys
import textwrap
from functools import cache
from pathlib import Path

from scalebook.book import notebooks

# What IPython puts into a notebook's namespace.
KERNEL_NAMES = {"display", "get_ipython", "In", "Out", "_", "__", "___", "__file__", "__name__"}


def sources(specification):
    """Return the source that a listing cell must hold.

    Raises ValueError that names the specification and what is wrong with it.

    >>> print(sources("scalebook.book.listings:main").splitlines()[0])
    def main(arguments=None):
    """
    return "\n\n\n".join(_source_of(module, name) for module, name in objects(specification))


def objects(specification):
    """Return the (module, name) pairs of a listing; a name without a module stands in the one before it.

    >>> objects("scalebook.book.listings:sources,main")
    [('scalebook.book.listings', 'sources'), ('scalebook.book.listings', 'main')]
    """
    found, module = [], ""
    for part in specification.split(","):
        before, colon, name = part.strip().rpartition(":")
        module = before if colon else module
        if not all(word.isidentifier() for word in [*module.split("."), *name.split(".")]):
            raise ValueError(f"listing = {specification!r} is not allowed; it must be 'package.module:name', "
                             "'package.module:Class.method', or several with commas between them")
        found.append((module, name))
    return found


def _source_of(module, name):
    text, node = _locate(module, name.split("."))
    lines = text.splitlines()
    first = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", []))])
    if isinstance(node, ast.Assign | ast.AnnAssign):
        while first > 1 and lines[first - 2].startswith("#"):
            first -= 1
    return textwrap.dedent("\n".join(lines[first - 1:node.end_lineno])).rstrip()


@cache
def _parsed(module):
    """Return (path, text, tree) of a module without importing it."""
    top, *parts = module.split(".")
    # find_spec of a submodule would import its package; of a top-level name it only looks.
    found = importlib.util.find_spec(top)
    for location in (found.submodule_search_locations or [] if found else []):
        folder = Path(location, *parts)
        for path in (folder / "__init__.py", folder.with_suffix(".py") if parts else folder / "__init__.py"):
            if path.is_file():
                text = path.read_text(encoding="utf-8")
                return str(path), text, ast.parse(text)
    raise ValueError(f"listing: no Python module {module!r}")


def _locate(module, parts):
    """Return (module's text, node) of a definition, following `from x import y` to where y is defined."""
    path, text, tree = _parsed(module)
    body = tree.body
    for depth, part in enumerate(parts):
        node = _definition(body, part)
        if depth == 0 and isinstance(node, ast.ImportFrom):
            original = next(alias.name for alias in node.names if (alias.asname or alias.name) == part)
            return _locate(_import_origin(module, path, node), [original, *parts[1:]])
        if node is None or isinstance(node, ast.Import):
            raise ValueError(f"listing: {module} defines no {'.'.join(parts[:depth + 1])!r}")
        body = getattr(node, "body", [])
    return text, node


def _definition(body, name):
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name == name:
            return node
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
            return node
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == name:
            return node
        if isinstance(node, ast.Import | ast.ImportFrom) and any(
                (alias.asname or alias.name) == name for alias in node.names):
            return node
    return None


def _import_origin(module, path, node):
    package = module if path.endswith("__init__.py") else module.rpartition(".")[0]
    return importlib.util.resolve_name("." * node.level + (node.module or ""), package)


def names_in(source):
    """Return three sets for a piece of code: the names it defines, those it needs at once, and those it needs later.

    >>> defined, at_once, later = names_in("def f(x=START):\\n    return helper(x)")
    >>> sorted(defined), sorted(at_once), sorted(later)
    (['f'], ['START'], ['helper'])
    """
    top = symtable.symtable(source, "cell", "exec")
    defined = {s.get_name() for s in top.get_symbols() if s.is_assigned() or s.is_imported() or s.is_namespace()}
    at_once = {s.get_name() for s in top.get_symbols() if s.is_referenced()} - defined
    later, pending = set(), list(top.get_children())
    while pending:
        table = pending.pop()
        pending.extend(table.get_children())
        found = {s.get_name() for s in table.get_symbols() if s.is_global() and s.is_referenced()}
        # A class body runs when it is defined, so it needs its names at once.
        (at_once if table.get_type() == "class" else later).update(found)
    return defined, at_once - defined, later - defined


def _import_line(modules, name):
    """Return the import that brings `name`, as the first of the listing's modules that has it does."""
    module = next((m for m in modules if _definition(_parsed(m)[2].body, name)), modules[0])
    path, _, tree = _parsed(module)
    node = _definition(tree.body, name)
    if isinstance(node, ast.Import):
        alias = next(a for a in node.names if (a.asname or a.name) == name)
        return f"import {alias.name}" + (f" as {alias.asname}" if alias.asname else "")
    if isinstance(node, ast.ImportFrom):
        alias = next(a for a in node.names if (a.asname or a.name) == name)
        return (f"from {_import_origin(module, path, node)} import {alias.name}"
                + (f" as {alias.asname}" if alias.asname else ""))
    return f"from {module} import {name}"


def listing_cells(notebook):
    """Return the cells that bear a listing; raise ValueError when one is not code or its value is not text."""
    found = [cell for cell in notebook.cells if "listing" in cell.metadata]
    for cell in found:
        if cell.cell_type != "code" or not isinstance(cell.metadata["listing"], str):
            raise ValueError(f"cell {cell.get('id')}: listing = {cell.metadata['listing']!r} is not allowed; it must "
                             "be text, on a code cell")
    return found


def missing_names(notebook):
    """Return one complaint for each name that a listing needs and the notebook does not define."""
    needs = {cell["id"]: names_in(notebooks.python_source(cell)) for cell in notebooks.code_cells(notebook)}
    everywhere = set().union(*(defined for defined, _, _ in needs.values()), KERNEL_NAMES, dir(builtins))
    so_far, complaints = KERNEL_NAMES | set(dir(builtins)), []
    for cell in notebooks.code_cells(notebook):
        defined, at_once, later = needs[cell["id"]]
        if "listing" in cell.metadata:
            modules = [module for module, _ in objects(cell.metadata["listing"])]
            for name in sorted((at_once - so_far) | (later - everywhere)):
                complaints.append(f"cell {cell['id']}: the listing {cell.metadata['listing']} uses {name!r}, which no "
                                  f"earlier cell defines; add to the setup cell: {_import_line(modules, name)}")
        so_far = so_far | defined
    return complaints


def sync(notebook):
    """Put every listing's source into its cell; return the ids of the cells that differed."""
    changed = []
    for cell in listing_cells(notebook):
        try:
            source = sources(cell.metadata["listing"])
        except ValueError as error:
            raise ValueError(f"cell {cell['id']}: {error}") from error
        if cell.source != source:
            cell.source = source
            changed.append(cell["id"])
    return changed


def main(arguments=None):
    """Rewrite or check the listings of the chapters; return the process's exit status."""
    parser = argparse.ArgumentParser(prog="python -m scalebook.book.listings", description=__doc__.split("\n")[0])
    parser.add_argument("chapters", nargs="*", help="chapters by name or path (default: all)")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when a listing differs")
    parser.add_argument("--folder", type=Path, default=notebooks.CHAPTERS, help="where the chapters lie")
    options = parser.parse_args(arguments)
    try:
        paths = notebooks.find(options.chapters, options.folder)
    except ValueError as error:
        parser.error(str(error))
    complaints = []
    for path in paths:
        notebook = notebooks.read(path)
        try:
            changed = sync(notebook)
        except ValueError as error:
            complaints.append(f"{path.name}: {error}")
            continue
        complaints += [f"{path.name}: {line}" for line in missing_names(notebook)]
        if options.check:
            complaints += [f"{path.name}: cell {cell}: the listing differs from the library; run "
                           "`python -m scalebook.book.listings`" for cell in changed]
        elif notebooks.write(path, notebook):
            print(f"{path.name}: rewrote {', '.join(changed) or 'the layout of the file'}")
    print("\n".join(complaints), file=sys.stderr, end="\n" if complaints else "")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())

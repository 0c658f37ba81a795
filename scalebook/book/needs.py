"""What a chapter needs beside the library: found in what it imports, so that no list of it can go stale.

Only the sources are read. Nothing is imported, so this works where PyTorch is not installed.
"""

import ast
from functools import cache
from pathlib import Path

TEXT, MODEL = "scalebook.texts", "scalebook.labs.language_model"


def imported(source, package=""):
    """The full names that Python source imports, anywhere in it; `package` is what relative imports start from.

    >>> sorted(imported("from . import b\\nimport torch.nn", "scalebook.a"))
    ['scalebook.a', 'scalebook.a.b', 'torch.nn']
    """
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")
            base = parents[: len(parents) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
    return found


@cache
def _imported_by(path, package):
    return imported(path.read_text(encoding="utf-8"), package)


def reached(sources, root):
    """The modules of the library in `root` that Python sources import, directly or through other modules."""
    waiting = {name for source in sources for name in imported(source)}
    seen = set()
    while waiting:
        name = waiting.pop()
        path = file_of(name, Path(root))
        if path is None or name in seen:
            continue
        seen.add(name)
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        waiting |= _imported_by(path, package) - seen
    return seen


def file_of(name, root):
    """Return the file of a module or package of the library in the folder `root`, or None for any other name.

    >>> file_of("scalebook.book.needs", Path(__file__).parents[2]).name
    'needs.py'
    """
    if name.split(".")[0] != "scalebook":
        return None
    path = root.joinpath(*name.split("."))
    for file in (path / "__init__.py", path.with_suffix(".py")):
        if file.is_file():
            return file
    return None

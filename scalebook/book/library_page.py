"""The directive that prints a part of the library from its docstrings: ```` ```{library} scalebook.pipeline ````.

The sources are read and not imported, so the page is the same where PyTorch is not installed. A package's public names
are those that its `__init__` offers, at once or lazily; a module's are its functions and classes without an underscore.
"""

import ast
import re
import textwrap
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from scalebook.book import needs

LIBRARY = Path(__file__).resolve().parents[1]
SPAN = re.compile(r"`([^`]+)`")


@dataclass(frozen=True)
class Entry:
    """A function or class: its name, how it is called, its docstring, and a class's public members."""

    name: str
    signature: str
    words: str
    members: tuple = ()


def entries(part):
    """Return (docstring, entries) of a module or package of the library, such as "scalebook.pipeline".

    Raises ValueError when there is none of that name, or a public name has no docstring.

    >>> words, found = entries("scalebook.ranks")
    >>> [entry.name for entry in found]
    ['RankError', 'RankTimeout', 'Traffic', 'count', 'device', 'launch', 'run']
    >>> found[4].signature
    'device() -> torch.device'
    """
    path = _file_of(part)
    tree = _tree(path)
    offered = _offered(tree) if path.name == "__init__.py" else {}
    if offered:
        found = [_offered_entry(path.parent / f"{module}.py", name, f"{part}.{module}")
                 for name, module in sorted(offered.items()) if not name.isupper()]
    else:
        found = [_entry(node, part, tree) for node in tree.body if _is_public(node)]
    return ast.get_docstring(tree), found


def _file_of(part):
    path = needs.file_of(part, LIBRARY.parent)
    if path is None:
        raise ValueError(f"part = {part!r} is not allowed; it must be a module of the library, such as "
                         "scalebook.pipeline")
    return path


@cache
def _parsed(path, changed):
    return ast.parse(path.read_text(encoding="utf-8"))


def _tree(path):
    return _parsed(path, path.stat().st_mtime_ns)


def _offered(tree):
    """The names that a package offers, each with the module of the package that holds it."""
    found, listed = {}, None
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {alias.name: node.module.rpartition(".")[2] for alias in node.names}
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            listed = ast.literal_eval(node.value)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            lazily = ast.literal_eval(node.value)
            found |= {name: module for module, names in lazily.items() for name in names}
            listed = [*(listed or []), *(name for names in lazily.values() for name in names)]
    return {name: module for name, module in found.items() if name in (listed or [])}


def _offered_entry(path, name, where):
    tree = _tree(path)
    return _entry(_definition(tree, name), where, tree)


def _definition(tree, name):
    for node in tree.body:
        if getattr(node, "name", None) == name:
            return node
    raise ValueError(f"no function or class {name!r} stands where the package says")


def _is_public(node):
    return isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_") and node.name != "main"


def _entry(node, where, tree):
    words = ast.get_docstring(node)
    if not words:
        raise ValueError(f"{where}.{node.name} has no docstring")
    members = () if isinstance(node, ast.FunctionDef) else tuple(
        _entry(member, f"{where}.{node.name}", tree) for member in node.body
        if isinstance(member, ast.FunctionDef) and not member.name.startswith("_"))
    made = _call_of_class(node, tree) if isinstance(node, ast.ClassDef) else _call_of_function(node)
    return Entry(node.name, made, words, members)


def _call_of_function(node):
    returns = ast.unparse(node.returns) if node.returns else ""
    if any("property" in ast.unparse(one) for one in node.decorator_list):
        return node.name + (f": {returns}" if returns else "")
    return f"{node.name}({_without_self(node)})" + (f" -> {returns}" if returns else "")


def _call_of_class(node, tree):
    """How an object is made: by its class's `__init__`, by its fields, or as one of the class that it comes from."""
    makes = [one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"]
    if makes:
        return f"{node.name}({_without_self(makes[0])})"
    fields = _fields(node, tree)
    if fields:
        return f"{node.name}({', '.join(fields)})"
    parent = _parent(node, tree)
    return _call_of_class(*parent).replace(parent[0].name, node.name, 1) if parent else node.name


def _fields(node, tree):
    """The fields of a record, those of the record that it extends first."""
    own = [ast.unparse(field) for field in node.body if isinstance(field, ast.AnnAssign)
           and "init=False" not in ast.unparse(field)]
    parent = _parent(node, tree) if own else None
    return [*(_fields(*parent) if parent else []), *own]


def _parent(node, tree):
    """The class of the library that a class comes from, with the tree of its module; or None."""
    for base in (one.id for one in node.bases if isinstance(one, ast.Name)):
        for other in tree.body:
            if isinstance(other, ast.ClassDef) and other.name == base:
                return other, tree
            if isinstance(other, ast.ImportFrom) and base in [one.name for one in other.names]:
                if not (other.module or "").startswith("scalebook."):
                    continue
                module = _tree(_file_of(other.module))
                return _definition(module, base), module
    return None


def _without_self(function):
    return re.sub(r"^self(, )?", "", ast.unparse(function.args))


def body(words):
    """A docstring as nodes: paragraphs, and examples as they would be typed."""
    found = []
    for block in re.split(r"\n\s*\n", words):
        if block.lstrip().startswith(">>>"):
            found.append(nodes.doctest_block(block, textwrap.dedent(block)))
        elif block.startswith("    "):
            found.append(nodes.literal_block(block, textwrap.dedent(block), language="text"))
        else:
            found += _paragraphs(block)
    return found


def _paragraphs(block):
    """The paragraph of a block, and the example that begins within it."""
    prose, arrow, example = block.partition("\n>>> ")
    paragraph = nodes.paragraph()
    for place, piece in enumerate(SPAN.split(" ".join(prose.split()))):
        paragraph += nodes.literal(text=piece) if place % 2 else nodes.Text(piece)
    return [paragraph, nodes.doctest_block(example, f">>> {example}")] if arrow else [paragraph]


class Library(SphinxDirective):
    """A section for each public name of a part of the library."""

    required_arguments = 1

    def run(self):
        """Return the part's docstring and its entries."""
        part = self.arguments[0]
        self.env.note_dependency(str(_file_of(part)))
        for path in _file_of(part).parent.glob("*.py"):
            self.env.note_dependency(str(path))
        try:
            words, found = entries(part)
        except ValueError as error:
            raise self.error(str(error)) from error
        listed = nodes.definition_list(classes=["library"])
        listed += [_item(entry, f"{part}.{entry.name}", part) for entry in found]
        return [*body(words), listed]


def _item(entry, identity, part=""):
    """An entry of a definition list, whose id is the full name."""
    prefix = [nodes.inline("", f"{part}.", classes=["library-part"])] if part else []
    term = nodes.term("", "", *prefix, nodes.literal(text=entry.signature), ids=[identity.replace(".", "-")])
    definition = nodes.definition("", *body(entry.words))
    if entry.members:
        inner = nodes.definition_list()
        inner += [_item(member, f"{identity}.{member.name}") for member in entry.members]
        definition += inner
    return nodes.definition_list_item("", term, definition)


def setup(app):
    """Connect the directive to Sphinx."""
    app.add_directive("library", Library)

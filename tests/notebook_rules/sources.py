"""Rules about what the cells say: source, comments, ids and tags."""

import ast
import re
import tokenize
import tomllib
from pathlib import Path

from tests.notebook_rules.common import calls, code_cells, comments_of, shows_explorer, tokens_of, tree_of, where

MEASURED = Path(__file__).parents[1] / "measured_cells.toml"
NEVER_INSTALLED = ("numpy", "torch", "ipywidgets")
SLUG = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*")
# As Jupyter (8 hex digits, or a UUID) and Colab (12 or so mixed letters) make them up.
RANDOM = re.compile(r"[0-9a-f]{8}|[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}|[0-9a-f-]{20,}")
WORKPLACE = re.compile(
    r"\bissues?\s*#?\d+|\bsessions?\b|\bagents?\b|\bworkplace\b|/work/|\bshared/|\bthe lead\b|\bthe brief\b"
    r"|\bTODO\b|\bFIXME\b|\bXXX\b|\b(?:authoring|design|style|readers)\.md\b", re.IGNORECASE)
PROSE = re.compile(r"/work/|\bshared/|\bTODO\b|\bFIXME\b|\b(?:authoring|design|style|readers)\.md\b|\blesson\.txt\b")
LISTING_LINES = 40


def no_cell_ends_with_semicolon(notebook, name=""):
    """No code cell ends with `;`: nbval runs cells without history, where it hides nothing. Assign to `_`."""
    blank = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    offences = []
    for cell in code_cells(notebook):
        last = [token.string for token in tokens_of(cell) if token.type not in blank][-1:]
        if last == [";"] or cell.source.rstrip().endswith(";"):
            offences.append(f"{where(cell)}: ends with `;`; assign to `_` instead")
    return offences


def ids_are_stable_names(notebook, name=""):
    """Every cell has its own id, a short name in lower case with hyphens, and not one that a program made up."""
    ids = [cell.get("id") for cell in notebook.cells]
    offences = []
    for number, found in enumerate(ids):
        if not found:
            offences.append(f"cell {number} has no id")
        elif ids.count(found) > 1 and ids.index(found) == number:
            offences.append(f"id {found!r} stands {ids.count(found)} times")
        elif RANDOM.fullmatch(found):
            offences.append(f"id {found!r} looks made up by a program; name what the cell does")
        elif not SLUG.fullmatch(found) or not 3 <= len(found) <= 64 or not re.search(r"[a-z]{3}", found):
            offences.append(f"id {found!r} is no name: 3 to 64 lower-case letters, digits and hyphens, with a word")
    return offences


def no_process_tricks(notebook, name=""):
    """No `%%writefile`, and no process spawned from a cell's function: workers live in `scalebook.labs`."""
    offences = []
    for cell in code_cells(notebook):
        if "%%writefile" in cell.source:
            offences.append(f"{where(cell)}: uses %%writefile")
        for node in ast.walk(tree_of(cell)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            module = (getattr(node, "module", None) or "") if isinstance(node, ast.ImportFrom) else ""
            if any("multiprocessing" in found for found in [module, *names]):
                offences.append(f"{where(cell)}: imports multiprocessing; use scalebook.ranks with a lab")
            if isinstance(node, ast.Attribute) and (node.attr == "multiprocessing" or ast.unparse(node).endswith(
                    ("mp.spawn", "multiprocessing.spawn", "os.fork"))):
                offences.append(f"{where(cell)}: {ast.unparse(node)} starts processes from a cell")
    return offences


def _is_private(name):
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__")) and name.strip("_") != ""


def no_internals_of_other_libraries(notebook, name=""):
    """No import of, and no attribute that is, a private name of another library (`torch.x._y`).

    Private names of `scalebook` may be imported where a listing needs them; `self._x` and `cls._x` are an object's own,
    and a listing is the library's own source.
    """
    offences = []
    for cell in code_cells(notebook):
        for node in ast.walk(tree_of(cell)):
            names = []
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] != "scalebook":
                names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
            elif isinstance(node, ast.Import):
                names = [part for alias in node.names if alias.name.partition(".")[0] != "scalebook"
                         for part in alias.name.split(".")]
            elif isinstance(node, ast.Attribute) and "listing" not in cell.metadata:
                own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls", "other")
                names = [] if own else [node.attr]
            offences += [f"{where(cell)}: {found!r} is internal to a library" for found in names if _is_private(found)]
    return offences


def no_text_that_differs_between_pythons(notebook, name=""):
    """`pydoc_data` is another text in every Python: no number may depend on it."""
    return [f"{where(cell)}: uses pydoc_data" for cell in code_cells(notebook) if "pydoc_data" in cell.source]


def setup_installs_nothing_importable(notebook, name=""):
    """Only the first code cell may install, only what cannot be imported, and never numpy, torch or ipywidgets."""
    offences = []
    for number, cell in enumerate(code_cells(notebook)):
        lines = [line for line in cell.source.splitlines() if re.search(r"\bpip\b.*\binstall\b", line)]
        if not lines:
            continue
        if number:
            offences.append(f"{where(cell)}: installs; only the first code cell does")
        if not all(line[0].isspace() for line in lines) or not re.search(
                r"find_spec|ImportError|ModuleNotFoundError", cell.source):
            offences.append(f"{where(cell)}: installs without asking whether the package can be imported")
        offences += [f"{where(cell)}: installs {package}" for package in NEVER_INSTALLED
                     if _installs(cell, lines, package)]
    return offences


def _installs(cell, lines, package):
    """Whether a package stands in a line that installs, or in a text that is not asked about with find_spec."""
    word = re.compile(rf"(?<![\w.-]){package}(?![\w.-])")
    if any(word.search(line) for line in lines):
        return True
    tree = tree_of(cell)
    asked = {id(argument) for call, called in calls(tree) if called in ("find_spec", "import_module")
             for argument in call.args}
    return any(isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in asked
               and re.match(rf"{package}(?![\w-])", node.value) for node in ast.walk(tree))


def widgets_are_plain(notebook, name=""):
    """No `Play`, no `icon=`, and no `$` in the text of a widget: each is known to break."""
    offences = []
    for cell in code_cells(notebook):
        for call, called in calls(tree_of(cell)):
            if called == "Play":
                offences.append(f"{where(cell)}: uses Play")
            for keyword in call.keywords:
                if keyword.arg == "icon":
                    offences.append(f"{where(cell)}: {called}(icon=...)")
                if keyword.arg in ("description", "tooltip", "description_tooltip", "placeholder", "options"):
                    written = [node.value for node in ast.walk(keyword.value) if isinstance(node, ast.Constant)]
                    if any(isinstance(text, str) and "$" in text for text in written):
                        offences.append(f"{where(cell)}: `$` in the {keyword.arg} of {called}")
    return offences


def interact_is_never_the_only_view(notebook, name=""):
    """A cell that calls `interact` has an explorer or a picture, which needs no kernel, within 2 code cells."""
    cells, offences = code_cells(notebook), []
    for number, cell in enumerate(cells):
        if not any(called in ("interact", "interactive", "interact_manual", "interactive_output")
                   for _, called in calls(tree_of(cell))):
            continue
        near = cells[max(0, number - 2):number + 3]
        if not any(shows_explorer(other) for other in near) and not any(
                "image/png" in output.get("data", {}) for other in near for output in other.outputs):
            offences.append(f"{where(cell)}: interact is the only view; put an explorer beside it")
    return offences


def comments_speak_of_the_book_alone(notebook, name=""):
    """No comment or text names how the book was made, or leaves work undone (TODO)."""
    offences = []
    for cell in notebook.cells:
        code = cell.cell_type == "code"
        comments = comments_of(cell) if code else re.findall(r"<!--.*?-->|^%[^\n]*$", cell.source, re.S | re.M)
        offences += [f"{where(cell)}: a comment says {match.group()!r}" for comment in comments
                     if (match := WORKPLACE.search(comment))]
        match = PROSE.search(cell.source)
        if match and not code:
            offences.append(f"{where(cell)}: the text says {match.group()!r}")
    return offences


def measured_cells():
    """The cells that may be tagged `nbval-ignore-output`: {chapter: {cell id: reason}}."""
    return tomllib.loads(MEASURED.read_text(encoding="utf-8"))


def ignored_outputs_are_measured(notebook, name="", listed=None):
    """`nbval-ignore-output` stands only on cells that assert and are listed with a reason; every entry is used.

    No other tag or comment of nbval stands anywhere: every other output must reproduce, and every cell must run.
    """
    listed = (measured_cells() if listed is None else listed).get(name, {})
    offences, used = [], set()
    for cell in code_cells(notebook):
        tags = cell.metadata.get("tags", [])
        if "nbval-ignore-output" in tags:
            used.add(cell.get("id"))
            if not any(isinstance(node, ast.Assert) for node in ast.walk(tree_of(cell))):
                offences.append(f"{where(cell)}: ignores its output and asserts nothing")
            if not str(listed.get(cell.get("id"), "")).strip():
                offences.append(f"{where(cell)}: ignores its output and has no reason in measured_cells.toml")
        offences += [f"{where(cell)}: has the tag {tag!r}" for tag in tags
                     if tag != "nbval-ignore-output" and (tag.startswith("nbval") or tag in ("raises-exception",
                                                                                            "skip-execution"))]
        offences += [f"{where(cell)}: has the comment {comment!r}" for comment in comments_of(cell)
                     if re.search(r"NBVAL_|PYTEST_VALIDATE", comment)]
    unused = sorted(set(listed) - used)
    return offences + [f"measured_cells.toml lists {name}.{cell}, which no tagged cell is" for cell in unused]


def listings_are_short(notebook, name=""):
    """A function in a listing has at most 40 lines without its docstring."""
    offences = []
    for cell in code_cells(notebook):
        if "listing" not in cell.metadata:
            continue
        for node in ast.walk(tree_of(cell)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = node.end_lineno - node.lineno + 1
                if ast.get_docstring(node) is not None:
                    lines -= node.body[0].end_lineno - node.body[0].lineno + 1
                if lines > LISTING_LINES:
                    offences.append(f"{where(cell)}: {node.name} has {lines} lines; the most is {LISTING_LINES}")
    return offences

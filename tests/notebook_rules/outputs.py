"""Rules about what is stored in a notebook: it must be the same at the next run, on the next machine."""

import re

from scalebook.book import execute
from tests.notebook_rules.common import code_cells, is_still, texts, where

MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*"
CHANGING = {
    "an address": r"\b0x[0-9a-fA-F]{6,}\b",
    "a path": r"(?<![\w.:/])/(?:tmp|home|root|work|usr|opt|var|mnt|content|Users|proc|dev)/[\w.-]+"
              r"|site-packages|dist-packages|ipykernel_\d+|[A-Z]:\\\\?Users",
    "a process number": r"\bpid\b\W{0,3}\d+|\bprocess (?:id )?\d{3,}\b|\bPID\b\W{0,3}\d+",
    "a clock time": r"(?<![\d.:])[0-2]?\d:[0-5]\d:[0-5]\d(?![\d:])",
    "a date": rf"\b(?:19|20)\d\d-[01]\d-[0-3]\d\b|\b\d{{1,2}} {MONTH} (?:19|20)\d\d\b"
              rf"|\b{MONTH} \d{{1,2}},? (?:19|20)\d\d\b",
}

# Numbers that are names: identifiers of papers, and versions (more than one point).
NAMES = re.compile(r"arXiv:\s?\d{4}\.\d{4,5}(?:v\d+)?|\b10\.\d{4,}/\S+|\b\d+\.\d+(?:\.\w+)+")
FLOAT = re.compile(r"(?<![\w.#])[-+]?(\d[\d,_]*\.\d*|\.\d+|\d+(?=[eE][-+]?\d))(?:[eE][-+]?\d+)?")
DIGITS = 4


def stores_nothing_that_changes(notebook, name=""):
    """No address, path, process number, clock time or date in any stored text, HTML included."""
    offences = []
    for cell in code_cells(notebook):
        for kind, text in texts(cell):
            for what, pattern in CHANGING.items():
                match = re.search(pattern, text)
                if match:
                    offences.append(f"{where(cell)}: {kind} output holds {what}: {match.group()!r}")
    return offences


def stores_no_stderr_and_no_error(notebook, name=""):
    """Nothing that was written to stderr, and no traceback, is stored."""
    offences = []
    for cell in code_cells(notebook):
        for output in cell.outputs:
            if output.output_type == "error":
                offences.append(f"{where(cell)}: stores an error: {output.ename}")
            if output.output_type == "stream" and output.name != "stdout":
                offences.append(f"{where(cell)}: stores {output.name}: {output.text[:60]!r}")
    return offences


def significant_digits(number):
    """How many digits a printed number shows, from its first that is not 0; zeros after it count, since they print.

    >>> [significant_digits(x) for x in ("0.00250", "33.0", "-1234.5", "1,234.5", "2.5e-07", "0.0")]
    [3, 3, 5, 5, 2, 1]
    """
    digits = re.sub(r"[eE].*", "", number)
    digits = re.sub(r"\D", "", digits).lstrip("0")
    return max(len(digits), 1)


def visible(kind, text):
    """What of an output a reader sees as text: an HTML output's text without scripts, styles, drawings and tags."""
    if kind != "text/html":
        return text
    text = re.sub(r"<(script|style|svg)\b.*?</\1>", " ", text, flags=re.S)
    return re.sub(r"<[^>]*>", " ", text)


def prints_at_most_four_digits(notebook, name=""):
    """A number with a point or an exponent shows at most 4 significant digits.

    Whole numbers are exact and may have any length. Versions (2.13.0), arXiv numbers and DOIs are names. Looked at:
    stdout, text/plain, and the visible text of text/html (not an explorer's data, which has 6 digits).
    """
    offences = []
    for cell in code_cells(notebook):
        for kind, text in texts(cell):
            if kind not in ("stdout", "text/plain", "text/html"):
                continue
            for match in FLOAT.finditer(NAMES.sub(" ", visible(kind, text))):
                if significant_digits(match.group()) > DIGITS:
                    offences.append(f"{where(cell)}: {kind} output prints {match.group().strip()!r}; "
                                    f"at most {DIGITS} significant digits are stored")
    return offences


def stores_no_widget_state(notebook, name=""):
    """No `metadata.widgets`, and no output that is a widget's view: it is dead without a kernel."""
    offences = ["the notebook's metadata has widgets"] if "widgets" in notebook.metadata else []
    for cell in code_cells(notebook):
        for output in cell.outputs:
            if any("jupyter.widget" in kind for kind in output.get("data", {})):
                offences.append(f"{where(cell)}: stores the view of a widget")
    return offences


def is_executed_in_order(notebook, name=""):
    """Every code cell with source has been executed, 1, 2, 3 in order: `make execute` ran the whole chapter."""
    offences, expected = [], 0
    for cell in code_cells(notebook):
        if not cell.source.strip():
            offences.append(f"{where(cell)}: is empty")
            continue
        expected += 1
        if cell.execution_count != expected:
            offences.append(f"{where(cell)}: execution_count is {cell.execution_count}, not {expected}; "
                            "run `make execute`")
    return offences


def metadata_is_normalised(notebook, name=""):
    """Times of execution, cell states and the patch release of Python are not stored."""
    offences = []
    for key, expected in (("kernelspec", execute.KERNELSPEC), ("language_info", execute.LANGUAGE_INFO)):
        if notebook.metadata.get(key) != expected:
            offences.append(f"metadata.{key} is not what `make execute` writes")
    for cell in notebook.cells:
        for key in ("execution", "ExecuteTime", "collapsed", "scrolled"):
            if key in cell.metadata:
                offences.append(f"{where(cell)}: metadata has {key!r}")
    return offences


def _is_description(text):
    return isinstance(text, str) and len(text.strip()) >= 20 and not text.lstrip().startswith("<")


def images_have_alt_text(notebook, name=""):
    """Each picture says in words what it shows (at least 20 characters).

    An explorer's still: its text/plain. A cell that shows another picture: `mystnb.image.alt` in the cell's metadata,
    and one such picture a cell, since it describes one. Markdown images and `<img>`: their alt text.
    """
    offences = []
    for cell in code_cells(notebook):
        pictures = [o for o in cell.outputs if any(k.startswith("image/") for k in o.get("data", {}))]
        for output in filter(is_still, pictures):
            if not _is_description(output.data.get("text/plain")):
                offences.append(f"{where(cell)}: the explorer's still has no alt text")
        others = [output for output in pictures if not is_still(output)]
        if others and not _is_description(cell.metadata.get("mystnb", {}).get("image", {}).get("alt")):
            offences.append(f"{where(cell)}: shows a picture without mystnb.image.alt in the cell's metadata")
        if len(others) > 1:
            offences.append(f"{where(cell)}: shows {len(others)} pictures, and its alt text can describe one")
        for kind, text in texts(cell):
            if kind == "text/html" and re.search(r"<img\b(?![^>]*\balt=\"[^\"]{20,})", text):
                offences.append(f"{where(cell)}: an <img> in its output has no alt text")
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            offences += [f"{where(cell)}: {what}" for what in _undescribed_markdown(cell.source)]
    return offences


def _undescribed_markdown(text):
    for match in re.finditer(r"!\[([^\]]*)\]\(", text):
        if not _is_description(match.group(1)):
            yield f"the image {match.group()!r} has no alt text"
    for match in re.finditer(r"^[`:]{3,}\{(?:figure|image)\}(.*?)^[`:]{3,}\s*$", text, re.M | re.S):
        if not re.search(r"^:alt:\s*.{20,}", match.group(1), re.M):
            yield "a figure directive has no :alt:"



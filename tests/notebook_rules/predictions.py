"""Rules about predictions: each has one right answer, computed, reasons for the others, and does not give it away."""

import ast
import re

from tests.notebook_rules.common import calls, code_cells, texts, tree_of, where

EXPLORER = re.compile(r'<figure[^>]*\bid="explorer-([^"]*)"')
GROUP = re.compile(r'<div class="prediction" id="predict-([a-z0-9-]+)"')
CHOICE = re.compile(
    r'<details class="prediction-choice" data-right="(true|false)"><summary>(.+?)</summary>'
    r"<p><strong>(.+?)</strong> (.+?)</p></details>", re.S)
WRONG_LEAST = 2
# The cell's code holds the answers: the page folds it, JupyterLab hides it, Colab shows a form in its place.
HIDDEN = {"tags": ["hide-input"], "jupyter": {"source_hidden": True}, "cellView": "form"}


def shown_in(cell):
    """The names of the predictions that a cell shows."""
    return [name for kind, text in texts(cell) if kind == "text/html" for name in GROUP.findall(text)]


def asked_in(cell):
    """The calls of `predict` in a cell's code; a method of this name is something else."""
    return [call for call, _ in calls(tree_of(cell)) if isinstance(call.func, ast.Name) and call.func.id == "predict"]


def predictions_are_computed_and_hidden(notebook, name=""):
    """A cell that calls `predict` shows one prediction, whose right answer it computes, and hides its code.

    One choice is right, at least two are wrong, and each has its reason; no name stands twice.
    """
    offences, names = [], []
    for cell in code_cells(notebook):
        found = shown_in(cell)
        names += found
        asked = asked_in(cell)
        if not found and not asked:
            continue
        if len(found) != 1 or len(asked) != 1:
            offences.append(f"{where(cell)}: calls predict {len(asked)} times and shows {len(found)} predictions; each "
                            "cell has one")
            continue
        offences += [f"{where(cell)}: {what}" for what in (*_key(asked[0]), *_choices(cell), *_cover(cell))]
    return offences + [f"the prediction {found!r} stands twice" for found in sorted({n for n in names
                                                                                      if names.count(n) > 1})]


def explorers_have_a_prediction(notebook, name=""):
    """Between an explorer and the one above it stands a prediction of its name."""
    offences, asked = [], []
    for cell in code_cells(notebook):
        asked += shown_in(cell)
        explorers = [shown for kind, text in texts(cell) if kind == "text/html" for shown in EXPLORER.findall(text)]
        offences += [f"{where(cell)}: no prediction {shown!r} before the explorer of that name"
                     for shown in explorers if shown not in asked]
        asked = [] if explorers else asked
    return offences


def _key(call):
    right = next((keyword.value for keyword in call.keywords if keyword.arg == "right"), None)
    if right is None or not any(isinstance(node, ast.Name) for node in ast.walk(right)):
        yield "right is written down and not computed"


def _choices(cell):
    html = "".join(text for kind, text in texts(cell) if kind == "text/html")
    choices = CHOICE.findall(html)
    right = [one for one in choices if one[0] == "true"]
    if len(choices) != html.count("<details") or len(right) != 1 or len(choices) - len(right) < WRONG_LEAST:
        yield (f"{len(right)} choices are right and {len(choices) - len(right)} wrong; one must be right and at least "
               f"{WRONG_LEAST} wrong, each with its reason")
    if any((verdict == "Right.") != (key == "true") for key, _, verdict, _ in choices):
        yield "a verdict contradicts its key"


def _cover(cell):
    if not cell["id"].startswith("predict-"):
        yield "shows a prediction; the cell's id must begin with 'predict-'"
    for key, value in HIDDEN.items():
        if cell.metadata.get(key) != value:
            yield f"its code holds the answers and is not hidden: metadata.{key} must be {value!r}"

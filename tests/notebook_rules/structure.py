"""Rules about how a chapter is built: its sections, explorers, exercises and directives."""

import ast
import itertools
import re

from tests.notebook_rules.common import calls, headings, section, shows_explorer, tree_of, where

SECTIONS = ("The question", "Derive", "Build", "Validate", "Explore", "The trap", "In the wild", "History",
            "Exercises", "In one breath")
EXPLORERS = {"01_sparse_moe": 5, "02_quantization": 5, "03_tensor_parallelism": 4, "04_pipeline_parallelism": 4,
             "05_zero": 4, "06_3d_parallelism": 5}
EXPLORERS_LEAST = 3
EXERCISES_LEAST = 6
CHECKED_LEAST = 2
# A page before the chapters is short and has sections of its own: one explorer, half of the exercises.
FRONT = {"00_collectives": ("The question", "What each does", "The ring", "What it costs", "Measured here, and fitted",
                            "Explore", "Exercises", "In one breath")}


def sections_stand_in_order(notebook, name=""):
    """The level-2 headings are these ten, in this order; each may go on after a colon ("Derive: two measures")."""
    found = [text for _, text in headings(notebook)]
    named = [text.partition(":")[0].strip() for text in found]
    sections = FRONT.get(name, SECTIONS)
    offences = [f"section {text!r} is not one of {', '.join(sections)}"
                for text, short in zip(found, named, strict=True) if short not in sections]
    offences += [f"section {wanted!r} is missing" for wanted in sections if wanted not in named]
    known = [short for short in named if short in sections]
    if not offences and known != list(sections):
        offences.append(f"the sections stand as {', '.join(known)}; the order is {', '.join(sections)}")
    titles = headings(notebook, level=1)
    if len(titles) != 1:
        offences.append(f"there are {len(titles)} level-1 headings; a chapter has one title")
    return offences


def explorers_have_prediction_and_notice(notebook, name=""):
    """There are enough explorers, each after "Before you move it" and before "What to notice", with its own id."""
    at = [index for index, cell in enumerate(notebook.cells) if cell.cell_type == "code" and shows_explorer(cell)]
    least = 1 if name in FRONT else EXPLORERS.get(name, EXPLORERS_LEAST)
    offences = [] if len(at) >= least else [f"there are {len(at)} explorers; a chapter has at least {least}"]
    ids = [found for index in at for output in notebook.cells[index].outputs
           for found in re.findall(r'<figure[^>]*\bid="(explorer-[^"]*)"', output.get("data", {}).get("text/html", ""))]
    offences += [f"explorer id {found!r} stands twice" for found in sorted({i for i in ids if ids.count(i) > 1})]
    if len(ids) != len(at):
        offences.append(f"{len(at)} cells show {len(ids)} explorers; each shows one, with an id")
    bounds = [-1, *at, len(notebook.cells)]
    between = [_text(notebook, start + 1, end) for start, end in itertools.pairwise(bounds)]
    for number, index in enumerate(at):
        before, after = between[number], between[number + 1]
        # Between two explorers stands first what to notice in the one above, then the prediction for the one below.
        if number:
            before = before.partition("what to notice")[2]
        if "before you move it" not in before:
            offences.append(f"{where(notebook.cells[index])}: no \"Before you move it\" before the explorer")
        if "what to notice" not in after.partition("before you move it")[0]:
            offences.append(f"{where(notebook.cells[index])}: no \"What to notice\" after the explorer")
    return offences


def _text(notebook, start, end):
    return "\n".join(cell.source for cell in notebook.cells[start:end] if cell.cell_type == "markdown").lower()


def exercises_have_solutions(notebook, name=""):
    """At least six exercises with a label, each with a folded solution that has a code cell; two are checked.

    An exercise is `{exercise}` or `{exercise-start}` with `:label: x`. Its solution is gated: a Markdown cell with
    `{solution-start} x` and `:class: dropdown`, its cells, and a cell with `{solution-end}`. A cell that tells the
    reader whether the answer is right, and for usual wrong answers why not, calls `exercises.check(..., wrong=...)`.
    """
    cells = section(notebook, "Exercises")
    prose = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    labels = [match.group(2) for match in re.finditer(
        r"^[`:]{3,}\{exercise(-start)?\}[^\n]*\n(?::(?!label)[^\n]*\n)*:label:\s*(\S+)", prose, re.M)]
    offences = []
    least = EXERCISES_LEAST // 2 if name in FRONT else EXERCISES_LEAST
    if len(set(labels)) < least:
        offences.append(f"there are {len(set(labels))} labelled exercises; a chapter has at least {least}")
    solved, opened, has_code = set(), None, False
    for cell in cells:
        if cell.cell_type == "code":
            has_code = True
            continue
        start = re.search(r"^[`:]{3,}\{solution-start\}\s*(\S+)", cell.source, re.M)
        end = re.search(r"^[`:]{3,}\{solution-end\}", cell.source, re.M)
        if start and opened:
            offences.append(f"{where(cell)}: a solution starts inside the one of {opened!r}")
        if start and not re.search(r"^:class:.*\bdropdown\b", cell.source, re.M):
            offences.append(f"{where(cell)}: the solution of {start.group(1)!r} is not folded (`:class: dropdown`)")
        if start:
            opened, has_code = start.group(1), False
        if end and not opened:
            offences.append(f"{where(cell)}: a solution ends that has not started")
        elif end:
            solved.add(opened)
            if not has_code:
                offences.append(f"{where(cell)}: the solution of {opened!r} has no code cell")
            opened = None
    if opened:
        offences.append(f"the solution of {opened!r} does not end")
    offences += [f"exercise {label!r} has no solution" for label in labels if label not in solved]
    offences += [f"the solution of {label!r} has no exercise" for label in sorted(solved - set(labels))]
    checks = [cell for cell in cells if cell.cell_type == "code" and any(
        called == "check" and any(keyword.arg == "wrong" for keyword in call.keywords)
        for call, called in calls(tree_of(cell)))]
    if len(checks) < CHECKED_LEAST:
        offences.append(f"{len(checks)} cells check an answer (exercises.check(..., wrong=...)); at least "
                        f"{CHECKED_LEAST} do")
    return offences


def code_is_not_nested(notebook, name=""):
    """No directive holds a code cell, and every fence that a Markdown cell opens is closed in it."""
    offences = []
    for cell in notebook.cells:
        if cell.cell_type != "markdown":
            continue
        if re.search(r"^\s*[`:~]{3,}\{code-cell\}", cell.source, re.M):
            offences.append(f"{where(cell)}: nests a {{code-cell}}; use solution-start and solution-end")
        opened = open_fences(cell.source)
        if opened:
            offences.append(f"{where(cell)}: opens {opened[-1]!r} and does not close it")
    return offences


def open_fences(text):
    """The fences (``` or :::) still open at the end of a text, outermost first."""
    stack = []
    for line in text.splitlines():
        match = re.match(r"\s*(`{3,}|:{3,}|~{3,})(.*)$", line)
        if not match:
            continue
        marks, rest = match.groups()
        inside_code = stack and stack[-1][0] in "`~" and "{" not in stack[-1]
        closes = stack and not rest.strip() and marks[0] == stack[-1][0] and len(marks) >= len(
            re.match(r"[`:~]+", stack[-1]).group())
        if closes:
            stack.pop()
        elif (not inside_code and rest.strip()) or not stack:
            stack.append(marks + rest)
    return stack


def derivation_and_validation_assert(notebook, name=""):
    """Derive and Validate, or what stands in their place on a page before the chapters, hold an assert."""
    offences = []
    for title in FRONT[name][1:4] if name in FRONT else ("Derive", "Validate"):
        found = [cell for cell in section(notebook, title) if cell.cell_type == "code"]
        if not any(isinstance(node, ast.Assert) for cell in found for node in ast.walk(tree_of(cell))):
            offences.append(f"section {title!r} has no assert")
    return offences



"""The page of exercises, made from the notebooks: `{exercise-list}` prints a table for each chapter.

An exercise's title says how long it takes where that is not some minutes: "One line", "Half an hour: cut the tails".
An exercise is checked when a cell that calls `exercises.check` follows it.
"""

import re
from dataclasses import dataclass

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

from scalebook.book import cells, notebooks

TIMES = ("One line", "Five minutes", "Some minutes", "Ten minutes", "Quarter of an hour", "Half an hour")
USUAL = "Some minutes"
TITLE = re.compile(rf"({'|'.join(TIMES)})(?::\s*(.+))?$")
EXERCISE = re.compile(r"^[`:]{3,}\{exercise\}[ ]*(?P<title>[^\n]*)\n(?P<options>(?::[^\n]*\n)*)\n*"
                      r"(?P<text>.*?)\n[`:]{3,}", re.S)


@dataclass(frozen=True)
class Exercise:
    """One exercise: its chapter, its cell, what it asks, how long it takes, whether a cell checks the answer."""

    chapter: int
    number: int
    cell: str
    label: str
    title: str
    question: str
    time: str
    checked: bool


def exercises(path, before=0):
    """Return the exercises of a notebook in their order; `before` of them stand in the chapters before it.

    >>> found = exercises(cells.path_of(5), before=30)
    >>> found[0].number, found[0].time, found[0].checked, found[-1].title
    (31, 'One line', True, 'A server, or all servers')
    """
    found = []
    listed = cells.read(path)
    for at, cell in enumerate(listed):
        match = EXERCISE.match(cells.text_of(cell)) if cell["cell_type"] == "markdown" else None
        if match:
            time, title = _time(match["title"].strip())
            found.append(Exercise(cells.number_of(path), before + len(found) + 1, cell["id"],
                                  re.search(r":label:\s*(\S+)", match["options"])[1], title,
                                  _opening(match["text"]), time, _is_checked(listed[at + 1:])))
    return found


def of_all_chapters(folder=notebooks.CHAPTERS):
    """Return the exercises of each notebook: path to list, numbered through the book as its pages number them."""
    found, before = {}, 0
    for path in notebooks.chapters(folder):
        found[path] = exercises(path, before)
        before += len(found[path])
    return found


def _time(title):
    match = TITLE.match(title)
    if not match:
        return USUAL, title
    words = match[2] or title
    return match[1], words[0].upper() + words[1:]


def _opening(text):
    """The sentences of a text up to its first question, or as many as make a line or two."""
    sentences = re.split(r"(?<=[.?!])(?<!eq\.)\s+(?=[A-Z$\"0-9(*])", " ".join(text.split()))
    found = ""
    for sentence in sentences:
        whole = found.count("$") % 2 == 0  # not inside of mathematics
        if found and whole and (found.endswith("?") or len(found) + len(sentence) > 420):
            break
        found = f"{found} {sentence}".strip()
    return found


def _is_checked(following):
    after = following[0] if following else {"cell_type": "markdown"}
    return after["cell_type"] == "code" and "exercises.check(" in cells.text_of(after)


def _table(path, found):
    lines = ["| No. | Exercise | Takes | Checked |", "|---|---|---|---|"]
    for each in sorted(found, key=lambda exercise: TIMES.index(exercise.time)):
        question = each.question.replace("|", r"\|")
        title = f"Exercise {each.number}" if each.title == each.time else each.title
        link = f"[{title}](/chapters/{path.name}#{cells.PREFIX}{each.cell})"
        lines.append(f"| {each.number} | {link}: {question} | {each.time.lower()} | "
                     f"{'yes' if each.checked else ''} |")
    return lines


class ExerciseList(SphinxDirective):
    """A section for each chapter with the table of its exercises, the shortest first."""

    def run(self):
        """Return the sections."""
        found = []
        for path, listed in of_all_chapters().items():
            self.env.note_dependency(str(path))
            section = nodes.section(ids=[f"exercises-{path.stem}"])
            section += nodes.title("", cells.title_of(path))
            self.state.nested_parse(StringList(_table(path, listed), source=str(path)), self.content_offset, section)
            found.append(section)
        return found


def setup(app):
    """Register the directive."""
    app.add_directive("exercise-list", ExerciseList)

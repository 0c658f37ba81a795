"""The numbers of the book's equations, read from the chapters' text.

A displayed equation that the text names has a label, `$$ ... $$ (eq-name)`, which is one of the whole book; the role
{eq}`eq-name` names it. The n-th labelled equation of chapter 4 is number 4.n. The build numbers what it has parsed, and
the single-file notebooks number by this module: the rule is the same function, `number`.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from scalebook.book import cells, notebooks

# A displayed equation with its label, which ends the line.
LABELLED = r"\$\$(?P<tex>(?:(?!\$\$).)*)\$\$[ ]*\((?P<label>[^()$\s]+)\)(?=[ ]*(?:\n|\Z))"
DIRECTIVE = r"(?m:^)[`:~]{3,}\{math\}[^\n]*\n(?:[ ]*:(?!label:)[^\n]*\n)*[ ]*:label:[ ]*(?P<named>\S+)"
LABEL = re.compile(f"{LABELLED}|{DIRECTIVE}", re.DOTALL)
REFERENCE = re.compile(r"\{eq\}`([^`]+)`")


@dataclass(frozen=True)
class Equation:
    """A labelled equation: its number, as the pages print it, and the chapter that it stands in."""

    number: str
    chapter: Path


def number(docname, count):
    """Return the number of a page's equation, the `count`-th of those that have a label.

    >>> number("chapters/04_pipeline_parallelism", 2), number("chapters/notation", 2)
    ('4.2', '2')
    """
    chapter = re.match(r"(\d+)_", docname.rsplit("/", 1)[-1])
    return f"{int(chapter[1])}.{count}" if chapter else str(count)


def labels(text):
    r"""Return the labels of a Markdown text's equations, in order.

    >>> labels("$$a$$\n\n$$b\\\\c$$ (eq-b)\n\n```{math}\n:label: eq-d\n\nd\n```")
    ['eq-b', 'eq-d']
    """
    return [found["label"] or found["named"] for found in LABEL.finditer(text)]


def of_all_chapters(folder=notebooks.CHAPTERS):
    """Return the labelled equations of all chapters, label to `Equation`; ValueError for a label that stands twice."""
    found = {}
    for path in notebooks.chapters(folder):
        texts = [cells.text_of(cell) for cell in cells.read(path) if cell["cell_type"] == "markdown"]
        for count, label in enumerate((label for text in texts for label in labels(text)), 1):
            if label in found:
                raise ValueError(f"the label {label!r} stands in {found[label].chapter.name} and again in {path.name}; "
                                 "an equation's label is its own in the whole book")
            found[label] = Equation(number(path.stem, count), path)
    return found

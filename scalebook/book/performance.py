"""The directive `{performance}`: the stored figures of `make bench` as tables, with their date and machine."""

import json
from itertools import groupby
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import Directive

from scalebook.book import notation

STORED = Path(__file__).resolve().parents[1] / "data" / "performance.json"
HEADINGS = ("What", "Measured", "Beside it", "Measured", "Ratio", "At most")


def setup(app):
    """Connect the directive to Sphinx."""
    app.add_directive("performance", Performance)


def digits(value):
    """A figure with three digits, in words that stay short.

    >>> digits(0.001234), digits(12345.6), digits(0), digits(16.67)
    ('0.00123', '12,300', '0', '16.7')
    """
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 100 else f"{rounded:.3g}"


def cells(row):
    """A stored row as the six texts of a table's row; a target that is missed says so.

    >>> row = {"what": "a", "ours": 3, "beside": "b", "other": 2, "unit": "s", "target": 1}
    >>> cells(row)
    ('a', '3 s', 'b', '2 s', '1.5', '1, missed')
    """
    ratio, target = row["ours"] / row["other"], row["target"]
    goal = f"{digits(target)}{', missed' if ratio > target else ''}" if target else ""
    ours, other = (f"{digits(row[side])} {row['unit']}".strip() for side in ("ours", "other"))
    return (row["what"], ours, row["beside"], other, digits(ratio), goal)


class Performance(Directive):
    """A table for the subject that the argument names."""

    required_arguments = 1

    def run(self):
        """Return the date and machine as a paragraph, and the table."""
        self.state.document.settings.env.note_dependency(str(STORED))
        stored = json.loads(STORED.read_text(encoding="utf-8"))["rows"]
        rows = [row for row in stored if row["subject"] == self.arguments[0]]
        if not rows:
            known = ", ".join(subject for subject, _ in groupby(row["subject"] for row in stored))
            raise self.error(f"performance: subject {self.arguments[0]!r} is not allowed; measured are {known}")
        when = nodes.paragraph(text=f"Measured on {rows[0]['date']}: {rows[0]['machine']}.")
        return [when, notation.table(HEADINGS, [notation.words(*cells(row)) for row in rows])]

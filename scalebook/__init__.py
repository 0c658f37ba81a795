"""The library behind the book: every formula, mechanism and measurement that its chapters show.

One module per chapter (`pipeline`, ...), plus the few that serve all of them: `formulas` (every equation, with
its units and source), `published` (the figures of other people, with theirs), `ranks` (run a function on real
processes and count what they send) and `explorer` (sliders that need no kernel).
"""

__version__ = "0.1.0"

"""The chart of the page on collectives. Its signals bear the names of its controls.

`times` draws what each collective costs: `ranks`, `size` in bytes and `link`, one of LINKS.
"""

from scalebook.charts.collectives.times import LINKS, RANKS, SIZES, times_chart

__all__ = ["LINKS", "RANKS", "SIZES", "times_chart"]

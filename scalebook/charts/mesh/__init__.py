"""The chart of chapter 6 on the grid of ranks: `cube_chart` draws it, and the groups of one rank.

Signals: `tp`, `pp` and `dp` ranks, `order` (of `cube.ORDERS`) and `rank`.
"""

from scalebook.charts.mesh.cube import cube_chart

__all__ = ["cube_chart"]

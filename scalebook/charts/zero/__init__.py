"""The charts of chapter 5. Each function returns an Altair chart whose signals bear the names of its controls.

`memory` draws what a rank keeps and the largest model that fits; `step` what a step sends and how long that takes;
`life` a step of stage 3 in time. Signals: `billions` of parameters, `N` ranks, `M` micro-batches in a step, `recipe` of
`scalebook.formulas.zero.recipes()`, and those that a function names.
"""

from scalebook.charts.zero.life import life_chart
from scalebook.charts.zero.memory import largest_chart, memory_chart
from scalebook.charts.zero.step import step_chart

__all__ = ["largest_chart", "life_chart", "memory_chart", "step_chart"]

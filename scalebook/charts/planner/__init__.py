"""The charts of chapter 6 on plans. Each function returns an Altair chart whose signals bear the names of its controls.

`memory_chart` draws what a GPU holds, `time_chart` what a step takes, `table_chart` the planner's best layouts, and
`scaling_chart` how well more GPUs are used. Signals: `tp`, `pp` and `dp` ranks, and those that a function names. Models
are `expressions.MODELS`, machines `expressions.GPUS`; the table has its own (`table.GRID`).
"""

from scalebook.charts.planner.memory import memory_chart
from scalebook.charts.planner.scaling import scaling_chart
from scalebook.charts.planner.table import table_chart
from scalebook.charts.planner.time import time_chart

__all__ = ["memory_chart", "scaling_chart", "table_chart", "time_chart"]

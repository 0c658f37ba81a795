"""The charts of chapter 1. Each function returns an Altair chart whose signals bear the names of its controls.

`cost` draws what a mixture of experts stores, multiplies and reads; `routing` what its gate decides; `balance` how a
router spreads the tokens as it is trained. Signals: `experts` in a layer (E is Vega's own), `K` experts for each token,
`F` width of an expert, and those that a function names.
"""

from scalebook.charts.moe.balance import balance_chart, balance_records
from scalebook.charts.moe.cost import NAMES, budget_chart, distinct_chart, presets_chart
from scalebook.charts.moe.routing import capacity_chart, token_chart

__all__ = ["NAMES", "balance_chart", "balance_records", "budget_chart", "capacity_chart", "distinct_chart",
           "presets_chart", "token_chart"]

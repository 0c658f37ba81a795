"""The charts of chapter 2. Each function returns an Altair chart whose signals bear the names of its controls.

`grid` rounds a row of weights; `ellipse` draws the surgeon's step for two; `alpha` searches AWQ's scale for a layer;
`measured` shows a real model's perplexity; `fit` puts models beside cards. Signals: `bits` of a code, `size` of a group
("group" is Vega's own word), and those that a function names.
"""

from scalebook.charts.quantization.alpha import alpha_chart
from scalebook.charts.quantization.ellipse import ellipse_chart
from scalebook.charts.quantization.fit import fit_chart
from scalebook.charts.quantization.grid import grid_chart
from scalebook.charts.quantization.measured import measured_chart

__all__ = ["alpha_chart", "ellipse_chart", "fit_chart", "grid_chart", "measured_chart"]

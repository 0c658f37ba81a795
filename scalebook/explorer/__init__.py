"""Sliders that work with a kernel and without one, and the questions that come before them.

`explore` ties ipywidgets controls to the signals of one Vega chart. With a kernel it shows the widgets themselves,
each linked to the chart in the browser; under `SCALEBOOK_STATIC=1` it writes the same chart as a figure with native
inputs, which the page's script brings to life with no kernel, server or network. `predict` asks what the chart will
show, and tells right from wrong by the value that the chart's formula computes. Nothing here knows what the charts are
about.
"""

from scalebook.explorer.explore import Explorer, explore
from scalebook.explorer.grids import grid, pack, unpack_expression
from scalebook.explorer.prediction import Prediction, predict

__all__ = ["Explorer", "Prediction", "explore", "grid", "pack", "predict", "unpack_expression"]

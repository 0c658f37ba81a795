"""Sliders that work with a kernel and without one.

`explore` ties ipywidgets controls to the signals of one Vega chart. With a kernel it shows the widgets themselves,
each linked to the chart in the browser; under `SCALEBOOK_STATIC=1` it writes the same chart as a figure with native
inputs, which the page's script brings to life with no kernel, server or network. Nothing here knows what the charts
are about.
"""

from scalebook.explorer.explore import Explorer, explore
from scalebook.explorer.grids import grid, pack, unpack_expression

__all__ = ["Explorer", "explore", "grid", "pack", "unpack_expression"]

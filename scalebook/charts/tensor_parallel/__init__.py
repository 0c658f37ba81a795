"""The charts of chapter 3. Each function returns an Altair chart whose signals bear the names of its controls.

`race` sets a layer's messages against its work; `kept` shows the activations by technique; `slices` which rank holds
what of a matrix; `messages` counts collectives and bytes. Signals: `t` tensor-parallel ranks, `b` samples of a
micro-batch, `s` positions, `h` width, and those that a function names.
"""

from scalebook.charts.tensor_parallel.kept import SHAPES, kept_chart
from scalebook.charts.tensor_parallel.messages import MEASURES, MODELS, messages_chart
from scalebook.charts.tensor_parallel.race import LINKS, race_chart
from scalebook.charts.tensor_parallel.slices import MATRICES, slices_chart

__all__ = ["LINKS", "MATRICES", "MEASURES", "MODELS", "SHAPES", "kept_chart", "messages_chart", "race_chart",
           "slices_chart"]

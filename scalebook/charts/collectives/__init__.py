"""The charts of the page on collectives. Their signals bear the names of their controls.

- `ring` draws what each rank holds after each step of an all-reduce: `ranks` and `step`;
- `times` draws what each collective costs: `ranks`, `size` in bytes and `link`, one of LINKS;
- `chunks` draws what a broadcast costs, against the chunks it is cut into: `ranks`, `size` and `link`.
"""

from scalebook.charts.collectives.chunks import CHUNKS, chunks_chart
from scalebook.charts.collectives.ring import MOST_STEPS, RING, ring_chart, ring_sums
from scalebook.charts.collectives.times import LINKS, RANKS, SIZES, times_chart

__all__ = ["CHUNKS", "LINKS", "MOST_STEPS", "RANKS", "RING", "SIZES", "chunks_chart", "ring_chart", "ring_sums",
           "times_chart"]

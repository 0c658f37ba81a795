"""What each explorer must draw, computed by Python: one oracle an explorer, one module a chapter.

For authors. An oracle is a function of the controls' values, by name, that returns what the chart shows at them:

    @oracle("bubble")                       # the explorer's name: its figure is #explorer-bubble
    def bubble(P, M):
        curve = [{"x": m, "y": formulas.bubble_overhead(P=P, M=m), "color": "overhead"} for m in range(1, 129)]
        return {"curve": curve,             # the mark's name: alt.Chart(..., name="curve")
                "words": [{"text": f"M = {M}"}]}

- A mark is called as its chart (`name="curve"`); without a name it is `marks`, or `layer_0`, `layer_1` in a layered
  chart. The points of a line with points are a mark of their own, `layer_0_layer_1` for the first layer's.
- A row has the channels you want compared, and every row of a mark the same: `x`, `y`, `x2`, `y2` in units of the data
  (of a bar both ends, in any order; on a band scale the category), `text`, `color` and `shape` as the data's value
  (`"overhead"`, not its colour), `size`, `opacity`. The order of rows is free. Numbers may be fractions.
- Every mark drawn must be in the answer; `[]` says that nothing of it is drawn at these values.
- Compute with `scalebook` afresh: never read the chart's specification or its data.
- Texts with numbers: `percent` and `significant` round as the browser does.

The tests call it at the first, middle and last position of every control. They fail for an explorer without an
oracle, and for an oracle without an explorer.
"""

import importlib
import pkgutil
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

CHAPTERS = Path(__file__).parents[3] / "chapters"
ORACLES = {}


def oracle(name):
    """Register the function as the oracle of the explorer `name`."""
    def register(function):
        if name in ORACLES:
            raise ValueError(f"oracle: {name!r} is registered twice; the name of an explorer is its own in the book")
        ORACLES[name] = function
        return function
    return register


def percent(value, digits=1):
    """Write a share as Vega's format ".1%" does: a tie is rounded up.

    >>> percent(0.0625)
    '6.3%'
    """
    step = Decimal(1).scaleb(-digits)
    return f"{Decimal(float(value) * 100).quantize(step, ROUND_HALF_UP)}%"


def significant(value, digits=4):
    """Write a number as Vega's format ".4~r" does: so many significant digits, no trailing zeros.

    >>> significant(33.0), significant(2.0625, 4), significant(12345)
    ('33', '2.063', '12350')
    """
    number = Decimal(float(value))
    if not number:
        return "0"
    step = Decimal(1).scaleb(number.adjusted() - digits + 1)
    text = f"{(number / step).quantize(Decimal(1), ROUND_HALF_UP) * step:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def duration(value):
    """Write seconds with three digits in the unit that suits them.

    >>> duration(5.17e-5), duration(0.0182), duration(2)
    ('51.7 µs', '18.2 ms', '2 s')
    """
    size, name = (1e-6, "µs") if value < 1e-3 else (1e-3, "ms") if value < 1 else (1, "s")
    return f"{significant(value / size, 3)} {name}"


# A module speaks of the chapter of its number, once that is there.
for _module in pkgutil.iter_modules(__path__):
    if list(CHAPTERS.glob(f"{_module.name.removeprefix('chapter_')}_*.ipynb")):
        importlib.import_module(f"{__name__}.{_module.name}")

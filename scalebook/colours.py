"""One colour per idea, the same in matplotlib, in Vega and in the style sheet.

Ideas that stand in one picture never share a colour; those of two chapters may, but for what stands in several
chapters: the five axes along which a cluster is cut, the two passes and the weight's gradient, and the three parts of
the model states share none among them. Most come from the palette of Okabe and Ito ("Color Universal Design", 2008).
Those of the axes and the states were searched for, so that they stay as far apart as possible for people with any of
the common colour-vision deficiencies. Things that are compared, but are none of these ideas (two measures, two
schedules), take their colours from `COMPARED`. Each colour has a contrast of at least 3:1 against both pages, light and
dark, so one set serves both.
"""

import re

from scalebook.checks import shown

# The axes along which a cluster is cut.
TP = "#6058e0"  # tensor parallel
CP = "#70a008"  # context parallel
EP = "#b87860"  # expert parallel
DP = "#00a0c0"  # data parallel
PP = "#c03080"  # pipeline parallel

# The model states.
PARAMETER = "#1870f8"
GRADIENT = "#e01878"
OPTIMIZER = "#a89000"

# Pipelines.
FORWARD = "#0072b2"
BACKWARD = "#d55e00"
WEIGHT = "#009e73"
IDLE = "#8c8c8c"

# Mixtures of experts.
ACTIVE = "#0072b2"  # experts that compute for a token
RESTING = IDLE  # experts that are stored and do not compute: idle as a stage that waits
SHARED = "#009e73"  # what every token passes through
DROPPED = "#d55e00"  # choices of an expert that had no room

# Quantization.
RTN = "#d55e00"  # rounded to the nearest point of the grid
GPTQ = "#0072b2"  # the error of rounding passed on to the weights that are still free
AWQ = "#009e73"  # scaled before rounding, as the inputs say
FULL_PRECISION = IDLE  # not quantized

# Collectives.
ALL_REDUCE = "#d55e00"
ALL_GATHER = "#0072b2"  # and what costs as much: reduce-scatter, all-to-all
BROADCAST = "#009e73"
POINT_TO_POINT = IDLE

# Tensor parallelism.
COLUMN = "#0072b2"  # split by columns
ROW = "#009e73"  # split by rows
MESSAGE = "#d55e00"  # what goes from rank to rank
REPLICATED = IDLE  # the same on every rank

COMPARED = ("#b0529a", "#947000", IDLE)

LIGHT_PAGE = "#ffffff"
DARK_PAGE = "#14181e"


def contrast(first, second):
    """Return the contrast ratio of two colours "#rrggbb", from 1 to 21 (WCAG 2.2, section 1.4.3).

    >>> round(contrast("#000000", "#ffffff"))
    21
    """
    for name, colour in (("first", first), ("second", second)):
        if not isinstance(colour, str) or not re.fullmatch("#[0-9a-fA-F]{6}", colour):
            raise ValueError(f"{name} = {shown(colour)} is not allowed; it must be a colour such as '#0072b2'")
    high, low = sorted((_luminance(first), _luminance(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def _luminance(colour):
    channels = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

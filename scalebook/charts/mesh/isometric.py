"""The axes of a cluster drawn in three dimensions: their colours, and where a place of the grid comes to lie.

TP runs to the right and towards the reader, DP to the left and towards the reader, PP up. The three are not drawn
equally long, nor at equal angles: otherwise ranks would hide each other.
"""

from scalebook.colours import DP, PP, TP

AXES = {"tp": TP, "dp": DP, "pp": PP}
NAMES = {"tp": "tensor parallel", "dp": "data parallel", "pp": "pipeline"}
ORIGIN = (6, 7)  # of the first rank: no rank has a number below 0
STEPS = {"tp": (0.92, -0.37), "dp": (-0.75, -0.55), "pp": (0, 1.27)}  # on the page, from one rank to the next


def flat(**place):
    """Where a place lies on the page, x to the right and y up: from numbers, or from Vega expressions as text.

    >>> flat(tp=1, dp=0, pp=2), flat(tp="i", dp="j", pp="k")[0]
    ((6.92, 9.17), '(6 + 0.92 * (i) + -0.75 * (j) + 0 * (k))')
    """
    if any(isinstance(value, str) for value in place.values()):
        return tuple(f"({ORIGIN[side]} + " + " + ".join(f"{STEPS[axis][side]} * ({place[axis]})" for axis in AXES) + ")"
                     for side in (0, 1))
    return tuple(ORIGIN[side] + sum(STEPS[axis][side] * place[axis] for axis in AXES) for side in (0, 1))

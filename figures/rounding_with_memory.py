"""Draw rounding alone beside rounding that passes its error on: `python figures/rounding_with_memory.py`.

All inputs are taken to be the same, so the next weight can make up for the whole of an error.
"""

import math
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch

from scalebook.colours import FULL_PRECISION, GPTQ, RTN

# Text stays text and names are fixed, so that every machine writes the same bytes.
mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "scalebook", "font.family": "sans-serif"})

WEIGHTS = (0.4, 0.3, 0.45, 1.45, 1.3, 0.4, 1.4, 1.25, 0.35)
LEVELS = (0, 1, 2)
INK = "#333333"


def passed_on(weights, share):
    """Where each weight stands when it is rounded, and what it becomes; `share` of each error goes to the next."""
    moved, rounded, carried = [], [], 0.0
    for weight in weights:
        moved.append(weight + carried)
        rounded.append(math.floor(moved[-1] + 0.5))
        carried = share * (moved[-1] - rounded[-1])
    return moved, rounded


def arrow(axis, start, end, colour, bend=0.0, width=1.5):
    axis.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=9, color=colour, linewidth=width,
                                   shrinkA=3, shrinkB=4, connectionstyle=f"arc3,rad={bend}"))


def draw(axis, title, colour, share):
    moved, rounded = passed_on(WEIGHTS, share)
    for level in LEVELS:
        axis.plot((-0.5, len(WEIGHTS) - 0.5), (level, level), color=FULL_PRECISION, linewidth=0.8, zorder=0)
    for place, (weight, now, point) in enumerate(zip(WEIGHTS, moved, rounded, strict=True)):
        axis.plot(place, weight, "o", color=FULL_PRECISION, markersize=6)
        if share and place:
            arrow(axis, (place - 1, rounded[place - 1]), (place, weight), colour, bend=-0.15, width=0.9)
            axis.plot(place, now, "o", markerfacecolor="white", markeredgecolor=colour, markersize=6)
        if abs(now - point) > 0.12:
            arrow(axis, (place, now), (place, point), colour)
        axis.plot(place, point, "s", color=colour, markersize=7)
    axis.text(-0.5, 2.75, title, ha="left", va="center", fontsize=12, color=INK)
    axis.text(-0.5, -0.6, f"the weights sum to {sum(WEIGHTS):.1f}, the grid points to {sum(rounded)}",
              ha="left", va="center", fontsize=11, color=INK)
    axis.set(xlim=(-0.7, len(WEIGHTS) - 0.3), ylim=(-0.9, 3.0))
    axis.set_axis_off()


def key():
    """What the marks stand for."""
    marks = {"a weight": ("o", FULL_PRECISION, FULL_PRECISION),
             "with the error that it was handed": ("o", GPTQ, "white"), "its grid point": ("s", INK, INK)}
    return [Line2D([], [], linestyle="", marker=marker, color=edge, markerfacecolor=face, label=label)
            for label, (marker, edge, face) in marks.items()]


def main():
    figure, (alone, remembering) = plt.subplots(1, 2, figsize=(9, 3.3))
    draw(alone, "each weight to its nearest grid point", RTN, 0)
    draw(remembering, "each error passed on to the next weight", GPTQ, 1)
    figure.subplots_adjust(left=0.01, right=0.99, top=0.99, bottom=0.1, wspace=0.06)
    figure.legend(handles=key(), loc="lower center", ncols=3, frameon=False, fontsize=10.5, labelcolor=INK)
    figure.savefig(Path(__file__).with_suffix(".svg"), metadata={"Date": None}, facecolor="white",
                   bbox_inches="tight")


if __name__ == "__main__":
    main()

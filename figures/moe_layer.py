"""Draw one layer of a mixture of experts: `python figures/moe_layer.py` writes moe_layer.svg beside it."""

from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.patches import Circle, FancyArrowPatch, Rectangle

from scalebook.colours import ACTIVE, RESTING, SHARED

# Text stays text and names are fixed, so that every machine writes the same bytes.
mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "scalebook", "font.family": "sans-serif"})

WEIGHTS = {2: "0.68", 5: "0.32"}  # the chosen experts of eight, and what their outputs are multiplied by
EXPERTS = 8
LEFT, PITCH, WIDTH, HEIGHT = 1.9, 1.0, 0.8, 0.7  # of the row of experts
MIDDLE = LEFT + (EXPERTS * PITCH - (PITCH - WIDTH)) / 2
ROUTER, ROW, SUM, END = 1.75, 3.3, 5.3, 6.5  # heights
INK = "#333333"


def centre(expert):
    return LEFT + (expert - 1) * PITCH + WIDTH / 2


def arrow(axis, start, end, colour, head=True, width=1.8):
    axis.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>" if head else "-", mutation_scale=13, color=colour,
                                   linewidth=width, shrinkA=0, shrinkB=0))


def box(axis, x, y, width, height, text, colour, filled=False):
    axis.add_patch(Rectangle((x - width / 2, y - height / 2), width, height, facecolor=colour if filled else "white",
                             edgecolor=colour, linewidth=1.6))
    axis.text(x, y, text, ha="center", va="center", fontsize=11, color="white" if filled else INK)


def add(axis, x, y):
    axis.add_patch(Circle((x, y), 0.22, facecolor="white", edgecolor=INK, linewidth=1.6))
    axis.text(x, y, "+", ha="center", va="center", fontsize=14, color=INK)


def main():
    figure, axis = plt.subplots(figsize=(7.5, 5.2))
    shared, residual = 10.6, 0.6
    axis.text(MIDDLE, -0.15, "a token’s row x", ha="center", va="top", fontsize=11, color=INK)
    arrow(axis, (MIDDLE, 0), (MIDDLE, ROUTER - 0.3), INK)
    for x in (residual, shared):  # around the experts
        arrow(axis, (MIDDLE, 0.5), (x, 0.5), INK if x == residual else SHARED, head=False)
    arrow(axis, (residual, 0.5), (residual, END), INK, head=False)
    arrow(axis, (residual, END), (MIDDLE - 0.22, END), INK)
    arrow(axis, (shared, 0.5), (shared, ROW - 0.35), SHARED)
    arrow(axis, (shared, ROW + 0.35), (shared, SUM), SHARED, head=False)
    arrow(axis, (shared, SUM), (MIDDLE + 0.22, SUM), SHARED)
    box(axis, MIDDLE, ROUTER, 1.5, 0.6, "router", INK)
    for expert in range(1, EXPERTS + 1):
        chosen = expert in WEIGHTS
        if chosen:
            arrow(axis, (MIDDLE, ROUTER + 0.3), (centre(expert), ROW - 0.35), ACTIVE)
            arrow(axis, (centre(expert), ROW + 0.35), (MIDDLE, SUM - 0.22), ACTIVE)
            axis.text(centre(expert) + (-0.05 if expert == min(WEIGHTS) else 0.1), ROW + 0.72, f"× {WEIGHTS[expert]}",
                      ha="right" if expert == min(WEIGHTS) else "left", va="center", fontsize=11, color=ACTIVE)
        box(axis, centre(expert), ROW, WIDTH, HEIGHT, f"{expert}", ACTIVE if chosen else RESTING, filled=chosen)
    box(axis, shared, ROW, 1.3, HEIGHT, "shared", SHARED)
    add(axis, MIDDLE, SUM)
    arrow(axis, (MIDDLE, SUM + 0.22), (MIDDLE, END - 0.22), INK)
    add(axis, MIDDLE, END)
    arrow(axis, (MIDDLE, END + 0.22), (MIDDLE, END + 0.9), INK)
    axis.text(MIDDLE + 0.25, END + 0.6, "to the next layer", ha="left", va="center", fontsize=11, color=INK)
    axis.text(residual + 0.15, 1.75, "residual", ha="left", va="center", fontsize=11, color=INK)
    axis.text(centre(EXPERTS) + WIDTH / 2, ROW - 0.5, "six of eight rest", ha="right", va="top", fontsize=11, color=INK)
    axis.text(shared + 0.12, 1.75, "every\ntoken", ha="left", va="center", fontsize=11, color=INK)
    axis.text(MIDDLE - 0.4, SUM + 0.1, "weighted sum", ha="right", va="center", fontsize=11, color=INK)
    axis.set(xlim=(0.3, 11.4), ylim=(-0.6, END + 1))
    axis.set_axis_off()
    figure.savefig(Path(__file__).with_suffix(".svg"), metadata={"Date": None}, facecolor="white",
                   bbox_inches="tight")


if __name__ == "__main__":
    main()

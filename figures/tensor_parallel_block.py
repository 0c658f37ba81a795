"""Draw a layer on two ranks: `python figures/tensor_parallel_block.py` writes tensor_parallel_block.svg beside it."""

from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.colors import to_rgb
from matplotlib.patches import FancyArrowPatch, Rectangle

from scalebook.colours import COLUMN, MESSAGE, REPLICATED, ROW

# Text stays text and names are fixed, so that every machine writes the same bytes.
mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "scalebook", "font.family": "sans-serif"})

INK = "#333333"
HALF, PITCH = 0.36, 1.0  # half of a box's height; from rank 0 down to rank 1
# Centre, width, colour, and the text on rank 0 and on rank 1; one text for both where they hold the same.
HALVES = {
    "attention": [
        (0.6, 0.9, REPLICATED, ("norm",)),
        (2.75, 1.3, COLUMN, ("Q, K, V,\nheads 0, 1", "Q, K, V,\nheads 2, 3")),
        (4.3, 1.2, COLUMN, ("attention,\nheads 0, 1", "attention,\nheads 2, 3")),
        (5.8, 1.2, ROW, ("output,\nfirst rows", "output,\nlast rows")),
        (8.0, 1.1, REPLICATED, ("bias and\ndropout",)),
    ],
    "MLP": [
        (0.6, 0.9, REPLICATED, ("norm",)),
        (2.75, 1.3, COLUMN, ("up, first\ncolumns", "up, last\ncolumns")),
        (4.3, 1.2, COLUMN, ("GELU",)),
        (5.8, 1.2, ROW, ("down, first\nrows", "down, last\nrows")),
        (8.0, 1.1, REPLICATED, ("bias and\ndropout",)),
    ],
}
F, G, SUM, LEFT, RIGHT = 1.55, 6.9, 9.0, -0.45, 9.75  # places from left to right
TOPS = {"attention": 5.2, "MLP": 1.65}  # the heights of rank 0


def arrow(axis, start, end, head=True):
    axis.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>" if head else "-", mutation_scale=9, color=INK,
                                   linewidth=1.3, shrinkA=0, shrinkB=0))


def tint(colour):
    """The colour as a ground on which words in ink are easy to read."""
    return tuple(1 - 0.22 * (1 - part) for part in to_rgb(colour))


def block(axis, x, y, width, height, colour):
    axis.add_patch(Rectangle((x - width / 2, y - height / 2), width, height, facecolor=tint(colour), edgecolor=colour,
                             linewidth=1.6))


def box(axis, x, y, width, text, colour):
    block(axis, x, y, width, 2 * HALF, colour)
    axis.text(x, y, text, ha="center", va="center", fontsize=9, color=INK, linespacing=1.15)


def message(axis, x, top, letter, forward, backward):
    """An f or a g, which joins both ranks."""
    block(axis, x, top - PITCH / 2, 0.44, PITCH + 2 * HALF, MESSAGE)
    axis.text(x, top - PITCH / 2, letter, ha="center", va="center", fontsize=14, style="italic", color=INK)
    axis.text(x, top - PITCH - HALF - 0.27, f"forward: {forward}\nbackward: {backward}", ha="center", va="top",
              fontsize=9, color=INK)


def half(axis, name):
    """Attention or the MLP: the same steps on both ranks, and its residual connection."""
    top = TOPS[name]
    for rank, y in enumerate((top, top - PITCH)):
        axis.text(LEFT - 0.12, y, f"rank {rank}", ha="right", va="center", fontsize=10, color=INK)
        places = [(x, width / 2) for x, width, _, _ in HALVES[name]]
        stops = sorted([*places, (F, 0.22), (G, 0.22), (SUM, 0.17)])
        for (x, right), (following, left) in zip([(LEFT, 0), *stops], [*stops, (RIGHT, 0)], strict=True):
            arrow(axis, (x + right, y), (following - left, y))
        for x, width, colour, texts in HALVES[name]:
            box(axis, x, y, width, texts[rank % len(texts)], colour)
        way = 1 if rank == 0 else -1  # the residual goes above rank 0 and below rank 1
        around = y + 0.55 * way
        axis.text(SUM, y, "+", ha="center", va="center", fontsize=13, color=INK,
                  bbox={"boxstyle": "circle,pad=0.1", "facecolor": "white", "edgecolor": INK})
        arrow(axis, (LEFT + 0.2, y), (LEFT + 0.2, around), head=False)
        arrow(axis, (LEFT + 0.2, around), (SUM, around), head=False)
        arrow(axis, (SUM, around), (SUM, y + 0.2 * way))
    axis.text(4.3, top + 0.68, name, ha="center", va="bottom", fontsize=11, color=INK, weight="bold")
    message(axis, F, top, "f", "identity", "all-reduce")
    message(axis, G, top, "g", "all-reduce", "identity")


def main():
    figure, axis = plt.subplots(figsize=(9.0, 5.6))
    for name in HALVES:
        half(axis, name)
    for x, colour, text in ((-0.9, REPLICATED, "the same on both ranks"), (2.4, COLUMN, "split by columns"),
                            (5.0, ROW, "split by rows"), (7.05, MESSAGE, "what the ranks send")):
        block(axis, x + 0.13, -0.82, 0.26, 0.26, colour)
        axis.text(x + 0.36, -0.82, text, ha="left", va="center", fontsize=10, color=INK)
    axis.set(xlim=(-1.35, 9.9), ylim=(-1.1, 6.3))
    axis.set_axis_off()
    figure.savefig(Path(__file__).with_suffix(".svg"), metadata={"Date": None}, facecolor="white",
                   bbox_inches="tight")


if __name__ == "__main__":
    main()

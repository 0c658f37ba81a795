"""Draw what each of four ranks keeps at stages 0 to 3: `python figures/zero_stages.py` writes zero_stages.svg.

Heights are bytes: Adam in mixed precision keeps 2 bytes of weight, 2 of gradient and 12 of optimizer state.
"""

from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.patches import Rectangle

from scalebook.charts.zero.parts import GRADIENTS, OPTIMIZER, PARTS, WEIGHTS
from scalebook.formulas import zero as formulas

# Text stays text and names are fixed, so that every machine writes the same bytes.
mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "scalebook", "font.family": "sans-serif"})

INK = "#696969"  # grey words: the drawing is its bars
RANKS = 4
RECIPE = formulas.recipes()["mixed precision"]
HEIGHTS = {OPTIMIZER: RECIPE.K, GRADIENTS: RECIPE.b_g, WEIGHTS: RECIPE.b_w}
FIRST_SHARDED = {OPTIMIZER: 1, GRADIENTS: 2, WEIGHTS: 3}  # the stage from which on the ranks share a part
WIDTH, GAP, STRIDE = 1.0, 0.25, 6.4


def draw_rank(axis, left, rank, stage):
    """One rank: a frame for each whole part, filled where the rank keeps it."""
    bottom = 0
    for part, height in HEIGHTS.items():
        shared = stage >= FIRST_SHARDED[part]
        kept = height / RANKS if shared else height
        start = bottom + (RANKS - 1 - rank) * kept if shared else bottom
        axis.add_patch(Rectangle((left, start), WIDTH, kept, facecolor=PARTS[part], linewidth=0))
        axis.add_patch(Rectangle((left, bottom), WIDTH, height, fill=False, edgecolor=INK, linewidth=0.8))
        bottom += height + 0.5


def main():
    figure, axis = plt.subplots(figsize=(7.5, 3.6))
    for stage, formula in enumerate(formulas.STATE_BYTES):
        left = stage * STRIDE
        for rank in range(RANKS):
            draw_rank(axis, left + rank * (WIDTH + GAP), rank, stage)
            axis.text(left + rank * (WIDTH + GAP) + WIDTH / 2, -0.35, str(rank), ha="center", va="top", fontsize=9,
                      color=INK)
        middle = left + (RANKS * (WIDTH + GAP) - GAP) / 2
        known = {"Psi": 1, "N": RANKS, **RECIPE.sizes}
        kept = formula(**{variable.name: known[variable.name] for variable in formula.symbols})
        axis.text(middle, -1.9, f"stage {stage}", ha="center", va="top", fontsize=11, color=INK)
        axis.text(middle, -3.3, f"{float(kept):g} bytes", ha="center", va="top", fontsize=9, color=INK)
    bottom = 0
    for part, height in HEIGHTS.items():
        axis.text(-0.4, bottom + height / 2, f"{part}, {height}", ha="right", va="center", fontsize=10,
                  color=PARTS[part])
        bottom += height + 0.5
    axis.text(-0.4, -0.35, "rank", ha="right", va="top", fontsize=9, color=INK)
    axis.text(-0.4, -3.3, "a parameter takes", ha="right", va="top", fontsize=9, color=INK)
    axis.set(xlim=(-6.2, 3 * STRIDE + 5), ylim=(-4.6, 18))
    axis.set_axis_off()
    figure.savefig(Path(__file__).with_suffix(".svg"), metadata={"Date": None}, transparent=True,
                   bbox_inches="tight")


if __name__ == "__main__":
    main()

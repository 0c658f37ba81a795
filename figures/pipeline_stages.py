"""Draw a model cut into four stages: `python figures/pipeline_stages.py` writes pipeline_stages.svg beside it."""

from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.patches import FancyArrowPatch, Rectangle

from scalebook.colours import BACKWARD, FORWARD, IDLE

# Text stays text and names are fixed, so that every machine writes the same bytes.
mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "scalebook", "font.family": "sans-serif"})

STAGES, LAYERS = 4, 4


def arrow(axis, start, end, colour, bend):
    axis.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=14, color=colour, linewidth=1.8,
                                   connectionstyle=f"arc3,rad={bend}"))


def main():
    figure, axis = plt.subplots(figsize=(7.5, 2.6))
    for stage in range(STAGES):
        left = stage * 2.0
        axis.add_patch(Rectangle((left, 0), 1.5, 1.2, fill=False, edgecolor=IDLE, linewidth=1.5))
        for layer in range(LAYERS):
            axis.add_patch(Rectangle((left + 0.12 + layer * 0.33, 0.15), 0.25, 0.9, facecolor=IDLE, alpha=0.35))
        axis.text(left + 0.75, -0.18, f"stage {stage}", ha="center", va="top", fontsize=11)
        axis.text(left + 0.75, -0.48, f"layers {stage * LAYERS + 1} to {(stage + 1) * LAYERS}", ha="center", va="top",
                  fontsize=9, color="#555555")
        if stage < STAGES - 1:
            arrow(axis, (left + 1.45, 0.95), (left + 2.05, 0.95), FORWARD, -0.45)
            arrow(axis, (left + 2.05, 0.25), (left + 1.45, 0.25), BACKWARD, -0.45)
    axis.text(3.75, 1.62, "activations go forward", ha="center", fontsize=11)
    axis.text(3.75, -1.02, "gradients come back", ha="center", fontsize=11)
    axis.set(xlim=(-0.1, 7.6), ylim=(-1.15, 1.9))
    axis.set_axis_off()
    figure.savefig(Path(__file__).with_suffix(".svg"), metadata={"Date": None}, facecolor="white",
                   bbox_inches="tight")


if __name__ == "__main__":
    main()

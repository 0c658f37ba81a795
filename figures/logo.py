"""Draw the book's logo: `python figures/logo.py` writes logo.svg beside itself.

Three layers of a model, one above the other, each cut in two: the axes along which a large model is split, in their
colours. A browser's tab and the sidebar show the same drawing, on light pages and on dark ones.
"""

from pathlib import Path

from scalebook.colours import DP, PP, TP

SIZE = 64
WIDTH, HEIGHT, GAP = 23, 16, 3  # of half a layer, and between two
LAYERS = ((PP, 12), (DP, 7.5), (TP, 3))  # from above: the colour, and where the left half begins


def half(x, y, colour, opacity):
    return (f'<rect x="{x:g}" y="{y:g}" width="{WIDTH}" height="{HEIGHT}" rx="3.5" fill="{colour}" '
            f'fill-opacity="{opacity}"/>')


def drawing():
    parts = [half(x + side * (WIDTH + GAP), 5 + layer * (HEIGHT + GAP), colour, 1 if side else 0.7)
             for layer, (colour, x) in enumerate(LAYERS) for side in (0, 1)]
    frame = f'viewBox="0 0 {SIZE} {SIZE}" width="{SIZE}" height="{SIZE}" role="img" aria-label="Layers cut in two"'
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {frame}>', *parts, "</svg>", ""])


if __name__ == "__main__":
    Path(__file__).with_suffix(".svg").write_text(drawing(), encoding="utf-8")

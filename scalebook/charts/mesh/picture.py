"""The picture of a cluster: 512 GPUs as a cube, one axis for each kind of parallelism, and the link that it runs on.

The cube stands on its corner's shadow, as isometric drawings do: three faces are seen, equal to each other. The rank at
the corner towards the reader has its three groups in colour.
"""

from dataclasses import dataclass
from itertools import groupby
from math import cos, pi, sin

from scalebook import published
from scalebook.charts.mesh.isometric import AXES, NAMES

SIZE = 8  # ranks of an axis
CUBE = 0.84  # of the room of one rank
ACROSS, DOWN = cos(pi / 6), sin(pi / 6)
MACHINE = "H100"


@dataclass(frozen=True)
class Ground:
    """What the cube stands on: the page's colour, that of text and of ranks, and how much of each a face has."""

    page: str
    ink: str
    rank: str
    faces: tuple  # top, left, right: the share of the rank's own colour, the rest is the page's
    text: float  # the share of an axis's colour in its text, the rest is the ink


DARK = Ground("#0f172a", "#f1f5f9", "#64748b", (0.85, 0.6, 0.4), 0.55)
LIGHT = Ground("#ffffff", "#0f172a", "#94a3b8", (0.45, 0.7, 1.0), 0.72)


def links():
    """What each axis runs on, in words, for one GPU, from the published figures of the machine.

    >>> links()["tp"]
    'NVLink, 450 GB/s each way'
    """
    machine = published.machine(MACHINE)
    inside, between = (f"{speed / 1e9:g} GB/s" for speed in (machine.nvlink_one_way, machine.internode_gpu))
    return {"tp": f"NVLink, {inside} each way", "dp": f"InfiniBand, {between} each way",
            "pp": f"InfiniBand, {between} each way"}


def place(tp, dp, pp):
    """Where a point of the cube lies on the page: all three axes equally long."""
    return ACROSS * (tp - dp), pp - DOWN * (tp + dp)


def mixed(colour, other, share):
    """A colour, `share` of it, mixed with another.

    >>> mixed("#ffffff", "#000000", 0.2)
    '#333333'
    """
    pairs = ((int(colour[i:i + 2], 16), int(other[i:i + 2], 16)) for i in (1, 3, 5))
    return "#" + "".join(f"{round(share * one + (1 - share) * two):02x}" for one, two in pairs)


def faces(tp, dp, pp):
    """The three faces of one rank's cube that are seen: top, left and right, each a list of corners."""
    low = [(1 - CUBE) / 2 + at for at in (tp, dp, pp)]
    high = [at + CUBE for at in low]
    (t, d, p), (u, e, q) = low, high
    return ([place(t, d, q), place(u, d, q), place(u, e, q), place(t, e, q)],
            [place(t, e, p), place(u, e, p), place(u, e, q), place(t, e, q)],
            [place(u, d, p), place(u, e, p), place(u, e, q), place(u, d, q)])


def colour_of(where, ground):
    """The colour of a rank: that of the one axis along which it differs from the nearest corner, if it is one."""
    differ = [axis for axis in AXES if where[axis] != SIZE - 1]
    return ground.ink if not differ else AXES[differ[0]] if len(differ) == 1 else ground.rank


def shapes(ranks, ground):
    """Yield (colour, path) for the faces of ranks, the farthest from the reader first.

    Ranks equally far hide nothing of each other: of these all faces of one colour are one path. Apart, each of the
    five hundred would be an element of the picture, and a page would take 50 ms to read it.
    """
    from matplotlib.path import Path

    for _, equally_far in groupby(sorted(ranks, key=sum), key=sum):
        found = {}
        for tp, dp, pp in equally_far:
            own = colour_of({"tp": tp, "dp": dp, "pp": pp}, ground)
            for corners, share in zip(faces(tp, dp, pp), ground.faces, strict=True):
                share = share if own == ground.rank else (1 + share) / 2
                outline = Path([*corners, corners[0]], closed=True)
                found.setdefault(mixed(own, ground.page, share), []).append(outline)
        for colour, outlines in found.items():
            yield colour, Path.make_compound_path(*outlines)


def draw(path, ground):
    """Write the picture as SVG, the same bytes on every machine."""
    import matplotlib as mpl
    import matplotlib.pyplot as plt
    from matplotlib.patches import PathPatch

    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "scalebook", "font.family": "sans-serif"})
    figure = plt.figure(figsize=(7.5, 7.5), facecolor=ground.page)
    axes = figure.add_axes((0, 0, 1, 1))
    seen = [(tp, dp, pp) for pp in range(SIZE) for dp in range(SIZE) for tp in range(SIZE) if SIZE - 1 in (tp, dp, pp)]
    for colour, shape in shapes(seen, ground):
        axes.add_patch(PathPatch(shape, facecolor=colour, linewidth=0))
    for axis, (start, end, angle, side) in arrows().items():
        colour = mixed(AXES[axis], ground.ink, ground.text)
        axes.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": colour, "linewidth": 2,
                                                  "shrinkA": 0, "shrinkB": 0})
        middle = [(one + two) / 2 + shift for one, two, shift in zip(start, end, side, strict=True)]
        axes.text(*middle, f"{axis.upper()} {SIZE}: {NAMES[axis]}\n{links()[axis]}", color=colour, rotation=angle,
                  rotation_mode="anchor", ha="center", va="center", fontsize=12.5, linespacing=1.5)
    titles = {10.3: (f"{SIZE**3} GPUs = TP {SIZE} × DP {SIZE} × PP {SIZE}", 19),
              9.3: (f"{MACHINE}, {SIZE} in a node; in colour, the groups of the nearest rank", 12.5)}
    for height, (text, size) in titles.items():
        axes.text(0, height, text, color=ground.ink, ha="center", va="center", fontsize=size)
    axes.set(xlim=(-11.2, 11.2), ylim=(-11, 11.4), aspect="equal")
    axes.set_axis_off()
    figure.savefig(path, metadata={"Date": None}, facecolor=ground.page)
    plt.close(figure)


def arrows():
    """For each axis: both ends of its arrow outside the cube, the angle of its text, and where the text stands."""
    gap, degrees = 0.7, 30
    shift = (-gap * DOWN, -gap * ACROSS)
    left = [tuple(at + by for at, by in zip(place(tp, SIZE, 0), shift, strict=True)) for tp in (0.2, SIZE - 0.2)]
    right = [(-x, y) for x, y in left]
    edge = place(0, SIZE, 0)[0] - gap
    return {"tp": (*left, -degrees, (-0.62, -1.07)), "dp": (*right, degrees, (0.62, -1.07)),
            "pp": ((edge, -DOWN * SIZE + 0.2), (edge, -DOWN * SIZE + SIZE - 0.2), 90, (-1.25, 0))}

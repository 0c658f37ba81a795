"""The grid of ranks as a cube: pick a rank, and see the three groups that it talks to.

Where a rank stands follows from the order: the axis that is named first changes fastest. The browser divides the rank
as `mesh.RankGrid` does; the oracle asks `RankGrid` itself.
"""

import json

from scalebook.charts.mesh.isometric import AXES, NAMES, flat
from scalebook.charts.words import above, words
from scalebook.colours import COMPARED, IDLE

ORDERS = {"TP, DP, PP (Megatron-Core)": "tp-dp-pp", "TP, PP, DP (Llama 3)": "tp-pp-dp", "DP, TP, PP": "dp-tp-pp",
          "PP, TP, DP": "pp-tp-dp"}
MOST = 8  # ranks of an axis
NODE = 8  # GPUs in a node


def coordinates(rank):
    """A rank's place on each axis, as Vega expressions of the expression `rank` and the param `stride`."""
    return {axis: f"(floor({rank} / stride.{axis}) % {axis})" for axis in AXES}


def strides():
    """The Vega param `stride`: from one rank of a group to the next, on each axis, for each order."""
    import altair as alt

    known = {}
    for order in ORDERS.values():
        listed = order.split("-")
        known[order] = "{" + ", ".join(
            f"{axis}: {' * '.join(['1', *listed[:listed.index(axis)]])}" for axis in listed) + "}"
    chosen = " : ".join(f"order == {json.dumps(order)} ? {text}" for order, text in known.items())
    return alt.param(name="stride", expr=f"{chosen} : null")


def members(axis):
    """How many nodes a group touches: its ranks lie evenly apart, so from 8 on each has a node of its own."""
    first, last = f"(picked - {coordinates('picked')[axis]} * stride.{axis})", f"({axis} - 1) * stride.{axis}"
    return (f"(stride.{axis} >= {NODE} ? {axis} : floor(({first} + {last}) / {NODE}) - floor({first} / {NODE}) + 1)")


def edges():
    """Both ends of an edge of the box around all ranks: a row has the axis `along` and which `corner` of four."""
    found = {}
    for name, end in (("", "0"), ("2", "1")):
        corner = {axis: f"({axis} - 1) * (datum.along == '{axis}' ? {end} : {side_of(axis)})" for axis in AXES}
        found[f"x{name}"], found[f"y{name}"] = flat(**corner)
    return found


def side_of(axis):
    """On which side of the box an edge lies, that runs along another axis: two bits of its corner say so."""
    first = [along for along in AXES if along != axis and next(other for other in AXES if other != along) == axis]
    test = " || ".join(f"datum.along == '{along}'" for along in first) or "false"
    return f"({test} ? datum.corner % 2 : floor(datum.corner / 2))"


def cube_chart():
    """Every rank in its place, and the groups of one; signals tp, dp, pp (1 to 8), order, rank.

    A rank that a smaller grid does not have counts on from its first: of 64 ranks, 77 is 13.
    """
    import altair as alt

    here, there = coordinates("datum.r"), coordinates("picked")
    x_of, y_of = flat(**{axis: f"datum.{axis}" for axis in AXES})
    ranks = (
        alt.Chart(alt.Data(values=[{}])).transform_calculate(r="sequence(tp * dp * pp)").transform_flatten(["r"])
        .transform_calculate(**here).transform_calculate(x=x_of, y=y_of)
    )
    far = MOST - 1
    low, high = flat(tp=0, dp=far, pp=0)[0], flat(tp=far, dp=0, pp=0)[0]
    bottom, top = flat(tp=far, dp=far, pp=0)[1], flat(tp=0, dp=0, pp=far)[1]
    x = alt.X("x:Q", axis=None, scale=alt.Scale(domain=[low - 0.6, high + 0.6], nice=False))
    y = alt.Y("y:Q", axis=None, scale=alt.Scale(domain=[bottom - 0.6, top + 0.6], nice=False))
    dots = (
        ranks.properties(name="rank").transform_filter("datum.r != picked")
        .mark_point(filled=True, size=16, color=IDLE, opacity=0.6).encode(x=x, y=y)
    )
    box = (
        alt.Chart(alt.Data(values=[{"corner": corner, "along": axis} for axis in AXES for corner in range(4)]))
        .transform_calculate(**edges()).transform_filter("datum.x != datum.x2 || datum.y != datum.y2")
        .properties(name="edge").mark_rule(color=IDLE, opacity=0.5)
        .encode(x=x, y=y, x2="x2:Q", y2="y2:Q")
    )
    colour = alt.Color("axis:N", legend=alt.Legend(offset=above(4), columns=0),
                       scale=alt.Scale(domain=list(NAMES.values()), range=list(AXES.values())))
    same = {axis: f"{here[axis]} == {there[axis]}" for axis in AXES}
    group = "[" + ", ".join(
        " && ".join(same[other] for other in AXES if other != axis) + f" ? '{name}' : ''"
        for axis, name in NAMES.items()) + "]"
    grouped = (
        ranks.transform_calculate(axis=group).transform_flatten(["axis"])
        .transform_filter("datum.axis != '' && datum.r != picked")
        .properties(name="group").mark_point(filled=True, size=95, opacity=1).encode(x=x, y=y, color=colour)
    )
    ends = {axis: flat(**{one: there[one] if one != axis else f"end * ({axis} - 1)" for one in AXES}) for axis in AXES}
    lines = (
        alt.Chart(alt.Data(values=[{}]))
        .transform_calculate(axis=f"{list(NAMES.values())}", many=f"[{', '.join(AXES)}]", **{
            name: "[" + ", ".join(pair[place].replace("end", end) for pair in ends.values()) + "]"
            for name, place, end in (("x", 0, "0"), ("y", 1, "0"), ("x2", 0, "1"), ("y2", 1, "1"))})
        .transform_flatten(["axis", "many", "x", "y", "x2", "y2"]).transform_filter("datum.many > 1")
        .properties(name="line").mark_rule(strokeWidth=3).encode(x=x, y=y, x2="x2:Q", y2="y2:Q", color=colour)
    )
    own = alt.Chart(alt.Data(values=[{}])).transform_calculate(r="picked").transform_calculate(**here)
    chosen = (
        own.transform_calculate(x=x_of, y=y_of).properties(name="picked")
        .mark_point(filled=False, size=200, strokeWidth=3, opacity=1, color=COMPARED[0]).encode(x=x, y=y)
    )

    def listed(axis):
        first = f"(picked - {there[axis]} * stride.{axis})"
        last = f"({first} + ({axis} - 1) * stride.{axis})"
        return (f"{axis} == 1 ? '{axis.upper()}: alone' : '{axis.upper()}: ranks ' + {first} + ' to ' + {last}"
                f" + (stride.{axis} > 1 ? ' in steps of ' + stride.{axis} : '')"
                f" + ({members(axis)} == 1 ? ', in one node' : ', over ' + {members(axis)} + ' nodes')")

    text = words(
        own,
        "'rank ' + picked + ' of ' + tp * dp * pp + ': TP ' + datum.tp + ', DP ' + datum.dp + ', PP ' + datum.pp",
        *(listed(axis) for axis in AXES),
    )
    picked = alt.param(name="picked", expr="rank % (tp * dp * pp)")
    return alt.layer(box, dots, lines, grouped, chosen, text).properties(height=430).add_params(strides(), picked)

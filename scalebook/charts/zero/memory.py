"""What one rank keeps at each stage, and the largest model that fits, beside real cards."""

import json

from scalebook import published
from scalebook.charts.words import above, by_width, words
from scalebook.charts.zero.parts import PARTS, STAGES, shared_by
from scalebook.colours import IDLE
from scalebook.formulas import zero as formulas

REST = "activations and buffers"
TOP = 240  # GB: a longer bar is cut there
RANKS = tuple(2**i for i in range(13))
CURVE = sorted({round(2**(quarter / 4)) for quarter in range(49)})
LEAST, MOST = 1, 100_000  # billions of parameters in the frame


def cards():
    """The names of the cards of each size of memory, in GB, from the smallest.

    >>> cards()
    {80: ['A100', 'H100'], 180: ['B200']}
    """
    found = {}
    for name in published.machines():
        memory = published.machine(name).memory_bytes
        if memory:
            found.setdefault(round(memory / 1e9), []).append(name.removesuffix("-80GB"))
    return dict(sorted(found.items()))


def recipe_sizes():
    """The Vega param `sizes`: b_w, b_g and K of the recipe that the control `recipe` names."""
    import altair as alt

    known = {name: recipe.sizes for name, recipe in formulas.recipes().items()}
    return alt.param(name="sizes", expr=f"{json.dumps(known)}[recipe]")


def part_sizes(stage):
    """GB of each of the parts, as Vega expressions of `billions`, `N` and `sizes`; `stage` is an expression too."""
    shown = dict(zip(PARTS, ("b_w", "b_g", "K"), strict=True))
    return {part: "(" + formulas.state_bytes.vega(
        Psi="billions", **{name: f"sizes.{name}" if name == own else "0" for name in shown.values()},
        **shared_by(stage)) + ")" for part, own in shown.items()}


def memory_chart():
    """Bytes of one GPU at each stage, part by part; signals billions, N, recipe, rest (GB of all but the states)."""
    import altair as alt

    parts = part_sizes("datum.stage") | {REST: "rest"}
    ends, interval = "0", {}
    for part, size in parts.items():
        interval[part] = f"[min({TOP}, {ends}), min({TOP}, {ends} + {size})]"
        ends += f" + {size}"
    rows = (
        alt.Chart(alt.Data(values=[{"stage": stage, "name": name} for stage, name in enumerate(STAGES)]))
        .transform_calculate(total=ends, **interval)
    )
    y = alt.Y("name:N", title=None, scale=alt.Scale(paddingInner=0.6, paddingOuter=0.7))
    x = alt.X("start:Q", title="GB on one GPU", axis=alt.Axis(tickCount=6),
              scale=alt.Scale(domain=[0, TOP], nice=False))
    bars = (
        rows.properties(name="part").transform_fold(list(parts), as_=["part", "ends"])
        .transform_filter("datum.ends[1] > datum.ends[0]")
        .transform_calculate(start="datum.ends[0]", end="datum.ends[1]")
        .mark_bar().encode(
            x=x, x2="end:Q", y=y,
            color=alt.Color("part:N", legend=alt.Legend(offset=above(2), columns=by_width(1, 0)),
                            scale=alt.Scale(domain=list(parts), range=[*PARTS.values(), IDLE])))
    )
    labels = (
        rows.properties(name="label").transform_calculate(
            text=f"format(datum.total, '.4~r') + ' GB' + (datum.total > {TOP} ? ', cut off' : '')")
        .mark_text(align="left", dx=3, dy=-19).encode(x=alt.value(0), y=y, text="text:N")
    )
    known = [{"start": size, "text": f"{' and '.join(names)}"} for size, names in cards().items()]
    limits = alt.Chart(alt.Data(values=known))
    rules = limits.properties(name="card").mark_rule(strokeDash=[6, 4], strokeWidth=1.5).encode(x="start:Q")
    names = (
        limits.properties(name="cardname").mark_text(align="left", dx=4, baseline="top")
        .encode(x="start:Q", y=alt.value(2), text="text:N")
    )
    one = alt.Chart(alt.Data(values=[{}]))
    totals = ["(" + " + ".join([*part_sizes(str(stage)).values(), "rest"]) + ")" for stage in range(4)]
    listed = []
    for size in cards():
        fitting = "[" + ", ".join(f"{total} <= {size} ? '{stage}' : ''" for stage, total in enumerate(totals)) + "]"
        text = f"replace(replace(trim(join({fitting}, ' ')), /  +/g, ' '), / /g, ', ')"
        listed.append(f"'fits {size} GB: ' + ({totals[3]} <= {size} ? (({totals[2]} <= {size} ? 'stages ' : 'stage ')"
                      f" + {text}) : 'no stage')")
    text = words(one, *listed)
    return alt.layer(bars, labels, rules, names, text).properties(height=300).add_params(recipe_sizes())


def largest_chart():
    """Parameters of the largest model that fits, against the ranks; signals card (GB), N, recipe, rest (GB)."""
    import altair as alt

    def largest(stage, ranks):
        bytes_of = {name: f"sizes.{name}" for name in ("b_w", "b_g", "K")}
        return f"({formulas.largest_model.vega(C='1e9 * card', A='1e9 * rest', **bytes_of, **shared_by(stage, ranks))})"

    names = list(STAGES)
    data = [{"stage": stage, "name": name} for stage, name in enumerate(names)]
    encoding = {
        "x": alt.X("ranks:Q", title="N, ranks", axis=alt.Axis(values=[4**i for i in range(7)]),
                   scale=alt.Scale(type="log", base=2, domain=[1, RANKS[-1]], nice=False)),
        "y": alt.Y("most:Q", title="parameters, in billions",
                   scale=alt.Scale(type="log", domain=[LEAST, MOST], nice=False),
                   axis=alt.Axis(values=[10**i for i in range(6)], format=",")),
        "color": alt.Color("name:N", legend=alt.Legend(offset=above(3)),
                           scale=alt.Scale(domain=names, range=list(STAGES.values()))),
    }
    lines = (
        alt.Chart(alt.Data(values=data), name="curve").transform_calculate(ranks=f"{CURVE}")
        .transform_flatten(["ranks"]).transform_calculate(most=f"{largest('datum.stage', 'datum.ranks')} / 1e9")
        .mark_line(clip=True).encode(**encoding)
    )
    points = (
        alt.Chart(alt.Data(values=data), name="chosen")
        .transform_calculate(ranks="N", most=f"{largest('datum.stage', 'N')} / 1e9")
        .mark_point(filled=True, size=110, opacity=1).encode(**encoding)
    )
    shown = [f"format({largest(str(stage), 'N')} / 1e9, '.3~r') + 'B'" for stage in range(4)]
    text = words(
        alt.Chart(alt.Data(values=[{}])),
        "N + (N == 1 ? ' GPU of ' : ' GPUs of ') + card + ' GB,'",
        "(card - rest) + ' GB of it for the states'",
        f"'stage 0: ' + {shown[0]} + ',  1: ' + {shown[1]} + ',  2: ' + {shown[2]} + ',  3: ' + {shown[3]}",
    )
    return alt.layer(lines, points, text).properties(height=320).add_params(recipe_sizes())

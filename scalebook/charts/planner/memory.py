"""What one GPU of a plan holds, on the first, the second and the last stage, part by part, beside real cards."""

from scalebook import published
from scalebook.charts.planner.expressions import MEMORY, memory, model_param
from scalebook.charts.planner.parts import MEMORY_COLOURS
from scalebook.charts.words import above, by_width, words

TOP = 240  # GB: a longer bar is cut there
STAGES = ("first stage", "second stage", "last stage")
# A step has as many micro-batches as stages, or more: the pipeline is full.
PLAN = {"t": "tp", "P": "pp", "N": "dp", "v": "1", "b": "micro_batch", "Z": "zero", "M": "pp", "s": "sequence",
        "full": "recompute"}


def cards():
    """Names of the cards of each size of memory, in GB, from the smallest.

    >>> cards()
    {80: 'A100 and H100', 180: 'B200'}
    """
    found = {}
    for name in published.machines():
        size = published.machine(name).memory_bytes
        if size:
            found.setdefault(round(size / 1e9), []).append(name.removesuffix("-80GB"))
    return {size: " and ".join(names) for size, names in sorted(found.items())}


def memory_chart():
    """Memory by part; signals model, tp, pp, dp, zero, micro_batch, sequence, recompute (a checkbox: everything)."""
    import altair as alt

    second, last = (f"datum.name == '{name}'" for name in STAGES[1:])
    parts = {part: f"{size} / 1e9" for part, size in memory(PLAN, last, second).items()}
    ends, interval = "0", {}
    for part in parts:
        interval[f"end {part}"] = f"[min({TOP}, {ends}), min({TOP}, {ends} + datum['{part}'])]"
        ends += f" + datum['{part}']"
    rows = (
        alt.Chart(alt.Data(values=[{"name": name} for name in STAGES]))
        .transform_filter(f"pp > 2 || datum.name != '{STAGES[1]}'")
        .transform_calculate(**parts).transform_calculate(total=ends, **interval)
    )
    y = alt.Y("name:N", title=None, scale=alt.Scale(domain=list(STAGES), paddingInner=0.55, paddingOuter=0.45))
    x = alt.X("start:Q", title="GB on one GPU", axis=alt.Axis(tickCount=6),
              scale=alt.Scale(domain=[0, TOP], nice=False))
    bars = (
        rows.properties(name="part")
        .transform_calculate(**{part: f"datum['end {part}']" for part in MEMORY})
        .transform_fold(list(MEMORY), as_=["part", "ends"])
        .transform_filter("datum.ends[1] > datum.ends[0]")
        .transform_calculate(start="datum.ends[0]", end="datum.ends[1]")
        .mark_bar().encode(
            x=x, x2="end:Q", y=y,
            color=alt.Color("part:N", legend=alt.Legend(offset=above(3), columns=by_width(2, 4)),
                            scale=alt.Scale(domain=list(MEMORY), range=list(MEMORY_COLOURS.values()))))
    )
    labels = (
        rows.properties(name="label")
        .transform_calculate(text=f"format(datum.total, '.4~r') + ' GB' + (datum.total > {TOP} ? ', cut off' : '')")
        .mark_text(align="left", dx=3, dy=-27).encode(x=alt.value(0), y=y, text="text:N")
    )
    limits = alt.Chart(alt.Data(values=[{"start": size, "text": name} for size, name in cards().items()]))
    rules = limits.properties(name="card").mark_rule(strokeDash=[6, 4], strokeWidth=1.5).encode(x="start:Q")
    names = (
        limits.properties(name="cardname").mark_text(align="right", dx=-5, dy=-5, baseline="bottom", fontSize=11)
        .encode(x="start:Q", y=alt.value(alt.ExprRef("height")), text="text:N")
    )
    most = rows.transform_aggregate(most="max(total)")
    smallest, largest = cards()
    text = words(
        most,
        "tp * pp * dp + (tp * pp * dp > 1 ? ' GPUs' : ' GPU') + ', ' + pp"
        " + (pp > 1 ? ' micro-batches in flight' : ' micro-batch in flight')",
        "'the fullest GPU needs ' + format(datum.most, '.4~r') + ' GB: ' + "
        f"(datum.most <= {smallest} ? 'fits {smallest} GB' : datum.most <= {largest} ? 'fits {largest} GB, not "
        f"{smallest}' : 'fits no card here')",
        "zero >= 2 && pp > 1 ? 'ZeRO-' + zero + ' is not used with a pipeline' : "
        "sizes.L + ' layers, ' + (sizes.L % pp == 0 ? sizes.L / pp + ' on each stage' : "
        "(sizes.L + 2) / pp - 1 + ' on the first and on the last stage')",
    )
    return alt.layer(bars, labels, rules, names, text).properties(height=300).add_params(model_param())

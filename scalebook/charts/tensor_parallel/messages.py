"""How many collectives a layer or a step needs, and what they carry, by recomputation and sequence parallelism."""

import json

from scalebook import published
from scalebook.charts.units import decimal_bytes
from scalebook.charts.words import above, by_width, words
from scalebook.colours import BACKWARD, COMPARED, FORWARD
from scalebook.formulas import tensor_parallel as formulas

RANKS = (2, 4, 8, 16)
MODELS = {"GPT-3 175B": "GPT-3-175B", "MT-NLG 530B": "MT-NLG-530B"}
MEASURES = ("collectives of a layer", "bytes of a layer", "collectives of a step", "bytes of a step")
ELEMENT = 2  # bytes
PARTS = {"forward": FORWARD, "backward": BACKWARD, "recomputation": COMPARED[1], "inputs gathered again": COMPARED[0]}
RECOMPUTATIONS = ("none", "selective", "full")


def model_sizes(model):
    """Width, positions and layers of a published model, by their symbols.

    >>> model_sizes("GPT-3 175B")
    {'h': 12288, 's': 2048, 'L': 96}
    """
    shape = published.model(MODELS[model])
    return {"h": shape.d_model, "s": shape.context, "L": shape.layers}


def message_rows():
    """For each way of training, and each part of it: how many collectives, and how many all-reduces carry as much.

    With sequence parallelism an all-gather and a reduce-scatter take the place of an all-reduce, and carry half of it
    each; the inputs of both column-parallel pairs are gathered once more for the weights' gradients.
    """
    rows = []
    for recomputation in RECOMPUTATIONS:
        again = formulas.ALL_REDUCES[recomputation] - formulas.ALL_REDUCES["none"]
        reduces = {"forward": formulas.FORWARD, "backward": formulas.BACKWARD, "recomputation": again}
        for split in (False, True):
            way = f"{recomputation}{', SP' if split else ''}"
            parts = {part: (2 * count if split else count, count) for part, count in reduces.items()}
            if split:
                parts["inputs gathered again"] = (2, 1)
            start, carried = 0, 0
            for part, (calls, equal) in parts.items():
                if calls:
                    rows.append({"way": way, "part": part, "calls": [start, start + calls],
                                 "equal": [carried, carried + equal]})
                    start, carried = start + calls, carried + equal
    return rows


def messages_chart():
    """Collectives or bytes of one rank for six ways of training; signals measure, model, t, b, M."""
    import altair as alt

    rows = message_rows()
    ways = list(dict.fromkeys(row["way"] for row in rows))
    sizes = alt.param(name="sizes", expr=json.dumps({model: model_sizes(model) for model in MODELS}) + "[model]")
    of_step = f"measure == '{MEASURES[2]}' || measure == '{MEASURES[3]}'"
    counted = f"measure == '{MEASURES[0]}' || measure == '{MEASURES[2]}'"
    layers, batches = (alt.param(name=name, expr=f"{of_step} ? {many} : 1")
                       for name, many in (("layers", "sizes.L"), ("batches", "M")))

    def amount(calls, equal):
        carried = formulas.step_bytes.vega(epsilon=ELEMENT, n=equal, L="layers", M="batches", s="sizes.s", h="sizes.h")
        return f"({counted} ? {calls} * layers * batches : {carried})"

    ends = [amount(f"datum.calls[{i}]", f"datum.equal[{i}]") for i in (0, 1)]
    most = amount(max(row["calls"][1] for row in rows), max(row["equal"][1] for row in rows))
    largest = alt.param(name="largest", expr=f"1.2 * {most}")

    def written(number):
        return f"({counted} ? format({number}, ',') : {decimal_bytes(number)})"

    y = alt.Y("way:N", title="recomputation", sort=ways, scale=alt.Scale(domain=ways, paddingInner=0.35))
    chart = alt.Chart(alt.Data(values=rows)).transform_calculate(start=ends[0], end=ends[1])
    bars = chart.properties(name="part").mark_bar().encode(
        x=alt.X("start:Q", title=None, scale=alt.Scale(domainMin=0, domainMax=alt.ExprRef("largest"), nice=False),
                axis=alt.Axis(tickCount=4, labelExpr=f"datum.value ? {written('datum.value')} : '0'")),
        x2="end:Q", y=y,
        color=alt.Color("part:N", legend=alt.Legend(offset=above(1), columns=by_width(1, 0)),
                        scale=alt.Scale(domain=list(PARTS), range=list(PARTS.values()))))
    labels = (
        chart.properties(name="sum").transform_aggregate(end="max(end)", groupby=["way"])
        .transform_calculate(text=written("datum.end"))
        .mark_text(align="left", dx=4).encode(x="end:Q", y=y, text="text:N")
    )
    text = words(alt.Chart(alt.Data(values=[{}])), "measure + ', sent by one rank'")
    return alt.layer(bars, labels, text).properties(height=260).add_params(sizes, layers, batches, largest)

"""The activations that one layer keeps for its backward on one rank, part by part, for each technique."""

from scalebook.charts.units import decimal_bytes
from scalebook.charts.words import above, by_width, words
from scalebook.colours import COLUMN, COMPARED, REPLICATED
from scalebook.formulas import tensor_parallel as formulas

RANKS = (1, 2, 4, 8)
SEQUENCES = tuple(512 * 2**i for i in range(9))
HEADS = (16, 32, 64, 96, 128)
WIDTHS = (4096, 8192, 12288, 16384, 20480)
SHAPES = {"GPT-3": (12288, 96), "MT-NLG": (20480, 128)}  # width and heads
PARTS = {"norms, inputs, masks": REPLICATED, "Q, K, V and projection": COLUMN, "inside the MLP": COMPARED[1],
         "scores": COMPARED[0]}
# What each technique keeps of the four parts, as a formula and a divisor; the last keeps a layer's input alone.
TECHNIQUES = {
    "one rank": (formulas.activations, "1111"),
    "TP": (formulas.activations_tensor_parallel, "1ttt"),
    "TP + SP": (formulas.activations_sequence_parallel, "tttt"),
    "TP, selective": (formulas.activations_selective, "1tt0"),
    "TP + SP, selective": (formulas.activations_sequence_parallel_selective, "ttt0"),
    "full recomputation": (formulas.activations_full, "i000"),
}


def part_expressions():
    """Bytes of the four parts of a layer that nobody splits, and of its input, as Vega expressions."""
    parts = (formulas.activations_outside, formulas.activations_attention, formulas.activations_mlp,
             formulas.activations_scores)
    return dict(zip(PARTS, (part.vega() for part in parts), strict=True)), formulas.activations_input.vega()


def technique_expressions():
    """Bytes of each part for each technique, as Vega expressions: {technique: [expression, ...]}."""
    whole, layer_input = part_expressions()
    found = {}
    for name, (_, kept) in TECHNIQUES.items():
        ways = {"1": "{}", "t": "({}) / t", "0": "0", "i": layer_input}
        found[name] = [ways[way].format(part) for way, part in zip(kept, whole.values(), strict=True)]
    return found


def kept_chart():
    """Bytes of one layer on one rank, stacked, one bar a technique; signals t, s, a, h, b."""
    import altair as alt

    names = list(TECHNIQUES)
    table = "{" + ", ".join(f"'{name}': [{', '.join(parts)}]" for name, parts in technique_expressions().items()) + "}"
    of_layer = alt.param(name="parts", expr=table)
    largest = alt.param(name="largest", expr=f"1.25 * ({formulas.activations.vega()})")
    y = alt.Y("technique:N", title=None, sort=names, scale=alt.Scale(domain=names, paddingInner=0.35))
    x = alt.X("start:Q", title="bytes of one layer on one rank", scale=alt.Scale(
        domainMin=0, domainMax=alt.ExprRef("largest"), nice=False),
        axis=alt.Axis(tickCount=4, labelExpr=f"datum.value ? {decimal_bytes('datum.value')} : '0'"))
    rows = alt.Chart(alt.Data(values=[{"technique": name} for name in names]))
    p = "parts[datum.technique]"
    bars = (
        rows.properties(name="part")
        .transform_calculate(part=f"{list(PARTS)}", start=f"[0, {p}[0], {p}[0] + {p}[1], {p}[0] + {p}[1] + {p}[2]]",
                             end=f"[{p}[0], {p}[0] + {p}[1], {p}[0] + {p}[1] + {p}[2],"
                                 f" {p}[0] + {p}[1] + {p}[2] + {p}[3]]")
        .transform_flatten(["part", "start", "end"]).transform_filter("datum.end > datum.start").mark_bar()
        .encode(x=x, x2="end:Q", y=y, color=alt.Color(
            "part:N", legend=alt.Legend(offset=above(4), columns=by_width(1, 2)),
            scale=alt.Scale(domain=list(PARTS), range=list(PARTS.values()))))
    )
    sums = {name: formula.vega() for name, (formula, _) in TECHNIQUES.items()}
    whole = "{" + ", ".join(f"'{name}': {text}" for name, text in sums.items()) + "}[datum.technique]"
    labels = (
        rows.properties(name="sum").transform_calculate(end=whole)
        .transform_calculate(text=decimal_bytes("datum.end"))
        .mark_text(align="left", dx=4).encode(x="end:Q", y=y, text="text:N")
    )
    scores, one, best = (f"({formula.vega()})" for formula in (
        formulas.activations_scores, formulas.activations, formulas.activations_sequence_parallel_selective))
    text = words(
        alt.Chart(alt.Data(values=[{}])),
        "'5as/h = ' + format(5 * a * s / h, '.3~r') + ' beside 34:'",
        f"'scores are ' + format({scores} / {one}, '.1%')",
        "'TP + SP, selective:'",
        f"format({one} / {best}, '.3~r') + ' times less than one rank'",
    )
    return alt.layer(bars, labels, text).properties(height=260).add_params(of_layer, largest)

"""What quantization cost a real model: its perplexity against its bytes, as measured and stored."""

import math

from scalebook.borders import guard
from scalebook.charts.kinds import table
from scalebook.charts.words import above, words
from scalebook.colours import AWQ, FULL_PRECISION, GPTQ, RTN
from scalebook.formulas import quantization as formulas

METHODS = {"rtn": ("rounding to nearest", RTN), "gptq": ("GPTQ", GPTQ), "awq": ("AWQ", AWQ)}
HIGHEST = 1000  # perplexity: what is above stands at the edge, as a triangle
TICKS = [*(digit * 10**power for power in range(3) for digit in (1, 2, 5)), HIGHEST]  # of the axis of perplexity
ROW = 0  # a group size that stands for a whole row, as a page carries no None


def megabytes(weights, bits_per_weight):
    """The megabytes of a model whose linear layers have so many bits a weight, and all else 16.

    >>> megabytes({"linear": 1_000_000, "embedding": 400_000, "norms": 100_000}, 4.5)
    1.5625
    """
    rest = weights["embedding"] + weights["norms"]
    return float(formulas.model_bytes(N_q=weights["linear"], beta=bits_per_weight, N_r=rest, p=2)) / 1e6


def measured_rows(table):
    """One row a measurement, with the loss of rounding to nearest at the same bits and group size as `rounding`.

    `table` is what `scalebook.labs.quantized_model` stores; its variants of a method are left out. A loss is what is
    added to the mean negative log-likelihood of a token, in nats.
    """
    rows = [row for row in table["rows"] if row["variant"] is None]
    rounding = {(row["bits"], row["group_size"]): row["loss"] for row in rows if row["method"] == "rtn"}
    return [{"method": row["method"], "name": METHODS[row["method"]][0], "bits": row["bits"],
             "size": row["group_size"] or ROW, "beta": row["bits_per_weight"],
             "MB": megabytes(table["weights"], row["bits_per_weight"]), "perplexity": row["perplexity"],
             "loss": row["loss"], "rounding": rounding[row["bits"], row["group_size"]]}
            for row in rows]


def frame(rows, base):
    """The domains of bytes and of perplexity that hold every point up to `HIGHEST`, whole and round."""
    largest = math.log10(max(row["perplexity"] for row in rows))
    most = HIGHEST if largest >= math.log10(HIGHEST) else round(10 ** (largest + 0.1), 1 - math.floor(largest))
    return ([10 * math.floor(min(row["MB"] for row in rows) / 10 - 0.5), 10 * math.ceil(base["MB"] / 10 + 0.5)],
            [math.floor(0.9 * base["perplexity"]), min(most, HIGHEST)])


def measured_chart(table):
    """Perplexity against megabytes, every measurement a dot; signals method, bits, size (0: a row).

    A perplexity above `HIGHEST` is drawn as a triangle at the upper edge.

    `table` is `scalebook.data.load("quantization")`.
    """
    import altair as alt

    rows = measured_rows(table)
    base = {"MB": megabytes(table["weights"], 16), "perplexity": table["base"]["perplexity"]}
    bytes_domain, perplexity_domain = frame(rows, base)
    names = [name for name, _ in METHODS.values()]
    encoding = {
        "x": alt.X("MB:Q", title="megabytes", axis=alt.Axis(tickCount=6),
                   scale=alt.Scale(domain=bytes_domain, nice=False)),
        "y": alt.Y("drawn:Q", title="perplexity", axis=alt.Axis(format="~s", values=TICKS),
                   scale=alt.Scale(type="log", domain=perplexity_domain, nice=False)),
        "color": alt.Color("name:N", legend=alt.Legend(offset=above(4)), scale=alt.Scale(
            domain=names, range=[colour for _, colour in METHODS.values()])),
    }
    shape = alt.condition(f"datum.perplexity > {HIGHEST}", alt.value("triangle-up"), alt.value("circle"))
    shaped = encoding | {"shape": shape}
    drawn = f"min(datum.perplexity, {HIGHEST})"
    measured = alt.Chart(alt.Data(values=rows)).transform_calculate(drawn=drawn)
    dots = measured.properties(name="dot").mark_point(filled=True, size=26, opacity=0.75).encode(**shaped)
    line = (
        measured.properties(name="same").transform_filter("datum.method == method && datum.size == size")
        .mark_line(strokeWidth=1.5).encode(**encoding, order="bits:Q")
    )
    chosen = measured.transform_filter("datum.method == method && datum.size == size && datum.bits == bits")
    point = chosen.properties(name="chosen").mark_point(filled=True, size=170, opacity=1).encode(**shaped)
    whole = alt.Chart(alt.Data(values=[base])).transform_calculate(drawn=drawn)
    level = whole.properties(name="unquantized").mark_rule(
        color=FULL_PRECISION, strokeDash=[6, 4], strokeWidth=1.5).encode(y=encoding["y"])
    sixteen = whole.properties(name="sixteen").mark_point(
        filled=True, size=110, opacity=1, color=FULL_PRECISION, shape="square").encode(x=encoding["x"], y=encoding["y"])
    text = words(
        chosen,
        "datum.name + ', ' + datum.bits + ' bits, ' + (datum.size ? 'groups of ' + datum.size : 'a group a row')",
        f"'perplexity ' + format(datum.perplexity, '.4~r') + ', unquantized {base['perplexity']:.4g}'",
        "format(datum.MB, '.4~r') + ' MB, loses ' + format(datum.loss, '.3f') + ' nats'"
        " + (datum.method == 'rtn' ? '' : ', rounding ' + format(datum.rounding, '.3f'))",
        f"'triangles at the edge: above {HIGHEST:,}'",
    )
    return alt.layer(level, sixteen, line, dots, point, text).properties(height=300)


guard(globals(), {"table": table(rows=list, weights=dict, base=dict)}, "measured_rows", "measured_chart")

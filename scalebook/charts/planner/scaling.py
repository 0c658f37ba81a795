"""How well more and more GPUs are used: when the batch grows with them, and when it stays."""

from scalebook import published
from scalebook.charts.planner.expressions import gpu_param, model_param, utilization, with_times
from scalebook.charts.words import above, by_width, words
from scalebook.colours import COMPARED

COUNTS = tuple(2**power for power in range(3, 15))
GROWTH = {"the batch grows with the GPUs": COMPARED[0], "the batch stays": COMPARED[1]}
RUNS = "published: Llama 3 405B, 8K"
GROWING, STAYING = GROWTH
PLAN = {"t": "tp", "P": "pp", "N": "datum.N", "v": "chunks", "b": "1", "Z": "1", "s": "sizes.s", "M": "datum.M",
        "B": "datum.B", "full": "false"}


def published_runs():
    """GPUs and MFU of the published runs of Llama 3 405B on sequences of 8192 tokens.

    >>> published_runs()
    [{'g': 8192, 'mfu': 0.43}, {'g': 16384, 'mfu': 0.41}]
    """
    return [{"g": row["GPUs"], "mfu": row["MFU_pct"] / 100} for row in
            published.table("runs_3d").where(run="Llama 3 405B 8K")]


def scaling_chart():
    """MFU from 8 to 16,384 GPUs; signals model, machine, tp, pp, chunks, batch, each.

    `batch` is the samples of a step where the batch stays; where it grows, each data-parallel rank has `each` of them.
    A micro-batch is one sample.
    """
    import altair as alt

    curves = (
        alt.Chart(alt.Data(values=[{"g": g} for g in COUNTS]))
        .transform_filter("datum.g >= tp * pp")
        .transform_calculate(N="datum.g / (tp * pp)", growth=f"{list(GROWTH)}").transform_flatten(["growth"])
        .transform_calculate(B=f"datum.growth == '{STAYING}' ? batch : each * datum.N")
        .transform_calculate(M="datum.B / datum.N")
        .transform_filter("datum.M >= 1 && (chunks == 1 || (pp > 1 && datum.M % pp == 0))")
    )
    curves = with_times(curves, PLAN, "datum.g").transform_calculate(
        mfu=utilization(PLAN, "datum.B", "datum.g", causal=True))
    x = alt.X("g:Q", title="GPUs", axis=alt.Axis(values=[8, 64, 512, 4096, 16384], format=","),
              scale=alt.Scale(type="log", base=2, domain=[COUNTS[0], COUNTS[-1] * 1.25], nice=False))
    y = alt.Y("mfu:Q", title="MFU", axis=alt.Axis(format="%", tickCount=6),
              scale=alt.Scale(domain=[0, 0.7], nice=False))
    colour = alt.Color("growth:N", legend=alt.Legend(offset=above(3), columns=by_width(1, 0)),
                       scale=alt.Scale(domain=[*GROWTH, RUNS], range=[*GROWTH.values(), COMPARED[2]]))
    lines = curves.properties(name="curve").mark_line().encode(x=x, y=y, color=colour)
    dots = curves.properties(name="dot").mark_point(filled=True, size=45, opacity=1).encode(x=x, y=y, color=colour)
    known = (
        alt.Chart(alt.Data(values=[row | {"growth": RUNS} for row in published_runs()]), name="published")
        .transform_filter("model == 'Llama-3-405B' && machine == 'H100'")
        .mark_point(filled=False, size=140, strokeWidth=2, opacity=1, shape="diamond").encode(x=x, y=y, color=colour)
    )
    ends = (
        curves.transform_filter(f"datum.growth == '{STAYING}'")
        .transform_joinaggregate(most="max(g)").transform_filter("datum.g == datum.most")
        .transform_calculate(share="datum['data parallel'] / datum.step", idle="datum.bubble / datum.step")
    )
    text = words(
        ends,
        "'the same batch on ' + format(datum.g, ',') + ' GPUs: DP ' + datum.N"
        " + ', ' + format(datum.M, '.4~r') + (datum.M > 1 ? ' micro-batches' : ' micro-batch')",
        "'a step of ' + format(datum.step, '.3~r') + ' s, MFU ' + format(datum.mfu, '.1%')",
        "'the bubble takes ' + format(datum.idle, '.1%') + ', DP messages '"
        " + format(datum.share, '.1%')",
    )
    return alt.layer(lines, dots, known, text).properties(height=300).add_params(model_param(), gpu_param())

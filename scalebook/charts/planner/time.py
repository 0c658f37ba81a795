"""The time of one step of a plan, part by part."""

from scalebook.charts.planner.expressions import TIME, gpu_param, model_param, utilization, with_times
from scalebook.charts.planner.parts import KIND_OF, KINDS
from scalebook.charts.units import seconds
from scalebook.charts.words import above, by_width, words

PLAN = {"t": "tp", "P": "pp", "N": "dp", "v": "chunks", "b": "micro_batch", "Z": "1", "s": "sizes.s",
        "M": "ceil(batch / (dp * micro_batch))", "B": "batch", "full": "recompute"}
GPUS = "(tp * pp * dp)"


def time_chart():
    """Seconds of a step; signals model, machine, tp, pp, dp, chunks, micro_batch, batch (samples), recompute."""
    import altair as alt

    row = with_times(alt.Chart(alt.Data(values=[{}])), PLAN, GPUS)
    each = (
        row.transform_fold(list(TIME), as_=["part", "time"])
        .transform_calculate(share="datum.time / datum.step", kind="{" + ", ".join(
            f"'{part}': '{kind}'" for part, kind in KIND_OF.items()) + "}[datum.part]")
    )
    y = alt.Y("part:N", title=None, sort=list(TIME), scale=alt.Scale(domain=list(TIME), paddingInner=0.3))
    x = alt.X("share:Q", title="share of the step", axis=alt.Axis(format="%", tickCount=5),
              scale=alt.Scale(domain=[0, 1.15], nice=False))
    bars = each.properties(name="part").transform_filter("datum.time > 0").mark_bar().encode(
        x=x, y=y, color=alt.Color("kind:N", legend=alt.Legend(offset=above(3), columns=by_width(2, 0)),
                                  scale=alt.Scale(domain=list(KINDS), range=list(KINDS.values()))))
    labels = (
        each.properties(name="label")
        .transform_calculate(text=f"datum.time > 0 ? {seconds('datum.time')} : 'none'")
        .mark_text(align="left", dx=4).encode(x=x, y=y, text="text:N")
    )
    uneven = "batch % (dp * micro_batch) != 0"
    divided = "(sizes.L % (pp * chunks) == 0 || (pp > 1 && (sizes.L + 2) % (pp * chunks) == 0))"
    text = words(
        row,
        f"{GPUS} + ({GPUS} > 1 ? ' GPUs' : ' GPU') + ', a step of ' + {seconds('datum.step')}"
        " + ', ' + format(batch * sizes.s / datum.step, ',.3~r') + ' tokens/s'",
        f"'MFU ' + format({utilization(PLAN, 'batch', GPUS)}, '.1%') + ', '"
        f" + {PLAN['M']} + ' micro-batches a rank'",
        f"{uneven} ? 'the last micro-batch is not full' : "
        f"!{divided} ? 'some stages have fewer layers' : "
        "chunks > 1 && pp == 1 ? 'one stage has nothing to interleave' : "
        "gpu.each % tp != 0 && tp > 1 ? 'TP crosses the node' : 'TP runs inside nodes'",
    )
    return alt.layer(bars, labels, text).properties(height=300).add_params(model_param(), gpu_param())

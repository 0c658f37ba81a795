"""What each rank holds of an array on its way round the ring, after each step of an all-reduce."""

import numpy as np

from scalebook.charts.words import above, by_width, words
from scalebook.checks import whole
from scalebook.colours import ALL_GATHER, ALL_REDUCE, IDLE, MESSAGE
from scalebook.formulas import collectives as formulas

RING = (2, 3, 4, 5, 6, 7, 8)
MOST_STEPS = formulas.steps_all_reduce(R=RING[-1])
STATES = {"own numbers": IDLE, "partial sum": ALL_REDUCE, "whole sum": ALL_GATHER}
OWN, PARTIAL, WHOLE = STATES
INSET = 0.06  # of a cell, on each side


def ring_sums(R, step):
    """How many ranks' numbers are in each part of each rank's array after `step` steps of a ring all-reduce.

    Returns a list for each of the R ranks, of R counts, one for each part: 1 is the rank's own numbers, R the whole
    sum. Steps after the last change nothing. Raises ValueError for an R below 1 or above 1024, or a step below 0.

    >>> ring_sums(3, 0), ring_sums(3, 2), ring_sums(3, 4)
    ([[1, 1, 1], [1, 1, 1], [1, 1, 1]], [[3, 2, 1], [1, 3, 2], [2, 1, 3]], [[3, 3, 3], [3, 3, 3], [3, 3, 3]])
    """
    whole("R", R, most=1024)
    whole("step", step, least=0)
    ranks, step = np.arange(R), min(step, formulas.steps_all_reduce(R=R))
    return formulas.ring_summed(R=R, r=ranks[:, None], c=ranks, s=step).astype(int).tolist()


def ring_chart():
    """Every rank's parts after some steps of a ring all-reduce; signals ranks, at most 8, and step."""
    import altair as alt

    most = RING[-1]
    taken = alt.param(name="taken", expr=f"min(step, {formulas.steps_all_reduce.vega(R='ranks')})")
    at = {"R": "ranks", "r": "datum.rank", "c": "datum.part"}
    cells = (
        alt.Chart(alt.Data(values=[{"rank": rank, "part": part} for rank in range(most) for part in range(most)]))
        .transform_filter("datum.rank < ranks && datum.part < ranks")
        .transform_calculate(visit=formulas.ring_visit.vega(**at), sum=formulas.ring_summed.vega(**at, s="taken"))
        .transform_calculate(
            state=f"datum.sum == ranks ? '{WHOLE}' : datum.sum > 1 ? '{PARTIAL}' : '{OWN}'",
            arrived="taken > 0 && datum.visit == taken % ranks",
            left=f"datum.part + {INSET}", right=f"datum.part + {1 - INSET}",
            bottom=f"datum.rank + {1 - INSET}", middle="datum.rank + 0.5", centre="datum.part + 0.5")
        .transform_calculate(top=f"datum.bottom - {1 - 2 * INSET} * datum.sum / ranks", lid=f"datum.rank + {INSET}",
                             held=_holders("datum"))
    )
    x = alt.X("left:Q", title="part of the array", axis=None, scale=alt.Scale(
        domainMin=0, domainMax=alt.ExprRef("ranks"), nice=False))
    y = alt.Y("top:Q", axis=None, scale=alt.Scale(domainMin=alt.ExprRef("ranks"), domainMax=-0.6, nice=False))
    colour = alt.Color("state:N", legend=alt.Legend(offset=above(3), symbolOpacity=0.8),
                       scale=alt.Scale(domain=list(STATES), range=list(STATES.values())))
    frames = cells.properties(name="frame").mark_rect(opacity=0.15).encode(
        x=x, x2="right:Q", y=alt.Y("lid:Q", axis=None), y2="bottom:Q", color=colour)
    fills = cells.properties(name="sum").mark_rect(opacity=0.55).encode(
        x=x, x2="right:Q", y=y, y2="bottom:Q", color=colour)
    arrivals = (
        cells.properties(name="arrival").transform_filter("datum.arrived")
        .mark_text(text="▼", fontSize=11, color=MESSAGE, baseline="middle")
        .encode(x=alt.X("centre:Q", axis=None), y=alt.Y("rank:Q", axis=None))
    )
    texts = (
        cells.properties(name="held")
        .mark_text(fontSize=by_width(9, 12))
        .encode(x=alt.X("centre:Q", axis=None), y=alt.Y("middle:Q", axis=None), text="held:N")
    )
    half, in_all = formulas.sent_reduce_scatter.vega(R="ranks", S="1"), formulas.sent_all_reduce.vega(R="ranks", S="1")
    sent = f"({half}) * taken / ({formulas.steps_reduce_scatter.vega(R='ranks')})"
    text = words(
        alt.Chart(alt.Data(values=[{}])),
        f"'step ' + taken + ' of ' + ({formulas.steps_all_reduce.vega(R='ranks')}) + (taken == 0 ? ': the start' : "
        "taken < ranks ? ': reduce-scatter, what arrives is added' : ': all-gather, what arrives is kept')",
        f"'each rank has sent ' + format({sent}, '.3~r') + ' of '"
        f" + format({in_all}, '.3~r') + ' times the array'",
        "'a row is a rank, from 0; a column is a part'",
    )
    return alt.layer(frames, fills, arrivals, texts, text).properties(height=320).add_params(taken)


def _holders(datum):
    """The ranks whose numbers are in a cell, as digits one after the other, in the order of their visits."""
    digits = "substring('" + "".join(map(str, range(RING[-1]))) + "', 0, ranks)"
    first = f"({datum}.sum == 1 ? {datum}.rank : {datum}.sum == ranks ? 0 : ({datum}.part + 1) % ranks)"
    return f"substring({digits} + {digits}, {first}, {first} + {datum}.sum)"

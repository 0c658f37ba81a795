"""What a broadcast along a chain costs, against the number of chunks that it is cut into."""

from scalebook.charts.collectives.times import cost_of_link
from scalebook.charts.units import binary_bytes, seconds
from scalebook.charts.words import words
from scalebook.colours import BROADCAST
from scalebook.formulas import collectives as formulas

CHUNKS = tuple(sorted({round(2 ** (i / 2)) for i in range(25)}))  # 1 to 4096


def chunks_chart():
    """Time of a broadcast against its chunks, and the best number of them; signals ranks, size, link."""
    import altair as alt

    costs = cost_of_link()
    at = {"R": "ranks", "S": "size", "alpha": "cost.alpha", "omega": "cost.omega"}
    best, least = formulas.best_chunks.vega(**at), formulas.time_broadcast_best.vega(**at)

    def time(chunks):
        return formulas.time_broadcast.vega(**at, k=chunks)

    ends = [time(str(CHUNKS[0])), time(str(CHUNKS[-1]))]
    x = alt.X("chunks:Q", title="chunks", axis=alt.Axis(values=[4**i for i in range(7)], format="d"), scale=alt.Scale(
        type="log", base=2, domain=[CHUNKS[0], CHUNKS[-1]], nice=False))
    y = alt.Y("time:Q", title="time", axis=alt.Axis(tickCount=5, labelExpr=seconds("datum.value")), scale=alt.Scale(
        type="log", domainMin=alt.ExprRef(f"0.7 * {least}"), domainMax=alt.ExprRef(f"1.3 * max({', '.join(ends)})"),
        nice=False))
    line = (
        alt.Chart(alt.Data(values=[{"chunks": chunks} for chunks in CHUNKS]), name="curve")
        .transform_calculate(time=time("datum.chunks")).mark_line(color=BROADCAST).encode(x=x, y=y)
    )
    chosen = alt.Chart(alt.Data(values=[{}])).transform_calculate(chunks=best, time=least)
    point = chosen.properties(name="best").mark_point(
        filled=True, size=110, opacity=1, color=BROADCAST).encode(x=x, y=y)
    text = words(
        chosen,
        f"{binary_bytes('size')} + ' along a chain of ' + ranks + ' ranks: ' + {seconds(ends[0])} + ' in one chunk,'",
        f"{seconds('datum.time')} + ' in ' + format(datum.chunks, '.3~r') + ' (the best number, before rounding),'",
        f"{seconds(ends[1])} + ' in {CHUNKS[-1]:,}; its bytes alone take ' + {seconds('size / cost.omega')}",
    )
    return alt.layer(line, point, text).properties(height=280).add_params(costs)

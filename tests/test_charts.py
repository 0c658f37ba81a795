"""The functions behind the explorers' controls, over their whole grids: they answer, and stay in the frame."""

import pytest

from scalebook.charts import pipeline as charts
from scalebook.explorer import grid


def domain(chart, channel):
    """The least and the largest value that a chart's axis shows."""
    spec = chart.to_dict()
    encodings = [part["encoding"] for part in spec.get("layer", [spec])]
    return next(e[channel]["scale"]["domain"] for e in encodings if "domain" in e.get(channel, {}).get("scale", {}))


@pytest.mark.parametrize(("chart", "rows", "x", "y"), [
    (charts.trade_chart, lambda: grid(charts.trade_row, **charts.GANTT_GRID), "peak", "span"),
    (charts.trade_chart, lambda: grid(charts.trade_row, **charts.GANTT_GRID), "peak", "overhead"),
    (charts.slow_chart, lambda: grid(charts.slow_rows, **charts.SLOW_GRID), "slower", "over"),
], ids=["trade, device by device", "trade, whole step", "slow"])
def test_every_point_lies_in_the_frame_at_every_setting(chart, rows, x, y):
    drawn = chart()
    for channel, name in (("x", x), ("y", y)):
        low, high = domain(drawn, channel)
        for row in rows():
            assert low <= row[name] <= high, row


def test_every_schedule_of_the_grid_is_drawn_or_does_not_exist():
    rows = grid(charts.gantt_row, **charts.GANTT_GRID)
    empty = [row for row in rows if not row["starts"]]
    assert {row["schedule"] for row in empty} == {"interleaved"}
    assert all(row["M"] % row["P"] for row in empty)
    for row in rows:
        if row["starts"]:
            assert len(row["starts"]) == 2 * row["P"] * row["M"] * row["kinds"] * row["chunks"]

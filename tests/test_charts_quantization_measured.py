"""The chart of measured perplexities: what it draws is what was stored, in the frame, and legible without a kernel."""

import math

import pytest
import vl_convert
from hypothesis import given, settings
from hypothesis import strategies as st

from scalebook.charts.quantization import measured, measured_chart
from scalebook.explorer import spec

WEIGHTS = {"linear": 106_168_320, "embedding": 28_311_552, "norms": 35_136}
LOSSES = {"rtn": 0.4, "gptq": 0.1, "awq": 0.2}


def table(base=11.5, scale=1.0):
    """A table as `quantized_model` stores it, with the losses of `LOSSES` at 4 bits, times `scale`."""
    rows = [{"method": method, "bits": bits, "group_size": size, "variant": None, "loss": loss * scale * 4 / bits,
             "perplexity": base * math.exp(loss * scale * 4 / bits),
             "bits_per_weight": bits + (16 + bits) / (size or 700)}
            for bits in (4, 3, 2, 8) for size in (None, 192, 64) for method, loss in LOSSES.items()]
    variant = rows[1] | {"variant": "gptq, no act-order", "perplexity": 10 * rows[1]["perplexity"]}
    return {"base": {"perplexity": base}, "weights": WEIGHTS, "rows": [*rows, variant]}


def test_a_row_stands_at_its_bytes_and_beside_roundings_loss():
    rows = measured.measured_rows(table())
    assert len(rows) == 4 * 3 * 3, "variants are left out"
    (one,) = [row for row in rows if (row["method"], row["bits"], row["size"]) == ("gptq", 4, 64)]
    assert one["MB"] == pytest.approx((106_168_320 * (4 + 20 / 64) / 8 + 2 * 28_346_688) / 1e6)
    assert (one["loss"], one["rounding"]) == (0.1, 0.4)
    assert {row["size"] for row in rows} == {0, 64, 192}


@settings(deadline=None, max_examples=100)
@given(base=st.floats(2, 50), scale=st.floats(0, 20))
def test_every_point_lies_in_the_frame_or_above_the_highest_perplexity_drawn(base, scale):
    found = table(base, scale)
    rows = measured.measured_rows(found)
    whole = {"MB": measured.megabytes(WEIGHTS, 16), "perplexity": base}
    (least_mb, most_mb), (least, most) = measured.frame(rows, whole)
    for row in [*rows, whole]:
        assert least_mb < row["MB"] < most_mb
        assert 0 < least < row["perplexity"]
        assert row["perplexity"] < most or (row["perplexity"] >= most == measured.HIGHEST)


def test_the_chart_draws_in_vega():
    chart = spec.rounded(measured_chart(table()).to_dict())
    signals = [{"name": name, "value": value} for name, value in (("method", "awq"), ("bits", 4), ("size", 0))]
    svg = vl_convert.vegalite_to_svg(chart | {"params": signals}, vl_version=spec.VEGALITE)
    assert "AWQ, 4 bits, a group a row" in svg
    assert "perplexity 14.05, unquantized 11.5" in svg  # 11.5 exp(0.2)
    assert "loses 0.200 nats, rounding 0.400" in svg


def test_a_perplexity_above_the_highest_drawn_is_written_exactly_and_does_not_stretch_the_axis():
    found = table(scale=10)
    chart = spec.rounded(measured_chart(found).to_dict())
    signals = [{"name": name, "value": value} for name, value in (("method", "rtn"), ("bits", 2), ("size", 0))]
    svg = vl_convert.vegalite_to_svg(chart | {"params": signals}, vl_version=spec.VEGALITE)
    assert "perplexity 34280, unquantized 11.5" in svg  # 11.5 exp(8) = 34281
    assert "loses 8.000 nats" in svg
    _, (_, most) = measured.frame(measured.measured_rows(found), {"MB": 269, "perplexity": 11.5})
    assert most == 1000

"""The chart of a router in training: what travels packed is what was recorded."""

import math

import pytest
import vl_convert

from scalebook.charts.moe import balance, balance_chart
from scalebook.explorer import spec
from scalebook.moe import balance as measures

STEPS = (0, 20, 40)


def records(experts=8):
    return [{"coefficient": coefficient, "layer": layer, "step": step, "loss": 4.5 - step / 100,
             "loads": [1 + step * layer * (expert == 3) for expert in range(experts)]}
            for coefficient in (0, 0.01) for layer in (1, 2) for step in STEPS]


def unpacked(text):
    return [int(text[i:i + balance.WIDTH], 36) / balance.SCALE for i in range(0, len(text), balance.WIDTH)]


def test_what_travels_is_what_was_recorded():
    rows = balance.balance_rows(records())
    assert [(row["coefficient"], row["layer"], row["steps"]) for row in rows] == [
        (coefficient, layer, list(STEPS)) for coefficient in (0, 0.01) for layer in (1, 2)]
    for row in rows:
        for place, step in enumerate(STEPS):
            (record,) = [one for one in records() if (one["coefficient"], one["layer"], one["step"]) == (
                row["coefficient"], row["layer"], step)]
            loads = record["loads"]
            shares = unpacked(row["shares"])[8 * place:8 * place + 8]
            assert shares == pytest.approx([load / sum(loads) for load in loads], abs=5e-5)
            assert unpacked(row["entropy"])[place] == pytest.approx(float(measures.entropy(loads)), abs=5e-5)
            assert unpacked(row["variation"])[place] == pytest.approx(float(measures.variation(loads)), abs=5e-5)
            assert balance.LOSS_UNIT * unpacked(row["loss"])[place] == pytest.approx(record["loss"], abs=5e-4)


def test_the_order_of_the_records_does_not_matter():
    assert balance.balance_rows(records()[::-1]) == balance.balance_rows(records())


def test_a_missing_step_and_a_missing_expert_are_refused():
    with pytest.raises(ValueError, match="every run must have the same steps"):
        balance.balance_rows(records()[:-1])
    with pytest.raises(ValueError, match=r"\[7, 8\] experts"):
        balance.balance_rows([*records()[:-1], records(7)[-1]])


def test_the_largest_variation_of_sixteen_experts_fits():
    one = [{"coefficient": 0, "layer": 0, "step": 0, "loss": 5.5, "loads": [1] + [0] * 15}]
    assert unpacked(balance.balance_rows(one)[0]["variation"]) == pytest.approx([math.sqrt(15)], abs=5e-5)


def test_the_chart_draws_in_vega():
    chart = spec.rounded(balance_chart(records()).to_dict())
    signals = [{"name": name, "value": value} for name, value in (("coefficient", 0), ("layer", 2), ("step", 40))]
    svg = vl_convert.vegalite_to_svg(chart | {"params": signals}, vl_version=spec.VEGALITE)
    assert "largest share 92.0%" in svg  # 81 of 88
    assert "task loss 4.10" in svg


def test_an_expert_without_tokens_keeps_its_place():
    starved = [record | {"loads": [0, 0, 5, 0, 0, 3, 0, 0]} for record in records()]
    signals = [{"name": name, "value": value} for name, value in (("coefficient", 0), ("layer", 2), ("step", 40))]
    svg = vl_convert.vegalite_to_svg(spec.rounded(balance_chart(starved).to_dict()) | {"params": signals},
                                     vl_version=spec.VEGALITE)
    assert [expert for expert in range(1, 9) if f">{expert}</text>" not in svg] == []
    assert svg.count('aria-roledescription="bar"') == 2

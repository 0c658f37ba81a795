"""The functions behind the explorers of chapter 1, over their grids: right sums, the library's gates, the frame."""

import json
import math
from fractions import Fraction
from itertools import pairwise

import pytest
import torch

from scalebook import moe, published
from scalebook.charts.moe import capacity_chart, cost, distinct_chart, presets_chart, routing, token_chart
from scalebook.explorer import grid
from scalebook.formulas import moe as formulas
from tests.vega_oracle import evaluate

ALL_PRESETS = {"model": cost.PRESETS, "measure": list(cost.MEASURES)}
TOKEN_GRID = {"token": list(routing.LOGITS), "gate": list(routing.GATES.values()), "push": routing.PUSHES}


def unpacked(text, width=3):
    return [int(text[i:i + width], 36) / 10**routing.DIGITS for i in range(0, len(text), width)]


@pytest.fixture(scope="module")
def token_rows():
    return grid(routing.token_row, **TOKEN_GRID)


@pytest.fixture(scope="module")
def capacity_rows():
    return grid(routing.capacity_row, **routing.CAPACITY_GRID)


def test_the_budget_at_mixtrals_own_numbers_is_its_published_count():
    curves = list(cost.budget_expressions("datum.experts").values())
    values = {"experts": 8, "K": 2, "F": 14336}
    cases = [(text.replace("K", "datum.K").replace("F", "datum.F"), values) for text in curves]
    assert evaluate(cases) == pytest.approx([46.702792704, 12.879925248, 2 * 12.748853248], rel=1e-9)


def test_every_point_of_the_budget_lies_in_its_frame():
    for experts in cost.CURVE:
        for width in cost.WIDTHS:
            for k in range(1, min(8, experts) + 1):
                sizes = cost.base_sizes() | {"E": experts, "F": width}
                active = formulas.active_parameters(**sizes, K=k)
                flops = formulas.flops_forward(N=formulas.multiplying_parameters(**sizes, K=k))
                assert 1e9 <= active <= formulas.total_parameters(**sizes) <= 1e12
                assert 1e9 <= flops <= 1e12


def test_with_more_experts_the_flops_stay_level_but_for_the_router():
    def flops(experts):
        sizes = cost.base_sizes() | {"E": experts, "F": 14336}
        return formulas.flops_forward(N=formulas.multiplying_parameters(**sizes, K=2))

    assert flops(128) - flops(8) == 32 * 2 * 4096 * 120
    assert flops(128) / flops(8) < 1.0013


@pytest.mark.parametrize("model", cost.PRESETS)
def test_the_parts_of_a_preset_sum_to_the_count_and_to_the_flops(model):
    shape = published.model(model)
    count = moe.count_parameters(shape)
    work = moe.flops_per_token(shape, 1)
    matrices = work.total - work.by_part["attention scores"]
    expected = {"parameters, in billions": count.total / 1e9, "GFLOP of one token, forward": matrices / 1e9,
                "GB in memory at 16 bits": moe.resident_bytes(shape, 2) / 1e9, "share of all parameters": 1}
    assert list(expected) == list(cost.MEASURES)
    for measure, whole in expected.items():
        rows = cost.preset_rows(model, measure)
        assert rows[0]["start"] == 0
        assert all(row["start"] < row["end"] <= cost.MEASURES[measure] * (1 + 1e-12) for row in rows)
        assert all(one["end"] == two["start"] for one, two in pairwise(rows))
        assert rows[-1]["end"] == pytest.approx(whole, rel=1e-12)


def test_a_presets_label_says_what_its_bar_shows():
    labels = {row["measure"]: row["text"] for row in grid(cost.preset_label, **ALL_PRESETS)
              if row["model"] == "DeepSeek-V3"}
    assert list(labels.values()) == ["671.0B, a token uses 37.6B", "73.2 GFLOP", "1342.1 GB, a token uses 75.1 GB",
                                     "a token uses 5.6%"]


@pytest.mark.parametrize("model", cost.PRESETS)
def test_a_batch_touches_from_k_experts_to_all(model):
    sizes = cost.expert_sizes(model)
    shares = [formulas.distinct_experts(E=sizes["E"], K=sizes["K"], T=float(batch)) / sizes["E"]
              for batch in cost.BATCHES]
    assert shares[0] == pytest.approx(sizes["K"] / sizes["E"])
    assert shares == sorted(shares)
    assert 0.99 < shares[-1] <= 1
    assert sizes["GB"] < moe.resident_bytes(published.model(model), 2) / 1e9


def test_the_two_tokens_have_the_weights_of_the_lesson():
    for token, pair in {"quantum": ((2, 0.68), (5, 0.32)), "court": ((1, 0.55), (7, 0.45))}.items():
        row = routing.token_row(token, "kept", 0.0)
        weights = unpacked(row["weights"])[8:16]  # K = 2
        assert [int(expert) for expert in row["ranked"][:2]] == [expert for expert, _ in pair]
        assert [round(weights[expert - 1], 2) for expert, _ in pair] == [weight for _, weight in pair]
        assert sorted(weights)[:6] == [0] * 6


def test_packed_weights_are_those_of_the_gates_at_every_setting(token_rows):
    assert len(token_rows) == 2 * 3 * 41
    for row in token_rows:
        weights, softmax = unpacked(row["weights"]), unpacked(row["softmax"])
        assert sorted(row["ranked"]) == list("12345678")
        assert sum(softmax) == pytest.approx(1, abs=8e-4)
        for k in range(1, 9):
            of_k = weights[8 * (k - 1):8 * k]
            chosen = [int(expert) - 1 for expert in row["ranked"][:k]]
            assert {e for e, weight in enumerate(of_k) if weight} == set(chosen)
            if row["gate"] == "all":
                assert of_k == [share if e in chosen else 0 for e, share in enumerate(softmax)]
            else:
                assert sum(of_k) == pytest.approx(1, abs=8e-4)
            if row["gate"] == "kept":
                kept = sum(softmax[e] for e in chosen)
                assert of_k == pytest.approx([softmax[e] / kept if e in chosen else 0 for e in range(8)], abs=1e-3)


def test_a_push_past_the_gap_swaps_the_two_experts():
    before, after = (routing.token_row("quantum", "kept", push)["ranked"][:2] for push in (0.7, 0.8))
    assert (before, after) == ("25", "52")


def test_tokens_choose_k_different_experts_as_often_as_the_skew_says():
    for skew in routing.CAPACITY_GRID["skew"]:
        weights = [i**-skew for i in range(1, 9)]
        shares = routing.sampled_choices(skew, 1).flatten().bincount(minlength=8) / routing.TOKENS
        for share, weight in zip(shares.tolist(), weights, strict=True):
            chance = weight / sum(weights)
            assert abs(share - chance) < 4 * math.sqrt(chance / routing.TOKENS)
        pairs = routing.sampled_choices(skew, 2)
        assert (pairs[:, 0] != pairs[:, 1]).all()
        assert torch.equal(pairs[:, :1], routing.sampled_choices(skew, 1))


def test_tokens_and_slots_add_up_at_every_capacity(capacity_rows):
    assert len(capacity_rows) == 2 * 5 * 7
    for row in capacity_rows:
        asked = routing.TOKENS * row["K"]
        assert sum(row["wanted"]) == asked
        assert row["taken"] == [min(wanted, row["room"]) for wanted in row["wanted"]]
        assert row["lost"] == pytest.approx(1 - sum(row["taken"]) / asked)
        assert row["vacant"] == pytest.approx(1 - sum(row["taken"]) / (8 * row["room"]))
        assert 0 <= row["bare"] <= row["lost"]
        assert row["room"] == formulas.expert_capacity(c=Fraction(str(row["factor"])), K=row["K"], T=4096, E=8)
        assert max(*row["wanted"], row["room"]) <= routing.TOP * row["K"]


def test_a_choice_is_dropped_less_often_with_more_room(capacity_rows):
    for k in (1, 2):
        for skew in routing.CAPACITY_GRID["skew"]:
            lost = [row["lost"] for row in capacity_rows if row["K"] == k and row["skew"] == skew]
            assert lost == sorted(lost, reverse=True)


@pytest.mark.parametrize("chart", [distinct_chart, presets_chart, token_chart, capacity_chart])
def test_a_chart_is_the_same_each_time_it_is_made(chart):
    assert json.dumps(chart().to_dict(), sort_keys=True) == json.dumps(chart().to_dict(), sort_keys=True)

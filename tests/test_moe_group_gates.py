"""Gates that choose within groups of experts, by scores and a bias: against loops and against transformers."""

import math
import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scalebook import moe

os.environ["HF_HUB_OFFLINE"] = "1"


def logits(tokens=7, experts=6, seed=0, dtype=torch.float64):
    return torch.randn(tokens, experts, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def loop_over_groups(scores, choice, k, n_group, topk_group, best, scale, renormalise):
    """One token of a group-limited gate, without tensors: experts and weights."""
    size = len(choice) // n_group
    rank = [sum(sorted(choice[g * size:(g + 1) * size])[-best:]) for g in range(n_group)]
    groups = sorted(range(n_group), key=lambda g: -rank[g])[:topk_group]
    experts = sorted((e for e in range(len(choice)) if e // size in groups), key=lambda e: -choice[e])[:k]
    total = sum(scores[e] for e in experts) if renormalise else 1
    return experts, [scores[e] / total * scale for e in experts]


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 10**6), st.booleans(), st.data())
def test_the_group_limited_gates_equal_a_loop(n_group, size, seed, renormalise, data):
    topk_group = data.draw(st.integers(1, n_group))
    k = data.draw(st.integers(1, topk_group * size))
    logits_TE, bias_E = logits(4, n_group * size, seed), logits(1, n_group * size, seed + 1)[0]
    groups = {"n_group": n_group, "topk_group": topk_group}
    sigmoid = moe.route_sigmoid(logits_TE, k, bias_E=bias_E, renormalise=renormalise, route_scale=2.5, **groups)
    softmax = moe.route_grouped_softmax(logits_TE, k, route_scale=16.0, **groups)
    for t in range(4):
        scores_E, probabilities_E = torch.sigmoid(logits_TE[t]), torch.softmax(logits_TE[t], -1)
        for result, want in (
            (sigmoid, loop_over_groups(scores_E.tolist(), (scores_E + bias_E).tolist(), k, n_group, topk_group,
                                       2, 2.5, renormalise)),
            (softmax, loop_over_groups(probabilities_E.tolist(), probabilities_E.tolist(), k, n_group, topk_group,
                                       1, 16.0, False))):
            assert result.experts_TK[t].tolist() == want[0]
            assert result.weights_TK[t].tolist() == pytest.approx(want[1], rel=1e-9)
        assert torch.allclose(sigmoid.probabilities_TE[t], scores_E / scores_E.sum())
        assert torch.allclose(softmax.probabilities_TE[t], probabilities_E)


def same_choice(result, weights_TK, experts_TK, experts):
    dense = torch.zeros(len(weights_TK), experts).scatter(1, experts_TK, weights_TK)
    torch.testing.assert_close(moe.dense_gates(result), dense, rtol=1e-5, atol=1e-6)


def test_the_sigmoid_gate_equals_that_of_transformers_in_deepseek_v3s_size():
    from transformers import DeepseekV3Config
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter

    router = DeepseekV3TopkRouter(DeepseekV3Config(hidden_size=256))
    assert (router.num_experts, router.top_k, router.num_group, router.topk_group) == (256, 8, 8, 4)
    router.weight.data = torch.eye(256)
    router.e_score_correction_bias += 0.1 * logits(1, 256, 1, torch.float32)[0]
    logits_TE = logits(64, 256, dtype=torch.float32)
    _, weights_TK, experts_TK = router(logits_TE)
    result = moe.route_sigmoid(logits_TE, 8, bias_E=router.e_score_correction_bias, n_group=8, topk_group=4,
                               route_scale=2.5)
    same_choice(result, weights_TK.detach(), experts_TK, 256)


def test_the_grouped_gate_equals_that_of_transformers_in_deepseek_v2s_size():
    from transformers import DeepseekV2Config
    from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2TopkRouter

    config = DeepseekV2Config(hidden_size=160, n_routed_experts=160, num_experts_per_tok=6, n_group=8, topk_group=3,
                              topk_method="group_limited_greedy", routed_scaling_factor=16.0)
    router = DeepseekV2TopkRouter(config)
    router.weight.data = torch.eye(160)
    logits_TE = logits(64, 160, dtype=torch.float32)
    _, weights_TK, experts_TK = router(logits_TE)
    result = moe.route_grouped_softmax(logits_TE, 6, n_group=8, topk_group=3, route_scale=16.0)
    same_choice(result, weights_TK.detach(), experts_TK, 160)


def test_the_bias_moves_the_choice_and_not_the_weights():
    logits_TE = torch.tensor([[1.0, 0.5, 0.0]])
    moved = moe.route_sigmoid(logits_TE, 1, bias_E=torch.tensor([0.0, 0.0, 5.0]), renormalise=False)
    assert moved.experts_TK.tolist() == [[2]]
    assert moved.weights_TK.tolist() == [[0.5]]


def test_scores_that_all_underflow_still_give_weights():
    result = moe.route_sigmoid(torch.full((1, 4), -1e4), 2)
    assert result.weights_TK.tolist() == [[0.5, 0.5]]


@pytest.mark.parametrize(("options", "message"), [
    ({"n_group": 4}, "n_group = 4 is not allowed; it must divide the 6 experts"),
    ({"n_group": 0}, "n_group = 0 is not allowed"),
    ({"n_group": True}, "n_group = True is not allowed"),
    ({"n_group": 3, "topk_group": 4}, "topk_group = 4 is not allowed; topk_group must be a whole number from 1 to 3"),
    ({"n_group": 3, "topk_group": 1}, "k = 3 is not allowed; 1 of 3 groups hold 2 of the 6 experts"),
    ({"bias_E": torch.zeros(5)}, r"bias_E has the shape \(5,\), so E = 5; but logits_TE .* E = 6"),
    ({"bias_E": torch.full((6,), math.nan)}, "bias_E = .* must hold 6 finite numbers"),
])
def test_groups_and_biases_that_cannot_be_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        moe.route_sigmoid(logits(), 3, **options)


def test_the_bias_rule_evens_out_a_skewed_sigmoid_gate():
    logits_TE = logits(512, 8) + torch.linspace(0, 2, 8, dtype=torch.float64)
    bias_E, loads = torch.zeros(8, dtype=torch.float64), []
    for _ in range(300):
        load_E = torch.bincount(moe.route_sigmoid(logits_TE, 2, bias_E=bias_E).experts_TK.flatten(), minlength=8)
        loads.append(load_E.double())
        bias_E = moe.selection_bias_update(bias_E, load_E, 0.005)
    variation = [float(load_E.std(correction=0) / load_E.mean()) for load_E in (loads[0], loads[-1])]
    assert variation[0] > 0.5
    assert variation[1] < 0.1


@pytest.mark.parametrize(("load", "gamma", "message"), [
    ([1, 2], 0.1, r"load_E has the shape \(2,\), so E = 2; but bias_E has the shape \(3,\)"),
    ([1, 2, -1], 0.1, "load_E = "), ([1, 2, math.inf], 0.1, "load_E = "),
    ([1, 2, 3], -0.1, "gamma = -0.1"), ([1, 2, 3], True, "gamma = True"), ([1, 2, 3], math.nan, "gamma = nan"),
])
def test_a_bias_update_that_cannot_be_is_named(load, gamma, message):
    with pytest.raises(ValueError, match=message):
        moe.selection_bias_update(torch.zeros(3), torch.tensor(load), gamma)

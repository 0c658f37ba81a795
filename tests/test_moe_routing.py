"""Gates, capacity and dispatch: against loops over tokens, against transformers, and on every edge."""

import doctest
import math
import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scalebook import moe
from scalebook.moe import dispatching, routing

os.environ["HF_HUB_OFFLINE"] = "1"

GATES = {
    "top-k": lambda logits, k, **kw: moe.route_top_k(logits, k, **kw),
    "softmax first": lambda logits, k, **kw: moe.route_top_k(logits, k, order="softmax-before", **kw),
    "sigmoid": lambda logits, k, **kw: moe.route_sigmoid(logits, k, **kw),
    "grouped": lambda logits, k, **kw: moe.route_grouped_softmax(logits, k, n_group=1, topk_group=1, **kw),
}
each_gate = pytest.mark.parametrize("gate", GATES.values(), ids=GATES)


def logits(tokens=7, experts=6, seed=0, dtype=torch.float64):
    return torch.randn(tokens, experts, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.parametrize("module", [routing, dispatching], ids=lambda module: module.__name__)
def test_the_examples_in_the_docstrings_hold(module):
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


def test_the_names_are_there_and_counting_needs_no_torch():
    code = ("import sys; import scalebook.moe as moe; moe.count_parameters; assert 'torch' not in sys.modules; "
            "moe.route_top_k; moe.MoELayer; assert callable(moe.dispatch); print(len(dir(moe)))")
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    with pytest.raises(AttributeError, match="no_such_name"):
        moe.no_such_name  # noqa: B018


# The softmax gate.


def test_the_lessons_two_tokens_get_their_weights():
    gap = [[math.log(0.68 / 0.32), 0.0, -9.0], [-9.0, 0.0, math.log(0.55 / 0.45)]]
    result = moe.route_top_k(torch.tensor(gap), 2)
    assert result.experts_TK.tolist() == [[0, 1], [2, 1]]
    assert torch.allclose(result.weights_TK, torch.tensor([[0.68, 0.32], [0.55, 0.45]]))


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 9), st.data())
def test_softmax_over_kept_logits_equals_softmax_then_top_k_then_renormalise(experts, data):
    k = data.draw(st.integers(1, experts))
    values = data.draw(st.lists(st.floats(-300, 300), min_size=3 * experts, max_size=3 * experts))
    logits_TE = torch.tensor(values, dtype=torch.float64).view(3, experts)
    after, before = moe.route_top_k(logits_TE, k), moe.route_top_k(logits_TE, k, order="softmax-before")
    assert torch.equal(after.experts_TK, before.experts_TK)
    assert torch.allclose(after.weights_TK, before.weights_TK, rtol=1e-10, atol=1e-12)
    assert torch.allclose(after.weights_TK.sum(-1), torch.ones(3, dtype=torch.float64))


def test_without_renormalising_the_two_orders_differ_until_k_is_all_experts():
    for k in range(1, 7):
        after = moe.route_top_k(logits(), k).weights_TK
        before = moe.route_top_k(logits(), k, order="softmax-before", renormalise=False).weights_TK
        assert torch.allclose(after, before) == (k == 6)
        assert (before.sum(-1) < 1 - 1e-9).all() == (k < 6)


def test_with_one_choice_only_the_unrenormalised_softmax_has_a_gradient():
    for options, moves in (({}, False), ({"order": "softmax-before"}, False),
                           ({"order": "softmax-before", "renormalise": False}, True)):
        logits_TE = logits().requires_grad_()
        moe.route_top_k(logits_TE, 1, **options).weights_TK.sum().backward()
        assert (logits_TE.grad.abs().max() > 1e-3) == moves


def test_zeroing_dropped_logits_is_not_dropping_them():
    logits_TE = torch.tensor([[2.0, 1.0, -1.0, -1.0]])
    zeroed = torch.softmax(logits_TE * torch.tensor([1.0, 1.0, 0.0, 0.0]), dim=-1)[:, :2]
    assert not torch.allclose(zeroed, moe.route_top_k(logits_TE, 2).weights_TK, atol=0.05)


def test_the_softmax_gate_equals_a_loop():
    result = moe.route_top_k(logits(), 3)
    for t, row in enumerate(logits().tolist()):
        ranked = sorted(range(6), key=lambda e: -row[e])[:3]
        kept = [math.exp(row[e]) for e in ranked]
        assert result.experts_TK[t].tolist() == ranked
        assert result.weights_TK[t].tolist() == pytest.approx([value / sum(kept) for value in kept], rel=1e-12)
        powers = [math.exp(value) for value in row]
        want = [power / sum(powers) for power in powers]
        assert result.probabilities_TE[t].tolist() == pytest.approx(want, rel=1e-12)


def test_logits_far_apart_or_of_any_size_neither_overflow_nor_change_the_ranking():
    logits_TE = torch.tensor([[3e4, -3e4, 2e4, 1e4]])
    for order in ("softmax-after", "softmax-before"):
        result = moe.route_top_k(logits_TE, 3, order=order)
        assert result.experts_TK.tolist() == [[0, 2, 3]]  # the last two probabilities are both zero
        assert result.weights_TK.tolist() == [[1, 0, 0]]


# Every gate, on its edges.


@each_gate
@pytest.mark.parametrize("k", [0, -1, 7, True, False, 2.0, "2", None])
def test_a_k_that_cannot_be_is_named(gate, k):
    with pytest.raises(ValueError, match=r"k = .* is not allowed; k must be a whole number from 1 to the 6 experts"):
        gate(logits(), k)


@each_gate
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_logit_that_is_not_finite_is_named_with_its_token(gate, value):
    logits_TE = logits()
    logits_TE[4, 2] = value
    with pytest.raises(ValueError, match=r"logits_TE\[4\] = .*(nan|inf).* must be finite"):
        gate(logits_TE, 2)


@each_gate
@pytest.mark.parametrize("wrong", [[[1.0, 2.0]], torch.ones(3), torch.ones(2, 3, 4), torch.ones(2, 3).long()])
def test_logits_of_another_kind_are_named(gate, wrong):
    with pytest.raises(ValueError, match=r"logits_TE is .* must be a floating-point tensor of shape"):
        gate(wrong, 1)


def test_no_expert_at_all_is_an_error():
    with pytest.raises(ValueError, match="k = 1 is not allowed"):
        moe.route_top_k(torch.empty(3, 0), 1)


@each_gate
@pytest.mark.parametrize("shape", [(6,), (8,), (7, 1), (1,), ()])
def test_a_mask_of_the_wrong_shape_is_named(gate, shape):
    with pytest.raises(ValueError, match=r"mask has shape .* must be \(7,\)"):
        gate(logits(), 2, mask=torch.ones(shape, dtype=torch.bool))


@each_gate
def test_a_mask_of_other_numbers_is_an_error(gate):
    with pytest.raises(ValueError, match="mask must hold True"):
        gate(logits(), 2, mask=torch.full((7,), 0.5))


@each_gate
def test_padding_goes_nowhere_and_leaves_the_others_as_they_were(gate):
    mask_T = torch.tensor([1, 1, 0, 1, 0, 1, 1])
    logits_TE = logits()
    logits_TE[2] = math.nan
    alone, result = gate(logits()[mask_T.bool()], 2), gate(logits_TE, 2, mask=mask_T)
    for name in ("experts_TK", "weights_TK", "probabilities_TE"):
        assert torch.equal(getattr(alone, name), getattr(result, name)[mask_T.bool()])
    assert (result.experts_TK[~mask_T.bool()] == -1).all()
    assert (result.weights_TK[~mask_T.bool()] == 0).all()
    assert (result.probabilities_TE[~mask_T.bool()] == 0).all()


@each_gate
def test_zero_tokens_give_empty_results(gate):
    result = gate(torch.empty(0, 6), 2)
    assert result.experts_TK.shape == result.weights_TK.shape == (0, 2)
    assert result.probabilities_TE.shape == (0, 6)


@each_gate
def test_one_expert_takes_all(gate):
    result = gate(logits(experts=1), 1)
    assert (result.experts_TK == 0).all()
    assert (result.weights_TK == 1).all()
    assert (result.probabilities_TE == 1).all()


@each_gate
def test_on_ties_the_lower_index_wins(gate):
    assert gate(torch.zeros(5, 200), 4).experts_TK.tolist() == [[0, 1, 2, 3]] * 5
    assert gate(torch.tensor([[0.0, 2.0, 1.0, 2.0, 1.0]]), 3).experts_TK.tolist() == [[1, 3, 2]]


@each_gate
def test_half_precision_is_computed_with_in_float32(gate):
    half = logits().bfloat16()
    assert torch.equal(gate(half, 2).weights_TK, gate(half.float(), 2).weights_TK)
    assert gate(half, 2).weights_TK.dtype == torch.float32


@each_gate
def test_the_weights_have_the_gradient_that_differences_give(gate):
    torch.autograd.gradcheck(lambda logits_TE: gate(logits_TE, 2).weights_TK, logits().requires_grad_())
    torch.autograd.gradcheck(lambda logits_TE: gate(logits_TE, 2).probabilities_TE, logits().requires_grad_())


def test_another_order_is_named():
    with pytest.raises(ValueError, match="order = 'sofmax' is not allowed; order must be 'softmax-after' or"):
        moe.route_top_k(logits(), 2, order="sofmax")


def test_dense_gates_put_the_weights_in_their_places():
    result = moe.route_top_k(logits(), 2, mask=torch.tensor([0, 1, 1, 1, 1, 1, 1]))
    dense_TE = moe.dense_gates(result)
    assert torch.equal(dense_TE[1:].gather(-1, result.experts_TK[1:]), result.weights_TK[1:])
    assert (dense_TE > 0).sum(-1).tolist() == [0] + [2] * 6


# Groups, scores and the bias.


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
    ({"bias_E": torch.zeros(5)}, "bias_E = .* must hold 6 finite numbers"),
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
    ([1, 2], 0.1, "load_E has shape"), ([1, 2, -1], 0.1, "load_E = "), ([1, 2, math.inf], 0.1, "load_E = "),
    ([1, 2, 3], -0.1, "gamma = -0.1"), ([1, 2, 3], True, "gamma = True"), ([1, 2, 3], math.nan, "gamma = nan"),
])
def test_a_bias_update_that_cannot_be_is_named(load, gamma, message):
    with pytest.raises(ValueError, match=message):
        moe.selection_bias_update(torch.zeros(3), torch.tensor(load), gamma)


# Capacity and dispatch.


@pytest.mark.parametrize(("arguments", "want"), [
    ((8, 4), 2), ((10, 4, 1, 1.0), 3), ((6, 3, 1, 1.5), 3), ((100, 8, 2, 1.25), 32), ((0, 8), 0), ((10, 1, 1, 1.1), 11),
])
def test_capacity_is_the_formula_rounded_up(arguments, want):
    assert moe.capacity(*arguments) == want


@pytest.mark.parametrize(("arguments", "name"), [
    ((-1, 4), "tokens"), ((True, 4), "tokens"), ((4, 0), "experts"), ((4, 2, 3), "k"), ((4, 2, 0), "k"),
    ((4, 2, 1, 0), "factor"), ((4, 2, 1, math.nan), "factor"), ((4, 2, 1, math.inf), "factor"),
])
def test_a_capacity_that_cannot_be_is_named(arguments, name):
    with pytest.raises(ValueError, match=f"^{name} = .* is not allowed"):
        moe.capacity(*arguments)


def loop_over_choices(experts_TK, experts, limit, priority):
    """Each expert's (token, choice) pairs, served one at a time."""
    tokens, k = len(experts_TK), len(experts_TK[0])
    queue = [(t, c) for t in range(tokens) for c in range(k)]
    if priority == "choice":
        queue.sort(key=lambda pair: (pair[1], pair[0]))
    rows = [[] for _ in range(experts)]
    for t, c in queue:
        e = experts_TK[t][c]
        if e >= 0 and (limit is None or len(rows[e]) < limit):
            rows[e].append((t, c))
    return rows


@settings(deadline=None, max_examples=80)
@given(st.integers(1, 12), st.integers(1, 5), st.sampled_from(["choice", "token"]), st.none() | st.integers(0, 6),
       st.data())
def test_dispatch_equals_a_loop_over_the_choices(tokens, experts, priority, limit, data):
    k = data.draw(st.integers(1, experts))
    rows_of = [data.draw(st.permutations(range(experts)))[:k] if data.draw(st.integers(0, 4)) else [-1] * k
               for _ in range(tokens)]
    experts_TK = torch.tensor(rows_of)
    weights_TK = torch.arange(tokens * k, dtype=torch.float64).view(tokens, k)
    plan = moe.dispatch(experts_TK, weights_TK, experts, limit, priority=priority)
    want = loop_over_choices(rows_of, experts, limit, priority)
    flat = [pair for rows in want for pair in rows]
    assert plan.counts == [len(rows) for rows in want]
    assert plan.offsets == [sum(plan.counts[:e]) for e in range(experts + 1)]
    assert plan.tokens_N.tolist() == [t for t, _ in flat]
    assert plan.weights_N.tolist() == [t * k + c for t, c in flat]
    dropped = {(t, c) for t in range(tokens) for c in range(k) if rows_of[t][c] >= 0} - set(flat)
    assert {tuple(pair) for pair in plan.dropped_TK.nonzero().tolist()} == dropped


def test_the_priority_decides_who_is_dropped():
    experts_TK, weights_TK = torch.tensor([[1, 0], [0, 1]]), torch.ones(2, 2)
    assert moe.dispatch(experts_TK, weights_TK, 2, 1).dropped_TK.tolist() == [[False, True], [False, True]]
    by_token = moe.dispatch(experts_TK, weights_TK, 2, 1, priority="token")
    assert by_token.dropped_TK.tolist() == [[False, False], [True, True]]


def test_zero_tokens_are_dispatched_nowhere():
    plan = moe.dispatch(torch.empty(0, 2, dtype=torch.int64), torch.empty(0, 2), 4, 3)
    assert plan.counts == [0, 0, 0, 0]
    assert len(plan.tokens_N) == len(plan.weights_N) == 0
    assert plan.dropped_TK.shape == (0, 2)


@pytest.mark.parametrize(("change", "message"), [
    ({"weights_TK": torch.ones(2, 1)}, "experts_TK has shape .* and weights_TK"),
    ({"experts_TK": torch.tensor([[0, 4], [1, 0]])}, "experts_TK holds 0 to 4; an index must be from 0 to 3"),
    ({"experts_TK": torch.tensor([[0, -2], [1, 0]])}, "experts_TK holds -2 to 1"),
    ({"experts": 0}, "experts = 0 is not allowed"), ({"experts": True}, "experts = True"),
    ({"capacity": -1}, "capacity = -1 is not allowed"), ({"capacity": 1.5}, "capacity = 1.5 is not allowed"),
    ({"priority": "random"}, "priority = 'random' is not allowed"),
])
def test_a_dispatch_that_cannot_be_is_named(change, message):
    arguments = {"experts_TK": torch.tensor([[0, 1], [1, 0]]), "weights_TK": torch.ones(2, 2), "experts": 4, **change}
    with pytest.raises(ValueError, match=message):
        moe.dispatch(**arguments)

"""The softmax gate against loops over tokens, and every gate on its edges."""

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

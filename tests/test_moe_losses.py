"""Balancing losses: against their papers' formulas, their gradients, padding, and layers."""

import doctest
import math
import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scalebook import moe, published
from scalebook.moe import losses

os.environ["HF_HUB_OFFLINE"] = "1"

MASK_T = torch.tensor([1, 1, 0, 1, 0, 1, 1, 1, 1]).bool()


def logits(tokens=9, experts=5, seed=0, dtype=torch.float64):
    return torch.randn(tokens, experts, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def route(logits_TE, k=2, mask=None):
    return moe.route_top_k(logits_TE, k, mask=mask)


def balanced(experts=4, k=2):
    """Probabilities and choices in which every expert has the same share of both."""
    experts_TK = torch.tensor([[(t + c) % experts for c in range(k)] for t in range(experts)])
    return torch.full((experts, experts), 1 / experts, dtype=torch.float64), experts_TK


def test_the_examples_in_the_docstrings_hold():
    result = doctest.testmod(losses)
    assert result.attempted > 0
    assert result.failed == 0


# Each loss is its paper's formula, by loops.


@pytest.mark.parametrize("k", [1, 2, 5])
def test_the_balancing_loss_is_its_formula(k):
    result = route(logits(), k)
    chosen, probabilities = result.experts_TK.tolist(), result.probabilities_TE.tolist()
    total = 0.0
    for e in range(5):
        f = sum(row.count(e) for row in chosen) / 9
        total += f * sum(row[e] for row in probabilities) / 9
    loss = moe.load_balancing_loss(result.probabilities_TE, result.experts_TK, alpha=0.01)
    assert float(loss) == pytest.approx(0.01 * 5 * total, rel=1e-12)
    divided = moe.load_balancing_loss(result.probabilities_TE, result.experts_TK, alpha=0.01, divide_by_k=True)
    assert float(divided) == pytest.approx(0.01 * 5 * total / k, rel=1e-12)
    gshard = moe.gshard_loss(result.probabilities_TE, result.experts_TK)
    first = sum([row[0] for row in chosen].count(e) / 9 * sum(row[e] for row in probabilities) / 9 for e in range(5))
    assert float(gshard) == pytest.approx(first / 5, rel=1e-12)


def test_the_importance_loss_is_its_formula():
    gates_TE = moe.dense_gates(route(logits()))
    importance = [sum(column) for column in zip(*gates_TE.tolist(), strict=True)]
    mean = sum(importance) / 5
    variance = sum((value - mean) ** 2 for value in importance) / 5
    assert float(moe.importance_loss(gates_TE, weight=0.1)) == pytest.approx(0.1 * variance / mean**2, rel=1e-12)


@pytest.mark.parametrize("k", [1, 2, 4])
def test_the_load_loss_is_its_formula(k):
    clean, deviation = logits(), torch.nn.functional.softplus(logits(seed=1))
    noisy = clean + logits(seed=2) * deviation
    load = [0.0] * 5
    for t in range(9):
        for e in range(5):
            others = sorted((float(noisy[t, j]) for j in range(5) if j != e), reverse=True)
            z = (float(clean[t, e]) - others[k - 1]) / float(deviation[t, e])
            load[e] += 0.5 * (1 + math.erf(z / math.sqrt(2)))
    mean = sum(load) / 5
    want = 0.1 * sum((value - mean) ** 2 for value in load) / 5 / mean**2
    assert float(moe.load_loss(clean, noisy, deviation, k, weight=0.1)) == pytest.approx(want, rel=1e-12)


def test_the_smooth_load_is_the_probability_that_the_expert_is_chosen_when_its_noise_is_drawn_again():
    clean, deviation = logits(1, 5), torch.full((1, 5), 0.7, dtype=torch.float64)
    noisy = clean + 0.7 * logits(1, 5, seed=2)
    smooth = torch.special.ndtr((clean - losses.kth_excluding(noisy, 2)) / deviation)[0]
    for e in range(5):
        drawn = noisy.repeat(20_000, 1)
        drawn[:, e] = clean[0, e] + 0.7 * logits(20_000, 1, seed=3)[:, 0]
        chosen = (moe.route_top_k(drawn, 2).experts_TK == e).any(-1).double().mean()
        assert float(chosen) == pytest.approx(float(smooth[e]), abs=0.015)


def test_the_sequence_wise_loss_is_its_formula():
    scores, chosen = torch.sigmoid(logits(6)).view(2, 3, 5), moe.route_sigmoid(logits(6), 2).experts_TK.view(2, 3, 2)
    total = 0.0
    for b in range(2):
        for e in range(5):
            f = 5 / (2 * 3) * int((chosen[b] == e).sum())
            total += f * sum(float(scores[b, t, e] / scores[b, t].sum()) for t in range(3)) / 3
    normalised = moe.route_sigmoid(logits(6), 2).probabilities_TE.view(2, 3, 5)
    assert float(moe.sequence_wise_loss(normalised, chosen, alpha=1e-4)) == pytest.approx(1e-4 * total / 2, rel=1e-12)


def test_the_z_loss_is_its_formula():
    want = sum(math.log(sum(math.exp(value) for value in row)) ** 2 for row in logits().tolist()) / 9
    assert float(moe.router_z_loss(logits(), weight=0.001)) == pytest.approx(0.001 * want, rel=1e-12)


# Values at balance, and that they are no lower bounds.


@pytest.mark.parametrize("k", [1, 2, 4])
def test_each_loss_has_its_value_at_balance(k):
    probabilities_TE, experts_TK = balanced(k=k)
    loss = moe.load_balancing_loss
    assert float(loss(probabilities_TE, experts_TK, alpha=0.01)) == pytest.approx(0.01 * k)
    assert float(loss(probabilities_TE, experts_TK, alpha=0.01, divide_by_k=True)) == pytest.approx(0.01)
    assert float(moe.gshard_loss(probabilities_TE, experts_TK)) == pytest.approx(1 / 16)
    sequences = probabilities_TE.expand(3, 4, 4), experts_TK.expand(3, 4, k)
    assert float(moe.sequence_wise_loss(*sequences, alpha=0.01)) == pytest.approx(0.01)
    routing = moe.Routing(experts_TK, torch.full((4, k), 1 / k, dtype=torch.float64), probabilities_TE)
    assert float(moe.importance_loss(moe.dense_gates(routing), weight=0.1)) == pytest.approx(0, abs=1e-15)
    assert float(moe.router_z_loss(torch.zeros(4, 4), weight=1.0)) == pytest.approx(math.log(4) ** 2)
    if k < 4:
        even = torch.zeros(4, 4)
        assert float(moe.load_loss(even, even, torch.ones(4, 4), k, weight=0.1)) == pytest.approx(0)


def test_one_expert_is_always_balanced():
    probabilities_TE, experts_TK = torch.ones(3, 1), torch.zeros(3, 1, dtype=torch.int64)
    assert float(moe.load_balancing_loss(probabilities_TE, experts_TK, alpha=0.01)) == pytest.approx(0.01)
    assert float(moe.importance_loss(probabilities_TE, weight=0.1)) == 0


def test_collapse_costs_alpha_times_the_experts():
    probabilities_TE = torch.tensor([[1.0, 0.0, 0.0, 0.0]] * 3)
    experts_TK = torch.zeros(3, 1, dtype=torch.int64)
    assert float(moe.load_balancing_loss(probabilities_TE, experts_TK, alpha=0.01)) == pytest.approx(0.04)


def test_the_value_at_balance_is_no_lower_bound():
    probabilities_TE = torch.tensor([[0.51, 0.49], [0.51, 0.49], [0.0, 1.0]], dtype=torch.float64)
    experts_TK = probabilities_TE.argmax(-1, keepdim=True)
    loss = float(moe.load_balancing_loss(probabilities_TE, experts_TK, alpha=1.0))
    assert loss == pytest.approx(2 * (2 / 3 * 1.02 / 3 + 1 / 3 * 1.98 / 3), rel=1e-12)
    assert loss == pytest.approx(0.8933, abs=5e-5)
    assert loss < 1


@settings(deadline=None, max_examples=50)
@given(st.integers(2, 6), st.integers(1, 20), st.integers(0, 10**6))
def test_with_uniform_probabilities_the_loss_is_alpha_k_whatever_the_choices(experts, tokens, seed):
    experts_TK = route(logits(tokens, experts, seed), 2).experts_TK
    uniform = torch.full((tokens, experts), 1 / experts, dtype=torch.float64)
    assert float(moe.load_balancing_loss(uniform, experts_TK, alpha=1.0)) == pytest.approx(2)


# Gradients.


def test_f_carries_no_gradient_and_p_does():
    result = route(logits())
    probabilities_TE = result.probabilities_TE.clone().requires_grad_()
    moe.load_balancing_loss(probabilities_TE, result.experts_TK, alpha=1.0).backward()
    fractions_E = torch.bincount(result.experts_TK.flatten(), minlength=5) / 9
    torch.testing.assert_close(probabilities_TE.grad, (5 / 9 * fractions_E).double().expand(9, 5))


@pytest.mark.parametrize("k", [1, 2, 5])
@pytest.mark.parametrize("divide_by_k", [False, True])
@pytest.mark.parametrize("mask", [None, MASK_T], ids=["all", "padding"])
def test_the_gradient_by_hand_is_that_of_autograd_and_of_differences(k, divide_by_k, mask):
    options = {"alpha": 0.3, "divide_by_k": divide_by_k, "mask": mask}

    def loss(logits_TE):
        result = route(logits_TE, k, mask)
        return moe.load_balancing_loss(result.probabilities_TE, result.experts_TK, **options)

    logits_TE = logits().requires_grad_()
    loss(logits_TE).backward()
    result = route(logits(), k, mask)
    by_hand = moe.load_balancing_gradient(result.probabilities_TE, result.experts_TK, **options)
    torch.testing.assert_close(logits_TE.grad, by_hand, rtol=1e-12, atol=1e-14)
    differences = torch.zeros(9, 5, dtype=torch.float64)
    for t in range(9):
        for e in range(5):
            step = torch.zeros(9, 5, dtype=torch.float64)
            step[t, e] = 1e-6
            differences[t, e] = (loss(logits() + step) - loss(logits() - step)) / 2e-6
    torch.testing.assert_close(differences, by_hand, rtol=1e-6, atol=1e-9)
    assert by_hand.abs().max() > 1e-4 or k == 5  # with k = E every f is the same: nothing to push


def test_the_gradient_pushes_down_the_fuller_expert():
    probabilities_TE = torch.softmax(torch.tensor([[1.0, 0.0]] * 4), dim=-1)
    gradient_TE = moe.load_balancing_gradient(probabilities_TE, torch.tensor([[0], [0], [0], [1]]), alpha=1.0)
    assert (gradient_TE[:, 0] > 0).all()
    assert torch.allclose(gradient_TE.sum(-1), torch.zeros(4))


@pytest.mark.parametrize("loss", [
    lambda x: moe.gshard_loss(torch.softmax(x, -1), route(x).experts_TK),
    lambda x: moe.importance_loss(moe.dense_gates(route(x)), weight=0.1),
    lambda x: moe.load_loss(x, x + 0.3 * logits(seed=4), torch.nn.functional.softplus(x), 2, weight=0.1),
    lambda x: moe.router_z_loss(x, weight=0.1),
    lambda x: moe.sequence_wise_loss(moe.route_sigmoid(x, 2).probabilities_TE.view(3, 3, 5),
                                     moe.route_sigmoid(x, 2).experts_TK.view(3, 3, 2), alpha=0.1),
], ids=["gshard", "importance", "load", "z", "sequence-wise"])
def test_every_loss_has_the_gradient_that_differences_give(loss):
    logits_TE = logits().requires_grad_()
    assert torch.autograd.gradcheck(loss, logits_TE)
    loss(logits_TE).backward()
    assert logits_TE.grad.abs().max() > 1e-5


# Padding.


@pytest.mark.parametrize("loss", [
    lambda x, mask: moe.load_balancing_loss(torch.softmax(x, -1), route(x, mask=mask).experts_TK, alpha=1.0, mask=mask),
    lambda x, mask: moe.gshard_loss(torch.softmax(x, -1), route(x, mask=mask).experts_TK, mask=mask),
    lambda x, mask: moe.importance_loss(torch.softmax(x, -1), weight=1.0, mask=mask),
    lambda x, mask: moe.load_loss(x, x + 0.3 * x.cos(), 0.1 + x.abs(), 2, weight=1.0, mask=mask),
    lambda x, mask: moe.router_z_loss(x, weight=1.0, mask=mask),
    lambda x, mask: moe.sequence_wise_loss(torch.softmax(x, -1)[None], route(x, mask=mask).experts_TK[None], alpha=1.0,
                                           mask=None if mask is None else mask[None]),
], ids=["balancing", "gshard", "importance", "load", "z", "sequence-wise"])
def test_padding_counts_in_no_loss(loss):
    masked, alone, everything = loss(logits(), MASK_T), loss(logits()[MASK_T], None), loss(logits(), None)
    assert float(masked) == pytest.approx(float(alone), rel=1e-12)
    assert float(masked) != pytest.approx(float(everything), rel=1e-3)


def test_padding_without_its_mask_is_an_error():
    result = route(logits(), mask=MASK_T)
    with pytest.raises(ValueError, match=r"padding \(-1\) needs the mask"):
        moe.load_balancing_loss(result.probabilities_TE, result.experts_TK, alpha=1.0)


# As published, and pooling.


@pytest.mark.parametrize(("name", "stated", "k", "loss"), [
    ("GShard", "1/E^2", 2, lambda p, e: moe.gshard_loss(p, e) * 4**2),
    ("Switch", "alpha", 1, lambda p, e: moe.load_balancing_loss(p, e, alpha=0.01) / 0.01),
    ("HF Mixtral", "top_k (2 for Mixtral)", 2, lambda p, e: moe.load_balancing_loss(p, e, alpha=1.0) / 2),
    ("HF Switch", "1", 1, lambda p, e: moe.load_balancing_loss(p, e, alpha=1.0)),
    ("MegaBlocks", "w (divides by top_k)", 2,
     lambda p, e: moe.load_balancing_loss(p, e, alpha=0.1, divide_by_k=True) / 0.1),
    ("DeepSeek-V2/V3 expert / sequence-wise", "alpha", 2,
     lambda p, e: moe.sequence_wise_loss(p[None], e[None], alpha=1e-4) / 1e-4),
])
def test_the_value_at_balance_that_the_book_prints_is_the_computed_one(name, stated, k, loss):
    rows = {row["name"]: row["uniform_value"] for row in published.table("balancing_losses").rows}
    assert rows[name] == stated
    assert float(loss(*balanced(k=k))) == pytest.approx(1)


def test_two_layers_skewed_in_opposite_ways_pool_to_balance():
    skew = torch.tensor([[4.0, 0.0]] * 6)
    routings = [route(skew, 1), route(-skew, 1)]
    each = moe.load_balancing_per_layer(routings, alpha=1.0)
    assert (each > 1.9).all()
    pooled = route(torch.cat([skew, -skew]), 1)
    loss = moe.load_balancing_loss(pooled.probabilities_TE, pooled.experts_TK, alpha=1.0)
    assert float(loss) == pytest.approx(1, rel=1e-6)


# What cannot be.


@pytest.mark.parametrize(("call", "message"), [
    (lambda p, e: moe.load_balancing_loss(p, e[:-1], alpha=1.0), r"experts_TK has the shape \(8, 2\), so T = 8; but"),
    (lambda p, e: moe.load_balancing_loss(p, e.flatten(), alpha=1.0), r"experts_TK has shape \(18,\)"),
    (lambda p, e: moe.load_balancing_loss(p, e + 4, alpha=1.0), r"experts_TK holds .* from 0 to 4"),
    (lambda p, e: moe.load_balancing_loss(p, e, alpha=1.0, mask=MASK_T[:-1]), r"mask has shape \(8,\); it must be"),
    (lambda p, e: moe.load_balancing_loss(p, e, alpha=1.0, mask=~MASK_T & MASK_T), "mask leaves no real token of 9"),
    (lambda p, e: moe.load_balancing_loss(p[:0], e[:0], alpha=1.0), "no real token of 0"),
    (lambda p, e: moe.load_balancing_loss(p[0], e, alpha=1.0), r"probabilities_TE has shape \(5,\)"),
    (lambda p, e: moe.load_balancing_per_layer([], alpha=1.0), "routings is empty"),
    (lambda p, e: moe.sequence_wise_loss(p, e, alpha=1.0), "probabilities_BTE has shape"),
    (lambda p, e: moe.sequence_wise_loss(p[None][:0], e[None][:0], alpha=1.0), "B at least 1"),
    (lambda p, e: moe.sequence_wise_loss(p[None], e[None], alpha=1.0, mask=MASK_T), r"must be \(1, 9\)"),
    (lambda p, e: moe.load_loss(p, p, p[:-1], 1, weight=1.0),
     r"deviation_TE has the shape \(8, 5\), so T = 8; but clean_TE has the shape \(9, 5\)"),
    (lambda p, e: moe.load_loss(p, p, p, 5, weight=1.0), "k = 5 is not allowed"),
    (lambda p, e: moe.load_loss(p, p, p, True, weight=1.0), "k = True is not allowed"),
    (lambda p, e: moe.load_loss(p, p, p - 1, 1, weight=1.0), "deviation_TE holds"),
    (lambda p, e: moe.router_z_loss(p, weight=1.0, mask=MASK_T[:, None]), "mask has shape"),
    (lambda p, e: moe.importance_loss(p, weight=1.0, mask=MASK_T[1:]), "mask has shape"),
])
def test_a_loss_that_cannot_be_says_why(call, message):
    result = route(logits())
    with pytest.raises(ValueError, match=message):
        call(result.probabilities_TE, result.experts_TK)

"""The gates that draw: against their equations, their probabilities and their gradients."""

import doctest
import math

import pytest
import torch
from torch.nn.functional import softplus

from scalebook import moe
from scalebook.moe import random_gates


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def test_the_examples_in_the_docstrings_hold():
    result = doctest.testmod(random_gates)
    assert result.attempted > 0
    assert result.failed == 0


# Shazeer's noise.


def test_the_noisy_gate_is_equations_3_to_5_with_the_same_normal_numbers():
    clean, noise, k = numbers(9, 6), numbers(9, 6, seed=1), 2
    result = moe.route_noisy_top_k(clean, noise, k, generator=seeded(7))
    normal = torch.randn(9, 6, generator=seeded(7), dtype=torch.float64).tolist()
    for t in range(9):
        h = [float(clean[t, e]) + normal[t][e] * math.log1p(math.exp(float(noise[t, e]))) for e in range(6)]
        kept = sorted(h, reverse=True)[:k]
        gates = [math.exp(value) / sum(map(math.exp, kept)) if value in kept else 0.0 for value in h]
        assert moe.dense_gates(result)[t].tolist() == pytest.approx(gates, rel=1e-12)
        assert result.noisy_TE[t].tolist() == pytest.approx(h, rel=1e-12)
    assert torch.equal(result.clean_TE, clean)


def test_the_load_that_load_loss_expects_is_how_often_each_expert_is_chosen():
    """For one expert at a time, over many draws of its own noise; the others' noise stays as it was."""
    clean, noise, k, draws = numbers(1, 4), numbers(1, 4, seed=1), 2, 20_000
    routing = moe.route_noisy_top_k(clean, noise, k, generator=seeded(3))
    for e in range(4):
        again = routing.noisy_TE.repeat(draws, 1)
        own = torch.randn(draws, generator=seeded(e), dtype=torch.float64)
        again[:, e] = clean[0, e] + own * routing.deviation_TE[0, e]
        chosen = (moe.route_top_k(again, k).experts_TK == e).any(-1).double().mean()
        threshold = sorted(routing.noisy_TE[0, [i for i in range(4) if i != e]].tolist())[-k]
        want = torch.special.ndtr((clean[0, e] - threshold) / routing.deviation_TE[0, e])
        assert float(chosen) == pytest.approx(float(want), abs=0.02)  # over 5 standard deviations


def test_both_losses_reach_both_matrices_of_the_noisy_gate():
    for loss in (
        lambda routing: moe.importance_loss(moe.dense_gates(routing), weight=1.0),
        lambda routing: moe.load_loss(routing.clean_TE, routing.noisy_TE, routing.deviation_TE, 2, weight=1.0),
    ):
        clean, noise = numbers(9, 6).requires_grad_(), numbers(9, 6, seed=1).requires_grad_()
        loss(moe.route_noisy_top_k(clean, noise, 2, generator=seeded())).backward()
        assert clean.grad.abs().max() > 1e-3
        assert noise.grad.abs().max() > 1e-3


def test_the_noisy_weights_have_the_gradient_that_differences_give():
    inputs = numbers(7, 6).requires_grad_(), numbers(7, 6, seed=1).requires_grad_()
    for name in ("weights_TK", "noisy_TE", "deviation_TE", "probabilities_TE"):
        assert torch.autograd.gradcheck(
            lambda *logits, name=name: getattr(moe.route_noisy_top_k(*logits, 2, generator=seeded()), name), inputs)


def test_the_noise_has_the_deviation_that_is_learnt():
    noise = torch.tensor([[-3.0, 0.0, 2.0]], dtype=torch.float64).repeat(40_000, 1)
    routing = moe.route_noisy_top_k(torch.zeros_like(noise), noise, 1, generator=seeded())
    torch.testing.assert_close(routing.noisy_TE.std(0), softplus(noise[0]), rtol=0.02, atol=0)
    assert routing.noisy_TE.mean(0).abs().max() < 0.05


def test_noise_spreads_tokens_that_are_all_alike():
    alike, noise = torch.tensor([[1.0, 0.9, 0.8, 0.7]]).repeat(400, 1), torch.zeros(400, 4)
    assert moe.route_top_k(alike, 1).experts_TK.unique().tolist() == [0]
    noisy = moe.route_noisy_top_k(alike, noise, 1, generator=seeded())
    assert torch.bincount(noisy.experts_TK.flatten(), minlength=4).min() > 50


def test_padding_of_the_noisy_gate_may_hold_anything():
    clean, noise, mask = numbers(5, 4), numbers(5, 4, seed=1), torch.tensor([1, 1, 0, 1, 1])
    clean[2], noise[2] = math.nan, math.inf
    routing = moe.route_noisy_top_k(clean, noise, 2, generator=seeded(), mask=mask)
    assert routing.experts_TK[2].tolist() == [-1, -1]
    loss = moe.load_loss(routing.clean_TE, routing.noisy_TE, routing.deviation_TE, 2, weight=1.0, mask=mask)
    assert torch.isfinite(loss)


@pytest.mark.parametrize(("clean", "noise", "k", "message"), [
    (numbers(3, 4), numbers(3, 5), 2, r"noise_TE has the shape \(3, 5\), so E = 5; but clean_TE has"),
    (numbers(3, 4), numbers(3, 4).float(), 2, "they must be the same"),
    (numbers(3, 4), numbers(3, 4) * math.nan, 2, r"noise_TE\[0\] = .* must be finite"),
    (numbers(3, 4) * math.inf, numbers(3, 4), 2, r"clean_TE\[0\] = .* must be finite"),
    (numbers(3, 4), numbers(3, 4), 5, "k = 5 is not allowed"), (numbers(3, 4), None, 2, "noise_TE is <class"),
])
def test_what_the_noisy_gate_cannot_take_is_named(clean, noise, k, message):
    with pytest.raises(ValueError, match=message):
        moe.route_noisy_top_k(clean, noise, k)


def test_zero_tokens_go_through_both_gates():
    empty = torch.empty(0, 4)
    assert moe.route_noisy_top_k(empty, empty, 2).experts_TK.shape == (0, 2)
    assert moe.route_random_second(empty).experts_TK.shape == (0, 2)


# GShard's random second expert.


def test_the_second_expert_is_taken_when_twice_its_weight_exceeds_the_draw():
    logits_TE = numbers(50, 4)
    full, result = moe.route_top_k(logits_TE, 2), moe.route_random_second(logits_TE, generator=seeded(5))
    drawn = torch.rand(50, generator=seeded(5), dtype=torch.float64).tolist()
    for t in range(50):
        g2 = float(full.weights_TK[t, 1])
        taken = 2 * g2 > drawn[t]
        first, second = full.experts_TK[t].tolist()
        assert result.experts_TK[t].tolist() == [first, second if taken else -1]
        assert result.weights_TK[t].tolist() == pytest.approx([1 - g2, g2 if taken else 0.0], rel=1e-12)
    assert 5 < int((result.experts_TK[:, 1] < 0).sum()) < 45


@pytest.mark.parametrize("g2", [0.05, 0.25, 0.45])
def test_the_share_of_second_experts_is_twice_their_weight(g2):
    logits_TE = torch.tensor([[math.log(1 - g2), math.log(g2), -50.0]]).repeat(20_000, 1)
    taken = moe.route_random_second(logits_TE, generator=seeded()).experts_TK[:, 1] >= 0
    assert float(taken.double().mean()) == pytest.approx(2 * g2, abs=0.015)


def test_equal_weights_always_take_both():
    assert (moe.route_random_second(torch.zeros(2000, 3), generator=seeded()).experts_TK >= 0).all()


def test_a_second_choice_that_is_not_taken_is_no_row_takes_no_capacity_and_is_not_dropped():
    experts_TK, weights_TK = torch.tensor([[0, -1], [1, 0], [0, 1]]), torch.full((3, 2), 0.5)
    plan = moe.dispatch(experts_TK, weights_TK, 2, capacity=3)
    assert plan.counts == [3, 2]
    assert plan.dropped_share == plan.lost_share == 0


def test_the_layer_computes_what_the_random_gate_sends():
    torch.manual_seed(0)
    layer = moe.MoELayer(6, 5, 4, 2, gate=moe.route_random_second, gate_options={"generator": seeded(1)}).double()
    x_TD = numbers(30, 6)
    y_TD, routing = layer(x_TD)
    weights_TE = moe.dense_gates(routing)
    each_ETD = torch.stack([moe.swiglu(x_TD, *pair) for pair in zip(layer.gate_up_ED, layer.down_ED, strict=True)])
    torch.testing.assert_close(y_TD, torch.einsum("te,etd->td", weights_TE, each_ETD))
    assert sum(layer.plan(routing).counts) == int((routing.experts_TK >= 0).sum()) < 60
    assert torch.isfinite(moe.gshard_loss(routing.probabilities_TE, routing.experts_TK))


def test_the_random_gate_chooses_two_and_padding_goes_nowhere():
    for k in (1, 3, True):
        with pytest.raises(ValueError, match="this gate chooses k = 2"):
            moe.route_random_second(torch.zeros(3, 4), k)
    result = moe.route_random_second(torch.zeros(3, 4), mask=torch.tensor([1, 0, 1]))
    assert result.experts_TK.tolist() == [[0, 1], [-1, -1], [0, 1]]
    assert result.weights_TK.tolist() == [[0.5, 0.5], [0, 0], [0.5, 0.5]]

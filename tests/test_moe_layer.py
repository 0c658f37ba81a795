"""The layer: against a loop over tokens and experts, its gradients, its cost, and its edges."""

import doctest
import os
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import sigmoid, silu
from torch.utils.flop_counter import FlopCounterMode

from scalebook import moe
from scalebook.moe import layer as layer_module

os.environ["HF_HUB_OFFLINE"] = "1"

D, H, E, K = 6, 5, 4, 2


def numbers(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def make(seed=0, d_model=D, d_ff_expert=H, n_experts=E, top_k=K, dtype=torch.float64, **options):
    torch.manual_seed(seed)
    return moe.MoELayer(d_model, d_ff_expert, n_experts, top_k, **options).to(dtype)


def brute_force_moe(layer, x_TD, *, choose, limit=None, mask_T=None):
    """The layer by a loop over choices, tokens and experts: `choose` gives one token's experts and weights."""
    real = [mask_T is None or bool(mask_T[t]) for t in range(len(x_TD))]
    choices = [choose(layer.router_ED @ x_TD[t]) if real[t] else ([], []) for t in range(len(x_TD))]
    y = [torch.zeros_like(x_TD[t]) for t in range(len(x_TD))]
    used = [0] * len(layer.router_ED)
    for c in range(layer.top_k):
        for t in range(len(x_TD)):
            for e in range(len(layer.router_ED)):
                if not real[t] or choices[t][0][c] != e or (limit is not None and used[e] == limit):
                    continue
                used[e] += 1
                gate, up = (layer.gate_up_ED[e] @ x_TD[t]).chunk(2)
                y[t] = y[t] + choices[t][1][c] * (layer.down_ED[e] @ (silu(gate) * up))
    if layer.n_shared:
        for t in (t for t in range(len(x_TD)) if real[t]):
            gate, up = (layer.shared_gate_up_D @ x_TD[t]).chunk(2)
            y[t] = y[t] + layer.shared_down_D @ (silu(gate) * up)
    return torch.stack(y)


def ranked_by(values_E, among=None):
    """Indices, the highest value first."""
    values = values_E.detach().tolist()
    return sorted(range(len(values)) if among is None else among, key=lambda e: -values[e])


def choose_mixtral(logits_E, k=K):
    ranked = ranked_by(logits_E)[:k]
    return ranked, torch.softmax(logits_E[ranked], 0)


def choose_switch(logits_E, k=1):
    ranked = ranked_by(logits_E)[:k]
    return ranked, torch.softmax(logits_E, 0)[ranked]


def choose_deepseek_v3(bias_E, logits_E):
    scores_E = sigmoid(logits_E)
    group = ranked_by((scores_E + bias_E).view(2, 2).sum(-1))[0]
    ranked = ranked_by(scores_E + bias_E, (2 * group, 2 * group + 1))
    return ranked, scores_E[ranked] / scores_E[ranked].sum() * 2.5


def choose_deepseek_v2(logits_E):
    group = int(logits_E.argmax()) // 2
    ranked = ranked_by(logits_E, (2 * group, 2 * group + 1))
    return ranked, torch.softmax(logits_E, 0)[ranked] * 16


def same_forward_and_backward(layer, x_TD, oracle, mask_T=None):
    """Compare the outputs, and the gradients of the input and of every parameter, in float64 to 1e-12."""
    x_TD = x_TD.clone().requires_grad_()
    targets = [x_TD, *layer.parameters()]
    cotangent = numbers(*x_TD.shape, seed=9)
    y, _ = layer(x_TD, mask_T)
    ours = torch.autograd.grad((y * cotangent).sum(), targets, allow_unused=True)
    want = oracle(layer, x_TD, mask_T=mask_T)
    theirs = torch.autograd.grad((want * cotangent).sum(), targets, allow_unused=True)
    torch.testing.assert_close(y, want, rtol=1e-12, atol=1e-12)
    for our, their, target in zip(ours, theirs, targets, strict=True):
        our, their = (torch.zeros_like(target) if one is None else one for one in (our, their))
        torch.testing.assert_close(our, their, rtol=1e-12, atol=1e-12)
    return ours


def test_the_examples_in_the_docstrings_hold():
    result = doctest.testmod(layer_module)
    assert result.attempted > 0
    assert result.failed == 0


# Against the loop.


@pytest.mark.parametrize("n_shared", [0, 1, 2])
@pytest.mark.parametrize("limit", [None, 3])
@pytest.mark.parametrize("mask_T", [None, torch.tensor([1, 0, 1, 1, 1, 1, 0, 1, 1, 1])], ids=["all", "padding"])
def test_mixtrals_gate_equals_the_loop_with_shared_experts_capacity_and_padding(n_shared, limit, mask_T):
    tokens = 10 if mask_T is None else int(mask_T.sum())
    factor = None if limit is None else limit * E / (tokens * K)
    layer = make(n_shared=n_shared, capacity_factor=factor)
    oracle = partial(brute_force_moe, choose=choose_mixtral, limit=limit)
    gradients = same_forward_and_backward(layer, numbers(10, D), oracle, mask_T)
    assert all(gradient.abs().max() > 1e-3 for gradient in gradients)
    _, routing = layer(numbers(10, D), mask_T)
    assert bool(layer.plan(routing).dropped_TK.any()) == (limit is not None)


def test_switchs_gate_equals_the_loop_and_its_router_learns_from_the_output():
    layer = make(top_k=1, gate_options={"order": "softmax-before", "renormalise": False})
    gradients = same_forward_and_backward(layer, numbers(9, D), partial(brute_force_moe, choose=choose_switch))
    assert gradients[1].abs().max() > 1e-3  # the router's


def test_deepseek_v3s_gate_equals_the_loop_and_its_bias_is_no_parameter():
    groups = {"n_group": 2, "topk_group": 1, "route_scale": 2.5}
    layer = make(gate=moe.route_sigmoid, gate_options=groups, n_shared=1)
    layer.selection_bias_E += torch.tensor([0.0, 0.3, -0.2, 0.1])
    choose = partial(choose_deepseek_v3, layer.selection_bias_E)
    same_forward_and_backward(layer, numbers(9, D), partial(brute_force_moe, choose=choose))
    assert "selection_bias_E" in layer.state_dict()
    assert "selection_bias_E" not in dict(layer.named_parameters())


def test_the_bias_of_the_layer_moves_its_choice():
    layer = make(gate=moe.route_sigmoid)
    layer.selection_bias_E[3] = 5
    assert (layer(numbers(9, D))[1].experts_TK[:, 0] == 3).all()


def test_deepseek_v2s_gate_equals_the_loop():
    groups = {"n_group": 2, "topk_group": 1, "route_scale": 16.0}
    layer = make(gate=moe.route_grouped_softmax, gate_options=groups, n_shared=2)
    same_forward_and_backward(layer, numbers(9, D), partial(brute_force_moe, choose=choose_deepseek_v2))


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 6), st.integers(0, 9), st.none() | st.floats(0.1, 2), st.data())
def test_any_shape_equals_the_loop(experts, tokens, factor, data):
    k = data.draw(st.integers(1, experts))
    layer = make(n_experts=experts, top_k=k, capacity_factor=factor)
    limit = None if factor is None else moe.capacity(tokens, experts, k, factor)
    x_TD = numbers(tokens, D)
    y, _ = layer(x_TD)
    if tokens:
        want = brute_force_moe(layer, x_TD, choose=partial(choose_mixtral, k=k), limit=limit)
        torch.testing.assert_close(y, want, rtol=1e-12, atol=1e-12)
    assert y.shape == x_TD.shape


def test_the_loop_would_see_a_wrong_expert():
    layer = make()
    y, _ = layer(numbers(9, D))
    with torch.no_grad():
        layer.down_ED[2] += 1e-6
    want = brute_force_moe(layer, numbers(9, D), choose=choose_mixtral)
    assert (y - want).abs().max() > 1e-9


# What it costs, and its edges.


def test_the_flops_are_those_of_the_chosen_experts_and_the_router():
    with FlopCounterMode(display=False) as counter:
        make(n_experts=16, n_shared=1)(numbers(10, D))
    expert = 2 * 3 * D * H
    assert counter.get_total_flops() == 10 * (K * expert + expert + 2 * D * 16)


def test_capacity_lowers_the_flops_by_what_it_drops():
    layer = make(capacity_factor=0.5)
    with FlopCounterMode(display=False) as counter:
        _, routing = layer(numbers(10, D))
    rows = sum(layer.plan(routing).counts)
    assert rows < 10 * K
    assert counter.get_total_flops() == rows * 2 * 3 * D * H + 10 * 2 * D * E


def test_a_token_that_loses_all_its_choices_comes_out_as_zero():
    layer = make(capacity_factor=0.01)  # one row for each expert
    y, routing = layer(numbers(40, D))
    lost_T = layer.plan(routing).dropped_TK.all(-1)
    assert lost_T.sum() >= 40 - E * 1
    assert (y[lost_T] == 0).all()


def test_an_expert_without_tokens_gets_a_zero_gradient():
    layer = make(n_experts=64, top_k=1)
    y, routing = layer(numbers(3, D))
    y.sum().backward()
    idle = sorted(set(range(64)) - set(routing.experts_TK.flatten().tolist()))
    assert (layer.down_ED.grad[idle] == 0).all()
    assert layer.down_ED.grad.abs().max() > 0


def test_padding_may_hold_anything_and_comes_out_as_zero():
    x = numbers(2, 3, D)
    x[1, 2] = float("nan")
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    layer = make(n_shared=1)
    y, _ = layer(x, mask)
    y.sum().backward()
    assert (y[1, 2] == 0).all()
    assert torch.isfinite(y).all()
    assert all(torch.isfinite(parameter.grad).all() for parameter in layer.parameters())


@pytest.mark.parametrize("shape", [(0, D), (2, 0, D), (0, 3, D)])
def test_zero_tokens_go_through_forward_and_backward(shape):
    layer = make(n_shared=1, capacity_factor=1.0)
    x = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
    y, routing = layer(x)
    y.sum().backward()
    assert y.shape == x.grad.shape == shape
    assert routing.experts_TK.shape == (0, K)


def test_one_expert_is_a_dense_layer():
    layer = make(n_experts=1, top_k=1)
    x_TD = numbers(7, D)
    want = moe.swiglu(x_TD, layer.gate_up_ED[0], layer.down_ED[0])
    torch.testing.assert_close(layer(x_TD)[0], want, rtol=1e-12, atol=1e-12)


def test_bfloat16_comes_out_as_bfloat16():
    layer = make(dtype=torch.bfloat16, n_shared=1)
    x = numbers(9, D).bfloat16()
    y, routing = layer(x)
    assert y.dtype == torch.bfloat16
    assert routing.weights_TK.dtype == torch.float32
    assert torch.allclose(y.double(), layer.double()(x.double())[0], atol=0.1)


def test_a_logit_that_is_not_finite_stops_the_layer():
    x_TD = numbers(7, D)
    x_TD[3, 1] = float("nan")
    with pytest.raises(ValueError, match=r"logits_TE\[3\]"):
        make()(x_TD)


@pytest.mark.parametrize(("sizes", "message"), [
    ({"d_model": 0}, "d_model = 0"), ({"d_ff_expert": 2.5}, "d_ff_expert = 2.5"), ({"n_experts": 0}, "n_experts = 0"),
    ({"top_k": 0}, "top_k = 0"), ({"top_k": True}, "top_k = True"), ({"n_shared": -1}, "n_shared = -1"),
    ({"top_k": 5}, "top_k = 5 is not allowed; top_k must be at most the 4 experts"),
])
def test_sizes_that_cannot_be_are_named(sizes, message):
    with pytest.raises(ValueError, match=message):
        make(**sizes)


def test_an_input_or_a_mask_of_the_wrong_shape_is_named():
    with pytest.raises(ValueError, match=r"x has shape \(3, 7\); its last dimension must be 6"):
        make()(numbers(3, 7))
    with pytest.raises(ValueError, match=r"mask has shape \(6,\); it must be \(2, 3\)"):
        make()(numbers(2, 3, D), torch.ones(6))

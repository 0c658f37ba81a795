"""Balancing losses against transformers, one layer at a time, and its pooling."""

import os

import pytest
import torch

from scalebook import moe

os.environ["HF_HUB_OFFLINE"] = "1"


def logits(tokens, experts, seed, dtype=torch.float32):
    return torch.randn(tokens, experts, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def route(logits_TE, k, mask=None):
    return moe.route_top_k(logits_TE, k, mask=mask)


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("padding", [False, True])
def test_the_balancing_loss_equals_that_of_transformers_layer_by_layer(k, padding):
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

    layers = [logits(24, 8, seed) for seed in range(3)]
    attention_mask = (logits(3, 8, 9, torch.float64) > -0.5).long() if padding else None
    mask = attention_mask.flatten() if padding else None
    ours = moe.load_balancing_per_layer([route(layer, k, mask) for layer in layers], alpha=1.0, mask=mask)
    theirs = torch.stack([load_balancing_loss_func((layer,), 8, k, attention_mask) for layer in layers])
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
    pooled = load_balancing_loss_func(tuple(layers), 8, k, attention_mask)
    assert float(pooled) != pytest.approx(float(ours.mean()), rel=1e-3)
    all_mask = mask.repeat(3) if padding else None
    together = route(torch.cat(layers), k, all_mask)
    pooled_by_us = moe.load_balancing_loss(together.probabilities_TE, together.experts_TK, alpha=1.0, mask=all_mask)
    torch.testing.assert_close(pooled_by_us, pooled, rtol=1e-6, atol=1e-6)


def test_the_top_1_loss_and_the_z_loss_equal_those_of_transformers_switch():
    from transformers.models.switch_transformers.modeling_switch_transformers import (
        load_balancing_loss_func,
        router_z_loss_func,
    )

    x = logits(24, 8, 0)
    result = route(x, 1)
    theirs = load_balancing_loss_func(result.probabilities_TE[None], result.experts_TK[None])
    torch.testing.assert_close(moe.load_balancing_loss(result.probabilities_TE, result.experts_TK, alpha=1.0), theirs)
    torch.testing.assert_close(moe.router_z_loss(x, weight=1.0), router_z_loss_func(x.view(2, 12, 8)))


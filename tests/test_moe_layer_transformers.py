"""The layer against transformers' blocks, in float32 with the same weights."""

import os

import torch

from scalebook import moe

os.environ["HF_HUB_OFFLINE"] = "1"


def numbers(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def make(d_model, d_ff_expert, n_experts, top_k=2, **options):
    torch.manual_seed(0)
    return moe.MoELayer(d_model, d_ff_expert, n_experts, top_k, **options)


def same_as_block(block, layer, x, tolerance=1e-5):
    """Outputs and gradients of the input, and of router and expert weights, to `tolerance`."""
    ours_x, theirs_x = x.clone().requires_grad_(), x.clone().requires_grad_()
    y, want = layer(ours_x)[0], block(theirs_x)
    cotangent = numbers(*x.shape, seed=9)
    (y * cotangent).sum().backward()
    (want * cotangent).sum().backward()
    pairs = [(y, want), (ours_x.grad, theirs_x.grad), (layer.router_ED.grad, block.gate.weight.grad),
             (layer.gate_up_ED.grad, block.experts.gate_up_proj.grad),
             (layer.down_ED.grad, block.experts.down_proj.grad)]
    if layer.n_shared:
        pairs.append((layer.shared_down_D.grad, block.shared_experts.down_proj.weight.grad))
    for ours, theirs in pairs:
        assert theirs.abs().max() > 0.01
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


def copy_weights(layer, block):
    with torch.no_grad():
        block.gate.weight.copy_(layer.router_ED)
        block.experts.gate_up_proj.copy_(layer.gate_up_ED)
        block.experts.down_proj.copy_(layer.down_ED)
        if layer.n_shared:
            gate, up = layer.shared_gate_up_D.chunk(2)
            block.shared_experts.gate_proj.weight.copy_(gate)
            block.shared_experts.up_proj.weight.copy_(up)
            block.shared_experts.down_proj.weight.copy_(layer.shared_down_D)
    return block


def test_forward_and_backward_equal_those_of_the_mixtral_block():
    from transformers import MixtralConfig
    from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

    config = MixtralConfig(hidden_size=32, intermediate_size=48, num_local_experts=8, num_experts_per_tok=2)
    layer = make(d_model=32, d_ff_expert=48, n_experts=8)
    same_as_block(copy_weights(layer, MixtralSparseMoeBlock(config)), layer, numbers(2, 24, 32))


def test_forward_and_backward_equal_those_of_the_deepseek_v3_block():
    from transformers import DeepseekV3Config
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE

    config = DeepseekV3Config(hidden_size=32, moe_intermediate_size=24, n_routed_experts=16, num_experts_per_tok=4,
                              n_shared_experts=2, n_group=4, topk_group=2, routed_scaling_factor=2.5)
    layer = make(d_model=32, d_ff_expert=24, n_experts=16, top_k=4, n_shared=2,
                 gate=moe.route_sigmoid, gate_options={"n_group": 4, "topk_group": 2, "route_scale": 2.5})
    block = copy_weights(layer, DeepseekV3MoE(config))
    layer.selection_bias_E += 0.1 * numbers(16, seed=3)
    block.gate.e_score_correction_bias.copy_(layer.selection_bias_E)
    same_as_block(block, layer, numbers(2, 24, 32))

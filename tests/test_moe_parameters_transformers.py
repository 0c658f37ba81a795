"""Counts of parameters and FLOPs against real `transformers` models, and what PyTorch counts in them."""

import os
from fractions import Fraction

import pytest

from scalebook import published
from scalebook.moe.parameters import count_parameters, flops_per_token
from scalebook.published import ModelShape

BASE = {"name": "small", "source": "test", "vocabulary": 37, "d_model": 24, "layers": 5, "heads": 6, "kv_heads": 2,
        "head_dim": 10}
MOE = {"experts": 7, "top_k": 3, "d_ff_expert": 11, "scoring": "softmax"}
LATENT = {"kv_heads": 6, "head_dim": 0, "kv_lora_rank": 10, "q_lora_rank": 13, "qk_nope": 8, "qk_rope": 4, "v_head": 5}


def shape_of(*changes):
    values = dict(BASE)
    for change in changes:
        values |= change
    return ModelShape(**values)


def common(s):
    return {"vocab_size": s.vocabulary, "hidden_size": s.d_model, "num_hidden_layers": s.layers,
            "num_attention_heads": s.heads, "num_key_value_heads": s.kv_heads,
            "tie_word_embeddings": s.tied_embeddings, "attn_implementation": "eager",
            "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def latent(s):
    return {"kv_lora_rank": s.kv_lora_rank, "q_lora_rank": s.q_lora_rank or None, "qk_nope_head_dim": s.qk_nope,
            "qk_rope_head_dim": s.qk_rope, "v_head_dim": s.v_head, "attention_bias": s.attention_bias,
            "n_routed_experts": s.experts, "num_experts_per_tok": s.top_k, "n_shared_experts": s.shared_experts,
            "moe_intermediate_size": s.d_ff_expert, "intermediate_size": s.d_ff, "n_group": 1, "topk_group": 1,
            "first_k_dense_replace": s.dense_layers}


def settings_of(kind, s):
    """The settings of a `transformers` configuration that say the shape."""
    experts = {"num_experts_per_tok": s.top_k, "head_dim": s.head_dim}
    return {
        "Llama": lambda: common(s) | {"head_dim": s.head_dim, "intermediate_size": s.d_ff, "mlp_bias": s.ffn_bias,
                                      "attention_bias": s.attention_bias},
        "Mixtral": lambda: common(s) | experts | {"num_local_experts": s.experts, "intermediate_size": s.d_ff_expert},
        "GptOss": lambda: common(s) | experts | {"num_local_experts": s.experts, "intermediate_size": s.d_ff_expert,
                                                 "attention_bias": s.attention_bias},
        "Qwen3Moe": lambda: common(s) | experts | {
            "num_experts": s.experts, "moe_intermediate_size": s.d_ff_expert, "intermediate_size": s.d_ff or 1,
            "attention_bias": s.attention_bias, "decoder_sparse_step": s.moe_every,
            "mlp_only_layers": list(range(s.dense_layers))},
        "DeepseekV2": lambda: common(s) | latent(s),
        "DeepseekV3": lambda: common(s) | latent(s) | {"num_mtp_layers": 0},
        "Dbrx": lambda: {
            "d_model": s.d_model, "n_heads": s.heads, "n_layers": s.layers, "vocab_size": s.vocabulary,
            "tie_word_embeddings": s.tied_embeddings, "attn_config": {"kv_n_heads": s.kv_heads, "rope_theta": 1e4},
            "ffn_config": {"hidden_size": s.d_model, "ffn_hidden_size": s.d_ff_expert, "moe_top_k": s.top_k,
                           "moe_num_experts": s.experts}},
    }[kind]()


def build(kind, s, device):
    os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported, here and not above, for it takes seconds
    import torch
    import transformers

    with torch.device(device):
        config = getattr(transformers, f"{kind}Config")(**settings_of(kind, s))
        return getattr(transformers, f"{kind}ForCausalLM")(config)


ALIKE = [
    ("Llama", shape_of({"d_ff": 17})),
    ("Llama", shape_of({"d_ff": 17, "kv_heads": 1, "tied_embeddings": True})),
    ("Llama", shape_of({"d_ff": 17, "ffn_bias": True, "attention_bias": True, "attention_output_bias": True})),
    ("Mixtral", shape_of(MOE)),
    ("Mixtral", shape_of(MOE, {"tied_embeddings": True, "top_k": 7})),
    ("Qwen3Moe", shape_of(MOE, {"qk_norm": "head"})),
    ("Qwen3Moe", shape_of(MOE, {"qk_norm": "head", "moe_every": 2, "d_ff": 17})),
    ("Qwen3Moe", shape_of(MOE, {"qk_norm": "head", "moe_every": 2, "dense_layers": 2, "d_ff": 17, "layers": 8,
                                "attention_bias": True, "attention_output_bias": True})),
    ("GptOss", shape_of(MOE, {"attention_bias": True, "attention_output_bias": True, "attention_sinks": True,
                              "ffn_bias": True, "router_bias": True})),
    ("GptOss", shape_of(MOE, {"attention_sinks": True, "ffn_bias": True, "router_bias": True,
                              "tied_embeddings": True})),
    ("DeepseekV2", shape_of(LATENT, MOE, {"shared_experts": 2, "dense_layers": 1, "d_ff": 17})),
    ("DeepseekV2", shape_of(LATENT, MOE, {"shared_experts": 1, "q_lora_rank": 0, "attention_bias": True,
                                          "attention_output_bias": True})),
    ("DeepseekV3", shape_of(LATENT, MOE, {"shared_experts": 1, "dense_layers": 3, "d_ff": 17, "scoring": "sigmoid",
                                          "selection_bias": True})),
    ("DeepseekV3", shape_of(LATENT, MOE, {"shared_experts": 2, "dense_layers": 1, "d_ff": 17, "scoring": "sigmoid",
                                          "selection_bias": True, "attention_bias": True, "q_lora_rank": 0,
                                          "attention_output_bias": True, "tied_embeddings": True})),
    ("DeepseekV3", shape_of(LATENT, MOE, {"shared_experts": 1, "scoring": "sigmoid", "attention_bias": True,
                                          "attention_output_bias": True})),
    ("Dbrx", shape_of(MOE, {"head_dim": 4, "norm": "layernorm-without-bias"})),
]
PUBLISHED = [("Mixtral", "Mixtral-8x7B"), ("Mixtral", "Mixtral-8x22B"), ("Dbrx", "DBRX"),
             ("DeepseekV2", "DeepSeek-V2"), ("DeepseekV3", "DeepSeek-V3"), ("GptOss", "gpt-oss-120b"),
             ("GptOss", "gpt-oss-20b"), ("Qwen3Moe", "Qwen3-30B-A3B"), ("Llama", "Llama-3-70B")]


@pytest.mark.parametrize(("kind", "shape"), ALIKE + [(kind, published.model(name)) for kind, name in PUBLISHED],
                         ids=lambda value: value.name if isinstance(value, ModelShape) else value)
def test_the_counts_equal_those_of_a_transformers_model(kind, shape):
    model = build(kind, shape, "meta")
    total = sum(parameter.numel() for parameter in model.parameters())
    experts = sum(p.numel() for name, p in model.named_parameters() if ".experts." in name)
    count = count_parameters(shape)
    assert count.total == total
    assert count.by_part["routed experts"].total + count.by_part["expert biases"].total == experts
    if shape.is_moe:
        resting = Fraction(experts * (shape.experts - shape.top_k), shape.experts)
        assert count.active == total - resting


@pytest.mark.parametrize(("kind", "shape"), [case for case in ALIKE if case[0] != "Dbrx"],
                         ids=lambda value: value.name if isinstance(value, ModelShape) else value)
@pytest.mark.parametrize("backward", [False, True])
def test_flops_equal_what_pytorch_counts_in_a_real_model(kind, shape, backward):
    from torch import arange
    from torch.utils.flop_counter import FlopCounterMode

    model = build(kind, shape, "cpu")
    if shape.is_moe:
        model.set_experts_implementation("eager")  # a loop over the experts, whose products the counter sees
    tokens = 16
    ids = arange(tokens)[None] % shape.vocabulary
    with FlopCounterMode(display=False) as counter:
        logits = model(input_ids=ids, use_cache=False).logits
        if backward:
            logits.sum().backward()
    assert counter.get_total_flops() == tokens * flops_per_token(shape, tokens, backward=backward).total

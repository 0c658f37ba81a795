"""Counts of parameters and FLOPs: exact against the published, a listing of tensors, `transformers` and PyTorch."""

import dataclasses
import math
import subprocess
import sys
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalebook import published
from scalebook.moe.parameters import MATRICES, count_parameters, flops_per_token, resident_bytes
from scalebook.published import ModelShape

MIXTRAL = published.model("Mixtral-8x7B")
forall = settings(deadline=None, max_examples=300)
small = st.integers(1, 7)


# Published figures -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", published.table("moe_parameter_counts").rows, ids=lambda row: row["model"])
def test_every_published_column_of_a_mixture_of_experts_is_exact(row):
    count = count_parameters(published.model(row["model"]))
    parts = {name: part.total for name, part in count.by_part.items()}
    assert (count.total, count.active) == (row["total"], row["active"])
    assert count.active_without_input_embedding == row["active_excl_input_embed"]
    assert count.active_without_embeddings == row["active_excl_embed_and_head"]
    assert (parts["routed experts"], parts["router"], parts["norms"]) == (
        row["routed_expert"], row["router"], row["norms"])
    assert (parts["embedding"], parts["head"]) == (row["embed"], row["lm_head"])


@pytest.mark.parametrize("row", published.table("dense_parameter_counts").rows, ids=lambda row: row["model"])
def test_every_published_column_of_a_dense_model_is_exact(row):
    count = count_parameters(published.model(row["model"]))
    parts = {name: part.total for name, part in count.by_part.items()}
    assert count.total == count.active == row["total"]
    assert parts["attention"] + parts["dense feed-forward"] == row["linear"]
    assert (parts["embedding"], parts["head"]) == (row["embed"], row["lm_head"])


@pytest.mark.parametrize("row", published.table("moe_active_convention").rows, ids=lambda row: row["model"])
def test_each_publishers_active_count_is_one_of_the_conventions(row):
    count = count_parameters(published.model(row["model"]))
    without = row["convention"].startswith("without the input embedding")
    active = count.active_without_input_embedding if without else count.active
    assert active == row["count"]
    printed = row["published_active"].rstrip("B")
    assert round(active / 1e9, len(printed.partition(".")[2])) == float(printed)


def test_what_8_experts_share_is_counted_once():
    count = count_parameters(MIXTRAL)
    one_expert = count.by_part["routed experts"].total // 8
    assert one_expert == 5_637_144_576
    assert count.total - 8 * one_expert == 1_605_636_096
    assert count.active == 1_605_636_096 + 2 * one_expert
    assert round(100 * count.resting / count.total, 1) == 72.4


# Against a second count ------------------------------------------------------------------------------------


@st.composite
def shapes(draw):
    """Any shape that ModelShape allows: every option on and off."""
    flag = st.booleans()
    layers, heads = draw(small), draw(small)
    moe, latent = draw(flag), draw(flag)
    values = {"name": "random", "source": "drawn", "layers": layers, "heads": heads, "d_ff": draw(small),
              "vocabulary": draw(small), "d_model": draw(small), "ffn_mats": draw(st.sampled_from((2, 3))),
              "norm": draw(st.sampled_from(("rmsnorm", "layernorm", "layernorm-without-bias"))),
              "norms_per_layer": draw(st.integers(0, 4)), "learned_positions": draw(st.integers(0, 7)),
              "qk_norm": draw(st.sampled_from(("none", "head", "full")))}
    values |= {name: draw(flag) for name in ("attention_bias", "attention_output_bias", "attention_sinks", "ffn_bias",
                                             "final_norm", "embedding_norm", "tied_embeddings")}
    if latent:
        values |= {"kv_heads": heads, "kv_lora_rank": draw(small), "q_lora_rank": draw(st.integers(0, 7)),
                   "qk_nope": draw(small), "qk_rope": draw(small), "v_head": draw(small)}
    else:
        divisors = [n for n in range(1, heads + 1) if heads % n == 0]
        values |= {"kv_heads": draw(st.sampled_from(divisors)), "head_dim": draw(small)}
    if moe:
        experts = draw(small)
        values |= {"experts": experts, "top_k": draw(st.integers(1, experts)), "d_ff_expert": draw(small),
                   "shared_experts": draw(st.integers(0, 3)), "dense_layers": draw(st.integers(0, layers - 1)),
                   "moe_every": draw(st.integers(1, 3)), "router_bias": draw(flag), "selection_bias": draw(flag),
                   "scoring": draw(st.sampled_from(("softmax", "sigmoid")))}
        values["shared_expert_gate"] = values["shared_experts"] > 0 and draw(flag)
    return ModelShape(**values)


def attention_tensors(s):
    if s.kv_lora_rank:
        width = s.qk_nope + s.qk_rope
        if s.q_lora_rank:
            yield from ((s.q_lora_rank, s.d_model), (s.q_lora_rank,), (s.heads * width, s.q_lora_rank))
            if s.attention_bias:
                yield (s.q_lora_rank,)
        else:
            yield (s.heads * width, s.d_model)
        yield from ((s.kv_lora_rank + s.qk_rope, s.d_model), (s.kv_lora_rank,))
        yield (s.heads * (s.qk_nope + s.v_head), s.kv_lora_rank)
        yield (s.d_model, s.heads * s.v_head)
        if s.attention_bias:
            yield (s.kv_lora_rank + s.qk_rope,)
    else:
        width = s.head_dim
        for heads in (s.heads, s.kv_heads, s.kv_heads):
            yield (heads * width, s.d_model)
            if s.attention_bias:
                yield (heads * width,)
        yield (s.d_model, s.heads * width)
    if s.attention_output_bias:
        yield (s.d_model,)
    if s.qk_norm != "none":
        yield from [(width,), (width,)] if s.qk_norm == "head" else [(s.heads * width,), (s.kv_heads * width,)]
    if s.attention_sinks:
        yield (s.heads,)


def feed_forward_tensors(s, width):
    for _ in range(s.ffn_mats - 1):
        yield (width, s.d_model)
        if s.ffn_bias:
            yield (width,)
    yield (s.d_model, width)
    if s.ffn_bias:
        yield (s.d_model,)


def norm_tensors(s, times):
    return [(s.d_model,)] * (times * (2 if s.norm == "layernorm" else 1))


def tensors(s, experts_held):
    """The tensor shapes of a model whose MoE layers hold that many routed experts, one by one, layer by layer."""
    yield (s.vocabulary, s.d_model)
    if not s.tied_embeddings:
        yield (s.vocabulary, s.d_model)
    if s.learned_positions:
        yield (s.learned_positions, s.d_model)
    yield from norm_tensors(s, int(s.embedding_norm))
    until_moe = s.dense_layers + s.moe_every
    for _ in range(s.layers):
        until_moe -= 1
        yield from norm_tensors(s, s.norms_per_layer)
        yield from attention_tensors(s)
        if s.experts and until_moe == 0:
            until_moe = s.moe_every
            yield (s.experts, s.d_model)
            if s.shared_expert_gate:
                yield (1, s.d_model)
            if s.router_bias:
                yield (s.experts,)
            for _ in range(experts_held + s.shared_experts):
                yield from feed_forward_tensors(s, s.d_ff_expert)
        else:
            yield from feed_forward_tensors(s, s.d_ff)
    yield from norm_tensors(s, int(s.final_norm))


@given(shapes())
@forall
def test_total_and_active_equal_a_listing_of_every_tensor(shape):
    count = count_parameters(shape)
    assert count.total == sum(map(math.prod, tensors(shape, shape.experts)))
    assert count.active == sum(map(math.prod, tensors(shape, shape.top_k)))


@given(shapes())
@forall
def test_what_multiplies_is_every_matrix_that_is_not_looked_up(shape):
    matrices = [t for t in tensors(shape, shape.top_k) if len(t) == 2]
    looked_up = shape.learned_positions * shape.d_model
    looked_up += 0 if shape.tied_embeddings else shape.vocabulary * shape.d_model
    flops = flops_per_token(shape, 5)
    assert flops.total - flops.by_part["attention scores"] == 2 * (sum(map(math.prod, matrices)) - looked_up)
    count = count_parameters(shape)
    vectors = sum(math.prod(t) for t in tensors(shape, shape.top_k) if len(t) == 1)
    assert count.active_without_input_embedding == sum(map(math.prod, matrices)) - looked_up + vectors


@given(shapes())
@forall
def test_the_conventions_differ_by_the_tables(shape):
    count = count_parameters(shape)
    table, positions = shape.vocabulary * shape.d_model, shape.learned_positions * shape.d_model
    tables = table * (1 if shape.tied_embeddings else 2)
    assert count.active - count.active_without_embeddings == tables + positions
    assert count.active - count.active_without_input_embedding == tables - table + positions
    assert count.total - count.active == count.resting >= 0
    assert all(0 <= part.active <= part.total for part in count.parts)


def test_a_dense_model_rests_nothing_and_one_expert_of_one_is_dense():
    assert count_parameters(published.model("Llama-3-8B")).resting == 0
    one = dataclasses.replace(MIXTRAL, experts=1, top_k=1)
    dense = dataclasses.replace(MIXTRAL, experts=0, top_k=0, d_ff_expert=0, d_ff=14336, scoring="none")
    router = 32 * 4096
    assert count_parameters(one).total == count_parameters(one).active == count_parameters(dense).total + router


@pytest.mark.parametrize("wrong", [None, "Mixtral-8x7B", {"layers": 2}])
def test_what_is_not_a_shape_is_refused(wrong):
    with pytest.raises(ValueError, match=r"shape = .* must be a published.ModelShape"):
        count_parameters(wrong)


# FLOPs and bytes -------------------------------------------------------------------------------------------


def test_mixtrals_token_costs_twice_what_multiplies():
    forward = flops_per_token(MIXTRAL, 4096)
    products = forward.total - forward.by_part["attention scores"]
    norms = count_parameters(MIXTRAL).by_part["norms"].total
    assert products == 2 * (count_parameters(MIXTRAL).active_without_input_embedding - norms)
    assert round(products / 1e9, 1) == 25.5
    assert round(3 * products / 1e9) == 76
    everything = flops_per_token(dataclasses.replace(MIXTRAL, top_k=8), 4096)
    assert round((everything.total - everything.by_part["attention scores"]) / 1e9) == 93
    assert forward.by_part["router"] == 32 * 2 * 4096 * 8


@given(shapes(), st.integers(1, 64))
@forall
def test_causal_scores_are_the_mean_over_the_queries_of_the_keys_they_meet(shape, context):
    query = shape.head_dim or shape.qk_nope + shape.qk_rope
    value = shape.v_head or shape.head_dim
    met = [2 * keys * shape.layers * shape.heads * (query + value) for keys in range(1, context + 1)]
    causal = flops_per_token(shape, context, causal=True).by_part["attention scores"]
    assert causal * context == sum(met)
    assert flops_per_token(shape, context).by_part["attention scores"] == met[-1]


@given(shapes(), st.integers(1, 64), st.booleans())
@forall
def test_forward_and_backward_are_three_forwards_part_by_part(shape, context, causal):
    forward = flops_per_token(shape, context, causal=causal).by_part
    both = flops_per_token(shape, context, causal=causal, backward=True).by_part
    assert both == {name: 3 * flops for name, flops in forward.items()}
    assert set(forward) == {*MATRICES, "attention scores"}


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "4096", None])
def test_a_context_that_is_no_length_is_refused(wrong):
    with pytest.raises(ValueError, match=r"context = .* at least 1"):
        flops_per_token(MIXTRAL, wrong)


def test_all_experts_must_be_resident():
    assert resident_bytes(MIXTRAL, 2) == 93_405_585_408
    assert resident_bytes(MIXTRAL, 0.5) == 46_702_792_704 // 2
    assert resident_bytes(MIXTRAL, Fraction(1, 7)) == 46_702_792_704 / 7
    assert isinstance(resident_bytes(MIXTRAL, 2.0), int)


@pytest.mark.parametrize("wrong", [0, -2, math.nan, math.inf, True, "2", None])
def test_bytes_that_no_parameter_takes_are_refused(wrong):
    with pytest.raises(ValueError, match=r"bytes_per_parameter = .* above 0"):
        resident_bytes(MIXTRAL, wrong)


def test_counting_needs_no_torch():
    code = "import sys, scalebook.moe.parameters; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

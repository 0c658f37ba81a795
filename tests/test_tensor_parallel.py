"""Tensor parallelism without other processes: sharding, the reference, and one rank alone."""

import doctest
import importlib
import inspect
import pkgutil

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from scalebook import tensor_parallel as tp
from scalebook.tensor_parallel import reference, sharding
from scalebook.tensor_parallel.sharding import held_kv_heads

MODULES = [importlib.import_module(f"scalebook.tensor_parallel.{module.name}")
           for module in pkgutil.iter_modules(tp.__path__)]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_the_examples_in_the_docstrings_hold(module):
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


def lines_without_docstring(thing):
    """Lines of a function or a class, with the docstrings of it and its methods taken off."""
    held = [thing, *(value for value in vars(thing).values() if inspect.isfunction(value))] if inspect.isclass(
        thing) else [thing]
    documented = sum(len(one.__doc__.splitlines()) for one in held if one.__doc__)
    return len(inspect.getsource(thing).splitlines()) - documented


def test_everything_can_be_shown_as_a_listing_of_at_most_40_lines():
    things = [thing for module in MODULES for thing in vars(module).values()
              if getattr(thing, "__module__", "") == module.__name__ and (inspect.isfunction(thing)
                                                                          or inspect.isclass(thing))]
    assert len(things) > 40
    assert not {thing.__name__: lines for thing in things if (lines := lines_without_docstring(thing)) > 40
                and thing is not tp.Shape}  # a table of sizes and their checks, never shown


# Sharding


@st.composite
def splits(draw):
    """Ranks, query heads, key and value heads, and the width of a head that go together."""
    ranks = draw(st.sampled_from([1, 2, 3, 4, 6]))
    kv = draw(st.sampled_from([g for g in range(1, 13) if g % ranks == 0 or ranks % g == 0]))
    heads = draw(st.sampled_from([h for h in range(1, 37) if h % ranks == 0 and h % kv == 0]))
    return ranks, heads, kv, draw(st.integers(1, 3))


@settings(deadline=None, max_examples=60)
@given(splits())
def test_sharding_and_putting_together_is_the_identity(split):
    ranks, heads, kv, width = split
    qkv = torch.randn((heads + 2 * kv) * width, 5)
    parts = [tp.shard_qkv(qkv, heads, kv, rank, ranks) for rank in range(ranks)]
    assert torch.equal(tp.unshard_qkv(parts, heads, kv), qkv)
    weight = torch.randn(2 * heads, 2 * heads)
    for cut, whole in ((tp.shard_columns, tp.unshard_columns), (tp.shard_rows, tp.unshard_rows),
                       (tp.shard_gate_up, tp.unshard_gate_up), (tp.shard_sequence, tp.unshard_sequence)):
        assert torch.equal(whole([cut(weight, rank, ranks) for rank in range(ranks)]), weight)


@settings(deadline=None, max_examples=60)
@given(splits())
def test_a_rank_holds_the_key_head_of_each_of_its_query_heads(split):
    ranks, heads, kv, width = split
    names = torch.arange(heads + 2 * kv).repeat_interleave(width)
    for rank in range(ranks):
        own, held = heads // ranks, held_kv_heads(rank, ranks, kv)
        q, k, v = tp.shard_qkv(names, heads, kv, rank, ranks)[::width].split([own, len(held), len(held)])
        needed = [int(i) * kv // heads for i in q]
        assert [int(k[i * len(held) // own]) - heads for i in range(own)] == needed
        assert set(needed) == set(held)
        assert torch.equal(v, k + kv)


@settings(deadline=None, max_examples=25)
@given(splits(), st.sampled_from(["gelu", "swiglu"]))
def test_the_parameters_of_a_model_come_back_and_each_is_on_some_rank(split, activation):
    ranks, heads, kv, width = split
    shape = tp.Shape(heads * width, heads, kv, 2 * ranks, activation, 3 * ranks)
    state = tp.Transformer(shape).state_dict()
    parts = [tp.shard_state(state, shape, rank, ranks) for rank in range(ranks)]
    again = tp.unshard_state(parts, shape)
    assert list(again) == list(state)
    assert all(torch.equal(again[name], value) for name, value in state.items())
    assert all(parts[0][name].data_ptr() != value.data_ptr() for name, value in state.items())


def test_columns_give_columns_and_rows_give_summands():
    x, a, b = torch.randn(5, 6), torch.randn(8, 6), torch.randn(6, 8)
    columns = [F.linear(x, tp.shard_columns(a, rank, 4)) for rank in range(4)]
    torch.testing.assert_close(torch.cat(columns, dim=-1), x @ a.T)
    y = torch.randn(5, 8)
    summands = [F.linear(y.chunk(4, dim=-1)[rank], tp.shard_rows(b, rank, 4)) for rank in range(4)]
    torch.testing.assert_close(sum(summands), y @ b.T)


# The reference against PyTorch's own


def test_the_reference_block_is_pytorchs_pre_norm_encoder_layer():
    shape = tp.Shape(hidden=24, heads=3, inner=40)
    block = tp.Block(shape).double()
    theirs = nn.TransformerEncoderLayer(24, 3, 40, dropout=0.0, activation="gelu", norm_first=True).double()
    names = {"attention_norm": "norm1", "mlp_norm": "norm2", "attention.qkv.": "self_attn.in_proj_",
             "attention.out": "self_attn.out_proj", "mlp.up": "linear1", "mlp.down": "linear2"}
    for old, new in names.items():
        for kind in ("weight", "bias"):
            join = "" if old.endswith(".") else "."
            ours = block.get_parameter(f"{old}{join}{kind}")
            nn.init.normal_(ours)
            theirs.get_parameter(f"{new}{join if join else ''}{kind}").data.copy_(ours.data)
    x_SBD = torch.randn(7, 2, 24, dtype=torch.float64)
    mask = nn.Transformer.generate_square_subsequent_mask(7, dtype=torch.float64)
    torch.testing.assert_close(block(x_SBD), theirs(x_SBD, mask, is_causal=True))


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 2), (4, 1)])
def test_attention_with_shared_key_heads_is_pytorchs(heads, kv_heads):
    q = torch.randn(5, 2, heads, 3, dtype=torch.float64)
    k, v = torch.randn(2, 5, 2, kv_heads, 3, dtype=torch.float64)
    theirs = F.scaled_dot_product_attention(*(part.permute(1, 2, 0, 3) for part in (q, k, v)), is_causal=True,
                                            enable_gqa=True)
    expected = theirs.permute(2, 0, 1, 3).flatten(2)
    torch.testing.assert_close(tp.causal_attention(q, k, v), expected)
    shape = tp.Shape(hidden=3 * heads, heads=heads, kv_heads=kv_heads)
    attention = reference.Attention(shape).double()
    attention.qkv = nn.Identity()
    attention.out = nn.Identity()
    torch.testing.assert_close(attention(torch.cat([part.flatten(2) for part in (q, k, v)], dim=-1)), expected)


def test_the_reference_swiglu_is_gate_times_its_sigmoid_times_up():
    mlp, x_SBD = reference.MLP(tp.Shape(hidden=12, heads=3, inner=20, activation="swiglu")).double(), torch.randn(
        3, 2, 12, dtype=torch.float64)
    gate, up = (x_SBD @ weight.T + bias for weight, bias in zip(mlp.up.weight.chunk(2), mlp.up.bias.chunk(2),
                                                                strict=True))
    expected = (gate / (1 + (-gate).exp()) * up) @ mlp.down.weight.T + mlp.down.bias
    torch.testing.assert_close(mlp(x_SBD), expected)


# One rank


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("activation", ["gelu", "swiglu"])
def test_one_rank_needs_no_process_group_and_gives_the_reference(activation, sequence_parallel):
    shape = tp.Shape(activation=activation, kv_heads=2, layers=2)
    whole = tp.Transformer(shape).double()
    model = tp.ParallelTransformer.of(whole, tp.Region(sequence_parallel=sequence_parallel), recomputed=True)
    tokens, targets = torch.randint(shape.vocabulary, (2, 6, 3))
    losses = [one(tokens, targets) for one in (whole, model)]
    for loss in losses:
        loss.backward()
    torch.testing.assert_close(*losses)
    assert tp.sum_copies(model) == 0
    for name, parameter in whole.named_parameters():
        torch.testing.assert_close(model.get_parameter(name).grad, parameter.grad)


def test_recomputing_draws_the_same_masks_and_leaves_the_streams_where_they_were():
    shape = tp.Shape(dropout=0.3)
    whole, x = tp.Block(shape).double(), torch.randn(6, 2, 32, dtype=torch.float64)
    found = []
    for run in (lambda block, x: block(x), tp.recompute, lambda block, x: tp.recompute(block, x, early_stop=True)):
        block = tp.ParallelBlock.of(whole, tp.Region(), tp.RandomStreams(5, 0))
        x.grad = None
        y = run(block, x.requires_grad_())
        after = block.streams.states()
        (y * y).sum().backward()
        assert all(map(torch.equal, block.streams.states(), after))
        found.append((y, x.grad, *(p.grad for p in block.parameters())))
    for others in found[1:]:
        assert all(map(torch.equal, found[0], others))


def test_dropout_keeps_the_mean_and_its_mask_in_one_byte_an_element():
    saved, x = [], torch.ones(100_000, dtype=torch.float64, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda one: saved.append(one) or one, lambda one: one):
        y = tp.dropout(x, 0.25, torch.Generator().manual_seed(0))
    assert y.mean().item() == pytest.approx(1, abs=0.01)
    assert set(y.tolist()) == {0.0, 1 / 0.75}
    assert [(one.dtype, one.numel()) for one in saved if one.numel() > 1] == [(torch.bool, 100_000)]


def test_the_cut_of_a_name_is_one_of_its_layer():
    shape = tp.Shape(activation="swiglu")
    assert sharding.cut_of("mlp.up.bias", shape)[0] is sharding.shard_gate_up
    assert sharding.cut_of("blocks.1.mlp.down.bias", shape) is None
    assert sharding.cut_of("blocks.1.attention_norm.weight", shape) is None
    assert sharding.cut_of("embedding.weight", shape)[0] is sharding.shard_columns

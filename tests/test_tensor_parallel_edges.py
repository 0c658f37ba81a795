"""Tensor parallelism: what cannot be is refused, by name, with its value and what is allowed."""

import pytest
import torch

from scalebook import tensor_parallel as tp
from scalebook.tensor_parallel import vocabulary
from scalebook.tensor_parallel.sharding import held_kv_heads

SHAPE, REGION, X = tp.Shape(), tp.Region(), torch.ones(4, 4)


@pytest.mark.parametrize(("sizes", "message"), [
    ({"hidden": 0}, "hidden = 0 is not allowed; hidden must be a whole number, at least 1"),
    ({"hidden": 30}, "hidden = 30 is not allowed; it must be a multiple of heads = 4"),
    ({"heads": 2.0}, "heads = 2.0 is not allowed"), ({"heads": True}, "heads = True is not allowed"),
    ({"kv_heads": 3}, "heads = 4 is not allowed; it must be a multiple of kv_heads = 3"),
    ({"inner": -1}, "inner = -1 is not allowed"), ({"vocabulary": "many"}, "vocabulary = 'many' is not allowed"),
    ({"layers": 0}, "layers = 0 is not allowed"), ({"activation": "relu"}, "activation = 'relu' is not allowed"),
    ({"dropout": 1.0}, "dropout = 1.0 is not allowed"), ({"dropout": float("nan")}, "dropout = nan is not allowed"),
])
def test_sizes_that_no_transformer_has(sizes, message):
    with pytest.raises(ValueError, match=message):
        tp.Shape(**sizes)


@pytest.mark.parametrize(("sizes", "ranks", "message"), [
    ({}, 3, "heads = 4 is not allowed; it must be a multiple of the 3 ranks"),
    ({}, 8, "heads = 4 is not allowed; it must be a multiple of the 8 ranks"),
    ({"heads": 12, "hidden": 12, "kv_heads": 3}, 2, "kv_heads = 3 is not allowed; it must be a multiple or a divisor"),
    ({"inner": 6}, 4, "inner = 6 is not allowed; it must be a multiple of the 4 ranks"),
    ({"vocabulary": 50_257}, 4, "vocabulary = 50257 is not allowed; .* pad it with 3 rows or more"),
    ({}, 0, "ranks = 0 is not allowed"), ({}, 2.0, "ranks = 2.0 is not allowed"),
])
def test_ranks_that_cannot_share_a_transformer(sizes, ranks, message):
    shape = tp.Shape(**sizes)
    with pytest.raises(ValueError, match=message):
        shape.check(ranks)
    with pytest.raises(ValueError, match=message):
        tp.shard_state({}, shape, 0, ranks)


@pytest.mark.parametrize(("call", "message"), [
    (lambda: tp.shard_columns(X, 0, 3), "columns = 4 is not allowed; it must be a multiple of the 3 ranks"),
    (lambda: tp.shard_columns(X, 4, 4), "rank = 4 is not allowed; it must be below ranks = 4"),
    (lambda: tp.shard_columns(X, -1, 4), "rank = -1 is not allowed"),
    (lambda: tp.shard_columns([1, 2], 0, 2), r"weight = \[1, 2\] is not allowed; it must be a tensor"),
    (lambda: tp.shard_rows(torch.ones(4), 0, 2), "weight = .*4,.* is not allowed; it must be a tensor with 2"),
    (lambda: tp.shard_rows(X, 0, 3), "rows = 4 is not allowed"),
    (lambda: tp.shard_gate_up(torch.ones(6), 0, 2), "gate and up columns = 6 is not allowed; .* twice the ranks = 4"),
    (lambda: tp.shard_qkv(torch.ones(7), 2, 1, 0, 2), r"columns = 7 is not allowed; .* heads \+ 2 kv_heads = 4"),
    (lambda: tp.shard_qkv(torch.ones(8), 3, 2, 0, 1), "heads = 3 is not allowed; it must be a multiple of kv_heads"),
    (lambda: tp.shard_qkv(torch.ones(8), 2, 2, 0, 4), "heads = 2 is not allowed; it must be a multiple of the 4"),
    (lambda: tp.unshard_qkv([torch.ones(5)] * 2, 4, 2), "columns = 5 is not allowed"),
    (lambda: held_kv_heads(0, 2, 3), "kv_heads = 3 is not allowed; it must be a multiple or a divisor of the 2"),
    (lambda: tp.shard_sequence(X, 0, 3), "the sequence length = 4 is not allowed"),
    (lambda: tp.unshard_columns([]), r"shards = \[\] is not allowed"),
    (lambda: tp.unshard_sequence(X), "shards = .* is not allowed; it must be a list"),
    (lambda: tp.unshard_state([{"a.b": X}, {}], SHAPE), r"states = \['a.b'\] on some ranks only"),
    (lambda: tp.shard_state({}, "big", 0, 1), "shape = 'big' is not allowed; it must be a Shape"),
])
def test_what_cannot_be_cut(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(("call", "message"), [
    (lambda: tp.Region(group=3), "group = 3 is not allowed"),
    (lambda: tp.Region(sequence_parallel=1), "sequence_parallel = 1 is not allowed; it must be True or False"),
    (lambda: tp.Region(regather=True), "regather = True is not allowed; it needs sequence_parallel = True"),
    (lambda: tp.ranks_in("all"), "group = 'all' is not allowed"),
    (lambda: tp.copy_to_ranks(torch.ones(2, dtype=torch.int64)), "x = torch.int64 of shape .* floating-point"),
    (lambda: tp.reduce_from_ranks([1.0]), r"x = \[1.0\] is not allowed"),
    (lambda: tp.gather_sequence(torch.tensor(1.0)), r"x = .*shape \(\) is not allowed; .* 1 or more dimensions"),
    (lambda: tp.scatter_sequence(torch.tensor(1.0)), r"x = .*shape \(\) is not allowed"),
    (lambda: tp.ColumnParallelLinear(0, 4, REGION), "width_in = 0 is not allowed"),
    (lambda: tp.RowParallelLinear(4, 2.5, REGION), "width_out = 2.5 is not allowed"),
    (lambda: tp.ColumnParallelLinear(4, 4, None), "region = None is not allowed; it must be a Region"),
    (lambda: tp.VocabularyParallelEmbedding(4, 4, "r"), "region = 'r' is not allowed"),
    (lambda: tp.ParallelAttention(SHAPE, None, None), "region = None is not allowed"),
    (lambda: tp.ParallelMLP("big", REGION), "shape = 'big' is not allowed"),
    (lambda: tp.ParallelBlock(None, REGION), "shape = None is not allowed"),
    (lambda: tp.ParallelTransformer(SHAPE, 4), "region = 4 is not allowed"),
    (lambda: tp.Block("big"), "shape = 'big' is not allowed"), (lambda: tp.Transformer(1), "shape = 1 is not allowed"),
    (lambda: tp.recompute(torch.nn.Linear(1, 1), X), "block = Linear.* is not allowed; it must be a ParallelBlock"),
    (lambda: tp.sum_copies("model"), "model = 'model' is not allowed"),
    (lambda: tp.causal_attention(*[torch.ones(2, 1, 3, 4)] * 2, torch.ones(2, 1, 1, 4)),
     "v_SBGK has the shape .* but k_SBGK has the shape"),
    (lambda: tp.causal_attention(torch.ones(2, 1, 3, 4), *[torch.ones(2, 1, 2, 4)] * 2), "H a multiple of G"),
    (lambda: tp.RandomStreams(-1, 0), "seed = -1 is not allowed"),
    (lambda: tp.RandomStreams(2**40, 0), "seed = .* is not allowed; seed must be below 1099511627776"),
    (lambda: tp.RandomStreams(0, 1.5), "rank = 1.5 is not allowed"),
    (lambda: tp.RandomStreams(True, 0), "seed = True is not allowed"),
    (lambda: tp.ParallelAttention(SHAPE, REGION, None), "streams = None is not allowed; it must be a RandomStreams"),
    (lambda: tp.ParallelBlock(SHAPE, REGION, 7), "streams = 7 is not allowed"),
    (lambda: tp.ParallelTransformer(SHAPE, REGION, recomputed=1), "recomputed = 1 is not allowed"),
    (lambda: tp.ParallelBlock.of("block", REGION), "whole = 'block' is not allowed; it must be a reference.Block"),
    (lambda: tp.ParallelTransformer.of(tp.Block(SHAPE), REGION), "it must be a reference.Transformer"),
    (lambda: tp.ParallelLayerNorm(0, REGION), "hidden = 0 is not"), (lambda: tp.ParallelLayerNorm(4, 4), "region = 4"),
    (lambda: tp.dropout(X, 0.5, None), "stream = None is not allowed; it must be a torch.Generator"),
    (lambda: tp.unshard_state([{}], 3), "shape = 3 is not allowed"),
    (lambda: tp.sum_copies(torch.nn.Linear(1, 1), "all"), "group = 'all' is not allowed"),
    (lambda: tp.dropout(X, 1, None), "rate = 1 is not allowed"), (lambda: tp.dropout(3, 0, None), "x = 3 is not"),
])
def test_what_no_layer_can_be(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(("tokens", "message"), [
    (torch.tensor([[8]]), "tokens from 8 to 8 are not allowed; they must be from 0 to below 8"),
    (torch.tensor([[-1]]), "tokens from -1 to -1 are not allowed"),
    (torch.tensor([[1.0]]), "(tokens|targets) = .* is not allowed; it must be a tensor of whole numbers"),
])
def test_tokens_that_no_rank_has(tokens, message):
    with pytest.raises(ValueError, match=message):
        tp.VocabularyParallelEmbedding(8, 2, REGION)(tokens)
    with pytest.raises(ValueError, match=message):
        tp.vocabulary_parallel_cross_entropy(torch.zeros(1, 1, 8), tokens)
    with pytest.raises(ValueError, match=r"targets_SB has the shape .* but logits_SBv has the shape"):
        tp.vocabulary_parallel_cross_entropy(torch.zeros(1, 2, 8), tokens.long())


def test_no_tokens_at_all_are_fine():
    none = torch.zeros(0, 2, dtype=torch.int64)
    assert tp.VocabularyParallelEmbedding(8, 2, REGION)(none).shape == (0, 2, 2)
    assert [one.shape for one in vocabulary.place(none, 4)] == [(0, 2), (0, 2)]

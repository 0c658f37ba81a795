"""Tensor parallelism: one layer of a transformer on several ranks, as in Megatron-LM, and sequence parallelism.

`sharding` cuts matrices; `communication` holds f, g and the pair of sequence parallelism; `linear`, `attention`, `mlp`,
`vocabulary` and `block` are the parallel layers; `reference` is the same transformer on one process. Names that need
PyTorch are imported when they are first asked for.
"""

from scalebook.lazy import lazily
from scalebook.tensor_parallel.kinds import KINDS, TOGETHER

from .shapes import Shape

__all__ = ["Shape"]

_LAZY = {
    "attention": ["ParallelAttention", "causal_attention"],
    "block": ["ParallelBlock", "ParallelTransformer", "recompute"],
    "communication": ["Region", "copy_to_ranks", "gather_sequence", "own_rank", "ranks_in", "reduce_from_ranks",
                      "scatter_sequence"],
    "copies": ["ParallelLayerNorm", "sum_copies"],
    "linear": ["ColumnParallelLinear", "RowParallelLinear"],
    "mlp": ["ParallelMLP"],
    "random_streams": ["RandomStreams", "dropout"],
    "reference": ["Block", "Transformer"],
    "sharding": ["shard_columns", "shard_gate_up", "shard_qkv", "shard_rows", "shard_sequence", "shard_state",
                 "unshard_columns", "unshard_gate_up", "unshard_qkv", "unshard_rows", "unshard_sequence",
                 "unshard_state"],
    "vocabulary": ["VocabularyParallelEmbedding", "vocabulary_parallel_cross_entropy"],
}

__getattr__, __dir__ = lazily(__name__, _LAZY, KINDS, TOGETHER)

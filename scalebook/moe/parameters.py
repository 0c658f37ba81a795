"""How many parameters a model has, how many one token uses, and what that token costs in FLOPs.

A mixture of experts sets the two counts apart: all experts are stored, and a token multiplies with the few that its
router chose. Every count here is an exact integer that follows from the shape alone (`published.ModelShape`).

What "active" counts. Publishers differ. `active` counts all that is in the path of one token, with the input embedding
and the head as whole tables; so Mistral prints 12.9B for Mixtral 8x7B. The input embedding is a look-up, which
multiplies nothing: `active_without_input_embedding` leaves it out, as OpenAI prints 5.13B for gpt-oss-120b.

Sources: Mixtral, arXiv:2401.04088, section 2; latent attention, arXiv:2405.04434, section 2.1; two FLOPs for a
parameter and a token, arXiv:2001.08361, section 2.1.
"""

import math
import numbers
from dataclasses import dataclass
from fractions import Fraction

from scalebook.published import ModelShape

MATRICES = ("head", "attention", "router", "routed experts", "shared experts", "dense feed-forward")


@dataclass(frozen=True)
class Part:
    """One part of a model: its name, its parameters over all layers, and those that one token uses."""

    name: str
    total: int
    active: int


@dataclass(frozen=True)
class ParameterCount:
    """The parameters of a model, part by part. `tied`: the head is the embedding table, counted once, as embedding.

    >>> from scalebook import published
    >>> count = count_parameters(published.model("Mixtral-8x7B"))
    >>> count.total - count.active == 32 * (8 - 2) * 3 * 4096 * 14336
    True
    """

    parts: tuple[Part, ...]
    tied: bool

    @property
    def by_part(self) -> dict[str, Part]:
        """The parts by name, from the input to the output."""
        return {part.name: part for part in self.parts}

    @property
    def total(self) -> int:
        """All parameters: what must be stored."""
        return sum(part.total for part in self.parts)

    @property
    def active(self) -> int:
        """The parameters in the path of one token, embedding and head included."""
        return sum(part.active for part in self.parts)

    @property
    def active_without_input_embedding(self) -> int:
        """`active` without what is only looked up: positions, and the embedding unless it is the head as well."""
        looked_up = self.by_part["positions"].active
        return self.active - looked_up - (0 if self.tied else self.by_part["embedding"].active)

    @property
    def active_without_embeddings(self) -> int:
        """`active` without embedding, positions and head: the layers and the final norm."""
        return self.active - sum(self.by_part[name].active for name in ("embedding", "positions", "head"))

    @property
    def resting(self) -> int:
        """The parameters that one token leaves alone: those of the experts that it was not sent to."""
        return self.total - self.active


@dataclass(frozen=True)
class FlopCount:
    """The FLOPs of one token: `by_part` names the matrices of each part and "attention scores"."""

    by_part: dict[str, int]

    @property
    def total(self) -> int:
        """The FLOPs of all parts."""
        return sum(self.by_part.values())


def count_parameters(shape: ModelShape) -> ParameterCount:
    """Count the parameters of a model exactly, all of them and those that one token uses.

    `shape` is a `published.ModelShape`, dense or mixture of experts. Returns a `ParameterCount` in parameters:
    `.total`, `.active` (embedding and head both counted), `.active_without_input_embedding`,
    `.active_without_embeddings`, `.resting`, `.by_part`. Matrices, norms and biases are parts of their own, so that a
    part of matrices is what multiplies. A selection bias is not counted: no gradient moves it.

    Raises ValueError when `shape` is not a ModelShape. Source: arXiv:2401.04088, section 2.

    >>> from scalebook import published
    >>> count = count_parameters(published.model("Mixtral-8x7B"))
    >>> count.total, count.active, count.active_without_input_embedding
    (46702792704, 12879925248, 12748853248)
    >>> count.by_part["routed experts"]
    Part(name='routed experts', total=45097156608, active=11274289152)
    """
    _check_shape(shape)
    sparse = len(shape.moe_layers)
    dense = shape.layers - sparse
    table = shape.vocabulary * shape.d_model
    expert = feed_forward_weights(shape, shape.d_ff_expert)
    expert_bias = feed_forward_biases(shape, shape.d_ff_expert)
    biases = (shape.layers * attention_biases(shape) + dense * feed_forward_biases(shape, shape.d_ff)
              + sparse * (shape.router_bias * shape.experts + shape.shared_experts * expert_bias))

    def everywhere(name, number):
        return Part(name, number, number)

    return ParameterCount(tied=shape.tied_embeddings, parts=(
        everywhere("embedding", table),
        everywhere("positions", shape.learned_positions * shape.d_model),
        everywhere("attention", shape.layers * attention_weights(shape)),
        everywhere("router", sparse * shape.d_model * (shape.experts + shape.shared_expert_gate)),
        Part("routed experts", sparse * shape.experts * expert, sparse * shape.top_k * expert),
        everywhere("shared experts", sparse * shape.shared_experts * expert),
        everywhere("dense feed-forward", dense * feed_forward_weights(shape, shape.d_ff)),
        everywhere("norms", norm_weights(shape)),
        everywhere("attention sinks", shape.layers * shape.heads * shape.attention_sinks),
        everywhere("biases", biases),
        Part("expert biases", sparse * shape.experts * expert_bias, sparse * shape.top_k * expert_bias),
        everywhere("head", 0 if shape.tied_embeddings else table),
    ))


def attention_weights(shape):
    """Count the weights of one layer's attention matrices: Q, K, V and output, or their compressed forms (MLA).

    >>> from scalebook import published
    >>> attention_weights(published.model("Mixtral-8x7B")) == 4096 * (4096 + 2 * 1024 + 4096)
    True
    """
    d, heads = shape.d_model, shape.heads
    if not shape.is_latent_attention:
        return 2 * d * heads * shape.head_dim + 2 * d * shape.kv_heads * shape.head_dim
    query = heads * _query_key_width(shape)
    queries = (d + query) * shape.q_lora_rank if shape.q_lora_rank else d * query
    compress = d * (shape.kv_lora_rank + shape.qk_rope)  # the rotary key comes beside the latent, once for all heads
    expand = shape.kv_lora_rank * heads * (shape.qk_nope + shape.v_head)
    return queries + compress + expand + heads * shape.v_head * d


def attention_biases(shape):
    """Count the biases of one layer's attention.

    Grouped-query form: on Q, K and V, and on the output. Latent form: as in the released DeepSeek code, on the matrices
    that compress, not on those that expand, and on the output.

    >>> from scalebook import published
    >>> attention_biases(published.model("gpt-oss-20b")) == 64 * 64 + 2 * 8 * 64 + 2880
    True
    """
    if shape.is_latent_attention:
        inner = shape.q_lora_rank + shape.kv_lora_rank + shape.qk_rope
    else:
        inner = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    return inner * shape.attention_bias + shape.d_model * shape.attention_output_bias


def feed_forward_weights(shape, width):
    """Count the matrix weights of one feed-forward, or one expert, of the given width: 3 d w gated, 2 d w plain.

    >>> from scalebook import published
    >>> feed_forward_weights(published.model("Mixtral-8x7B"), 14336)
    176160768
    """
    return shape.ffn_mats * shape.d_model * width


def feed_forward_biases(shape, width):
    """Count the biases of one feed-forward, or one expert, of the given width: `width` on each matrix in, d on the out.

    >>> from scalebook import published
    >>> feed_forward_biases(published.model("gpt-oss-20b"), 2880) == 2 * 2880 + 2880
    True
    """
    return ((shape.ffn_mats - 1) * width + shape.d_model) * shape.ffn_bias


def norm_weights(shape):
    """Count the parameters of all norms: behind the embedding, in the layers, before the head, on Q, K and latents.

    A LayerNorm's own biases are counted here, not among the biases.

    >>> from scalebook import published
    >>> norm_weights(published.model("Mixtral-8x7B")) == (2 * 32 + 1) * 4096
    True
    """
    width = shape.d_model * (2 if shape.norm == "layernorm" else 1)
    head = _query_key_width(shape)
    qk = {"none": 0, "head": 2 * head, "full": (shape.heads + shape.kv_heads) * head}[shape.qk_norm]
    latent = shape.q_lora_rank + shape.kv_lora_rank
    return (shape.layers * (shape.norms_per_layer * width + qk + latent)
            + (shape.final_norm + shape.embedding_norm) * width)


def flops_per_token(
    shape: ModelShape, context: int, *, causal: bool = False, backward: bool = False
) -> int | Fraction:
    """Count the FLOPs of one token: 2 for each weight that multiplies, and the attention scores.

    `context` is the length of the sequence in tokens. The scores of one layer and head cost 2 s for each dimension of
    a query, and 2 s for each of a value, where s is the number of keys: `context` when every query meets every key (as
    a kernel computes that masks afterwards), the mean (context + 1) / 2 when `causal`. A window that shortens the
    context in some layers is not in the shape. Latent attention is counted as in training, with keys and values
    expanded. `backward` adds the backward pass: each product has two there, so three times the forward, without
    recomputation. Norms, biases, softmax, activations and the embedding's look-up are not counted.

    Returns a `FlopCount` in FLOPs for a token: `.total`, `.by_part`. Raises ValueError for a context below 1 or not
    whole. Source: arXiv:2001.08361, section 2.1 and table 1.

    >>> from scalebook import published
    >>> flops = flops_per_token(published.model("Mixtral-8x7B"), 4096)
    >>> flops.by_part["router"], flops.by_part["attention scores"]
    (2097152, 2147483648)
    >>> flops.total - flops.by_part["attention scores"]
    25497174016
    """
    if isinstance(context, bool) or not isinstance(context, numbers.Integral) or context < 1:
        raise ValueError(f"context = {context!r} is not allowed; it must be a whole number of tokens, at least 1")
    count = count_parameters(shape)
    passes = 3 if backward else 1
    by_part = {name: passes * 2 * count.by_part[name].active for name in MATRICES}
    by_part["head"] = passes * 2 * shape.vocabulary * shape.d_model  # tied or not, the head multiplies
    value = shape.v_head if shape.is_latent_attention else shape.head_dim
    twice_keys = int(context) + 1 if causal else 2 * int(context)
    scores = twice_keys * shape.heads * (_query_key_width(shape) + value)
    by_part["attention scores"] = passes * shape.layers * scores
    return FlopCount(by_part)


def resident_bytes(shape: ModelShape, bytes_per_parameter: numbers.Real) -> int | float:
    """Return the bytes that all parameters take in memory: every expert, whichever the router chooses.

    `bytes_per_parameter` is any number above 0: 2 for bf16, 1 for FP8, 0.5 for 4 bits without scales. Returns an
    integer when the product is whole, a float otherwise. Raises ValueError for any other value.

    >>> from scalebook import published
    >>> resident_bytes(published.model("Mixtral-8x7B"), 2) / 1e9
    93.405585408
    """
    if (isinstance(bytes_per_parameter, bool) or not isinstance(bytes_per_parameter, numbers.Real)
            or not math.isfinite(bytes_per_parameter) or bytes_per_parameter <= 0):
        raise ValueError(f"bytes_per_parameter = {bytes_per_parameter!r} is not allowed; "
                         "it must be a finite number above 0")
    exact = count_parameters(shape).total * Fraction(bytes_per_parameter)
    return int(exact) if exact.denominator == 1 else float(exact)


def _query_key_width(shape):
    return shape.qk_nope + shape.qk_rope if shape.is_latent_attention else shape.head_dim


def _check_shape(shape):
    if not isinstance(shape, ModelShape):
        raise ValueError(f"shape = {shape!r} is not allowed; it must be a published.ModelShape")

"""The numbers of a model that the planner's formulas take, found from its shape.

A layer here is the mean of the model's layers, so that the stages add up to the model; a mixture of experts with a few
dense layers has no layer of that size. Activations are those of arXiv:2205.05198, section 4.1, for any widths: the
inputs of norms and products, 2 bytes a number; queries, keys, values, what goes into the projection; what goes into
and comes out of the feed-forward's activation, and the gate's product. `unfused` attention stores scores and has
dropout, as in that paper; `fused` attention stores no scores, computes only what the causal mask leaves, and has no
dropout.
"""

from dataclasses import dataclass
from functools import cache, partial

from scalebook import checks
from scalebook.borders import guard
from scalebook.moe import parameters as counting
from scalebook.published import ModelShape
from scalebook.published.models import MOST, MOST_OTHER

ATTENTION = ("fused", "unfused")


@dataclass(frozen=True)
class Sizes:
    """A model as the formulas of `formulas.planner` see it. Names are those of the formulas' symbols.

    >>> from scalebook import published
    >>> sizes = sizes_of(published.model("Llama-3-70B"))
    >>> sizes.L * (sizes.Psi_t + sizes.Psi_c) + 2 * sizes.V * sizes.h + sizes.norm == 70553706496
    True
    """

    L: int
    h: int
    a: int
    G: int
    d_h: float
    V: int
    Psi_t: float
    Psi_c: float
    Psi_x: float
    Psi_m: float
    k_x: int
    f_x: float
    A_o: dict
    A_i: float
    A_s: dict
    positions: int
    norm: int
    tied: bool
    experts: int
    widths: tuple

    @property
    def layer(self):
        """The numbers that do not change from plan to plan, by symbol."""
        names = ("L", "h", "a", "G", "d_h", "V", "Psi_t", "Psi_c", "Psi_x", "Psi_m", "k_x", "f_x", "A_i")
        return {name: getattr(self, name) for name in names}


@cache
def sizes_of(shape):
    """The `Sizes` of a `published.ModelShape`; ValueError when it is something else."""
    if not isinstance(shape, ModelShape):
        raise ValueError(f"model = {shape!r} is not allowed; it must be a published.ModelShape")
    count = {part.name: part for part in counting.count_parameters(shape).parts}
    layers, sparse = shape.layers, len(shape.moe_layers)
    norm = shape.d_model * (2 if shape.norm == "layernorm" else 1)
    final_norm, first_norm = shape.final_norm * norm, shape.embedding_norm * norm
    routed = count["routed experts"].total + count["expert biases"].total
    whole = count["norms"].total - final_norm - first_norm + count["router"].total + _whole_biases(shape)
    split = sum(part.total for part in count.values()) - routed - whole - final_norm - first_norm - sum(
        count[name].total for name in ("embedding", "positions", "head"))
    multiplied = sum(count[name].active for name in counting.MATRICES if name != "head")
    attention, latent = _attention_numbers(shape)
    dense = 2 * shape.ffn_mats * shape.d_ff * (layers - sparse)
    chosen = 2 * shape.ffn_mats * shape.d_ff_expert * (shape.top_k + shape.shared_experts) * sparse
    outside = latent + 2 * shape.top_k * shape.d_model * sparse / layers  # a token's copies for its experts
    return Sizes(
        L=layers, h=shape.d_model, a=shape.heads, G=shape.kv_heads, d_h=_mean_head(shape), V=shape.vocabulary,
        Psi_t=split / layers, Psi_c=whole / layers, Psi_x=routed / layers, Psi_m=multiplied / layers,
        k_x=shape.top_k, f_x=sparse / layers,
        A_o={"fused": 8 * shape.d_model + outside, "unfused": 10 * shape.d_model + outside},
        A_i=attention + (dense + chosen) / layers, A_s={"fused": 0, "unfused": 5},
        positions=count["positions"].total + first_norm, norm=final_norm, tied=shape.tied_embeddings,
        experts=shape.experts, widths=tuple(sorted({shape.d_ff, shape.d_ff_expert} - {0})))


def gpt(hidden, heads, layers, vocabulary=51200, positions=2048):
    """The shape of a model of arXiv:2104.04473 and arXiv:2205.05198: GELU, biases, learned positions, tied embedding.

    >>> from scalebook.moe import count_parameters
    >>> round(count_parameters(gpt(2304, 24, 24)).total / 1e9, 1)
    1.7
    """
    for name, value, most in (("hidden", hidden, MOST_OTHER // 4), ("heads", heads, MOST_OTHER),
                              ("layers", layers, MOST["layers"]), ("vocabulary", vocabulary, MOST_OTHER)):
        checks.whole(name, value, 1, most)
    checks.whole("positions", positions, 0, MOST_OTHER)
    if hidden % heads:
        raise ValueError(f"heads = {heads} is not allowed; it must be a divisor of hidden ({hidden})")
    return ModelShape(
        name=f"GPT {layers} x {hidden}", source="arXiv:2104.04473, section 2.3", vocabulary=vocabulary, d_model=hidden,
        layers=layers, heads=heads, kv_heads=heads, head_dim=hidden // heads, d_ff=4 * hidden, ffn_mats=2,
        ffn_bias=True, attention_bias=True, attention_output_bias=True, norm="layernorm", learned_positions=positions,
        tied_embeddings=True, context=positions)


def _whole_biases(shape):
    """Biases that are added after the sum over tensor-parallel ranks, and the router's: on each rank whole."""
    dense = shape.layers - len(shape.moe_layers)
    after = shape.layers * shape.attention_output_bias * shape.d_model + dense * shape.ffn_bias * shape.d_model
    return after + len(shape.moe_layers) * (shape.router_bias * shape.experts
                                            + shape.shared_experts * shape.ffn_bias * shape.d_model)


def _attention_numbers(shape):
    """Bytes of a token in one layer's attention: what tensor parallelism splits, and latent vectors, left whole."""
    if not shape.is_latent_attention:
        return 2 * shape.head_dim * (2 * shape.heads + 2 * shape.kv_heads), 0
    heads = shape.heads * (2 * (shape.qk_nope + shape.qk_rope) + 2 * shape.v_head)
    return 2 * heads, 2 * (shape.q_lora_rank + shape.kv_lora_rank + shape.qk_rope)


def _mean_head(shape):
    """The width of a head: the mean of query and value where they differ."""
    return (shape.qk_nope + shape.qk_rope + shape.v_head) / 2 if shape.is_latent_attention else shape.head_dim


guard(globals(), {"shape": partial(checks.instance, kind=ModelShape, word="a published.ModelShape")}, "sizes_of")

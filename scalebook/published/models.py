"""Shapes of published models: what a parameter count, a memory estimate or a FLOP count needs to know of them."""

from dataclasses import dataclass
from functools import cache

from scalebook.checks import is_number, shown
from scalebook.published import files

NORMS = ("rmsnorm", "layernorm", "layernorm-without-bias")
QK_NORMS = ("none", "head", "full")
SCORES = ("none", "softmax", "sigmoid")
MOST = {"layers": 2**14, "experts": 2**16}  # of which lists are made; no other number is above MOST_OTHER
MOST_OTHER = 2**31 - 1


@dataclass(frozen=True)
class ModelShape:
    """The shape of one decoder-only Transformer, dense or mixture of experts. All widths are numbers of elements.

    Of every model:

    - `vocabulary` rows of the embedding; `tied_embeddings`: the output head is the embedding, counted once;
      `learned_positions`: rows of a learned position table (0: none, rotary or sinusoidal).
    - `d_model` the residual width; `layers` how many blocks.
    - `norm`: "rmsnorm" (d weights), "layernorm" (d weights, d biases) or "layernorm-without-bias" (d weights);
      `norms_per_layer` of width d_model, one more before the head when `final_norm`, and one behind the embedding when
      `embedding_norm`.

    Attention, grouped-query form: `heads` query heads and `kv_heads` key and value heads of `head_dim` each
    (`kv_heads == heads` is plain multi-head, 1 is multi-query). Latent form (MLA), when `kv_lora_rank` > 0: queries
    are compressed to `q_lora_rank` (0: not compressed), keys and values to `kv_lora_rank`; each head has
    `qk_nope` + `qk_rope` query-key and `v_head` value dimensions; the rotary key is shared by all heads; each
    compressed vector has an RMSNorm of its width; `head_dim` is 0 and `kv_heads` equals `heads`.

    - `attention_bias` puts biases on Q, K and V; `attention_output_bias` on the output projection.
    - `qk_norm`: "head" (one weight vector of head_dim for Q and one for K a layer), "full" (over all heads' width),
      or "none". `attention_sinks`: one learned logit for each query head.

    Feed-forward: `ffn_mats` is 3 when gated (SwiGLU), 2 when plain; `d_ff` the width of a dense feed-forward
    (0: no dense layer); `ffn_bias` on every matrix of it, experts included.

    Mixture of experts, when `experts` > 0: `experts` routed experts of width `d_ff_expert` a layer, `top_k` of them
    a token, and `shared_experts` of the same width that see every token; with `shared_expert_gate` one more row of
    weights, whose sigmoid scales what they add. The first `dense_layers` layers are dense;
    after them every `moe_every`-th layer is an MoE layer, the others are dense (see `moe_layers`).
    `router_bias`: a trained bias on the router. `selection_bias`: a bias for each expert that only chooses, moved
    by a rule and not by a gradient, and not counted as a parameter. `scoring` is "softmax" or "sigmoid";
    `expert_groups` and `groups_per_token` limit the choice to some groups of experts; `route_scale` multiplies the
    weights; `gate` says the whole rule in words.

    `published` is the count in the source's own words, `context` the longest sequence in tokens (0: not given).

    Raises ValueError that names the field, its value and what is allowed.

    >>> shape = model("DeepSeek-V3")
    >>> shape.is_moe, shape.is_latent_attention, len(shape.moe_layers)
    (True, True, 58)
    """

    name: str
    source: str
    vocabulary: int
    d_model: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int = 0
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    qk_nope: int = 0
    qk_rope: int = 0
    v_head: int = 0
    attention_bias: bool = False
    attention_output_bias: bool = False
    qk_norm: str = "none"
    attention_sinks: bool = False
    d_ff: int = 0
    ffn_mats: int = 3
    ffn_bias: bool = False
    experts: int = 0
    top_k: int = 0
    shared_experts: int = 0
    shared_expert_gate: bool = False
    d_ff_expert: int = 0
    dense_layers: int = 0
    moe_every: int = 1
    router_bias: bool = False
    selection_bias: bool = False
    scoring: str = "none"
    expert_groups: int = 1
    groups_per_token: int = 1
    route_scale: float = 1.0
    gate: str = ""
    norm: str = "rmsnorm"
    norms_per_layer: int = 2
    final_norm: bool = True
    embedding_norm: bool = False
    learned_positions: int = 0
    tied_embeddings: bool = False
    context: int = 0
    published: str = ""
    note: str = ""

    def __post_init__(self):
        """Refuse a shape that no model can have."""
        _check_types(self)
        _check_attention(self)
        _check_feed_forward(self)

    @property
    def is_moe(self):
        """Whether any layer has routed experts."""
        return self.experts > 0

    @property
    def is_latent_attention(self):
        """Whether keys and values are compressed to one latent vector (MLA)."""
        return self.kv_lora_rank > 0

    @property
    def moe_layers(self):
        """The 0-based indices of the layers that have routed experts.

        Layer i is one when i >= `dense_layers` and i - `dense_layers` + 1 is a multiple of `moe_every`.

        >>> model("Mixtral-8x7B").moe_layers == tuple(range(32))
        True
        """
        if not self.is_moe:
            return ()
        return tuple(i for i in range(self.dense_layers, self.layers)
                     if (i - self.dense_layers + 1) % self.moe_every == 0)


def _refuse(shape, field, allowed):
    value = shown(getattr(shape, field))
    raise ValueError(f"model {shape.name!r}: {field} = {value} is not allowed; it must be {allowed}")


def _check_types(shape):
    for field, declared in ModelShape.__annotations__.items():
        value = getattr(shape, field)
        if declared is int and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
            _refuse(shape, field, "a whole number, at least 0")
        if declared is bool and not isinstance(value, bool):
            _refuse(shape, field, "True or False")
        if declared is str and not isinstance(value, str):
            _refuse(shape, field, "text")
    for field in ("name", "source"):
        if not getattr(shape, field).strip():
            _refuse(shape, field, "text that is not empty")
    for field in ("vocabulary", "d_model", "layers", "heads", "kv_heads", "moe_every", "expert_groups",
                  "groups_per_token"):
        if getattr(shape, field) < 1:
            _refuse(shape, field, "a whole number, at least 1")
    for field, declared in ModelShape.__annotations__.items():
        most = MOST.get(field, MOST_OTHER)
        if declared is int and getattr(shape, field) > most:
            _refuse(shape, field, f"at most {most}")
    for field, allowed in (("norm", NORMS), ("qk_norm", QK_NORMS), ("scoring", SCORES), ("ffn_mats", (2, 3))):
        if getattr(shape, field) not in allowed:
            _refuse(shape, field, "one of " + ", ".join(map(repr, allowed)))
    if not is_number(shape.route_scale) or shape.route_scale <= 0:
        _refuse(shape, "route_scale", "a finite number above 0")


def _check_attention(shape):
    latent_only = ("q_lora_rank", "qk_nope", "qk_rope", "v_head")
    if shape.is_latent_attention:
        for field in ("qk_nope", "qk_rope", "v_head"):
            if getattr(shape, field) < 1:
                _refuse(shape, field, "at least 1 when kv_lora_rank is above 0")
        if shape.head_dim != 0:
            _refuse(shape, "head_dim", "0 when kv_lora_rank is above 0: qk_nope, qk_rope and v_head say the widths")
        if shape.kv_heads != shape.heads:
            _refuse(shape, "kv_heads", f"equal to heads ({shape.heads}) when kv_lora_rank is above 0")
        return
    for field in latent_only:
        if getattr(shape, field) != 0:
            _refuse(shape, field, "0 when kv_lora_rank is 0")
    if shape.head_dim < 1:
        _refuse(shape, "head_dim", "a whole number, at least 1")
    if shape.heads % shape.kv_heads:
        _refuse(shape, "kv_heads", f"a divisor of heads ({shape.heads})")


def _check_feed_forward(shape):
    if shape.is_moe:
        for field in ("top_k", "d_ff_expert"):
            if getattr(shape, field) < 1:
                _refuse(shape, field, "at least 1 when experts is above 0")
        if shape.top_k > shape.experts:
            _refuse(shape, "top_k", f"at most experts ({shape.experts})")
        if shape.scoring == "none":
            _refuse(shape, "scoring", "'softmax' or 'sigmoid' when experts is above 0")
        if shape.dense_layers >= shape.layers:
            _refuse(shape, "dense_layers", f"below layers ({shape.layers})")
        if shape.experts % shape.expert_groups:
            _refuse(shape, "expert_groups", f"a divisor of experts ({shape.experts})")
        if shape.groups_per_token > shape.expert_groups:
            _refuse(shape, "groups_per_token", f"at most expert_groups ({shape.expert_groups})")
    else:
        for field in ("top_k", "d_ff_expert", "shared_experts", "dense_layers"):
            if getattr(shape, field) != 0:
                _refuse(shape, field, "0 when experts is 0")
    if shape.shared_expert_gate and shape.shared_experts == 0:
        _refuse(shape, "shared_expert_gate", "False when shared_experts is 0")
    has_dense = len(shape.moe_layers) < shape.layers
    if has_dense and shape.d_ff < 1:
        _refuse(shape, "d_ff", "at least 1 when some layer is dense")


@cache
def _all_models():
    return {name: files.build(ModelShape, "model", name, entry) for name, entry in files.read("models").items()}


def model(name: str) -> ModelShape:
    """Return the shape of one published model; raise ValueError that lists the nearest names when there is none.

    >>> model("Llama-3-405B").layers
    126
    """
    return files.find("model", name, _all_models())


def models() -> list[str]:
    """Return the names of all published models, in the order of the file.

    >>> "GPT-3-175B" in models()
    True
    """
    return list(_all_models())

"""Quantize the linear layers of a whole transformer: each by itself, or in order, from inputs already changed.

Layers that read the same input (queries, keys and values; gate and up) share its Hessian, and no row of a weight
depends on another. So they are quantized as one matrix, their rows one below the other. AWQ then finds one input scale
for all of them, as it must: it is folded into the norm before, which they share.

Shapes, as suffixes of names: B samples, S positions, D width, O outputs and I inputs of a layer.
"""

from contextlib import contextmanager
from dataclasses import dataclass

import torch

from scalebook import quantization
from scalebook.labs.tiny_transformer import Transformer
from scalebook.quantization.hessian import layer_error


@dataclass(frozen=True)
class Stage:
    """Linear layers that read the same input: the number of their block, their names in it, and the layers."""

    block: int
    names: tuple
    layers: tuple

    @property
    def key(self):
        """Block and names, as one hashable key."""
        return self.block, self.names

    def weight(self):
        """The layers' weights (O, I), one below the other; a copy."""
        return torch.cat([layer.weight.detach() for layer in self.layers])

    def rows(self):
        """How many outputs each layer has."""
        return [layer.weight.shape[0] for layer in self.layers]

    def replace(self, weight_OI):
        """Give the layers the rows of `weight_OI`, in the same order."""
        for layer, part in zip(self.layers, weight_OI.split(self.rows()), strict=True):
            layer.weight.data = part.contiguous()


def walk_llama(model, tokens_BS):
    """Take batches of tokens through a Llama model of `transformers`, and stop before each stage of linear layers.

    Yields `(stage, inputs)`, where `inputs` has the stage's input for each batch of `tokens_BS`. The walk goes on with
    the weights that the layers have by then: whoever replaces them sees later inputs change, as GPTQ wants it.
    """
    body = model.model
    hidden = [body.embed_tokens(tokens) for tokens in tokens_BS]
    turn = body.rotary_emb(hidden[0], torch.arange(tokens_BS[0].shape[1])[None])
    for number, block in enumerate(body.layers):
        attention, mlp = block.self_attn, block.mlp
        x = [block.input_layernorm(h) for h in hidden]
        yield Stage(number, ("q", "k", "v"), (attention.q_proj, attention.k_proj, attention.v_proj)), x
        x = [_input_of(attention.o_proj, attention, h, position_embeddings=turn, attention_mask=None) for h in x]
        yield Stage(number, ("o",), (attention.o_proj,)), x
        hidden = [h + attention.o_proj(x_BSD) for h, x_BSD in zip(hidden, x, strict=True)]
        x = [block.post_attention_layernorm(h) for h in hidden]
        yield Stage(number, ("gate", "up"), (mlp.gate_proj, mlp.up_proj)), x
        x = [mlp.act_fn(mlp.gate_proj(x_BSD)) * mlp.up_proj(x_BSD) for x_BSD in x]
        yield Stage(number, ("down",), (mlp.down_proj,)), x
        hidden = [h + mlp.down_proj(x_BSI) for h, x_BSI in zip(hidden, x, strict=True)]


def walk_tiny(model, tokens_BS):
    """The same walk through a `tiny_transformer`, with its biases: they are added, and not quantized."""
    hidden = [model.embedding(tokens) for tokens in tokens_BS]
    for number, block in enumerate(model.blocks.values()):
        x = [block.attention_norm(h) for h in hidden]
        yield Stage(number, ("qkv",), (block.qkv,)), x
        x = [block.attend(block.qkv(x_BSD)) for x_BSD in x]
        yield Stage(number, ("out",), (block.out,)), x
        hidden = [h + block.out(x_BSD) for h, x_BSD in zip(hidden, x, strict=True)]
        x = [block.feed_norm(h) for h in hidden]
        yield Stage(number, ("up",), (block.up,)), x
        x = [torch.nn.functional.gelu(block.up(x_BSD)) for x_BSD in x]
        yield Stage(number, ("down",), (block.down,)), x
        hidden = [h + block.down(x_BSI) for h, x_BSI in zip(hidden, x, strict=True)]


def walk(model, tokens_BS):
    """`walk_llama` or `walk_tiny`, as the model is of the one kind or the other."""
    return walk_tiny(model, tokens_BS) if isinstance(model, Transformer) else walk_llama(model, tokens_BS)


def stages(model):
    """All stages of a model, in the order in which inputs pass them."""
    with torch.no_grad():
        return [stage for stage, _ in walk(model, [torch.zeros(1, 1, dtype=torch.long)])]


def input_hessian(inputs):
    """2 X^T X / N over the N tokens of all batches of inputs (B, S, I): (I, I), in float64.

    The products are summed in float32, twice as fast; `scalebook.quantization.hessian` has the exact sum. Dividing by N
    changes no quantizer's choice.
    """
    width = inputs[0].shape[-1]
    total_II = torch.zeros(width, width)
    for x_BSI in inputs:
        x_NI = x_BSI.reshape(-1, width).float()
        total_II.addmm_(x_NI.T, x_NI)
    tokens = sum(x_BSI[..., 0].numel() for x_BSI in inputs)
    return ((total_II + total_II.T) / tokens).double()


@torch.no_grad()
def collect_hessians(model, tokens_BS, blocks=None):
    """The Hessian of every stage's input in the model as it is, by the stage's key, in float32 to save memory.

    Only of the first `blocks` blocks, when that is given.
    """
    hessians = {}
    for stage, inputs in walk(model, tokens_BS):
        if stage.block == blocks:
            break
        hessians[stage.key] = input_hessian(inputs).float()
    return hessians


@torch.no_grad()
def quantize_in_order(model, quantize, tokens_BS):
    """Quantize a model's stages one after the other, each from inputs that all stages before it have changed.

    `quantize(stage, hessian_II)` returns a `QuantizedLinear` of `stage.weight()`. GPTQ does it so (arXiv:2210.17323,
    section 4; "true-sequential" in its code). Returns the relative output error of each stage by its key, and the
    records.
    """
    errors, records = {}, {}
    for stage, inputs in walk(model, tokens_BS):
        errors[stage.key], records[stage.key] = _quantize_stage(stage, quantize, input_hessian(inputs))
    return errors, records


@torch.no_grad()
def quantize_apart(model, quantize, hessians):
    """Quantize each stage by itself, with the Hessian of its input in the unquantized model (`collect_hessians`).

    `quantize` and what is returned are as in `quantize_in_order`.
    """
    errors, records = {}, {}
    for stage in stages(model):
        errors[stage.key], records[stage.key] = _quantize_stage(stage, quantize, hessians[stage.key].double())
    return errors, records


METHODS = ("rtn", "gptq", "awq")
VARIANTS = ("gptq, columns in their order", "gptq, static groups", "gptq, unquantized inputs", "awq, o too",
            "awq, clipped")


def quantizer(method, bits, group_size, variant=None):
    """The function that quantizes a stage, given the stage and the Hessian (I, I) of its input, by one of `METHODS`.

    GPTQ takes the columns by their Hessian ("act-order"). AWQ's input scales are folded into the operation before;
    before a Llama's o there is none that could take them when several heads share a value (AWQ's own code then leaves
    it out, too): o is rounded, unless the variant says otherwise. AWQ searches alpha and does not clip, unless the
    variant says so. `variant` is one of `VARIANTS`, or None.

    Raises ValueError for another method or variant.
    """
    for name, value, allowed in (("method", method, METHODS), ("variant", variant, (None, *VARIANTS))):
        if value not in allowed:
            raise ValueError(f"{name} = {value!r} is not allowed; it must be one of {allowed}")

    def quantize(stage, hessian_II):
        weight_OI = stage.weight()
        if method == "gptq":
            return quantization.quantize_gptq(
                weight_OI, hessian_II, bits, group_size, act_order=variant != "gptq, columns in their order",
                static_groups=variant == "gptq, static groups",
            )
        if method == "awq" and (stage.names != ("o",) or variant == "awq, o too"):
            return quantization.quantize_awq(weight_OI, hessian_II, bits, group_size, kind="hessian",
                                             clip=variant == "awq, clipped")
        return quantization.quantize_rtn(weight_OI, bits, group_size)

    return quantize


@contextmanager
def restored(model):
    """Put the weights of all linear layers back at the end of a `with` block, whatever happens in it."""
    kept = [(layer, layer.weight.data) for stage in stages(model) for layer in stage.layers]
    try:
        yield model
    finally:
        for layer, weight in kept:
            layer.weight.data = weight


def relative_error(weight_OI, approximation_OI, hessian_II):
    """||W X - W_hat X||^2 / ||W X||^2: the part of a layer's output that a changed weight gets wrong.

    >>> relative_error(torch.ones(1, 2), torch.tensor([[1.0, 0.5]]), torch.eye(2))
    0.125
    """
    nothing = torch.zeros_like(weight_OI)
    return layer_error(weight_OI, approximation_OI, hessian_II) / layer_error(weight_OI, nothing, hessian_II)


def _quantize_stage(stage, quantize, hessian_II):
    """Quantize the layers of a stage and replace their weights; return the relative error and the record."""
    weight_OI = stage.weight()
    record = quantize(stage, hessian_II)
    approximation_OI = record.dequantize()
    stage.replace(approximation_OI)
    return relative_error(weight_OI, approximation_OI, hessian_II.float()), record


def _input_of(layer, module, *args, **kwargs):
    """Run a module and return what reaches one of its layers."""
    seen = []
    handle = layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    try:
        module(*args, **kwargs)
    finally:
        handle.remove()
    return seen[0]

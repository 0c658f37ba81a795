"""What a quantized model and its cache weigh, beside the memory of cards."""

import json

from scalebook import published
from scalebook.charts.words import above, by_width, words
from scalebook.colours import COMPARED, FULL_PRECISION, GPTQ
from scalebook.formulas import quantization as formulas
from scalebook.moe import count_parameters

MODELS = ("Llama-1-7B", "Llama-3-8B", "Mixtral-8x7B", "Llama-3-70B", "Llama-3-405B")
NAMES = {"Llama-1-7B": "LLaMA 7B", "Llama-3-8B": "Llama 3 8B", "Mixtral-8x7B": "Mixtral 8x7B",
         "Llama-3-70B": "Llama 3 70B", "Llama-3-405B": "Llama 3 405B"}
BITS = (2, 3, 4, 5, 6, 8, 16)
SIZES = (32, 64, 128, 0)  # 0: a row is one group
CONTEXTS = tuple(1024 * 2**i for i in range(8))
QUANTIZED = ("attention", "routed experts", "shared experts", "dense feed-forward")
PARTS = {"quantized weights": GPTQ, "embeddings, head and the rest, 16 bits": COMPARED[1], "KV cache": COMPARED[0]}
NODE = 8  # H100 in one machine


def output_rows(shape):
    """How many rows all quantized matrices of a model have together, one for each output.

    >>> output_rows(published.model("Llama-1-7B")) == 32 * (4 * 4096 + 2 * 11008 + 4096)
    True
    """
    sparse = len(shape.moe_layers)
    attention = shape.layers * ((shape.heads + 2 * shape.kv_heads) * shape.head_dim + shape.d_model)
    dense = (shape.layers - sparse) * ((shape.ffn_mats - 1) * shape.d_ff + shape.d_model)
    experts = shape.experts + shape.shared_experts
    return attention + dense + sparse * experts * ((shape.ffn_mats - 1) * shape.d_ff_expert + shape.d_model)


def model_sizes(model):
    """The sizes of a published model by their symbols: N_q, N_r, the mean width of a row, and those of its cache."""
    shape = published.model(model)
    count = count_parameters(shape)
    quantized = sum(count.by_part[part].total for part in QUANTIZED)
    return {"N_q": quantized, "N_r": count.total - quantized, "row": quantized / output_rows(shape),
            "L": shape.layers, "G": shape.kv_heads, "d_h": shape.head_dim}


def cards():
    """Pairs (name, GB) from the smallest card to a machine of eight H100.

    >>> cards()[0], cards()[-1]
    (('one RTX 4090', 24), ('8 x H100', 640))
    """
    memory = {row["card"]: row["memory_GB"] for row in published.table("cards")}
    return [*((f"one {card}", size) for card, size in memory.items()), (f"{NODE} x H100", NODE * memory["H100"])]


def expressions(bits):
    """The GB of each of `PARTS` and the bits a weight, as Vega expressions; `bits` is the expression of b."""
    sizes = {name: f"sizes.{name}" for name in ("N_q", "N_r", "L", "G", "d_h")}
    grouped = formulas.bits_per_weight.vega(b=bits, z=bits, g="(size || sizes.row)")
    beta = f"({bits} == 16 ? 16 : {grouped})"
    weights = formulas.model_bytes.vega(N_q=sizes["N_q"], beta=beta, N_r="0", p="2")
    rest = formulas.model_bytes.vega(N_q="0", beta=beta, N_r=sizes["N_r"], p="2")
    cache = formulas.kv_cache_bytes.vega(L=sizes["L"], G=sizes["G"], d_h=sizes["d_h"], p_kv="kv", s="context")
    return beta, dict(zip(PARTS, (f"({part}) / 1e9" for part in (weights, rest, cache)), strict=True))


def verdict(total):
    """The Vega expression that says in words on what so many GB fit."""
    text = f"'more than {NODE} H100 ({cards()[-1][1]} GB) hold'"
    for name, memory in reversed(cards()):
        text = f"{total} <= {memory} ? 'fits {name} ({memory} GB)' : {text}"
    return text


def fit_chart():
    """Weights and cache at each number of bits, beside cards; signals model, bits, size, context, kv.

    `size` is a group's, 0 for a row, and `kv` the bytes of a cached number.
    """
    import altair as alt

    sizes = alt.param(name="sizes", expr=json.dumps({model: model_sizes(model) for model in MODELS}) + "[model]")
    _, at_sixteen = expressions("16")
    largest = alt.param(name="largest", expr="1.03 * max(25, " + " + ".join(at_sixteen.values()) + ")")
    x = alt.X("start:Q", title="GB (1e9 bytes)", axis=alt.Axis(grid=False, tickCount=6),
              scale=alt.Scale(domainMin=0, domainMax=alt.ExprRef("largest"), nice=False))
    labels = [f"{bits} bits" for bits in BITS]
    y = alt.Y("label:N", title=None, sort=labels, scale=alt.Scale(domain=labels, paddingInner=0.3))
    _, parts = expressions("datum.b")
    weights, rest, cache = (f"datum['{part}']" for part in PARTS)
    bars = (
        alt.Chart(alt.Data(values=[{"b": bits, "label": label} for bits, label in zip(BITS, labels, strict=True)]),
                  name="part")
        .transform_calculate(**parts)
        .transform_calculate(part=f"{list(PARTS)}", start=f"[0, {weights}, {weights} + {rest}]",
                             end=f"[{weights}, {weights} + {rest}, {weights} + {rest} + {cache}]")
        .transform_flatten(["part", "start", "end"]).mark_bar()
        .encode(x=x, x2="end:Q", y=y,
                opacity=alt.condition("datum.b == bits", alt.value(1), alt.value(0.35)),
                color=alt.Color("part:N", legend=alt.Legend(offset=above(3) + 14, columns=by_width(1, 0)),
                                scale=alt.Scale(domain=list(PARTS), range=list(PARTS.values()))))
    )
    memory = [size for _, size in cards()]
    known = alt.Chart(alt.Data(values=[{"GB": size, "gap": size - before} for size, before in zip(
        memory, [0, *memory], strict=False)])).transform_filter("datum.GB <= largest")
    rules = known.properties(name="card").mark_rule(color=FULL_PRECISION, strokeWidth=1.5).encode(
        x=alt.X("GB:Q", title="GB (1e9 bytes)"))
    marked = (
        known.properties(name="memory").transform_filter("datum.gap / largest > 0.05")
        .mark_text(fontSize=11, dy=-7).encode(x="GB:Q", y=alt.value(0), text="GB:Q")
    )
    beta, here = expressions("bits")
    row = alt.Chart(alt.Data(values=[{}])).transform_calculate(beta=beta, **here)
    total = f"({weights} + {rest} + {cache})"
    text = words(
        row,
        f"format(datum.beta, '.4~r') + ' bits a weight: the model is ' + format({weights} + {rest}, '.4~r') + ' GB'",
        f"'the cache of ' + format(context, ',') + ' tokens is ' + format({cache}, '.4~r') + ' GB'",
        f"format({total}, '.4~r') + ' GB: ' + ({verdict(total)})",
    )
    text = text.encode(y=alt.value(-22 - 34))
    return alt.layer(bars, rules, marked, text).properties(height=280).add_params(sizes, largest)

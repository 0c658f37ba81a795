"""Oracles of the explorers of chapter 2."""

import itertools
import math
import random
from fractions import Fraction

import torch

from scalebook import moe, published
from scalebook.data import load
from scalebook.quantization import quantize_awq, quantize_rtn
from scalebook.quantization.awq import awq_curve
from scalebook.quantization.hessian import layer_error, layer_hessian, row_errors
from scalebook.quantization.obs import obq_step
from scalebook.quantization.rounding import expected_error, measured_error
from tests.browser.oracles import oracle, percent, significant


@oracle("grid")
def grid(bits, size, outlier):
    generator = random.Random(1)
    weights = [round(generator.gauss(0, 0.02), 5) for _ in range(128)]
    weights[37] = 0.04 * outlier
    row = torch.tensor([weights], dtype=torch.float64)
    record = quantize_rtn(row, bits=bits, group_size=size)
    back = record.dequantize()[0].tolist()
    scales, zeros = record.scales[0].tolist(), record.zero_points[0].tolist()
    lines = [{"x": size * group - 0.4, "x2": size * (group + 1) - 0.6, "y": scale * (code - zero)}
             for group, (scale, zero) in enumerate(zip(scales, zeros, strict=True)) for code in range(2**bits)]
    ends = [{"x": size * group - 0.4, "x2": size * (group + 1) - 0.6, "y": -scale * zero,
             "y2": scale * (2**bits - 1 - zero)} for group, (scale, zero) in enumerate(zip(scales, zeros, strict=True))]
    dots = [{"x": i, "y": value, "color": what} for what, values in (("before", weights), ("rounded", back))
            for i, value in enumerate(values)]
    one = size == 128
    text = (f"{bits} bits, {'one group' if one else f'groups of {size}'}: "
            f"{significant(record.bits_per_weight)} bits a weight\n"
            f"root mean square error {significant(measured_error(row, record).mean().sqrt(), 3)}, "
            f"S/√12 {significant(expected_error(record).mean().sqrt(), 3)}\n")
    text += (f"step S = {significant(scales[0], 3)}" if one else
             f"steps S from {significant(min(scales), 3)} to {significant(max(scales), 3)}")
    return {"range": ends, "grid": lines if len(lines) <= 128 else [],
            "error": [{"x": i, "y": w, "y2": w_hat} for i, (w, w_hat) in enumerate(zip(weights, back, strict=True))
                      if abs(w - w_hat) > 1e-9],
            "weight": dots, "words": [{"text": text}]}


@oracle("ellipse")
def ellipse(rho, which, w1, w2):
    hessian = torch.tensor([[1, rho], [rho, 1]], dtype=torch.float64)
    weights = torch.tensor([w1, w2], dtype=torch.float64)

    def error(point):
        return float(row_errors(weights[None], torch.as_tensor(point, dtype=torch.float64)[None], hessian))

    fixed = ("first", "second").index(which)
    near = [math.floor(w + 0.5) for w in (w1, w2)]
    touch, _ = obq_step(weights, torch.linalg.inv(hessian), fixed, float(near[fixed]))
    end = [math.floor(w + 0.5) for w in touch.tolist()]
    errors = {corner: error(corner) for corner in itertools.product((1, 2), repeat=2)}
    least = min(errors.values())
    places = {"the weights": (w1, w2), "both to the nearest": near, "one rounded, the other makes up": touch.tolist(),
              "then the other rounded": end}
    # The ellipse of a level is the circle of radius sqrt(2 level), sheared: H = L L^T, and d = L^-T c.
    lower = torch.linalg.cholesky(hessian)
    angles = torch.arange(41, dtype=torch.float64) * (2 * math.pi / 40)
    circle = torch.stack([angles.cos(), angles.sin()])
    curves = []
    for name, point in list(places.items())[1:]:
        line = weights[:, None] + math.sqrt(2 * max(error(point), 0)) * torch.linalg.solve(lower.T, circle)
        curves += [{"x": x, "y": y, "color": name} for x, y in line.T.tolist()]
    text = (f"both to the nearest: error {error(near):.3f}\none rounded, the other makes up: {error(touch):.3f}\n"
            f"then rounded: {error(end):.3f}, least of all: {least:.3f}")
    return {"ellipse": curves, "words": [{"text": text}],
            "upright": [{"x": near[0]}] if fixed == 0 else [], "level": [{"y": near[1]}] if fixed == 1 else [],
            "path": [{"x": x, "y": y} for x, y in ((w1, w2), touch.tolist(), end)],
            "point": [{"x": x, "y": y, "color": name, "shape": name} for name, (x, y) in places.items()],
            "best": [{"x": x, "y": y} for (x, y), value in errors.items() if value < least + 1e-9]}


@oracle("alpha")
def alpha(outliers, bits, size):
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    weight, inputs = 0.02 * normal(64, 256), normal(256, 256) * torch.exp(0.3 * normal(256))
    loud = torch.randperm(256, generator=generator)[:4]
    inputs[:, loud] *= outliers
    curve = awq_curve(weight, inputs, bits=bits, group_size=size)
    rounding = curve[0][1]
    best, least = min(curve, key=lambda point: point[1])

    def parts(scales):
        """The share of the loud channels, and of the others, of rounding's error, for one set of scales."""
        weight_s = weight if scales is None else weight * scales
        change = quantize_rtn(weight_s, bits, size).dequantize() / (1 if scales is None else scales) - weight
        alone = torch.zeros_like(change)
        alone[:, loud] = change[:, loud]
        hessian = layer_hessian(inputs)
        return [layer_error(weight, weight + part, hessian) / rounding for part in (alone, change - alone)]

    names = ("the layer", "its four loud channels", "all other channels")
    sizes = inputs.abs().mean(dim=0)
    curves = [{"x": step / 20, "y": value, "color": name} for step in range(21)
              for name, value in zip(names, [curve[step][1] / rounding, *parts(sizes ** (step / 20))], strict=True)]
    chosen = parts(quantize_awq(weight, inputs, bits=bits, group_size=size).input_scales)
    before, after = parts(None), [least / rounding, *chosen]
    text = (f"alpha = {best:.2f}: {percent(after[0])} of the error of rounding\n"
            f"four loud channels: {percent(before[0])} → {percent(after[1])}\n"
            f"all others: {percent(before[1])} → {percent(after[2])}")
    return {"curve": curves, "rounding": [{"y": 1}], "words": [{"text": text}],
            "chosen": [{"x": best, "y": value, "color": name} for name, value in zip(names, after, strict=True)]}


@oracle("measured")
def measured(method, bits, size):
    table = load("quantization")
    base, weights = table["base"]["perplexity"], table["weights"]
    names = {"rtn": "rounding to nearest", "gptq": "GPTQ", "awq": "AWQ"}
    found = {}
    for row in table["rows"]:
        if row["variant"] is None:
            total = weights["linear"] * row["bits_per_weight"] / 8 + 2 * (weights["embedding"] + weights["norms"])
            place = {"x": total / 1e6, "y": min(row["perplexity"], 1000), "color": names[row["method"]],
                     "shape": "triangle-up" if row["perplexity"] > 1000 else "circle"}
            found[row["method"], row["bits"], row["group_size"] or 0] = (place, row["loss"], row["perplexity"])
    place, loss, perplexity = found[method, bits, size]
    text = (f"{names[method]}, {bits} bits, {f'groups of {size}' if size else 'a group a row'}\n"
            f"perplexity {significant(perplexity)}, unquantized {base:.4g}\n"
            f"{significant(place['x'])} MB, loses {loss:.3f} nats".replace("-", "−"))
    if method != "rtn":
        text += f", rounding {found['rtn', bits, size][1]:.3f}".replace("-", "−")
    text += "\ntriangles at the edge: above 1,000"
    line = [{channel: row[channel] for channel in ("x", "y", "color")}
            for (one, _, group), (row, *_) in found.items() if (one, group) == (method, size)]
    return {"dot": [row for row, *_ in found.values()], "chosen": [place], "words": [{"text": text}],
            "same": line, "unquantized": [{"y": base}], "sixteen": [{"x": 2 * sum(weights.values()) / 1e6, "y": base}]}


def model_bytes(shape, bits, size):
    """Bytes of the quantized weights and of the rest, matrix by matrix."""
    attention = [(shape.heads * shape.head_dim, shape.d_model), (shape.d_model, shape.heads * shape.head_dim),
                 *[(shape.kv_heads * shape.head_dim, shape.d_model)] * 2]
    width = shape.d_ff_expert if shape.experts else shape.d_ff
    feed_forward = [(width, shape.d_model)] * 2 + [(shape.d_model, width)]
    quantized = stored = 0
    for out, inputs in attention + feed_forward * max(shape.experts, 1):
        groups = out * (inputs // size if size else 1)
        quantized += shape.layers * out * inputs
        stored += shape.layers * (out * inputs * bits + (0 if bits == 16 else groups * (16 + bits)))
    return Fraction(stored, 8), 2 * (moe.count_parameters(shape).total - quantized), Fraction(stored, quantized)


@oracle("fit")
def fit(model, bits, size, context, kv):
    shape = published.model(model)
    cache = Fraction(2 * shape.layers * shape.kv_heads * shape.head_dim * kv * context, 10**9)
    names = ("quantized weights", "embeddings, head and the rest, 16 bits", "KV cache")

    def parts(b):
        weights, rest, beta = model_bytes(shape, b, size)
        return [weights / 10**9, Fraction(rest, 10**9), cache], beta

    bars = []
    for b in (2, 3, 4, 5, 6, 8, 16):
        end = 0
        for name, part in zip(names, parts(b)[0], strict=True):
            bars.append({"x": end, "x2": end + part, "y": f"{b} bits", "color": name,
                         "opacity": 1 if b == bits else 0.35})
            end += part
    largest = 1.03 * max(25, float(sum(parts(16)[0])))
    machines = [("one RTX 4090", 24), ("one RTX 5090", 32), ("one L40S", 48), ("one H100", 80), ("one H200", 141),
                ("8 x H100", 640)]
    inside = [memory for _, memory in machines if memory <= largest]
    apart = [now for now, before in zip(inside, [0, *inside], strict=False) if now - before > 0.05 * largest]
    (weights, rest, _), beta = parts(bits)
    total = weights + rest + cache
    holds = next((f"fits {name} ({memory} GB)" for name, memory in machines if total <= memory),
                 "more than 8 H100 (640 GB) hold")
    text = (f"{significant(beta)} bits a weight: the model is {significant(weights + rest)} GB\n"
            f"the cache of {context:,} tokens is {significant(cache)} GB\n{significant(total)} GB: {holds}")
    return {"part": bars, "card": [{"x": memory} for memory in inside],
            "memory": [{"x": memory, "text": str(memory)} for memory in apart], "words": [{"text": text}]}

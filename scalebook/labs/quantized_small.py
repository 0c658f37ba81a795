"""A small model trained here in float32, quantized by the same three methods: does the order repeat?

The weights of the chapter's language model come out of 4-bit blocks, so quantizing it says little about a model whose
weights were never quantized. This one's were not: a transformer that reads characters, trained on Shakespeare's works
without four of them, which it is tested on.

AWQ gains little on it. Two further measurements say why. `scattered_losses`: how far the loss moves when rounding falls
another way, with no better or worse error of the layers. `with_loud_channels`: the same function, computed by a model
that has what large models have and this one does not, a few channels with far larger inputs.

    python -m scalebook.labs.quantized_small

trains it and writes `scalebook/data/quantization_small.json`.

Shapes, as suffixes of names: B samples, S positions, O outputs and I inputs of a layer.
"""

import math
import time
from contextlib import contextmanager
from dataclasses import replace

import torch

from scalebook import texts
from scalebook.labs import command
from scalebook.labs import quantized_results as results
from scalebook.labs.language_model import measure_perplexity, take_windows
from scalebook.labs.quantized_layers import (
    METHODS,
    collect_hessians,
    quantize_apart,
    quantize_in_order,
    quantizer,
    restored,
    stages,
)
from scalebook.labs.quantized_where import channel_maxima, input_outliers
from scalebook.labs.tiny_transformer import Shape, build, encode, token_loss
from scalebook.quantization import awq_curve, quantize_rtn

NAME = "quantization_small"
COMMAND = "python -m scalebook.labs.quantized_small"
SHAPE = Shape(vocabulary=128, width=128, heads=4, layers=4, context=128)
STEPS, BATCH, RATE, SEED = 2000, 16, 3e-3, 0
TEST_WINDOWS, CALIBRATION_WINDOWS = 256, 256
GRID = [(bits, group_size) for bits in (8, 4, 3, 2) for group_size in (None, 64, 32)]
PLACES = [(4, None), (4, 32), (3, 32)]  # bits and group size at which AWQ's gain is looked into
SCATTER, SCATTER_SEEDS = 0.02, 8
LOUD_CHANNELS, LOUDNESS = 2, 30.0


def train(tokens, steps, shape=SHAPE, schedule=STEPS, seed=SEED):
    """Train a model on windows drawn from `tokens`; return it and the loss of each step, in nats a character.

    AdamW, one warm-up of 100 steps, then a cosine down to zero at step `schedule`: the first steps are the same
    whatever `steps` is. The same seed draws the same weights and windows.
    """
    model = build(shape, seed, torch.float32)
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.99), weight_decay=0.1)
    decay = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1, (step + 1) / 100) * (1 + math.cos(math.pi * step / schedule)) / 2
    )
    losses = []
    for _ in range(steps):
        starts = torch.randint(len(tokens) - shape.context, (BATCH, 1), generator=generator)
        text_BS = tokens[starts + torch.arange(shape.context + 1)]
        loss = token_loss(model(text_BS[:, :-1]), text_BS[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        decay.step()
        losses.append(loss.item())
    return model.eval().requires_grad_(False), losses


def quantized_perplexity(model, method, bits, group_size, calibration, hessians, test_NS):
    """Perplexity of a model whose linear layers were quantized by one of `METHODS`, and their mean relative error.

    The weights are put back.
    """
    quantize = quantizer(method, bits, group_size)
    with restored(model):
        if method == "gptq":
            errors, _ = quantize_in_order(model, quantize, calibration)
        else:
            errors, _ = quantize_apart(model, quantize, hessians)
        return measure_perplexity(model, test_NS, batch=32), sum(errors.values()) / len(errors)


def measure(model, training, held_out, grid=GRID, progress=lambda line: None):
    """The base perplexity, and a row for each method, number of bits and group size."""
    test_NS = take_windows(held_out, TEST_WINDOWS, model_context(model))
    calibration = take_windows(training, CALIBRATION_WINDOWS, model_context(model)).split(32)
    hessians = collect_hessians(model, calibration)
    base, rows = measure_perplexity(model, test_NS, batch=32), []
    for bits, group_size in grid:
        for method in METHODS:
            found, error = quantized_perplexity(model, method, bits, group_size, calibration, hessians, test_NS)
            gap, deviation = found.difference(base)
            rows.append({"method": method, "bits": bits, "group_size": group_size,
                         "perplexity": round(found.value, 4), "loss": round(gap, 5), "deviation": round(deviation, 5),
                         "error": float(f"{error:.4g}")})
            progress(str(rows[-1]))
    return base, rows


def scattered_losses(model, test_NS, base, hessians, places=PLACES, seeds=SCATTER_SEEDS):
    """What rounding loses when it falls another way: a row for each place, with a loss and an error for each seed.

    Each column is multiplied by a random number within 2% of 1 before it is rounded, and divided by it afterwards.
    That is AWQ's map with scales that know nothing of the inputs.
    """
    rows = []
    for bits, group_size in places:
        found = [scattered(model, test_NS, base, hessians, bits, group_size, seed) for seed in range(seeds)]
        losses, errors = zip(*found, strict=True)
        rows.append({"bits": bits, "group_size": group_size, "losses": losses, "errors": errors})
    return rows


def scattered(model, test_NS, base, hessians, bits, group_size, seed):
    """The loss and the mean relative error of the layers for one seed."""
    generator = torch.Generator().manual_seed(seed)

    def quantize(stage, _):
        weight_OI = stage.weight()
        scales_I = 1 + SCATTER * (2 * torch.rand(weight_OI.shape[1], generator=generator) - 1)
        return replace(quantize_rtn(weight_OI * scales_I, bits, group_size), input_scales=scales_I)

    with restored(model):
        errors, _ = quantize_apart(model, quantize, hessians)
        gap, _ = measure_perplexity(model, test_NS, batch=32).difference(base)
    return round(gap, 5), float(f"{sum(errors.values()) / len(errors):.4g}")


@contextmanager
def with_loud_channels(model, count=LOUD_CHANNELS, loudness=LOUDNESS, seed=SEED):
    """In a `with` block, make `count` channels behind each norm `loudness` times as large; the function stays the same.

    The weights that read such a channel are as much smaller. Which channels they are is drawn for each norm.
    """
    generator, kept = torch.Generator().manual_seed(seed), []
    for block in model.blocks.values():
        for norm, layer in ((block.attention_norm, block.qkv), (block.feed_norm, block.up)):
            scales_I = torch.ones(len(norm.weight))
            scales_I[torch.randperm(len(scales_I), generator=generator)[:count]] = loudness
            changed = {norm.weight: norm.weight * scales_I, norm.bias: norm.bias * scales_I,
                       layer.weight: layer.weight / scales_I}
            kept += [(parameter, parameter.data) for parameter in changed]
            for parameter, value in changed.items():
                parameter.data = value.detach()
    try:
        yield model
    finally:
        for parameter, data in kept:
            parameter.data = data


def what_awq_finds(model, tokens_BS, hessians, bits=4, group_size=32):
    """For each stage its loudest input channel, the alpha that AWQ chooses, and what errors it sees (a list of rows).

    `gain` is the error of rounding over AWQ's; `gain_at_1` is it for alpha = 1, the whole size of the inputs.
    """
    maxima, rows = channel_maxima(model, tokens_BS), []
    for stage in stages(model):
        curve = awq_curve(stage.weight(), hessians[stage.key].double(), bits, group_size, kind="hessian")
        alpha, least = min(curve, key=lambda point: point[1])
        rows.append({"block": stage.block, "names": "+".join(stage.names), **input_outliers(maxima[stage.key]),
                     "alpha": alpha, "gain": round(curve[0][1] / least, 3),
                     "gain_at_1": round(curve[0][1] / curve[-1][1], 3)})
    return rows


def why_awq(model, training, held_out):
    """The two further measurements, and what AWQ finds in each stage, as they are stored."""
    test_NS = take_windows(held_out, TEST_WINDOWS, model_context(model))
    calibration = take_windows(training, CALIBRATION_WINDOWS, model_context(model)).split(32)
    hessians, base = collect_hessians(model, calibration), measure_perplexity(model, test_NS, batch=32)
    found = {"outliers": what_awq_finds(model, calibration, hessians),
             "scatter": scattered_losses(model, test_NS, base, hessians)}
    with with_loud_channels(model):
        _, rows = measure(model, training, held_out, PLACES)
        hessians = collect_hessians(model, calibration)
        found |= {"loud": rows, "loud_outliers": what_awq_finds(model, calibration, hessians)}
    return found


def model_context(model):
    """The number of positions that a tiny transformer knows."""
    return model.embedding.position.shape[0]


def main():
    """Train, quantize, measure and write the data, from the command line."""
    parser = command.parser_of(__doc__)
    parser.parse_args()
    with command.errors_in_words(parser):
        make()


def make():
    """Train, quantize, measure, and write the data."""
    training, held_out = map(encode, texts.split())
    start = time.perf_counter()
    model, losses = train(training, STEPS)
    seconds = time.perf_counter() - start
    print(f"trained in {seconds:.0f} s; loss of the last 100 steps {sum(losses[-100:]) / 100:.4f}", flush=True)
    base, rows = measure(model, training, held_out, progress=lambda line: print(line, flush=True))
    results.store(NAME, {
        "provenance": results.provenance(
            COMMAND, seed=SEED, text_sha256=texts.TEXT_SHA256,
            protocol=f"{SHAPE}, {sum(p.numel() for p in model.parameters())} parameters, float32; {STEPS} steps of "
            f"{BATCH} x {SHAPE.context} characters; perplexity per character on {TEST_WINDOWS} windows of "
            f"{SHAPE.context} characters of the held-out works; {CALIBRATION_WINDOWS} windows of the other works for "
            "calibration; all linear layers of the blocks; GPTQ with act_order, from inputs quantized so far; "
            f"scatter: rounding with column scales within {SCATTER:.0%} of 1, seeds 0 to {SCATTER_SEEDS - 1}; loud: "
            f"{LOUD_CHANNELS} channels behind each norm {LOUDNESS:g} times as large, their weights as much smaller",
        ),
        "losses": [round(loss, 5) for loss in losses[:20]],
        "base": {"perplexity": round(base.value, 4), "nll": round(base.nll, 5)},
        "rows": rows,
        **why_awq(model, training, held_out),
    })


if __name__ == "__main__":
    main()

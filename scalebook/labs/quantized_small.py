"""A small model trained here in float32, quantized by the same three methods: does the order repeat?

The weights of the chapter's language model come out of 4-bit blocks, so quantizing it says little about a model whose
weights were never quantized. This one's were not: a transformer that reads characters, trained on Shakespeare's works
without four of them, which it is tested on.

    python -m scalebook.labs.quantized_small

trains it and writes `scalebook/data/quantization_small.json`.

Shapes, as suffixes of names: B samples, S positions.
"""

import argparse
import math
import time

import torch

from scalebook import texts
from scalebook.labs import quantized_results as results
from scalebook.labs.language_model import measure_perplexity, take_windows
from scalebook.labs.quantized_layers import (
    METHODS,
    collect_hessians,
    quantize_apart,
    quantize_in_order,
    quantizer,
    restored,
)
from scalebook.labs.quantized_where import channel_maxima, input_outliers
from scalebook.labs.tiny_transformer import Shape, build, encode, token_loss

NAME = "quantization_small"
COMMAND = "python -m scalebook.labs.quantized_small"
SHAPE = Shape(vocabulary=128, width=128, heads=4, layers=4, context=128)
STEPS, BATCH, RATE, SEED = 2000, 16, 3e-3, 0
TEST_WINDOWS, CALIBRATION_WINDOWS = 256, 256
GRID = [(bits, group_size) for bits in (8, 4, 3, 2) for group_size in (None, 64, 32)]


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


def model_context(model):
    """The number of positions that a tiny transformer knows."""
    return model.embedding.position.shape[0]


def main():
    """Train, quantize, measure and write the data."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    training, held_out = map(encode, texts.split())
    start = time.perf_counter()
    model, losses = train(training, STEPS)
    seconds = time.perf_counter() - start
    print(f"trained in {seconds:.0f} s; loss of the last 100 steps {sum(losses[-100:]) / 100:.4f}", flush=True)
    base, rows = measure(model, training, held_out, progress=lambda line: print(line, flush=True))
    text_NS = take_windows(training, CALIBRATION_WINDOWS, SHAPE.context)
    results.store(NAME, {
        "provenance": results.provenance(
            COMMAND, seed=SEED, text_sha256=texts.TEXT_SHA256,
            protocol=f"{SHAPE}, {sum(p.numel() for p in model.parameters())} parameters, float32; {STEPS} steps of "
            f"{BATCH} x {SHAPE.context} characters; perplexity per character on {TEST_WINDOWS} windows of "
            f"{SHAPE.context} characters of the held-out works; {CALIBRATION_WINDOWS} windows of the other works for "
            "calibration; all linear layers of the blocks; GPTQ with act_order, from inputs quantized so far",
            training_seconds=round(seconds),
        ),
        "losses": [round(loss, 5) for loss in losses[:20]],
        "base": {"perplexity": round(base.value, 4), "nll": round(base.nll, 5)},
        "rows": rows,
        "outliers": [{"block": block, "names": "+".join(names), **input_outliers(maxima_I)}
                     for (block, names), maxima_I in channel_maxima(model, [text_NS]).items()],
    })


if __name__ == "__main__":
    main()

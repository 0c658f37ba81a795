"""A real language model, quantized by rounding, GPTQ and AWQ at several bits and group sizes: its perplexity.

One protocol for all numbers, `PROTOCOL`: the linear layers of all 30 blocks of SmolLM2-135M-Instruct are quantized,
210 of them; embedding (which is the head, too) and norms are not. Test and calibration text come from different works.

    python -m scalebook.labs.quantized_model         # hours on one core; continues where it was stopped
    python -m scalebook.labs.quantized_model --part  # a minute: measures a part again, beside what is stored

The first writes `scalebook/data/quantization.json`. The text was surely among what the model was trained on, as it
is for the texts of most published perplexities. What is compared here is the same model before and after.
"""

import hashlib
import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from scalebook import texts
from scalebook.data import load
from scalebook.labs import command
from scalebook.labs import quantized_results as results
from scalebook.labs.language_model import (
    PACKAGE,
    RELEASE,
    load_model,
    load_tokenizer,
    measure_perplexity,
    model_file,
    text_windows,
)
from scalebook.labs.quantized_layers import (
    METHODS,
    VARIANTS,
    collect_hessians,
    quantize_apart,
    quantize_in_order,
    quantizer,
    restored,
    stages,
)
from scalebook.labs.quantized_where import channel_errors, channel_maxima, input_outliers
from scalebook.quantization import quantize_rtn

NAME = "quantization"
COMMAND = "python -m scalebook.labs.quantized_model"
LENGTH, TEST_WINDOWS, CALIBRATION_WINDOWS = 512, 16, 32
PROTOCOL = (
    f"exp of the mean negative log-likelihood of the 2nd to {LENGTH}th token of {TEST_WINDOWS} windows of {LENGTH} "
    f"tokens, spread evenly over four held-out works of Shakespeare; {CALIBRATION_WINDOWS} windows of {LENGTH} tokens, "
    "spread evenly over the other 38 works, for calibration; float32; asymmetric grids"
)
GROUP_SIZES = (None, 192, 64)  # widths are 576 and 1536: 64 and 192 divide both, 128 only one


@dataclass(frozen=True)
class Bench:
    """A model, the test windows (N, S) and batches of calibration windows (B, S)."""

    model: torch.nn.Module
    test_NS: torch.Tensor
    calibration: tuple


def prepare(path=None):
    """Load model, tokenizer and text, and cut the windows of the protocol; about 20 seconds."""
    training, held_out = texts.split()
    tokenizer = load_tokenizer(path)
    test_NS = text_windows(tokenizer, held_out, TEST_WINDOWS, LENGTH)
    calibration_NS = text_windows(tokenizer, training, CALIBRATION_WINDOWS, LENGTH)
    return Bench(load_model(path), test_NS, calibration_NS.split(4))


def configurations():
    """Every (method, bits, group size, variant) that is measured, the most telling first.

    The variants, which show what a part of a method is worth, are measured at 4 bits a row and 3 bits in groups of 64.
    """
    grid = [(bits, group_size) for bits in (4, 3, 2, 8) for group_size in GROUP_SIZES]
    rows = [(method, *place, None) for place in grid for method in METHODS]
    places = [(place, variant) for place in ((4, None), (3, 64)) for variant in VARIANTS]
    places.remove(((4, None), "gptq, static groups"))  # a row is one group, whose grid is the same either way
    return rows + [(variant.split(",")[0], *place, variant) for place, variant in places]


def measure(bench, base, hessians, method, bits, group_size, variant):
    """Quantize by one configuration, measure, put the weights back; return a row of the table."""
    start = time.perf_counter()
    quantize = quantizer(method, bits, group_size, variant)
    with restored(bench.model):
        if method == "gptq" and variant != "gptq, unquantized inputs":
            errors, records = quantize_in_order(bench.model, quantize, bench.calibration)
        else:
            errors, records = quantize_apart(bench.model, quantize, hessians)
        seconds = time.perf_counter() - start
        found = measure_perplexity(bench.model, bench.test_NS)
    gap, deviation = found.difference(base)
    weights = sum(record.codes.numel() for record in records.values())
    size = sum(record.codes.numel() * record.bits_per_weight for record in records.values())
    return {
        "method": method, "bits": bits, "group_size": group_size, "variant": variant,
        "perplexity": round(found.value, 4), "loss": round(gap, 5), "deviation": round(deviation, 5),
        "bits_per_weight": round(size / weights, 4), "error": round(sum(errors.values()) / len(errors), 6),
        "seconds": round(seconds), "nll": [round(value, 5) for value in found.nll_N],
    }


def measure_all(bench, scratch):
    """The base, and a row for each configuration; rows that the file `scratch` holds are taken from it."""
    base = measure_perplexity(bench.model, bench.test_NS)
    hessians = collect_hessians(bench.model, bench.calibration)
    rows = [json.loads(line) for line in scratch.read_text().splitlines()] if scratch.exists() else []
    done = {(row["method"], row["bits"], row["group_size"], row["variant"]) for row in rows}
    for configuration in configurations():
        if configuration not in done:
            rows.append(measure(bench, base, hessians, *configuration))
            with scratch.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
            print({name: value for name, value in rows[-1].items() if name != "nll"}, flush=True)
    order = configurations()
    rows.sort(key=lambda row: order.index((row["method"], row["bits"], row["group_size"], row["variant"])))
    return base, hessians, rows


def layer_errors(bench, hessians, bits=4, group_size=64):
    """The relative output error of each stage that `hessians` has, by method: a list of rows.

    The inputs are those of the unquantized model for all three methods, so the errors can be compared.
    """
    rows = []
    for stage in stages(bench.model):
        if stage.key in hessians:
            parts = {method: stage_errors(stage, hessians[stage.key], method, bits, group_size) for method in METHODS}
            errors = {method: float(f"{part_I.sum():.4g}") for method, part_I in parts.items()}
            rows.append({"block": stage.block, "names": "+".join(stage.names), **errors})
    return rows


def stage_errors(stage, hessian_II, method, bits=4, group_size=64):
    """Each input channel's part (I,) of the relative output error of one stage, quantized by one method."""
    quantize = quantizer(method, bits, group_size, "awq, o too" if method == "awq" else None)
    return channel_errors(stage.weight(), quantize(stage, hessian_II.double()).dequantize(), hessian_II)


def worst_channels(bench, hessians, maxima):
    """The channels of the stage of width 576 whose largest stands out most: max |x|, and parts of the error."""
    narrow = [stage for stage in stages(bench.model) if len(maxima[stage.key]) == 576]
    stage = max(narrow, key=lambda stage: float(maxima[stage.key].max() / maxima[stage.key].median()))
    columns = {"maximum": maxima[stage.key]} | {
        method: stage_errors(stage, hessians[stage.key], method) for method in METHODS
    }
    return {"block": stage.block, "names": "+".join(stage.names), "bits": 4, "group_size": 64} | {
        name: [float(f"{value:.3g}") for value in column_I.tolist()] for name, column_I in columns.items()
    }


def table(bench, scratch):
    """Everything that is stored: provenance, the base, and the measured tables."""
    base, hessians, rows = measure_all(bench, scratch)
    maxima = channel_maxima(bench.model, bench.calibration)
    return {
        "provenance": results.provenance(COMMAND, protocol=PROTOCOL, model=f"{PACKAGE}=={RELEASE}",
                                         model_sha256=hashlib.sha256(model_file().read_bytes()).hexdigest(),
                                         text_sha256=texts.TEXT_SHA256, seed=None),
        "base": {"perplexity": round(base.value, 4), "nll": [round(value, 5) for value in base.nll_N]},
        "weights": weight_counts(bench.model),
        "rows": rows,
        "layers": layer_errors(bench, hessians),
        "outliers": [{"block": block, "names": "+".join(names), **input_outliers(maxima_I)}
                     for (block, names), maxima_I in maxima.items()],
        "channels": worst_channels(bench, hessians, maxima),
    }


def weight_counts(model):
    """How many weights are quantized, how many stand in the embedding, and how many in norms."""
    linear = sum(stage.weight().numel() for stage in stages(model))
    embedding = model.get_input_embeddings().weight.numel()
    return {"linear": linear, "embedding": embedding, "norms": model.num_parameters() - linear - embedding}


def recompute(bench, windows=2):
    """Measure a part again, in under a minute: a list of (what, now, stored, allowed relative difference).

    The part is the loss of the first `windows` windows, unquantized and rounded to 4 bits in groups of 64, and the
    errors of the first block's stages by all three methods. GPTQ is allowed more: where a weight lies midway between
    two codes, the last digit of a sum decides, and all later columns follow.
    """
    stored, test_NS = load(NAME), bench.test_NS[:windows]
    rounded = next(row for row in stored["rows"] if (row["method"], row["bits"], row["group_size"]) == ("rtn", 4, 64))
    pairs = [("loss, unquantized", measure_perplexity(bench.model, test_NS), stored["base"]["nll"])]
    hessians = collect_hessians(bench.model, bench.calibration, blocks=1)
    errors = layer_errors(bench, hessians)
    with restored(bench.model):
        for stage in stages(bench.model):
            stage.replace(quantize_rtn(stage.weight(), 4, 64).dequantize())
        pairs.append(("loss, rtn, 4 bits in 64", measure_perplexity(bench.model, test_NS), rounded["nll"]))
    checks = [(what, now.nll, sum(then[:windows]) / windows, 1e-3) for what, now, then in pairs]
    for now, then in zip(errors, stored["layers"], strict=False):
        checks += [(f"error of {now['names']} of block {now['block']}, {method}", now[method], then[method],
                    0.1 if method == "gptq" else 0.02) for method in METHODS]
    return checks


def main():
    """Measure everything, or a part, from the command line."""
    parser = command.parser_of(__doc__)
    parser.add_argument("--part", action="store_true", help="measure a part again and compare it with what is stored")
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir(), f"{NAME}.jsonl"),
                        help="where finished rows are kept until all are there (default: %(default)s)")
    given = parser.parse_args()
    with command.errors_in_words(parser):
        if given.part:
            print_part()
            return
        print(results.store(NAME, table(prepare(), given.scratch)))
        given.scratch.unlink()


def print_part():
    """Measure the part again and print it beside what is stored; end with an error where it is not close."""
    checks = recompute(prepare())
    for what, now, then, allowed in checks:
        print(f"{what:40} {now:.5f} stored {then:.5f}{'' if abs(now / then - 1) <= allowed else '  NOT CLOSE'}")
    if any(abs(now / then - 1) > allowed for _, now, then, allowed in checks):
        raise SystemExit("a measurement is not close to what is stored")


if __name__ == "__main__":
    main()

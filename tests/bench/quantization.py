"""How fast GPTQ is, and whether it finds the same codes: beside the paper's algorithm and beside others' packages.

All get the same layer and the same Hessian, in float32, on one thread, and take turns. The machine may be busy with
other things: what counts is the time that the processor spends on each, of each round the ratio, and of these the
median.

- the paper: `gptq_transcription.algorithm_1`, a straight transcription.
- neural-compressor-pt (Intel): its class GPTQ, a descendant of the paper's code.
- llmcompressor (vLLM): its `quantize_weight`. It takes all grids before it begins, so `quantize_gptq` runs with
  `static_groups` beside it.

`python -m tests.bench.contenders` installs the two packages. Without them the bench runs, and says what it leaves out.
Groups of fewer than 128 columns get other codes than the paper's code gives them: `gptq.round_columns` says why.
"""

import contextlib
import logging
import os
import statistics
import tempfile
import time

import torch

from scalebook.quantization import group_grid, quantize_gptq, quantize_rtn
from scalebook.quantization.hessian import layer_error, layer_hessian
from tests.bench import contenders
from tests.bench.rows import Row
from tests.gptq_transcription import algorithm_1

SHAPES = [(576, 1536), (2048, 2048)]
GROUPS = [None, 128, 32]
SLOWER = 1.0  # the target: never longer than another
MOST_DIFFERENT = 1e-3  # of the codes, in float32, where the algorithms are the same: ties that fall the other way


def layer(outputs, inputs, seed=0):
    """A weight and the Hessian of inputs whose channels lean on each other and differ in size."""
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(inputs, inputs, generator=generator) / inputs**0.5
    x = torch.randn(4096, inputs, generator=generator) @ mixing + 0.3 * torch.randn(4096, inputs, generator=generator)
    x *= torch.exp(0.5 * torch.randn(inputs, generator=generator))
    return 0.05 * torch.randn(outputs, inputs, generator=generator), layer_hessian(x)


def groups_of(weight, group_size):
    return weight.reshape(len(weight), -1, group_size or weight.shape[1])


def ours(weight, hessian, group_size):
    return quantize_gptq(weight, hessian, 4, group_size).dequantize()


def ours_static(weight, hessian, group_size):
    return quantize_gptq(weight, hessian, 4, group_size, static_groups=True).dequantize()


def paper(weight, hessian, group_size):
    return algorithm_1(weight, hessian, 4, group_size)[1]


def neural_compressor(weight, hessian, group_size):
    from neural_compressor.torch.algorithms.weight_only.gptq import GPTQ

    task = GPTQ(torch.nn.Linear(1, 1), weight)
    task.quantizer.configure({"bits": 4, "sym": False, "perchannel": True, "mse": False, "dtype": "int",
                              "use_double_quant": False, "double_quant_sym": False})
    task.H = hessian.float().clone()
    return task.fasterquant(weight.clone(), groupsize=group_size or -1)[-1]


def llm_compressor(weight, hessian, group_size):
    from compressed_tensors.quantization import QuantizationArgs
    from llmcompressor.modifiers.gptq.gptq_quantize import quantize_weight

    strategy = {"strategy": "group", "group_size": group_size} if group_size else {"strategy": "channel"}
    scale, zero = group_grid(groups_of(weight, group_size), 4, False)
    arguments = QuantizationArgs(num_bits=4, symmetric=False, **strategy)
    return quantize_weight(weight[None].clone(), hessian[None].float().clone(), scale[None],
                           (zero - 8).to(torch.int8)[None], None, arguments)[0][0]


CONTENDERS = {  # name: (function, ours beside it, package)
    "the paper's algorithm 1": (paper, ours, None),
    "neural-compressor-pt": (neural_compressor, ours, "neural-compressor-pt"),
    "llmcompressor": (llm_compressor, ours_static, "llmcompressor"),
}


def compare(name, outputs, inputs, group_size, rounds):
    """One row of the table: times, their ratio, both errors relative to rounding to nearest, the share that differs."""
    other, own, package = CONTENDERS[name]
    weight, hessian = layer(outputs, inputs)
    times, results = take_turns((own, other), (weight, hessian, group_size), rounds)
    plain = layer_error(weight, quantize_rtn(weight, 4, group_size).dequantize(), hessian)
    differs = ~torch.isclose(*results, rtol=1e-4, atol=1e-6)
    return {
        "layer": f"{outputs} x {inputs}", "group": group_size or "row", "beside": name,
        "version": package and contenders.installed(package),
        "ours_s": statistics.median(own_s for own_s, _ in times),
        "other_s": statistics.median(other_s for _, other_s in times),
        "ratio": statistics.median(own_s / other_s for own_s, other_s in times),
        "ours_error": layer_error(weight, results[0], hessian) / plain,
        "other_error": layer_error(weight, results[1], hessian) / plain,
        "differ": float(differs.float().mean()),
        # Groups of fewer than 128 get stale grids in the paper's code, so codes differ there by design.
        "must_equal": own is ours_static or group_size in (None, 128),
    }


def take_turns(functions, arguments, rounds):
    """Seconds of each function in each round, and what each returned. Every other round is turned."""
    times, results = [], [function(*arguments) for function in functions]  # the first call warms up
    for number in range(rounds):
        seconds = [0.0] * len(functions)
        for place in range(len(functions))[::-1 if number % 2 else 1]:
            start = time.process_time()
            functions[place](*arguments)
            seconds[place] = time.process_time() - start
        times.append(tuple(seconds))
    return times, results


def measure(rounds=5, shapes=SHAPES, groups=GROUPS):
    """The rows for all contenders that are installed."""
    return [compare(name, outputs, inputs, group_size, rounds)
            for name, (_, _, package) in CONTENDERS.items() if package is None or contenders.installed(package)
            for outputs, inputs in shapes for group_size in groups]


def in_float64(outputs=192, inputs=512):
    """Whether `quantize_gptq` has the very codes of the paper's algorithm in float64, for each group size."""
    weight, hessian = layer(outputs, inputs)
    return {group_size: torch.equal(quantize_gptq(weight.double(), hessian, 4, group_size).codes,
                                    algorithm_1(weight.double(), hessian, 4, group_size)[0])
            for group_size in (None, 128)}


def table(rows, exact):
    """Write what was measured as lines of one table."""
    yield "One thread; medians over the rounds. Errors are relative to rounding to nearest."
    yield (f"{'layer':13}{'group':>6}  {'beside':30}{'ours, s':>9}{'other, s':>9}{'ratio':>7}{'our error':>11}"
           f"{'other error':>12}{'differ':>9}")
    for row in rows:
        beside = f"{row['beside']} {row['version'] or ''}".strip()
        yield (f"{row['layer']:13}{row['group']:>6}  {beside:30}{row['ours_s']:9.3f}{row['other_s']:9.3f}"
               f"{row['ratio']:7.2f}{row['ours_error']:11.4f}{row['other_error']:12.4f}{row['differ']:9.3%}")
    for group_size, equal in exact.items():
        found = "those" if equal else "NOT those"
        yield f"Codes in float64, group {group_size or 'row'}: {found} of the paper's algorithm"
    for name, (_, _, package) in CONTENDERS.items():
        if package and not contenders.installed(package):
            yield f"Left out: {name}, which is not installed; get it with: {contenders.COMMAND}"


def failures(rows, exact):
    """What misses the target, in words: slower than another, or other codes where they must be the same."""
    return [*(f"quantization: {row['ratio']:.2f} times as long as {row['beside']} at {row['layer']}, "
              f"group {row['group']}; the target is {SLOWER}" for row in rows if row["ratio"] > SLOWER),
            *(f"quantization: {row['differ']:.3%} of the weights differ from {row['beside']} at {row['layer']}, "
              f"group {row['group']}" for row in rows if row["must_equal"] and row["differ"] > MOST_DIFFERENT),
            *(f"quantization: other codes than the paper's algorithm in float64, group {group_size or 'row'}"
              for group_size, equal in exact.items() if not equal)]


def run(options):
    """Print the table; return the rows."""
    torch.set_num_threads(1)
    os.environ["LOGURU_LEVEL"] = "ERROR"  # llmcompressor's log; the other's is Python's
    logging.disable(logging.WARNING)
    with contenders.importable(), tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):  # for their logs
        rows = measure(options.rounds or 5)
    logging.disable(logging.NOTSET)
    exact = in_float64()
    print("\n".join(table(rows, exact)))
    wrong = [line for line in failures(rows, exact) if "differ" in line or "other codes" in line]
    if wrong:  # no time counts where the result is another
        raise AssertionError("\n".join(wrong))
    found = [Row("gptq", f"4 bits, {row['layer']}, group {row['group']}", row["ours_s"],
                 f"{row['beside']} {row['version'] or ''}".strip(), row["other_s"], "s", SLOWER) for row in rows]
    wide, narrow = (processor(quantize_gptq, *layer(512, columns), 4, 128) for columns in (2048, 1024))
    return [*found, Row("gptq", "512 rows of 2048", wide, "rows of 1024", narrow, "s", 6)]


def processor(function, *arguments):
    """The least of the processor's seconds of three calls."""
    found = []
    for _ in range(3):
        start = time.process_time()
        function(*arguments)
        found.append(time.process_time() - start)
    return min(found)

"""`quantize_gptq` beside the paper's algorithm and beside packages that a user would install, in one run.

`python -m tests.bench_quantization` prints one table; with `--check` it fails when `quantize_gptq` is slower than one
of the others, or when codes differ that must not. All get the same layer and the same Hessian, in float32, on the same
cores; rounds of all of them alternate, and the time is the median over the rounds.

- the paper: `gptq_transcription.algorithm_1`, a straight transcription.
- neural-compressor-pt (Intel): its class GPTQ, a descendant of the paper's code.
- llmcompressor (vLLM): its `quantize_weight`. It takes all grids before it begins, so `quantize_gptq` runs with
  `static_groups` beside it.

Packages that are not installed are left out, and the table says so. They are no part of requirements.txt: they want
other versions of transformers, and are installed with `pip install --no-deps`.
"""

import argparse
import statistics
import sys
import time
from importlib import metadata

import torch

from scalebook.quantization import group_grid, quantize_gptq, quantize_rtn
from scalebook.quantization.hessian import layer_error, layer_hessian
from tests.gptq_transcription import algorithm_1

SHAPES = [(576, 1536), (2048, 2048)]
GROUPS = [None, 128, 32]
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


def installed(package):
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def seconds(function, *arguments):
    start = time.perf_counter()
    result = function(*arguments)
    return time.perf_counter() - start, result


def compare(name, outputs, inputs, group_size, rounds):
    """One row of the table: both times, both errors relative to rounding to nearest, and the share that differs."""
    other, own, package = CONTENDERS[name]
    weight, hessian = layer(outputs, inputs)
    times = [(seconds(own, weight, hessian, group_size), seconds(other, weight, hessian, group_size))
             for _ in range(rounds)]
    results = [result for _, result in times[-1]]
    plain = layer_error(weight, quantize_rtn(weight, 4, group_size).dequantize(), hessian)
    differs = ~torch.isclose(*results, rtol=1e-4, atol=1e-6)
    return {
        "layer": f"{outputs} x {inputs}", "group": group_size or "row", "beside": name,
        "version": package and installed(package),
        "ours_s": statistics.median(one[0] for one, _ in times),
        "other_s": statistics.median(one[0] for _, one in times),
        "ours_error": layer_error(weight, results[0], hessian) / plain,
        "other_error": layer_error(weight, results[1], hessian) / plain,
        "differ": float(differs.float().mean()),
        # Groups of fewer than 128 get stale grids in the paper's code, so codes differ there by design.
        "must_equal": own is ours_static or group_size in (None, 128),
    }


def measure(rounds=5, shapes=SHAPES, groups=GROUPS):
    """The rows for all contenders that are installed."""
    return [compare(name, outputs, inputs, group_size, rounds)
            for name, (_, _, package) in CONTENDERS.items() if package is None or installed(package)
            for outputs, inputs in shapes for group_size in groups]


def in_float64(outputs=192, inputs=512):
    """Whether `quantize_gptq` has the very codes of the paper's algorithm in float64, for each group size."""
    weight, hessian = layer(outputs, inputs)
    return {group_size: torch.equal(quantize_gptq(weight.double(), hessian, 4, group_size).codes,
                                    algorithm_1(weight.double(), hessian, 4, group_size)[0])
            for group_size in (None, 128)}


def table(rows):
    heads = ["layer", "group", "beside", "ours, s", "other, s", "ratio", "ours, error", "other, error", "differ"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for row in rows:
        version = f" {row['version']}" if row["version"] else ""
        lines.append(f"| {row['layer']} | {row['group']} | {row['beside']}{version} | {row['ours_s']:.3f} | "
                     f"{row['other_s']:.3f} | {row['ours_s'] / row['other_s']:.2f} | {row['ours_error']:.4f} | "
                     f"{row['other_error']:.4f} | {row['differ']:.3%} |")
    lines += [f"{name}: {package} is not installed" for name, (_, _, package) in CONTENDERS.items()
              if package and not installed(package)]
    return lines


def failures(rows, exact):
    """What `--check` refuses, in words."""
    return [*(f"slower than {row['beside']} at {row['layer']}, group {row['group']}"
              for row in rows if row["ours_s"] > row["other_s"]),
            *(f"{row['differ']:.3%} of the weights differ from {row['beside']} at {row['layer']}, group {row['group']}"
              for row in rows if row["must_equal"] and row["differ"] > MOST_DIFFERENT),
            *(f"other codes than the paper's algorithm in float64, group {group_size}"
              for group_size, equal in exact.items() if not equal)]


def main():
    """Print the table; with `--check`, exit with what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="more than one only where nothing else runs")
    parser.add_argument("--check", action="store_true", help="fail when slower, or when codes differ that must not")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows, exact = measure(options.rounds), in_float64()
    print("Errors are relative to rounding to nearest.", *table(rows), sep="\n")
    print("Codes equal to the paper's in float64:",
          ", ".join(f"group {group_size or 'row'}: {'yes' if equal else 'no'}" for group_size, equal in exact.items()))
    wrong = failures(rows, exact)
    if options.check and wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()

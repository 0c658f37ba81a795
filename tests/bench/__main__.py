"""What the book measures of itself: `python -m tests.bench [--only SUBJECT] [--check]`.

`explorers`: how fast sliders answer, beside `interact`. `moe`: the mixture-of-experts layer, beside transformers'.
`quantization`: GPTQ, beside the paper's algorithm and beside packages that `python -m tests.bench.contenders` installs.
With `--check` it fails when an explorer's p95 is over one frame, the layer over 10% slower than transformers' block, or
GPTQ slower than another or its codes different.
"""

import argparse
import sys
from importlib import import_module

SUBJECTS = ("explorers", "moe", "quantization")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=SUBJECTS, help="default: all")
    parser.add_argument("--check", action="store_true", help="fail when a target is missed")
    parser.add_argument("--rounds", type=int, help="rounds (default: 3 for explorers, 9 for moe, 5 for quantization)")
    parser.add_argument("--samples", type=int, default=100, help="explorers: changes a round (default: 100)")
    parser.add_argument("--no-interact", action="store_true", help="explorers: leave JupyterLab out")
    options = parser.parse_args()
    missed = []
    for subject in SUBJECTS if options.only is None else (options.only,):
        # Imported when it is run: the one needs no Chromium, the other no PyTorch.
        missed += import_module(f"tests.bench.{subject}").run(options)
    if options.check and missed:
        sys.exit("\n".join(missed))


if __name__ == "__main__":
    main()

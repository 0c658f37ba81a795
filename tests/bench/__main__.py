"""What the book measures of itself: `python -m tests.bench [--only SUBJECT ...] [--check] [--store]`.

`pages`: what a page loads, when its first explorer answers, how far it moves. `stock`: the same beside a stock Jupyter
Book and Python in the browser, fetched by `python -m tests.bench.contenders`. `explorers`: how fast sliders answer,
beside `interact`. `moe`: the mixture-of-experts layer, beside transformers'.
`quantization`: GPTQ, beside the paper's algorithm and beside packages that `python -m tests.bench.contenders` installs.
`library`: simulation, search and import, beside their oracles. `book`: running and building all of it.
At the end stands one table: each figure, what stands beside it, and the ratio. With `--check` it fails when a target is
missed; with `--store` it writes the figures that the book's page on performance shows.
"""

import argparse
import sys
from importlib import import_module

from tests.bench import rows

SUBJECTS = ("pages", "stock", "explorers", "library", "moe", "quantization", "book")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=SUBJECTS, action="append", help="default: all; may stand several times")
    parser.add_argument("--check", action="store_true", help="fail when a target is missed")
    parser.add_argument("--store", action="store_true", help=f"write {rows.STORED.name}")
    parser.add_argument("--rounds", type=int, help="rounds (default: 3 for what Chromium opens, 9 for moe, else 5)")
    parser.add_argument("--samples", type=int, default=100, help="explorers: changes a round (default: 100)")
    parser.add_argument("--no-interact", action="store_true", help="explorers: leave JupyterLab out")
    options = parser.parse_args()
    found = []
    for subject in options.only or SUBJECTS:
        # Imported when it is run: the one needs no Chromium, the other no PyTorch.
        found += import_module(f"tests.bench.{subject}").run(options)
    print()
    print("\n".join(rows.table(found)))
    if options.store:
        rows.store(found)
    missed = [row for row in found if row.missed]
    if options.check and missed:
        sys.exit(f"{len(missed)} of {len(found)} figures miss their target")


if __name__ == "__main__":
    main()

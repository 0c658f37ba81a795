"""The smallest program on several processes: every rank adds its number to a common sum.

Run it with `python -m scalebook.labs.hello`, or `torchrun --nproc-per-node 4 -m scalebook.labs.hello --ranks 4`.
"""

import argparse

import torch
import torch.distributed as dist

from scalebook import ranks


def rank_sum(rank, world_size):
    """The sum 0 + 1 + ... + (world_size - 1), which each rank learns from one all-reduce.

    >>> ranks.run(rank_sum, 4)
    [6, 6, 6, 6]
    """
    total = torch.tensor(rank, device=ranks.device())
    dist.all_reduce(total)
    return total.item()


def main():
    """Print what each rank got."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4, help="processes (default: 4)")
    count = parser.parse_args().ranks
    results = ranks.launch(rank_sum, count)
    if results is not None:
        print(f"{count} ranks: {results}")


if __name__ == "__main__":
    from scalebook.labs.hello import main

    main()

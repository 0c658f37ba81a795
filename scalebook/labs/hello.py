"""The smallest program on several processes: every rank adds its number to a common sum.

Run it with `python -m scalebook.labs.hello`, or `torchrun --nproc-per-node 4 -m scalebook.labs.hello`.
"""

import torch
import torch.distributed as dist

from scalebook import ranks
from scalebook.labs import command


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
    parser = command.parser_of_ranks(__doc__)
    given = parser.parse_args()
    with command.errors_in_words(parser):
        results = ranks.launch(rank_sum, given.ranks, backend=given.backend)
    if results is not None:
        print(f"{given.ranks} ranks: {results}")


if __name__ == "__main__":
    from scalebook.labs.hello import main

    main()

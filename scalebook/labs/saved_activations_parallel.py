"""What a rank keeps of a transformer layer for its backward pass, measured on real processes.

The layer is `scalebook.tensor_parallel.ParallelBlock` in bfloat16. arXiv:2205.05198 counts, for t ranks,
sbh (10 + 24/t + 5as/(ht)) bytes with tensor parallelism (equation 2), and a t-th of the whole layer's sbh (34 + 5as/h)
with sequence parallelism too (equation 4). That needs the third way here: a rank keeps its own positions of what
enters a product, and gathers the others again in the backward pass. Where the gathered inputs of the two products by
columns are kept instead, they stay whole on every rank.

Run it with `python -m scalebook.labs.saved_activations_parallel --ranks 4`, or let PyTorch start the processes:
`torchrun --nproc-per-node 4 -m scalebook.labs.saved_activations_parallel --ranks 4`.
"""

import contextlib

import torch

from scalebook import ranks
from scalebook import tensor_parallel as tp
from scalebook.labs import command
from scalebook.labs.collectives import check_size
from scalebook.labs.saved_activations import RATE, Items, Saved, check_sizes, name_items

WAYS = {
    "tensor parallel": {},
    "sequence parallel, gathered inputs kept": {"sequence_parallel": True},
    "sequence parallel, inputs gathered again": {"sequence_parallel": True, "regather": True},
}

# What each module saves, by its name in the block, as in `saved_activations.KEPT`. The paper leaves out the statistics,
# and the causal mask, of one byte for each pair of positions. Outside the regions, and what enters them:
KEPT_OUTSIDE = {
    "attention_norm": (("input", 2, 0), ("mean", 0, 0), ("inverse deviation", 0, 0)),
    "attention.qkv": (("input", 2, 0),),
    "mlp_norm": (("input", 2, 0), ("mean", 0, 0), ("inverse deviation", 0, 0)),
    "mlp.up": (("input", 2, 0),),
    "block": (("dropout mask after attention", 1, 0), ("dropout mask after the MLP", 1, 0)),
}
# Inside, where each rank has its heads and its columns.
KEPT_INSIDE = {
    "attention": (("keys", 2, 0), ("queries", 2, 0), ("causal mask", 0, 0), ("weights", 0, 2), ("dropout mask", 0, 1),
                  ("values", 2, 0), ("weights after dropout", 0, 2)),
    "attention.out": (("input", 2, 0),),
    "mlp": (("input of GELU", 8, 0),),
    "mlp.down": (("input", 8, 0),),
}
PARTS = dict.fromkeys(KEPT_OUTSIDE, "outside") | dict.fromkeys(KEPT_INSIDE, "inside")


@contextlib.contextmanager
def under_module_names(module, ledger):
    """Count what each module inside `module` saves by itself under the module's name."""
    entered, handles = [], []

    def enter(name):
        def hook(*_):
            entered.append(ledger.during(name))
            entered[-1].__enter__()
        return hook

    def leave(*_):
        entered.pop().__exit__(None, None, None)

    for name, part in module.named_modules():
        if name:
            handles += [part.register_forward_pre_hook(enter(name)), part.register_forward_hook(leave)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def measure_block(region, batch, positions, width, heads):
    """The (name, bytes) that one forward of this rank's block saves, in its order."""
    torch.manual_seed(0)  # in a process of its own, or in the caller's fork
    shape = tp.Shape(hidden=width, heads=heads, dropout=RATE)
    block = tp.ParallelBlock.of(tp.Block(shape).to(ranks.device(), torch.bfloat16), region)
    own = positions // region.ranks if region.sequence_parallel else positions
    x = torch.randn(own, batch, width, dtype=torch.bfloat16).to(ranks.device()).requires_grad_()
    ledger = Items(block.parameters())
    with under_module_names(block, ledger), ledger.during("block"):
        y = block(x)
    found = list(ledger.items)
    del y  # until here autograd held what was counted
    return found


def saved_by_rank(rank, world_size, sizes):
    """One rank of `saved_on_ranks`."""
    with torch.random.fork_rng(devices=[]):
        return {way: measure_block(tp.Region(**options), *sizes) for way, options in WAYS.items()}


def saved_on_ranks(size=4, *, batch=2, positions=64, width=64, heads=8, timeout=60, backend=None):
    """What each of `size` processes keeps of one layer: a dict by `WAYS` of one `Saved` for each rank.

    Its parts are "outside" (norms, dropout, and what enters the products by columns) and "inside" (heads and columns).
    `counted` is the paper's count for the rank: inside a t-th of the layer's; with sequence parallelism outside too.

    Raises ValueError for sizes that the ranks cannot share, and for fewer than two samples or two heads a rank: there
    PyTorch need not copy keys and values for its product of many matrices, and keeps the memory of all three alive.
    `ranks.RankError` when a rank fails. `backend` is that of `ranks.run`. Under `torchrun` rank 0 gets the dict and the
    others None.

    >>> found = saved_on_ranks(2, positions=8, width=16, heads=4)
    >>> one = found["sequence parallel, inputs gathered again"][0]
    >>> sum(item.counted for item in one.items) == (8 * 2 * 16 * 34 + 5 * 4 * 8**2 * 2) / 2
    True
    >>> one.total - sum(item.counted for item in one.items) == 8 * 8 * 2 / 2 + 8 * 8  # statistics, causal mask
    True
    """
    check_size(size)
    check_sizes(batch, positions, width, heads)
    tp.Shape(hidden=width, heads=heads).check(size)
    if batch < 2 or heads < 2 * size:
        raise ValueError(f"batch = {batch}, heads = {heads} is not allowed; there must be at least 2 samples and, for "
                         f"{size} ranks, {2 * size} heads")
    if positions % size:
        raise ValueError(f"positions = {positions} is not allowed; it must be a multiple of the {size} ranks")
    sizes = batch, positions, width, heads
    results = ranks.launch(saved_by_rank, size, sizes, timeout=timeout, backend=backend)
    return None if results is None else {way: tuple(name_all(way, size, sizes, result[way]) for result in results)
                                         for way in WAYS}


def name_all(way, size, sizes, found):
    """The `Saved` of what one rank found."""
    batch, positions, width, heads = sizes
    sbh, assb = positions * batch * width, heads * positions**2 * batch
    whole = sbh // size if WAYS[way] else sbh
    outside = [item for item in found if item[0] not in KEPT_INSIDE]
    inside = [item for item in found if item[0] in KEPT_INSIDE]
    items = (name_items(outside, KEPT_OUTSIDE, PARTS, whole, 0)
             + name_items(inside, KEPT_INSIDE, PARTS, sbh // size, assb // size))
    return Saved(way, *sizes, items)


def main():
    """Print what rank 0 keeps in each way, tensor by tensor, beside the paper's count."""
    parser = command.parser_of(__doc__)
    for name, what, default in (("ranks", "processes", 4), ("batch", "samples of the micro-batch", 2),
                                ("positions", "tokens of a sample", 64), ("width", "of the model", 64),
                                ("heads", "of the attention", 8)):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{what} (default: {default})")
    command.add_backend(parser)
    given = vars(parser.parse_args())
    with command.errors_in_words(parser):
        found = saved_on_ranks(given.pop("ranks"), **given)
    for way, (saved, *_) in (found or {}).items():
        print(f"{way}: {saved.total} B a rank; the paper counts {sum(item.counted for item in saved.items)} B")
        for item in saved.items:
            name = f"{item.operation}, {item.tensor}"
            print(f"  {item.part:8} {name:40} {item.bytes:8} B  paper {item.counted:8} B")


if __name__ == "__main__":
    from scalebook.labs.saved_activations_parallel import main

    main()

"""Train a tiny transformer by each stage of ZeRO on real processes, and measure what each rank keeps and sends.

Every stage of `scalebook.zero` trains the same model on the same batches. What it must come to is computed by one
process that knows nothing of ranks, with PyTorch's AdamW: `single_process`.

Run it with `python -m scalebook.labs.zero`, or let PyTorch start the processes:
`torchrun --nproc-per-node 4 -m scalebook.labs.zero` (`--nnodes` as well).
"""

import gc
from dataclasses import replace

import torch

from scalebook import ranks
from scalebook.borders import guard
from scalebook.labs import command, kinds
from scalebook.labs.tiny_transformer import token_loss
from scalebook.labs.zero_memory import Peak, Watched, alive_bytes, reachable, state_bytes
from scalebook.labs.zero_task import Measured, Run, Task, Unit, check
from scalebook.zero import DataParallel, Zero1, Zero2, buckets_of, units_of
from scalebook.zero.adam import MASTER

OPTIMIZERS = (DataParallel, Zero1, Zero2, Watched)


def train(size, *tasks, timeout=120, backend=None):
    """Train on `size` processes, one task after the other; return a list of `Run`s.

    `backend` is that of `ranks.run`. Under `torchrun` every process calls this; rank 0 gets the runs and the others
    None. Raises ValueError for a task that cannot be run on so many ranks, and `ranks.RankError` when a rank fails.

    >>> run, = train(2, Task(stage=3, dtype=torch.bfloat16))
    >>> run.resident_bytes, run.formula_resident_bytes
    ((78400, 78400), 78400)
    """
    for task in tasks:
        check(task, size)
    measured = ranks.launch(measure_all, size, tasks, timeout=timeout, backend=backend)
    return None if measured is None else [Run(*each) for each in zip(tasks, zip(*measured, strict=True), strict=True)]


def single_process(task):
    """The same training in this process, each step with the whole batch at once, by PyTorch's AdamW: the oracle.

    The working weights and gradients have the task's dtype; the optimizer works on master weights.
    """
    model, masters = task.model(MASTER[task.dtype]), task.model(MASTER[task.dtype])
    pairs = list(zip(model.to(task.dtype).parameters(), masters.parameters(), strict=True))
    optimizer = torch.optim.AdamW(masters.parameters(), lr=task.learning_rate, weight_decay=task.decay)
    losses = []
    for step in range(task.steps):
        losses.append(run_microbatches(replace(task, microbatches=1), model, 0, 1, step))
        for weight, master in pairs:
            master.grad, weight.grad = weight.grad.to(master.dtype), None
        if task.max_norm is not None:
            torch.nn.utils.clip_grad_norm_(masters.parameters(), task.max_norm)
        optimizer.step()
        for weight, master in pairs:
            weight.data.copy_(master)
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    units = [Unit(*[sum(p.numel() for p in model.parameters())] * 2)]
    return Run(task, (Measured(losses, parameters, {}, 0, 0, ranks.Traffic(), units, []),))


def measure_all(rank, size, tasks):
    """What runs on a rank of `train`."""
    return [measure_rank(rank, size, task) for task in tasks]


def measure_rank(rank, size, task):
    """Train on one rank; measure the last step."""
    gc.collect()
    gc.freeze()  # `reachable` looks at what is made from here on
    model = task.model(MASTER[task.dtype])
    optimizer = make_optimizer(task, model, size)
    losses = []
    for step in range(task.steps - 1):
        losses.append(run_microbatches(task, model, rank, size, step))
        optimizer.step(task.microbatches)
    if task.stage == 3:
        optimizer.events = []
    with ranks.count() as sent, Peak(reachable()) as peak:
        losses.append(run_microbatches(task, model, rank, size, task.steps - 1))
        resident = state_bytes(optimizer)
        alive = alive_bytes(expected=sum(resident.values()))
        optimizer.step(task.microbatches)
    events = list(optimizer.events) if task.stage == 3 else []
    units = [Unit(b.elements, b.padded, task.stage == 3 and len(b.layers) > 1) for b in optimizer.buckets]
    measured = Measured(losses, whole_parameters(optimizer, model), resident, alive, peak.most, sent, units, events)
    for bucket in optimizer.buckets:
        for hook in bucket.hooks:
            hook.remove()  # the next task measures a process without this model
    return measured


def make_optimizer(task, model, size):
    """The task's optimizer on a model, whose parameters it takes over."""
    if task.stage == 3:
        units = units_of([model.embedding, *model.blocks.values(), model.head], size)
        return Watched(units, task.dtype, task.release_after_forward, **task.options())
    buckets = buckets_of(model, task.elements, size if task.stage else 1)
    return OPTIMIZERS[task.stage](buckets, task.dtype, **task.options())


def run_microbatches(task, model, rank, size, step):
    """The forwards and backwards of one step on this rank's part of the batch; return the mean loss."""
    first, total = rank * task.microbatches, 0.0
    tokens, targets = (part.chunk(size * task.microbatches) for part in task.data(step))
    for part in range(first, first + task.microbatches):
        loss = token_loss(model(tokens[part]), targets[part])
        loss.backward()
        total += loss.item() / task.microbatches
    return total


def whole_parameters(optimizer, model):
    """A copy of every parameter, gathered where it is sharded."""
    copies = {}
    for bucket in optimizer.buckets:
        if isinstance(optimizer, Watched):
            optimizer.gather(bucket)
        copies |= {p: p.detach().clone() for p in bucket.parameters}
        if isinstance(optimizer, Watched):
            optimizer.release(bucket)
    return {name: copies[p] for name, p in model.named_parameters()}


def table(runs, oracle):
    """The chapter's table, as lines of text: what each stage keeps and sends, beside the formulas."""
    names = "stage", "bytes kept", "formula", "bytes sent", "formula", "difference"
    lines = [" ".join(f"{name:>10}" for name in names)]
    for run in runs:
        numbers = max(run.resident_bytes), run.formula_resident_bytes, max(run.sent_bytes), run.formula_sent_bytes
        cells = run.task.stage, *(f"{float(number):.0f}" for number in numbers), f"{run.difference(oracle):.0e}"
        lines.append(" ".join(f"{cell:>10}" for cell in cells))
    return lines


def main():
    """Train by every stage from the command line and print the table."""
    parser = command.parser_of(__doc__)
    command.add_ranks(parser)
    parser.add_argument("--microbatches", type=int, default=1, help="micro-batches on a rank in a step (default: 1)")
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32", "float64"), default="float64",
                        help="of the working weights and gradients (default: float64, to compare exactly)")
    command.add_backend(parser)
    given = parser.parse_args()
    with command.errors_in_words(parser):
        common = Task(microbatches=given.microbatches, batch=2 * given.ranks * given.microbatches,
                      dtype=getattr(torch, given.dtype))
        tasks = [replace(common, stage=stage) for stage in range(4)]
        runs = train(given.ranks, *tasks, backend=given.backend)
    if runs is None:
        return
    print(f"{runs[0].parameters} parameters in {given.dtype}, {given.ranks} ranks, {given.microbatches} micro-batches, "
          f"{common.steps} steps; bytes of one rank and step")
    print("\n".join(table(runs, single_process(common))))


guard(globals(), {"task": kinds.task("zero_task:Task")}, "single_process")


if __name__ == "__main__":
    from scalebook.labs.zero import main

    main()

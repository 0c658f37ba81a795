"""Train a tiny transformer by each stage of ZeRO on real processes, and measure what each rank keeps and sends.

Every stage of `scalebook.zero` trains the same model on the same batches. What it must come to is computed by one
process that knows nothing of ranks, with PyTorch's AdamW: `single_process`.

Run it with `python -m scalebook.labs.zero`, or let PyTorch start the processes:
`torchrun --nproc-per-node 4 -m scalebook.labs.zero` (`--nnodes` as well).
"""

import argparse
import gc
import os
from dataclasses import dataclass, replace
from fractions import Fraction

import torch

from scalebook import ranks
from scalebook.formulas.zero import Recipe
from scalebook.labs.tiny_transformer import Shape, build, make_batch, token_loss
from scalebook.labs.zero_memory import Peak, Watched, reachable, state_bytes, storage_bytes
from scalebook.zero import DataParallel, Zero1, Zero2, buckets_of, communication_bytes, model_state_bytes, units_of
from scalebook.zero.adam import MASTER

OPTIMIZERS = (DataParallel, Zero1, Zero2, Watched)
# 15 features: a block has 2,895 parameters, which neither 2 nor 4 divides, so shards are uneven and padded.
SHAPE = Shape(vocabulary=31, width=15, heads=3, layers=3, context=8)


@dataclass(frozen=True)
class Task:
    """What every rank must know: the stage, the model, the batches, and the optimizer.

    `batch` is the number of samples of all ranks and micro-batches in one step; `elements` the least size of a bucket;
    `tied` makes the head use the token embedding.
    """

    stage: int = 3
    steps: int = 3
    microbatches: int = 1
    batch: int = 8
    shape: Shape = SHAPE
    dtype: torch.dtype = torch.float64
    tied: bool = False
    elements: int = 4000
    max_norm: float | None = None
    release_after_forward: bool = True
    learning_rate: float = 1e-2
    decay: float = 0.1
    seed: int = 0

    @property
    def recipe(self):
        """Bytes a parameter: working weight, gradient, and the optimizer's three."""
        size = self.dtype.itemsize
        return Recipe("this task", size, size, 3 * MASTER[self.dtype].itemsize, "scalebook.zero")

    def model(self, dtype):
        """The model, the same on every rank."""
        model = build(self.shape, self.seed, dtype)
        if self.tied:
            model.head.project.weight = model.embedding.token.weight
        return model

    def data(self, step):
        """Tokens and targets of the whole batch of a step."""
        return make_batch(self.shape, self.batch, seed=1000 * self.seed + step)

    def options(self):
        """What the optimizers of `scalebook.zero` take."""
        return {"max_norm": self.max_norm, "learning_rate": self.learning_rate, "decay": self.decay}


@dataclass(frozen=True)
class Unit:
    """A bucket: how many elements it has, how many with padding, and whether tied layers keep it gathered."""

    elements: int
    padded: int
    kept: bool = False


@dataclass(frozen=True)
class Measured:
    """What one rank did: the `losses` of all steps, the `parameters` after them, and bytes of the last step.

    `resident` are the bytes of model states after the backward, before the optimizer's step, by kind, and `alive` those
    of all tensors that this rank had made and then held. `peak` is the most in the step, of everything, activations
    too. `sent` is a `ranks.Traffic`; `units` are what was sharded and sent at once; `events` those of
    `zero_memory.Watched`, at stage 3.
    """

    losses: list
    parameters: dict
    resident: dict
    alive: int
    peak: int
    sent: ranks.Traffic
    units: list
    events: list


@dataclass(frozen=True)
class Run:
    """A training run: its task, and what each rank measured."""

    task: Task
    ranks: tuple

    @property
    def parameters(self):
        """How many parameters the model has."""
        return sum(unit.elements for unit in self.ranks[0].units)

    @property
    def padded(self):
        """The same with the zeros that make the shards equal."""
        return sum(unit.padded for unit in self.ranks[0].units)

    @property
    def resident_bytes(self):
        """Bytes of model states on each rank after the backward."""
        return tuple(sum(each.resident.values()) for each in self.ranks)

    @property
    def formula_resident_bytes(self):
        """What the formula says of `resident_bytes`, for the padded parameters."""
        return model_state_bytes(self.padded, len(self.ranks), self.task.stage, self.task.recipe)

    @property
    def sent_bytes(self):
        """Bytes that each rank sent in the last step, had every collective been a ring."""
        return tuple(sum(each.sent.ring_bytes(len(self.ranks)).values()) for each in self.ranks)

    @property
    def formula_sent_bytes(self):
        """What the formula says of `sent_bytes`, for the padded parameters of each unit.

        Clipping adds one number: the all-reduce of the sum of squares, where the gradients are sharded.
        """
        task, size = self.task, len(self.ranks)
        norm = Fraction(2 * (size - 1), size) * MASTER[task.dtype].itemsize
        return (norm if task.max_norm is not None and task.stage else 0) + sum(
            communication_bytes(unit.padded, size, task.stage, task.microbatches, task.recipe,
                                task.release_after_forward and not unit.kept)
            for unit in self.ranks[0].units
        )

    def difference(self, oracle):
        """The largest difference of any parameter, on any rank, from another run's on its first rank."""
        right = oracle.ranks[0].parameters
        if any(each.parameters.keys() != right.keys() for each in self.ranks):
            raise ValueError("the runs have different parameters")
        return max((each.parameters[name] - right[name]).abs().max().item() for each in self.ranks for name in right)

    @property
    def losses(self):
        """The mean loss of each step over the ranks."""
        return [sum(parts) / len(parts) for parts in zip(*(each.losses for each in self.ranks), strict=True)]


def train(size, *tasks, timeout=120):
    """Train on `size` processes, one task after the other; return a list of `Run`s.

    Under `torchrun` every process calls this; rank 0 gets the runs and the others None. Raises ValueError for a task
    that cannot be run on so many ranks, and `ranks.RankError` when a rank fails.

    >>> run, = train(2, Task(stage=3, dtype=torch.bfloat16))
    >>> run.resident_bytes, run.formula_resident_bytes
    ((76888, 76888), 76888)
    """
    for task in tasks:
        check(task, size)
    measured = ranks.launch(measure_all, size, tasks, timeout=timeout)
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


def check(task, size):
    """Raise ValueError for a task that cannot be run on `size` ranks."""
    for name in ("steps", "microbatches", "batch"):
        value = getattr(task, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} = {value!r} is not allowed; {name} must be a whole number, at least 1")
    if task.dtype not in MASTER:
        raise ValueError(f"dtype = {task.dtype!r} is not allowed; it must be one of {', '.join(map(str, MASTER))}")
    communication_bytes(1, size, task.stage, 1, task.recipe, task.release_after_forward)  # checks what it takes
    if task.batch % (size * task.microbatches):
        raise ValueError(f"batch = {task.batch} is not allowed; it must be a multiple of ranks x micro-batches = "
                         f"{size * task.microbatches}")


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
        resident, alive = state_bytes(optimizer), storage_bytes(reachable())
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
    lines = [f"{'stage':>5} {'bytes kept':>11} {'formula':>9} {'peak':>9} {'bytes sent':>11} {'formula':>9} "
             f"{'difference':>11}"]
    for run in runs:
        kept, sent, peak = (max(part) for part in (run.resident_bytes, run.sent_bytes, [r.peak for r in run.ranks]))
        by_formula = float(run.formula_resident_bytes), float(run.formula_sent_bytes)
        lines.append(f"{run.task.stage:>5} {kept:>11} {by_formula[0]:>9.0f} {peak:>9} {sent:>11.0f} "
                     f"{by_formula[1]:>9.0f} {run.difference(oracle):>11.0e}")
    return lines


def main():
    """Train by every stage from the command line and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    started = int(os.environ.get("WORLD_SIZE", 4))
    parser.add_argument("--ranks", type=int, default=started, help="processes (default: those of torchrun, else 4)")
    parser.add_argument("--microbatches", type=int, default=1, help="micro-batches on a rank in a step (default: 1)")
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32", "float64"), default="float64",
                        help="of the working weights and gradients (default: float64, to compare exactly)")
    given = parser.parse_args()
    try:
        common = Task(microbatches=given.microbatches, batch=2 * given.ranks * given.microbatches,
                      dtype=getattr(torch, given.dtype))
        tasks = [replace(common, stage=stage) for stage in range(4)]
        runs = train(given.ranks, *tasks)
    except ValueError as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    if runs is None:
        return
    print(f"{runs[0].parameters} parameters in {given.dtype}, {given.ranks} ranks, {given.microbatches} micro-batches, "
          f"{common.steps} steps; bytes of one rank and step")
    print("\n".join(table(runs, single_process(common))))


if __name__ == "__main__":
    from scalebook.labs.zero import main

    main()

"""One training step of a tiny transformer on a real pipeline: processes that send each other activations.

Each stage is a process. It runs the operations of its schedule, as `scalebook.pipeline` orders them, on its piece of
the model, and measures what it does: loss, gradients, the activations alive, messages, times. `single_process_step`
is the oracle that knows nothing of pipelines, and `torch_1f1b_step` runs PyTorch's own 1F1B on the same model and data.

Run it with `python -m scalebook.labs.pipeline --schedule 1f1b --stages 4 --microbatches 8`, or let PyTorch start the
processes: `torchrun --nproc-per-node 4 -m scalebook.labs.pipeline --schedule 1f1b --stages 4 --microbatches 8`.
"""

from dataclasses import dataclass, field
from fractions import Fraction
from numbers import Real

import torch
import torch.distributed as dist

from scalebook import ranks
from scalebook.borders import guard
from scalebook.checks import whole
from scalebook.labs import command
from scalebook.labs.gaps import largest
from scalebook.labs.kinds import KINDS, task
from scalebook.labs.stages import SleepingWork, TransformerWork, execute
from scalebook.labs.tiny_transformer import Shape, build, cut, make_batch
from scalebook.labs.torch_pipeline import torch_1f1b_rank
from scalebook.pipeline import SCHEDULES, Timeline, simulate

MISTAKES = (None, "sum", "overwrite")


@dataclass(frozen=True)
class Task:
    """What every rank must know of the step: the model, the data, and how many micro-batches and chunks."""

    microbatches: int
    chunks: int = 1
    shape: Shape = field(default_factory=Shape)
    samples: int = 2  # in a micro-batch
    seed: int = 0
    dtype: torch.dtype = torch.float64
    mistake: str | None = None

    def batches(self):
        """Tokens and targets of each micro-batch: equal parts of one batch, each in memory of its own."""
        tokens, targets = make_batch(self.shape, self.microbatches * self.samples, self.seed)
        pairs = zip(tokens.split(self.samples), targets.split(self.samples), strict=True)
        return [(part.clone(), goal.clone()) for part, goal in pairs]


@dataclass(frozen=True)
class Step:
    """A training step as it was measured. What has one entry for each stage is a tuple.

    `loss` is the mean over the batch; `gradients` maps the names of the whole model's parameters to tensors.
    `peak_live` is the most micro-batches with a tensor saved for backward alive, a chunk counting 1/v, and
    `peak_bytes` the most bytes of such tensors; both are measured by hooks (`saved_tensors`). `messages` are
    `ranks.Traffic`. `operations` are `scalebook.pipeline.Operation`s with times in seconds from the first start.
    """

    loss: float
    gradients: dict
    peak_live: tuple
    peak_bytes: tuple
    messages: tuple
    operations: tuple

    def order(self, stage):
        """The operations of a stage in the order in which they ran, as (kind, microbatch, chunk)."""
        lane = sorted((op for op in self.operations if op.stage == stage), key=lambda op: op.start)
        return tuple((op.kind, op.microbatch, op.chunk) for op in lane)

    def difference(self, other):
        """The largest difference from another step: of the loss, and of any entry of any gradient."""
        if self.gradients.keys() != other.gradients.keys():
            raise ValueError("the steps have gradients of different parameters")
        gaps = [(self.gradients[name] - other.gradients[name]).abs().max().item() for name in self.gradients]
        return abs(self.loss - other.loss), largest(gaps)


@dataclass(frozen=True)
class Makespan:
    """A measured pipeline beside the simulated one: `seconds` from first start to last end, and every operation."""

    seconds: float
    operations: tuple
    simulated: Timeline


def usual_chunks(schedule):
    """The number of pieces on a stage unless told otherwise: 2 for "interleaved" and "zb-v", 1 for the others."""
    return 2 if schedule in ("interleaved", "zb-v") else 1


def train_step(
    schedule, stages=4, microbatches=8, *, chunks=None, shape=None, samples=2, seed=0, dtype=torch.float64,
    mistake=None, timeout=60, backend=None,
):
    """Run one training step on `stages` processes under a schedule; return it as a `Step`.

    `schedule` is one of `scalebook.pipeline.SCHEDULES`; `chunks` is the number of pieces on a stage, 2 unless given for
    "interleaved" and "zb-v", else 1. `shape` sizes the model, whose `layers` the pieces must divide; `samples` is the
    size of a micro-batch. `mistake` makes the step wrong, to see what that does: "sum" leaves out the division of the
    loss by the number of micro-batches, so every gradient comes out that many times too large; "overwrite" keeps the
    last micro-batch's gradient where it should be added up. `backend` is that of `ranks.run`. Under `torchrun` every
    process calls this; rank 0 gets the step and the others None.

    Raises ValueError for bad input, as `simulate`, and `ranks.RankError` when a rank fails.

    >>> step = train_step("1f1b", stages=2, microbatches=4)
    >>> step.peak_live
    (2, 1)
    """
    if mistake not in MISTAKES:
        raise ValueError(f"mistake = {mistake!r} is not allowed; mistake must be None, 'sum' or 'overwrite'")
    chunks = usual_chunks(schedule) if chunks is None else chunks
    timeline = simulate(schedule, stages, microbatches, chunks=chunks)
    if mistake == "overwrite" and timeline.split:
        raise ValueError(f"mistake = 'overwrite' is not allowed with {schedule}; its backward is split")
    task = _make_task(timeline.pipeline.microbatches, timeline.pipeline.chunks, shape, samples, seed, dtype, mistake)
    cut(build(task.shape), stages * task.chunks)  # raises here, not in a rank, when the blocks don't divide
    orders = [timeline.order(stage) for stage in range(stages)]
    results = ranks.launch(train_rank, stages, task, timeline.pipeline, orders, timeout=timeout, backend=backend)
    return None if results is None else _gather(results)


def single_process_step(microbatches=8, *, shape=None, samples=2, seed=0, dtype=torch.float64, only=None):
    """The same step in this process, with the whole batch in one forward and one backward: the oracle.

    `only` is the number of one micro-batch to take instead of the whole batch. `peak_live` counts 1.
    """
    task = _make_task(microbatches, 1, shape, samples, seed, dtype, None)
    if only is not None and (isinstance(only, bool) or only not in range(microbatches)):
        raise ValueError(f"only = {only!r} is not allowed; it must be None or 0 to {microbatches - 1}")
    model = build(task.shape, task.seed, task.dtype)
    chosen = task.batches() if only is None else [task.batches()[only]]
    whole = tuple(torch.cat(parts) for parts in zip(*chosen, strict=True))
    work = TransformerWork([model], [whole], task.shape.width)
    work.forward(0, 0, None, split=False)
    work.backward(0, 0, None, split=False)
    peaks = (work.saved.peak_keys,), (work.saved.peak_bytes,)
    return Step(work.loss, _gradients([model]), *peaks, (ranks.Traffic(),), ())


def torch_1f1b_step(stages=4, microbatches=8, *, shape=None, samples=2, seed=0, dtype=torch.float64, timeout=60,
                    backend=None):
    """The same step under PyTorch's own `Schedule1F1B` of `torch.distributed.pipelining`; return it as a `Step`.

    Each operation has only the time of its start (also as its end). PyTorch learns the shapes of the activations by
    messages of its own in a first step; what is measured is the second. Arguments and errors as `train_step`.
    """
    pipeline = simulate("1f1b", stages, microbatches).pipeline
    task = _make_task(microbatches, 1, shape, samples, seed, dtype, None)
    cut(build(task.shape), stages)
    results = ranks.launch(torch_1f1b_rank, pipeline.stages, task, timeout=timeout, backend=backend)
    return None if results is None else _gather(results)


def measure_makespan(
    schedule, stages=4, microbatches=8, forward_s=0.02, backward_s=0.04, *, weight_s=None, chunks=None, timeout=60,
    backend=None,
):
    """Time a schedule on real processes whose operations sleep; return a `Makespan`.

    `forward_s` and `backward_s` are the seconds of a forward and a whole backward of one micro-batch on one stage,
    `weight_s` the part of the backward that is the weight gradient (half unless given; it counts only where the
    backward is split). Messages are real, one number each. `simulated` is the same pipeline simulated without them.

    Raises ValueError for bad input, as `simulate`.
    """
    for name, value in (("forward_s", forward_s), ("backward_s", backward_s)):
        if isinstance(value, bool) or not isinstance(value, Real):
            raise ValueError(f"{name} = {value!r} is not allowed; it must be a number of seconds")
    weight_s = backward_s / 2 if weight_s is None else weight_s
    chunks = usual_chunks(schedule) if chunks is None else chunks
    simulated = simulate(schedule, stages, microbatches, forward_s, backward_s, weight_s, chunks)
    v = simulated.pipeline.chunks
    seconds = {"F": forward_s / v, "B": backward_s / v, "b": (backward_s - weight_s) / v, "W": weight_s / v}
    orders = [simulated.order(stage) for stage in range(stages)]
    lanes = ranks.launch(sleep_rank, stages, seconds, simulated.pipeline, orders, timeout=timeout, backend=backend)
    if lanes is None:
        return None
    operations = _on_one_clock(lanes)
    return Makespan(max(op.end for op in operations), operations, simulated)


def train_rank(rank, world_size, task, pipeline, orders):
    """One stage of `train_step`."""
    pieces = cut(build(task.shape, task.seed, task.dtype), pipeline.stages * pipeline.chunks)
    own = [pieces[pipeline.piece(rank, chunk)] for chunk in range(pipeline.chunks)]
    work = TransformerWork(own, task.batches(), task.shape.width, task.mistake)
    dist.barrier()  # so that the clock does not show who started late
    with ranks.count() as traffic:
        operations = execute(orders[rank], pipeline, rank, work)
    peak = Fraction(work.saved.peak_keys, pipeline.chunks)
    peak = peak.numerator if peak.denominator == 1 else peak
    return work.loss, _gradients(own), peak, work.saved.peak_bytes, traffic, operations


def sleep_rank(rank, world_size, seconds, pipeline, orders):
    """One stage of `measure_makespan`."""
    dist.barrier()
    return execute(orders[rank], pipeline, rank, SleepingWork(seconds))


def _make_task(microbatches, chunks, shape, samples, seed, dtype, mistake):
    """Check what the simulation doesn't check, and put it together."""
    for name, value in (("microbatches", microbatches), ("samples", samples)):
        whole(name, value)
    whole("seed", seed, 0)
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"dtype = {dtype!r} is not allowed; it must be torch.float32 or torch.float64")
    return Task(microbatches, chunks, Shape() if shape is None else shape, samples, seed, dtype, mistake)


def _gradients(pieces):
    """Gradient of each parameter of some pieces, by its name in the whole model."""
    return {name: p.grad for piece in pieces for name, p in piece.named_parameters() if p.grad is not None}


def _gather(results):
    """Put the stages' measurements together; only the last piece has a loss, the others have 0."""
    losses, gradients, peaks, sizes, messages, lanes = zip(*results, strict=True)
    merged = {name: gradient for part in gradients for name, gradient in part.items()}
    return Step(sum(losses), merged, peaks, sizes, messages, _on_one_clock(lanes))


def _on_one_clock(lanes):
    """The operations of all stages, in seconds from the first start."""
    zero = min(op.start for lane in lanes for op in lane)
    return tuple(op._replace(start=op.start - zero, end=op.end - zero) for lane in lanes for op in lane)


def main():
    """Run a step from the command line and print it beside the oracle and the simulation."""
    parser = command.parser_of(__doc__)
    parser.add_argument("--schedule", choices=SCHEDULES, default="1f1b",
                        help="the order of forward and backward passes (default: 1f1b)")
    parser.add_argument("--stages", type=int, default=4, help="processes, one a stage (default: 4)")
    parser.add_argument("--microbatches", type=int, default=8, help="micro-batches of the step (default: 8)")
    command.add_backend(parser)
    given = parser.parse_args()
    with command.errors_in_words(parser):
        step = train_step(given.schedule, given.stages, given.microbatches, backend=given.backend)
    if step is None:
        return
    loss_gap, gradient_gap = step.difference(single_process_step(given.microbatches))
    chunks = usual_chunks(given.schedule)
    predicted = simulate(given.schedule, given.stages, given.microbatches, chunks=chunks).peak_in_flight
    print(f"{given.schedule}, {given.stages} stages, {given.microbatches} micro-batches: loss {step.loss:.6f}")
    print(f"difference from one process: loss {loss_gap:.1e}, largest of any gradient {gradient_gap:.1e}")
    for stage, (live, size, traffic) in enumerate(zip(step.peak_live, step.peak_bytes, step.messages, strict=True)):
        print(
            f"stage {stage}: peak {live} micro-batches alive (simulated {predicted[stage]}), {size / 1024:.0f} KiB; "
            f"sent {traffic.calls['send']} messages, {traffic.bytes['send'] / 1024:.0f} KiB"
        )


def _only(name, value):
    """ValueError unless it is the place of a micro-batch."""
    whole(name, value, 0)


guard(globals(), KINDS | {"only": _only, "other": task("pipeline:Step")},
      "train_step", "single_process_step", "torch_1f1b_step", "measure_makespan", "Step.difference")


if __name__ == "__main__":
    from scalebook.labs.pipeline import main

    main()

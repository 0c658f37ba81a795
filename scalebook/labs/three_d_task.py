"""A training task for a grid of ranks, and what its ranks measured, beside the formulas."""

from dataclasses import dataclass, field

import torch

from scalebook import ranks
from scalebook import tensor_parallel as tp
from scalebook.checks import whole
from scalebook.formulas import pipeline as pipeline_formulas
from scalebook.formulas import tensor_parallel as formulas
from scalebook.formulas.zero import Recipe
from scalebook.labs.gaps import largest
from scalebook.mesh import RankGrid
from scalebook.pipeline import simulate
from scalebook.zero import communication_bytes

AXES = ("tp", "pp", "dp")
MISTAKES = ("", "replicas apart")
SHAPE = tp.Shape(hidden=16, heads=4, vocabulary=24, layers=4)
NAMES = {"all_reduce": "all-reduces", "all_gather": "all-gathers", "reduce_scatter": "reduce-scatters",
         "send": "sends", "recv": "receives"}


@dataclass(frozen=True)
class Task:
    """What every rank must know: the grid, the model, the batches, and the optimizer.

    A step has `microbatches` micro-batches of `samples` samples on each data-parallel rank; `elements` is the least
    size of a bucket of ZeRO-1. The mistake "replicas apart" lets every rank's optimizer work alone, as if there were no
    data-parallel group: `three_d.single_process(task, replica)` says what comes of it.
    """

    grid: RankGrid = field(default_factory=lambda: RankGrid(tp=2, dp=2, pp=2))
    shape: tp.Shape = SHAPE
    steps: int = 3
    microbatches: int = 4
    samples: int = 2
    positions: int = 8
    sequence_parallel: bool = False
    elements: int = 4000
    learning_rate: float = 1e-2
    decay: float = 0.1
    seed: int = 0
    mistake: str = ""
    dtype = torch.float64

    def model(self):
        """The whole model, the same on every rank and device: it is drawn on the CPU."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return tp.Transformer(self.shape).to(ranks.device(), self.dtype)

    def data(self, step):
        """Tokens and targets of the whole batch of a step, (S, B) each: replica after replica."""
        samples = self.grid.dp * self.microbatches * self.samples
        generator = torch.Generator().manual_seed(1000 * self.seed + step)
        text = torch.randint(self.shape.vocabulary, (self.positions + 1, samples), generator=generator)
        text = text.to(ranks.device())
        return text[:-1], text[1:]

    def data_of(self, step, replica):
        """Tokens and targets of one data-parallel rank's part of the batch, (S, B / dp) each."""
        return tuple(whole.chunk(self.grid.dp, dim=1)[replica] for whole in self.data(step))

    def microbatches_of(self, step, replica):
        """The micro-batches of one data-parallel rank: its part of the batch, in equal parts."""
        return list(zip(*(part.split(self.samples, dim=1) for part in self.data_of(step, replica)), strict=True))

    def timeline(self):
        """1F1B as `scalebook.pipeline` simulates it."""
        return simulate("1f1b", self.grid.pp, self.microbatches)

    def pipeline(self):
        """The pipeline of one replica of the model."""
        return self.timeline().pipeline

    def order(self, stage):
        """The operations of a stage in their order."""
        return self.timeline().order(stage)


@dataclass(frozen=True)
class Measured:
    """What one rank did: its place in the grid, the `losses` of all steps (0 but on the last stage), its `parameters`.

    `traffic` maps each axis to the `ranks.Traffic` of the last step; `buckets` are the elements of its buckets without
    and with padding; `summed` are numbers whose gradients sequence parallelism adds up over tensor-parallel ranks.
    """

    place: dict
    losses: list
    parameters: dict
    traffic: dict
    buckets: list
    summed: int


@dataclass(frozen=True)
class Run:
    """A training run: its task, and what each rank measured, in the order of the ranks."""

    task: Task
    ranks: tuple

    @property
    def losses(self):
        """The mean loss of each step over the data-parallel ranks."""
        grid = self.task.grid
        last = [one.losses for one in self.ranks if one.place["pp"] == grid.pp - 1 and one.place["tp"] == 0]
        return [sum(parts) / grid.dp for parts in zip(*last, strict=True)]

    def parameters(self, replica):
        """The whole model's parameters as one data-parallel replica has them, put together from its ranks."""
        whole = {}
        for stage in range(self.task.grid.pp):
            shards = [one for one in self.ranks if (one.place["dp"], one.place["pp"]) == (replica, stage)]
            shards.sort(key=lambda one: one.place["tp"])
            whole |= tp.unshard_state([one.parameters for one in shards], self.task.shape)
        return whole

    def difference(self, parameters):
        """The largest difference of any parameter, in any replica, from those of another training.

        What a replica's tensor-parallel ranks each hold whole is compared on every one of them.
        """
        gaps = []
        for replica in range(self.task.grid.dp):
            whole = self.parameters(replica)
            if whole.keys() != parameters.keys():
                raise ValueError("the trainings have different parameters")
            gaps += [(whole[name] - parameters[name]).abs().max().item() for name in whole]
        for one in self.ranks:
            right = {name: parameters[name] for name in one.parameters}
            cut = tp.shard_state(right, self.task.shape, one.place["tp"], self.task.grid.tp)
            gaps += [(one.parameters[name] - cut[name]).abs().max().item() for name in cut]
        return largest(gaps)

    def calls(self, rank, axis):
        """How often a rank called each collective along an axis in the last step: a dict."""
        return dict(sorted(self.ranks[rank].traffic[axis].calls.items()))

    def sent_bytes(self, rank, axis):
        """Bytes that a rank sent along an axis in the last step, had every collective been a ring."""
        return sum(self.ranks[rank].traffic[axis].ring_bytes(self.task.grid.degree(axis)).values())

    def formula_bytes(self, rank, axis):
        """What the formulas of chapters 3 (tp), 4 (pp) and 5 (dp) say of `sent_bytes`."""
        return {"tp": tensor_bytes, "pp": pipeline_bytes, "dp": data_bytes}[axis](self.task, self.ranks[rank])

    def table(self, losses, parameters):
        """The lab's report, as lines of text, beside the losses and parameters of one process."""
        task, grid = self.task, self.task.grid
        yield (f"{grid.world_size} ranks: TP {grid.tp} x DP {grid.dp} x PP {grid.pp}, {task.microbatches} "
               f"micro-batches on each data-parallel rank, {task.steps} steps"
               + (", sequence parallel" * task.sequence_parallel))
        yield f"loss of the last step {self.losses[-1]:.6f}; in one process {losses[-1]:.6f}"
        yield f"largest difference of any parameter from one process {self.difference(parameters):.0e}"
        yield "rank tp dp pp  axis  bytes sent  by formula  calls in a step"
        for rank, one in enumerate(self.ranks):
            for axis in AXES:
                place = " ".join(f"{one.place[name]:2}" for name in ("tp", "dp", "pp"))
                calls = ", ".join(f"{count} {NAMES[kind]}" for kind, count in self.calls(rank, axis).items())
                yield (f"{rank:4} {place}  {axis:>4} {float(self.sent_bytes(rank, axis)):11.0f} "
                       f"{float(self.formula_bytes(rank, axis)):11.0f}  {calls}").rstrip()


def tensor_bytes(task, one):
    """Bytes of one step along tp: the stage's layers for each micro-batch, and what the model's ends add."""
    sizes = {"b": task.samples, "s": task.positions, "t": task.grid.tp}
    wide = {**sizes, "h": task.shape.hidden}
    layer = formulas.layer_elements_sequence_parallel if task.sequence_parallel else formulas.layer_elements
    elements = task.shape.layers // task.grid.pp * layer(**wide)
    if one.place["pp"] == 0:
        elements += formulas.ends_elements(**wide) / 2
    if one.place["pp"] == task.grid.pp - 1:
        elements += formulas.ends_elements(**wide) / 2 + formulas.cross_entropy_elements(**sizes)
    copies = formulas.all_reduce_elements(b=1, s=1, h=one.summed, t=task.grid.tp) if one.summed else 0
    return (task.microbatches * elements + copies) * task.dtype.itemsize


def pipeline_bytes(task, one):
    """Bytes of one step along pp: a boundary's activations on, and its gradients back, for each micro-batch."""
    parts = task.grid.tp if task.sequence_parallel else 1
    boundary = pipeline_formulas.boundary_elements(b=task.samples, s=task.positions, h=task.shape.hidden) / parts
    neighbours = (one.place["pp"] > 0) + (one.place["pp"] < task.grid.pp - 1)
    return neighbours * task.microbatches * boundary * task.dtype.itemsize


def data_bytes(task, one):
    """Bytes of one step along dp: ZeRO-1's reduce-scatter of gradients and all-gather of weights, once a step."""
    size = task.dtype.itemsize
    recipe = Recipe("this task", size, size, 3 * size, "scalebook.zero")
    return sum(communication_bytes(padded, task.grid.dp, 1, task.microbatches, recipe) for _, padded in one.buckets)


def check(task):
    """Raise ValueError for a task that its grid cannot run."""
    if not isinstance(task, Task) or not isinstance(task.grid, RankGrid):
        raise ValueError(f"task = {task!r} is not allowed; it must be a Task whose grid is a RankGrid")
    for name in ("steps", "microbatches", "samples", "positions"):
        whole(name, getattr(task, name))
    for axis in ("cp", "ep"):
        if getattr(task.grid, axis) != 1:
            raise ValueError(f"{axis} = {getattr(task.grid, axis)} is not allowed; the lab has tp, dp and pp only")
    if task.mistake not in MISTAKES:
        raise ValueError(f"mistake = {task.mistake!r} is not allowed; it must be one of {MISTAKES}")
    task.shape.check(task.grid.tp)
    if task.shape.layers % task.grid.pp:
        raise ValueError(f"pp = {task.grid.pp} is not allowed; it must divide the {task.shape.layers} layers")
    if task.sequence_parallel and task.positions % task.grid.tp:
        raise ValueError(f"positions = {task.positions} is not allowed; it must be a multiple of tp = {task.grid.tp}")

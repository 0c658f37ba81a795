"""A training task for the stages of ZeRO, and what its ranks measured, beside the formulas."""

from dataclasses import dataclass
from fractions import Fraction

import torch

from scalebook import ranks
from scalebook.checks import whole
from scalebook.formulas.zero import Recipe
from scalebook.labs.gaps import largest
from scalebook.labs.tiny_transformer import Shape, build, make_batch
from scalebook.zero import communication_bytes, model_state_bytes
from scalebook.zero.adam import MASTER

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
    too; it differs a little from run to run, since a collective may hold its buffer a moment longer. `sent` is a
    `ranks.Traffic`; `units` are what was sharded and sent at once; `events` those of `zero_memory.Watched`, at stage 3.
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
        return largest((each.parameters[name] - right[name]).abs().max().item()
                       for each in self.ranks for name in right)

    @property
    def losses(self):
        """The mean loss of each step over the ranks."""
        return [sum(parts) / len(parts) for parts in zip(*(each.losses for each in self.ranks), strict=True)]


def check(task, size):
    """Raise ValueError for a task that cannot be run on `size` ranks."""
    for name in ("steps", "microbatches", "batch"):
        whole(name, getattr(task, name))
    if task.dtype not in MASTER:
        raise ValueError(f"dtype = {task.dtype!r} is not allowed; it must be one of {', '.join(map(str, MASTER))}")
    communication_bytes(1, size, task.stage, 1, task.recipe, task.release_after_forward)  # checks what it takes
    if task.batch % (size * task.microbatches):
        raise ValueError(f"batch = {task.batch} is not allowed; it must be a multiple of ranks x micro-batches = "
                         f"{size * task.microbatches}")

"""Tensor, pipeline and data parallelism at once: a small transformer trained by real processes that form a grid.

Nothing here is new. The grid is `scalebook.mesh.RankGrid`; each stage's layers are `scalebook.tensor_parallel`'s; the
stages run 1F1B as `scalebook.labs.stages` executes it; the optimizer is `scalebook.zero.Zero1` over the data-parallel
ranks. What it must come to is computed by one process that knows nothing of ranks: `single_process`.

Run it with `python -m scalebook.labs.three_d`, or let PyTorch start the processes:
`torchrun --nproc-per-node 8 -m scalebook.labs.three_d`.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from scalebook import ranks
from scalebook import tensor_parallel as tp
from scalebook.borders import guard
from scalebook.labs import command
from scalebook.labs.kinds import task
from scalebook.labs.stages import execute
from scalebook.labs.three_d_task import AXES, Measured, Run, Task, check
from scalebook.labs.three_d_traffic import count_by_axis
from scalebook.mesh import RankGrid
from scalebook.zero import Zero1, buckets_of


def train(task=None, *, timeout=120, backend=None):
    """Train on as many processes as the task's grid has ranks; return a `Run`.

    `backend` is that of `ranks.run`. Under `torchrun` every process calls this; rank 0 gets the run and the others
    None. Raises ValueError for a task that its grid cannot run, and `ranks.RankError` when a rank fails.

    >>> run = train(Task(grid=RankGrid(tp=1, dp=2, pp=1), steps=1))
    >>> run.calls(0, "dp"), run.calls(0, "tp")
    ({'all_gather': 4, 'reduce_scatter': 4}, {})
    """
    task = Task() if task is None else task
    check(task)
    measured = ranks.launch(measure_rank, task.grid.world_size, task, timeout=timeout, backend=backend)
    return None if measured is None else Run(task, tuple(measured))


def single_process(task=None, replica=None):
    """The same training in this process, each step with the whole batch at once, by PyTorch's AdamW: the oracle.

    With `replica`, a data-parallel rank's place, each step has that rank's part of the batch alone. Returns the mean
    loss of each step and the parameters by name.
    """
    task = Task() if task is None else task
    model = task.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=task.learning_rate, weight_decay=task.decay)
    losses = []
    for step in range(task.steps):
        loss = model(*(task.data(step) if replica is None else task.data_of(step, replica)))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, {name: p.detach() for name, p in model.named_parameters()}


def measure_rank(rank, size, task):
    """Train on one rank; count what it sends in the last step, along each axis of the grid."""
    grid, place = task.grid, task.grid.coordinates(rank)
    groups = make_groups(grid, rank)
    if task.mistake == "replicas apart":
        groups["dp"] = [dist.new_group([one]) for one in range(size)][rank]
    region = tp.Region(groups["tp"], task.sequence_parallel)
    piece = Piece(tp.ParallelTransformer.of(task.model(), region), place["pp"], grid.pp)
    optimizer = Zero1(buckets_of(piece, task.elements, grid.dp), task.dtype, group=groups["dp"],
                      learning_rate=task.learning_rate, decay=task.decay)
    pipeline, order = Placed(task.pipeline(), grid.group_of(rank, "pp")), task.order(place["pp"])
    losses = []
    for step in range(task.steps):
        work = PieceWork(piece, task.microbatches_of(step, place["dp"]), region)
        with count_by_axis(groups, grid, rank) as traffic:
            execute(order, pipeline, rank, work)
            tp.sum_copies(piece, groups["tp"])
            optimizer.step(task.microbatches)
        losses.append(work.loss / task.microbatches)
    parameters = {name: p.detach().clone() for name, p in piece.named_parameters()}
    sizes = [(bucket.elements, bucket.padded) for bucket in optimizer.buckets]
    summed = sum(p.numel() for name, p in parameters.items() if is_summed(name)) if region.sequence_parallel else 0
    return Measured(place, losses, parameters, traffic, sizes, summed)


def make_groups(grid, rank):
    """This rank's process group along each axis. Every rank makes all groups, in one order: PyTorch demands that."""
    made = {axis: [(ranks_of, dist.new_group(ranks_of)) for ranks_of in grid.groups(axis)] for axis in AXES}
    return {axis: next(group for ranks_of, group in pairs if rank in ranks_of) for axis, pairs in made.items()}


def is_summed(name):
    """Whether, under sequence parallelism, a parameter's gradient is added up over the tensor-parallel ranks."""
    return "norm" in name or name.endswith(("out.bias", "down.bias"))


@dataclass(frozen=True)
class Placed:
    """A pipeline whose stages are ranks of the whole grid, for `labs.stages.execute`."""

    pipeline: object
    ranks: list

    def __getattr__(self, name):
        """What does not speak of devices is as it was."""
        return getattr(self.pipeline, name)

    def piece(self, rank, chunk):
        """The piece of the model that a rank holds."""
        return self.pipeline.piece(self.ranks.index(rank), chunk)

    def device(self, piece):
        """The rank that holds a piece of the model: of those that share this one's other coordinates."""
        return self.ranks[self.pipeline.device(piece)]


class Piece(nn.Module):
    """One stage's part of a `tensor_parallel.ParallelTransformer`; its parameters keep their names."""

    def __init__(self, model, stage, stages):
        """Take the stage's blocks; the first stage the embedding too, and the last the norm, the head and the loss."""
        super().__init__()
        each, last = len(model.blocks) // stages, stage == stages - 1
        self.embedding = model.embedding if stage == 0 else None
        self.blocks = nn.ModuleDict({str(i): model.blocks[i] for i in range(stage * each, (stage + 1) * each)})
        self.norm, self.head = (model.norm, model.head) if last else (None, None)

    def forward(self, x, targets_SB, group):
        """Tokens (S, B) or activations to activations, or on the last stage to the mean loss."""
        x = x if self.embedding is None else self.embedding(x)
        for block in self.blocks.values():
            x = block(x)
        if self.head is None:
            return x
        return tp.vocabulary_parallel_cross_entropy(self.head(self.norm(x)), targets_SB, group).mean()


class PieceWork:
    """The forwards and backwards of one piece, as `labs.stages.execute` calls them. Losses are summed, not averaged:
    the optimizer divides by all micro-batches."""

    def __init__(self, piece, batches, region):
        """`batches` holds tokens and targets (S, B) of each micro-batch. `like` is what stages send each other."""
        self.piece, self.batches, self.region, self.ends, self.loss = piece, batches, region, {}, 0.0
        positions, samples = batches[0][0].shape
        own = positions // region.ranks if region.sequence_parallel else positions
        parameter = next(piece.parameters())
        self.like = torch.empty(own, samples, piece.blocks[next(iter(piece.blocks))].attention_norm.weight.numel(),
                                dtype=parameter.dtype)

    def forward(self, microbatch, chunk, given, split):
        """Run the piece on one micro-batch; return what the next stage takes."""
        tokens_SB, targets_SB = self.batches[microbatch]
        x = tokens_SB if given is None else given.requires_grad_()
        y = self.piece(x, targets_SB, self.region.group)
        self.loss += y.item() if self.piece.head is not None else 0.0
        self.ends[microbatch] = x, y
        return y.detach()

    def backward(self, microbatch, chunk, given, split):
        """Run the backward of one micro-batch; return what the stage before takes."""
        x, y = self.ends.pop(microbatch)
        y.backward(given)
        return x.grad


def main():
    """Train on a grid from the command line; print what equals one process, and what was sent along each axis."""
    parser = command.parser_of(__doc__)
    for axis, words in (("tp", "tensor-parallel"), ("dp", "data-parallel"), ("pp", "pipeline")):
        parser.add_argument(f"--{axis}", type=int, default=2, help=f"{words} ranks (default: 2)")
    parser.add_argument("--steps", type=int, default=3, help="training steps (default: 3)")
    parser.add_argument("--sequence-parallel", action="store_true", help="split the positions between the products")
    command.add_backend(parser)
    given = parser.parse_args()
    with command.errors_in_words(parser):
        task = Task(grid=RankGrid(tp=given.tp, dp=given.dp, pp=given.pp), steps=given.steps,
                    sequence_parallel=given.sequence_parallel)
        run = train(task, backend=given.backend)
    if run is not None:
        print("\n".join(run.table(*single_process(task))))


guard(globals(), {"task": task("three_d_task:Task")}, "single_process")


if __name__ == "__main__":
    from scalebook.labs.three_d import main

    main()

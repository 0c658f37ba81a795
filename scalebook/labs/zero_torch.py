"""PyTorch's own data parallelism on the same model and batches as `scalebook.labs.zero`, with the same counters.

`DistributedDataParallel` (DDP) keeps everything on every rank. `ZeroRedundancyOptimizer` beside it shards the
optimizer's states, whole parameters at a time; DDP still all-reduces, and each rank then broadcasts what it updated.
`fully_shard` (FSDP2) shards everything; each parameter is cut along its first dimension and padded by itself.

PyTorch's optimizers update the working weights themselves: there are no master weights here, so Adam's states are two
numbers a parameter and not three.
"""

import contextlib
import gc
import math
import warnings
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from scalebook import ranks
from scalebook.formulas import zero as formulas
from scalebook.labs.tiny_transformer import token_loss
from scalebook.labs.zero_memory import Peak, reachable, storage_bytes
from scalebook.labs.zero_task import Measured, Run, Unit, check
from scalebook.zero import passes

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # other optimizers of that package use torch.jit.script
    from torch.distributed.optim import ZeroRedundancyOptimizer

SYSTEMS = ("DDP", "DDP + ZeroRedundancyOptimizer", "fully_shard", "fully_shard, kept")


@dataclass(frozen=True)
class TorchRun(Run):
    """A training run by one of PyTorch's systems. `alive` is not measured: PyTorch holds buffers for a while."""

    system: str

    @property
    def sent_bytes(self):
        """Bytes that each rank sent in the last step, had every collective been a ring.

        A ring broadcast of b bytes is sent by all ranks but the last: b (N-1)/N on the mean over the ranks.
        """
        size = len(self.ranks)
        return tuple(sum(each.sent.ring_bytes(size).values()) + each.sent.bytes["broadcast"] * (size - 1) / size
                     for each in self.ranks)

    @property
    def formula_sent_bytes(self):
        """What the formulas say of `sent_bytes`, for the parameters with the system's padding."""
        size, task, item = len(self.ranks), self.task, self.task.dtype.itemsize
        if self.system == "DDP + ZeroRedundancyOptimizer":
            return formulas.elements_ddp_zero_optimizer(Psi=self.padded, N=size) * item
        stage, released = (0, True) if self.system == "DDP" else (3, self.system == "fully_shard")
        c_w, c_g = passes(stage, task.microbatches, released)
        return formulas.sent_bytes(Psi=self.padded, N=size, b_w=item, b_g=item, c_w=c_w, c_g=c_g)

    @property
    def formula_resident_bytes(self):
        """What the formula says of `resident_bytes`, on the mean over the ranks; K is Adam's two moments.

        `fully_shard` pads the weights and gradients that it sends, but not the moments.
        """
        size, item = len(self.ranks), self.task.dtype.itemsize
        shared = size if self.system.startswith("fully_shard") else 1
        n_o = 1 if self.system == "DDP" else size
        groups = {"n_w": shared, "n_g": shared, "n_o": n_o}
        return (formulas.state_bytes(Psi=self.padded, b_w=item, b_g=item, K=0, **groups)
                + formulas.state_bytes(Psi=self.parameters, b_w=0, b_g=0, K=2 * item, **groups))


def torch_train(size, *tasks, systems=SYSTEMS, timeout=120, backend=None):
    """Train by each of PyTorch's systems on `size` processes; return a `TorchRun` for each task and system.

    A task's `stage`, `elements` and `release_after_forward` are not looked at. With micro-batches, DDP reduces the last
    one alone (`no_sync`), `fully_shard` each. The last step is measured; DDP needs two before it, in which it arranges
    its buckets. Raises ValueError for a task that cannot be run: fewer than 3 steps, tied weights (which `fully_shard`
    wants in one unit), clipping (which PyTorch leaves to you), 16 bits (for which these systems differ).
    """
    for task in tasks:
        check(task, size)
        for name, wrong, allowed in (
            ("steps", task.steps < 3, "at least 3"), ("tied", task.tied, "False"),
            ("max_norm", task.max_norm is not None, "None"),
            ("dtype", task.dtype.itemsize < 4, "torch.float32 or torch.float64"),
        ):
            if wrong:
                raise ValueError(f"{name} = {getattr(task, name)!r} is not allowed; {name} must be {allowed}")
    for system in systems:
        if system not in SYSTEMS:
            raise ValueError(f"systems = {systems!r} is not allowed; they must be among {', '.join(SYSTEMS)}")
    jobs = [(task, system) for task in tasks for system in systems]
    measured = ranks.launch(measure_all, size, jobs, timeout=timeout, backend=backend)
    if measured is None:
        return None
    return [TorchRun(task, each, system)
            for (task, system), each in zip(jobs, zip(*measured, strict=True), strict=True)]


def measure_all(rank, size, jobs):
    """What runs on a rank of `torch_train`."""
    return [measure_rank(rank, size, *job) for job in jobs]


def measure_rank(rank, size, task, system):
    """Train on one rank; measure the last step."""
    gc.collect()
    gc.freeze()
    whole, model, optimizer = make(task, system)
    losses = []
    for step in range(task.steps - 1):
        losses.append(run_microbatches(task, model, rank, size, step))
        optimizer.step()
        optimizer.zero_grad()
    with ranks.count() as sent, Peak(reachable()) as peak:
        losses.append(run_microbatches(task, model, rank, size, task.steps - 1))
        resident = state_bytes(whole, optimizer)
        optimizer.step()
    units = [Unit(p.numel(), padded(p, size, system)) for p in whole.parameters()]
    parameters = {name: full(p).detach().clone() for name, p in whole.named_parameters()}
    return Measured(losses, parameters, resident, None, peak.most, sent, units, [])


def state_bytes(model, optimizer):
    """Bytes of the storages that hold this rank's weights, gradients and optimizer states, by kind."""
    held = getattr(optimizer, "optim", optimizer).state.values()  # ZeroRedundancyOptimizer keeps one for its own part
    return {
        "weights": storage_bytes(model.parameters()),
        "gradients": storage_bytes(p.grad for p in model.parameters()),
        "optimizer": storage_bytes(value for state in held for name, value in state.items() if name != "step"),
    }


def make(task, system):
    """The bare model, the model to call, and the optimizer."""
    whole = model = task.model(task.dtype)
    if system.startswith("DDP"):
        model = DistributedDataParallel(whole, gradient_as_bucket_view=True)
    else:
        # A mesh that is not given is of GPUs wherever there are any.
        mesh = init_device_mesh(ranks.device().type, (dist.get_world_size(),))
        for layer in (whole.embedding, *whole.blocks.values(), whole.head):
            fully_shard(layer, mesh=mesh, reshard_after_forward=system == "fully_shard")
        fully_shard(whole, mesh=mesh)
    options = {"lr": task.learning_rate, "weight_decay": task.decay}
    if system == "DDP + ZeroRedundancyOptimizer":
        return whole, model, ZeroRedundancyOptimizer(whole.parameters(), torch.optim.AdamW, **options)
    return whole, model, torch.optim.AdamW(whole.parameters(), **options)


def run_microbatches(task, model, rank, size, step):
    """The forwards and backwards of one step on this rank's part of the batch; return the mean loss."""
    first, total = rank * task.microbatches, 0.0
    tokens, targets = (part.chunk(size * task.microbatches) for part in task.data(step))
    for part in range(first, first + task.microbatches):
        last = part == first + task.microbatches - 1
        waits = isinstance(model, DistributedDataParallel) and not last
        with model.no_sync() if waits else contextlib.nullcontext():
            loss = token_loss(model(tokens[part]), targets[part]) / task.microbatches
            loss.backward()
        total += loss.item()
    return total


def padded(parameter, size, system):
    """Elements of a parameter as the system sends it: `fully_shard` pads the first dimension to a multiple."""
    if system.startswith("DDP"):
        return parameter.numel()
    rows = parameter.shape[0]
    return math.ceil(rows / size) * size * (parameter.numel() // rows)


def full(parameter):
    """The whole of a parameter: of a `DTensor`, gathered."""
    return parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter

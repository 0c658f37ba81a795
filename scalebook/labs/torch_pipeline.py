"""PyTorch's own 1F1B (`torch.distributed.pipelining`) on our model, measured like ours."""

import time

import torch
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from scalebook.labs.saved_tensors import SavedTensors
from scalebook.labs.tiny_transformer import build, cut, token_loss
from scalebook.pipeline import Operation
from scalebook.ranks import count, device


def torch_1f1b_rank(rank, world_size, task):
    """One stage: a first step in which PyTorch learns shapes, then the step that is measured."""
    piece = cut(build(task.shape, task.seed, task.dtype), world_size)[rank]
    stage = PipelineStage(piece, rank, world_size, device())
    schedule = Schedule1F1B(stage, n_microbatches=task.microbatches, loss_fn=token_loss)
    _step(schedule, rank, world_size, task)
    piece.zero_grad()
    probe = Probe(piece, rank)
    with count() as traffic, torch.autograd.graph.saved_tensors_hooks(probe.pack, probe.unpack):
        losses = _step(schedule, rank, world_size, task)
    loss = torch.stack(losses).mean().item() if losses else 0.0
    gradients = {name: parameter.grad for name, parameter in piece.named_parameters()}
    return loss, gradients, probe.saved.peak_keys, probe.saved.peak_bytes, traffic, probe.operations


def _step(schedule, rank, world_size, task):
    """Run the schedule on the whole batch; PyTorch cuts it into micro-batches. Returns the last stage's losses."""
    tokens, targets = (torch.cat(parts) for parts in zip(*task.batches(), strict=True))
    losses = []
    inputs = (tokens,) if rank == 0 else ()
    if rank == world_size - 1:
        schedule.step(*inputs, target=targets, losses=losses)
    else:
        schedule.step(*inputs)
    return losses


class Probe:
    """Hooks on a piece of the model that see its forwards, its backwards, and what is saved between them."""

    def __init__(self, piece, rank):
        """Attach the hooks."""
        self.rank, self.microbatch, self.operations = rank, -1, []
        self.saved = SavedTensors(permanent=piece.parameters())
        piece.register_forward_pre_hook(self.before_forward)
        piece.register_forward_hook(self.after_forward)

    def before_forward(self, module, inputs):
        """A forward begins: it is the next micro-batch's."""
        self.microbatch += 1
        self.note("F", self.microbatch)

    def after_forward(self, module, inputs, output):
        """Have the backward of this micro-batch noted when the gradient reaches the output."""
        output.register_hook(lambda gradient, microbatch=self.microbatch: self.note("B", microbatch))

    def note(self, kind, microbatch):
        """Write an operation down."""
        now = time.monotonic()
        self.operations.append(Operation(kind, self.rank, microbatch, 0, now, now))

    def pack(self, tensor):
        """Count a tensor that autograd saves."""
        return self.saved.hold(tensor, self.microbatch)

    def unpack(self, held):
        """Give it back."""
        return held.get()

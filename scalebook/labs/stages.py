"""The real execution of one pipeline stage: its operations in the order of a schedule, its messages, its clock.

The order comes from `scalebook.pipeline`, so what is simulated is what is run. What an operation does is given by the
`work`: a piece of a transformer (`TransformerWork`), or a sleep of the right length (`SleepingWork`).
"""

import time
from collections import defaultdict

import torch
import torch.distributed as dist

from scalebook import ranks
from scalebook.labs.saved_tensors import SavedTensors
from scalebook.labs.tiny_transformer import Linear, add_weight_gradient, token_loss
from scalebook.pipeline import Operation


class Mail:
    """Activations and gradients between the pieces of a model.

    Why this cannot deadlock: a send only hands the message over (`isend`) and never waits, and every message has a
    tag of its own, so a receive waits for exactly one message, in whatever order messages come. So the only thing a
    rank waits for is an operation that the simulation puts earlier. Of the operations not yet run, the earliest has
    all its inputs sent: its rank can go on. Hence some rank always can.

    NCCL knows no tags, and matches the messages of two ranks by their order. So messages travel over gloo also where
    the ranks compute on GPUs, through the memory of the host.
    """

    def __init__(self, pipeline, stage):
        """Deliver for one stage of a `scalebook.pipeline.Pipeline`."""
        self.pipeline, self.stage = pipeline, stage
        self.at_home, self.on_the_way = {}, []

    def send(self, kind, piece, microbatch, tensor):
        """Hand over the input of a forward ("F") or backward ("B") of a piece, which may be on this very stage."""
        receiver = self.pipeline.device(piece)
        if receiver == self.stage:
            self.at_home[kind, piece, microbatch] = tensor
        else:
            message = tensor.cpu()
            work = dist.isend(message, receiver, tag=self.tag(kind, piece, microbatch))
            self.on_the_way.append((work, message))  # the message must live until it has been read

    def receive(self, kind, piece, microbatch, like):
        """The input of a forward or backward of a piece on this stage; waits for it. `like` gives shape and type."""
        if (kind, piece, microbatch) in self.at_home:
            return self.at_home.pop((kind, piece, microbatch))
        sender = self.pipeline.device(piece - 1 if kind == "F" else piece + 1)
        message = torch.empty_like(like, device="cpu")
        dist.recv(message, sender, tag=self.tag(kind, piece, microbatch))
        return message.to(ranks.device())

    def tag(self, kind, piece, microbatch):
        """A number for each message of the step."""
        return 2 * (piece * self.pipeline.microbatches + microbatch) + (kind == "B")

    def close(self):
        """Wait until every message has been read."""
        for work, _ in self.on_the_way:
            work.wait()


def execute(order, pipeline, stage, work):
    """Run the operations of a stage in their order; return them with the times at which they really ran.

    An operation starts when its input is there, and ends when its result is computed. Times are in seconds on the
    monotonic clock, which the processes of one machine share.
    """
    mail, done = Mail(pipeline, stage), []
    last = pipeline.stages * pipeline.chunks - 1
    split = {operation[1:] for operation in order if operation[0] == "W"}
    for kind, microbatch, chunk in order:
        piece = pipeline.piece(stage, chunk)
        outside = kind == "W" or piece == (0 if kind == "F" else last)  # takes nothing from another piece
        given = None if outside else mail.receive(kind, piece, microbatch, work.like)
        start = time.monotonic()
        if kind == "F":
            result, target = work.forward(microbatch, chunk, given, (microbatch, chunk) in split), piece + 1
        elif kind == "B":
            result, target = work.backward(microbatch, chunk, given, (microbatch, chunk) in split), piece - 1
        else:
            result, target = work.weight_gradient(microbatch, chunk), None
        done.append(Operation(kind, stage, microbatch, chunk, start, time.monotonic()))
        if target is not None and 0 <= target <= last:
            mail.send(kind, target, microbatch, result)
    mail.close()
    return done


class TransformerWork:
    """The pieces of a transformer on one stage: real forwards, backwards and weight gradients.

    `pieces` are the stage's chunks. `batches` holds tokens and targets of each micro-batch. `mistake` makes the step
    wrong on purpose: "sum" does not divide the loss by the number of micro-batches, "overwrite" keeps the gradient of
    the latest micro-batch where it should add.
    """

    def __init__(self, pieces, batches, width, mistake=None):
        """Start with nothing computed."""
        self.pieces, self.batches, self.mistake = pieces, batches, mistake
        tokens = batches[0][0]
        self.like = torch.empty(*tokens.shape, width, dtype=next(pieces[0].parameters()).dtype, device=tokens.device)
        self.saved = SavedTensors(permanent=[p for piece in pieces for p in piece.parameters()])
        self.ends, self.deferred, self.loss = {}, defaultdict(list), 0.0

    def forward(self, microbatch, chunk, given, split):
        """Run a piece on one micro-batch; return what the next piece takes."""
        piece, key = self.pieces[chunk], (microbatch, chunk)
        tokens, targets = self.batches[microbatch]
        x = tokens if given is None else given.requires_grad_()
        for module in piece.modules():
            if isinstance(module, Linear):
                module.defer = self.defer_for(key) if split else None
        with self.saved.during(key):
            y = piece(x)
            if piece.head is not None:
                y = token_loss(y, targets) / (1 if self.mistake == "sum" else len(self.batches))
                self.loss += y.item()
        self.ends[key] = (x, y)
        self.finish()
        return y.detach()

    def backward(self, microbatch, chunk, given, split):
        """Run the backward of a piece on one micro-batch; return what the piece before it takes.

        With `split` the weight gradients of the linear layers are put off.
        """
        if self.mistake == "overwrite":
            self.pieces[chunk].zero_grad()
        x, y = self.ends.pop((microbatch, chunk))
        y.backward(given)
        self.finish()
        return x.grad

    def weight_gradient(self, microbatch, chunk):
        """Compute the weight gradients that the backward has put off."""
        for x, gradient, weight, bias in self.deferred.pop((microbatch, chunk)):
            add_weight_gradient(x.get(), gradient.get(), weight, bias)
        self.finish()

    def finish(self):
        """Wait until all is computed: on a GPU a call returns before, and the clock would stop too early."""
        if self.like.is_cuda:
            torch.cuda.synchronize(self.like.device)

    def defer_for(self, key):
        """What a split linear layer calls in its backward: keep its tensors, still counted as alive."""

        def defer(x, gradient, weight, bias):
            held = self.saved.hold(x, key), self.saved.hold(gradient, key)
            self.deferred[key].append((*held, weight, bias))

        return defer


class SleepingWork:
    """Operations that only take time: sleeping processes don't compete for the cores of a small machine."""

    def __init__(self, seconds):
        """`seconds` maps "F", "B" (whole), "b" (without the weight gradient) and "W" to the time on one chunk."""
        self.seconds, self.like = seconds, torch.zeros(1)

    def forward(self, microbatch, chunk, given, split):
        """Sleep for a forward."""
        time.sleep(self.seconds["F"])
        return self.like

    def backward(self, microbatch, chunk, given, split):
        """Sleep for a backward, without its weight gradient where it is split."""
        time.sleep(self.seconds["b" if split else "B"])
        return self.like

    def weight_gradient(self, microbatch, chunk):
        """Sleep for a weight gradient."""
        time.sleep(self.seconds["W"])

"""A small transformer with a mixture-of-experts layer in each block, over bytes of text, and its training step.

Suffixes of tensors: B samples, S positions, D width, T = B S tokens, E experts, K experts chosen for a token, V
vocabulary. Attention, embedding and head are those of `tiny_transformer`.
"""

import numbers
from dataclasses import dataclass

import torch
from torch import nn

from scalebook.labs.tiny_transformer import Block, Embedding, Head, Shape, token_loss
from scalebook.moe import MoELayer, Routing, load_balancing_loss, route_sigmoid, route_top_k, selection_bias_update
from scalebook.moe.routing import top_k_stable

SHAPE = Shape(vocabulary=128, width=96, heads=4, layers=3, context=64)  # 128: the text is ASCII
EXPERTS = 8
EXPERT_WIDTH = 192
LEARNING_RATE = 0.01


@dataclass(frozen=True)
class Balancing:
    """How a run routes and balances.

    `gate` is "softmax" or "sigmoid". With `top_k` = 1 the weight is the chosen expert's probability (Switch) or score,
    so that the router has a gradient; with 2 the two weights sum to 1. `alpha` is the coefficient of Switch's loss and
    `gamma` the step of the selection bias; 0 leaves either out. `router_factor` is the router's learning rate over that
    of the other parameters: 10 makes visible in minutes what a long training does slowly.
    """

    gate: str = "softmax"
    top_k: int = 1
    alpha: float = 0.0
    gamma: float = 0.0
    router_factor: float = 10

    def __post_init__(self):
        """Raise ValueError for what no run can be."""
        if self.gate not in ("softmax", "sigmoid"):
            raise ValueError(f"gate = {self.gate!r} is not allowed; gate must be 'softmax' or 'sigmoid'")
        if isinstance(self.top_k, bool) or not isinstance(self.top_k, int) or self.top_k not in (1, 2):
            raise ValueError(f"top_k = {self.top_k!r} is not allowed; top_k must be 1 or 2")
        for name in ("alpha", "gamma", "router_factor"):
            value = getattr(self, name)
            number = isinstance(value, numbers.Real) and not isinstance(value, bool)
            if not number or not 0 <= value < float("inf"):
                raise ValueError(f"{name} = {value!r} is not allowed; {name} must be a finite number, at least 0")

    def layer(self):
        """An untrained layer of this kind."""
        renormalise = self.top_k > 1
        options = {"renormalise": renormalise}
        if self.gate == "sigmoid":
            gate = route_sigmoid
        elif self.gamma:
            gate = route_biased_softmax
        else:
            gate, options = route_top_k, {"order": "softmax-before", "renormalise": renormalise}
        return MoELayer(SHAPE.width, EXPERT_WIDTH, EXPERTS, self.top_k, gate=gate, gate_options=options)


def route_biased_softmax(logits_TE, k, *, bias_E, renormalise=False, mask=None):
    """The softmax gate with a selection bias: chosen by probability plus bias, weighted by the probability alone.

    The bias of `route_sigmoid`, put on softmax scores. No published model does this; it is here to show why. Raises
    ValueError as `route_top_k`.

    >>> route_biased_softmax(torch.zeros(1, 2), 1, bias_E=torch.tensor([0.0, 0.1])).experts_TK
    tensor([[1]])
    """
    unbiased = route_top_k(logits_TE, k, order="softmax-before", renormalise=renormalise, mask=mask)
    experts_TK = top_k_stable(unbiased.probabilities_TE + bias_E, k)
    weights_TK = unbiased.probabilities_TE.gather(-1, experts_TK)
    if renormalise:
        weights_TK = weights_TK / weights_TK.sum(dim=-1, keepdim=True)
    return Routing(experts_TK, weights_TK, unbiased.probabilities_TE)


class MoEBlock(Block):
    """A block whose feed-forward network is a mixture of experts."""

    def __init__(self, balancing):
        """Make the layers of one block."""
        super().__init__(SHAPE)
        del self.up, self.down
        self.moe = balancing.layer()

    def forward(self, x_BSD):
        """(B, S, D) to (B, S, D), and how the tokens were routed."""
        x_BSD = x_BSD + self.out(self.attend(self.qkv(self.attention_norm(x_BSD))))
        y_BSD, routing = self.moe(self.feed_norm(x_BSD))
        return x_BSD + y_BSD, routing


class MoETransformer(nn.Module):
    """Embedding, blocks with experts, head."""

    def __init__(self, balancing):
        """Make an untrained model."""
        super().__init__()
        self.embedding = Embedding(SHAPE)
        self.blocks = nn.ModuleList(MoEBlock(balancing) for _ in range(SHAPE.layers))
        self.head = Head(SHAPE)

    def forward(self, tokens_BS):
        """(B, S) bytes to (B, S, V) logits, and the routing of each layer."""
        x_BSD, routings = self.embedding(tokens_BS), []
        for block in self.blocks:
            x_BSD, routing = block(x_BSD)
            routings.append(routing)
        return self.head(x_BSD), routings


def build(balancing, seed):
    """An untrained model and its optimiser, the same for the same seed; leaves the global random state as it was.

    >>> model, _ = build(Balancing(), seed=0)
    >>> model.blocks[0].moe.router_ED.shape
    torch.Size([8, 96])
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = MoETransformer(balancing)
    routers = [block.moe.router_ED for block in model.blocks]
    is_router = {id(router) for router in routers}
    others = [parameter for parameter in model.parameters() if id(parameter) not in is_router]
    groups = [{"params": others}, {"params": routers, "lr": balancing.router_factor * LEARNING_RATE}]
    return model, torch.optim.Adam(groups, lr=LEARNING_RATE)


def train_step(model, optimizer, tokens_BS, targets_BS, balancing):
    """One step on a batch; return the task loss, which is the cross entropy in nats per byte, before the step."""
    logits_BSV, routings = model(tokens_BS)
    task_loss = token_loss(logits_BSV, targets_BS)
    loss = task_loss
    for routing in routings:
        loss = loss + load_balancing_loss(routing.probabilities_TE, routing.experts_TK, alpha=balancing.alpha)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if balancing.gamma:
        move_biases(model, routings, balancing.gamma)
    return task_loss.item()


def move_biases(model, routings, gamma):
    """After the step: each layer's biases down by gamma for experts above the mean load, up for those below it."""
    for block, routing in zip(model.blocks, routings, strict=True):
        load_E = torch.bincount(routing.experts_TK.flatten(), minlength=EXPERTS)
        block.moe.selection_bias_E = selection_bias_update(block.moe.selection_bias_E, load_E, gamma)

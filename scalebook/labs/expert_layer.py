"""A mixture-of-experts layer whose experts are spread over ranks, and the all-to-all that carries tokens to them.

A rank routes its own tokens with the gate, which every rank has, and sends each chosen row to the rank of its expert:
an all-to-all. The experts compute what arrived, a second all-to-all brings the results back, and the rank adds them up
by token. Source of the scheme: GShard, arXiv:2006.16668, section 3.

Shapes, as suffixes of names: R ranks, E experts of one rank, T tokens of one rank, D width of the model, N rows.
"""

import torch
import torch.distributed as dist
from torch import nn

from scalebook import moe
from scalebook.moe.layer import combine, run_experts
from scalebook.moe.routing import check_inputs, without_padding

SHARDED = ("gate_up_ED", "down_ED")  # the parameters that a rank has a part of; it has all of the others


class AllToAll(torch.autograd.Function):
    """Send the first `send[0]` rows to rank 0, the next `send[1]` to rank 1, ...; get `receive[r]` rows from rank r.

    Each row that arrives is a copy of one that was sent, so its gradient belongs there: backward sends it back.
    """

    @staticmethod
    def forward(ctx, rows_ND, send, receive):
        """Return the rows that arrived, in the order of their senders."""
        ctx.splits = send, receive
        return exchange(rows_ND, send, receive)

    @staticmethod
    def backward(ctx, gradient_ND):
        """Return the gradient of the rows that were sent."""
        send, receive = ctx.splits
        return exchange(gradient_ND.contiguous(), receive, send), None, None


def exchange(rows_ND, send, receive):
    """The all-to-all itself: what arrives from each rank, one block after the other."""
    arrived_ND = rows_ND.new_empty(sum(receive), *rows_ND.shape[1:])
    dist.all_to_all_single(arrived_ND, rows_ND, receive, send)
    return arrived_ND


class ExpertParallelMoE(moe.MoELayer):
    """`MoELayer` of which this rank holds n_experts / ranks experts, and all of the router.

    Only `compute` differs: routing and capacity are each rank's own, on its own tokens.
    """

    def __init__(self, rank, world_size, d_model, d_ff_expert, n_experts, top_k, **options):
        """Draw the weights of all experts, as every rank does, and keep this rank's."""
        super().__init__(d_model, d_ff_expert, n_experts, top_k, **options)
        self.ranks, self.held = world_size, n_experts // world_size
        own = slice(rank * self.held, (rank + 1) * self.held)
        for name in SHARDED:
            setattr(self, name, nn.Parameter(getattr(self, name).detach()[own].clone()))

    def compute(self, x_TD, plan):
        """Send each row to the rank of its expert, run this rank's experts, bring the results back, add them up."""
        # The rows are sorted by expert, and so by rank. Tell each rank how many rows come for each of its experts.
        sent_RE = torch.tensor(plan.counts, device=x_TD.device).view(self.ranks, self.held)
        arriving_RE = exchange(sent_RE, [1] * self.ranks, [1] * self.ranks)
        send, receive = sent_RE.sum(dim=1).tolist(), arriving_RE.sum(dim=1).tolist()
        rows_ND = AllToAll.apply(x_TD.index_select(0, plan.tokens_N), send, receive)
        # They arrive sorted by sender, then by expert; the experts need them sorted by expert.
        expert_N = torch.arange(self.held, device=x_TD.device).repeat(self.ranks)
        order_N = expert_N.repeat_interleave(arriving_RE.flatten()).argsort(stable=True)
        counts = arriving_RE.sum(dim=0).tolist()
        outputs_ND = run_experts(rows_ND.index_select(0, order_N), counts, self.gate_up_ED, self.down_ED)
        outputs_ND = outputs_ND.index_select(0, order_N.argsort())  # the inverse: sorted by sender again
        return combine(AllToAll.apply(outputs_ND, receive, send), plan, x_TD)


def route_evenly(logits_TE, k, *, mask=None):
    """A gate that is even by force: token t goes to experts t, t + 1, ..., counted round the E.

    The weights are a softmax over the logits of these experts. Raises ValueError as `route_top_k` does.

    >>> route_evenly(torch.zeros(3, 2), 1).experts_TK.flatten().tolist()
    [0, 1, 0]
    """
    logits_TE, mask_T = check_inputs(logits_TE, k, mask)
    tokens, experts = logits_TE.shape
    experts_TK = torch.arange(tokens).unsqueeze(-1).add(torch.arange(k)).remainder(experts).to(logits_TE.device)
    weights_TK = torch.softmax(logits_TE.gather(-1, experts_TK), dim=-1)
    return without_padding(experts_TK, weights_TK, torch.softmax(logits_TE, dim=-1), mask_T)

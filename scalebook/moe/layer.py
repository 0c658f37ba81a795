"""A mixture-of-experts layer: a router, SwiGLU experts that each compute their own tokens, and shared experts.

Shapes, as suffixes of names: T tokens, D width of the model, E experts, H width of an expert, K experts chosen for a
token, N rows that experts compute.
"""

import inspect

import torch
from torch import nn
from torch.nn.functional import linear, silu

from scalebook.borders import guard
from scalebook.checks import whole
from scalebook.moe.dispatching import capacity, dispatch
from scalebook.moe.kinds import KINDS, TOGETHER
from scalebook.moe.routing import check_mask, route_top_k


def swiglu(x_ND, gate_up_D, down_D):
    """SwiGLU without biases: down(silu(gate(x)) * up(x)). `gate_up_D` is (2H, D), `down_D` (D, H); returns (N, D).

    Source: arXiv:2002.05202, equation 6.

    >>> swiglu(torch.ones(1, 1), torch.tensor([[0.0], [5.0]]), torch.ones(1, 1))
    tensor([[0.]])
    """
    gate_NH, up_NH = linear(x_ND, gate_up_D).chunk(2, dim=-1)
    return linear(silu(gate_NH) * up_NH, down_D)


class MoELayer(nn.Module):
    """A sparse feed-forward layer: each token is computed by `top_k` of `n_experts` SwiGLU experts.

    `gate` is `route_top_k`, `route_sigmoid` or `route_grouped_softmax`, or a function with their signature, and
    `gate_options` its keyword arguments. A gate that takes `bias_E` is given the buffer `selection_bias_E`, which
    `selection_bias_update` moves; it is no parameter. `n_shared` shared experts compute every token (as one SwiGLU,
    `n_shared` times as wide; DeepSeekMoE, arXiv:2401.06066, section 3.2). `capacity_factor=None` drops no token; a
    number gives each expert `capacity(...)` rows, in the order of `priority` (`dispatch`). Padding counts neither there
    nor as a row of an expert; its output is zero.

    Raises ValueError for sizes that are not whole numbers of at least 1 (`n_shared`: 0) and for top_k > n_experts.

    >>> layer = MoELayer(d_model=8, d_ff_expert=16, n_experts=4, top_k=2)
    >>> y, routing = layer(torch.randn(3, 5, 8))
    >>> y.shape, routing.experts_TK.shape
    (torch.Size([3, 5, 8]), torch.Size([15, 2]))
    """

    def __init__(self, d_model, d_ff_expert, n_experts, top_k, *, gate=route_top_k, gate_options=None, n_shared=0,
                 capacity_factor=None, priority="choice"):
        """Draw every weight from a normal distribution of variance 1 / (width of its input)."""
        super().__init__()
        check_sizes(d_model, d_ff_expert, n_experts, top_k, n_shared)
        self.top_k, self.gate, self.gate_options = top_k, gate, dict(gate_options or {})
        self.capacity_factor, self.priority = capacity_factor, priority
        self.router_ED = nn.Parameter(torch.randn(n_experts, d_model) * d_model**-0.5)
        self.gate_up_ED = nn.Parameter(torch.randn(n_experts, 2 * d_ff_expert, d_model) * d_model**-0.5)
        self.down_ED = nn.Parameter(torch.randn(n_experts, d_model, d_ff_expert) * d_ff_expert**-0.5)
        self.n_shared = n_shared
        if n_shared:
            width = n_shared * d_ff_expert
            self.shared_gate_up_D = nn.Parameter(torch.randn(2 * width, d_model) * d_model**-0.5)
            self.shared_down_D = nn.Parameter(torch.randn(d_model, width) * width**-0.5)
        if "bias_E" in inspect.signature(gate).parameters:
            self.register_buffer("selection_bias_E", torch.zeros(n_experts))

    def forward(self, x, mask=None):
        """The layer's output, of the shape (..., D) of x, and the `Routing`, which the balancing losses need.

        `mask`, of x's shape without D, is True at real tokens; padding may hold anything. Raises ValueError for another
        width, another mask, and logits that are not finite.
        """
        if x.shape[-1:] != self.router_ED.shape[1:]:
            raise ValueError(f"x has shape {tuple(x.shape)}; its last dimension must be {self.router_ED.shape[1]}")
        mask = check_mask(mask, x.shape[:-1], x.device)
        x_TD, mask_T = x.reshape(-1, x.shape[-1]), None if mask is None else mask.reshape(-1)
        if mask_T is not None:
            # Zeros, so that a NaN at padding reaches neither the shared experts nor the router's gradient (0 x NaN).
            x_TD = x_TD.masked_fill(~mask_T.unsqueeze(-1), 0)
        routing = self.route(x_TD, mask_T)
        y_TD = self.compute(x_TD, self.plan(routing))
        if self.n_shared:
            y_TD = y_TD + swiglu(x_TD, self.shared_gate_up_D, self.shared_down_D)
        return y_TD.reshape(x.shape), routing

    def route(self, x_TD, mask_T=None):
        """Each token's experts and weights."""
        options = self.gate_options
        if "selection_bias_E" in self._buffers:
            options = {"bias_E": self.selection_bias_E, **options}
        return self.gate(linear(x_TD, self.router_ED), self.top_k, mask=mask_T, **options)

    def plan(self, routing):
        """Each expert's tokens: the `Dispatch` of a routing, under the layer's capacity."""
        experts, limit = len(self.router_ED), None
        if self.capacity_factor is not None:
            tokens = int((routing.experts_TK[:, 0] >= 0).sum())
            limit = capacity(tokens, experts, self.top_k, self.capacity_factor)
        return dispatch(routing.experts_TK, routing.weights_TK, experts, limit, priority=self.priority)

    def compute(self, x_TD, plan):
        """Gather the tokens by expert, run each expert once, and add the weighted results up by token."""
        rows_ND = x_TD.index_select(0, plan.tokens_N)
        outputs_ND = run_experts(rows_ND, plan.counts, self.gate_up_ED, self.down_ED)
        return combine(outputs_ND, plan, x_TD)


def run_experts(rows_ND, counts, gate_up_ED, down_ED):
    """Each expert's SwiGLU on its own rows: the first `counts[0]` rows are expert 0's, the next `counts[1]` expert 1's.

    `gate_up_ED` is (E, 2H, D) and `down_ED` (E, D, H). An expert without rows costs no FLOPs and gets a zero gradient.
    Returns (N, D), in the order of the rows.

    >>> run_experts(torch.ones(3, 1), [0, 3], torch.ones(2, 2, 1), torch.tensor([[[1.0]], [[2.0]]])).flatten()
    tensor([1.4621, 1.4621, 1.4621])
    """
    # unbind, not an index for each expert: the gradient of an index is a zero tensor of the size of all experts.
    experts = zip(rows_ND.split(counts), gate_up_ED.unbind(), down_ED.unbind(), strict=True)
    return torch.cat([swiglu(own_ND, gate_up_D, down_D) for own_ND, gate_up_D, down_D in experts])


def combine(outputs_ND, plan, x_TD):
    """Multiply each row of the experts' outputs by its weight, and add the rows up by token: the shape of x, (T, D)."""
    weighted_ND = outputs_ND * plan.weights_N.unsqueeze(-1).to(x_TD.dtype)
    return torch.zeros_like(x_TD).index_add(0, plan.tokens_N, weighted_ND)


def check_sizes(d_model, d_ff_expert, n_experts, top_k, n_shared):
    """ValueError for sizes that no layer can have."""
    sizes = {"d_model": d_model, "d_ff_expert": d_ff_expert, "n_experts": n_experts, "top_k": top_k}
    for name, value, least in [*((name, value, 1) for name, value in sizes.items()), ("n_shared", n_shared, 0)]:
        whole(name, value, least)
    if top_k > n_experts:
        raise ValueError(f"top_k = {top_k} is not allowed; top_k must be at most the {n_experts} experts")


guard(globals(), KINDS, "MoELayer", together=TOGETHER)

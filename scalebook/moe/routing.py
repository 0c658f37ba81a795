"""Gates: which experts a token goes to, and with what weights.

Shapes, as suffixes of names: T tokens, E experts, K experts chosen for a token, G groups of experts.

All gates here rank with a stable sort, so on ties the expert (or the group) with the lower index wins: the same input
gives the same choice on every run. The choice is by rank and carries no gradient; the weights do. A mask marks
padding: True is a real token. A padding token gets expert -1, weight 0 and probability 0, and nothing in `dispatch` or
in the losses counts it. Half-precision logits are computed with in float32.
"""

import math
from dataclasses import dataclass

import torch
from torch.nn.functional import logsigmoid

PADDING = -1


@dataclass(frozen=True)
class Routing:
    """What a gate decides.

    `experts_TK`: indices of the chosen experts, the highest ranked first. `weights_TK`: what their outputs are
    multiplied by. `probabilities_TE`: a distribution over **all** experts, before the choice, for the balancing losses.
    """

    experts_TK: torch.Tensor
    weights_TK: torch.Tensor
    probabilities_TE: torch.Tensor


def top_k_stable(scores_TE, k):
    """Indices of the k largest scores of each row, largest first; on ties the lower index first.

    >>> top_k_stable(torch.tensor([[1., 3., 3.]]), 2).tolist()
    [[1, 2]]
    """
    return torch.sort(scores_TE.detach(), dim=-1, descending=True, stable=True).indices[..., :k]


def route_top_k(logits_TE, k, *, order="softmax-after", renormalise=True, mask=None):
    """The softmax gate: the k experts with the highest logits, weighted by a softmax.

    `order="softmax-after"` takes the softmax over the kept logits, as if the dropped ones were minus infinity (Mixtral,
    arXiv:2401.04088, section 2.1). Its weights sum to 1 whatever `renormalise` is, and with k = 1 the weight is the
    constant 1, which gives the router no gradient. `order="softmax-before"` takes the softmax over all experts and then
    the top k: with `renormalise` (DBRX) it equals the other order; without (Switch, arXiv:2101.03961, equation 2) the
    weights sum to less than 1 while k < E, and keep a gradient at k = 1.

    Raises ValueError for logits that are not a finite floating-point matrix of at least one expert, for a k outside
    1..E, for another order, and for a mask that is not T booleans. Padding rows may hold anything. Zero tokens give
    empty results.

    >>> logits_TE = torch.tensor([[2.0, 1.0, 0.0]])
    >>> route_top_k(logits_TE, 2).weights_TK
    tensor([[0.7311, 0.2689]])
    >>> route_top_k(logits_TE, 2, order="softmax-before", renormalise=False).weights_TK
    tensor([[0.6652, 0.2447]])
    """
    logits_TE, mask_T = check_inputs(logits_TE, k, mask)
    probabilities_TE = torch.softmax(logits_TE, dim=-1)
    experts_TK = top_k_stable(logits_TE, k)
    if order == "softmax-after":
        kept_TE = torch.full_like(logits_TE, -math.inf).scatter(-1, experts_TK, logits_TE.gather(-1, experts_TK))
        weights_TK = torch.softmax(kept_TE, dim=-1).gather(-1, experts_TK)
    elif order == "softmax-before":
        weights_TK = probabilities_TE.gather(-1, experts_TK)
        if renormalise:
            weights_TK = weights_TK / weights_TK.sum(dim=-1, keepdim=True)
    else:
        raise ValueError(f"order = {order!r} is not allowed; order must be 'softmax-after' or 'softmax-before'")
    return without_padding(experts_TK, weights_TK, probabilities_TE, mask_T)


def route_sigmoid(logits_TE, k, *, bias_E=None, n_group=1, topk_group=1, renormalise=True, route_scale=1.0, mask=None):
    """DeepSeek-V3's gate: a sigmoid score for each expert, and a bias that moves the choice only.

    The k experts are chosen by score plus bias, within the `topk_group` best of `n_group` groups; a group's rank is the
    sum of its two best biased scores. The weights come from the scores without the bias, renormalised to sum to 1 and
    multiplied by `route_scale`. `probabilities_TE` are the scores divided by their sum (arXiv:2412.19437, equations
    12-16 and 19; deepseek-ai/DeepSeek-V3, inference/model.py, Gate).

    Raises ValueError as `route_top_k` does, and for a bias that is not E finite numbers, groups that do not divide the
    experts, and groups kept that are too few to hold k experts.

    >>> routing = route_sigmoid(torch.zeros(1, 4), 2, bias_E=torch.tensor([0.0, 0.0, 0.2, 0.1]), route_scale=2.5)
    >>> routing.experts_TK, routing.weights_TK
    (tensor([[2, 3]]), tensor([[1.2500, 1.2500]]))
    """
    logits_TE, mask_T = check_inputs(logits_TE, k, mask)
    experts = logits_TE.shape[-1]
    check_groups(experts, k, n_group, topk_group)
    scores_TE = torch.sigmoid(logits_TE)
    choice_TE = scores_TE if bias_E is None else scores_TE + check_bias(bias_E, experts)
    if n_group > 1:
        choice_TE = keep_groups(choice_TE, n_group, topk_group, best=2)
    experts_TK = top_k_stable(choice_TE, k)
    # A softmax of log-sigmoids is score / sum of scores, and is defined where every score has underflowed to zero.
    log_scores_TE = logsigmoid(logits_TE)
    probabilities_TE = torch.softmax(log_scores_TE, dim=-1)
    if renormalise:
        weights_TK = torch.softmax(log_scores_TE.gather(-1, experts_TK), dim=-1)
    else:
        weights_TK = scores_TE.gather(-1, experts_TK)
    return without_padding(experts_TK, weights_TK * route_scale, probabilities_TE, mask_T)


def route_grouped_softmax(logits_TE, k, *, n_group, topk_group, route_scale=1.0, mask=None):
    """DeepSeek-V2's gate: a softmax over all experts, then the top k within the best groups, not renormalised.

    A group's rank is its best probability. The weights are the probabilities times `route_scale`, 16 in DeepSeek-V2
    (arXiv:2405.04434, section 2.2.2; deepseek-ai/DeepSeek-V3, inference/configs/config_236B.json).

    Raises ValueError as `route_sigmoid` does.

    >>> logits_TE = torch.tensor([[3.0, 0.0, 2.0, 2.0]])
    >>> route_grouped_softmax(logits_TE, 2, n_group=2, topk_group=1).experts_TK
    tensor([[0, 1]])
    """
    logits_TE, mask_T = check_inputs(logits_TE, k, mask)
    check_groups(logits_TE.shape[-1], k, n_group, topk_group)
    probabilities_TE = torch.softmax(logits_TE, dim=-1)
    # Ranking the logits ranks the probabilities, and tells apart those that round to the same number.
    experts_TK = top_k_stable(keep_groups(logits_TE, n_group, topk_group, best=1), k)
    weights_TK = probabilities_TE.gather(-1, experts_TK) * route_scale
    return without_padding(experts_TK, weights_TK, probabilities_TE, mask_T)


def keep_groups(scores_TE, n_group, topk_group, best):
    """Set the scores outside the `topk_group` best groups to minus infinity; a group counts its `best` best scores.

    >>> keep_groups(torch.tensor([[5., 1., 4., 4.]]), 2, 1, best=2)
    tensor([[-inf, -inf, 4., 4.]])
    """
    grouped_TGM = scores_TE.unflatten(-1, (n_group, -1))
    best_of_group = grouped_TGM.topk(min(best, grouped_TGM.shape[-1]), dim=-1).values
    kept = top_k_stable(best_of_group.sum(dim=-1), topk_group)
    dropped_TG = torch.ones(grouped_TGM.shape[:-1], dtype=torch.bool, device=scores_TE.device).scatter(-1, kept, False)
    return grouped_TGM.masked_fill(dropped_TG.unsqueeze(-1), -math.inf).flatten(-2)


def selection_bias_update(bias_E, load_E, gamma):
    """The bias after a step: down by gamma for experts above the mean load, up by gamma for those below it.

    An expert exactly at the mean keeps its bias. There is no loss and no gradient; the sigmoid gate reads the bias when
    it chooses (arXiv:2412.19437, section 2.1.2). `load_E` counts the tokens of each expert. Returns a new tensor.

    Raises ValueError when the shapes differ, a load is negative, a load or a bias not finite, or gamma is negative.

    >>> selection_bias_update(torch.zeros(3), torch.tensor([6, 2, 4]), 0.001)
    tensor([-0.0010,  0.0010,  0.0000])
    """
    load_E = torch.as_tensor(load_E, device=bias_E.device).to(bias_E.dtype)
    if load_E.shape != bias_E.shape or bias_E.dim() != 1:
        raise ValueError(f"load_E has shape {tuple(load_E.shape)} and bias_E {tuple(bias_E.shape)}; both must be (E,)")
    if not torch.isfinite(load_E).all() or (load_E < 0).any():
        raise ValueError(f"load_E = {load_E.tolist()} is not allowed; loads must be finite and not negative")
    if not torch.isfinite(bias_E).all():
        raise ValueError(f"bias_E = {bias_E.tolist()} is not allowed; biases must be finite")
    if isinstance(gamma, bool) or not math.isfinite(gamma) or gamma < 0:
        raise ValueError(f"gamma = {gamma!r} is not allowed; gamma must be a finite number, at least 0")
    return bias_E.detach() + gamma * torch.sign(load_E.mean() - load_E)


def dense_gates(routing):
    """The gate as a vector over all experts, G(x): the weights in their places, zero elsewhere. Shape (T, E).

    >>> dense_gates(route_top_k(torch.tensor([[0.0, 9.0, 0.0]]), 1))
    tensor([[0., 1., 0.]])
    """
    zeros_TE = torch.zeros_like(routing.probabilities_TE)
    return zeros_TE.scatter_add(-1, routing.experts_TK.clamp(min=0), routing.weights_TK)


def without_padding(experts_TK, weights_TK, probabilities_TE, mask_T):
    """The routing, with expert -1, weight 0 and probability 0 where the mask says padding."""
    if mask_T is not None:
        padding_T1 = ~mask_T.unsqueeze(-1)
        experts_TK = experts_TK.masked_fill(padding_T1, PADDING)
        weights_TK = weights_TK.masked_fill(padding_T1, 0)
        probabilities_TE = probabilities_TE.masked_fill(padding_T1, 0)
    return Routing(experts_TK, weights_TK, probabilities_TE)


def check_inputs(logits_TE, k, mask, name="logits_TE"):
    """The logits in at least float32, with zeros at padding, and the mask; ValueError for what a gate cannot take."""
    if not isinstance(logits_TE, torch.Tensor) or not logits_TE.is_floating_point() or logits_TE.dim() != 2:
        is_tensor = isinstance(logits_TE, torch.Tensor)
        found = f"{logits_TE.dtype}, {tuple(logits_TE.shape)}" if is_tensor else type(logits_TE)
        raise ValueError(f"{name} is {found}; it must be a floating-point tensor of shape (tokens, experts)")
    tokens, experts = logits_TE.shape
    if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= experts:
        raise ValueError(f"k = {k!r} is not allowed; k must be a whole number from 1 to the {experts} experts")
    mask_T = check_mask(mask, (tokens,), logits_TE.device)
    if logits_TE.dtype in (torch.float16, torch.bfloat16):
        logits_TE = logits_TE.float()
    if mask_T is not None:
        logits_TE = logits_TE.masked_fill(~mask_T.unsqueeze(-1), 0)
    wrong_T = ~torch.isfinite(logits_TE).all(dim=-1)
    if wrong_T.any():
        first = int(wrong_T.nonzero()[0])
        raise ValueError(f"{name}[{first}] = {logits_TE[first].tolist()} is not allowed; logits must be finite")
    return logits_TE, mask_T


def check_mask(mask, shape, device):
    """The mask as a boolean tensor, or None; ValueError when it is not `shape` booleans (or zeros and ones)."""
    if mask is None:
        return None
    mask = torch.as_tensor(mask, device=device)
    if tuple(mask.shape) != tuple(shape):
        raise ValueError(f"mask has shape {tuple(mask.shape)}; it must be {tuple(shape)}, one entry for each token")
    if mask.dtype != torch.bool and not ((mask == 0) | (mask == 1)).all():
        raise ValueError("mask must hold True (1) for a real token and False (0) for padding, and nothing else")
    return mask.bool()


def check_bias(bias_E, experts):
    """The bias without its gradient; ValueError unless it holds a finite number for each expert."""
    if bias_E.shape != (experts,) or not torch.isfinite(bias_E).all():
        raise ValueError(f"bias_E = {bias_E.tolist()} is not allowed; it must hold {experts} finite numbers")
    return bias_E.detach()


def check_groups(experts, k, n_group, topk_group):
    """ValueError unless the groups divide the experts and those kept hold at least k."""
    for name, value, most in (("n_group", n_group, experts), ("topk_group", topk_group, n_group)):
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise ValueError(f"{name} = {value!r} is not allowed; {name} must be a whole number from 1 to {most}")
    if experts % n_group:
        raise ValueError(f"n_group = {n_group} is not allowed; it must divide the {experts} experts")
    if k > topk_group * (experts // n_group):
        raise ValueError(f"k = {k} is not allowed; {topk_group} of {n_group} groups hold "
                         f"{topk_group * (experts // n_group)} of the {experts} experts")

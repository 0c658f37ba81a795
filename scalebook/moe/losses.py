"""Auxiliary losses that spread tokens over experts, each as its paper has it.

Shapes, as suffixes of names: T tokens, E experts, K experts chosen for a token, B sequences, L layers.

f, the fraction of tokens, is a count: it has no gradient. The gradient flows through the probabilities only. They are
the softmax (or the normalised scores) over all E experts, before the choice. A mask is True at real tokens; padding
counts neither in f nor in the mean probability. Each function says its value at balance, where every expert gets the
same tokens and the same mean probability. No value at balance of `load_balancing_loss` is a lower bound: see there.
"""

import torch

from scalebook.checks import shown, tensor
from scalebook.moe.routing import check_mask


def load_balancing_loss(probabilities_TE, experts_TK, *, alpha, divide_by_k=False, mask=None):
    """Switch's loss: alpha x E x sum over the experts of f P, for one layer.

    f is the tokens that chose the expert over all tokens, P the mean probability. With k choices f sums to k, and the
    value at balance is alpha k: Switch with k = 1 (arXiv:2101.03961, equations 4-6), and Mixtral in transformers.
    `divide_by_k` divides f by k, and the value at balance is alpha: MegaBlocks, and DeepSeek (arXiv:2412.19437,
    equation 18). That value is no lower bound: probabilities (.51, .49), (.51, .49), (0, 1) give 0.8933 alpha.

    Raises ValueError when shapes do not fit, when padding (expert -1) is not masked, or when no real token is left.

    >>> probabilities_TE = torch.tensor([[0.51, 0.49], [0.51, 0.49], [0.0, 1.0]])
    >>> load_balancing_loss(probabilities_TE, probabilities_TE.argmax(-1, keepdim=True), alpha=1.0)
    tensor(0.8933)
    """
    fractions_E, mean_E = fractions_and_means(probabilities_TE, experts_TK, mask)
    if divide_by_k:
        fractions_E = fractions_E / experts_TK.shape[-1]
    return alpha * probabilities_TE.shape[-1] * (fractions_E * mean_E).sum()


def load_balancing_gradient(probabilities_TE, experts_TK, *, alpha, divide_by_k=False, mask=None):
    """The gradient of `load_balancing_loss` with respect to softmax logits, by hand. Shape (T, E).

    With f held constant and p the softmax of token t, d loss / d logit_i = (alpha E / T) p_i (f_i - sum_j f_j p_j): it
    lowers the logits of experts that are fuller than the token's own average of f, and raises the others. T counts real
    tokens; padding gets zeros. Raises ValueError as the loss does.

    >>> load_balancing_gradient(torch.tensor([[0.5, 0.5]]), torch.tensor([[0]]), alpha=1.0)
    tensor([[ 0.5000, -0.5000]])
    """
    fractions_E, _ = fractions_and_means(probabilities_TE, experts_TK, mask)
    if divide_by_k:
        fractions_E = fractions_E / experts_TK.shape[-1]
    own_average_T1 = (fractions_E * probabilities_TE).sum(dim=-1, keepdim=True)
    gradient_TE = alpha * probabilities_TE.shape[-1] * probabilities_TE * (fractions_E - own_average_T1)
    real_T = real_tokens(probabilities_TE, mask)
    return gradient_TE.masked_fill(~real_T.unsqueeze(-1), 0) / real_T.sum()


def load_balancing_per_layer(routings, *, alpha, divide_by_k=False, mask=None):
    """The loss of each layer, as a tensor of L values; sum them or take their mean.

    Pooling the tokens of all layers first, as transformers does for Mixtral, is another loss: two layers that are
    skewed in opposite ways pool to balance.

    Raises ValueError for no layers, and as the loss does.
    """
    if not routings:
        raise ValueError("routings is empty; it must hold the Routing of at least one layer")
    return torch.stack([load_balancing_loss(routing.probabilities_TE, routing.experts_TK, alpha=alpha,
                                            divide_by_k=divide_by_k, mask=mask) for routing in routings])


def gshard_loss(probabilities_TE, experts_TK, *, mask=None):
    """GShard's loss: the mean over experts of (c / S) m; 1 / E^2 at balance.

    c counts **first** choices only, S is the number of tokens and m the mean probability (arXiv:2006.16668, algorithm
    1, line 13). It is Switch's loss of the first choices, divided by E^2.

    Raises ValueError as `load_balancing_loss` does.

    >>> gshard_loss(torch.full((4, 4), 0.25), torch.tensor([[0, 1], [1, 0], [2, 0], [3, 0]]))
    tensor(0.0625)
    """
    fractions_E, mean_E = fractions_and_means(probabilities_TE, experts_TK[..., :1], mask)
    return (fractions_E * mean_E).mean()


def sequence_wise_loss(probabilities_BTE, experts_BTK, *, alpha, mask=None):
    """DeepSeek's loss: `load_balancing_loss` divided by k in each sequence alone, then the mean over the sequences.

    The probabilities are the normalised scores (arXiv:2412.19437, equations 17-20; alpha is 1e-4 there). At balance in
    every sequence it is alpha. A batch that is balanced as a whole may be skewed in each of its sequences.

    Raises ValueError when shapes do not fit, there is no sequence, or one holds no real token.

    >>> skewed = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])
    >>> sequence_wise_loss(skewed, torch.tensor([[[0]], [[1]]]), alpha=1.0)
    tensor(2.)
    """
    if probabilities_BTE.dim() != 3 or experts_BTK.dim() != 3 or not 0 < len(probabilities_BTE) == len(experts_BTK):
        raise ValueError(f"probabilities_BTE has shape {tuple(probabilities_BTE.shape)} and experts_BTK "
                         f"{tuple(experts_BTK.shape)}; they must be (B, T, E) and (B, T, K), B at least 1")
    mask_BT = check_mask(mask, probabilities_BTE.shape[:2], probabilities_BTE.device)
    masks = [None] * len(probabilities_BTE) if mask_BT is None else mask_BT
    for probabilities_TE, mask_T in zip(probabilities_BTE, masks, strict=True):
        real_tokens(probabilities_TE, mask_T, "probabilities_BTE")
    losses = [load_balancing_loss(probabilities_TE, experts_TK, alpha=alpha, divide_by_k=True, mask=mask_T)
              for probabilities_TE, experts_TK, mask_T in zip(probabilities_BTE, experts_BTK, masks, strict=True)]
    return torch.stack(losses).mean()


def importance_loss(gates_TE, *, weight, mask=None):
    """Shazeer's importance loss: weight x CV(importance)^2; 0 at balance.

    An expert's importance is the sum of its gates G(x), zero where it was not chosen (`dense_gates`), over the tokens;
    CV is the standard deviation of the population over the mean (arXiv:1701.06538, equations 6-7).

    Raises ValueError when the mask does not fit, no real token is left, or all gates are zero.

    >>> importance_loss(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), weight=0.1)
    tensor(0.1000)
    """
    real_T = real_tokens(gates_TE, mask, "gates_TE")
    return weight * squared_variation("gates_TE", gates_TE.masked_fill(~real_T.unsqueeze(-1), 0).sum(dim=0))


def load_loss(clean_TE, noisy_TE, deviation_TE, k, *, weight, mask=None):
    """Shazeer's load loss: weight x CV(load)^2, with a smooth estimate of the load; 0 at balance.

    `clean_TE` are the logits, `deviation_TE` the standard deviations of their noise, softplus(x W_noise), and
    `noisy_TE` = clean + standard normal x deviation, what the gate ranked. An expert's load is the sum over tokens of
    the probability that it would be chosen were its own noise drawn again: Phi((clean - threshold) / deviation), the
    threshold being the k-th highest noisy logit among the **other** experts (arXiv:1701.06538, appendix A, equations
    8-11).

    Raises ValueError when shapes differ, k is outside 1..E-1 (with k = E every expert gets every token), a deviation is
    not above 0, the mask does not fit or no real token is left.

    >>> even = torch.zeros(1, 2)
    >>> load_loss(even, even, torch.ones(1, 2), 1, weight=0.1)
    tensor(0.)
    """
    tensor("clean_TE", clean_TE)
    if not clean_TE.shape == noisy_TE.shape == deviation_TE.shape:
        raise ValueError(f"clean_TE, noisy_TE and deviation_TE have shapes {tuple(clean_TE.shape)}, "
                         f"{tuple(noisy_TE.shape)} and {tuple(deviation_TE.shape)}; they must be the same")
    real_T = real_tokens(clean_TE, mask, "clean_TE")
    if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k < clean_TE.shape[-1]:
        raise ValueError(f"k = {k!r} is not allowed; k must be a whole number from 1 to {clean_TE.shape[-1] - 1}")
    if not (deviation_TE[real_T] > 0).all():
        raise ValueError("deviation_TE holds a value that is not above 0; every standard deviation must be")
    thresholds_TE = kth_excluding(noisy_TE[real_T], k)
    chosen_TE = torch.special.ndtr((clean_TE[real_T] - thresholds_TE) / deviation_TE[real_T])
    return weight * squared_variation("clean_TE", chosen_TE.sum(dim=0))


def kth_excluding(noisy_TE, k):
    """For each expert, the k-th highest value among the others.

    Among all of them, that is the (k+1)-th for an expert in the top k, and the k-th for one that is not.

    >>> kth_excluding(torch.tensor([[3.0, 1.0, 2.0]]), 1).tolist()
    [[2.0, 3.0, 3.0]]
    """
    highest = torch.sort(noisy_TE, dim=-1, descending=True).values
    kth_T1, next_T1 = highest[:, k - 1 : k], highest[:, k : k + 1]
    return torch.where(noisy_TE >= kth_T1, next_T1, kth_T1)


def squared_variation(name, totals_E):
    """The squared coefficient of variation, variance of the population over squared mean.

    Raises ValueError, with the name of the argument that the totals are of, where the mean is zero or out of range.

    >>> squared_variation("gates_TE", torch.tensor([1.0, 3.0]))
    tensor(0.2500)
    """
    variation = totals_E.var(correction=0) / totals_E.mean() ** 2
    if not torch.isfinite(variation):
        raise ValueError(f"{name} gives the experts {shown(totals_E.tolist())} in all, whose mean "
                         f"{totals_E.mean().item():.4g} is not allowed; it must be one to divide by")
    return variation


def router_z_loss(logits_TE, *, weight, mask=None):
    """ST-MoE's z-loss: weight x the mean over tokens of logsumexp(logits)^2; it keeps logits small.

    Uniform logits of zero give weight x ln(E)^2; it says nothing about balance (arXiv:2202.08906, equation 5; weight
    0.001).

    Raises ValueError when the mask does not fit or no real token is left.

    >>> router_z_loss(torch.zeros(2, 1), weight=0.001)
    tensor(0.)
    """
    real_T = real_tokens(logits_TE, mask, "logits_TE")
    return weight * torch.logsumexp(logits_TE[real_T], dim=-1).square().mean()


def fractions_and_means(probabilities_TE, experts_TK, mask):
    """f (constant, sums to k) and P of each expert over the real tokens."""
    real_T = real_tokens(probabilities_TE, mask)
    experts = probabilities_TE.shape[-1]
    if experts_TK.dim() != 2 or len(experts_TK) != len(probabilities_TE) or experts_TK.shape[1] < 1:
        raise ValueError(f"experts_TK has shape {tuple(experts_TK.shape)}; it must be ({len(probabilities_TE)}, k)")
    chosen = experts_TK[real_T].reshape(-1)
    if (chosen < 0).any() or (chosen >= experts).any():
        raise ValueError(f"experts_TK holds {int(chosen.min())} to {int(chosen.max())} at real tokens; an index must "
                         f"be from 0 to {experts - 1}, and padding (-1) needs the mask")
    tokens = real_T.sum()
    fractions_E = torch.bincount(chosen, minlength=experts).to(probabilities_TE.dtype) / tokens
    return fractions_E, probabilities_TE[real_T].sum(dim=0) / tokens


def real_tokens(values_TE, mask, name="probabilities_TE"):
    """The mask, or all True when there is none.

    ValueError when the values are no matrix, when no real token is left, and for a real token's value that is not
    finite. Padding may hold anything.
    """
    tensor(name, values_TE)
    if values_TE.dim() != 2 or values_TE.shape[1] < 1:
        raise ValueError(f"{name} has shape {tuple(values_TE.shape)}; it must be (tokens, experts)")
    real_T = check_mask(mask, values_TE.shape[:1], values_TE.device)
    if real_T is None:
        real_T = torch.ones(len(values_TE), dtype=torch.bool, device=values_TE.device)
    if not real_T.any():
        raise ValueError(f"mask leaves no real token of {len(values_TE)}; a mean needs at least one")
    if not values_TE[real_T].isfinite().all():
        raise ValueError(f"{name} holds what is infinite or not a number at a real token; every value must be finite")
    return real_T

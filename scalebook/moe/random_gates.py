"""Gates that draw random numbers while a model is trained: Shazeer's noise, and GShard's random second expert.

Shapes, as suffixes of names: T tokens, E experts, K experts chosen for a token.

Both take a generator, so that the same seed gives the same choice. Without one they draw from PyTorch's own.
"""

from dataclasses import dataclass

import torch
from torch.nn.functional import softplus

from scalebook.moe.routing import PADDING, Routing, check_inputs, route_top_k


@dataclass(frozen=True)
class NoisyRouting(Routing):
    """A `Routing`, and what `load_loss` needs: the logits without noise, with it, and its standard deviations."""

    clean_TE: torch.Tensor
    noisy_TE: torch.Tensor
    deviation_TE: torch.Tensor


def route_noisy_top_k(clean_TE, noise_TE, k, *, generator=None, mask=None):
    """Shazeer's gate: normal noise on the logits, of a size that is learnt, then the softmax of the k highest.

    `clean_TE` are the logits x W_g and `noise_TE` the logits x W_noise; the noise on a logit has the standard deviation
    softplus(noise). Choice, weights and `probabilities_TE` are those of the noisy logits. The gradient reaches both
    inputs, since the normal numbers are drawn first and then scaled. Where no noise is wanted, as after training, use
    `route_top_k` on the clean logits. Source: arXiv:1701.06538, equations 3-5.

    Returns a `NoisyRouting`. Raises ValueError when the two differ in shape or dtype, and as `route_top_k` does for
    each of them.

    >>> clean_TE, noise_TE = torch.tensor([[2.0, 1.0, 0.0]]), torch.full((1, 3), -20.0)  # hardly any noise
    >>> route_noisy_top_k(clean_TE, noise_TE, 2, generator=torch.Generator().manual_seed(0)).weights_TK
    tensor([[0.7311, 0.2689]])
    """
    clean_TE, mask_T = check_inputs(clean_TE, k, mask, name="clean_TE")
    noise_TE, _ = check_inputs(noise_TE, k, mask, name="noise_TE")
    if clean_TE.shape != noise_TE.shape or clean_TE.dtype != noise_TE.dtype:
        raise ValueError(f"clean_TE is {clean_TE.dtype}, {tuple(clean_TE.shape)} and noise_TE {noise_TE.dtype}, "
                         f"{tuple(noise_TE.shape)}; they must be the same")
    deviation_TE = softplus(noise_TE)
    normal_TE = torch.randn(clean_TE.shape, generator=generator, dtype=clean_TE.dtype, device=clean_TE.device)
    noisy_TE = clean_TE + normal_TE * deviation_TE
    real_TE = noisy_TE if mask_T is None else noisy_TE[mask_T]
    if not real_TE.isfinite().all():
        raise ValueError(f"noise_TE holds up to {noise_TE.max().item():.4g}, for which a noisy logit is not finite; it "
                         "must be smaller")
    routing = route_top_k(noisy_TE, k, mask=mask_T)
    return NoisyRouting(routing.experts_TK, routing.weights_TK, routing.probabilities_TE, clean_TE, noisy_TE,
                        deviation_TE)


def route_random_second(logits_TE, k=2, *, generator=None, mask=None):
    """GShard's gate: always the best expert, and the second best with probability 2 g2, at most 1.

    g1 and g2 are the two highest probabilities divided by their sum, so g2 is at most 1/2, and the second expert is
    taken when 2 g2 exceeds a uniform random number. A second choice that is not taken has expert -1 and weight 0; the
    first keeps its weight g1, and the weights of such a token sum to less than 1. In `dispatch` it is no row, takes no
    capacity and does not count as dropped. Balance this gate by `gshard_loss`, which counts first choices only.

    Source: arXiv:2006.16668, section 2.2 ("random routing") and algorithm 1, lines 14-23.

    Raises ValueError for a k other than 2, and as `route_top_k` does.

    >>> even = route_random_second(torch.zeros(3, 2))  # 2 g2 is 1: always taken
    >>> even.experts_TK.tolist()
    [[0, 1], [0, 1], [0, 1]]
    """
    if isinstance(k, bool) or not isinstance(k, int) or k != 2:
        raise ValueError(f"k = {k!r} is not allowed; this gate chooses k = 2 experts")
    routing = route_top_k(logits_TE, k, mask=mask)
    weights_TK = routing.weights_TK
    drawn_T = torch.rand(len(weights_TK), generator=generator, dtype=weights_TK.dtype, device=weights_TK.device)
    skipped_T = 2 * weights_TK[:, 1] <= drawn_T
    skipped_TK = torch.stack([torch.zeros_like(skipped_T), skipped_T], dim=-1)
    return Routing(routing.experts_TK.masked_fill(skipped_TK, PADDING), weights_TK.masked_fill(skipped_TK, 0),
                   routing.probabilities_TE)

"""How even a load is, in numbers, from the tokens that each expert got. Needs no PyTorch.

Each function takes counts whose last dimension is the experts, as nested lists or an array, and returns an array of the
dimensions before it. A load share is an expert's choices over all choices: with k choices a token, they still sum to 1.
"""

import numpy as np

from scalebook.checks import is_number, shown


def load_shares(counts):
    """Each expert's share of the choices; sums to 1.

    Raises ValueError for negative or no counts, and where a histogram is empty. So do all functions here.

    >>> load_shares([6, 2, 0, 0]).tolist()
    [0.75, 0.25, 0.0, 0.0]
    """
    allowed = "it must be numbers that are finite and not negative, at least one in each histogram"
    try:
        if np.asarray(counts).dtype.kind not in "iuf":
            raise TypeError
        found = np.asarray(counts, dtype=float)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise ValueError(f"counts is {type(counts).__name__}, and not an array of numbers; {allowed}") from None
    if found.ndim < 1 or found.shape[-1] < 1:
        raise ValueError(f"counts has the shape {found.shape}; {allowed}")
    wrong = ~np.isfinite(found) | (found < 0)
    if wrong.any():
        raise ValueError(f"counts holds {found[wrong][0]}; {allowed}")
    # Over the largest first, so that no sum overflows.
    largest = found.max(axis=-1, keepdims=True)
    if (largest == 0).any():
        raise ValueError("counts holds a histogram of zeros only; each must have at least one token")
    scaled = found / largest
    return scaled / scaled.sum(axis=-1, keepdims=True)


def entropy(counts):
    """Entropy of the load shares over its largest value, ln E: 1 at balance, 0 when one expert gets all.

    >>> entropy([[4, 4], [8, 0]]).tolist()
    [1.0, 0.0]
    """
    shares = load_shares(counts)
    if shares.shape[-1] == 1:
        raise ValueError(f"counts has the shape {shares.shape}, one expert; the largest entropy is then 0, and the "
                         "ratio is not defined")
    logs = np.log(np.where(shares > 0, shares, 1.0))
    return np.minimum(np.abs(shares * logs).sum(axis=-1) / np.log(shares.shape[-1]), 1.0)


def variation(counts):
    """Coefficient of variation: standard deviation of the population over mean. 0 at balance, sqrt(E - 1) at most.

    >>> float(variation([8, 0, 0, 0]).round(3))
    1.732
    """
    shares = load_shares(counts)
    return shares.std(axis=-1) / shares.mean(axis=-1)


def slowest_rank(counts):
    """With one expert a rank, the fullest rank's load over the mean load: the factor by which all wait for it.

    >>> float(slowest_rank([6, 2, 0, 0]))
    3.0
    """
    shares = load_shares(counts)
    return shares.max(axis=-1) * shares.shape[-1]


def idle_experts(counts):
    """The number of experts that got no token: their parameters are dead weight.

    >>> int(idle_experts([6, 2, 0, 0]))
    2
    """
    return (load_shares(counts) == 0).sum(axis=-1)


def dropped_share(counts, capacity_factor):
    """The share of choices above each expert's capacity, `capacity_factor` times the mean load, not rounded.

    Raises ValueError also for a factor that is not above 0.

    >>> float(dropped_share([6, 2, 0, 0], 1.5))
    0.375
    """
    if not is_number(capacity_factor) or not capacity_factor > 0:
        raise ValueError(f"capacity_factor = {shown(capacity_factor)} is not allowed; it must be a finite "
                         "number above 0")
    shares = load_shares(counts)
    return np.maximum(shares - capacity_factor / shares.shape[-1], 0).sum(axis=-1)

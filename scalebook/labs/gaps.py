"""How far two results lie apart."""

import math


def largest(gaps):
    """The largest of some differences; not a number if one of them is none, which Python's `max` would pass over.

    >>> largest([1e-12, 3e-12]), largest([1e-12, math.nan])
    (3e-12, nan)
    """
    gaps = list(gaps)
    return math.nan if any(map(math.isnan, gaps)) else max(gaps)

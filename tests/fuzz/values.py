"""Bad values for every kind of argument: what is no value of any kind, and what nearly is one of this kind."""

import math
from fractions import Fraction

import numpy as np
import torch
from hypothesis import strategies as st

HUGE = 10**400
NAN, INFINITY = math.nan, math.inf


class Stranger:
    """An object of a class that no function knows."""

    def __repr__(self):
        """Say what it is."""
        return "Stranger()"


# Nothing that takes a count, a share, an array, a name or a record takes these. Each is made anew: some can be changed.
ALIENS = {
    "None": lambda: None,
    "a stranger": Stranger,
    "a class": lambda: Stranger,
    "a function": lambda: len,
    "a set": lambda: {1, "a"},
    "bytes": lambda: b"3",
    "a complex number": lambda: 1 + 2j,
    "text": lambda: "no such thing",
    "empty text": lambda: "",
    "markup": lambda: "</script><b a='\"&",
    "an empty list": list,
    "a list of text": lambda: ["a"],
    "a ragged list": lambda: [[1], [1, 2]],
    "an empty mapping": dict,
    "NaN": lambda: NAN,
    "infinity": lambda: INFINITY,
    "minus infinity": lambda: -INFINITY,
    "a huge number": lambda: HUGE,
    "minus a huge number": lambda: -HUGE,
    "a half": lambda: 0.5,
    "minus one": lambda: -1,
    "zero": lambda: 0,
    "true": lambda: True,
    "an array of NaN": lambda: np.full((2, 2), NAN),
    "an empty array": lambda: np.zeros((0,)),
    "an array of objects": lambda: np.array([None, "a"], dtype=object),
    "a tensor of NaN": lambda: torch.full((2, 2), NAN),
    "an empty tensor": lambda: torch.zeros(0),
    "a tensor without dimensions": lambda: torch.tensor(1.0),
    "a tensor of booleans": lambda: torch.tensor([True, False]),
    "a tensor of complex numbers": lambda: torch.zeros(2, 2, dtype=torch.complex64),
}

NUMBERS = st.one_of(
    st.integers(-3, 12), st.sampled_from([HUGE, -HUGE, 2**63, True, False, NAN, INFINITY, -INFINITY, -0.0, 1e308,
                                          5e-324, Fraction(1, 3), Fraction(4), np.int64(3), np.float32(0.5), "3",
                                          None]),
    st.floats(allow_nan=True, allow_infinity=True))
TEXTS = st.one_of(st.text(max_size=8), st.sampled_from(["", "tp-tp", "-", "GPIPE", "q4_0 ", "\0", "../x"]), st.none())
NO_KIND = st.sampled_from(list(ALIENS)).map(lambda name: ALIENS[name]())


def spoiled_tensor(value):
    """A tensor that is wrong in shape, in type, or in one element."""
    def put(number):
        def spoil(tensor):
            out = tensor.clone() if tensor.is_floating_point() else tensor.double()
            out.reshape(-1)[:1] = number if abs(number) != 1e308 else torch.finfo(out.dtype).max
            return out
        return spoil
    ways = [
        lambda t: t[:-1], lambda t: t[..., :-1], lambda t: t[:0], lambda t: t.unsqueeze(0), lambda t: t.reshape(-1),
        lambda t: t.sum(), lambda t: t.to(torch.complex64), lambda t: t.to(torch.bool), lambda t: t.to(torch.int32),
        lambda t: t.to(torch.float16), lambda t: t.tolist(), lambda t: t.numpy(), lambda t: -t - 1, lambda t: t * 0,
        lambda t: t * 10**6, put(NAN), put(INFINITY), put(-INFINITY), put(1e308)]
    return st.sampled_from(ways).map(lambda way: way(value.detach()))


def spoiled_sequence(value):
    """A list that lacks something, or holds what it must not."""
    ways = [lambda s: s[:-1], lambda s: [*s, *s], lambda s: [*s, None], lambda s: s[::-1], lambda s: [s],
            lambda s: [Stranger() for _ in s], lambda s: [NAN for _ in s], lambda s: ["a" for _ in s], tuple]
    return st.sampled_from(ways).map(lambda way: way(list(value)))


def spoiled_mapping(value):
    """A mapping that lacks something, or holds what it must not."""
    ways = [lambda m: {}, lambda m: dict(list(m.items())[1:]), lambda m: {**m, "strange": 1},
            lambda m: dict.fromkeys(m), lambda m: {key: Stranger() for key in m}, lambda m: list(m)]
    return st.sampled_from(ways).map(lambda way: way(dict(value)))


def near(value):
    """Values that come close to a good one: by its kind."""
    if isinstance(value, torch.Tensor):
        return st.one_of(spoiled_tensor(value), NO_KIND)
    if isinstance(value, bool):
        return st.one_of(st.sampled_from([0, 1, "yes", "False", None, 2, NAN, []]), st.booleans())
    if isinstance(value, int | float | Fraction) or value is None:
        return st.one_of(NUMBERS, NO_KIND)
    if isinstance(value, str):
        return st.one_of(TEXTS, NO_KIND)
    if isinstance(value, dict):
        return st.one_of(spoiled_mapping(value), NO_KIND)
    if isinstance(value, list | tuple):
        return st.one_of(spoiled_sequence(value), NO_KIND)
    return NO_KIND


def nans(value, depth=6):
    """Whether a NaN stands anywhere in a result."""
    if depth == 0 or isinstance(value, str | bytes | int):
        return False
    if isinstance(value, float):
        return math.isnan(value)
    if isinstance(value, torch.Tensor):
        there = value.untyped_storage().size() >= value.numel() * value.element_size()  # ZeRO takes memory away
        return bool(value.is_floating_point() and there and value.isnan().any())
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.kind == "f" and bool(np.isnan(value).any())
    if isinstance(value, dict):
        return any(nans(one, depth - 1) for one in value.values())
    if isinstance(value, list | tuple | set | frozenset):
        return any(nans(one, depth - 1) for one in value)
    if type(value).__module__.startswith("scalebook") and hasattr(value, "__dict__"):
        return any(nans(one, depth - 1) for one in vars(value).values())
    return False


def endless(value):
    """Whether it is, or holds, a NaN, an infinity, or a number whose square is one: from these a NaN follows."""
    if isinstance(value, list | tuple):
        return any(map(endless, value))
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return nans(value)
    return not bool(value.square().isfinite().all())

"""Checks of the input that nearly every public function makes: each raises ValueError with the name and the value."""

import math
import numbers

INT64 = 2**63 - 1  # the largest size of anything in memory


def whole(name, value, least=1, most=None):
    """Raise ValueError unless the value is a whole number in the range.

    >>> whole("ranks", 4)
    >>> whole("ranks", 0)
    Traceback (most recent call last):
    ...
    ValueError: ranks = 0 is not allowed; ranks must be a whole number, at least 1
    """
    inside = isinstance(value, int) and not isinstance(value, bool) and least <= value
    if not inside or (most is not None and value > most):
        limits = f"at least {least}" if most is None else f"at least {least} and at most {most}"
        raise ValueError(f"{name} = {shown(value)} is not allowed; {name} must be a whole number, {limits}")


def count(name, value, least=1, most=None):
    """The value as an int, where it is a whole number in the range: an int, NumPy's, or a float such as 7.5e9.

    Raises ValueError with the name and the value otherwise.

    >>> count("parameters", 7.5e9)
    7500000000
    >>> count("parameters", 7.5)
    Traceback (most recent call last):
    ...
    ValueError: parameters = 7.5 is not allowed; parameters must be a whole number, at least 1
    """
    if is_number(value) and value == int(value):
        value = int(value)
    whole(name, value, least, most)
    return value


def size(name, value, least=1):
    """Raise ValueError unless the value can be the length of something in memory.

    >>> size("width", 2**40)
    Traceback (most recent call last):
    ...
    ValueError: width = 1099511627776 is not allowed; width must be a whole number, at least 1 and at most 2147483647
    """
    whole(name, value, least, 2**31 - 1)


def number(name, value, least=-math.inf, most=math.inf, above=-math.inf):
    """Raise ValueError unless the value is a finite real number in the range, the end `above` not included.

    >>> number("alpha", float("nan"), least=0)
    Traceback (most recent call last):
    ...
    ValueError: alpha = nan is not allowed; alpha must be a finite number, at least 0
    """
    if not is_number(value) or not least <= value <= most or not value > above:
        limits = [f"{word} {end}" for word, end in (("at least", least), ("above", above), ("at most", most))
                  if math.isfinite(end)]
        raise ValueError(f"{name} = {shown(value)} is not allowed; {name} must be "
                         + ", ".join(["a finite number", *limits]))


def is_number(value):
    """Whether it is a real number that a float can hold: no bool, no NaN, not infinite, not 10**400.

    >>> is_number(1), is_number(True), is_number(10**400)
    (True, False, False)
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


def scalar(name, value, **limits):
    """Raise ValueError unless the value is a `number` that a tensor can be multiplied by: an int of 64 bits or a float.

    >>> scalar("alpha", 2**70)
    Traceback (most recent call last):
    ...
    ValueError: alpha = 1180591620717411303424 is not allowed; alpha must be a float, or an int of 64 bits
    """
    number(name, value, **limits)
    if not isinstance(value, int | float) or (isinstance(value, int) and abs(value) > INT64):
        raise ValueError(f"{name} = {shown(value)} is not allowed; {name} must be a float, or an int of 64 bits")


def flag(name, value):
    """Raise ValueError unless the value is True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} = {shown(value)} is not allowed; {name} must be True or False")


def one_of(name, value, allowed):
    """Raise ValueError unless the value is one of those allowed.

    >>> one_of("order", "greedy", ("given", "greedy"))
    """
    try:
        known = any(type(value) is type(one) and value == one for one in allowed)
    except ValueError:  # an array compares element by element
        known = False
    if not known:
        raise ValueError(f"{name} = {shown(value)} is not allowed; {name} must be one of "
                         + ", ".join(map(repr, allowed)))


def instance(name, value, kind, word=None):
    """Raise ValueError unless the value is of a class; `word` is what the error calls it.

    >>> instance("shape", 3, dict, "a mapping")
    Traceback (most recent call last):
    ...
    ValueError: shape = 3 is not allowed; shape must be a mapping
    """
    if not isinstance(value, kind):
        raise ValueError(f"{name} = {shown(value)} is not allowed; {name} must be {word or kind.__name__}")


def tensor(name, value, *, dimensions=None, integers=False, finite=False):
    """Raise ValueError unless the value is a tensor of floats (or `integers`), with so many `dimensions`, if given.

    `finite` refuses a NaN and an infinity among its elements.
    """
    import torch

    kind = "integers" if integers else "floats"
    good = isinstance(value, torch.Tensor) and value.dtype != torch.bool and not value.is_complex()
    if not good or value.is_floating_point() == integers or dimensions not in (None, value.dim()):
        shape = f" of {dimensions} dimensions" if dimensions else ""
        raise ValueError(f"{name} = {shown(value)} is not allowed; {name} must be a tensor of {kind}{shape}")
    # A sum costs a fraction of a test of each element, and one that is not finite makes it so.
    if finite and not value.sum().isfinite() and not value.isfinite().all():
        raise ValueError(f"{name} has {int((~value.isfinite()).sum())} elements that are infinite or not a number; "
                         "every element must be finite")


def real_tensor(name, value, dimensions=None):
    """Raise ValueError unless the value is a tensor of finite real numbers, floats or integers."""
    floats = getattr(value, "is_floating_point", None)
    tensor(name, value, dimensions=dimensions, integers=callable(floats) and not floats(), finite=True)


def accepted(name, value, take, word):
    """Raise ValueError unless PyTorch's function `take` accepts the value; `word` is what it must be.

    >>> accepted("ranks", "x", int, "a number")
    Traceback (most recent call last):
    ...
    ValueError: ranks = 'x' is not allowed; ranks must be a number
    """
    try:
        take(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise ValueError(f"{name} = {shown(value)} is not allowed; {name} must be {word}") from None


def module(name, value):
    """Raise ValueError unless the value is a module of PyTorch."""
    from torch import nn

    instance(name, value, nn.Module, "a torch.nn.Module")


def group(name, value):
    """Raise ValueError unless the value is a group of ranks, or None: all."""
    import torch.distributed as dist

    if value is not None:
        instance(name, value, dist.ProcessGroup, "a ProcessGroup, or None")


def shown(value):
    """A value in an error, in a few words.

    >>> shown(7), shown([0] * 100)
    ('7', '[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, ...')
    """
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{type(value).__name__} of {value.dtype} and shape {tuple(value.shape)}"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 10**40:
        try:
            text = str(value)
        except ValueError:  # Python writes no more than 4300 digits
            return f"a whole number of {value.bit_length()} bits"
        return f"{text[:10]}... ({len(text.lstrip('-'))} digits)"
    text = repr(value)
    return text if len(text) <= 80 else text[:36] + " ..."

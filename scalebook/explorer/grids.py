"""Data for charts whose values Python must compute: every combination of the controls' values, computed once.

A closed form goes to the browser as an expression. A schedule or a trained router cannot, so it is computed at
execution on a grid of values and travels as rows.
"""

import inspect
import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from scalebook.checks import is_number, shown

DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def grid(fn: Callable[..., Any], **values: Iterable[Any]) -> list[dict[str, Any]]:
    """Call `fn` with every combination of `values` and return the rows, each with its combination.

    `fn` takes the names as keywords and returns a mapping (one row), a list of mappings (several rows) or None
    (the combination does not exist). Raises ValueError for a name without values, or when a row would overwrite a
    value of its own combination.

    >>> grid(lambda a, b: {"product": a * b}, a=[1, 2], b=[10])
    [{'a': 1, 'b': 10, 'product': 10}, {'a': 2, 'b': 10, 'product': 20}]
    """
    if not callable(fn):
        raise ValueError(f"grid: fn = {shown(fn)} is not allowed; it must be a function")
    try:
        inspect.signature(fn).bind(**values)
    except TypeError as error:
        raise ValueError(f"grid: fn = {shown(fn)} does not take {', '.join(values)}: {error}") from None
    for name, choices in values.items():
        if isinstance(choices, Mapping | set) or not hasattr(choices, "__len__") or getattr(choices, "shape", 1) == ():
            raise ValueError(f"grid: {name} = {shown(choices)} is not allowed; it must be a list of values")
        if not len(choices):
            raise ValueError(f"grid: {name} = {choices!r} is empty; it needs at least one value")
    rows = []
    for combination in itertools.product(*values.values()):
        chosen = dict(zip(values, combination, strict=True))
        answer = fn(**chosen)
        found = [] if answer is None else [answer] if hasattr(answer, "keys") else answer
        if not isinstance(found, list | tuple) or not all(hasattr(row, "keys") for row in found):
            raise ValueError(f"grid: fn returned {shown(answer)} for {chosen}; it must return a mapping, a list of "
                             "mappings or None")
        for row in found:
            clash = sorted(set(row) & set(chosen))
            if clash:
                raise ValueError(f"grid: {fn!r} returned {clash[0]!r}, which is the name of a control")
            rows.append(chosen | dict(row))
    return rows


def pack(numbers, width=2):
    """Write whole numbers as one string, `width` base-36 digits each: two bytes a number instead of four or five.

    Raises ValueError for a number that does not fit.

    >>> pack([0, 35, 36, 1295])
    '000z10zz'
    """
    _check_width(width)
    if isinstance(numbers, str | bytes) or not hasattr(numbers, "__iter__") or getattr(numbers, "shape", 1) == ():
        raise ValueError(f"pack: numbers = {shown(numbers)} is not allowed; it must be a list of whole numbers")
    text = []
    for number in numbers:
        if not is_number(_plain(number)) or number != int(number) or not 0 <= number < len(DIGITS) ** width:
            raise ValueError(f"pack: {shown(number)} is not a whole number from 0 to {len(DIGITS) ** width - 1}")
        rest, digits = int(number), ""
        for _ in range(width):
            rest, digit = divmod(rest, len(DIGITS))
            digits = DIGITS[digit] + digits
        text.append(digits)
    return "".join(text)


def _plain(number):
    """A number of NumPy or PyTorch as Python's own."""
    return number.item() if getattr(number, "shape", None) == () and hasattr(number, "item") else number


def _check_width(width):
    if isinstance(width, bool) or not isinstance(width, int) or not 1 <= width <= 10:
        raise ValueError(f"width = {shown(width)} is not allowed; it must be 1 to 10 digits")


def unpack_expression(text, position, width=2):
    """The Vega expression that reads number `position` of a packed string; both are Vega expressions.

    >>> unpack_expression("datum.s", "datum.i")
    'parseInt(substring(datum.s, 2 * datum.i, 2 * datum.i + 2), 36)'
    """
    _check_width(width)
    for name, value in (("text", text), ("position", position)):
        if not isinstance(value, str) or not value:
            raise ValueError(f"{name} = {shown(value)} is not allowed; it must be a Vega expression")
    at = f"{width} * {position}" if re.fullmatch(r"[\w.]+", position) else f"{width} * ({position})"
    return f"parseInt(substring({text}, {at}, {at} + {width}), {len(DIGITS)})"

"""Data for charts whose values Python must compute: every combination of the controls' values, computed once.

A closed form goes to the browser as an expression. A schedule or a trained router cannot, so it is computed at
execution on a grid of values and travels as rows.
"""

import itertools
import re

DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def grid(fn, **values):
    """Call `fn` with every combination of `values` and return the rows, each with its combination.

    `fn` takes the names as keywords and returns a mapping (one row), a list of mappings (several rows) or None
    (the combination does not exist). Raises ValueError for a name without values, or when a row would overwrite a
    value of its own combination.

    >>> grid(lambda a, b: {"product": a * b}, a=[1, 2], b=[10])
    [{'a': 1, 'b': 10, 'product': 10}, {'a': 2, 'b': 10, 'product': 20}]
    """
    for name, choices in values.items():
        if not len(choices):
            raise ValueError(f"grid: {name} = {choices!r} is empty; it needs at least one value")
    rows = []
    for combination in itertools.product(*values.values()):
        chosen = dict(zip(values, combination, strict=True))
        answer = fn(**chosen)
        found = [] if answer is None else [answer] if hasattr(answer, "keys") else answer
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
    text = []
    for number in numbers:
        if number != int(number) or not 0 <= number < len(DIGITS) ** width:
            raise ValueError(f"pack: {number!r} is not a whole number from 0 to {len(DIGITS) ** width - 1}")
        rest, digits = int(number), ""
        for _ in range(width):
            rest, digit = divmod(rest, len(DIGITS))
            digits = DIGITS[digit] + digits
        text.append(digits)
    return "".join(text)


def unpack_expression(text, position, width=2):
    """The Vega expression that reads number `position` of a packed string; both are Vega expressions.

    >>> unpack_expression("datum.s", "datum.i")
    'parseInt(substring(datum.s, 2 * datum.i, 2 * datum.i + 2), 36)'
    """
    at = f"{width} * {position}" if re.fullmatch(r"[\w.]+", position) else f"{width} * ({position})"
    return f"parseInt(substring({text}, {at}, {at} + {width}), {len(DIGITS)})"

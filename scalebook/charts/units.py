"""How a chart writes bytes and times: Vega expressions that choose a unit and round to three digits."""


def _scaled(number, *units):
    """Write `number`, a Vega expression, in the first of `units` of which it has less than one of the next.

    A unit is a pair (how Vega writes its size, its name).
    """
    number = f"({number})"
    texts = [f"format({number} / {size}, '.3~r') + ' {name}'" for size, name in units]
    limits = [f"{number} < {size} ? " for size, _ in units[1:]]
    return "(" + " : ".join(limit + text for limit, text in zip([*limits, ""], texts, strict=True)) + ")"


def decimal_bytes(number):
    """Write so many bytes in MB, GB or TB; `number` is a Vega expression.

    >>> decimal_bytes("x").partition(" : ")[0]
    "((x) < 1e9 ? format((x) / 1e6, '.3~r') + ' MB'"
    """
    return _scaled(number, ("1e6", "MB"), ("1e9", "GB"), ("1e12", "TB"))


def binary_bytes(number):
    """Write so many bytes in KiB, MiB or GiB; `number` is a Vega expression."""
    return _scaled(number, (1024, "KiB"), (1024**2, "MiB"), (1024**3, "GiB"))


def seconds(number):
    """Write so many seconds in µs, ms or s; `number` is a Vega expression."""
    return _scaled(number, ("1e-6", "µs"), ("1e-3", "ms"), ("1", "s"))

"""A check of the input that nearly every public function makes."""


def whole(name, value, least=1):
    """Raise ValueError unless the value is a whole number that is large enough.

    >>> whole("ranks", 4)
    >>> whole("ranks", 0)
    Traceback (most recent call last):
    ...
    ValueError: ranks = 0 is not allowed; ranks must be a whole number, at least 1
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} = {value!r} is not allowed; {name} must be a whole number, at least {least}")

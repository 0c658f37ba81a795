"""Answers that readers type in, and what the page says to them."""

import math

from scalebook.checks import shown


def check(answer, correct, wrong=()):
    """Say whether `answer` is right, and for the usual wrong answers why they are not.

    `answer` is what the reader typed, None while the exercise is untouched. `correct` is a number, compared with a
    relative tolerance of 1e-3 (enough for three rounded digits). `wrong` holds pairs (number, reason). Raises
    ValueError when `answer` is not a number.

    >>> check(None, 7)
    No answer yet: put yours in place of None and run the cell again.
    >>> check(7, 7)
    Right.
    >>> check(8, 7, [(8, "that counts both ends of the fence")])
    Not quite: that counts both ends of the fence.
    >>> check(3, 7)
    Not yet. Go back to the derivation and try again.
    """
    if answer is None:
        print("No answer yet: put yours in place of None and run the cell again.")
        return
    value = _number("answer", answer)
    correct = _number("correct", correct)
    if _close(value, correct):
        print("Right.")
        return
    for candidate, reason in _pairs(wrong):
        if _close(value, _number("wrong", candidate)):
            print(f"Not quite: {reason}.")
            return
    print("Not yet. Go back to the derivation and try again.")


def _pairs(wrong):
    """The wrong answers; ValueError unless they are pairs."""
    if not isinstance(wrong, list | tuple) or not all(isinstance(one, tuple | list) and len(one) == 2 for one in wrong):
        raise ValueError(f"check: wrong = {shown(wrong)} is not allowed; it must be a list of pairs (number, reason)")
    return wrong


def _number(name, value):
    """The value as a float, also of a text that spells one; ValueError for what is no finite number."""
    try:
        found = float("not a number" if isinstance(value, bool | bytes) else value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        found = math.nan
    if not math.isfinite(found):
        raise ValueError(f"check: {name} = {shown(value)} is not allowed; it must be a number") from None
    return found


def _close(value, target):
    return math.isclose(value, target, rel_tol=1e-3, abs_tol=1e-12)

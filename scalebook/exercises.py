"""Answers that readers type in, and what the page says to them."""

import math


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
    try:
        value = float("not a number" if isinstance(answer, bool) else answer)
    except (TypeError, ValueError):
        raise ValueError(f"check: answer = {answer!r} is not allowed; it must be a number") from None
    if _close(value, correct):
        print("Right.")
        return
    for candidate, reason in wrong:
        if _close(value, candidate):
            print(f"Not quite: {reason}.")
            return
    print("Not yet. Go back to the derivation and try again.")


def _close(value, target):
    return math.isclose(value, float(target), rel_tol=1e-3, abs_tol=1e-12)

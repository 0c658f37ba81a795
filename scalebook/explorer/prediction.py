"""Predictions: a question with choices that the reader commits to before moving an explorer.

Each choice unfolds into its verdict and reason: HTML's own `details`, which works without a kernel, a script or a
network, by keyboard and read aloud, in a page and in every notebook. Nothing is remembered and nothing is sent.

The right choice is never marked by hand. It is the one that reads like a value which the book computes, so a wrong key
cannot be published.
"""


import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from string import Formatter

from scalebook.checks import is_number
from scalebook.explorer import assets

LEAST_CHOICES = 3


@dataclass(frozen=True)
class Choice:
    """One choice: how it reads, whether it is right, and the reason that unfolds from it."""

    words: str
    right: bool
    reason: str

    @property
    def verdict(self):
        """What the reader is told first."""
        return "Right." if self.right else "Not quite."


@dataclass(frozen=True)
class Prediction:
    """A question and its choices, as `predict` returns them."""

    name: str
    question: str
    choices: tuple

    @property
    def html(self):
        """The question and its choices, folded; the same to the byte for the same arguments."""
        identity = f"predict-{self.name}"
        choices = "\n".join(
            f'<details class="prediction-choice" data-right="{str(choice.right).lower()}">'
            f"<summary>{escape(choice.words)}</summary>"
            f"<p><strong>{choice.verdict}</strong> {escape(choice.reason)}</p></details>" for choice in self.choices)
        return (f'<div class="prediction" id="{identity}" role="group" aria-labelledby="{identity}-question">\n'
                f'<p class="prediction-question" id="{identity}-question">{escape(self.question)}</p>\n'
                f"{choices}\n</div>")

    @property
    def text(self):
        """The question and its choices without the answer, for a terminal."""
        return "\n".join([self.question, *(f"( ) {choice.words}" for choice in self.choices)])

    def _repr_mimebundle_(self, include=None, exclude=None):
        html = self.html
        if os.environ.get("SCALEBOOK_STATIC") != "1":  # the book's pages have the style already
            html = f"<style>{assets.stylesheet()}</style>\n{html}"
        return {"text/html": html, "text/plain": self.text}


def predict(question, *, answers, right, name, show=None):
    """Ask a question before an explorer; each answer unfolds into right or wrong, and why.

    `answers` maps each choice to its reason: numbers with `show`, the format in which they stand on the page
    ("{:.1%}", "{:,.0f} tokens"), or names without it. `right` is the value that the chart's own function or formula
    computes. The right choice is the one that reads like it: equal in every digit shown, or the same name. Numbers
    stand in ascending order, names as given. `name` makes the id: that of the explorer which follows.

    Raises ValueError when no choice reads like `right`, when two choices read alike or share a reason, when there are
    fewer than three, when numbers and names are mixed, and for a text that is empty or holds a `$` or a backslash
    (either would start mathematics).

    >>> asked = predict("8 stages, 32 micro-batches: how much longer than ideal is the step?", name="bubble",
    ...     answers={7 / 39: "That is the share of the total time.", 8 / 32: "One stage too many.",
    ...              7 / 32: "(P - 1) / M."}, right=(8 - 1) / 32, show="{:.1%}")
    >>> print(asked.text)
    8 stages, 32 micro-batches: how much longer than ideal is the step?
    ( ) 17.9%
    ( ) 21.9%
    ( ) 25.0%
    >>> [choice.verdict for choice in asked.choices]
    ['Not quite.', 'Right.', 'Not quite.']
    >>> predict("Which is it?", name="it", answers={"a": "Far.", "b": "Near.", "c": "No."}, right="d")
    Traceback (most recent call last):
    ...
    ValueError: predict: right = 'd' reads 'd', and no choice does: a, b, c
    """
    _check_text("question", question)
    if not isinstance(name, str) or not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
        raise ValueError(f"predict: name = {name!r} is not allowed; use small letters, digits and hyphens")
    if not isinstance(answers, Mapping) or len(answers) < LEAST_CHOICES:
        raise ValueError(f"predict: answers = {answers!r} is not allowed; it must map at least {LEAST_CHOICES} choices "
                         "(no two of them equal) to their reasons")
    read = _reader(answers, show)
    for choice, reason in answers.items():
        _check_text(f"answers: the reason of {choice!r}", reason)
    if len(set(answers.values())) < len(answers):
        raise ValueError("predict: answers: two choices share a reason; each needs its own")
    ordered = sorted(answers, key=float) if show else list(answers)
    words = [read(choice) for choice in ordered]
    if len(set(words)) < len(words):
        raise ValueError(f"predict: answers: two choices read alike: {', '.join(words)}")
    computed = read(right)
    if computed not in words:
        raise ValueError(f"predict: right = {right!r} reads {computed!r}, and no choice does: {', '.join(words)}")
    choices = tuple(Choice(text, text == computed, answers[choice])
                    for text, choice in zip(words, ordered, strict=True))
    return Prediction(name, question, choices)


def _check_text(what, text):
    if not isinstance(text, str) or not text.strip() or "$" in text or "\\" in text:
        raise ValueError(f"predict: {what} = {text!r} is not allowed; it must be plain text without '$' and backslash")


def _reader(answers, show):
    """Return the function that gives a value's words; it refuses a value that is not of the choices' kind."""
    if show is None:
        def read(value):
            _check_text("a choice without show (or right)", value)
            return value
    else:
        _check_format(show)

        def read(value):
            if not is_number(value):
                raise ValueError(f"predict: the choice (or right) {value!r} is not allowed with show = {show!r}; it "
                                 "must be a finite number")
            return show.format(float(value))

    for choice in answers:
        read(choice)
    return read


def _check_format(show):
    """Refuse a format that does not show exactly one number."""
    _check_text("show", show)
    try:
        fields = [field for _, field, _, _ in Formatter().parse(show) if field is not None]
        show.format(1.5)
    except (ValueError, IndexError, KeyError) as error:
        raise ValueError(f"predict: show = {show!r} is not allowed; it must format one number ({error})") from error
    if len(fields) != 1:
        raise ValueError(f"predict: show = {show!r} is not allowed; it must have one {{}} and has {len(fields)}")

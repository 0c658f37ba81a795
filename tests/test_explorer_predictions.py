"""Predictions without a browser: the right choice is computed, every wrong one has its reason, and bad input is told.

A browser opens every choice of every page in tests/browser/test_predictions.py.
"""

import os
import re
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from test_explorer import Tags

from scalebook.explorer import predict

REASONS = {"8": "One stage too many.", "7": "(P - 1) / M.", "share": "That is a share of the total time."}


def ask(**changes):
    return predict(**({"question": "How much longer is the step?", "name": "bubble", "right": Fraction(7, 32),
                       "answers": {8 / 32: REASONS["8"], 7 / 32: REASONS["7"], 7 / 39: REASONS["share"]},
                       "show": "{:.1%} longer"} | changes))


# ---- which choice is right -----------------------------------------------------------------------------------------

def test_the_choice_that_reads_like_the_computed_value_is_right_and_has_its_own_reason():
    asked = ask()
    assert [(choice.words, choice.verdict, choice.reason) for choice in asked.choices] == [
        ("17.9% longer", "Not quite.", REASONS["share"]), ("21.9% longer", "Right.", REASONS["7"]),
        ("25.0% longer", "Not quite.", REASONS["8"])]


@pytest.mark.parametrize("right", [0.21899, 0.2194, 7 / 32, Fraction(7, 32), np.float64(0.21875), np.float32(0.21875)])
def test_a_computed_value_is_right_to_the_last_digit_shown(right):
    assert [choice.words for choice in ask(right=right).choices if choice.right] == ["21.9% longer"]


@pytest.mark.parametrize("right", [0.2184, 0.2196, 0.22, 8 / 33, -7 / 32])
def test_a_wrong_key_is_refused(right):
    with pytest.raises(ValueError, match=r"predict: right = .* reads '.*% longer', and no choice does: 17.9%"):
        ask(right=right)


@given(st.lists(st.integers(-10**6, 10**6), min_size=3, max_size=6, unique=True), st.data())
@examples(deadline=None, max_examples=40)
def test_exactly_one_choice_is_right_and_it_is_the_computed_one(values, data):
    right = data.draw(st.sampled_from(values))
    asked = predict("Which?", answers={value: f"Because of {value}." for value in values}, right=right, name="n",
                    show="{:,.0f}")
    assert [choice.reason for choice in asked.choices if choice.right] == [f"Because of {right}."]
    assert [choice.words for choice in asked.choices] == [f"{value:,}" for value in sorted(values)]


def test_names_stand_as_given_and_one_is_right():
    gflop = {"DeepSeek-V3": 73.2, "Mixtral 8x22B": 77.9, "DBRX": 71.7}
    asked = predict("Which takes most?", name="most", right=max(gflop, key=gflop.get), answers={
        name: f"It takes {value} GFLOP." for name, value in gflop.items()})
    assert [(choice.words, choice.right) for choice in asked.choices] == [
        ("DeepSeek-V3", False), ("Mixtral 8x22B", True), ("DBRX", False)]
    with pytest.raises(ValueError, match="right = 'Mixtral' reads 'Mixtral', and no choice does"):
        predict("Which takes most?", name="most", right="Mixtral", answers={n: f"Of {n}." for n in gflop})


# ---- what is written -----------------------------------------------------------------------------------------------

def test_the_html_is_a_labelled_group_of_folded_choices_and_holds_no_script():
    page = Tags(ask().html)
    assert [tag for tag, _, _ in page.found] == ["div", "p", *["details", "summary", "p", "strong"] * 3]
    (group, _), = page.all("div")
    (question, words), _, _, _ = page.all("p")
    assert group == {"class": "prediction", "id": "predict-bubble", "role": "group",
                     "aria-labelledby": "predict-bubble-question"}
    assert question["id"] == "predict-bubble-question"
    assert words == "How much longer is the step?"
    assert [attributes["data-right"] for attributes, _ in page.all("details")] == ["false", "true", "false"]
    assert not [attributes for attributes, _ in page.all("details") if "open" in attributes]
    assert not re.search(r"<script|<input|\bon[a-z]+=|https?:|localStorage|cookie", ask().html)


def test_texts_are_escaped():
    page = Tags(ask(question='Is "a" < b & c?', name="a-1", show=None, right="<b>", answers={
        "<b>": "Since <i>x</i>.", "a & b": "No.", "c": "Nor this."}).html)
    assert page.all("p")[0][1] == 'Is "a" < b & c?'
    assert [text for _, text in page.all("summary")] == ["<b>", "a & b", "c"]
    assert page.all("p")[1][1] == " Since <i>x</i>."
    assert not page.all("b") + page.all("i")


def test_the_html_is_the_same_to_the_byte_in_every_process():
    code = "import sys; from test_explorer_predictions import ask; sys.stdout.write(ask().html)"
    for seed in ("0", "31"):
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True, env=environment)
        assert done.stdout == ask().html


def test_the_plain_text_does_not_give_the_answer_away():
    assert ask().text.splitlines() == ["How much longer is the step?", "( ) 17.9% longer", "( ) 21.9% longer",
                                       "( ) 25.0% longer"]


def test_a_page_stores_the_html_alone_and_a_kernel_brings_the_style_along(monkeypatch):
    monkeypatch.setenv("SCALEBOOK_STATIC", "1")
    assert ask()._repr_mimebundle_() == {"text/html": ask().html, "text/plain": ask().text}
    monkeypatch.delenv("SCALEBOOK_STATIC")
    live = ask()._repr_mimebundle_()
    style, _, rest = live["text/html"].partition("</style>\n")
    assert rest == ask().html
    assert style.startswith("<style>")
    assert ".prediction-choice summary" in style
    assert live["text/plain"] == ask().text


# ---- errors --------------------------------------------------------------------------------------------------------

A, B, C = "Too far.", "Too near.", "No."


@pytest.mark.parametrize(("changes", "says"), [
    ({"question": " "}, r"question = ' ' is not allowed; it must be plain text"),
    ({"question": None}, r"question = None is not allowed"),
    ({"question": "Is $x$ so?"}, r"without '\$' and backslash"),
    ({"question": r"Is \(x\) so?"}, r"without '\$' and backslash"),
    ({"name": "Bubble"}, r"name = 'Bubble' is not allowed; use small letters"),
    ({"name": None}, r"name = None is not allowed"),
    ({"answers": [1, 2, 3]}, r"answers = \[1, 2, 3\] is not allowed; it must map at least 3 choices"),
    ({"answers": {7 / 32: A, 0.5: B}}, r"it must map at least 3 choices \(no two of them equal\)"),
    ({"answers": {7 / 32: A, 0.5: B, 1: ""}}, r"the reason of 1 = '' is not allowed"),
    ({"answers": {7 / 32: A, 0.5: B, 1: None}}, r"the reason of 1 = None is not allowed"),
    ({"answers": {7 / 32: A, 0.5: B, 1: "$"}}, r"the reason of 1 = '\$' is not allowed"),
    ({"answers": {7 / 32: A, 0.5: B, 1: B}}, r"two choices share a reason"),
    ({"answers": {7 / 32: A, 0.5: B, 0.50001: C}}, r"two choices read alike: 21.9% longer, 50.0% longer, 50.0% longer"),
    ({"answers": {7 / 32: A, 0.5: B, "half": C}}, r"'half' is not allowed with show = '{:.1%} longer'; it must be"),
    ({"answers": {7 / 32: A, 0.5: B, True: C}}, r"True is not allowed with show"),
    ({"answers": {7 / 32: A, 0.5: B, float("nan"): C}}, r"nan is not allowed with show"),
    ({"right": float("inf")}, r"inf is not allowed with show"),
    ({"right": "7/32"}, r"'7/32' is not allowed with show"),
    ({"show": None}, r"a choice without show \(or right\) = 0.25 is not allowed"),
    ({"show": "about a fifth"}, r"show = 'about a fifth' is not allowed; it must have one {} and has 0"),
    ({"show": "{:.1%} of {:.1%}"}, r"show = .* is not allowed; it must format one number"),
    ({"show": "{0:.1%} of {0:.1%}"}, r"it must have one {} and has 2"),
    ({"show": "{:d}"}, r"show = '{:d}' is not allowed; it must format one number"),
    ({"show": "{x}"}, r"show = '{x}' is not allowed; it must format one number"),
    ({"show": "{:.1%}$"}, r"show = '{:.1%}\$' is not allowed"),
    ({"show": None, "right": "a", "answers": {"a": A, "b\\": B, "c": C}}, r"is not allowed; it must be plain text"),
    ({"show": None, "right": 1, "answers": {"a": A, "b": B, "c": C}}, r"\(or right\) = 1 is not allowed"),
])
def test_bad_input_is_refused_by_name(changes, says):
    with pytest.raises(ValueError, match=f"^predict: .*{says}"):
        ask(**changes)

"""Chapter 4's formulas: how they follow from each other, their edges, what the papers print."""

import math
import re
from fractions import Fraction

import numpy as np
import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from scalebook import published
from scalebook.formulas import pipeline as formulas
from scalebook.formulas.core import Formula

ALL = {name: value for name, value in vars(formulas).items() if isinstance(value, Formula)}
stages, microbatches = st.integers(1, 64), st.integers(1, 256)
forall = settings(deadline=None, max_examples=80)


def same(a, b):
    return sympy.simplify(a - b) == 0


def sample(formula):
    """Values that the formula accepts: equal thirds, even P, M a multiple of P and at least 2P."""
    values = {"P": 4, "M": 8, "v": 2, "r": 1, "t_f": 1, "t_b": 2, "t_w": 1, "t_s": Fraction(1, 2), "T_f": 2,
              "T_b": 3, "L": 12, "x": Fraction(1, 3), "y": Fraction(1, 3), "p": 7, "N": 16, "a": 34, "b": 2,
              "s": 128, "h": 64, "T_F": 1, "T_B": 1, "T_W": 1, "F": 1, "B": 2, "W": 1, "FB": 3}
    return {variable.name: values[variable.name] for variable in formula.symbols}


# All of them


@pytest.mark.parametrize("name", ALL)
def test_each_formula_bears_its_own_name_a_left_side_a_source_and_units(name):
    formula = ALL[name]
    assert formula.name == name
    assert formula.result
    assert formula.unit
    assert "arXiv:" in formula.source or "chapter 4" in formula.source
    assert all(variable.meaning and variable.unit for variable in formula.symbols)


@pytest.mark.parametrize("name", ALL)
def test_exact_floating_and_array_values_agree(name):
    formula = ALL[name]
    exact = formula(**sample(formula))
    assert isinstance(exact, int | Fraction)
    assert formula(**{key: float(value) for key, value in sample(formula).items()}) == pytest.approx(float(exact))
    array = formula(**{key: np.array([float(value)] * 2) for key, value in sample(formula).items()})
    assert array == pytest.approx([float(exact)] * 2)


@pytest.mark.parametrize("name", ALL)
def test_the_vega_expression_says_what_the_formula_says(name):
    """Vega's max, min, ceil and operators mean in Python what they mean in the browser, so Python can read it."""
    formula = ALL[name]
    values = {key: float(value) for key, value in sample(formula).items()}
    read = eval(formula.vega(), {"__builtins__": {}, "max": max, "min": min, "ceil": math.ceil}, values)
    assert read == pytest.approx(float(formula(**sample(formula))))


@pytest.mark.parametrize("name", [name for name in ALL if ALL[name].requires])
def test_each_condition_of_a_formula_is_refused_in_its_words(name):
    formula = ALL[name]
    accepted = sample(formula)
    formula(**accepted)
    broken = {
        "P": 7, "M": 1, "v": 9, "r": 9, "t_f": Fraction(1, 9), "t_b": Fraction(1, 2), "t_w": 5, "t_s": 9, "T_f": 0,
        "T_b": 0, "L": 13, "x": 0, "y": 2, "p": 0, "N": 9, "T_W": 3, "W": 3,
    }
    said = set()
    for key in accepted:
        for value in (broken.get(key), 0, 1):
            if value is None:
                continue
            try:
                formula(**{**accepted, key: value})
            except ValueError as error:
                said |= {words for _, words in formula.requires if words in str(error)}
    assert said == {words for _, words in formula.requires}


# The two measures


def test_idle_time_is_total_less_ideal():
    assert same(formulas.makespan.expression - formulas.ideal_time.expression, formulas.idle_time.expression)


def test_overhead_is_idle_over_ideal_and_share_is_idle_over_total():
    idle = formulas.idle_time.expression
    assert same(idle / formulas.ideal_time.expression, formulas.bubble_overhead.expression)
    assert same(idle / formulas.makespan.expression, formulas.bubble_share.expression)


def test_overhead_becomes_share_and_back():
    x, y = formulas.x, formulas.y
    for overhead, share in ((formulas.bubble_overhead, formulas.bubble_share),
                            (formulas.bubble_overhead_interleaved, formulas.bubble_share_interleaved)):
        assert same(formulas.share_from_overhead.expression.subs(x, overhead.expression), share.expression)
        assert same(formulas.overhead_from_share.expression.subs(y, share.expression), overhead.expression)


def test_one_microbatch_idles_all_stages_but_one():
    assert same(formulas.bubble_share.expression.subs(formulas.M, 1), (formulas.P - 1) / formulas.P)


def test_a_share_of_one_is_no_overhead():
    with pytest.raises(ValueError, match="y must be less than 1"):
        formulas.overhead_from_share(y=1)


@pytest.mark.parametrize(("measure", "needed"), [
    (formulas.bubble_overhead, formulas.microbatches_for_overhead),
    (formulas.bubble_share, formulas.microbatches_for_share),
])
@forall
@given(P=stages, allowed=st.fractions(Fraction(1, 200), 2, max_denominator=200))
def test_the_microbatches_for_a_bubble_are_enough_and_one_less_is_not(measure, needed, P, allowed):
    M = needed(P=P, **{needed.symbols[1].name: allowed})
    assert M >= 1
    assert measure(P=P, M=M) <= allowed
    if M > 1:
        assert measure(P=P, M=M - 1) > allowed


@pytest.mark.parametrize("measure", ["overhead", "share"])
def test_in_percent_the_browser_rounds_no_microbatch_up(measure):
    exact = ALL[f"microbatches_for_{measure}"]
    percent = ALL[f"microbatches_for_{measure}_percent"]
    expression = compile(percent.vega(), "vega", "eval")
    for P in range(1, 65):
        for p in range(1, 101):
            wanted = exact(P=P, **{exact.symbols[1].name: Fraction(p, 100)}) if P % 16 == 1 else None
            read = eval(expression, {"__builtins__": {}, "max": max, "ceil": math.ceil}, {"P": float(P), "p": float(p)})
            assert read == max(1, -(-100 * (P - 1) // p) - (P - 1 if measure == "share" else 0))
            assert wanted in (None, read)


def test_no_number_of_microbatches_makes_the_bubble_zero():
    for needed in (formulas.microbatches_for_overhead, formulas.microbatches_for_share):
        with pytest.raises(ValueError, match="must be more than 0: no M makes the bubble zero"):
            needed(P=8, **{needed.symbols[1].name: 0})


# Interleaving and memory


def test_one_chunk_has_the_bubble_of_1f1b_but_warms_up_twice_as_long():
    one = {formulas.v: 1}
    assert same(formulas.makespan_interleaved.expression.subs(one), formulas.makespan.expression)
    assert same(formulas.bubble_overhead_interleaved.expression.subs(one), formulas.bubble_overhead.expression)
    assert same(formulas.bubble_share_interleaved.expression.subs(one), formulas.bubble_share.expression)
    assert formulas.warmup_interleaved(P=4, M=16, v=1, r=0) == 2 * formulas.warmup_1f1b(P=4, M=16, r=0)


def test_interleaved_overhead_is_its_makespan_over_the_ideal_less_one():
    ratio = formulas.makespan_interleaved.expression / formulas.ideal_time.expression - 1
    assert same(ratio, formulas.bubble_overhead_interleaved.expression)


@forall
@given(st.integers(1, 16), st.integers(2, 8), st.integers(1, 8), st.data())
def test_interleaved_peak_is_the_warm_up_and_one_more(P, groups, v, data):
    r = data.draw(st.integers(0, P - 1))
    values = {"P": P, "M": P * groups, "v": v, "r": r}
    warm_up = formulas.warmup_interleaved(**values)
    assert formulas.peak_in_flight_interleaved(**values) == Fraction(min(warm_up + 1, P * groups * v), v)
    if r == 0:
        ratio = Fraction(formulas.peak_in_flight_interleaved(**values)) / P
        assert ratio == formulas.memory_ratio_interleaved(P=P, v=v)


def test_the_first_stage_holds_the_activations_of_all_layers_however_many_stages():
    for P in (1, 2, 4, 8, 16):
        assert formulas.layers_held_1f1b(P=P, M=64, r=0, L=96) == 96
    assert formulas.layers_held_gpipe(P=8, M=64, L=96) == 768
    assert formulas.layers_held_1f1b(P=8, M=64, r=7, L=96) == 12


def test_layers_held_are_microbatches_in_flight_times_layers_of_a_stage():
    per_stage = formulas.L / formulas.P
    assert same(formulas.layers_held_1f1b.expression, formulas.peak_in_flight_1f1b.expression * per_stage)
    assert same(formulas.layers_held_gpipe.expression, formulas.peak_in_flight_gpipe.expression * per_stage)


def test_rematerialisation_keeps_every_stage_input_and_one_microbatch_of_activations():
    inputs = formulas.N
    one_microbatch = formulas.memory_gpipe.expression / formulas.M
    assert same(formulas.memory_gpipe_rematerialised.expression, inputs + one_microbatch)


def test_a_device_sends_v_times_as_much_when_interleaved():
    one, four = (formulas.sent_per_device(v=v, b=1, s=2048, h=1024) for v in (1, 4))
    assert four == 4 * one == 8 * formulas.boundary_elements(b=1, s=2048, h=1024)


# Zero bubble, in three papers' letters


def test_zb_h1_is_the_same_bubble_in_the_letters_of_its_paper_and_of_deepseek():
    t_f, t_b, t_w = formulas.t_f, formulas.t_b, formulas.t_w
    symbols = {variable.name: variable.symbol for formula in ALL.values() for variable in formula.symbols}
    ours = formulas.idle_time_zb_h1.expression
    paper = formulas.idle_time_zb_h1_in_its_letters.expression
    deepseek = formulas.idle_time_zb1p.expression
    assert same(paper.subs({symbols["T_F"]: t_f, symbols["T_B"]: t_b - t_w, symbols["T_W"]: t_w}), ours)
    assert same(deepseek.subs({symbols["F"]: t_f, symbols["B"]: t_b, symbols["W"]: t_w}), ours)


def test_zb_h1_makespan_less_ideal_is_its_idle_time():
    for P in range(1, 6):
        for M in range(P, 12):
            values = {"P": P, "M": M, "t_f": 5, "t_b": 7, "t_w": 3}
            total = formulas.makespan_zb_h1(**values) - formulas.ideal_time(M=M, t_f=5, t_b=7)
            assert total == formulas.idle_time_zb_h1(**values)


@forall
@given(st.integers(1, 9), st.integers(1, 40), *[st.fractions(0, 9, max_denominator=8)] * 3)
def test_for_any_times_the_zero_bubble_formulas_are_the_papers_while_t_w_is_short(P, M, t_f, t_B, t_w):
    values = {"P": P, "M": max(M, 2 * P - 1), "t_f": t_f, "t_b": t_B + t_w, "t_w": t_w}
    h1, h2 = formulas.idle_time_zb_h1_any_times(**values), formulas.span_idle_time_zb_h2_any_times(**values)
    if t_w <= min(t_f, t_B):
        assert h1 == formulas.idle_time_zb_h1(**values)
    if t_w <= t_f:
        assert h2 == formulas.span_idle_time_zb_h2(**values)
    longer = {**values, "t_b": values["t_b"] + 9, "t_w": t_w + 9}  # a weight gradient longer than all else
    assert formulas.idle_time_zb_h1_any_times(**longer) == (P - 1) * max(t_f, t_B)
    assert formulas.span_idle_time_zb_h2_any_times(**longer) == (P - 1) * max(0, t_B - t_f)


def test_equal_thirds_leave_a_third_of_the_bubble_with_zb_h1_and_none_in_span_with_zb_h2_and_zb_v():
    values = {"P": 8, "M": 32, "t_f": 1, "t_b": 2, "t_w": 1}
    assert 3 * formulas.idle_time_zb_h1(**values) == formulas.idle_time(P=8, t_f=1, t_b=2)
    assert formulas.span_idle_time_zb_h2(**values) == 0
    assert formulas.span_idle_time_zb_v(**values) == 0
    bounds = [formulas.makespan_lower_bound(P=8, M=32, v=v, t_f=1, t_b=2) for v in (1, 2)]
    assert [formulas.makespan_zb_h2(**values), formulas.makespan_zb_v(**values)] == bounds


def test_deepseek_table_at_eight_stages_equal_thirds_and_no_overlap():
    assert formulas.idle_time_dualpipe(P=8, FB=3, B=2, W=1) == 6
    assert formulas.idle_time_zb1p(P=8, F=1, B=2, W=1) == 7
    assert formulas.idle_time(P=8, t_f=1, t_b=2) == 21


# What the papers print

# How a published statement names our formula, and what its letters are here.
STATED = {
    ("GPipe", "overhead over ideal time"): formulas.bubble_overhead,
    ("GPipe", "share of total time"): formulas.bubble_share,
    ("GPipe", "micro-batches in flight on stage r"): formulas.peak_in_flight_gpipe,
    ("1F1B", "overhead over ideal time"): formulas.bubble_overhead,
    ("1F1B", "warm-up forwards on stage r"): formulas.warmup_1f1b,
    ("1F1B", "micro-batches in flight on stage r"): formulas.peak_in_flight_1f1b,
    ("interleaved", "overhead over ideal time"): formulas.bubble_overhead_interleaved,
    ("interleaved", "warm-up forwards on rank r, in chunks"): formulas.warmup_interleaved,
    ("interleaved", "activation memory of the first stage, factor over 1F1B"): formulas.memory_ratio_interleaved,
    ("ZB-H1", "bubble time"): formulas.idle_time_zb_h1_in_its_letters,
    ("ZB1P", "bubble time"): formulas.idle_time_zb1p,
    ("DualPipe", "bubble time"): formulas.idle_time_dualpipe,
    ("DualPipe", "activation memory"): formulas.peak_in_flight_dualpipe,
}


def read(expression, formula):
    """A published expression in our symbols: p, m and PP are P, M and P; a space multiplies."""
    names = {variable.name: variable.symbol for variable in formula.symbols}
    names |= {theirs: names[mine] for theirs, mine in (("p", "P"), ("m", "M"), ("PP", "P")) if mine in names}
    names |= {"min": sympy.Min}
    text = re.sub(r"(?<=[\w)]) ?(?=\()|(?<=[\w)]) (?=\w)", "*", expression.replace("F&B", "FB")).replace("min*", "min")
    return sympy.sympify(text, locals=names)


@pytest.mark.parametrize("stated", STATED, ids=" ".join)
def test_each_published_statement_is_our_formula(stated):
    row = published.table("pipeline_formulas").where(schedule=stated[0], quantity=stated[1]).row()
    formula = STATED[stated]
    assert same(read(row["expression"], formula), formula.expression)


def test_zb_h2_as_published_is_our_span_idle_time_while_it_is_not_negative():
    row = published.table("pipeline_formulas").where(schedule="ZB-H2", quantity="bubble time").row()
    ours = formulas.span_idle_time_zb_h2
    stated = read(row["expression"], formulas.idle_time_zb_h1_in_its_letters)
    for P, (T_F, T_B, T_W) in ((4, (1, 1, 1)), (4, (3, 2, 1)), (6, (2, 4, 1))):
        values = {"P": P, "T_F": T_F, "T_B": T_B, "T_W": T_W}
        number = stated.subs({symbol: values[symbol.name] for symbol in stated.free_symbols})
        assert number == ours(P=P, M=2 * P, t_f=T_F, t_b=T_B + T_W, t_w=T_W)


def test_published_zero_bubble_rates_come_from_uneven_times_and_lie_above_the_even_ones():
    for row in published.table("zb_table5_bubble_rate"):
        gap = row["1F1B"] - float(formulas.bubble_share(P=row["p"], M=row["m"]))
        assert 0.015 < gap < 0.03
        values = {"P": row["p"], "M": row["m"], "t_f": 1, "t_b": 2, "t_w": 1}
        even = 1 - formulas.ideal_time(M=row["m"], t_f=1, t_b=2) / formulas.makespan_zb_h1(**values)
        assert row["ZB-H1"] > even


@pytest.mark.parametrize(("formula", "values", "drawn"), [
    (formulas.bubble_overhead, {"P": 4, "M": 8}, Fraction(3, 8)),  # arXiv:2104.04473, figure 3
    (formulas.bubble_overhead_interleaved, {"P": 4, "M": 8, "v": 2}, Fraction(3, 16)),  # figure 4, bottom
])
def test_the_cases_that_the_megatron_paper_draws(formula, values, drawn):
    assert formula(**values) == drawn

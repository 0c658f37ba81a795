"""Formulas: exact in Python, the same in the browser, and an error in words for every wrong value."""

import math
import warnings
from fractions import Fraction

import numpy as np
import pytest
import sympy
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from vega_oracle import evaluate, evaluate_rows

from scalebook.formulas import Formula, Variable, catalogue

P = Variable("P", "pipeline stages", count=True, minimum=1)
M = Variable("M", "micro-batches", count=True, minimum=1)
OVERHEAD = Formula("overhead", (P.symbol - 1) / M.symbol, "1", (P, M), "arXiv:2104.04473, section 2.2.1",
                   result=r"\frac{t_{pb}}{t_{id}}")
DIVISIBLE = Formula("interleaved", (P.symbol - 1) / M.symbol, "1", (P, M), "a test",
                    requires=((sympy.Eq(sympy.Mod(M.symbol, P.symbol), 0), "M must be a multiple of P"),))

X = Variable("x", "a number", minimum=None)
Y = Variable("y", "another number", minimum=None)
A = Variable("a", "a positive number", minimum=Fraction(1, 1000))
B = Variable("b", "another positive number", minimum=Fraction(1, 1000))
x, y, a, b = X.symbol, Y.symbol, A.symbol, B.symbol
PM = st.tuples(st.integers(1, 10**6), st.integers(1, 10**6))


# ---- exactness -----------------------------------------------------------------------------------------------------

@given(PM)
@settings(deadline=None)
def test_integers_give_the_exact_fraction(pair):
    stages, microbatches = pair
    result = OVERHEAD(P=stages, M=microbatches)
    assert result == Fraction(stages - 1, microbatches)
    assert isinstance(result, int if (stages - 1) % microbatches == 0 else Fraction)


@given(st.fractions(min_value=Fraction(1, 100), max_value=100), st.fractions(min_value=Fraction(1, 100), max_value=100))
@settings(deadline=None)
def test_fractions_give_the_exact_fraction(first, second):
    ratio = Formula("ratio", a / (a + 2 * b), "1", (A, B), "a test")
    assert ratio(a=first, b=second) == first / (first + 2 * second)


def test_numpy_and_sympy_integers_count_as_exact():
    assert OVERHEAD(P=np.int64(8), M=sympy.Integer(32)) == Fraction(7, 32)
    assert OVERHEAD(P=8.0, M=np.float64(32)) == Fraction(7, 32)


def test_an_irrational_result_is_a_float():
    root = Formula("root", sympy.sqrt(a), "1", (A,), "a test")
    assert root(a=4) == 2
    assert isinstance(root(a=2), float)
    assert root(a=2) == math.sqrt(2)


@given(st.integers(1, 400), st.integers(1, 40))
@settings(deadline=None, max_examples=200)
def test_a_float_is_computed_in_float64_as_arrays_and_browsers_do(numerator, denominator):
    # ceil(3 / 0.15) is 20 in float64 and 21 with more digits: all three must agree with the page
    needed = Formula("needed", sympy.ceiling(a / b), "1", (A, B), "a test")
    value = denominator / 100
    assert needed(a=numerator, b=value) == math.ceil(numerator / value) == needed(a=[numerator], b=value)[0]


def test_a_constant_keeps_its_value():
    constant = Formula("bytes of Adam", sympy.Integer(12), "B", (), "arXiv:1910.02054, section 3.1")
    assert constant() == 12
    assert constant.vega() == "12"


# ---- arrays --------------------------------------------------------------------------------------------------------

@given(st.lists(st.integers(1, 1000), min_size=1, max_size=5), st.lists(st.integers(1, 1000), min_size=1, max_size=5))
@settings(deadline=None)
def test_arrays_broadcast_and_agree_with_scalars(stages, microbatches):
    table = OVERHEAD(P=np.array(stages)[:, None], M=microbatches)
    assert table.shape == (len(stages), len(microbatches))
    assert table.dtype == np.float64
    for i, p in enumerate(stages):
        for j, m in enumerate(microbatches):
            assert table[i, j] == float(OVERHEAD(P=p, M=m))


def test_arrays_broadcast_over_every_kind_of_expression():
    cases = {
        "min": (sympy.Min(x, y, 3), np.minimum), "max": (sympy.Max(x, y), np.maximum),
        "piecewise": (sympy.Piecewise((x, x > y), (y, True)), np.maximum),
    }
    rows, columns = np.arange(-3.0, 5)[:, None], np.array([-1.0, 0.5, 4.0])
    for name, (expression, oracle) in cases.items():
        result = Formula(name, expression, "1", (X, Y), "a test")(x=rows, y=columns)
        expected = oracle(rows, columns) if name != "min" else np.minimum(oracle(rows, columns), 3)
        np.testing.assert_array_equal(result, expected)


def test_a_constant_expression_still_has_the_shape_of_its_arguments():
    kept = Formula("kept", x * 0 + sympy.Piecewise((1, x > 0), (2, True)), "1", (X,), "a test")
    np.testing.assert_array_equal(kept(x=[[1, -1, 2]]), [[1, 2, 1]])


# ---- errors --------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("value", [0, -3, 2.5, Fraction(1, 2), math.inf, math.nan, "8", None, True, 1j, [1, 0], [1.5],
                                   [True], ["8"], [[1], [1, 2]], [math.nan], np.bool_(True)], ids=repr)
def test_a_value_that_is_not_a_count_is_refused_by_name(value):
    with pytest.raises(ValueError, match=r"^overhead: P = .* is not allowed; P \(pipeline stages\) must be "
                                         r"a whole number, at least 1"):
        OVERHEAD(P=value, M=8)


def test_the_least_value_is_allowed_and_what_is_below_is_not():
    assert Formula("twice", 2 * a, "1", (A,), "a test")(a=Fraction(1, 1000)) == Fraction(1, 500)
    with pytest.raises(ValueError, match=r"a = Fraction\(1, 1001\) is not allowed; .* finite number, at least 1/1000"):
        Formula("twice", 2 * a, "1", (A,), "a test")(a=Fraction(1, 1001))


def test_unknown_and_missing_symbols_are_named():
    with pytest.raises(ValueError, match="overhead has no symbol 'Q'; it takes P, M"):
        OVERHEAD(P=8, M=8, Q=1)
    with pytest.raises(ValueError, match="overhead needs M; it takes P, M"):
        OVERHEAD(P=8)
    with pytest.raises(ValueError, match="overhead has no symbol 'Q'; it takes P, M"):
        OVERHEAD.vega(Q="datum.Q")


def test_a_requirement_is_checked_for_numbers_and_in_every_element():
    assert DIVISIBLE(P=4, M=8) == Fraction(3, 8)
    with pytest.raises(ValueError, match=r"^interleaved: M must be a multiple of P \(given P = 4, M = 6\)$"):
        DIVISIBLE(P=4, M=6)
    with pytest.raises(ValueError, match="M must be a multiple of P"):
        DIVISIBLE(P=4, M=[8, 6])
    np.testing.assert_array_equal(DIVISIBLE(P=4, M=[8, 12]), [3 / 8, 3 / 12])


def test_shapes_that_do_not_broadcast_are_named():
    with pytest.raises(ValueError, match=r"overhead: the shapes do not broadcast: P \(2,\), M \(3,\)"):
        OVERHEAD(P=[1, 2], M=[1, 2, 3])


@pytest.mark.parametrize("values", [{"x": 1}, {"x": 1.0}, {"x": [0, 1]}], ids=str)
def test_where_a_formula_has_no_finite_value_it_says_so(values):
    pole = Formula("pole", 1 / (x - 1), "1", (X,), "a test")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match=r"^pole has no finite value for x = "):
            pole(**values)


@pytest.mark.parametrize("value", [-1, -1.0, [-1.0]], ids=str)
def test_a_complex_result_is_no_value(value):
    with pytest.raises(ValueError, match="no finite value for x = "):
        Formula("root", sympy.sqrt(x), "1", (X,), "a test")(x=value)


def test_a_formula_must_use_exactly_its_variables():
    with pytest.raises(ValueError, match=r"overhead: the expression uses \['P'\], but the variables are \['M', 'P'\]"):
        Formula("overhead", P.symbol - 1, "1", (P, M), "a test")
    with pytest.raises(ValueError, match=r"the expression uses \['M', 'P'\], but the variables are \['P'\]"):
        Formula("overhead", P.symbol / M.symbol, "1", (P,), "a test")


def test_a_variable_of_a_requirement_counts_as_used():
    formula = Formula("kept", P.symbol + 0, "1", (P, M), "a test", requires=((M.symbol > P.symbol, "M > P"),))
    assert formula(P=2, M=3) == 2
    with pytest.raises(ValueError, match="M > P"):
        formula(P=3, M=3)


# ---- the page ------------------------------------------------------------------------------------------------------

def test_latex_writes_a_symbol_as_its_variable_says():
    t = Variable("t_f", "forward time", unit="s", latex="t_{\\mathrm{f}}")
    formula = Formula("time", 2 * t.symbol, "s", (t,), "a test", result="T")
    assert formula.latex == r"2 t_{\mathrm{f}}"
    assert formula._repr_latex_() == r"$\displaystyle T = 2 t_{\mathrm{f}}$"
    assert formula.table() == [{"symbol": "t_{\\mathrm{f}}", "meaning": "forward time", "unit": "s"}]


# ---- the browser: the real Vega evaluates what we print ------------------------------------------------------------

EXPRESSIONS = {
    "minimum": sympy.Min(x, y, 3), "maximum": sympy.Max(x, y, Fraction(1, 2)),
    "ceiling": sympy.ceiling(x / 4), "floor": sympy.floor(x / 4),
    "piecewise": sympy.Piecewise((x, x > 1), (y, sympy.And(y > 0, x < 0)), (3, True)),
    "piecewise in a product": 3 * sympy.Piecewise((x - y, sympy.Or(x > y, sympy.Ne(y, 2))), (7, True)) + 1,
    "nested": sympy.Min(sympy.Max(x, 1), sympy.ceiling(y / 2)) / 3 - 2,
    "difference of differences": x - (y - (x - 3)), "quotient of quotients": x / ((y**2 + 1) / 3),
    "rational": sympy.Rational(2, 3) * x - sympy.Rational(7, 11), "negative square": -(x**2) + (-y) ** 2,
    "cube": x**3, "absolute": abs(x - y), "exponential": sympy.exp(x / 10), "pi": sympy.pi * x,
    "modulo": 3 * sympy.Mod(x, 4) + 1, "inverse": 1 / (1 + x**2),
}
POSITIVE = {
    "logarithm": sympy.log(a), "logarithm to base 2": sympy.log(a, 2), "square root": sympy.sqrt(a * b),
    "cube root": sympy.cbrt(a), "power 3/2": a ** sympy.Rational(3, 2), "power -1/2": 1 / sympy.sqrt(a),
    "power of a symbol": a ** (b / 100), "root of 2": sympy.sqrt(2) * a, "negative power": a**-3,
}


def agree(formula, rows):
    text = formula.vega(**{name: f"datum.{name}" for name in rows[0]})
    for row, drawn in zip(rows, evaluate_rows(text, rows), strict=True):
        assert drawn == pytest.approx(float(formula(**row)), rel=1e-12, abs=1e-12), (text, row)


@pytest.mark.parametrize("name", EXPRESSIONS)
@given(rows=st.lists(st.tuples(st.integers(-50, 50), st.integers(-50, 50)), min_size=20, max_size=40))
@settings(deadline=None, max_examples=4)
def test_vega_evaluates_what_python_evaluates(name, rows):
    free = EXPRESSIONS[name].free_symbols
    variables = tuple(variable for variable in (X, Y) if variable.symbol in free)
    formula = Formula(name, EXPRESSIONS[name], "1", variables, "a test")
    agree(formula, [{v.name: value for v, value in zip((X, Y), row, strict=True) if v in variables} for row in rows])


@pytest.mark.parametrize("name", POSITIVE)
@given(rows=st.lists(st.tuples(st.floats(0.01, 1e6), st.floats(0.01, 100)), min_size=20, max_size=40))
@settings(deadline=None, max_examples=4)
def test_vega_evaluates_roots_powers_and_logarithms_as_python_does(name, rows):
    free = POSITIVE[name].free_symbols
    variables = tuple(variable for variable in (A, B) if variable.symbol in free)
    formula = Formula(name, POSITIVE[name], "1", variables, "a test")
    agree(formula, [{v.name: value for v, value in zip((A, B), row, strict=True) if v in variables} for row in rows])


def test_what_stands_for_a_symbol_is_kept_together():
    difference = Formula("difference", x - 2 * y, "1", (X, Y), "a test")
    text = difference.vega(x="datum.p - 1", y="-datum.q + 3")
    assert evaluate([(text, {"p": 10, "q": 7})]) == [(10 - 1) - 2 * (-7 + 3)]
    assert evaluate([(difference.vega(x=-4, y=0.5), {})]) == [-5]


def test_a_function_that_vega_does_not_have_is_refused():
    for expression, word in ((sympy.gamma(a), "gamma"), (sympy.sign(x), "sign"), (sympy.tanh(x), "tanh"),
                             (sympy.GoldenRatio * x, "GoldenRatio")):
        variable = A if a in expression.free_symbols else X
        with pytest.raises(ValueError, match=f"odd: Vega has no .*{word}"):
            Formula("odd", expression, "1", (variable,), "a test").vega()


def test_a_symbol_that_vega_reads_as_its_own_needs_another_name():
    experts = Variable("E", "experts", count=True, minimum=1)
    formula = Formula("share", 1 / experts.symbol, "1", (experts,), "a test")
    with pytest.raises(ValueError, match="share: Vega reads 'E' as its own; name a signal for E"):
        formula.vega()
    assert evaluate([(formula.vega(E="datum.experts"), {"experts": 8})]) == [1 / 8]


# ---- the book's own ------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("key", sorted(catalogue()))
def test_every_formula_of_the_book_says_its_unit_its_source_and_what_its_variables_mean(key):
    formula = catalogue()[key]
    assert formula.unit.strip()
    assert formula.source.strip()
    for variable in formula.symbols:
        assert len(variable.meaning.split()) >= 1
        assert variable.unit.strip()
    assert "$" not in formula.latex
    for variable in formula.symbols:
        if variable.symbol in formula.expression.free_symbols:
            assert (variable.latex or sympy.latex(variable.symbol)) in formula.latex


@pytest.mark.parametrize("key", sorted(catalogue()))
@given(data=st.data())
@settings(deadline=None, max_examples=3)
def test_every_formula_of_the_book_is_the_same_in_vega(key, data):
    """Whole numbers: there every step is exact enough that ceilings and floors fall on the same side."""
    formula = catalogue()[key]
    drawn = data.draw(st.lists(whole_numbers(formula), min_size=60, max_size=60))
    rows = [row for row in drawn if meets_requirements(formula, row)]
    assume(rows)  # hypothesis reports a formula that refuses everything
    agree(formula, rows)


def meets_requirements(formula, row):
    try:
        formula(**row)
    except ValueError as problem:
        if not any(words in str(problem) for _, words in formula.requires):
            raise
        return False
    return True


def whole_numbers(formula):
    """Values of all variables, half of the time small and often equal: requirements such as t_b = 2 t_w need it."""
    low = {v.name: max(math.ceil(v.minimum if v.minimum is not None else -9), -9) for v in formula.symbols}
    far = st.fixed_dictionaries({name: st.integers(least, 40) for name, least in low.items()})
    near = st.fixed_dictionaries({name: st.integers(least, least + 3) for name, least in low.items()})
    return far | near


def test_the_catalogue_names_each_formula_by_its_module():
    found = catalogue()
    assert found, "the book has formulas"
    for key, formula in found.items():
        module, _, name = key.partition(".")
        assert getattr(__import__(f"scalebook.formulas.{module}", fromlist=[name]), name) is formula

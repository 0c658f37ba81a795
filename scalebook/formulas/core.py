"""A formula that can be read, computed and drawn.

`Formula` holds one equation as a SymPy expression. The same object prints its LaTeX for the page, computes
exactly on integers and fractions and broadcasts over NumPy arrays, and prints itself as a Vega expression, so that
a slider in the browser evaluates what Python evaluates.
"""

import math
import numbers
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

import numpy as np
import sympy
from sympy.printing.codeprinter import PrintMethodNotImplementedError
from sympy.printing.jscode import JavascriptCodePrinter

from scalebook import vega
from scalebook.checks import is_number, shown


@dataclass(frozen=True)
class Variable:
    """One symbol of a formula: its name, what it means, its unit, and which values it may take.

    `count` says that only whole numbers make sense. `minimum` is the least value allowed (None: any), and
    `latex` how the page writes it.

    >>> P = Variable("P", "pipeline stages", count=True, minimum=1)
    >>> P.symbol.is_integer
    True
    """

    name: str
    meaning: str
    unit: str = "1"
    count: bool = False
    minimum: float | None = 0
    latex: str | None = None

    @cached_property
    def symbol(self):
        """The SymPy symbol, with the assumptions that its allowed values justify."""
        assumptions = {"real": True}
        if self.count:
            assumptions["integer"] = True
        if self.minimum is not None and self.minimum > 0:
            assumptions["positive"] = True
        elif self.minimum == 0:
            assumptions["nonnegative"] = True
        return sympy.Symbol(self.name, **assumptions)

    @property
    def allowed(self):
        """The values allowed, in words.

        >>> Variable("M", "micro-batches", count=True, minimum=1).allowed
        'a whole number, at least 1'
        """
        kind = "a whole number" if self.count else "a finite number"
        return kind if self.minimum is None else f"{kind}, at least {self.minimum}"

    def check(self, value, where):
        """Return `value`, exact when it can be; raise ValueError naming it when it is not allowed."""
        complaint = f"{where}: {self.name} = {value!r} is not allowed; {self.name} ({self.meaning}) must be "
        if isinstance(value, np.ndarray | list | tuple):
            return self._check_array(value, complaint)
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, sympy.Rational):
            value = Fraction(int(value.p), int(value.q))
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise ValueError(complaint + self.allowed)
        finite = isinstance(value, numbers.Rational) or math.isfinite(value)
        if not finite or (self.minimum is not None and value < self.minimum):
            raise ValueError(complaint + self.allowed)
        if self.count:
            if value != int(value):
                raise ValueError(complaint + self.allowed)
            return int(value)
        return value

    def _check_array(self, value, complaint):
        try:
            value = np.asarray(value)
        except ValueError:
            raise ValueError(complaint + f"{self.allowed} in every element of a regular array") from None
        if value.dtype.kind not in "iuf":
            raise ValueError(complaint + f"{self.allowed} in every element (dtype {value.dtype})")
        value = value.astype(np.float64)
        wrong = ~np.isfinite(value)
        if self.minimum is not None:
            wrong |= value < self.minimum
        if self.count:
            wrong |= value != np.floor(value)
        if wrong.any():
            raise ValueError(complaint + f"{self.allowed} in every element")
        return value


class _VegaPrinter(JavascriptCodePrinter):
    """Prints SymPy as a Vega expression: JavaScript's syntax, with functions that are not on `Math`."""

    def __init__(self, names):
        super().__init__()
        self._names = names

    def _print_Symbol(self, expr):
        return self._names[expr.name]

    def _print_Pow(self, expr):
        if expr.exp == sympy.Rational(1, 3):  # SymPy prints cbrt, which Vega does not have
            return f"pow({self._print(expr.base)}, 1/3)"
        return super()._print_Pow(expr)

    def doprint(self, expr):
        text = re.sub(r"\bMath\.", "", super().doprint(expr))
        return re.sub(r"\s*\n\s*", " ", text)


def _check_vega_knows(expression, where):
    """Raise ValueError when the expression needs a function or a constant that Vega does not have."""
    names = {symbol.name: "x" for symbol in expression.free_symbols}
    try:
        text = _VegaPrinter(names).doprint(expression)
    except PrintMethodNotImplementedError:
        text = f"{expression}"
    unknown = sorted(set(re.findall(r"([A-Za-z]\w*)\(", text)) - vega.FUNCTIONS)
    constants = re.findall(r"Number\.\w+|var \w+", text)
    if unknown or constants:
        raise ValueError(f"{where}: Vega has no {', '.join(unknown + constants)}, which {expression} needs")


@dataclass(frozen=True)
class Formula:
    r"""One equation: name, SymPy expression, unit of the result, variables, and source.

    `symbols` are the `Variable`s, in the order in which the page lists them. `requires` holds pairs of a SymPy
    condition and its words, for what no single variable can say (M a multiple of P). `result` is the LaTeX of the
    left-hand side.

    >>> P = Variable("P", "stages", count=True, minimum=1)
    >>> M = Variable("M", "micro-batches", count=True, minimum=1)
    >>> overhead = Formula("overhead", (P.symbol - 1) / M.symbol, "1", (P, M), "arXiv:2104.04473, section 2.2.1")
    >>> overhead(P=8, M=32)
    Fraction(7, 32)
    >>> overhead(P=8, M=[8, 16])
    array([0.875 , 0.4375])
    >>> overhead.vega(M="datum.M")
    '(P - 1)/datum.M'
    >>> overhead(P=0, M=32)
    Traceback (most recent call last):
    ...
    ValueError: overhead: P = 0 is not allowed; P (stages) must be a whole number, at least 1
    """

    name: str
    expression: sympy.Expr
    unit: str
    symbols: tuple[Variable, ...]
    source: str
    requires: tuple = field(default=())
    result: str = ""

    def __post_init__(self):
        """Refuse an expression whose symbols are not exactly the variables given."""
        object.__setattr__(self, "expression", sympy.sympify(self.expression))
        declared = {variable.symbol for variable in self.symbols}
        conditions = [sympy.sympify(condition) for condition, _ in self.requires]
        used = self.expression.free_symbols.union(*(condition.free_symbols for condition in conditions))
        if used != declared:
            raise ValueError(f"{self.name}: the expression uses {sorted(map(str, used))}, "
                             f"but the variables are {sorted(map(str, declared))}")

    @cached_property
    def _latex_names(self):
        return {variable.symbol: variable.latex for variable in self.symbols if variable.latex}

    @property
    def latex(self):
        """The right-hand side as LaTeX."""
        return sympy.latex(self.expression, symbol_names=self._latex_names)

    def _repr_latex_(self):
        left = f"{self.result} = " if self.result else ""
        return rf"$\displaystyle {left}{self.latex}$"

    @cached_property
    def _numpy(self):
        return sympy.lambdify([v.symbol for v in self.symbols], self.expression, "numpy")

    @cached_property
    def _numpy_conditions(self):
        symbols = [v.symbol for v in self.symbols]
        return [(sympy.lambdify(symbols, condition, "numpy"), words) for condition, words in self.requires]

    def __call__(self, **values):
        """Evaluate: exactly for integers and fractions, in float64 otherwise, element by element for arrays.

        Raises ValueError with the name, the value and what is allowed, and where the formula has no finite value.
        """
        names = [variable.name for variable in self.symbols]
        unknown = sorted(set(values) - set(names))
        if unknown:
            raise ValueError(f"{self.name} has no symbol {unknown[0]!r}; it takes {', '.join(names)}")
        missing = [name for name in names if name not in values]
        if missing:
            raise ValueError(f"{self.name} needs {', '.join(missing)}; it takes {', '.join(names)}")
        checked = {v.name: v.check(values[v.name], self.name) for v in self.symbols}
        arrays = {name: value for name, value in checked.items() if isinstance(value, np.ndarray)}
        try:
            shape = np.broadcast_shapes(*(value.shape for value in arrays.values()))
        except ValueError:
            shapes = ", ".join(f"{name} {value.shape}" for name, value in arrays.items())
            raise ValueError(f"{self.name}: the shapes do not broadcast: {shapes}") from None
        self._check_requirements(checked)
        if all(isinstance(value, numbers.Rational) for value in checked.values()):
            result = _exact(self.expression, {v.symbol: sympy.Rational(checked[v.name]) for v in self.symbols})
            if result.is_finite and result.is_real:
                return _to_python(result)
        else:
            result = self._in_float64(checked, shape)
            if np.isfinite(result).all():
                return result if arrays else float(result)
        raise ValueError(f"{self.name} has no finite value for {_in_words(checked)}")

    def _in_float64(self, checked, shape):
        arguments = [np.broadcast_to(np.asarray(value, dtype=np.float64), shape) for value in checked.values()]
        with np.errstate(all="ignore"):  # what is not finite becomes an error in words
            return np.broadcast_to(self._numpy(*arguments), shape).astype(np.float64)

    def _check_requirements(self, checked):
        for condition, words in self._numpy_conditions:
            if not np.all(condition(*(np.asarray(value, dtype=np.float64) for value in checked.values()))):
                raise ValueError(f"{self.name}: {words} (given {_in_words(checked)})")

    def vega(self, **names):
        """Print the expression for Vega.

        Each symbol prints as its own name (a signal of the chart), or as the Vega expression or number given for
        it: `f.vega(M="datum.M")`. Raises ValueError for a name that the formula does not have, for a name that Vega
        reads as its own (E is 2.718...), and for a function that Vega does not have.
        """
        own = {variable.name: variable.name for variable in self.symbols}
        unknown = sorted(set(names) - set(own))
        if unknown:
            raise ValueError(f"{self.name} has no symbol {unknown[0]!r}; it takes {', '.join(own)}")
        for name, value in names.items():
            if isinstance(value, bool) or not isinstance(value, str | numbers.Real) or value == "":
                raise ValueError(f"{self.name}: {name} = {shown(value)} is not allowed; it must be a Vega "
                                 "expression or a number")
            if not isinstance(value, str) and not is_number(value):
                raise ValueError(f"{self.name}: {name} = {shown(value)} is not allowed; it must be finite")
            text = str(value)
            own[name] = text if re.fullmatch(r"[\w.]+", text) else f"({text})"
        _check_vega_knows(self.expression, self.name)
        for name, text in own.items():
            if text in vega.RESERVED:
                raise ValueError(f"{self.name}: Vega reads {text!r} as its own; name a signal for {name}, "
                                 f"such as {name}=\"{name}_\"")
        return _VegaPrinter(own).doprint(self.expression)

    def table(self) -> list[Mapping[str, str]]:
        """The variables as rows (name, meaning, unit), for the page."""
        return [{"symbol": v.latex or v.name, "meaning": v.meaning, "unit": v.unit} for v in self.symbols]


def _exact(expression, values):
    """Put rational numbers in for symbols. `subs` takes many times as long, and knows the value at more zeros."""
    try:
        result = expression.xreplace(values)
    except ValueError:  # a maximum or a comparison of what is no number, such as 0/0
        return expression.subs(values)
    return result if result.is_finite else expression.subs(values)


def _to_python(value):
    if value.is_Integer:
        return int(value)
    if value.is_Rational:
        return Fraction(int(value.p), int(value.q))
    return float(value)


def _in_words(values):
    return ", ".join(f"{name} = {value}" for name, value in values.items())

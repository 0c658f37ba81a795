"""The words that Vega's expressions keep for themselves.

A signal with such a name is never read: in Vega, `E` is 2.718... whatever a control called E says.
Source: the expression documentation of Vega 6 (https://vega.github.io/vega/docs/expressions/).
"""

CONSTANTS = frozenset({
    "E", "LN2", "LN10", "LOG2E", "LOG10E", "PI", "SQRT1_2", "SQRT2", "MIN_VALUE", "MAX_VALUE", "NaN", "Infinity",
    "undefined", "null", "true", "false"})
KEYWORDS = frozenset({
    "datum", "event", "item", "parent", "group", "this", "if", "in", "new", "for", "do", "else", "case", "var", "let",
    "const", "void", "with", "while", "switch", "return", "function", "typeof", "delete", "try", "catch", "finally",
    "throw", "class", "default", "break", "continue", "instanceof", "enum", "export", "extends", "import", "super"})
SIGNALS = frozenset({"width", "height", "padding", "autosize", "background", "cursor", "unit"})
RESERVED = CONSTANTS | KEYWORDS | SIGNALS

FUNCTIONS = frozenset({
    "abs", "acos", "asin", "atan", "atan2", "ceil", "cos", "exp", "floor", "log", "max", "min", "pow", "round", "sin",
    "sqrt", "tan"})

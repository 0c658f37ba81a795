"""The real Vega as an oracle: what does an expression give, when Vega itself evaluates it?

The tests never translate an expression back to Python: they hand it to the Vega inside vl_convert, which writes the
results as texts of a picture, and read them there.
"""

import json
import math
import re
from html import unescape

import vl_convert

from scalebook.explorer.spec import VEGALITE


def evaluate(cases):
    """Return what Vega makes of each case, a pair (expression, mapping of names to values).

    Numbers come back as floats with every digit (JavaScript prints a float so that it can be read back), other
    values as strings. A name stands in the expression as `datum.NAME`.
    """
    rows = []
    for number, (expression, values) in enumerate(cases):
        text = f"'' + ({expression})"
        rows.append({"mark": {"type": "text", "y": number},
                     "data": {"values": [values or {"_": 0}]},
                     "transform": [{"calculate": text, "as": "result"}],
                     "encoding": {"text": {"field": "result", "type": "nominal"}}})
    svg = vl_convert.vegalite_to_svg({"layer": rows}, vl_version=VEGALITE)
    labels = [unescape(label) for label in re.findall(r'aria-label="result: ([^"]*)"', svg)]
    if len(labels) != len(cases):
        raise ValueError(f"Vega drew {len(labels)} results of {len(cases)} cases: {json.dumps(rows)[:300]}")
    return [_number(label) for label in labels]


def evaluate_rows(expression, rows):
    """Return what Vega makes of one expression for each of `rows`, mappings of `datum` fields."""
    spec = {"data": {"values": [dict(row, _order=i) for i, row in enumerate(rows)]},
            "transform": [{"calculate": f"'' + ({expression})", "as": "result"}],
            "mark": "text",
            "encoding": {"text": {"field": "result", "type": "nominal"}, "order": {"field": "_order"}}}
    svg = vl_convert.vegalite_to_svg(spec, vl_version=VEGALITE)
    labels = [unescape(label) for label in re.findall(r'aria-label="result: ([^"]*)"', svg)]
    if len(labels) != len(rows):
        raise ValueError(f"Vega drew {len(labels)} results of {len(rows)} rows")
    return [_number(label) for label in labels]


def _number(label):
    special = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}
    if label in special:
        return special[label]
    try:
        return float(label)
    except ValueError:
        return label

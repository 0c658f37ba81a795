"""From an Altair chart and its controls to one Vega-Lite specification, the same to the byte each time."""

import json
import math
import re

from scalebook.checks import shown

VEGALITE = "6.4"  # the version in the bundle; what Altair 5.5 writes (5.20) means the same in it
STILL_WIDTH = 640
NARROW = 400  # a container less wide than this has its legends one entry to a row; `explorer.css` says it, too
DATA_LIMIT = 120_000

CONFIG = {
    "background": "transparent",
    "view": {"stroke": None},
    "axis": {"gridOpacity": 0.18, "labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal"},
    "legend": {"orient": "top", "labelFontSize": 12, "titleFontSize": 12, "title": None, "symbolStrokeWidth": 3,
               "labelLimit": 0, "columns": {"expr": f"width < {NARROW} ? 1 : 0"}},
    "line": {"strokeWidth": 2.5},
    "point": {"filled": True, "size": 70},
    "text": {"fontSize": 12},
}
INKED = ("text", "rule")  # marks that are black unless they say otherwise; `explorer.js` says it, too


def build(chart, controls, enabled, alt):
    """Return the specification of `chart` with one signal a control.

    `enabled` maps a control's name to the Vega expression that says when it applies. Raises ValueError when a
    control drives nothing, a name was made up by Altair's counters (it would differ from run to run), or the
    data is too large for a page.
    """
    if not isinstance(chart, dict) and not hasattr(chart, "to_dict"):
        raise ValueError(f"explore: chart = {shown(chart)} is not allowed; it must be an Altair chart, or a "
                         "specification")
    spec = rounded(chart if isinstance(chart, dict) else chart.to_dict(validate=True))
    try:
        json.dumps(spec)
    except (TypeError, ValueError) as error:
        raise ValueError(f"explore: chart = {shown(chart)} is not allowed; it must be JSON: {error}") from None
    for key in ("$schema", "config", "usermeta"):
        spec.pop(key, None)
    spec = _with_plain_data_names(spec)
    expressions = " ".join(_expressions(spec))
    spec["config"] = CONFIG
    spec["description"] = alt
    spec.setdefault("width", "container")
    spec["autosize"] = {"type": "fit-x", "contains": "padding"}
    names = {control.name for control in controls}
    made_up = re.search(r'"((?:param|view)_(?:\d+|[0-9a-f]{8,}))"', json.dumps(spec))  # Altair 5 counts, 6 hashes
    if made_up:
        raise ValueError(f"explore: the chart uses the name {made_up[1]!r}, which changes from run to run; name it")
    others = [param for param in (spec.get("params") or []) if param["name"] not in names]
    for control in controls:
        if not re.search(rf"(?<![\w.]){control.name}\b", expressions):
            raise ValueError(f"explore: nothing in the chart uses {control.name}; its control would be dead")
    for name in enabled:
        if name not in names:
            raise ValueError(f"explore: enabled names {name!r}; the controls are {', '.join(sorted(names))}")
    spec["params"] = [
        *(param for control in controls for param in control.params),
        *others,
        *({"name": f"{name}_disabled", "expr": f"!({condition})"} for name, condition in enabled.items()),
    ]
    size = len(json.dumps(spec, separators=(",", ":")))
    if size > DATA_LIMIT:
        raise ValueError(f"explore: the specification is {size:,} bytes; at most {DATA_LIMIT:,} are allowed")
    return spec


EXPRESSIONS = ("expr", "calculate", "filter", "test", "update", "param", "labelExpr", "and", "or", "not")


def _expressions(part, inside=False):
    """Yield every Vega expression of a specification, without the texts quoted in it.

    Only there can a signal act: not in a title, nor as the name of a field.
    """
    if isinstance(part, str) and inside:
        yield re.sub(r"'[^']*'|\"[^\"]*\"", "''", part)
    elif isinstance(part, list):
        for item in part:
            yield from _expressions(item, inside)
    elif isinstance(part, dict):
        for key, item in part.items():
            if key not in ("data", "datasets"):
                yield from _expressions(item, key in EXPRESSIONS)


def _with_plain_data_names(spec):
    """Number the data sets: Altair names each by a hash of its values, whose last digits differ between machines."""
    names = {name: f"data-{number}" for number, name in enumerate(spec.get("datasets") or {})}

    def renamed(part):
        if isinstance(part, list):
            return [renamed(item) for item in part]
        if not isinstance(part, dict):
            return part
        if part.get("name") in names:
            return part | {"name": names[part["name"]]}
        return {key: item if key == "datasets" else renamed(item) for key, item in part.items()}

    spec = renamed(spec)
    if names:
        spec["datasets"] = {names[name]: rows for name, rows in spec["datasets"].items()}
    return spec


def rounded(value, digits=6):
    """Return nested lists and mappings with every float cut to `digits` significant digits.

    >>> rounded({"a": [1 / 3, 2.0, 7]})
    {'a': [0.333333, 2, 7]}
    """
    if isinstance(value, dict):
        return {key: rounded(item, digits) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item, digits) for item in value]
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"explore: the chart's data holds {value!r}; only finite numbers can be drawn")
        short = float(f"{value:.{digits}g}")
        return int(short) if short.is_integer() and abs(short) < 1e15 else short
    return value


def compiled(spec):
    """Compile the specification to Vega, so that a page need not: the same chart, drawn sooner.

    What the chart writes and rules without a colour of its own bears the colour of the text around it.
    """
    import vl_convert

    ink = {mark: {"color": "currentColor"} | spec["config"].get(mark, {}) for mark in INKED}
    return vl_convert.vegalite_to_vega(spec | {"config": spec["config"] | ink}, vl_version=VEGALITE)


def still(spec):
    """Draw the specification at its first values, on white, as PNG bytes."""
    import vl_convert

    return vl_convert.vegalite_to_png(_fixed(spec, STILL_WIDTH), vl_version=VEGALITE, scale=2)


def height(spec, width):
    """How high the chart of a specification is at its first values, in pixels, in a container so many pixels wide."""
    import vl_convert

    drawn = vl_convert.vegalite_to_svg(_fixed(spec, width), vl_version=VEGALITE)
    return round(float(re.search(r'<svg[^>]* height="([\d.]+)"', drawn)[1]))


def _fixed(spec, width):
    fixed = spec | {"config": CONFIG | {"background": "white"}}
    return fixed | {"width": width} if fixed["width"] == "container" else fixed

"""From an Altair chart and its controls to one Vega-Lite specification, the same to the byte each time."""

import json
import math
import re

VEGALITE = "6.4"  # the version in the bundle; what Altair 5.5 writes (5.20) means the same in it
STILL_WIDTH = 640
DATA_LIMIT = 120_000

CONFIG = {
    "background": "transparent",
    "view": {"stroke": None},
    "axis": {"gridOpacity": 0.18, "labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal"},
    "legend": {"orient": "top", "labelFontSize": 12, "titleFontSize": 12, "title": None, "symbolStrokeWidth": 3},
    "line": {"strokeWidth": 2.5},
    "point": {"filled": True, "size": 70},
    "text": {"fontSize": 12},
}


def build(chart, controls, enabled, alt):
    """Return the specification of `chart` with one signal a control.

    `enabled` maps a control's name to the Vega expression that says when it applies. Raises ValueError when a
    control drives nothing, a name was made up by Altair's counters (it would differ from run to run), or the
    data is too large for a page.
    """
    spec = rounded(chart if isinstance(chart, dict) else chart.to_dict(validate=True))
    for key in ("$schema", "config", "usermeta"):
        spec.pop(key, None)
    spec["config"] = CONFIG
    spec["description"] = alt
    spec.setdefault("width", "container")
    spec["autosize"] = {"type": "fit-x", "contains": "padding"}
    names = {control.name for control in controls}
    body = json.dumps({key: value for key, value in spec.items() if key != "params"})
    made_up = re.search(r'"(param_\d+|view_\d+)"', body)
    if made_up:
        raise ValueError(f"explore: the chart uses the name {made_up[1]!r}, which changes from run to run; name it")
    others = [param for param in spec.get("params", []) if param["name"] not in names]
    used = body + json.dumps(others)
    for control in controls:
        if not re.search(rf"\b{control.name}\b", used):
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


def still(spec):
    """Draw the specification at its first values, on white, as PNG bytes."""
    import vl_convert

    fixed = spec | {"config": CONFIG | {"background": "white"}}
    if fixed["width"] == "container":
        fixed = fixed | {"width": STILL_WIDTH}
    return vl_convert.vegalite_to_png(fixed, vl_version=VEGALITE, scale=2)

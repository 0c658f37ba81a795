"""What an ipywidgets control is to a chart: a signal, the values it takes, and how a page shows it.

A `Dropdown` and a `SelectionSlider` drive the chart by their index, since only the index links the same way in every
version of ipywidgets; the chart still sees the value, under the control's name.
"""

import json
import math
import re
from dataclasses import dataclass, replace

from scalebook import vega

SUPPORTED = ("IntSlider", "FloatSlider", "SelectionSlider", "Dropdown", "Checkbox")


@dataclass(frozen=True)
class Control:
    """One control: its name in the chart, its kind, its label, and its range or options.

    `options` are pairs (label, value) for the controls that select, else empty. `position` is what drives the chart:
    the index where there are options, the value otherwise.
    """

    name: str
    kind: str
    label: str
    position: object
    minimum: float | None = None
    maximum: float | None = None
    step: float | None = None
    options: tuple = ()

    @property
    def signal(self):
        """The name of the signal that the control drives."""
        return f"{self.name}_index" if self.options else self.name

    @property
    def trait(self):
        """The widget's trait that is linked to the signal."""
        return "index" if self.options else "value"

    @property
    def positions(self):
        """Every position, in order: what the signal may be."""
        if self.options:
            return tuple(range(len(self.options)))
        if self.kind == "Checkbox":
            return (False, True)
        count = math.floor((self.maximum - self.minimum) / self.step + 1e-9)
        return tuple(_tidy(self.minimum + i * self.step, self.step) for i in range(count + 1))

    def value(self, position):
        """The value that the chart sees when the control stands at `position`."""
        return self.options[position][1] if self.options else position

    @property
    def params(self):
        """The Vega-Lite params that make the control's value known to the chart."""
        if not self.options:
            return [{"name": self.name, "value": self.position}]
        choices = json.dumps([value for _, value in self.options])
        return [{"name": self.signal, "value": self.position},
                {"name": self.name, "expr": f"{choices}[{self.signal}]"}]


def _tidy(value, step):
    """Cut the rounding error of a float that is a multiple of `step`; leave whole numbers whole."""
    if isinstance(step, int):
        return value
    return round(value, decimals(step))


def _short(value):
    """Cut a float to 12 significant digits, so that the page is the same on every machine."""
    return float(f"{value:.12g}") if isinstance(value, float) else value


def decimals(step):
    """How many decimals a slider with this step shows.

    >>> decimals(0.05), decimals(1)
    (2, 0)
    """
    text = f"{step:.10f}".rstrip("0")
    return len(text.partition(".")[2])


def describe(name, widget):
    """Return the `Control` of an ipywidgets control.

    Raises ValueError for a kind that does not work in every version and place, for a name that a chart cannot read
    as a signal, for a `$` in a label (it would start mathematics), for an option that a page cannot carry, and for
    a control that stands at none of its positions or has but one.
    """
    kind = type(widget).__name__
    if kind not in SUPPORTED:
        raise ValueError(f"explore: {name} = {kind} is not supported; use one of {', '.join(SUPPORTED)}")
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name):
        raise ValueError(f"explore: {name!r} cannot name a signal; use letters, digits and underscores")
    if name in vega.RESERVED:
        raise ValueError(f"explore: {name!r} cannot name a signal, since Vega reads it as its own; use another name")
    label = widget.description or name
    if kind in ("IntSlider", "FloatSlider"):
        if not widget.step or widget.step < 0:
            raise ValueError(f"explore: {name} has step = {widget.step!r}; a page needs a step above 0")
        control = Control(name, kind, label, widget.value, *map(_short, (widget.min, widget.max, widget.step)))
    elif kind == "Checkbox":
        control = Control(name, kind, label, widget.value)
    else:
        control = Control(name, kind, label, widget.index, options=_options(name, widget.options))
    for text in (label, *(text for text, _ in control.options)):
        if "$" in text:
            raise ValueError(f"explore: the label {text!r} of {name} has a '$'; write the symbol as plain text")
    if len(control.positions) < 2:
        raise ValueError(f"explore: {name} has {len(control.positions)} position; a control needs at least two")
    nearest = None if control.position is None else min(control.positions, key=lambda p: abs(p - control.position))
    if nearest is None or abs(nearest - control.position) > 1e-9:
        raise ValueError(f"explore: {name} stands at {control.position!r}, which is none of its positions, "
                         f"{control.positions[0]} to {control.positions[-1]} in steps of {control.step or 1}")
    return replace(control, position=nearest)


def _options(name, options):
    """Return pairs (label, value) of what ipywidgets takes as options: a mapping, pairs, or plain values."""
    pairs = options.items() if hasattr(options, "items") else (
        option if isinstance(option, tuple | list) else (str(option), option) for option in options)
    pairs = tuple((text, _short(value)) for text, value in pairs)
    for _, value in pairs:
        if not isinstance(value, bool | int | float | str):
            raise ValueError(f"explore: {name} has the option {value!r}; a page carries numbers, texts and booleans")
    return pairs

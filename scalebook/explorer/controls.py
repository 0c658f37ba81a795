"""What an ipywidgets control is to a chart: a signal, the values it takes, and how a page shows it.

A `Dropdown` and a `SelectionSlider` drive the chart by their index, since only the index links the same way in every
version of ipywidgets; the chart still sees the value, under the control's name.
"""

import json
import re
from dataclasses import dataclass

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
        count = round((self.maximum - self.minimum) / self.step)
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


def decimals(step):
    """How many decimals a slider with this step shows.

    >>> decimals(0.05), decimals(1)
    (2, 0)
    """
    text = f"{step:.10f}".rstrip("0")
    return len(text.partition(".")[2])


def describe(name, widget):
    """Return the `Control` of an ipywidgets control.

    Raises ValueError for a kind that does not work in every version and place, for a name that is not an
    identifier, and for a `$` in a label (it would start mathematics).
    """
    kind = type(widget).__name__
    if kind not in SUPPORTED:
        raise ValueError(f"explore: {name} = {kind} is not supported; use one of {', '.join(SUPPORTED)}")
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name):
        raise ValueError(f"explore: {name!r} cannot name a signal; use letters, digits and underscores")
    label = widget.description or name
    if kind in ("IntSlider", "FloatSlider"):
        control = Control(name, kind, label, widget.value, widget.min, widget.max, widget.step)
    elif kind == "Checkbox":
        control = Control(name, kind, label, widget.value)
    else:
        options = tuple(_pair(option) for option in widget.options)
        control = Control(name, kind, label, widget.index, options=options)
    for text in (label, *(text for text, _ in control.options)):
        if "$" in text:
            raise ValueError(f"explore: the label {text!r} of {name} has a '$'; write the symbol as plain text")
    if len(control.positions) < 2:
        raise ValueError(f"explore: {name} has {len(control.positions)} position; a control needs at least two")
    return control


def _pair(option):
    return tuple(option) if isinstance(option, tuple | list) else (str(option), option)

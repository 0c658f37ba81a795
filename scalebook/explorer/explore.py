"""`explore`: one chart, its controls, and the two forms in which a reader meets them."""

import os
import re
from collections.abc import Mapping
from typing import Any

from scalebook.checks import shown
from scalebook.explorer import spec as specification
from scalebook.explorer import static
from scalebook.explorer.controls import describe


class Explorer:
    """A chart with its controls, as `explore` returns it.

    `widgets` maps each name to its ipywidgets control, which Python can read and set; `controls` holds their
    descriptions and `spec` the Vega-Lite specification.
    """

    def __init__(self, name, spec, controls, enabled, widgets, caption, alt, renderer):
        """Hold the parts; `explore` checks and builds them."""
        self.name, self.spec, self.controls, self.enabled = name, spec, controls, enabled
        self.widgets, self.caption, self.alt, self.renderer = widgets, caption, alt, renderer
        self._box = None

    @property
    def html(self):
        """The figure as it stands in a page."""
        return static.html(self.name, self.spec, self.controls, self.enabled, self.caption, self.renderer)

    @property
    def box(self):
        """The live widgets: a VBox of the controls, the chart and the caption."""
        if self._box is None:
            from scalebook.explorer import live

            chart = live.view(self.spec, self.controls, self.enabled, self.renderer)
            self._box = live.box(chart, self.controls, self.enabled, self.widgets, self.caption)
        return self._box

    @property
    def view(self):
        """The live chart's widget."""
        return self.box.children[-2]

    def _ipython_display_(self):
        from IPython.display import display

        if os.environ.get("SCALEBOOK_STATIC") != "1":
            display(self.box)
            return
        display({"image/png": specification.still(self.spec), "text/plain": self.alt}, raw=True,
                metadata={"scalebook": {"still": f"explorer-{self.name}"}})
        display({"text/html": self.html, "text/plain": self.caption}, raw=True)


def explore(
    chart: Any, *, caption: str, alt: str, name: str | None = None, enabled: Mapping[str, str] | None = None,
    renderer: str = "svg", **controls: Any,
) -> Explorer:
    """Tie ipywidgets controls to the signals of a chart.

    `chart` is an Altair chart (or a Vega-Lite specification) whose expressions use the controls' names; `controls`
    are IntSlider, FloatSlider, SelectionSlider, Dropdown or Checkbox. `caption` stands below, `alt` says what the
    picture shows to those who do not see it. `enabled` maps a control's name to a Vega expression that says when it
    applies: elsewhere it is disabled. `renderer` is "svg", or "canvas" for hundreds of marks. `name` makes the
    figure's id (by default from the caption).

    Raises ValueError for a control that drives nothing, an unsupported kind of control, data over 120 kB, and
    texts that are empty or hold a `$`.
    """
    if not controls:
        raise ValueError("explore: no controls given; name at least one, such as P=IntSlider(...)")
    if not isinstance(renderer, str) or renderer not in ("svg", "canvas"):
        raise ValueError(f"explore: renderer = {shown(renderer)} is not allowed; it must be 'svg' or 'canvas'")
    for word, text in (("caption", caption), ("alt", alt)):
        if not isinstance(text, str) or not text.strip() or "$" in text:
            raise ValueError(f"explore: {word} = {shown(text)} is not allowed; it must be plain text without '$'")
    if name is None:
        name = "-".join(re.findall(r"[a-z0-9]+", caption.lower())[:6])
    if not isinstance(name, str) or not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
        raise ValueError(f"explore: name = {shown(name)} is not allowed; use small letters, digits and hyphens")
    described = [describe(key, widget) for key, widget in controls.items()]
    enabled = _conditions(enabled)
    built = specification.build(chart, described, enabled, alt)
    return Explorer(name, built, described, enabled, controls, caption, alt, renderer)


def _conditions(enabled):
    """What `enabled` maps; ValueError unless it maps names to Vega expressions."""
    enabled = {} if enabled is None else enabled
    if not isinstance(enabled, Mapping) or not all(isinstance(one, str) and one for pair in enabled.items()
                                                   for one in pair):
        raise ValueError(f"explore: enabled = {shown(enabled)} is not allowed; it must map names of controls to Vega "
                         "expressions")
    return dict(enabled)

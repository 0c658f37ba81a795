"""An explorer with a kernel: the controls are ipywidgets, the chart an anywidget, linked in the browser."""

from html import escape

import anywidget
import ipywidgets
import traitlets

from scalebook.explorer import assets


class ChartView(anywidget.AnyWidget):
    """The chart of one explorer. Its subclass for an explorer has one synchronised trait a signal."""

    _esm = assets.module()
    _css = assets.stylesheet()
    spec = traitlets.Dict().tag(sync=True)
    renderer = traitlets.Unicode().tag(sync=True)
    signals = traitlets.List().tag(sync=True)
    disabling = traitlets.List().tag(sync=True)
    drawn = traitlets.Int(0).tag(sync=True)

    def __init__(self, **values):
        """Take the values of the traits, and answer a browser that asks for Vega."""
        super().__init__(**values)
        self.on_msg(self._answer)

    def _answer(self, _widget, message, _buffers):
        if message == {"ask": "vega"}:
            self.send({"vega": assets.vega_bundle()})


def view(spec, controls, enabled, renderer):
    """Return the chart's widget: a trait for each control's signal, and for each control that may be disabled."""
    disabling = [f"{name}_disabled" for name in enabled]
    traits = {control.signal: traitlets.Any(control.position).tag(sync=True) for control in controls}
    traits |= {name: traitlets.Bool(False).tag(sync=True) for name in disabling}
    kind = type("ExplorerView", (ChartView,), traits)
    return kind(spec=spec, renderer=renderer, signals=[c.signal for c in controls], disabling=disabling)


def box(chart_view, controls, enabled, widgets, caption):
    """Return the controls above the chart, each tied to its signal by a link that lives in the browser."""
    width = f"{max(len(control.label) for control in controls) * 0.6 + 1:.0f}em"
    for control in controls:
        widget = widgets[control.name]
        widget.style.description_width = width
        widget.layout.width = "min(34em, 100%)"
        ipywidgets.jslink((widget, control.trait), (chart_view, control.signal))
        if control.name in enabled:
            ipywidgets.jslink((chart_view, f"{control.name}_disabled"), (widget, "disabled"))
    return ipywidgets.VBox([*widgets.values(), chart_view, ipywidgets.HTML(escape(caption))])

"""An explorer as a page has it: a figure with native inputs, the chart's specification, and a still picture."""

import json
from html import escape

from scalebook.explorer.controls import decimals


def html(name, spec, controls, enabled, caption, renderer):
    """Return the figure as HTML, the same to the byte for the same arguments.

    The inputs stay hidden until the page's script has drawn the chart, so that without it there is no dead slider.
    """
    inputs = "\n".join(_control(name, control, control.name in enabled) for control in controls)
    return (f'<figure class="explorer" id="explorer-{name}" data-renderer="{renderer}">\n'
            f'<div class="explorer-controls" hidden>\n{inputs}\n</div>\n'
            f'<div class="explorer-view"></div>\n'
            f"<!--explorer-still-->\n"
            f"<figcaption>{escape(caption)}</figcaption>\n"
            f'<script type="application/json" class="explorer-spec">{script_text(spec)}</script>\n'
            f"</figure>")


def script_text(spec):
    """Write a specification as the JSON of a script element: ASCII, and nothing in it ends the element.

    >>> script_text({"a": "</script>"})
    '{"a":"\\\\u003c/script>"}'
    """
    return json.dumps(spec, separators=(",", ":"), ensure_ascii=True).replace("<", "\\u003c")


def _control(figure, control, may_be_disabled):
    identity = f"explorer-{figure}-{control.name}"
    common = (f'id="{identity}" data-signal="{control.signal}" autocomplete="off"'
              + (f' data-disabled="{control.name}_disabled"' if may_be_disabled else ""))
    label = f'<label for="{identity}">{escape(control.label)}</label>'
    if control.kind == "Checkbox":
        checked = " checked" if control.position else ""
        return f'<div class="explorer-control"> <input type="checkbox" {common}{checked}> {label} </div>'
    if control.kind == "Dropdown":
        options = " ".join(
            f'<option value="{index}"{" selected" if index == control.position else ""}>{escape(text)}</option>'
            for index, (text, _) in enumerate(control.options))
        return f'<div class="explorer-control"> {label} <select {common}> {options} </select> </div>'
    return (f'<div class="explorer-control"> {label} <input type="range" {common} {_range(control)}> '
            f'<output for="{identity}">{escape(_shown(control))}</output> </div>')


def _range(control):
    if control.options:
        labels = escape(json.dumps([text for text, _ in control.options]), quote=True)
        return (f'min="0" max="{len(control.options) - 1}" step="1" value="{control.position}" '
                f'data-labels="{labels}" aria-valuetext="{escape(_shown(control))}"')
    return (f'min="{control.minimum}" max="{control.maximum}" step="{control.step}" value="{control.position}" '
            f'data-decimals="{decimals(control.step)}"')


def _shown(control):
    if control.options:
        return control.options[control.position][0]
    return f"{control.position:.{decimals(control.step)}f}"

"""An explorer's picture, as matplotlib draws it: what `interact` would draw in a notebook in the explorer's place.

The marks are read from Vega's scene at the explorer's first positions: bars, curves, points, rules, areas and texts,
the titles of axes and the entries of legends. matplotlib draws them as one writes it, with one call for all bars,
points or rules of a mark, one for each curve and one for each text. What computing the marks would take is left out.
"""

from dataclasses import asdict, dataclass, field

KINDS = ("rect", "line", "area", "symbol", "rule", "text", "path", "trail", "arc")


@dataclass
class Panel:
    """One coordinate system: marks as (kind, items), the titles of its axes, and what its legend lists."""

    width: float
    height: float
    marks: list = field(default_factory=list)
    titles: list = field(default_factory=list)
    legend: list = field(default_factory=list)


def panels(chart, width=640):
    """Return the panels, as mappings, of a chart in Vega, drawn so many pixels wide.

    Raises ValueError when the scene holds a kind of mark that is not known, or no mark at all.
    """
    import vl_convert

    wide = [signal | {"init": str(width)} if signal["name"] == "width" else signal for signal in chart["signals"]]
    scene = vl_convert.vega_to_scenegraph(chart | {"signals": wide})
    whole = Panel(scene["width"], scene["height"])
    found = [whole]
    _read(scene["scenegraph"], whole, found)
    found = [panel for panel in found if panel.marks]
    if not found:
        raise ValueError("the scene has no marks")
    return [asdict(panel) for panel in found]


def _read(mark, panel, found):
    role, items = mark.get("role") or "", mark.get("items", [])
    if mark["marktype"] == "group" and not role.startswith(("axis", "legend")):
        for group in items:
            inner = panel
            if any((one.get("role") or "") == "axis" for one in group.get("items", [])):
                inner = Panel(group.get("width") or panel.width, group.get("height") or panel.height)
                found.append(inner)
            for one in group.get("items", []):
                _read(one, inner, found)
    elif mark["marktype"] == "group":
        for group in items:
            for one in group.get("items", []):
                _read(one, panel, found)
    elif role in ("axis-title", "legend-label"):
        (panel.titles if role == "axis-title" else panel.legend).extend(_text(item) for item in items)
    elif not role.startswith(("axis", "legend", "title")) and items:
        if mark["marktype"] not in KINDS:
            raise ValueError(f"a mark of the kind {mark['marktype']!r} is not known")
        panel.marks.append((mark["marktype"], [_plain(item) for item in items if item.get("opacity") != 0]))


def _plain(item):
    """What matplotlib needs of an item: numbers, a text and a colour."""
    colour = next((item[key] for key in ("fill", "stroke")
                   if isinstance(item.get(key), str) and item[key].startswith("#")), "#000000")
    numbers = {key: float(item.get(key) or 0) for key in ("x", "y", "width", "height", "size", "fontSize")}
    ends = {key: float(item[key] if item.get(key) is not None else numbers[key[0]]) for key in ("x2", "y2")}
    return numbers | ends | {"text": _text(item), "colour": colour, "path": item.get("path") or ""}


def _text(item):
    text = item.get("text")
    return "\n".join(map(str, text)) if isinstance(text, list) else "" if text is None else str(text)


# What a notebook runs: `draw(panels, step)` shows the picture, a little other at each step, as a slider would have it.
CODE = '''
%matplotlib inline
import json
import matplotlib.pyplot as plt
from ipywidgets import interact, IntSlider

PICTURES = json.load(open("pictures.json"))

def column(items, name):
    return [item[name] for item in items]

def draw_mark(axes, kind, items, scale):
    x, y, colours = [scale * value for value in column(items, "x")], column(items, "y"), column(items, "colour")
    if kind == "rect":
        axes.bar(x, column(items, "height"), column(items, "width"), y, align="edge", color=colours)
    elif kind in ("line", "trail"):
        axes.plot(x, y, color=colours[0])
    elif kind == "area":
        axes.fill_between(x, y, column(items, "y2"), color=colours[0])
    elif kind in ("symbol", "path", "arc"):
        axes.scatter(x, y, s=[item["size"] / 2 or 10 for item in items], c=colours)
    elif kind == "rule":
        axes.plot([x, column(items, "x2")], [y, column(items, "y2")], color=colours[0], linewidth=1)
    else:
        for one, at in zip(items, x):
            axes.text(at, one["y"], one["text"], color=one["colour"], fontsize=0.7 * (one["fontSize"] or 11))

def draw(panels, step):
    tall = sum(panel["height"] for panel in panels) / 100 + 0.6 * len(panels)
    figure, all_axes = plt.subplots(len(panels), figsize=(6.4, tall), squeeze=False)
    for axes, panel in zip(all_axes[:, 0], panels):
        for kind, items in panel["marks"]:
            if items:
                draw_mark(axes, kind, items, 1 - step / 1000)
        axes.set(xlim=(0, panel["width"]), ylim=(panel["height"], 0))
        for place, title in zip((axes.set_xlabel, axes.set_ylabel), panel["titles"]):
            place(title)
        if panel["legend"]:
            axes.legend(handles=[plt.Line2D([], [], label=label) for label in panel["legend"]])
    plt.show()
'''


def cell(name):
    """The code of one cell: `interact` with the picture of one explorer."""
    return f'''
@interact(step=IntSlider(value=8, min=0, max=64))
def show(step):
    draw(PICTURES[{name!r}], step)
'''

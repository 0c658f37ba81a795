"""Explorers without a browser: the figure of a page, the widgets of a kernel, and errors before a reader meets them.

This file also runs under Colab's versions (ipywidgets 7.7.1), where the links between widgets must be the same.
"""

import hashlib
import json
import os
import subprocess
import sys
from html.parser import HTMLParser

import altair as alt
import ipywidgets as widgets
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vega_oracle import evaluate_rows

from scalebook.explorer import assets, explore, grid, pack, unpack_expression
from scalebook.explorer import spec as specification
from scalebook.explorer.controls import SUPPORTED, decimals, describe

# What ipywidgets 7.7.1 says of itself under a later traitlets; Colab's readers see none of it.
pytestmark = pytest.mark.filterwarnings("ignore:Deprecated in traitlets 4.1:DeprecationWarning")


def line(expression="P * datum.M + 0 * v"):
    rows = alt.sequence(1, 9, as_="M")
    return alt.Chart(rows).transform_calculate(time=expression).mark_line().encode(x="M:Q", y="time:Q")


def controls():
    return {"P": widgets.IntSlider(8, 2, 16, 1, description="P, stages"),
            "v": widgets.SelectionSlider(options=[("one", 1), ("two", 2), ("four", 4)], description="v, chunks")}


def example(**changes):
    arguments = {"caption": "Time against micro-batches", "alt": "a rising line", **controls()} | changes
    chart = arguments.pop("chart", None) or line(" + ".join(f"0 * {name}" for name in arguments
                                                            if hasattr(arguments[name], "observe")) + " + datum.M")
    return explore(chart, **arguments)


class Tags(HTMLParser):
    """Collects (tag, attributes, text directly inside) of a piece of HTML."""

    def __init__(self, html):
        super().__init__()
        self.found, self.comments, self._open = [], [], []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.found.append([tag, dict(attrs), ""])
        if tag != "input":
            self._open.append(self.found[-1])

    def handle_endtag(self, tag):
        assert self._open.pop()[0] == tag, f"</{tag}> closes another element"

    def handle_data(self, data):
        if self._open:
            self._open[-1][2] += data

    def handle_comment(self, data):
        self.comments.append(data)

    def all(self, name):
        return [(attributes, text) for tag, attributes, text in self.found if tag == name]


# ---- the page's form -----------------------------------------------------------------------------------------------

WRITE = """
import hashlib, sys
from test_explorer import example
sys.stdout.write(example().html)
"""


def test_the_html_is_the_same_to_the_byte_in_every_process():
    pages = [subprocess.run([sys.executable, "-c", WRITE], capture_output=True, check=True, text=True,
                            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}).stdout
             for seed in ("0", "1", "271828")]
    assert len({hashlib.sha256(page.encode()).hexdigest() for page in pages}) == 1
    assert pages[0] == example().html
    assert pages[0].startswith('<figure class="explorer" id="explorer-time-against-micro-batches"')


def test_the_figure_has_its_parts_in_order():
    page = Tags(example(name="time").html)
    assert [tag for tag, attributes, _ in page.found if attributes.get("class") != "explorer-control"] == [
        "figure", "div", "label", "input", "output", "label", "input", "output", "div", "figcaption", "script"]
    (figure, _), = page.all("figure")
    assert figure == {"class": "explorer", "id": "explorer-time", "data-renderer": "svg"}
    assert page.comments == ["explorer-still"]
    assert page.all("figcaption")[0][1] == "Time against micro-batches"
    bar = page.all("div")[0][0]
    assert bar["class"] == "explorer-controls"
    assert "hidden" in bar, "no dead slider without the script"


def test_each_label_belongs_to_one_input_and_each_identity_is_unique():
    page = Tags(example(shown=widgets.Checkbox(True, description="show"),
                        kind=widgets.Dropdown(options=["a", "b"], description="kind")).html)
    inputs = {attributes["id"]: attributes for attributes, _ in page.all("input") + page.all("select")}
    assert [attributes["for"] for attributes, _ in page.all("label")] == list(inputs)
    assert len(inputs) == 4
    for attributes, _ in page.all("output"):
        assert attributes["for"] in inputs
    identities = [attributes["id"] for _, attributes, _ in page.found if "id" in attributes]
    assert len(identities) == len(set(identities))


def test_selections_drive_the_chart_by_index_and_the_chart_sees_the_value():
    for kind in (widgets.SelectionSlider, widgets.Dropdown):
        explorer = example(v=kind(options=[("one", 1), ("two", 2), ("four", 4)], index=2, description="v"))
        params = {param["name"]: param for param in explorer.spec["params"]}
        assert params["v_index"] == {"name": "v_index", "value": 2}
        assert params["v"] == {"name": "v", "expr": "[1, 2, 4][v_index]"}
        assert params["P"] == {"name": "P", "value": 8}
        page = Tags(explorer.html)
        signals = [attributes["data-signal"] for attributes, _ in page.all("input") + page.all("select")]
        assert sorted(signals) == ["P", "v_index"]


def test_a_dropdown_shows_each_option_under_its_index():
    page = Tags(example(v=widgets.Dropdown(options=[("one", 1), ("two", 2), ("four", 4)], index=1)).html)
    assert page.all("option") == [({"value": "0"}, "one"), ({"value": "1", "selected": None}, "two"),
                                  ({"value": "2"}, "four")]


def test_a_selection_slider_reads_out_its_label():
    page = Tags(example().html)
    slider = page.all("input")[1][0]
    assert (slider["min"], slider["max"], slider["step"], slider["value"]) == ("0", "2", "1", "0")
    assert json.loads(slider["data-labels"]) == ["one", "two", "four"]
    assert slider["aria-valuetext"] == "one"
    assert page.all("output")[1][1] == "one"


def test_a_float_slider_reads_out_as_many_decimals_as_its_step_has():
    page = Tags(example(P=widgets.FloatSlider(0.3, min=0.1, max=0.9, step=0.05)).html)
    slider = page.all("input")[0][0]
    assert (slider["min"], slider["max"], slider["step"], slider["value"]) == ("0.1", "0.9", "0.05", "0.3")
    assert slider["data-decimals"] == "2"
    assert page.all("output")[0][1] == "0.30"
    assert [decimals(step) for step in (1, 1.0, 0.5, 0.05, 0.125)] == [0, 0, 1, 2, 3]


@pytest.mark.filterwarnings("ignore:Support for mapping types:DeprecationWarning")
def test_options_may_be_values_pairs_or_a_mapping():
    for options in ([1, 2], [("1", 1), ("2", 2)], {"1": 1, "2": 2}):
        assert describe("v", widgets.Dropdown(options=options)).options == (("1", 1), ("2", 2))


def test_positions_end_where_the_slider_ends():
    assert describe("a", widgets.IntSlider(1, 1, 10, 4)).positions == (1, 5, 9)
    assert describe("a", widgets.IntSlider(0, 0, 10, 6)).positions == (0, 6)
    tenths = describe("a", widgets.FloatSlider(0.1, min=0.1, max=0.7, step=0.1)).positions
    assert tenths == (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
    assert describe("a", widgets.Checkbox(False)).positions == (False, True)
    assert describe("a", widgets.Dropdown(options="xyz")).positions == (0, 1, 2)


def test_a_position_with_a_rounding_error_is_cut_to_the_slider_own():
    slider = widgets.FloatSlider(0.1 + 0.2, min=0.1, max=0.9, step=0.1)
    assert describe("P", slider).position == 0.3
    assert "0.30000000000000004" not in example(P=slider).html


def test_labels_and_captions_are_escaped():
    explorer = example(caption="a < b & c", name="escaped",
                       P=widgets.IntSlider(8, 2, 16, description='<b>"P" & co</b>'),
                       v=widgets.SelectionSlider(options=[('<i>"1"', 1), ("a'&", 2)]))
    page = Tags(explorer.html)
    assert page.all("label")[0][1] == '<b>"P" & co</b>'
    assert page.all("figcaption")[0][1] == "a < b & c"
    assert json.loads(page.all("input")[1][0]["data-labels"]) == ['<i>"1"', "a'&"]
    assert not page.all("b")
    assert not page.all("i")


@pytest.mark.parametrize("hostile", ["</script><b>", "<!--<script>", "<!--explorer-still-->", "\u2028 <![CDATA["])
def test_data_cannot_end_the_script_it_stands_in(hostile):
    chart = alt.Chart(alt.Data(values=[{"name": hostile, "x": 1}])).transform_calculate(y="P * v").mark_point().encode(
        x="x:Q", y="y:Q", tooltip="name:N")
    explorer = example(chart=chart, name="hostile")
    page = Tags(explorer.html)
    (attributes, body), = page.all("script")
    assert attributes["type"] == "application/json"
    assert json.loads(body) == explorer.spec
    assert explorer.spec["data"]["values"][0]["name"] == hostile
    assert page.comments == ["explorer-still"]


def test_the_renderer_and_what_may_be_disabled_reach_the_page():
    explorer = example(renderer="canvas", enabled={"v": "P > 4"})
    page = Tags(explorer.html)
    assert page.all("figure")[0][0]["data-renderer"] == "canvas"
    assert [attributes.get("data-disabled") for attributes, _ in page.all("input")] == [None, "v_disabled"]
    assert {"name": "v_disabled", "expr": "!(P > 4)"} in explorer.spec["params"]


# ---- the specification ---------------------------------------------------------------------------------------------

@given(st.floats(-1e12, 1e12), st.integers(1, 8))
@settings(deadline=None)
def test_rounding_keeps_six_digits(number, digits):
    short = specification.rounded(number, digits)
    assert short == pytest.approx(number, rel=0.51 * 10 ** (1 - digits), abs=1e-300)
    assert specification.rounded([{"a": (short,)}], digits) == [{"a": [short]}]
    assert len(repr(abs(short)).split("e")[0].replace(".", "").strip("0")) <= digits


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_json_cannot_write_is_refused(number):
    chart = alt.Chart(alt.Data(values=[{"x": number}])).transform_calculate(y="P*v").mark_point().encode(y="y:Q")
    with pytest.raises(ValueError, match=r"the chart's data holds (nan|inf|-inf); only finite numbers"):
        example(chart=chart)


def test_data_sets_are_named_by_their_order_and_not_by_a_hash():
    points = {"mark": "point", "encoding": {"x": {"field": "x"}, "y": {"value": {"expr": "P + v"}}}}
    spec = {"datasets": {"data-9f8e7d": [{"x": 1}], "data-1a2b3c": [{"x": 2}]}, "vconcat": [
        points | {"data": {"name": "data-9f8e7d"}}, points | {"data": {"name": "data-1a2b3c", "format": {}}}]}
    built = example(chart=spec).spec
    assert built["datasets"] == {"data-0": [{"x": 1}], "data-1": [{"x": 2}]}
    assert [unit["data"]["name"] for unit in built["vconcat"]] == ["data-0", "data-1"]


def test_the_chart_given_is_not_changed():
    spec = line("P * v").to_dict()
    before = json.dumps(spec)
    example(chart=spec)
    assert json.dumps(spec) == before


def test_the_name_comes_from_the_caption_unless_given():
    assert example(caption="The bubble, for P = 8: 7/32 of the time").name == "the-bubble-for-p-8-7"
    assert 'id="explorer-given-1"' in example(name="given-1").html


def test_the_still_is_a_png_of_the_chart():
    picture = specification.still(example().spec)
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    assert int.from_bytes(picture[16:20], "big") == 2 * specification.STILL_WIDTH


# ---- errors --------------------------------------------------------------------------------------------------------

def refused(message, **changes):
    with pytest.raises(ValueError, match=message):
        example(**changes)


@pytest.mark.parametrize("chart", [
    line("datum.M * v"),  # nothing
    line("datum.P * v"),  # a field of that name
    line("v + (datum.kind == 'P')"),  # a text
    line("v * PP"),  # another name
    line("v").encode(x=alt.X("M:Q", title="M for P")).properties(title="the P chart"),  # texts of the chart
], ids=["absent", "field", "text", "longer name", "titles"])
def test_a_dead_control_is_refused(chart):
    refused("nothing in the chart uses P; its control would be dead", chart=chart, alt="P on the chart", caption="P")


@pytest.mark.parametrize("chart", [
    line("v").transform_filter("datum.M < P"),
    line("v").mark_line(opacity=alt.expr("P / 16")),
    line("v").encode(y=alt.Y("time:Q").axis(labelExpr="P + datum.label")),
    line("v").encode(color=alt.condition("datum.M == P", alt.value("red"), alt.value("blue"))),
    line("v").add_params(alt.param(name="twice", expr="2 * P")).transform_calculate(w="twice"),
    {"layer": [line("v").to_dict(), {"mark": "rule", "encoding": {"x": {"datum": {"expr": "P"}}}}]},
], ids=["filter", "mark", "label", "condition", "param", "layer"])
def test_every_place_where_a_signal_can_act_counts_as_used(chart):
    assert example(chart=chart).controls[0].name == "P"


class Other:
    """A control of a kind that no page has."""

    description = ""


@pytest.mark.parametrize("make", [
    lambda: widgets.Play(), lambda: widgets.IntRangeSlider(), lambda: widgets.FloatText(), lambda: widgets.Text(),
    lambda: widgets.ToggleButton(), lambda: widgets.RadioButtons(options=[1, 2]), Other])
def test_other_kinds_of_control_are_refused(make):
    widget = make()
    refused(rf"P = {type(widget).__name__} is not supported; use one of {', '.join(SUPPORTED)}", P=widget)


@pytest.mark.parametrize("name", ["E", "PI", "datum", "width", "in", "if", "unit"])
def test_a_name_that_vega_reads_as_its_own_is_refused(name):
    with pytest.raises(ValueError, match=f"'{name}' cannot name a signal, since Vega reads it as its own"):
        explore(line(f"2 * {name}"), caption="c", alt="a", **{name: widgets.IntSlider()})


def test_names_that_are_no_identifiers_are_refused():
    refused("'t-f' cannot name a signal", **{"t-f": widgets.IntSlider()})
    refused("'_P' cannot name a signal", **{"_P": widgets.IntSlider()})


def test_a_dollar_in_a_text_is_refused():
    refused(r"the label '\$P\$' of P has a '\$'", P=widgets.IntSlider(8, 2, 16, description="$P$"))
    refused(r"the label '\$1' of v has a '\$'", v=widgets.Dropdown(options=[("$1", 1), ("2", 2)]))
    refused(r"caption = '\$x\$' is not allowed", caption="$x$")
    refused(r"alt = '\$x\$' is not allowed", alt="$x$")


def test_empty_texts_are_refused():
    refused("caption = ' ' is not allowed", caption=" ")
    refused("alt = '' is not allowed", alt="")


def test_a_control_with_one_position_or_none_of_them_is_refused():
    refused("P has 1 position; a control needs at least two", P=widgets.IntSlider(3, 3, 3))
    refused("v has 1 position", v=widgets.Dropdown(options=[1]))
    refused("v stands at None, which is none of its positions", v=widgets.Dropdown(options=[1, 2], value=None))
    refused("P stands at 3, which is none of its positions, 2 to 16 in steps of 2", P=widgets.IntSlider(3, 2, 16, 2))


def test_an_option_that_json_cannot_carry_is_refused():
    refused(r"v has the option \(1, 2\); a page carries numbers, texts and booleans",
            v=widgets.Dropdown(options=[("a", (1, 2)), ("b", 3)]))


def test_the_size_limit_holds():
    rows = [{"x": i, "text": "x" * 90} for i in range(1200)]
    chart = alt.Chart(alt.Data(values=rows)).transform_calculate(y="P*v").mark_point().encode(x="x:Q", y="y:Q")
    refused(r"the specification is 1\d\d,\d\d\d bytes; at most 120,000 are allowed", chart=chart)


def test_names_made_up_by_counters_are_refused():
    chart = line("P*v").add_params(alt.selection_point())
    refused(r"the chart uses the name '(param|view)_[0-9a-f]+', which changes from run to run", chart=chart)


def test_enabled_must_name_a_control():
    refused("enabled names 'w'; the controls are P, v", enabled={"w": "P > 1"})


@pytest.mark.parametrize("name", ["Upper", "with space", "-a", "a--b", "ä", '"'])
def test_a_name_that_is_no_identity_is_refused(name):
    refused("is not allowed; use small letters, digits and hyphens", name=name)


def test_without_controls_or_with_another_renderer_there_is_no_explorer():
    with pytest.raises(ValueError, match="no controls given; name at least one"):
        explore(line(), caption="c", alt="a")
    refused("renderer = 'webgl' is not allowed", renderer="webgl")


# ---- grids ---------------------------------------------------------------------------------------------------------

@given(st.integers(1, 4).flatmap(lambda width: st.tuples(
    st.just(width), st.lists(st.integers(0, 36**width - 1), min_size=1, max_size=30))))
@settings(deadline=None, max_examples=12)
def test_vega_unpacks_what_python_packs(case):
    width, numbers = case
    text = pack(numbers, width)
    assert len(text) == width * len(numbers)
    rows = [{"s": text, "i": i} for i in range(len(numbers))]
    assert evaluate_rows(unpack_expression("datum.s", "datum.i", width), rows) == numbers
    shifted = unpack_expression("datum.s", "datum.i - 1", width)
    assert evaluate_rows(shifted, [row | {"i": row["i"] + 1} for row in rows]) == numbers


@pytest.mark.parametrize(("number", "width"), [(-1, 2), (36**2, 2), (1.5, 2), (36, 1)])
def test_a_number_that_does_not_fit_is_not_packed(number, width):
    with pytest.raises(ValueError, match=rf"pack: {number} is not a whole number from 0 to {36**width - 1}"):
        pack([number], width)


def test_a_grid_calls_once_for_each_combination_in_order():
    calls = []

    def rows(a, b):
        calls.append((a, b))
        return None if a == b else [{"n": a}, {"n": b}] if a < b else {"n": a * b}

    assert grid(rows, a=[1, 2], b=[1, 2]) == [
        {"a": 1, "b": 2, "n": 1}, {"a": 1, "b": 2, "n": 2}, {"a": 2, "b": 1, "n": 2}]
    assert calls == [(1, 1), (1, 2), (2, 1), (2, 2)]


def test_a_grid_refuses_an_empty_range_and_a_clash():
    with pytest.raises(ValueError, match=r"grid: a = \[\] is empty"):
        grid(lambda a: {}, a=[])
    with pytest.raises(ValueError, match="returned 'a', which is the name of a control"):
        grid(lambda a: {"a": 1}, a=[1])


# ---- the two forms in a notebook -----------------------------------------------------------------------------------

@pytest.fixture
def outputs(monkeypatch):
    """What a cell's last expression displays."""
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda *args, **keywords: shown.append((args, keywords)))
    return shown


def test_static_mode_displays_the_still_and_then_the_figure(outputs, monkeypatch):
    monkeypatch.setenv("SCALEBOOK_STATIC", "1")
    explorer = example(name="time")
    explorer._ipython_display_()
    (still, still_options), (figure, figure_options) = outputs
    assert set(still[0]) == {"image/png", "text/plain"}
    assert still[0]["text/plain"] == "a rising line"
    assert still[0]["image/png"].startswith(b"\x89PNG")
    assert still_options == {"raw": True, "metadata": {"scalebook": {"still": "explorer-time"}}}
    assert figure[0] == {"text/html": explorer.html, "text/plain": "Time against micro-batches"}
    assert figure_options == {"raw": True}


@pytest.mark.parametrize("setting", [None, "", "0"])
def test_otherwise_the_live_widgets_are_displayed_and_no_html(outputs, monkeypatch, setting):
    monkeypatch.delenv("SCALEBOOK_STATIC", raising=False)
    if setting is not None:
        monkeypatch.setenv("SCALEBOOK_STATIC", setting)
    explorer = example()
    explorer._ipython_display_()
    assert outputs == [((explorer.box,), {})]


def links_of(view):
    """(source widget, trait, target widget, trait) of every link in the browser that touches the view."""
    instances = getattr(widgets.Widget, "_instances", None)
    if instances is None:  # ipywidgets 7, and 8 before 8.0.3
        instances = getattr(widgets.widgets.widget, "_instances", None) or widgets.Widget.widgets
    links = [one for one in instances.values() if isinstance(one, widgets.widgets.widget_link.Link)]
    return [(*link.source, *link.target) for link in links if view in (link.source[0], link.target[0])]


def test_the_live_view_has_a_trait_for_every_signal_at_its_first_value():
    explorer = example(enabled={"v": "P > 4"}, shown=widgets.Checkbox(True),
                       kind=widgets.Dropdown(options=["a", "b"], index=1))
    view = explorer.view
    assert view.signals == ["P", "v_index", "shown", "kind_index"]
    assert [getattr(view, name) for name in view.signals] == [8, 0, True, 1]
    assert view.disabling == ["v_disabled"]
    assert view.v_disabled is False
    assert {*view.signals, "v_disabled", "spec", "renderer", "drawn"} <= set(view.trait_names(sync=True))
    assert view.spec == explorer.spec
    assert explorer.view is view, "one view, however often it is asked for"


def test_links_in_the_browser_tie_the_index_of_selections_and_the_value_of_sliders():
    explorer = example(enabled={"v": "P > 4"}, shown=widgets.Checkbox(True),
                       kind=widgets.Dropdown(options=["a", "b"]))
    view, own = explorer.view, explorer.widgets
    assert set(links_of(view)) == {
        (own["P"], "value", view, "P"), (own["v"], "index", view, "v_index"), (own["shown"], "value", view, "shown"),
        (own["kind"], "index", view, "kind_index"), (view, "v_disabled", own["v"], "disabled")}


def test_the_box_holds_the_controls_then_the_chart_then_the_caption():
    explorer = example()
    assert explorer.box.children[:2] == (explorer.widgets["P"], explorer.widgets["v"])
    assert explorer.box.children[2] is explorer.view
    assert explorer.box.children[3].value == "Time against micro-batches"


def test_the_kernel_sends_vega_only_when_asked(monkeypatch):
    view = example().view
    sent = []
    monkeypatch.setattr(view, "send", sent.append)
    view._handle_custom_msg({"ask": "something else"}, [])
    assert sent == []
    view._handle_custom_msg({"ask": "vega"}, [])
    assert sent == [{"vega": assets.vega_bundle()}]


# ---- scripts and styles --------------------------------------------------------------------------------------------

def test_the_script_of_the_page_is_the_module_without_its_export():
    module, page = assets.module(), assets.page_script()
    assert "export default { render };" in module
    assert "export " not in page.replace("//", "")
    assert "start(document.currentScript.src);" in page
    assert page.startswith("(function () {")


def test_the_bundle_is_wrapped_and_defines_vega_embed():
    bundle = assets.vega_bundle()
    assert bundle.startswith("(function () {\n")
    assert bundle.endswith("\n})();\n")
    assert "vegaEmbed" in bundle
    assert len(bundle) < 1_000_000


def test_importing_the_explorer_is_quick_and_brings_no_heavy_library():
    code = ("import sys, scalebook.explorer\n"
            "print([m for m in ('torch', 'altair', 'anywidget', 'ipywidgets', 'matplotlib') if m in sys.modules])")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

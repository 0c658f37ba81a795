"""The tests of the explorers can fail: a small explorer that is wrong in each way is found out."""

from fractions import Fraction

import altair as alt
import ipywidgets as widgets
import pytest

from scalebook.explorer import explore
from tests.browser.conftest import HERE, page_of
from tests.browser.drawn import differences
from tests.browser.moving import Explorer, steps
from tests.browser.oracles import percent, significant
from tests.browser.site_pages import served
from tests.browser.small_page import write_page
from tests.browser.test_explorers_draw import check_control
from tests.chromium import watched_page

pytestmark = pytest.mark.browser
NUMBERS = range(1, 9)


SCALE = alt.Scale(domain=[0, 64], nice=False)


def chart(time="P * datum.M", y=None, **more):
    made = alt.Chart(alt.sequence(1, 9, as_="M")).transform_calculate(
        time=time, kind="datum.M % 2 ? 'odd' : 'even'", **more)
    return made.mark_point(clip=True).encode(
        x="M:Q", y=y or alt.Y("time:Q", scale=SCALE),
        color=alt.Color("kind:N", scale=alt.Scale(domain=["odd", "even"], range=["#0072b2", "#d55e00"])))


def oracle(P, **_):
    return {"marks": [{"x": m, "y": P * m, "color": "odd" if m % 2 else "even"} for m in NUMBERS]}


@pytest.fixture(scope="module")
def window(browser):
    """A window for all pages of the tests, and what they did wrong."""
    page, watch = watched_page(browser, viewport={"width": 900, "height": 700})
    yield page, watch
    page.context.close()


@pytest.fixture
def problems(window, tmp_path):
    """A function that writes an explorer as a page and returns what the tests find wrong with its control P."""
    page, watch = window

    def find(built, expected=oracle, change=lambda html: html, control="P"):
        page_file, (figure,) = write_page(tmp_path, built)
        page_file.write_text(change(page_file.read_text(encoding="utf-8")), encoding="utf-8")
        page.goto(page_file.as_uri())
        found = Explorer(page, figure)
        result = check_control(found, next(one for one in figure.inputs if one.name == control), expected)
        assert watch.clean(), watch
        return result

    return find


def small(drawing=None, enabled=None, **controls):
    controls = controls or {"P": widgets.IntSlider(4, 1, 8)}
    return explore(drawing or chart(), caption="c", alt="a", name="small", enabled=enabled, **controls)


def test_a_right_explorer_has_no_problem(problems):
    assert problems(small()) == []


@pytest.mark.parametrize("P", [
    widgets.SelectionSlider(options=[("one", 1), ("four", 4), ("eight", 8)]),
    widgets.Dropdown(options=[1, 4, 8]), widgets.FloatSlider(0.5, min=0.5, max=7.5, step=0.5)])
def test_every_kind_of_control_is_moved(problems, P):
    assert problems(small(P=P)) == []


def test_a_checkbox_is_moved(problems):
    def doubled(twice):
        return {"marks": [{"x": m, "y": (2 if twice else 1) * m} for m in NUMBERS]}

    built = small(chart("(twice ? 2 : 1) * datum.M"), twice=widgets.Checkbox(True))
    assert problems(built, doubled, control="twice") == []


def test_the_canvas_is_read_like_svg(problems):
    built = explore(chart(), caption="c", alt="a", name="small", renderer="canvas", P=widgets.IntSlider(4, 1, 8))
    assert problems(built) == []


def test_a_page_that_forbids_code_made_from_text_still_draws(browser, tmp_path):
    page_file, (figure,) = write_page(tmp_path, small())
    policy = "<meta http-equiv=Content-Security-Policy content=\"script-src 'self'\">"
    page_file.write_text(page_file.read_text(encoding="utf-8").replace("<head>", f"<head>{policy}"), encoding="utf-8")
    page, watch = watched_page(browser, bypass_csp=False)
    with served(tmp_path) as address:
        page.goto(f"{address}/index.html")
        assert check_control(Explorer(page, figure), figure.inputs[0], oracle) == []
        page.context.close()
    assert watch.failed == watch.foreign == []
    assert [error for error in watch.errors if "Content Security Policy" not in error] == []


def test_an_explorer_that_cannot_be_drawn_says_so_where_a_reader_sees_it(browser, tmp_path):
    page_file, _ = write_page(tmp_path, small())
    (tmp_path / "_static" / "vega.js").write_text("window.vega = { parse() { throw new Error('no Vega'); } };")
    page, _ = watched_page(browser)
    page.goto(page_file.as_uri())
    note = page.locator(".explorer-error")
    note.wait_for(state="visible")
    assert note.bounding_box()["height"] > 10
    assert note.inner_text() == "This explorer could not be drawn: no Vega"
    assert page.locator(".explorer-controls").is_hidden()
    page.context.close()


def test_vega_that_did_not_come_is_asked_for_again_by_the_next_explorer(browser, tmp_path):
    """One lost connection must not cost the reader all the explorers of a page."""
    far_down = explore(chart(), caption="c", alt="a", name="far-down", P=widgets.IntSlider(4, 1, 8))
    page_file, _ = write_page(tmp_path, small(), far_down)
    gap = '<div style="height: 9000px"></div><figure'
    html = page_file.read_text(encoding="utf-8")
    page_file.write_text(gap.join(html.rsplit("<figure", 1)), encoding="utf-8")
    page, _ = watched_page(browser)
    with served(tmp_path) as address:
        page.route("**/vega.js", lambda route: route.abort(), times=1)
        page.goto(f"{address}/index.html")
        page.locator("#explorer-small[data-state=failed]").wait_for()
        page.locator("#explorer-far-down").scroll_into_view_if_needed()
        page.locator("#explorer-far-down[data-state=ready]").wait_for()
        page.context.close()


def test_bars_lines_rules_and_texts_are_read_in_units_of_the_data(problems):
    values = alt.Chart(alt.sequence(1, 9, as_="M")).transform_calculate(
        time="P * datum.M", base="P / 2", label="'t' + datum.time")
    x, y = alt.X("time:Q", scale=SCALE), alt.Y("M:O")
    layers = alt.layer(
        values.mark_bar().encode(x=x, x2="base:Q", y=y).properties(name="bar"),
        values.mark_rule().encode(x=x, x2="base:Q", y=y).properties(name="rule"),
        values.mark_line().encode(x=x, y=y).properties(name="line"),
        values.mark_text().encode(x=x, y=y, text="label:N").properties(name="label"))

    def expected(P):
        rows = [{"x": P * m, "y": m} for m in NUMBERS]
        long = [row | {"x2": Fraction(P, 2)} for row in rows]
        return {"bar": long, "rule": long, "line": rows, "label": [row | {"text": f"t{row['x']}"} for row in rows]}

    assert problems(small(layers)) != []
    assert problems(small(layers), expected) == []


def test_a_dead_control_is_found(problems):
    found = problems(small(chart("4 * datum.M + 0 * P")), lambda P: oracle(4))
    assert found == [f"explorer-small-P: from {start} to {end} nothing changes in the picture"
                     for start, end in ((1, 2), (4, 5), (8, 7))]


def test_a_change_outside_the_picture_is_no_change(problems):
    found = problems(small(chart("P * 100 + datum.M")),
                     lambda P: {"marks": [{"x": m, "y": 100 * P + m} for m in NUMBERS]})
    assert len(found) == 3
    assert all("nothing changes in the picture" in text for text in found)


def test_a_wrong_datum_is_found(problems):
    found = problems(small(chart("P * datum.M + (datum.M == 3 ? 0.01 : 0)")))
    assert len(found) == 6
    assert all("marks: 8 items expected, 8 drawn; expected and not drawn: [{'x': 3.0" in text for text in found)


def test_a_wrong_value_at_one_position_is_found(problems):
    found = problems(small(chart("(P == 8 ? 7 : P) * datum.M")))
    assert any("at {'P': 8}" in text for text in found)
    assert not any("at {'P': 4}" in text for text in found)


@pytest.mark.parametrize("place", [
    alt.Y("shown:Q", scale=SCALE),  # another field than the datum's
    alt.Y("time:Q", scale=None),  # pixels instead of units
    alt.YValue(alt.ExprRef("300 - 4 * datum.time")),  # pixels of its own making
], ids=["field", "pixels", "expression"])
def test_a_right_datum_at_a_wrong_place_is_found(problems, place):
    values = alt.Chart(alt.sequence(1, 9, as_="M")).transform_calculate(time="P * datum.M", shown="datum.time + 1")
    right = values.mark_line().encode(x="M:Q", y=alt.Y("time:Q", scale=SCALE)).properties(name="line")
    wrong = values.mark_point().encode(x="M:Q", y=place, tooltip="time:Q").properties(name="point")
    rows = {P: [{"x": m, "y": P * m} for m in NUMBERS] for P in range(1, 9)}
    found = problems(small(right + wrong), lambda P: {"line": rows[P], "point": rows[P]})
    assert len(found) == 6
    assert all(": point: 8 items expected, 8 drawn" in text for text in found)


def test_a_mark_moved_in_pixels_is_found(problems):
    found = problems(small(chart().mark_point(yOffset=3)))
    assert len(found) == 6
    assert all("8 items expected, 8 drawn" in text for text in found)


def test_a_wrong_colour_is_found(problems):
    swapped = chart(kind2="datum.kind == 'odd' ? 'even' : 'odd'").encode(
        color=alt.Color("kind2:N", scale=alt.Scale(domain=["odd", "even"], range=["#0072b2", "#d55e00"])))
    assert len(problems(small(swapped))) == 6


def test_a_missing_item_and_one_too_many_are_found(problems):
    assert len(problems(small(chart().transform_filter("datum.M < 8")))) == 6
    few = problems(small(), lambda P: {"marks": oracle(P)["marks"][:-1]})
    assert all("7 items expected, 8 drawn; expected and not drawn: []" in text for text in few)
    assert len(few) == 6


def test_a_mark_that_the_oracle_does_not_name_is_found(problems):
    found = problems(small(), lambda P: {})
    assert len(found) == 6
    assert all("marks: drawn, but the oracle does not say what it should be" in text for text in found)


def test_a_control_that_is_always_disabled_is_found(problems):
    assert problems(small(enabled={"P": "false"})) == ["explorer-small-P is disabled whatever the other controls say"]


def test_a_control_that_applies_only_elsewhere_is_tried_there(problems):
    built = small(chart("(on ? P : 4) * datum.M"), enabled={"P": "on"},
                  P=widgets.IntSlider(4, 1, 8), on=widgets.Checkbox(False))
    assert problems(built, lambda P, on: oracle(P if on else 4)) == []
    dead_there = small(chart("4 * datum.M + 0 * P * on"), enabled={"P": "on"},
                       P=widgets.IntSlider(4, 1, 8), on=widgets.Checkbox(False))
    assert len(problems(dead_there, lambda P, on: oracle(4))) == 3


def test_a_control_that_does_not_apply_but_is_not_disabled_is_dead(problems):
    built = small(chart("(on ? P : 4) * datum.M"), P=widgets.IntSlider(4, 1, 8), on=widgets.Checkbox(False))
    found = problems(built, lambda P, on: oracle(P if on else 4))
    assert len(found) == 3
    assert all("nothing changes in the picture" in text for text in found)


def test_labels_that_name_another_value_are_found(problems):
    built = small(P=widgets.SelectionSlider(options=[1, 4, 8]))
    found = problems(built, change=lambda html: html.replace("&quot;4&quot;", "&quot;2&quot;"))
    assert found
    assert all("explorer-small-P reads 2, and the chart sees 4" in text for text in found)


def test_differences_find_the_least_change():
    shown = {"marks": {"type": "symbol", "palettes": {"color": [["odd", "blue"]]},
                       "items": [{"x": 1, "y": 0.5, "color": "blue"}, {"x": 2, "y": 0, "color": "blue"}]}}
    right = {"marks": [{"x": 2, "y": 0, "color": "odd"}, {"x": 1, "y": 0.5, "color": "odd"}]}
    assert differences(right, shown) == []
    for channel, value in (("x", 1.001), ("y", 0.50001), ("color", "even")):
        wrong = {"marks": [right["marks"][0], right["marks"][1] | {channel: value}]}
        assert len(differences(wrong, shown)) == 1, (channel, value)
    with pytest.raises(ValueError, match="must all have the same channels"):
        differences({"marks": [{"x": 1}, {"y": 2}]}, shown)


def test_the_tests_that_look_at_one_page_run_on_one_worker(request):
    grouped = [item for item in request.session.items if item.path.parent == HERE and page_of(item)]
    assert [item.get_closest_marker("xdist_group").args for item in grouped] == [(page_of(item),) for item in grouped]
    if request.config.getoption("loadgroup", default=False):  # xdist then writes the group behind the test's name
        assert [item.nodeid for item in grouped if not item.nodeid.endswith(f"@{page_of(item)}")] == []


def test_steps_are_taken_at_the_first_the_middle_and_the_last_position():
    assert steps(tuple(range(1, 9))) == ((1, 2), (4, 5), (8, 7))
    assert steps((1, 2, 3)) == ((1, 2), (2, 3), (3, 2))
    assert steps((False, True)) == ((False, True), (True, False))


def test_numbers_in_texts_are_rounded_as_vega_rounds_them():
    from tests.vega_oracle import evaluate_rows

    values = [0, 1, 0.0625, 0.125, 1 / 3, 2.0625, 33, 33.25, 96.125, 768, 12345.6, 0.00012345, 1e6, 7 / 32]
    rows = [{"v": value} for value in values]
    assert [f"{value}" for value in evaluate_rows("'=' + format(datum.v, '.1%')", rows)] == [
        f"={percent(value)}" for value in values]
    assert [f"{value}" for value in evaluate_rows("'=' + format(datum.v, '.4~r')", rows)] == [
        f"={significant(value)}" for value in values]

"""What stands beside the explorers in the measurement of their speed has the same marks, and matplotlib draws them."""

import altair as alt
import matplotlib as mpl
import pytest

from scalebook.explorer import spec
from tests.bench import same_marks

ROWS = [{"x": x, "y": x * x, "of": of} for x in range(5) for of in ("a", "b")]


def compiled(chart):
    return spec.compiled(spec.build(chart, [], {}, "alt"))


def layered():
    """Two curves of five points with a legend, ten points, five bars, a rule and a text."""
    values = alt.Chart(alt.Data(values=ROWS))
    x, y = alt.X("x:O", title="across"), alt.Y("y:Q", title="up")
    once = alt.Chart(alt.Data(values=[{"y": 4}]))
    return compiled(alt.layer(
        values.mark_bar().encode(x=x, y="max(y):Q"), values.mark_line().encode(x=x, y=y, color="of:N"),
        values.mark_point().encode(x=x, y=y), once.mark_rule().encode(y="y:Q"),
        once.mark_text(text="four").encode(y="y:Q")))


def test_every_mark_of_the_chart_is_read_with_its_titles_and_its_legend():
    (panel,) = same_marks.panels(layered())
    assert [(kind, len(items)) for kind, items in panel["marks"]] == [
        ("rect", 5), ("line", 5), ("line", 5), ("symbol", 10), ("rule", 1), ("text", 1)]
    assert panel["titles"][0] == "across"
    assert panel["legend"] == ["a", "b"]
    assert panel["marks"][-1][1][0]["text"] == "four"
    heights = [bar["height"] for bar in panel["marks"][0][1]]
    assert heights == pytest.approx([panel["height"] * x * x / 16 for x in range(5)])


def test_matplotlib_draws_every_mark(monkeypatch):
    import matplotlib.pyplot as plt

    monkeypatch.setattr(plt, "show", lambda: None)
    mpl.use("Agg")
    names = {}
    code = "\n".join(line for line in same_marks.CODE.splitlines() if not line.startswith(("%", "PICTURES")))
    exec(code, names)
    names["draw"](same_marks.panels(layered()), 3)
    (axes,) = plt.gcf().axes
    try:
        assert len(axes.patches) == 5
        assert sorted(len(line.get_xdata()) for line in axes.lines) == [2, 5, 5]
        assert len(axes.collections[0].get_offsets()) == 10
        assert [text.get_text() for text in axes.texts] == ["four"]
        assert [text.get_text() for text in axes.get_legend().get_texts()] == ["a", "b"]
        axes.figure.canvas.draw()
    finally:
        plt.close("all")


def test_a_chart_without_marks_is_no_picture():
    with pytest.raises(ValueError, match="no marks"):
        same_marks.panels(compiled(alt.Chart(alt.Data(values=[])).mark_point()))

"""The lines of text above a chart, and what is smaller on a phone."""

from scalebook.explorer.spec import NARROW

LINE = 17  # pixels


def words(chart, *lines):
    """Write the lines, each a Vega expression that gives a text, above `chart`, from its left edge.

    `chart` has the one row that the expressions read. A legend goes above them, with `Legend(offset=above(n))`.
    """
    import altair as alt

    text = " + '\\n' + ".join(f"({line})" for line in lines)
    return (
        chart.properties(name="words").transform_calculate(text=text)
        .mark_text(align="left", baseline="bottom", fontSize=13, lineBreak="\n", lineHeight=LINE)
        .encode(x=alt.value(0), y=alt.value(-8 - LINE * (len(lines) - 1)), text="text:N")
    )


def above(lines):
    """How far from the chart a legend stands with so many lines of words below it, in pixels.

    >>> above(2) - above(1) == LINE
    True
    """
    return 12 + LINE * lines


def by_width(narrow, wide):
    """A number that is `narrow` where the chart has little room, as on a phone, and `wide` elsewhere.

    >>> by_width(1, 2).to_dict()
    {'expr': 'width < 400 ? 1 : 2'}
    """
    import altair as alt

    return alt.ExprRef(f"width < {NARROW} ? {narrow} : {wide}")

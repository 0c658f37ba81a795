"""The lines of text above a chart."""

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

"""A row of weights on the grids of its groups, rounded to nearest."""

import random

from scalebook.charts.words import above, words
from scalebook.colours import COMPARED, FULL_PRECISION, RTN
from scalebook.formulas import quantization as formulas

BITS = (2, 3, 4, 5, 6, 7, 8)
SIZES = (8, 16, 32, 64, 128)
FACTORS = tuple(range(1, 11))
WEIGHTS = 128
OUTLIER = 37  # the place of the weight that the slider multiplies
OUTLIER_BASE = 0.04  # two standard deviations, so that at 1 it is one weight among others
LOWEST, HIGHEST = "max(0.074, 0.0175 * outlier)", "max(0.065, 0.05 * outlier)"  # the frame, for every grid's ends
MOST_LINES = 128  # a finer grid would be a grey area
SHOWN = ("before", "rounded")


def row_weights():
    """The weights of the row before the outlier is multiplied: normal, of standard deviation 0.02, as a model's are.

    >>> len(row_weights()), row_weights()[OUTLIER]
    (128, 0.04)
    """
    generator = random.Random(1)
    weights = [round(generator.gauss(0, 0.02), 5) for _ in range(WEIGHTS)]
    weights[OUTLIER] = OUTLIER_BASE
    return weights


def rounded_row(alt):
    """One row a weight: its place `i`, the weight `before` and `rounded`, and its group's scale S and zero-point Z."""
    least, greatest = "min(0, datum.least)", "max(0, datum.greatest)"
    code = formulas.code.vega(w="datum.before", S="datum.S", Z="datum.Z", b="bits")
    return (
        alt.Chart(alt.Data(values=[{"i": i, "base": weight} for i, weight in enumerate(row_weights())]))
        .transform_calculate(before=f"datum.base * (datum.i == {OUTLIER} ? outlier : 1)",
                             block="floor(datum.i / size)")
        .transform_joinaggregate(least="min(before)", greatest="max(before)", groupby=["block"])
        .transform_calculate(S=formulas.scale.vega(w_min=least, w_max=greatest, b="bits"))
        .transform_calculate(Z=formulas.zero_point.vega(w_min=least, S="datum.S"))
        .transform_calculate(rounded=formulas.dequantized.vega(q=f"({code})", S="datum.S", Z="datum.Z"))
    )


def grid_chart():
    """A row of weights before and after rounding, on the grid of each group; signals bits, size, outlier."""
    import altair as alt

    chosen = rounded_row(alt)
    y = alt.Y("y:Q", title="weight", axis=alt.Axis(grid=False, tickCount=6),
              scale=alt.Scale(domainMin=alt.ExprRef(f"-{LOWEST}"), domainMax=alt.ExprRef(HIGHEST), nice=False))
    x = alt.X("i:Q", title="place in the row", axis=alt.Axis(grid=False),
              scale=alt.Scale(domain=[-1, WEIGHTS], nice=False))
    groups = (
        chosen.transform_aggregate(groupby=["block", "S", "Z"])
        .transform_calculate(i="datum.block * size - 0.4", end="(datum.block + 1) * size - 0.6")
    )
    band = (
        groups.properties(name="range")
        .transform_calculate(y=formulas.dequantized.vega(q="0", S="datum.S", Z="datum.Z"),
                             y2=formulas.dequantized.vega(q="(pow(2, bits) - 1)", S="datum.S", Z="datum.Z"))
        .mark_rect(fill=COMPARED[2], opacity=0.16, clip=True).encode(x=x, x2="end:Q", y=y, y2="y2:Q")
    )
    lines = (
        groups.properties(name="grid").transform_filter(f"pow(2, bits) * {WEIGHTS} / size <= {MOST_LINES}")
        .transform_calculate(k="sequence(pow(2, bits))").transform_flatten(["k"])
        .transform_calculate(y=formulas.dequantized.vega(q="datum.k", S="datum.S", Z="datum.Z"))
        .mark_rule(color=COMPARED[2], opacity=0.55, clip=True).encode(x=x, x2="end:Q", y=y)
    )
    errors = (
        chosen.properties(name="error").transform_filter("abs(datum.before - datum.rounded) > 1e-9")
        .mark_rule(color=RTN, strokeWidth=1.5).encode(x=x, y="before:Q", y2="rounded:Q")
    )
    dots = (
        chosen.properties(name="weight")
        .transform_fold(list(SHOWN), as_=["what", "y"]).mark_point(filled=True, size=22, opacity=1)
        .encode(x=x, y=y, color=alt.Color("what:N", legend=alt.Legend(offset=above(3), columns=0),
                                          scale=alt.Scale(domain=list(SHOWN), range=[FULL_PRECISION, RTN])))
    )
    summed = (
        chosen.transform_calculate(squared="pow(datum.before - datum.rounded, 2)",
                                   expected=formulas.rounding_variance.vega(S="datum.S"))
        .transform_aggregate(squared="mean(squared)", expected="mean(expected)", least="min(S)", greatest="max(S)")
    )
    cost = formulas.bits_per_weight.vega(b="bits", z="bits", g="size")
    text = words(
        summed,
        f"bits + ' bits, ' + (size == {WEIGHTS} ? 'one group' : 'groups of ' + size) + ': ' + format({cost}, '.4~r')"
        " + ' bits a weight'",
        "'root mean square error ' + format(sqrt(datum.squared), '.3~r') + ', S/√12 '"
        " + format(sqrt(datum.expected), '.3~r')",
        f"size == {WEIGHTS} ? 'step S = ' + format(datum.least, '.3~r')"
        " : 'steps S from ' + format(datum.least, '.3~r') + ' to ' + format(datum.greatest, '.3~r')",
    )
    return alt.layer(band, lines, errors, dots, text).properties(height=300)

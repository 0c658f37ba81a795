"""Two weights of one row: round one, let the other make up for it, and round that.

The Hessian is [[1, rho], [rho, 1]], both grids are the whole numbers, and the weights lie between 1 and 2. The error of
any point is split as the surgeon splits it: what fixing the first weight costs when the second makes up for it, and
what the second adds when it is moved from there.
"""

from scalebook.charts.words import above, by_width, words
from scalebook.colours import COMPARED, FULL_PRECISION, GPTQ, RTN
from scalebook.formulas import quantization as formulas

CORRELATIONS = tuple(twentieth / 20 for twentieth in range(-19, 20))
CANDIDATES = (1, 2)  # of each weight: the least error is at a corner of the cell that the weights lie in
INVERSE = {"a_qq": "(1 / (1 - rho * rho))", "a_iq": "(-rho / (1 - rho * rho))"}
POINTS = {"the weights": (FULL_PRECISION, "cross"), "both to the nearest": (RTN, "square"),
          "one rounded, the other makes up": (GPTQ, "triangle-up"), "then the other rounded": (GPTQ, "circle"),
          "least error of all": (COMPARED[0], "diamond")}
STEPS = 40  # of an ellipse


def compensated(other, weight, target):
    """Where the other weight goes when `weight` is moved to `target`; all are Vega expressions."""
    return f"({other} + {formulas.compensation.vega(w=weight, w_hat=target, **INVERSE)})"


def error(first, second):
    """The error 1/2 d^T H d of the point (first, second), as a Vega expression of two expressions."""
    free = compensated("w2", "w1", first)
    alone = formulas.obs_error.vega(w="w1", w_hat=first, a_qq=INVERSE["a_qq"])
    return f"({alone} + {formulas.obd_error.vega(w=free, w_hat=second, H_qq='1')})"


def stages(alt):
    """One row with every point of the picture: x and y of each, and the errors."""
    return (
        alt.Chart(alt.Data(values=[{}]))
        .transform_calculate(near1="floor(w1 + 0.5)", near2="floor(w2 + 0.5)", first="which == 'first'")
        .transform_calculate(
            touch1=f"datum.first ? datum.near1 : {compensated('w1', 'w2', 'datum.near2')}",
            touch2=f"datum.first ? {compensated('w2', 'w1', 'datum.near1')} : datum.near2")
        .transform_calculate(end1="floor(datum.touch1 + 0.5)", end2="floor(datum.touch2 + 0.5)")
        .transform_calculate(nearest=error("datum.near1", "datum.near2"), touched=error("datum.touch1", "datum.touch2"),
                             ended=error("datum.end1", "datum.end2"))
    )


def candidates(alt):
    """The corners of the cell with the least error: one, or more that are equally good."""
    return (
        alt.Chart(alt.Data(values=[{"c1": one, "c2": two} for one in CANDIDATES for two in CANDIDATES]))
        .transform_calculate(error=error("datum.c1", "datum.c2"))
        .transform_joinaggregate(least="min(error)")
        .transform_filter("datum.error < datum.least + 1e-9")
    )


def ellipse_chart():
    """Optimal brain surgeon and GPTQ in two dimensions; signals rho, which, w1, w2."""
    import altair as alt

    row = stages(alt)
    names = list(POINTS)
    # One unit is as long on both axes.
    x = alt.X("x:Q", title="first weight", axis=alt.Axis(values=list(range(-3, 7)), format="d", gridOpacity=0.35),
              scale=alt.Scale(domainMin=alt.ExprRef("1.5 - 1.5 * width / height"),
                              domainMax=alt.ExprRef("1.5 + 1.5 * width / height"), nice=False))
    y = alt.Y("y:Q", title="second weight", axis=alt.Axis(values=[0, 1, 2, 3], format="d", gridOpacity=0.35),
              scale=alt.Scale(domain=[0, 3], nice=False))
    colour = alt.Color("what:N", legend=alt.Legend(offset=above(3), columns=by_width(1, 2)),
                       scale=alt.Scale(domain=names, range=[colour for colour, _ in POINTS.values()]))
    shape = alt.Shape("what:N", scale=alt.Scale(domain=names, range=[shape for _, shape in POINTS.values()]))

    levels = {names[1]: "nearest", names[2]: "touched", names[3]: "ended"}
    across = "(datum.r * sin(datum.t) / sqrt(1 - rho * rho))"
    ellipses = (
        row.properties(name="ellipse").transform_calculate(**{name: f"datum.{level}" for name, level in levels.items()})
        .transform_fold(list(levels), as_=["what", "level"])
        .transform_calculate(i=f"sequence({STEPS + 1})", r="sqrt(2 * datum.level)").transform_flatten(["i"])
        .transform_calculate(t=f"2 * PI * datum.i / {STEPS}")
        .transform_calculate(x=f"w1 + datum.r * cos(datum.t) - rho * {across}", y=f"w2 + {across}")
        .mark_line(clip=True, strokeWidth=1.5)
        .encode(x=x, y=y, color=colour, order="i:O",
                strokeDash=alt.StrokeDash("what:N", legend=None, scale=alt.Scale(
                    domain=list(levels), range=[[1, 0], [5, 4], [1, 0]])))
    )
    constraint = {"upright": ("datum.first", {"x": alt.X("near1:Q")}), "level": ("!datum.first", {"y": "near2:Q"})}
    rules = [row.properties(name=name).transform_filter(condition)
             .mark_rule(color=GPTQ, strokeDash=[2, 3], strokeWidth=1.5).encode(**channel)
             for name, (condition, channel) in constraint.items()]
    path = (
        row.properties(name="path")
        .transform_calculate(i="[0, 1, 2]", x="[w1, datum.touch1, datum.end1]", y="[w2, datum.touch2, datum.end2]")
        .transform_flatten(["i", "x", "y"]).mark_line(color=GPTQ, strokeWidth=2).encode(x=x, y=y, order="i:O")
    )
    points = (
        row.properties(name="point")
        .transform_calculate(what=f"{names[:4]}", x="[w1, datum.near1, datum.touch1, datum.end1]",
                             y="[w2, datum.near2, datum.touch2, datum.end2]")
        .transform_flatten(["what", "x", "y"]).mark_point(filled=True, size=110, opacity=1)
        .encode(x=x, y=y, color=colour, shape=shape)
    )
    best = (
        candidates(alt).properties(name="best").transform_calculate(x="datum.c1", y="datum.c2", what=f"'{names[4]}'")
        .mark_point(filled=False, size=330, strokeWidth=2, opacity=1).encode(x=x, y=y, color=colour, shape=shape)
    )
    text = words(
        row,
        "'both to the nearest: error ' + format(datum.nearest, '.3f')",
        "'one rounded, the other makes up: ' + format(datum.touched, '.3f')",
        "'then rounded: ' + format(datum.ended, '.3f') + ', least of all: ' + format("
        + least_error() + ", '.3f')",
    )
    return alt.layer(ellipses, *rules, path, best, points, text).properties(height=300)


def least_error():
    """The least error of all candidates, as one Vega expression."""
    return "min(" + ", ".join(error(str(one), str(two)) for one in CANDIDATES for two in CANDIDATES) + ")"

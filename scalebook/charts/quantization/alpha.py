"""AWQ's search on one seeded layer: the output error against alpha, with and without channels of large inputs.

The scales and the rounding are the library's own, run on the grid of the controls. PyTorch is imported only when a
chart is made.
"""

from functools import partial

from scalebook import checks
from scalebook.borders import guard
from scalebook.charts.kinds import positive
from scalebook.charts.words import above, words
from scalebook.colours import AWQ, COMPARED, RTN
from scalebook.explorer import grid

OUTPUTS, INPUTS, TOKENS = 64, 256, 256
LOUD = 4  # channels of the layer whose inputs are multiplied
GRID = {"outliers": (1, 5, 10, 20, 50), "bits": (2, 3, 4), "size": (32, 64, 128)}
STEPS = 20  # alpha = 0, 1/20, ..., 1, as in the paper
CURVES = {"the layer": AWQ, "its four loud channels": COMPARED[0], "all other channels": COMPARED[1]}
FRAME = (0.01, 6)


def seeded_layer(outliers):
    """Weights (OUTPUTS, INPUTS), inputs (TOKENS, INPUTS), and which channels (INPUTS,) are loud.

    All weights are normal. A channel's inputs are normal, of a size that differs a little from channel to channel;
    those of `LOUD` channels are multiplied by `outliers`.
    """
    import torch

    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    weight_OI, inputs_NI = 0.02 * normal(OUTPUTS, INPUTS), normal(TOKENS, INPUTS) * (0.3 * normal(INPUTS)).exp()
    loud_I = torch.zeros(INPUTS, dtype=torch.bool)
    loud_I[torch.randperm(INPUTS, generator=generator)[:LOUD]] = True
    return weight_OI, inputs_NI * torch.where(loud_I, float(outliers), 1.0), loud_I


def alpha_row(outliers, bits, size):
    """For each alpha, the error of the layer, of its loud channels alone and of the others alone, over rounding's.

    Rounding's is the layer's at alpha = 0. The parts do not add up to the layer quite, since inputs of two channels are
    correlated a little by chance.
    """
    from dataclasses import replace

    from scalebook.quantization import quantize_rtn
    from scalebook.quantization.awq import awq_scales, calibration
    from scalebook.quantization.hessian import layer_error

    weight_OI, inputs_NI, loud_I = seeded_layer(outliers)
    magnitude_I, hessian_II = calibration(inputs_NI, INPUTS)
    errors = {name: [] for name in CURVES}
    for step in range(STEPS + 1):
        scales_I = awq_scales(magnitude_I, step / STEPS)
        record = replace(quantize_rtn(weight_OI * scales_I, bits, size), input_scales=scales_I)
        change_OI = record.dequantize() - weight_OI
        for name, part_OI in zip(CURVES, (change_OI, change_OI * loud_I, change_OI * ~loud_I), strict=True):
            errors[name].append(layer_error(weight_OI, weight_OI + part_OI, hessian_II))
    whole = errors["the layer"]
    best = whole.index(min(whole))
    relative = [[error / whole[0] for error in part] for part in errors.values()]
    return {"best": best / STEPS, "curves": relative, "least": [part[best] for part in relative]}


def alpha_chart():
    """A layer's error under AWQ, over that of rounding, against alpha; signals outliers, bits, size."""
    import altair as alt

    names = list(CURVES)
    chosen = alt.Chart(alt.Data(values=grid(alpha_row, **GRID))).transform_filter(
        "datum.outliers == outliers && datum.bits == bits && datum.size == size")
    encoding = {
        "x": alt.X("alpha:Q", title="alpha", scale=alt.Scale(domain=[0, 1])),
        "y": alt.Y("error:Q", title="output error, over rounding's",
                   axis=alt.Axis(values=[0.01, 0.03, 0.1, 0.3, 1, 3]),
                   scale=alt.Scale(type="log", domain=list(FRAME), nice=False)),
        "color": alt.Color("what:N", legend=alt.Legend(offset=above(3)),
                           scale=alt.Scale(domain=names, range=list(CURVES.values()))),
    }
    lines = (
        chosen.properties(name="curve").transform_calculate(what=f"{names}").transform_flatten(["what", "curves"])
        .transform_calculate(i=f"sequence({STEPS + 1})").transform_flatten(["i", "curves"], as_=["i", "error"])
        .transform_calculate(alpha=f"datum.i / {STEPS}").mark_line().encode(**encoding)
    )
    points = (
        chosen.properties(name="chosen").transform_calculate(what=f"{names}", alpha="datum.best")
        .transform_flatten(["what", "least"], as_=["what", "error"]).mark_point(filled=True, size=110, opacity=1)
        .encode(**encoding)
    )
    rounding = (  # from the same data, so that they travel once
        chosen.properties(name="rounding").transform_calculate(error="1")
        .mark_rule(color=RTN, strokeDash=[6, 4], strokeWidth=1.5).encode(y="error:Q")
    )
    def moved(curve):
        return f"format(datum.curves[{curve}][0], '.1%') + ' → ' + format(datum.least[{curve}], '.1%')"

    text = words(
        chosen,
        "'alpha = ' + format(datum.best, '.2f') + ': ' + format(datum.least[0], '.1%') + ' of the error of rounding'",
        f"'four loud channels: ' + {moved(1)}",
        f"'all others: ' + {moved(2)}",
    )
    return alt.layer(rounding, lines, points, text).properties(height=300)


guard(globals(), {"outliers": positive, "bits": partial(checks.whole, least=2, most=8),
                  "size": partial(checks.size, least=2)},
      "alpha_row")

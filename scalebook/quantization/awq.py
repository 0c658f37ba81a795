"""AWQ: scale up the weights that see large inputs, round to nearest, and divide by the scale again.

W x = (W diag(s)) (x / s) for every s > 0. Round W diag(s) instead of W. In y = sum_i w_i x_i the error that weight i
makes is S' r x_i / s_i, with S' the step of its group after scaling and r in -1/2..1/2 what rounding leaves, much the
same for any s. So the error of the channel changes by the factor (S'/S) / s_i. While channel i does not hold the
largest weight of its group S' = S, and the error falls by s_i: the scale protects the channel. Once it does, S' grows
with s_i, the channel gains nothing more, and every other channel of the group pays. Each output's row has its own
groups, so this sets in row by row (Lin et al., arXiv:2306.00978, equations 2 and 3, table 2).

Which channels? Those with large inputs: s = s_X^alpha, with s_X the mean size of channel i's inputs and one alpha for
the layer, found by trying a grid of values on the layer's output error (equations 4 and 5). The division x / s costs
nothing at run time when it is folded into the operation before (`fold_into_previous`). No weight keeps more bits.

Shapes, as suffixes of names: O outputs, I inputs, N tokens, G groups, C columns of a group.
"""

import math
import numbers
from dataclasses import dataclass, replace

import torch

from scalebook.quantization.grid import (
    QuantizedLinear,
    check_weight,
    columns_in_a_group,
    from_codes,
    group_grid,
    to_codes,
)
from scalebook.quantization.hessian import check_hessian, check_matrix, damp, is_symmetric, layer_error, layer_hessian
from scalebook.quantization.rounding import quantize_rtn

SMALLEST = 1e-4  # a channel's size, as a share of the largest: no scale is 0


def quantize_awq(
    weight: torch.Tensor, activations_or_hessian: torch.Tensor, bits: int = 4, group_size: int | None = 128, *,
    symmetric: bool = False, kind: str | None = None, steps: int = 20, clip: bool = False,
) -> QuantizedLinear:
    """Quantize a weight of shape (O, I) by AWQ; return a `QuantizedLinear` with its `input_scales`.

    The second argument is the layer's inputs (N, I) on calibration tokens, or their Hessian (I, I). `kind` says which,
    "activations" or "hessian"; by default a square symmetric matrix without a negative diagonal entry is a Hessian, and
    any other matrix is activations. They differ in s_X: the mean of |x| from activations, as the paper has it, the root
    of the mean of x^2 from a Hessian. alpha runs over 0, 1/steps, ..., 1; alpha = 0 is rounding to nearest, so the
    error on the calibration tokens is never above that of `quantize_rtn`. With `clip`, the weights are then clipped as
    well (`clip_weight`). `.dequantize()` divides by the input scales: it stands for W.

    Raises ValueError for bad weights, bits and groups as `quantize_rtn` does; for activations or a Hessian that are not
    finite or do not fit; for another `kind`; for a number of steps that is not whole, at least 1.

    >>> weight = torch.tensor([[1.0, 0.3, -0.6, 0.2]])
    >>> inputs = torch.tensor([[1.0, 9.0, 1.0, 1.0], [0.5, 8.0, -1.0, 2.0]])  # channel 1 sees large inputs
    >>> record = quantize_awq(weight, inputs, bits=3, group_size=None)
    >>> layer_error(weight, record.dequantize(), layer_hessian(inputs)) < 0.05  # of 0.63 by rounding to nearest
    True
    """
    weight_OI = check_weight(weight, bits, group_size, symmetric)
    magnitude_I, hessian_II = calibration(activations_or_hessian, weight_OI.shape[1], kind)
    curve = search_alpha(weight_OI, magnitude_I, hessian_II, bits, group_size, symmetric, steps)
    alpha, _ = min(curve, key=lambda point: point[1])  # the smallest alpha of those with the least error
    scales_I = awq_scales(magnitude_I, alpha).to(weight_OI.dtype)
    scaled_OI = weight_OI * scales_I
    if clip:
        scaled_hessian_II = hessian_II / torch.outer(scales_I, scales_I)
        scaled_OI = clip_weight(scaled_OI, scaled_hessian_II, bits, group_size, symmetric=symmetric)
    return replace(quantize_rtn(scaled_OI, bits, group_size, symmetric), input_scales=scales_I, dtype=weight.dtype)


def awq_curve(weight, activations_or_hessian, bits=4, group_size=128, *, symmetric=False, kind=None, steps=20):
    """What AWQ's search sees: a list of (alpha, squared output error) for alpha = 0, 1/steps, ..., 1.

    The arguments, and what it raises, are those of `quantize_awq`; the error is `hessian.layer_error`.

    >>> curve = awq_curve(torch.tensor([[1.0, 0.3, -0.6, 0.2]]), torch.tensor([[1.0, 9.0, 1.0, 1.0]]), 3, None, steps=2)
    >>> [(alpha, round(error, 3)) for alpha, error in curve]
    [(0.0, 0.617), (0.5, 0.01), (1.0, 0.0)]
    """
    weight_OI = check_weight(weight, bits, group_size, symmetric)
    magnitude_I, hessian_II = calibration(activations_or_hessian, weight_OI.shape[1], kind)
    return search_alpha(weight_OI, magnitude_I, hessian_II, bits, group_size, symmetric, steps)


def search_alpha(weight_OI, magnitude_I, hessian_II, bits, group_size, symmetric, steps):
    """Round the weight with s = s_X^alpha for each alpha = 0, 1/steps, ..., 1: a list of (alpha, error).

    An alpha whose scales make the weight overflow has the error infinity.
    """
    if isinstance(steps, bool) or not isinstance(steps, numbers.Integral) or steps < 1:
        raise ValueError(f"steps = {steps!r} is not allowed; it must be a whole number, at least 1")
    size = float(hessian_II.diagonal().max()) or 1.0
    unit_II = (hessian_II / size).to(weight_OI.dtype)  # the search is one product of matrices for each alpha
    curve = []
    for alpha in (step / steps for step in range(steps + 1)):
        scales_I = awq_scales(magnitude_I, alpha).to(weight_OI.dtype)
        scaled_OI, error = weight_OI * scales_I, math.inf
        if scaled_OI.isfinite().all():
            record = replace(quantize_rtn(scaled_OI, bits, group_size, symmetric), input_scales=scales_I)
            error = size * layer_error(weight_OI, record.dequantize(), unit_II)
        curve.append((alpha, error))
    return curve


def awq_scales(magnitude_I, alpha):
    """The scales s = s_X^alpha (I,), divided by the root of the largest times the smallest; all 1 when alpha = 0.

    A common factor of all scales changes no error; this one keeps them around 1, as the published code does. A channel
    counts as having at least 1e-4 of the largest size, so that a channel that was always 0 gets a scale too.

    >>> awq_scales(torch.tensor([1.0, 4.0, 16.0]), 0.5)
    tensor([0.5000, 1.0000, 2.0000])
    """
    largest = magnitude_I.max()
    if largest == 0:
        return torch.ones_like(magnitude_I)
    scales_I = (magnitude_I / largest).clamp(min=SMALLEST) ** alpha
    return scales_I / (scales_I.max() * scales_I.min()).sqrt()


def clip_weight(weight_OI, hessian_II, bits, group_size, *, symmetric=False, steps=10, smallest=0.55):
    """The weight with each group of each row clipped to the share of its largest |w| that gives the least error.

    The shares run from 1 to `smallest` in `steps` values, as in AWQ's published code. A share is judged by the group's
    own part of the output, d^T H_g d / 2 with H_g the group's block of the Hessian, as if the other groups were exact.
    Rounding to nearest with a narrower grid moves the largest weights more and all others less.

    >>> weight_OI = torch.tensor([[1.0, 0.29, -0.29, 0.29]])
    >>> clip_weight(weight_OI, torch.diag(torch.tensor([0.0, 1.0, 1.0, 1.0])), 2, None, symmetric=True)
    tensor([[ 0.5500,  0.2900, -0.2900,  0.2900]])
    """
    O, I = weight_OI.shape
    columns = columns_in_a_group(I, group_size)
    weight_GOC = weight_OI.reshape(O, -1, columns).transpose(0, 1)
    blocks_GCC = hessian_II.reshape(I // columns, columns, -1, columns).diagonal(dim1=0, dim2=2).permute(2, 0, 1)
    blocks_GCC = blocks_GCC.to(weight_OI.dtype)
    largest_GO1 = weight_GOC.abs().amax(dim=-1, keepdim=True)
    best_GOC, least_GO = weight_GOC, torch.full(weight_GOC.shape[:2], math.inf, dtype=weight_OI.dtype)
    for share in torch.linspace(1, smallest, steps).tolist():
        clipped_GOC = torch.minimum(torch.maximum(weight_GOC, -share * largest_GO1), share * largest_GO1)
        scale_GO, zero_GO = group_grid(clipped_GOC, bits, symmetric)
        grid = scale_GO[..., None], zero_GO[..., None]
        change_GOC = from_codes(to_codes(clipped_GOC, *grid, bits), *grid) - weight_GOC
        error_GO = (change_GOC @ blocks_GCC * change_GOC).sum(dim=-1)
        better_GO = error_GO < least_GO
        best_GOC = torch.where(better_GO[..., None], clipped_GOC, best_GOC)
        least_GO = torch.where(better_GO, error_GO, least_GO)
    return best_GOC.transpose(0, 1).reshape(O, I)


def step_ratios(weight_OI, scales_I, bits, group_size, *, symmetric=False):
    """How much each group's step changes when the weight's columns are multiplied by `scales_I`: S'/S, (O, G).

    >>> step_ratios(torch.tensor([[1.0, 0.25, -0.5, 1.0]]), torch.tensor([1.0, 2.0, 1.0, 2.0]), 4, 2, symmetric=True)
    tensor([[1., 2.]])
    """
    O, I = weight_OI.shape
    shape = O, -1, columns_in_a_group(I, group_size)
    before_OG, _ = group_grid(weight_OI.reshape(shape), bits, symmetric)
    after_OG, _ = group_grid((weight_OI * scales_I).reshape(shape), bits, symmetric)
    return after_OG / before_OG


@dataclass(frozen=True)
class SalientScaling:
    """What scaling the salient channels by `scale` does: the columns of AWQ's table 2 (arXiv:2306.00978).

    `share_changed` of the groups got another step; `mean_step_ratio` is the mean of S'/S; `error_ratio`, that mean over
    the scale, is by how much the error of the salient channels changes; `layer_error` is the error of the whole layer,
    in place of the table's perplexity.
    """

    scale: float
    share_changed: float
    mean_step_ratio: float
    error_ratio: float
    layer_error: float


def salient_scale_error(weight, activations_or_hessian, scale, *, share=0.01, bits=3, group_size=128, symmetric=True,
                        kind=None):
    """Scale only the `share` of the channels with the largest inputs, all by `scale`, and round: a `SalientScaling`.

    Weight, activations and what is raised are those of `quantize_awq`; the other defaults are those of the table. At
    least one channel is scaled. Raises ValueError for a scale that is not a finite number above 0 and for a share
    outside 0..1.

    >>> inputs = torch.tensor([[1.0, 9.0, 1.0, 1.0]])
    >>> result = salient_scale_error(torch.tensor([[1.0, 0.3, -0.6, 0.2]]), inputs, 2.0, group_size=None)
    >>> result.share_changed, result.mean_step_ratio, result.error_ratio
    (0.0, 1.0, 0.5)
    """
    if not isinstance(scale, numbers.Real) or not 0 < scale < math.inf:
        raise ValueError(f"scale = {scale!r} is not allowed; it must be a finite number above 0")
    if not isinstance(share, numbers.Real) or not 0 < share <= 1:
        raise ValueError(f"share = {share!r} is not allowed; it must be above 0 and at most 1")
    weight_OI = check_weight(weight, bits, group_size, symmetric)
    magnitude_I, hessian_II = calibration(activations_or_hessian, weight_OI.shape[1], kind)
    scales_I = torch.ones(weight_OI.shape[1], dtype=weight_OI.dtype)
    scales_I[magnitude_I.topk(max(1, round(share * len(scales_I)))).indices] = scale
    ratios_OG = step_ratios(weight_OI, scales_I, bits, group_size, symmetric=symmetric)
    record = replace(quantize_rtn(weight_OI * scales_I, bits, group_size, symmetric), input_scales=scales_I)
    mean = float(ratios_OG.mean())
    return SalientScaling(scale, float((ratios_OG != 1).double().mean()), mean, mean / scale,
                          layer_error(weight_OI, record.dequantize(), hessian_II))


def fold_into_previous(scales_I, previous_weight, previous_bias=None):
    """Divide the operation before by the scales, so that it hands on x / s; returns its weight and its bias.

    It must make channel i of x alone from row i of its weight: a linear layer of shape (I, inputs), or the gain (I,) of
    a normalisation. Every layer that reads x must then have been scaled by the same s.

    Raises ValueError when there are not as many rows as scales.

    >>> fold_into_previous(torch.tensor([2.0, 4.0]), torch.tensor([[2.0, 6.0], [4.0, 8.0]]), torch.tensor([1.0, 1.0]))
    (tensor([[1., 3.],
            [1., 2.]]), tensor([0.5000, 0.2500]))
    """
    for name, part in (("previous_weight", previous_weight), ("previous_bias", previous_bias)):
        if part is not None and part.shape[:1] != scales_I.shape:
            raise ValueError(f"{name} has the shape {tuple(part.shape)}; it must begin with one row for each of the "
                             f"{len(scales_I)} scales")
    weight = previous_weight / scales_I.reshape(-1, *[1] * (previous_weight.ndim - 1))
    return weight, None if previous_bias is None else previous_bias / scales_I


def calibration(activations_or_hessian, inputs, kind=None):
    """The size of each channel's inputs (I,), up to a common factor, and the Hessian (I, I); both in float64.

    Raises ValueError for another `kind`, and for a matrix that is not finite or does not fit the number of inputs.

    >>> calibration(torch.tensor([[1.0, -3.0], [2.0, 1.0]]), 2)[0]  # not symmetric: two tokens
    tensor([1.5000, 2.0000], dtype=torch.float64)
    >>> calibration(torch.tensor([[4.0, 1.0], [1.0, 9.0]]), 2)[0]  # a Hessian
    tensor([2., 3.], dtype=torch.float64)
    """
    name = "activations_or_hessian"
    if kind not in (None, "activations", "hessian"):
        raise ValueError(f"kind = {kind!r} is not allowed; it must be 'activations', 'hessian' or None")
    check_matrix(activations_or_hessian, name, "(tokens, inputs) or (inputs, inputs)")
    matrix = activations_or_hessian.detach().double()
    if kind is None:
        square = matrix.shape == (inputs, inputs)
        can_be_hessian = square and is_symmetric(matrix) and bool((matrix.diagonal() >= 0).all())
        kind = "hessian" if can_be_hessian else "activations"
    if kind == "hessian":
        check_hessian(matrix, inputs, name)
        _, failed = torch.linalg.cholesky_ex(damp(matrix, 1e-6 * inputs))  # what sums in float32 may leave below 0
        if failed:
            raise ValueError(f"{name} is not positive semi-definite, so it is no Hessian of a squared error")
        return matrix.diagonal().sqrt(), matrix
    if matrix.shape[1] != inputs:
        raise ValueError(f"{name} has the shape {tuple(matrix.shape)}; activations for a weight of {inputs} inputs "
                         f"must be (tokens, {inputs})")
    return matrix.abs().mean(dim=0), layer_hessian(matrix)

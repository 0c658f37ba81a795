"""Rounding to nearest, and the error that it makes.

Every weight goes to the nearest point of its group's grid, whatever the inputs of the layer are. When the errors are
spread evenly over a step from -S/2 to S/2, their mean square is S^2/12. They are not when most weights are nearer to 0
than half a step (an outlier has stretched the grid), when the weights lie on the grid already, or when the grid is
shorter than the weights reach and cuts them off.

Shapes: O outputs, I inputs, G groups in a row, C columns in a group.
"""

import torch

from scalebook.quantization.grid import (
    QuantizedLinear,
    check_weight,
    columns_in_a_group,
    from_codes,
    group_grid,
    to_codes,
)


def quantize_rtn(
    weight: torch.Tensor, bits: int = 4, group_size: int | None = 128, symmetric: bool = False
) -> QuantizedLinear:
    """Round every weight of shape (O, I) to the nearest point of its group's grid; return a `QuantizedLinear`.

    `group_size` columns of a row share a scale and a zero-point (None: the whole row). Raises ValueError for non-finite
    weights, bits that are no whole number from 2 to 8, and a group size that does not divide I.

    >>> record = quantize_rtn(torch.tensor([[-1.0, 0.1, 2.0, 0.9]]), bits=2, group_size=None)
    >>> record.codes, record.dequantize()
    (tensor([[0, 1, 3, 2]], dtype=torch.uint8), tensor([[-1.,  0.,  2.,  1.]]))
    """
    weight_OI = check_weight(weight, bits, group_size, symmetric)
    O, I = weight_OI.shape
    weight_OGC = weight_OI.reshape(O, -1, columns_in_a_group(I, group_size))
    scale_OG, zero_OG = group_grid(weight_OGC, bits, symmetric)
    codes_OGC = to_codes(weight_OGC, scale_OG[..., None], zero_OG[..., None], bits)
    return QuantizedLinear(codes_OGC.reshape(O, I), scale_OG, zero_OG, bits, group_size, symmetric, dtype=weight.dtype)


def expected_error(record):
    """Return S^2/12 for each group (O, G): the mean squared error if errors are spread evenly over a step.

    It is the error of what was rounded: of W diag(s) when the record has input scales.

    >>> expected_error(quantize_rtn(torch.tensor([[0.0, 1.0, 3.0]]), bits=2, group_size=None))
    tensor([[0.0833]])
    """
    return record.scales**2 / 12


def measured_error(weight, record):
    """Return the mean squared error of each group (O, G) of a record of `weight`, in the same basis.

    Raises ValueError when the shapes differ.

    >>> weight = torch.tensor([[0.0, 1.2, 3.0]])
    >>> measured_error(weight, quantize_rtn(weight, bits=2, group_size=None))
    tensor([[0.0133]])
    """
    if weight.shape != record.codes.shape:
        raise ValueError(f"weight has the shape {tuple(weight.shape)}; it must be that of the record's codes, "
                         f"{tuple(record.codes.shape)}")
    weight_OI = weight.detach().to(record.scales.dtype)
    if record.input_scales is not None:
        weight_OI = weight_OI * record.input_scales
    group_I = record.group_of_column
    rounded_OI = from_codes(record.codes, record.scales[:, group_I], record.zero_points[:, group_I])
    total_OG = torch.zeros_like(record.scales).index_add(1, group_I, (weight_OI - rounded_OI)**2)
    return total_OG / torch.bincount(group_I, minlength=record.scales.shape[1])

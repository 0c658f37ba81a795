"""Rounding to nearest: every weight goes to the nearest point of its group's grid, whatever the inputs are."""

from scalebook.quantization.grid import (
    QuantizedLinear,
    check_weight,
    columns_in_a_group,
    group_grid,
    to_codes,
)


def quantize_rtn(weight, bits=4, group_size=128, symmetric=False):
    """Round every weight of shape (O, I) to the nearest point of its group's grid; return a `QuantizedLinear`.

    `group_size` columns of a row share a scale and a zero-point (None: the whole row). Raises ValueError for non-finite
    weights, bits that are no whole number from 2 to 8, and a group size that does not divide I.

    >>> import torch
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

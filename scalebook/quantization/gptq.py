"""GPTQ: round the columns of a layer one after the other, and let the columns that remain make up for each.

Optimal brain quantization (`obs`) is exact, and far too slow for a large layer. GPTQ (Frantar, Ashkboos, Hoefler and
Alistarh, arXiv:2210.17323, sections 3 and 4) has three ideas.

1. One order of the columns for all rows. H depends on the inputs only, so all rows then share every inverse.
2. A Cholesky factor in place of the downdates. Write H^-1 = U^T U with U upper triangular. Row q of U is row q of the
   inverse of the Hessian of columns q, q+1, ..., divided by the square root of its diagonal entry. For R = U^-1 is
   upper triangular too, and H = R R^T; so the Hessian of the columns from q on is R_F R_F^T, with R_F the block of R
   from q on, and its inverse is U_F^T U_F, with U_F the same block of U. The first row of that product is
   U_qq U[q, q:]. All rows that the updates need are there at once; none is downdated.
3. Lazy blocks. A column's update goes to the rest of its block at once, and to the columns after the block in one
   matrix product at the block's end. The result is the same; memory is passed over less often.

With the error e = (w_q - quant(w_q)) / U_qq of each row, the update of the columns after q is w -= e U[q, :], and the
error that column q adds is e^2 / 2.

Shapes, as suffixes of names: O outputs, I inputs, G groups, B columns of a block. The weight is held as (I, O) while
the work goes on, so that a column of the layer is contiguous.
"""

import numbers

import torch

from scalebook.quantization.grid import (
    QuantizedLinear,
    check_weight,
    columns_in_a_group,
    contiguous_groups,
    from_codes,
    group_grid,
    to_codes,
)
from scalebook.quantization.hessian import check_hessian, damp, into_range
from scalebook.quantization.obs import remove_from_inverse


def quantize_gptq(
    weight: torch.Tensor, hessian: torch.Tensor, bits: int = 4, group_size: int | None = 128, *,
    symmetric: bool = False, block_size: int = 128, damping: float = 0.01, act_order: bool = False,
    static_groups: bool = False,
) -> QuantizedLinear:
    """Quantize a weight of shape (O, I) by GPTQ, given the Hessian (I, I) of its inputs; return a `QuantizedLinear`.

    The Hessian is `hessian.layer_hessian` of calibration inputs, or any multiple of it. `damping` times the mean of its
    diagonal is added to the diagonal. `group_size` columns of a row share a scale and a zero-point (None: the whole
    row), taken when the group's first column is reached, from weights that have every update so far. `act_order` goes
    from the largest diagonal entry of H to the smallest; groups then hold the columns in that order, and
    `group_of_column` says which. `static_groups` takes the grids of `quantize_rtn` instead, of neighbouring columns of
    the weight as it is given, in whatever order the columns are rounded. `block_size` does not change the result, up to
    rounding. The computation is in float64 when the weight is float64, else in float32.

    An input channel that was always 0 (H_jj = 0) does not count in the error. Its weights are rounded to nearest, and
    not set to 0 as the paper's code does: later inputs may not be 0.

    Raises ValueError for bad weights, bits and groups as `quantize_rtn` does; for a Hessian that is not finite,
    symmetric, of shape (I, I), and positive definite after damping; for a damping below 0; and a block size below 1.

    >>> weight, hessian = torch.tensor([[0.4, 0.4, 3.0]]), torch.tensor([[2.0, 1.9, 0], [1.9, 2.0, 0], [0, 0, 1]])
    >>> quantize_gptq(weight, hessian, bits=2, group_size=None).codes  # rounding to nearest gives 0, 0, 3
    tensor([[0, 1, 3]], dtype=torch.uint8)
    """
    weight_OI = check_weight(weight, bits, group_size, symmetric)
    I = weight_OI.shape[1]
    check_hessian(hessian, I)
    check_options(block_size, act_order, static_groups)
    order_I = torch.arange(I)
    if act_order:
        order_I = hessian.diagonal().argsort(descending=True, stable=True)
        hessian = hessian[order_I][:, order_I]
    factor_II = upper_inverse_factor(into_range(hessian), damping, weight_OI.dtype)
    work_IO = weight_OI.T[order_I].contiguous()

    fresh = group_size is not None and not static_groups
    groups_I = contiguous_groups(I, group_size) if fresh else contiguous_groups(I, group_size)[order_I]
    scales_GO, zeros_GO = (part.T.contiguous() for part in group_grids(weight_OI, bits, group_size, symmetric))
    codes_IO = round_columns(work_IO, factor_II, groups_I.tolist(), scales_GO, zeros_GO, bits,
                             block_size, symmetric, fresh)

    # Undo the order: column order_I[q] of the layer was the q-th to be rounded.
    back_I = order_I.argsort()
    return QuantizedLinear(codes_IO[back_I].T.contiguous(), scales_GO.T.contiguous(), zeros_GO.T.contiguous().int(),
                           bits, group_size, symmetric, group_of_column=groups_I[back_I], dtype=weight.dtype)


def round_columns(work_IO, factor_II, groups, scales_GO, zeros_GO, bits, block_size, symmetric, fresh):
    """The codes (I, O) of the columns of a layer, rounded in their order here; GPTQ's inner loop.

    `work_IO` holds the weights, a column of the layer in each row, and is overwritten by them as they were when they
    were rounded. `factor_II` is the upper Cholesky factor of the inverse Hessian, `groups` the group of each column.
    With `fresh`, `scales_GO` and `zeros_GO` are overwritten by grids taken when each group begins.

    A block ends where a group begins. The paper's code reads the new group's grid from weights outside its block of
    128, which still miss the updates of the block's columns: groups of fewer than 128 columns that begin within a block
    get the grid of weights that are out of date.

    Raises ValueError when the updates overflow.
    """
    codes_IO = torch.empty_like(work_IO, dtype=torch.uint8)
    start, I = 0, len(work_IO)
    while start < I:
        end = min(start + block_size, I)
        if fresh:
            group_end = start + groups[start:].count(groups[start])
            end = min(end, group_end)
            if start == 0 or groups[start - 1] != groups[start]:
                grid = group_grid(work_IO[start:group_end].T, bits, symmetric)
                scales_GO[groups[start]], zeros_GO[groups[start]] = grid
        errors_BO = torch.empty_like(work_IO[start:end])
        for q in range(start, end):
            scale_O, zero_O = scales_GO[groups[q]], zeros_GO[groups[q]]
            codes_IO[q] = to_codes(work_IO[q], scale_O, zero_O, bits)
            error_O = (work_IO[q] - from_codes(codes_IO[q], scale_O, zero_O)) / factor_II[q, q]
            work_IO[q + 1:end].addr_(factor_II[q, q + 1:end], error_O, alpha=-1)
            errors_BO[q - start] = error_O
        work_IO[end:].addmm_(factor_II[start:end, end:].T, errors_BO, alpha=-1)
        start = end
    if not work_IO.isfinite().all():
        raise ValueError(f"weight is too large: its updates overflow {work_IO.dtype}; divide it by a constant, and "
                         "multiply the scales by it")
    return codes_IO


def upper_inverse_factor(hessian_II, damping=0.0, dtype=torch.float64):
    """The upper triangular U (I, I) with U^T U the inverse of the damped Hessian, computed in `dtype`.

    The paper inverts H and takes the Cholesky factor of the inverse. Here H = R R^T is factorised from its last column
    to its first, and U = R^-1: the same matrix in half the work, and no inverse is factorised.

    Raises ValueError when the damped Hessian is not positive definite in `dtype`: when what a column keeps of its
    diagonal entry, once the columns after it have explained their part, is no more than rounding.

    >>> upper_inverse_factor(torch.tensor([[2.0, 1.0], [1.0, 1.0]]))  # the inverse is [[1, -1], [-1, 2]]
    tensor([[ 1., -1.],
            [ 0.,  1.]], dtype=torch.float64)
    """
    damped_II = damp(hessian_II.to(dtype), damping)
    lower_II, failed = torch.linalg.cholesky_ex(damped_II.flip(0, 1))
    upper_II = lower_II.flip(0, 1)
    rounding = torch.finfo(dtype).eps * len(damped_II) ** 0.5
    if failed or not (upper_II.diagonal() ** 2 > rounding * damped_II.diagonal()).all():
        raise ValueError(f"hessian is not positive definite with damping = {damping}, in {dtype}; "
                         "give more damping, or the inputs of more tokens")
    return inverse_of_upper(upper_II)


def inverse_of_upper(upper_II):
    """The inverse of an upper triangular matrix, by halves: mostly products of matrices.

    With blocks A, B and D it is A^-1, -A^-1 B D^-1 and D^-1.

    >>> inverse_of_upper(torch.tensor([[2.0, 1.0], [0.0, 4.0]]))
    tensor([[ 0.5000, -0.1250],
            [ 0.0000,  0.2500]])
    """
    half = len(upper_II) // 2
    if half < 64:
        return torch.linalg.solve_triangular(upper_II, torch.eye(len(upper_II), dtype=upper_II.dtype), upper=True)
    inverse_II = torch.zeros_like(upper_II)
    inverse_II[:half, :half] = inverse_of_upper(upper_II[:half, :half])
    inverse_II[half:, half:] = inverse_of_upper(upper_II[half:, half:])
    inverse_II[:half, half:] = -(inverse_II[:half, :half] @ upper_II[:half, half:]) @ inverse_II[half:, half:]
    return inverse_II


def downdated_inverse_rows(hessian_II):
    """The factor U again, by its meaning: no Cholesky, but I downdates of the inverse. Float64, (I, I), for the proof.

    Row q is row q of the inverse of H without columns 0 ... q-1, divided by the square root of its diagonal entry.

    >>> hessian_II = torch.tensor([[2.0, 1.0, 0.5], [1.0, 2.0, 1.0], [0.5, 1.0, 2.0]], dtype=torch.float64)
    >>> torch.allclose(downdated_inverse_rows(hessian_II), upper_inverse_factor(hessian_II), atol=1e-12)
    True
    """
    inverse_II = torch.linalg.inv(hessian_II.double())
    rows = []
    for q in range(len(inverse_II)):
        rows.append(inverse_II[q] / inverse_II[q, q].sqrt())
        inverse_II = remove_from_inverse(inverse_II, q)
    return torch.stack(rows)


def group_grids(weight_OI, bits, group_size, symmetric):
    """The scales and the zero-points (O, G) of all groups of neighbouring columns, as floats of the weight's dtype.

    >>> group_grids(torch.tensor([[0.0, 3.0, -1.0, 2.0]]), 2, 2, False)
    (tensor([[1., 1.]]), tensor([[0., 1.]]))
    """
    O, I = weight_OI.shape
    scales_OG, zeros_OG = group_grid(weight_OI.reshape(O, -1, columns_in_a_group(I, group_size)), bits, symmetric)
    return scales_OG, zeros_OG.to(weight_OI.dtype)


def check_options(block_size, act_order, static_groups):
    """Raise ValueError unless the block size is a whole number of at least 1 and the flags are True or False."""
    if isinstance(block_size, bool) or not isinstance(block_size, numbers.Integral) or block_size < 1:
        raise ValueError(f"block_size = {block_size!r} is not allowed; it must be a whole number, at least 1")
    for name, flag in (("act_order", act_order), ("static_groups", static_groups)):
        if not isinstance(flag, bool):
            raise ValueError(f"{name} = {flag!r} is not allowed; it must be True or False")

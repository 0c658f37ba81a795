"""Optimal brain damage, surgeon and quantization: change one weight, and let the others make up for it.

A row w of a layer has the error 1/2 d^T H d when d is added to it (`hessian`). Fix what happens to one weight,
d_q = target - w_q, and minimise over the other entries of d. With a Lagrange multiplier m the stationary point is
H d = m e_q, so d = m H^-1 e_q, and the constraint gives m = d_q / [H^-1]_qq:

    d = d_q H^-1[:, q] / [H^-1]_qq,    error = 1/2 d_q^2 / [H^-1]_qq.

- Optimal brain damage (LeCun, Denker and Solla 1990) prunes, d_q = -w_q, and looks at the diagonal of H only:
  1/2 w_q^2 H_qq. Nothing makes up for the change.
- Optimal brain surgeon (Hassibi and Stork 1993) prunes with the formula above.
- Optimal brain quantization (Frantar, Singh and Alistarh, arXiv:2208.11580) moves the weight to its grid instead:
  target = quant(w_q). GPTQ quotes this as its equation 2 (arXiv:2210.17323).

A weight that was dealt with must not move again. The later steps work on the Hessian of the weights that remain, H_F,
whose inverse follows from the one before by one step of Gaussian elimination (`remove_from_inverse`).

This is the slow and exact side: float64 throughout, one row and one weight at a time.
Shapes, as suffixes of names: O outputs, I inputs.
"""

import torch

from scalebook.quantization.grid import (
    QuantizedLinear,
    check_bits,
    check_weight,
    columns_in_a_group,
    from_codes,
    group_grid,
    to_codes,
)
from scalebook.quantization.hessian import check_hessian, damp

MOST_CANDIDATES = 2**22


def obd_saliency(weight_OI, hessian_II):
    """What pruning each weight adds to the error when nothing makes up for it: 1/2 w_q^2 H_qq, shaped as the weight.

    Optimal brain damage. Exact for one weight alone, because then d has one entry only.

    >>> obd_saliency(torch.tensor([[1.0, 2.0]]), torch.tensor([[4.0, 0.0], [0.0, 2.0]]))
    tensor([[2., 4.]])
    """
    return weight_OI.square() * hessian_II.diagonal() / 2


def obs_saliency(weight_OI, inverse_II):
    """What pruning each weight adds to the error when all others move to make up for it: 1/2 w_q^2 / [H^-1]_qq.

    Optimal brain surgeon. It is never more than `obd_saliency`, because [H^-1]_qq >= 1 / H_qq; they are equal when
    channel q is uncorrelated with the others.

    >>> obs_saliency(torch.tensor([[1.0, 2.0]]), torch.tensor([[4.0, 0.0], [0.0, 2.0]]).inverse())
    tensor([[2., 4.]])
    """
    return weight_OI.square() / inverse_II.diagonal() / 2


def obq_step(row_I, inverse_II, q, target):
    """Move weight q to `target` and the others to where the error is least. Returns the new row and the error added.

    `inverse_II` is the inverse Hessian of the weights that may move; its rows and columns of the others are 0.

    >>> inverse_II = torch.tensor([[2.0, 1.0], [1.0, 2.0]]).inverse()
    >>> obq_step(torch.tensor([1.0, 1.0]), inverse_II, 0, 2.0)  # up by 1, so its neighbour goes down by 1/2
    (tensor([2.0000, 0.5000]), tensor(0.7500))
    """
    change = target - row_I[q]
    moved_I = row_I + change / inverse_II[q, q] * inverse_II[:, q]
    moved_I[q] = target  # free of rounding
    return moved_I, change**2 / inverse_II[q, q] / 2


def obs_step(row_I, inverse_II, q):
    """Prune weight q: `obq_step` with the target 0. Returns the new row and the error added.

    >>> obs_step(torch.tensor([1.0, 1.0]), torch.tensor([[2.0, 1.0], [1.0, 2.0]]).inverse(), 0)
    (tensor([0.0000, 1.5000]), tensor(0.7500))
    """
    return obq_step(row_I, inverse_II, q, 0.0)


def remove_from_inverse(inverse_II, q):
    """The inverse of the Hessian without row and column q, from the inverse with them; zeros in their place.

    It is the Schur complement inverse - inverse[:, q] inverse[q, :] / inverse[q, q]: one step of Gaussian elimination
    (arXiv:2210.17323, equation 3). Cutting row and column q out of the inverse would be wrong: that is the inverse of
    another matrix.

    >>> hessian_II = torch.tensor([[2.0, 1.0, 0.0], [1.0, 2.0, 1.0], [0.0, 1.0, 2.0]])
    >>> remove_from_inverse(hessian_II.inverse(), 0)[1:, 1:]
    tensor([[ 0.6667, -0.3333],
            [-0.3333,  0.6667]])
    >>> hessian_II[1:, 1:].inverse()
    tensor([[ 0.6667, -0.3333],
            [-0.3333,  0.6667]])
    """
    smaller_II = inverse_II - torch.outer(inverse_II[:, q], inverse_II[q]) / inverse_II[q, q]
    smaller_II[q, :] = 0  # exactly, so that nothing moves weight q again
    smaller_II[:, q] = 0
    return smaller_II


def obq_row(row_I, inverse_II, scale_I, zero_I, bits, order="given"):
    """The codes (I,) of one row, each weight rounded to its own fixed grid and made up for by those that remain.

    `order="given"` goes from left to right. `order="greedy"` takes at each step the weight whose rounding costs least,
    as optimal brain quantization does; every row then has its own order, and needs its own inverses.

    >>> inverse_II = torch.tensor([[2.0, 1.9], [1.9, 2.0]]).inverse()
    >>> obq_row(torch.tensor([0.4, 0.4]), inverse_II, torch.ones(2), torch.zeros(2), bits=2)  # rounding gives 0, 0
    tensor([0, 1], dtype=torch.uint8)
    """
    remaining_I = torch.ones(len(row_I), dtype=torch.bool)
    codes_I = torch.zeros(len(row_I), dtype=torch.uint8)
    while remaining_I.any():
        targets_I = from_codes(to_codes(row_I, scale_I, zero_I, bits), scale_I, zero_I)
        cost_I = (targets_I - row_I).square() / inverse_II.diagonal()
        q = int(cost_I.where(remaining_I, torch.inf).argmin()) if order == "greedy" else int(remaining_I.int().argmax())
        codes_I[q] = to_codes(row_I[q], scale_I[q], zero_I[q], bits)
        row_I, _ = obq_step(row_I, inverse_II, q, targets_I[q])
        inverse_II = remove_from_inverse(inverse_II, q)
        remaining_I[q] = False
    return codes_I


def obq(weight, hessian, bits=4, group_size=None, *, symmetric=False, damping=0.01, order="given"):
    """Optimal brain quantization of a small layer, row by row. Returns a `QuantizedLinear`.

    The grids are those of `quantize_rtn`: taken from the weight as it is given, and fixed. `order` is "given" or
    "greedy" (see `obq_row`). It takes O x I downdates of a matrix of I x I: for small layers. The paper's treatment of
    weights that leave their grid, to round them first, is left out.

    Raises ValueError for another order, and as `quantize_gptq` does.

    >>> obq(torch.tensor([[0.4, 0.4, 3.0]]), torch.tensor([[2.0, 1.9, 0], [1.9, 2.0, 0], [0, 0, 1]]), bits=2).codes
    tensor([[0, 1, 3]], dtype=torch.uint8)
    """
    if order not in ("given", "greedy"):
        raise ValueError(f"order = {order!r} is not allowed; it must be 'given' or 'greedy'")
    weight_OI = check_weight(weight, bits, group_size, symmetric)
    O, I = weight_OI.shape
    inverse_II = inverse_hessian(hessian, I, damping)
    columns = columns_in_a_group(I, group_size)
    scales_OG, zero_points_OG = group_grid(weight_OI.reshape(O, -1, columns), bits, symmetric)
    scales_OI, zeros_OI = (part.double().repeat_interleave(columns, dim=1) for part in (scales_OG, zero_points_OG))
    codes_OI = torch.stack([obq_row(weight_OI[o].double(), inverse_II, scales_OI[o], zeros_OI[o], bits, order)
                            for o in range(O)])
    return QuantizedLinear(codes_OI, scales_OG, zero_points_OG, bits, group_size, symmetric, dtype=weight.dtype)


def inverse_hessian(hessian, inputs, damping):
    """The inverse (I, I) of the damped Hessian, in float64. Raises ValueError when it is not positive definite."""
    check_hessian(hessian, inputs)
    lower_II, failed = torch.linalg.cholesky_ex(damp(hessian.double(), damping))
    if failed:
        raise ValueError(f"hessian is not positive definite with damping = {damping}; "
                         "give more damping, or the inputs of more tokens")
    return torch.cholesky_inverse(lower_II)


def brute_force(row_I, hessian_II, scale_I, zero_I, bits):
    """The codes (I,) of one row with the least error of all 2^(bits x I) choices on fixed grids, and that error.

    Raises ValueError for more than 2^22 choices, and for bits outside 2..8.

    >>> hessian_II = torch.tensor([[2.0, 1.9], [1.9, 2.0]])
    >>> codes_I, error = brute_force(torch.tensor([0.4, 0.4]), hessian_II, torch.ones(2), torch.zeros(2), bits=2)
    >>> codes_I, round(error, 3)
    (tensor([0, 1], dtype=torch.uint8), 0.064)
    """
    check_bits(bits)
    if 2 ** (bits * len(row_I)) > MOST_CANDIDATES:
        raise ValueError(f"{len(row_I)} weights of {bits} bits have {2 ** (bits * len(row_I))} choices of codes; "
                         f"at most {MOST_CANDIDATES} are tried")
    row_I, hessian_II, scale_I = row_I.double(), hessian_II.double(), scale_I.double()
    best_I, least = None, torch.inf
    rest_CI = torch.cartesian_prod(*[torch.arange(2**bits)] * len(row_I)).view(2**bits, -1, len(row_I))
    for codes_CI in rest_CI:  # one value of the first code at a time, to spare memory
        change_CI = from_codes(codes_CI, scale_I, zero_I) - row_I
        errors_C = (change_CI @ hessian_II * change_CI).sum(dim=1) / 2
        if errors_C.min() < least:
            least, best_I = float(errors_C.min()), codes_CI[errors_C.argmin()].to(torch.uint8)
    return best_I, least

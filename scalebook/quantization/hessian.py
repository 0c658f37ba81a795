"""What a changed weight does to a layer's output, and the exact Hessian of that.

A linear layer turns an input x of I numbers into W x. Change W to W_hat, run N calibration inputs through both, and add
up the squared differences of the outputs. For one row, with d the change of its weights and the inputs as the rows of
an N x I matrix X, the sum is

    |X d|^2 = d^T (X^T X) d = 1/2 d^T H d    with    H = 2 X^T X.

The objective is quadratic, so this is no truncated series: H is its Hessian everywhere. Every row of W has the same H,
because every row sees the same inputs. Papers write the inputs as columns, and so H = 2 X X^T (GPTQ, arXiv:2210.17323,
section 3). All updates of weights contain ratios of entries of H^-1 only: the 2 cancels, and so does dividing by N.

Shapes, as suffixes of names: O outputs, I inputs, N tokens.
"""

import math
import numbers

import torch

from scalebook.quantization.grid import DTYPES


def layer_hessian(inputs_NI):
    """The Hessian 2 X^T X (I, I) of the squared output error, for the inputs of N tokens; in float64.

    It is a sum over tokens, so the Hessian of two batches is the sum of their Hessians.

    Raises ValueError for inputs that are not a finite float matrix of at least one token and one channel.

    >>> layer_hessian(torch.tensor([[1.0, 2.0], [0.0, 1.0]]))
    tensor([[ 2.,  4.],
            [ 4., 10.]], dtype=torch.float64)
    """
    check_matrix(inputs_NI, "inputs_NI", "(tokens, inputs)")
    inputs_NI = inputs_NI.detach().double()
    return (inputs_NI.T @ inputs_NI).mul_(2)


def accumulate_hessian(batches):
    """The Hessian of all tokens of an iterable of batches (N, I), held one batch at a time.

    Raises ValueError for no batches, batches of different widths, and as `layer_hessian` does.

    >>> accumulate_hessian([torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 1.0]])])
    tensor([[ 2.,  4.],
            [ 4., 10.]], dtype=torch.float64)
    """
    total_II = None
    for inputs_NI in batches:
        hessian_II = layer_hessian(inputs_NI)
        if total_II is not None and total_II.shape != hessian_II.shape:
            raise ValueError(f"batches have {len(total_II)} and {len(hessian_II)} channels; all must have the same")
        total_II = hessian_II if total_II is None else total_II.add_(hessian_II)
    if total_II is None:
        raise ValueError("batches is empty; it must hold at least one batch of inputs")
    return total_II


def row_errors(weight_OI, approximation_OI, hessian_II):
    """Each row's squared output error (O,): half of d^T H d, with d what was added to the row's weights.

    It is computed in float64 when the Hessian is float64. Raises ValueError when shapes do not fit.

    >>> row_errors(torch.eye(2), torch.zeros(2, 2), torch.tensor([[2.0, 0.0], [0.0, 4.0]]))
    tensor([1., 2.])
    """
    if weight_OI.shape != approximation_OI.shape or weight_OI.shape[1:] * 2 != hessian_II.shape:
        raise ValueError(f"weight_OI has the shape {tuple(weight_OI.shape)}, approximation_OI "
                         f"{tuple(approximation_OI.shape)} and hessian_II {tuple(hessian_II.shape)}; "
                         "they must be (O, I), (O, I) and (I, I)")
    dtype = torch.promote_types(weight_OI.dtype, hessian_II.dtype)
    difference_OI = weight_OI.to(dtype) - approximation_OI.to(dtype)
    return (difference_OI @ hessian_II.to(dtype) * difference_OI).sum(dim=1) / 2


def layer_error(weight_OI, approximation_OI, hessian_II):
    """The layer's squared output error ||W X - W_hat X||^2, summed over outputs and tokens; a float.

    That is half the trace of (W - W_hat) H (W - W_hat)^T. Raises ValueError when shapes do not fit.

    >>> inputs_NI = torch.tensor([[1.0, 2.0], [3.0, -1.0]])
    >>> layer_error(torch.tensor([[0.5, 1.0]]), torch.tensor([[1.0, 1.0]]), layer_hessian(inputs_NI))
    2.5
    """
    return float(row_errors(weight_OI, approximation_OI, hessian_II).sum())


def damp(hessian_II, damping):
    """The Hessian with `damping` times the mean of its diagonal added to its diagonal; a new matrix.

    A channel that was 0 for every token has a row of zeros. No update reaches it or leaves it, whatever its own
    diagonal is; it gets the mean of the other channels (1 when there is none), so that the matrix can be inverted. It
    does not count in the mean.

    Raises ValueError for a damping that is not a finite number of at least 0.

    >>> damp(torch.tensor([[2.0, 1.0, 0.0], [1.0, 4.0, 0.0], [0.0, 0.0, 0.0]]), 0.01)
    tensor([[2.0300, 1.0000, 0.0000],
            [1.0000, 4.0300, 0.0000],
            [0.0000, 0.0000, 3.0300]])
    """
    if not isinstance(damping, numbers.Real) or isinstance(damping, bool) or not 0 <= damping < math.inf:
        raise ValueError(f"damping = {damping!r} is not allowed; it must be a finite number, at least 0")
    diagonal_I = hessian_II.diagonal()
    dead_I = diagonal_I == 0
    mean = diagonal_I.sum() / (~dead_I).sum() if not dead_I.all() else torch.ones_like(diagonal_I[0])
    damped_II = hessian_II.clone()
    damped_II.diagonal().copy_(torch.where(dead_I, mean, diagonal_I) + damping * mean)
    return damped_II


def into_range(hessian_II):
    """The Hessian divided by the power of two that takes its largest diagonal entry into [1/2, 1): nothing is rounded.

    Any multiple of a Hessian gives the same codes. This one fits into float32 whatever the size of the inputs was.

    >>> into_range(torch.tensor([[8.0, 2.0], [2.0, 4.0]]))
    tensor([[0.5000, 0.1250],
            [0.1250, 0.2500]])
    """
    exponent = torch.frexp(hessian_II.diagonal().max()).exponent
    return torch.ldexp(hessian_II, -exponent)


def check_matrix(matrix, name, shape):
    """Raise ValueError unless `matrix` is a finite float tensor of two dimensions, neither of them 0."""
    if not isinstance(matrix, torch.Tensor) or matrix.dtype not in DTYPES:
        kind = matrix.dtype if isinstance(matrix, torch.Tensor) else type(matrix).__name__
        raise ValueError(f"{name} is {kind}; it must be a tensor of {', '.join(map(str, DTYPES))}")
    if matrix.ndim != 2 or not matrix.numel():
        raise ValueError(f"{name} has the shape {tuple(matrix.shape)}; it must be {shape}, neither of them 0")
    bad = int((~matrix.isfinite()).sum())
    if bad:
        raise ValueError(f"{name} has {bad} elements that are infinite or not a number; every element must be finite")


def check_hessian(hessian_II, inputs, name="hessian"):
    """Raise ValueError unless `hessian_II` can be a layer's Hessian: finite, (I, I), symmetric, no negative diagonal.

    A channel whose diagonal is 0 was always 0, so its row must be 0 as well. Whether the matrix is positive definite is
    found out where it is factorised.
    """
    check_matrix(hessian_II, name, "(inputs, inputs)")
    if hessian_II.shape != (inputs, inputs):
        raise ValueError(f"{name} has the shape {tuple(hessian_II.shape)}; for a weight of {inputs} inputs "
                         f"it must be {(inputs, inputs)}")
    diagonal_I = hessian_II.diagonal().double()
    if (diagonal_I < 0).any():
        raise ValueError(f"{name} has {float(diagonal_I.min()):.4g} on its diagonal; a sum of squares is at least 0, "
                         f"and {name} must be positive semi-definite")
    if not is_symmetric(hessian_II):
        difference = float((hessian_II - hessian_II.T).abs().max())
        raise ValueError(f"{name} is not symmetric: an element differs by {difference:.4g} from its mirror image")
    if hessian_II[diagonal_I == 0].any():
        raise ValueError(f"{name} has a 0 on its diagonal in a row that is not all 0; "
                         "it must be positive semi-definite")


def is_symmetric(hessian_II):
    """Whether each pair of elements differs by at most 1e-5 of the geometric mean of its diagonal entries: by rounding.

    >>> is_symmetric(torch.tensor([[4.0, 1.0], [1.0, 9.0]])), is_symmetric(torch.tensor([[4.0, 1.0], [2.0, 9.0]]))
    (True, False)
    """
    if torch.equal(hessian_II, hessian_II.T):
        return True
    size_I = hessian_II.diagonal().abs().sqrt()
    return bool(((hessian_II - hessian_II.T).abs() <= 1e-5 * torch.outer(size_I, size_I)).all())

"""What the arguments of this package must be, by their names. Needs no PyTorch until a check is made."""

import math
import numbers
from collections.abc import Iterable, Mapping
from functools import partial

from scalebook import checks

matrix = partial(checks.tensor, dimensions=2, finite=True)
vector = partial(checks.tensor, dimensions=1, finite=True)
floats = partial(checks.tensor, finite=True)


def square(name, value):
    """ValueError unless the value is a square matrix of finite floats, at least 1 x 1."""
    matrix(name, value)
    if value.shape[0] != value.shape[1] or not len(value):
        raise ValueError(f"{name} has the shape {tuple(value.shape)}; it must be square, and not empty")


def no_part_empty(name, value):
    """ValueError unless the value is a matrix of finite floats, none of its sides 0."""
    matrix(name, value)
    if not value.numel():
        raise ValueError(f"{name} has the shape {tuple(value.shape)}; neither side may be 0")


def bits(name, value):
    """ValueError unless it is a whole number from 2 to 8."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or not 2 <= value <= 8:
        raise ValueError(f"{name} = {checks.shown(value)} is not allowed; {name} must be a whole number from 2 to 8")


def record(name, value):
    """ValueError unless it is a `QuantizedLinear`."""
    from scalebook.quantization.grid import QuantizedLinear

    checks.instance(name, value, QuantizedLinear, "a QuantizedLinear")


def grid(name, value):
    """ValueError unless it is a tensor of finite numbers, or one number: a scale or a zero-point."""
    if not checks.is_number(value):
        checks.real_tensor(name, value)


def batches(name, value):
    """ValueError unless it can be iterated over; each batch is checked where it is used."""
    checks.instance(name, value, Iterable, "a sequence of tensors")
    if isinstance(value, list | tuple):
        for number, one in enumerate(value):
            matrix(f"{name}[{number}]", one)
    elif isinstance(value, str | bytes | set | Mapping) or hasattr(value, "shape"):
        raise ValueError(f"{name} = {checks.shown(value)} is not allowed; {name} must be a sequence of tensors")


def zeros(name, value):
    """ValueError unless it is a vector of finite numbers, whole or not."""
    checks.real_tensor(name, value, dimensions=1)


def broadcast(**arguments):
    """ValueError unless the shapes of the tensors broadcast."""
    import torch

    shapes = {name: tuple(value.shape) for name, value in arguments.items() if hasattr(value, "shape")}
    try:
        torch.broadcast_shapes(*shapes.values())
    except RuntimeError:
        found = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise ValueError(f"the shapes do not broadcast: {found}") from None


def no_overflow(weight_OI, approximation_OI, hessian_II):
    """ValueError where the squared error of a row is beyond the largest float64."""
    change = float((weight_OI.double() - approximation_OI.double()).abs().max())
    if not math.isfinite(change * change * float(hessian_II.abs().max()) * hessian_II.numel()):
        raise ValueError(f"weight_OI and approximation_OI differ by {change:.4g}; the squared error is beyond float64")


def positive_definite(hessian_II):
    """ValueError unless the matrix is symmetric and positive definite."""
    import torch

    if not torch.allclose(hessian_II, hessian_II.T) or torch.linalg.cholesky_ex(hessian_II.double())[1]:
        raise ValueError("hessian_II is not symmetric and positive definite")


def back(codes, scale, zero):
    """ValueError unless the scale is a tensor, whose dtype the weights take, and the shapes broadcast."""
    checks.real_tensor("codes", codes)
    checks.tensor("scale", scale)
    broadcast(codes=codes, scale=scale, zero=zero)


def one_weight(q, target=0.0, **tensors):
    """ValueError unless there is a weight q, and its target is one number."""
    tensor = next(iter(tensors.values()))
    checks.whole("q", q, 0, len(tensor) - 1)
    if getattr(target, "numel", lambda: 1)() != 1:
        raise ValueError(f"target has the shape {tuple(target.shape)}; it must be one number")


def not_empty(name, value):
    """ValueError unless it is a vector of finite floats, at least one."""
    vector(name, value)
    if not len(value):
        raise ValueError(f"{name} is empty; it must have at least one element")


def columns(name, value):
    """ValueError unless it is a tensor of finite floats whose last dimension is not 0."""
    floats(name, value)
    if not value.dim() or not value.shape[-1]:
        raise ValueError(f"{name} has the shape {tuple(value.shape)}; it must have columns, at least one")


def mapping(name, value):
    """ValueError unless it maps names to tensors."""
    checks.instance(name, value, Mapping, "a mapping from names to tensors")
    for key, one in value.items():
        checks.real_tensor(f"{name}[{key!r}]", one)


def float_type(name, value):
    """ValueError unless it is one of PyTorch's types of floats that it can factorise."""
    import torch

    checks.one_of(name, value, (torch.float32, torch.float64))


def kind(name, value):
    """ValueError unless it is a text; which, the function says."""
    checks.instance(name, value, str, "a text")


def steps(name, value):
    """ValueError unless it is a number of steps of a search that ends."""
    checks.whole(name, value, 1, 10_000)


KINDS = {
    "weight_OI": no_part_empty, "approximation_OI": no_part_empty, "weight_OC": columns, "inputs_NI": matrix,
    "hessian_II": square, "inverse_II": square,
    "row_I": not_empty, "scale_I": vector, "zero_I": zeros, "scales_I": vector, "magnitude_I": not_empty, "w": floats,
    "scale": grid, "zero": grid, "target": grid,
    "bits": bits, "q": partial(checks.whole, least=0), "record": record, "batches": batches,
    "symmetric": checks.flag, "clip": checks.flag, "steps": steps, "block_size": checks.whole,
    "act_order": checks.flag, "static_groups": checks.flag,
    "alpha": checks.scalar, "smallest": partial(checks.scalar, above=0, most=1),
    "damping": partial(checks.scalar, least=0), "share": partial(checks.scalar, above=0, most=1),
    "previous_weight": checks.real_tensor, "previous_bias": checks.real_tensor, "tensors": mapping,
    "dtype": float_type, "kind": kind,
    "order": partial(checks.one_of, allowed=("given", "greedy")),
}

# What the arguments of one function must be to each other, beside what the suffixes of their names say.
TOGETHER = {"to_codes": lambda w, scale, zero, bits: broadcast(w=w, scale=scale, zero=zero), "from_codes": back,
            "layer_error": no_overflow, "row_errors": no_overflow, "downdated_inverse_rows": positive_definite,
            "measured_error": lambda weight, record: checks.tensor("weight", weight),
            "obq_step": lambda row_I, inverse_II, q, target: one_weight(q, target, row_I=row_I),
            "obs_step": lambda row_I, inverse_II, q: one_weight(q, row_I=row_I),
            "remove_from_inverse": lambda inverse_II, q: one_weight(q, inverse_II=inverse_II)}

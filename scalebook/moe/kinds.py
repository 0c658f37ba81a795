"""What the arguments of this package must be, by their names. Needs no PyTorch until a check is made."""

from collections.abc import Iterable
from functools import partial

from scalebook import checks

floats = checks.tensor
matrix = partial(checks.tensor, dimensions=2)


def indices(name, value):
    """ValueError unless it is a tensor of integers."""
    checks.tensor(name, value, integers=True)


def mask(name, value):
    """ValueError unless it is an array of truth values; of which shape, the function says."""
    import torch

    checks.accepted(name, value, torch.as_tensor, "booleans, one for each token")


def counts(name, value):
    """ValueError unless it is a tensor, or a list, of finite numbers."""
    import torch

    real = isinstance(value, torch.Tensor) and value.dtype != torch.bool and not value.is_complex()
    listed = isinstance(value, list | tuple) and all(isinstance(one, int | float) for one in value)
    if not real and not listed:
        raise ValueError(f"{name} = {checks.shown(value)} is not allowed; {name} must be a tensor of numbers")


def routing(name, value):
    """ValueError unless it is a `Routing`."""
    from scalebook.moe.random_gates import NoisyRouting
    from scalebook.moe.routing import Routing

    checks.instance(name, value, Routing | NoisyRouting, "a Routing")


def routings(name, value):
    """ValueError unless it holds `Routing`s."""
    if not isinstance(value, Iterable) or hasattr(value, "shape"):
        raise ValueError(f"{name} = {checks.shown(value)} is not allowed; {name} must be a list of Routings")
    if isinstance(value, list | tuple | set | dict | str | bytes):
        for one in value:
            routing(name, one)


def generator(name, value):
    """ValueError unless it is a generator of random numbers."""
    import torch

    checks.instance(name, value, torch.Generator, "a torch.Generator, or None")


def shape(name, value):
    """ValueError unless it is a published model's shape."""
    from scalebook.published import ModelShape

    checks.instance(name, value, ModelShape, "a published.ModelShape")


def options(name, value):
    """ValueError unless it maps names to values."""
    if not isinstance(value, dict) or not all(isinstance(one, str) for one in value):
        raise ValueError(f"{name} = {checks.shown(value)} is not allowed; {name} must map names to values, or be None")


coefficient = partial(checks.scalar, least=0)

KINDS = {
    "noisy_TE": floats, "deviation_TE": floats, "gates_TE": floats, "probabilities_TE": floats,
    "probabilities_BTE": floats,
    "experts_TK": indices, "experts_BTK": indices, "weights_TK": floats,
    "bias_E": floats, "load_E": counts, "mask": mask,
    # Not whether weights are finite: a layer is timed, and to read its weights once more takes as long as to compute.
    "x_ND": matrix, "gate_up_D": matrix, "down_D": matrix,
    "factor": partial(checks.number, above=0), "alpha": checks.scalar, "weight": checks.scalar,
    "gamma": coefficient, "route_scale": checks.scalar, "bytes_per_parameter": partial(checks.number, above=0),
    "renormalise": checks.flag, "divide_by_k": checks.flag, "causal": checks.flag, "backward": checks.flag,
    "order": partial(checks.instance, kind=str, word="a text"),
    "priority": partial(checks.one_of, allowed=("choice", "token")),
    "x": checks.tensor, "d_model": checks.size, "d_ff_expert": checks.size, "n_experts": checks.size,
    "top_k": checks.size, "n_shared": partial(checks.size, least=0), "gate_options": options,
    "capacity_factor": partial(checks.number, above=0),
    "routing": routing, "routings": routings, "generator": generator, "shape": shape,
}


def swiglu(x_ND, gate_up_D, down_D):
    """ValueError unless gate and up are (2H, D), and down (D, H)."""
    if gate_up_D.shape != (2 * down_D.shape[1], down_D.shape[0]) or x_ND.shape[1] != gate_up_D.shape[1]:
        raise ValueError(f"x_ND, gate_up_D and down_D have the shapes {tuple(x_ND.shape)}, "
                         f"{tuple(gate_up_D.shape)} and {tuple(down_D.shape)}; they must be (N, D), (2H, D) and (D, H)")


TOGETHER = {"swiglu": swiglu}

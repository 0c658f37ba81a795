"""Mixtures of experts: gates, balancing losses, capacity and dispatch, a layer, and the count of parameters.

`parameters` counts without PyTorch. `routing`, `random_gates`, `losses`, `dispatching` and `layer` compute with
tensors. They are imported when one of their names is first asked for, so that counting stays quick and needs no
PyTorch.
"""

from importlib import import_module

_NAMES = {
    "routing": ["Routing", "dense_gates", "route_grouped_softmax", "route_sigmoid", "route_top_k",
                "selection_bias_update"],
    "random_gates": ["NoisyRouting", "route_noisy_top_k", "route_random_second"],
    "losses": ["gshard_loss", "importance_loss", "load_balancing_gradient", "load_balancing_loss",
               "load_balancing_per_layer", "load_loss", "router_z_loss", "sequence_wise_loss"],
    "dispatching": ["Dispatch", "capacity", "dispatch"],
    "layer": ["MoELayer", "swiglu"],
    "parameters": ["count_parameters", "flops_per_token", "resident_bytes"],
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name):
    """Import the module that has `name`, when it is first asked for."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)


def __dir__():
    """The names here and those that are imported when asked for."""
    return sorted([*globals(), *_MODULE_OF])

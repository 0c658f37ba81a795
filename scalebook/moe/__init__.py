"""Mixtures of experts: gates, balancing losses, capacity and dispatch, a layer, and the count of parameters.

`parameters` counts without PyTorch. `routing`, `random_gates`, `losses`, `dispatching` and `layer` compute with
tensors. They are imported when one of their names is first asked for, so that counting stays quick and needs no
PyTorch.
"""

from scalebook.lazy import lazily
from scalebook.moe.kinds import KINDS, TOGETHER

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

__getattr__, __dir__ = lazily(__name__, _NAMES, KINDS, TOGETHER)

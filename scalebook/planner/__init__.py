"""The planner: what a plan costs, and which plan is best, for a model on a cluster.

`sizes` and `clusters` describe a model and a cluster, `plans` a plan; `costs` evaluates the formulas over many plans,
`reasons` says which cannot be run; `estimating` and `searching` answer; `validation` holds the answers against
published runs. From a shell: `python -m scalebook.planner`. Names are imported when they are first asked for.
"""

from scalebook.lazy import lazily

_NAMES = {
    "clusters": ["Cluster"],
    "efficiency": ["EFFICIENCY"],
    "estimating": ["Estimate", "estimate"],
    "plans": ["Plan"],
    "searching": ["Answer", "search"],
    "sizes": ["Sizes", "gpt", "sizes_of"],
}

__getattr__, __dir__ = lazily(__name__, _NAMES)

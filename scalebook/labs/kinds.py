"""What the arguments of the labs must be, by their names."""

from functools import partial
from importlib import import_module

import torch

from scalebook import checks

ranks = partial(checks.whole, most=1024)
sizes = partial(checks.size, least=1)


def record(of, name, value):
    """ValueError unless the value is of a class, named as "module:Class" of the labs."""
    module, _, kind = of.partition(":")
    checks.instance(name, value, getattr(import_module(f"scalebook.labs.{module}"), kind), f"a {of}")


def task(of):
    """The check that a value is a task of a lab, or any record of it."""
    return partial(record, of)


def several(name, value):
    """ValueError unless it is a list of whole numbers above 0."""
    if not isinstance(value, list | tuple) or not value:
        raise ValueError(f"{name} = {checks.shown(value)} is not allowed; {name} must be a list of whole numbers")
    for one in value:
        checks.size(name, one)


def settings(name, value):
    """ValueError unless it maps names to `Setting`s."""
    checks.instance(name, value, dict, "a mapping from names to Settings")
    for one in value.values():
        record("tensor_parallel_settings:Setting", name, one)


def text(name, value):
    """ValueError unless it is a text; which, the lab says."""
    checks.instance(name, value, str, "a text")


def tokens(name, value):
    """ValueError unless it is a number of tokens, or one for each rank."""
    for one in value if isinstance(value, list | tuple) else [value]:
        checks.size(name, one, 0)


seconds = partial(checks.number, least=0)
KINDS = {
    "size": ranks, "stages": ranks, "first": ranks, "second": ranks,
    "microbatches": partial(checks.whole, most=4096), "samples": sizes, "chunks": sizes, "batch": sizes,
    "positions": sizes, "width": sizes, "heads": sizes, "sizes": several, "repeats": sizes,
    "tokens": tokens, "d_model": sizes, "d_ff_expert": sizes, "n_experts": sizes, "top_k": sizes,
    "seed": partial(checks.whole, least=0, most=2**63 - 1), "after": sizes,
    "schedule": text, "gate": text, "mistake": text, "variant": text, "settings": settings,
    "dtype": partial(checks.instance, kind=torch.dtype, word="a torch.dtype"),
    "shape": task("tiny_transformer:Shape"), "setting": task("tensor_parallel_settings:Setting"),
    "forward_s": seconds, "backward_s": seconds, "weight_s": seconds,
    "device": text, "batches": several, "bits": several, "rows": sizes, "columns": sizes, "rounds": sizes,
}

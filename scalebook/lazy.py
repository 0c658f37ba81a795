"""Names of a package that are imported when they are first asked for, so that the package itself is quick to import."""

import inspect
import sys
from importlib import import_module

from scalebook.borders import guarded


def lazily(package, names, kinds=None, together=None):
    """The functions `__getattr__` and `__dir__` of a package, for the names that its modules hold.

    `names` maps a module of the package to the names in it. `kinds` maps names of arguments to checks; the functions
    that the package gives out make them, and those of `together`, which maps names of functions to what checks all
    arguments of one (`borders.guarded`). A name that none has raises AttributeError.

    >>> get, listed = lazily("scalebook.moe", {"balance": ["entropy"]})
    >>> float(get("entropy")([5, 5])), "entropy" in listed()
    (1.0, True)
    """
    module_of = {name: module for module, held in names.items() for name in held}
    given_out = {}  # not in the package's namespace, where a search for examples would find them a second time

    def get(name):
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if name in given_out:
            return given_out[name]
        value = getattr(_imported(package, module_of[name]), name)
        if kinds and inspect.isfunction(value):
            value = given_out[name] = guarded(value, kinds, (together or {}).get(name))
            value.__module__ = package  # where `pickle` finds this very function
        return value

    def listed():
        return sorted({*vars(sys.modules[package]), *module_of})

    return get, listed


def _imported(package, module):
    """A module of a package; where it lacks PyTorch, the error says what brings it."""
    try:
        return import_module(f"{package}.{module}")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise without_torch(package) from None


def without_torch(package):
    """The error of a package that computes with PyTorch where there is none: it says what brings it."""
    words = f"{package} computes with PyTorch, which is not installed: pip install 'scalebook[labs]'"
    return ModuleNotFoundError(words, name="torch")

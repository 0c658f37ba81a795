"""Names of a package that are imported when they are first asked for, so that the package itself is quick to import."""

import sys
from importlib import import_module


def lazily(package, names):
    """The functions `__getattr__` and `__dir__` of a package, for the names that its modules hold.

    `names` maps a module of the package to the names in it. A name that none has raises AttributeError.

    >>> get, listed = lazily("scalebook.moe", {"balance": ["entropy"]})
    >>> float(get("entropy")([5, 5])), "entropy" in listed()
    (1.0, True)
    """
    module_of = {name: module for module, held in names.items() for name in held}

    def get(name):
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{module_of[name]}"), name)

    def listed():
        return sorted([*vars(sys.modules[package]), *module_of])

    return get, listed

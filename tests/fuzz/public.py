"""The public callables of the library, found and not listed, so that a new one cannot be forgotten.

Public are the names that a package offers (its `__all__` and its lazy names) and, of a module that belongs to no such
package, its functions and classes without an underscore. Of a public class its constructor and its methods count.
"""

import importlib
import inspect
import pkgutil
import types

import scalebook
from scalebook.formulas import Formula

# Tools of the authors: they run from a shell, on this repository, and have tests of their own.
TOOLS = ("scalebook.book",)
# Of these the names that the package offers are public, and their modules are its own affair.
PACKAGES = ("explorer", "formulas", "moe", "pipeline", "planner", "published", "quantization", "ranks",
            "tensor_parallel", "zero")


def in_use(name):
    """Whether a name of a chart's or a lab's module is for readers, and no part of another function of the module.

    Of a chart it is what takes the values of its controls, or records. Of a lab it is what starts ranks, its twin in
    one process, what describes the work, and the comparison of two results.
    """
    _, _, last = name.rpartition(".")
    if name.startswith("scalebook.charts."):
        return last.endswith(("_chart", "_row", "_rows", "_records")) or last == "simulate_step"
    if name.startswith("scalebook.labs."):
        return (last in ("Task", "Setting", "difference", "saved_activations") or last.startswith("single_process")
                or "timeout" in inspect.signature(found_at(name)).parameters)
    return True


def found_at(name):
    """The object of a full name."""
    parts = name.split(".")
    for length in range(len(parts) - 1, 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            value = getattr(value, part)
        return value
    raise ValueError(f"there is no {name}")


def offered(package):
    """The names that a package offers."""
    lazy = [name for names in getattr(package, "_NAMES", getattr(package, "_LAZY", {})).values() for name in names]
    return [*getattr(package, "__all__", ()), *lazy]


def modules():
    """Every module whose own functions are public."""
    found = pkgutil.walk_packages(scalebook.__path__, "scalebook.")
    names = [one.name for one in found if not one.name.endswith("__main__")]
    inner = tuple(f"scalebook.{package}." for package in PACKAGES)
    outside = [name for name in names if not name.startswith((*TOOLS, *inner))]
    return [importlib.import_module(name) for name in outside if name.removeprefix("scalebook.") not in PACKAGES]


def own(module):
    """The functions and classes that a module defines, without those that have an underscore."""
    return {name: value for name, value in vars(module).items()
            if not name.startswith("_") and inspect.isroutine(value) | inspect.isclass(value)
            and getattr(value, "__module__", None) == module.__name__}


def public_names():
    """Every public function and class, by its name as it is imported: "scalebook.moe.capacity"."""
    found = {}
    for package in PACKAGES:
        module = importlib.import_module(f"scalebook.{package}")
        for name in offered(module):
            value = getattr(module, name)
            if callable(value):
                found[f"{module.__name__}.{name}"] = value
        found |= {f"{module.__name__}.{name}": value for name, value in own(module).items()}
    for module in modules():
        found |= {f"{module.__name__}.{name}": value for name, value in own(module).items()}
    return {name: value for name, value in found.items() if not isinstance(value, Formula)}


def methods_of(kind):
    """The public methods that a class defines, or has from another class of the library."""
    ours = [one for one in kind.__mro__ if one.__module__.startswith("scalebook.")]
    return {name: value for one in reversed(ours) for name, value in vars(one).items()
            if not name.startswith("_") and isinstance(value, types.FunctionType | classmethod | staticmethod)}


def takes_arguments(call, skip=0):
    """Whether it has a parameter that a caller can give."""
    return len(inspect.signature(call).parameters) > skip


def public_calls():
    """Every public call that takes arguments: functions, constructors, and methods as "module.Class.method"."""
    found = {}
    for name, value in public_names().items():
        if inspect.isclass(value):
            if not issubclass(value, BaseException) and takes_arguments(value):
                found[name] = value
            for method, function in methods_of(value).items():
                if takes_arguments(getattr(function, "__func__", function), skip=1):
                    found[f"{name}.{method}"] = function
        elif takes_arguments(value):
            found[name] = value
    return {name: value for name, value in found.items() if in_use(name)}

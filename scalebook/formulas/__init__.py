"""Every equation of the book, once: a SymPy expression, its variables with their units, and its source.

The page prints a formula's LaTeX, the tests and cells call it with numbers, and the browser evaluates the Vega
expression printed from the same object. One module per chapter holds that chapter's formulas.
"""

import importlib
import pkgutil

from scalebook.formulas.core import Formula, Variable

__all__ = ["Formula", "Variable", "catalogue"]


def catalogue():
    """Return every formula of the book, keyed by "module.name".

    >>> "pipeline.bubble_overhead" in catalogue()
    True
    """
    found = {}
    for module_info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{module_info.name}")
        for name, value in vars(module).items():
            if isinstance(value, Formula) and module_info.name != "core":
                found[f"{module_info.name}.{name}"] = value
    return found

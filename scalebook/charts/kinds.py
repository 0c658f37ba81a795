"""What the rows of the charts take, where it is no value of their own controls."""

from collections.abc import Mapping
from functools import partial

from scalebook import checks


def choice(values):
    """The check that a value is one of those that a control has."""
    return partial(checks.one_of, allowed=tuple(values))


def records(*keys):
    """The check that a value is a list of mappings that have these keys, at least one."""
    def check(name, value):
        listed = isinstance(value, list | tuple) and value
        if not listed or not all(isinstance(one, Mapping) and set(keys) <= set(one) for one in value):
            raise ValueError(f"{name} = {checks.shown(value)} is not allowed; {name} must be a list of mappings with "
                             f"{', '.join(keys)}")
    return check


def table(**keys):
    """The check that a value is a mapping that has these keys, each of its kind."""
    def check(name, value):
        whole = isinstance(value, Mapping) and set(keys) <= set(value)
        if not whole or not all(value[key] and isinstance(value[key], kind) for key, kind in keys.items()):
            raise ValueError(f"{name} = {checks.shown(value)} is not allowed; {name} must have {', '.join(keys)}")
    return check


positive = partial(checks.number, above=0)
amount = partial(checks.number, least=0)

"""Checks where a reader's call enters the library, so that what computes holds no more than the mathematics.

The names of arguments are kept through the library: a `hessian_II` is one wherever it stands. So a table from a name to
its check serves all functions of a package. Calls inside the library do not pass here.
"""

import functools
import inspect
import re


def guarded(function, kinds, together=None):
    """The function, with each argument first given to the check that `kinds` has under the argument's name.

    A check takes the name and the value, and raises ValueError. Then the shapes must agree (`sizes_agree`). `together`,
    if given, is then called with all arguments by their names, the defaults too, and checks what they are to each
    other. The default of an argument is not checked, and neither are arguments that Python itself refuses, because one
    is missing or unknown.

    >>> from scalebook.checks import whole
    >>> half = guarded(lambda ranks: ranks / 2, {"ranks": whole})
    >>> half(3)
    1.5
    >>> half("3")
    Traceback (most recent call last):
    ...
    ValueError: ranks = '3' is not allowed; ranks must be a whole number, at least 1
    """
    signature = inspect.signature(function)
    checks = {name: kinds[name] for name in signature.parameters if name in kinds}
    defaults = {name: signature.parameters[name].default for name in checks}

    @functools.wraps(function)
    def enter(*args, **kwargs):
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError:
            return function(*args, **kwargs)
        for name, check in checks.items():
            if name in given and given[name] is not defaults[name]:
                check(name, given[name])
        sizes_agree(given)
        if together is not None:
            together(**{name: one.default for name, one in signature.parameters.items()} | given)
        return function(*args, **kwargs)

    return enter


def sizes_agree(arguments):
    """Raise ValueError when a letter of the suffixes stands for two sizes.

    A suffix of capitals names the dimensions of a tensor: weight_OI is (O, I), scales_I is (I,). A tensor of another
    number of dimensions than its suffix is left to the function.

    >>> import numpy as np
    >>> sizes_agree({"weight_OI": np.ones((2, 3)), "scales_I": np.ones(4)})
    Traceback (most recent call last):
    ...
    ValueError: scales_I has the shape (4,), so I = 4; but weight_OI has the shape (2, 3), so I = 3
    """
    known = {}
    for name, value in arguments.items():
        letters, shape = name.rpartition("_")[2], getattr(value, "shape", ())
        if not re.fullmatch("[A-Za-z]*[A-Z][A-Za-z]*", letters) or len(letters) != len(shape):
            continue
        for letter, size in zip(letters, shape, strict=True):
            first, its_shape, its_size = known.setdefault(letter, (name, shape, size))
            if size != its_size:
                raise ValueError(f"{name} has the shape {tuple(shape)}, so {letter} = {size}; "
                                 f"but {first} has the shape {tuple(its_shape)}, so {letter} = {its_size}")


def guard(namespace, kinds, *names, together=None):
    """Put guarded functions in the place of functions; of a class, its constructor and its `forward`.

    Stands at the end of a module, as `guard(globals(), {"x": number}, "area", "Linear", "Linear.reset")`. `together`
    has its checks under these names, and of a method it gets `self` too.
    """
    together = together or {}
    for name in names:
        owner, _, method = name.rpartition(".")
        value = namespace[owner or name]
        if not inspect.isclass(value):
            namespace[name] = guarded(value, kinds, together.get(name))
            continue
        for one in [method] if owner else ["__init__", "forward"]:
            if one in vars(value):
                setattr(value, one, guarded(vars(value)[one], kinds, together.get(f"{owner or name}.{one}")))

"""What may be run on ranks: the arguments of `run`, checked before a process is started."""

import importlib.util
import pickle
import sys
import types

import torch

from scalebook.checks import is_number, one_of, shown, whole

MOST_RANKS = 1024  # on one machine: what a slip of the keyboard asks for is not started
LONGEST_S = 10 * 86_400


def check_function(fn):
    """Raise ValueError unless another process can find `fn` by its module and name."""
    complaint = f"fn = {fn!r} is not allowed; fn must be "
    if not isinstance(fn, types.FunctionType):
        raise ValueError(complaint + "a plain function of a module")
    if fn.__module__ == "__main__":
        raise ValueError(
            complaint + "defined in a module that a rank can import, not in a script, a notebook cell or a prompt: "
            "move it to a file (the programs of this book live in scalebook.labs)"
        )
    if "<" in fn.__qualname__:
        raise ValueError(complaint + "defined at the top level of a module, not a lambda and not inside a function")
    try:
        found = importlib.util.find_spec(fn.__module__) is not None
    except (ImportError, ValueError):
        found = False
    target = sys.modules.get(fn.__module__)
    for part in fn.__qualname__.split("."):
        target = getattr(target, part, None)
    if not found or target is not fn:
        raise ValueError(complaint + f"what a rank gets by importing {fn.__module__}.{fn.__qualname__}")


def check_world_size(world_size):
    """Raise ValueError unless `world_size` is a number of ranks."""
    whole("world_size", world_size, most=MOST_RANKS)


def check_timeout(timeout):
    """Raise ValueError unless `timeout` is a time that can pass."""
    if not is_number(timeout) or not 0 < timeout <= LONGEST_S:
        raise ValueError(f"timeout = {shown(timeout)} is not allowed; timeout must be a finite number of seconds "
                         f"above 0, at most {LONGEST_S}")


def choose_backend(backend, world_size):
    """The backend to initialise: NCCL for tensors on GPUs beside gloo for those on the CPU, or gloo alone.

    None chooses the first where every rank can have a GPU of its own.

    >>> choose_backend("gloo", 4)
    'gloo'
    """
    one_of("backend", backend, (None, "gloo", "nccl"))
    gpus = torch.cuda.device_count()
    if backend == "nccl" and gpus < world_size:
        raise ValueError(f"backend = 'nccl' is not allowed; {world_size} ranks need a GPU each, and there are {gpus}")
    return "gloo" if backend == "gloo" or gpus < world_size else "cpu:gloo,cuda:nccl"


def pack_call(fn, args):
    """The call as bytes that a rank unpacks; raise ValueError for an argument that cannot be sent.

    The standard `pickle` on purpose: the pickler of `multiprocessing` would move tensors to shared memory, which is a
    file that can be left behind.
    """
    for position, value in enumerate(args):
        try:
            pickle.dumps(value)
        except Exception as error:
            raise ValueError(
                f"args[{position}] = {value!r} is not allowed; it must be picklable, to be sent to a rank ({error})"
            ) from error
    return pickle.dumps((fn, args))

"""Where speed is measured: on the processor, and beside it on the GPU where there is one."""

import torch


def devices():
    """Where products can be timed here: the processor, and after it the GPU if there is one.

    >>> devices()[0]
    'cpu'
    """
    return ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)


def finish(device):
    """Wait until a GPU has done what it was asked to: calls return before that. On the processor they do not.

    >>> finish("cpu")
    """
    if device != "cpu":
        torch.cuda.synchronize()

"""What a rank returns, as bytes for another process: tensors come out of them on the CPU, wherever they were."""

import io
import pickle

import torch


class _Packer(pickle.Pickler):
    """A pickler that takes every tensor, however deep it lies, to the CPU first."""

    def reducer_override(self, value):
        """How a tensor on another device is pickled; everything else as usual."""
        if not isinstance(value, torch.Tensor) or value.device.type == "cpu":
            return NotImplemented
        return value.detach().cpu().requires_grad_(value.requires_grad).__reduce_ex__(pickle.DEFAULT_PROTOCOL)


def pack(value):
    """The bytes that `pickle.loads` makes the value of again, with its tensors on the CPU.

    >>> pickle.loads(pack({"sums": (torch.ones(2), "gloo")}))
    {'sums': (tensor([1., 1.]), 'gloo')}
    """
    stream = io.BytesIO()
    _Packer(stream).dump(value)
    return stream.getvalue()

"""Where a quantized model's error sits: in which layers, in which channels, and how large the inputs there are.

Shapes, as suffixes of names: B samples, S positions, O outputs and I inputs of a layer.
"""

import torch

from scalebook.labs.quantized_layers import walk
from scalebook.quantization.hessian import row_errors


def channel_errors(weight_OI, approximation_OI, hessian_II):
    """How much of a layer's relative output error comes from each input channel: (I,), in float64.

    With D the change of the weight, the error is the trace of D H D^T, half of it, and channel j's part is the sum over
    rows of D_j (D H)_j, half of it. The parts add up to the error exactly. A channel whose error makes up for others'
    has a negative part. All is divided by the squared output of the unchanged layer.

    >>> weight_OI, hessian_II = torch.ones(1, 2), torch.tensor([[2.0, 0.0], [0.0, 6.0]])
    >>> channel_errors(weight_OI, torch.tensor([[0.5, 1.0]]), hessian_II)
    tensor([0.0625, 0.0000], dtype=torch.float64)
    """
    difference_OI, hessian_II = (weight_OI - approximation_OI).double(), hessian_II.double()
    parts_I = (difference_OI @ hessian_II * difference_OI).sum(0) / 2
    return parts_I / row_errors(weight_OI, torch.zeros_like(weight_OI), hessian_II).sum()


@torch.no_grad()
def channel_maxima(model, tokens_BS):
    """The largest |x| of each input channel of every stage, by the stage's key: (I,)."""
    return {
        stage.key: torch.stack([x_BSI.abs().flatten(0, -2).amax(0) for x_BSI in inputs]).amax(0)
        for stage, inputs in walk(model, tokens_BS)
    }


def input_outliers(maxima_I):
    """How far a stage's largest input channel stands out: its number, its max |x|, and the median of all channels'.

    >>> input_outliers(torch.tensor([1.0, 9.0, 2.0]))
    {'channel': 1, 'largest': 9.0, 'median': 2.0}
    """
    return {
        "channel": int(maxima_I.argmax()),
        "largest": float(f"{maxima_I.max():.4g}"),
        "median": float(f"{maxima_I.median():.4g}"),
    }

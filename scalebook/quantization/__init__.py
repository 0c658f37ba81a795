"""Quantization: the affine map, rounding to nearest, OBQ, GPTQ and AWQ, packed codes and llama.cpp's blocks.

Everything here computes with tensors or with bytes. A module is imported when one of its names is first asked for, so
that importing the package is quick and needs no PyTorch.
"""

from scalebook.lazy import lazily
from scalebook.quantization.kinds import KINDS, TOGETHER

_NAMES = {
    "grid": ["QuantizedLinear", "from_codes", "group_grid", "to_codes"],
    "rounding": ["expected_error", "measured_error", "quantize_rtn"],
    "packing": ["from_gptq_checkpoint", "pack_codes", "to_gptq_checkpoint", "unpack_codes"],
    "llama_cpp": ["block_bits_per_weight", "dequantize_blocks", "quantize_blocks"],
    "hessian": ["accumulate_hessian", "damp", "layer_error", "layer_hessian", "row_errors"],
    "obs": ["brute_force", "obd_saliency", "obq", "obq_row", "obq_step", "obs_saliency", "obs_step",
            "remove_from_inverse"],
    "gptq": ["downdated_inverse_rows", "quantize_gptq", "upper_inverse_factor"],
    "awq": ["awq_curve", "awq_scales", "clip_weight", "fold_into_previous", "quantize_awq", "salient_scale_error",
            "step_ratios"],
}

__getattr__, __dir__ = lazily(__name__, _NAMES, KINDS, TOGETHER)

"""llama.cpp's blocks: written in Q4_0, Q4_1, Q5_0 and Q8_0, and read in these and in Q4_K.

A block is a run of weights of one row with their scale among its bytes. `LAYOUTS` is the layout, byte by byte, as
ggml-common.h of ggml-org/llama.cpp has it; the bits per weight follow from it. Everything is NumPy: a block is bytes.
All floats are rounded as the reference does it, in float32 with a scale that is rounded to float16 last, so that the
bytes are the same.

Three maps are in use, none of them w = S (q - Z) with a whole Z that is stored:
- Q4_0, Q5_0: w = d (q - 2^(b-1)), where d has the sign that puts the greatest weight at the code 0;
- Q8_0: w = d q with signed codes;
- Q4_1 and, in each group of 32, Q4_K: w = d q + m, with any float m, so that 0 need not be on the grid.
"""

import numpy as np

from scalebook.checks import shown

LAYOUTS = {
    "Q4_0": np.dtype([("d", "<f2"), ("qs", "u1", 16)]),
    "Q4_1": np.dtype([("d", "<f2"), ("m", "<f2"), ("qs", "u1", 16)]),
    "Q5_0": np.dtype([("d", "<f2"), ("qh", "<u4"), ("qs", "u1", 16)]),
    "Q8_0": np.dtype([("d", "<f2"), ("qs", "i1", 32)]),
    "Q4_K": np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qs", "u1", 128)]),
}
WEIGHTS = {"Q4_0": 32, "Q4_1": 32, "Q5_0": 32, "Q8_0": 32, "Q4_K": 256}


def block_bits_per_weight(kind):
    """Return the bits that a weight costs in blocks of `kind`, its share of the scales included.

    >>> {kind: block_bits_per_weight(kind) for kind in LAYOUTS}
    {'Q4_0': 4.5, 'Q4_1': 5.0, 'Q5_0': 5.5, 'Q8_0': 8.5, 'Q4_K': 4.5}
    """
    _check_kind(kind, LAYOUTS)
    return 8 * LAYOUTS[kind].itemsize / WEIGHTS[kind]


def quantize_blocks(weight, kind):
    """Return the blocks of `kind` of an array (..., I) as bytes (..., I / 32 * bytes of a block).

    Raises ValueError for a kind that is only read here, a row that is not whole blocks, weights that are not finite,
    and weights so large that float16 does not hold a block's scale.

    >>> quantize_blocks(np.linspace(-8, 7, 32), "Q4_0")[:3]  # d = 1.0 as float16, then 0 | 8 << 4
    array([  0,  60, 128], dtype=uint8)
    """
    _check_kind(kind, _QUANTIZE)
    weight = _array("weight", weight)
    if weight.dtype.kind != "f" or weight.ndim == 0 or not weight.size or weight.shape[-1] % WEIGHTS[kind]:
        raise ValueError(f"weight is {weight.dtype} of shape {weight.shape}; it must be floats, with rows of whole "
                         f"blocks of {WEIGHTS[kind]}")
    with np.errstate(over="ignore"):
        x_BN = weight.astype(np.float32).reshape(-1, WEIGHTS[kind])
    if not np.isfinite(x_BN).all():
        raise ValueError("weight has elements that are infinite, not a number, or beyond float32; all must be finite")
    blocks = np.zeros(len(x_BN), LAYOUTS[kind])
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):  # what overflows is refused below
        _QUANTIZE[kind](x_BN, blocks)
    for name in {"d", "m"} & set(blocks.dtype.names):
        if not np.isfinite(blocks[name]).all():
            raise ValueError(f"weight reaches {np.abs(x_BN).max():.4g}; {kind} keeps {name} in float16, up to 65504")
    return blocks.view(np.uint8).reshape(*weight.shape[:-1], -1)


def dequantize_blocks(data, kind):
    """Return the weights (..., I) in float32 that bytes (..., I / block * bytes of a block) hold.

    Raises ValueError for an unknown kind, and for bytes that are not whole blocks.

    >>> dequantize_blocks(quantize_blocks(np.linspace(-8, 7, 32), "Q4_0"), "Q4_0")[[0, 1, 31]]
    array([-8., -8.,  7.], dtype=float32)
    """
    _check_kind(kind, LAYOUTS)
    data = _array("data", data)
    if data.dtype != np.uint8 or data.ndim == 0 or data.shape[-1] % LAYOUTS[kind].itemsize:
        raise ValueError(f"data is {data.dtype} of shape {data.shape}; it must be uint8, with rows of whole blocks "
                         f"of {LAYOUTS[kind].itemsize} bytes")
    blocks = np.ascontiguousarray(data).reshape(-1).view(LAYOUTS[kind])
    return _DEQUANTIZE[kind](blocks).reshape(*data.shape[:-1], -1)


def _array(name, value):
    """The value as an array; ValueError for what is none."""
    try:
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"{name} = {shown(value)} is not allowed; {name} must be a regular array") from None


def _check_kind(kind, known):
    if not isinstance(kind, str) or kind not in known:
        raise ValueError(f"kind = {kind!r} is not allowed; it must be one of {', '.join(known)}")


# Codes 0..15 of the first half of a block lie in the low halves of its bytes, those of the second half in the high.

def _pack_halves(codes_BN):
    first, second = np.split(codes_BN.astype(np.uint8), 2, axis=-1)
    return first & 0x0F | (second & 0x0F) << 4


def _unpack_halves(packed):
    return np.concatenate([packed & 0x0F, packed >> 4], axis=-1)


def _inverse(d_B1):
    """1/d, and 0 where d is so small that 1/d is not finite."""
    with np.errstate(divide="ignore"):
        inverse_B1 = np.float32(1) / d_B1
    return np.where(np.isfinite(inverse_B1), inverse_B1, np.float32(0))


def _cut(x, greatest):
    """Drop what follows the point, as a cast to an integer does, and keep to the codes from 0 to `greatest`."""
    return np.clip(np.trunc(x), 0, greatest)


def _signed_scale(x_BN, steps):
    """d such that the weight of greatest magnitude, the first of them, is exactly -steps d."""
    return np.take_along_axis(x_BN, np.abs(x_BN).argmax(axis=-1, keepdims=True), axis=-1) / np.float32(-steps)


def _quantize_q4_0(x_BN, blocks):
    d_B1 = _signed_scale(x_BN, 8)
    blocks["d"] = d_B1[:, 0]
    blocks["qs"] = _pack_halves(_cut(x_BN * _inverse(d_B1) + np.float32(8.5), 15))


def _quantize_q4_1(x_BN, blocks):
    least_B1 = x_BN.min(axis=-1, keepdims=True)
    d_B1 = (x_BN.max(axis=-1, keepdims=True) - least_B1) / np.float32(15)
    blocks["d"], blocks["m"] = d_B1[:, 0], least_B1[:, 0]
    blocks["qs"] = _pack_halves(_cut((x_BN - least_B1) * _inverse(d_B1) + np.float32(0.5), 15))


def _quantize_q5_0(x_BN, blocks):
    d_B1 = _signed_scale(x_BN, 16)
    codes_BN = _cut(x_BN * _inverse(d_B1) + np.float32(16.5), 31).astype(np.uint8)
    blocks["d"] = d_B1[:, 0]
    blocks["qh"] = ((codes_BN >> 4).astype(np.uint32) << np.arange(32, dtype=np.uint32)).sum(axis=-1)
    blocks["qs"] = _pack_halves(codes_BN)


def _quantize_q8_0(x_BN, blocks):
    d_B1 = np.abs(x_BN).max(axis=-1, keepdims=True) / np.float32(127)
    scaled_BN = x_BN * _inverse(d_B1)
    whole_BN = np.trunc(scaled_BN)  # and not floor(|x| + 0.5), which rounds the float below 0.5 to 1
    away_BN = np.abs(scaled_BN - whole_BN) >= 0.5
    blocks["d"] = d_B1[:, 0]
    blocks["qs"] = whole_BN + np.where(away_BN, np.sign(scaled_BN), 0)


def _dequantize_q4_0(blocks):
    return _scale(blocks) * (_unpack_halves(blocks["qs"]).astype(np.float32) - 8)


def _dequantize_q4_1(blocks):
    return _scale(blocks) * _unpack_halves(blocks["qs"]).astype(np.float32) + _scale(blocks, "m")


def _dequantize_q5_0(blocks):
    fifth_BN = blocks["qh"][:, None] >> np.arange(32, dtype=np.uint32) & 1
    return _scale(blocks) * ((_unpack_halves(blocks["qs"]) | fifth_BN << 4).astype(np.float32) - 16)


def _dequantize_q8_0(blocks):
    return _scale(blocks) * blocks["qs"].astype(np.float32)


def _dequantize_q4_k(blocks):
    scale_B8, offset_B8 = _six_bit_fields(blocks["scales"])
    d_B81 = (_scale(blocks) * scale_B8.astype(np.float32))[..., None]
    offset_B81 = (_scale(blocks, "dmin") * offset_B8.astype(np.float32))[..., None]
    codes_B8N = _unpack_halves(blocks["qs"].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    return d_B81 * codes_B8N.astype(np.float32) - offset_B81


def _six_bit_fields(bytes_B12):
    """The 8 scales and 8 offsets of 6 bits in 12 bytes.

    The first four of each lie in the low 6 bits of bytes 0-3 and 4-7. Of the last four, the low 4 bits lie in bytes
    8-11 (the scale's in the low half, the offset's in the high), the high 2 bits on top of bytes 0-3 and 4-7.
    """
    first, second, third = np.split(bytes_B12, 3, axis=-1)
    scale = np.concatenate([first & 63, third & 15 | first >> 6 << 4], axis=-1)
    return scale, np.concatenate([second & 63, third >> 4 | second >> 6 << 4], axis=-1)


def _scale(blocks, name="d"):
    return blocks[name].astype(np.float32)[:, None]


_QUANTIZE = {"Q4_0": _quantize_q4_0, "Q4_1": _quantize_q4_1, "Q5_0": _quantize_q5_0, "Q8_0": _quantize_q8_0}
_DEQUANTIZE = {"Q4_0": _dequantize_q4_0, "Q4_1": _dequantize_q4_1, "Q5_0": _dequantize_q5_0, "Q8_0": _dequantize_q8_0,
               "Q4_K": _dequantize_q4_k}

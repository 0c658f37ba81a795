"""Codes of a few bits in memory: packed side by side, and as a GPTQ checkpoint stores them.

Codes follow each other without gaps, the lowest bit first: two codes of 4 bits in a byte, the first in the low half,
or 32 codes of 3 bits in three words of 32 bits. A GPTQ checkpoint (AutoGPTQ's format, version 1) packs the codes along
the inputs and the zero-points along the outputs, and stores each zero-point minus one.

Shapes: O outputs, I inputs, G groups in a row.
"""

import numpy as np
import torch

from scalebook.quantization.grid import QuantizedLinear, check_bits, columns_in_a_group

GPTQ_BITS = (2, 3, 4, 8)


def pack_codes(codes, bits):
    """Pack codes of shape (..., n) side by side into bytes of shape (..., n bits / 8).

    Raises ValueError for bits outside 2..8, codes that are no whole numbers or do not fit, and an n whose codes do not
    fill whole bytes.

    >>> pack_codes(torch.tensor([1, 2, 15, 0], dtype=torch.uint8), bits=4)  # 0x21, 0x0f
    tensor([33, 15], dtype=torch.uint8)
    """
    check_bits(bits)
    _check_whole(codes, "codes")
    if codes.ndim == 0 or codes.shape[-1] * bits % 8:
        raise ValueError(f"codes has the shape {tuple(codes.shape)}; at {bits} bits its last axis must "
                         "fill whole bytes")
    if codes.numel() and not 0 <= int(codes.min()) <= int(codes.max()) < 2**bits:
        raise ValueError(f"codes runs from {int(codes.min())} to {int(codes.max())}; "
                         f"codes of {bits} bits must lie in 0..{2**bits - 1}")
    one_a_byte = codes.to(torch.uint8).contiguous().numpy()
    each_bit = np.unpackbits(one_a_byte[..., None], axis=-1, bitorder="little", count=bits)
    each_bit = each_bit.reshape(*codes.shape[:-1], codes.shape[-1] * bits)
    return torch.from_numpy(np.packbits(each_bit, axis=-1, bitorder="little"))


def unpack_codes(packed, bits):
    """Return the codes of shape (..., n) that `pack_codes` packed into bytes of shape (..., n bits / 8).

    Raises ValueError for bits outside 2..8, and bytes that do not hold a whole number of codes.

    >>> unpack_codes(torch.tensor([33, 15], dtype=torch.uint8), bits=4)
    tensor([ 1,  2, 15,  0], dtype=torch.uint8)
    """
    check_bits(bits)
    if not isinstance(packed, torch.Tensor) or packed.dtype != torch.uint8:
        raise ValueError(f"packed is {getattr(packed, 'dtype', type(packed).__name__)}; it must be a uint8 tensor")
    if packed.ndim == 0 or packed.shape[-1] * 8 % bits:
        raise ValueError(f"packed has the shape {tuple(packed.shape)}; "
                         f"its last axis must hold a whole number of codes of {bits} bits")
    each_bit = np.unpackbits(packed.contiguous().numpy(), axis=-1, bitorder="little")
    each_bit = each_bit.reshape(*packed.shape[:-1], packed.shape[-1] * 8 // bits, bits)
    one_a_byte = np.packbits(each_bit, axis=-1, bitorder="little")
    return torch.from_numpy(one_a_byte[..., 0])


def to_gptq_checkpoint(record):
    """Return the tensors of a linear layer in a GPTQ checkpoint: `qweight`, `qzeros`, `scales` and `g_idx`.

    `qweight` (I bits / 32, O) int32 holds the codes of an output in a column, `qzeros` (G, O bits / 32) int32 the
    zero-points minus one, `scales` (G, O) float16, and `g_idx` (I,) int32 the group of each input.

    Scales are rounded to float16, which moves a weight by up to 2^bits S / 2^11, and more where S is under 6e-5 and
    float16 has fewer digits. Raises ValueError for 5, 6 or 7 bits,
    for I or O that is no multiple of 32, for scales that float16 does not hold, and for input scales, which have no
    place in this format: fold them into the operation before and set `input_scales=None`. A zero-point of 0 (a group
    whose weights all lie above -S/2) is refused too: it would be stored as -1, and readers differ on what that is.
    AutoGPTQ's `qlinear_cuda_old` reads 0 at 2, 4 and 8 bits, its `qlinear_cuda` reads 2^bits.

    >>> from scalebook.quantization.rounding import quantize_rtn
    >>> tensors = to_gptq_checkpoint(quantize_rtn(torch.arange(2048.0).sin().reshape(32, 64), group_size=32))
    >>> {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    {'qweight': (8, 32), 'qzeros': (2, 4), 'scales': (2, 32), 'g_idx': (64,)}
    """
    O, I = record.codes.shape
    _check_gptq(record.bits, O, I)
    if record.input_scales is not None:
        raise ValueError("record has input_scales, which a GPTQ checkpoint cannot hold; fold them into the operation "
                         "before the layer, and give the record with input_scales=None")
    if (record.zero_points == 0).any():
        raise ValueError(f"record has {int((record.zero_points == 0).sum())} zero-points of 0; a GPTQ checkpoint "
                         f"stores the zero-point minus one, so it must lie in 1..{2**record.bits - 1}, "
                         "as those of a symmetric grid do")
    scales_OG = record.scales.to(torch.float16)
    if not torch.isfinite(scales_OG).all() or (scales_OG == 0).any():
        raise ValueError(f"record has scales from {float(record.scales.min()):.4g} to "
                         f"{float(record.scales.max()):.4g}; float16 holds 6e-08 to 65504")
    return {
        "qweight": _to_words(record.codes, record.bits).T.contiguous(),
        "qzeros": _to_words(record.zero_points.T - 1, record.bits),
        "scales": scales_OG.T.contiguous(),
        "g_idx": record.group_of_column.to(torch.int32),
    }


def from_gptq_checkpoint(tensors, bits, group_size, symmetric=False):
    """Return the `QuantizedLinear` that `qweight`, `qzeros`, `scales` and `g_idx` of a GPTQ checkpoint hold.

    Its weights come back as float16, as its scales are. `bits`, `group_size` and `symmetric` stand in the checkpoint's
    configuration. A stored zero-point of 2^bits - 1 is read as 0. Raises ValueError for tensors that are missing or
    whose shapes do not fit each other.
    """
    missing = sorted({"qweight", "qzeros", "scales", "g_idx"} - set(tensors))
    if missing:
        raise ValueError(f"tensors has no {missing[0]!r}; it must hold qweight, qzeros, scales and g_idx")
    I, O = len(tensors["g_idx"]), tensors["scales"].shape[-1]
    _check_gptq(bits, O, I)
    G = I // columns_in_a_group(I, group_size)
    for name, shape in {"qweight": (I * bits // 32, O), "qzeros": (G, O * bits // 32), "scales": (G, O)}.items():
        if tuple(tensors[name].shape) != shape:
            raise ValueError(f"{name} has the shape {tuple(tensors[name].shape)}; it must be {shape} for {O} outputs, "
                             f"{I} inputs, {bits} bits and groups of {I // G}")
    group_I = tensors["g_idx"].long()
    if not 0 <= int(group_I.min()) <= int(group_I.max()) < G:
        raise ValueError(f"g_idx runs from {int(group_I.min())} to {int(group_I.max())}; it must lie in 0..{G - 1}")
    codes_OI = _from_words(tensors["qweight"].T, bits)
    zeros_OG = (_from_words(tensors["qzeros"], bits).T.to(torch.int32) + 1) % 2**bits
    return QuantizedLinear(codes_OI, tensors["scales"].T.contiguous(), zeros_OG, bits, group_size, symmetric, group_I)


def _to_words(codes, bits):
    """The packed codes as words of 32 bits, whatever the byte order of this machine."""
    return torch.from_numpy(pack_codes(codes, bits).numpy().view("<i4").astype(np.int32))


def _from_words(words, bits):
    if words.dtype != torch.int32:
        raise ValueError(f"qweight and qzeros must be int32, not {words.dtype}")
    return unpack_codes(torch.from_numpy(words.contiguous().numpy().astype("<i4").view(np.uint8)), bits)


def _check_whole(codes, name):
    whole = isinstance(codes, torch.Tensor) and not codes.dtype.is_floating_point and codes.dtype != torch.bool
    if not whole or codes.dtype.is_complex:
        raise ValueError(f"{name} is {getattr(codes, 'dtype', type(codes).__name__)}; it must be a tensor of integers")


def _check_gptq(bits, O, I):
    check_bits(bits)
    if bits not in GPTQ_BITS:
        raise ValueError(f"bits = {bits} is not allowed; a GPTQ checkpoint has codes of 2, 3, 4 or 8 bits")
    for name, value in (("outputs", O), ("inputs", I)):
        if value == 0 or value % 32:
            raise ValueError(f"{name} = {value} is not allowed; a GPTQ checkpoint packs 32 at a time")

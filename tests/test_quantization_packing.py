"""Packed codes and GPTQ's checkpoint layout: read and written alike by AutoGPTQ, and refused where readers differ."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from scalebook.quantization import (
    from_gptq_checkpoint,
    pack_codes,
    quantize_rtn,
    to_gptq_checkpoint,
    unpack_codes,
)
from tests.oracle_files import autogptq_layer

forall = settings(deadline=None, max_examples=60)
GPTQ_BITS = [2, 3, 4, 8]
OLD, NEW = autogptq_layer("qlinear_cuda_old"), autogptq_layer("qlinear_cuda")


def layer_of(kind, tensors, bits, group_size):
    """An AutoGPTQ layer that holds a checkpoint's tensors."""
    I, O = len(tensors["g_idx"]), tensors["scales"].shape[1]
    layer = kind(bits, group_size or -1, I, O, bias=False)
    layer.load_state_dict(tensors, strict=True)
    return layer


def weight_in(layer):
    """The weight (O, I) that a layer multiplies with: its answer to each unit vector, exact in half precision."""
    return layer(torch.eye(layer.infeatures, dtype=torch.float16)).T


def random_weight(O, I, seed=0):
    return torch.randn(O, I, generator=torch.Generator().manual_seed(seed)) / 8


# ---- packing -------------------------------------------------------------------------------------------------------

@given(st.integers(2, 8), st.integers(0, 4), st.integers(1, 4), st.integers(0, 2**32 - 1))
@forall
def test_codes_come_back_from_their_bytes(bits, rows, eights, seed):
    codes = torch.randint(0, 2**bits, (rows, 8 * eights), generator=torch.Generator().manual_seed(seed))
    packed = pack_codes(codes, bits)
    assert packed.shape == (rows, eights * bits)
    assert torch.equal(unpack_codes(packed, bits).long(), codes)


@given(st.integers(2, 8), st.integers(0, 2**32 - 1))
@forall
def test_bytes_are_one_long_number_that_has_the_codes_as_its_digits(bits, seed):
    """Python's own integers as the oracle: the sum of code_i 2^(bits i), its lowest byte first."""
    codes = torch.randint(0, 2**bits, (32,), generator=torch.Generator().manual_seed(seed))
    number = sum(code << (bits * i) for i, code in enumerate(codes.tolist()))
    assert pack_codes(codes, bits).numpy().tobytes() == number.to_bytes(4 * bits, "little")


def test_two_codes_of_4_bits_share_a_byte_the_first_in_the_low_half():
    codes = torch.arange(16, dtype=torch.uint8)
    assert torch.equal(pack_codes(codes, 4), codes[0::2] | codes[1::2] << 4)


def test_packing_does_not_depend_on_strides():
    codes = torch.arange(64, dtype=torch.uint8).reshape(8, 8).T % 16
    assert not codes.is_contiguous()
    assert torch.equal(unpack_codes(pack_codes(codes, 4).T.contiguous().T, 4), codes)


# ---- GPTQ's checkpoint ---------------------------------------------------------------------------------------------

@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("group_size", [32, 64, None])
@pytest.mark.parametrize("bits", GPTQ_BITS)
@pytest.mark.parametrize("kind", [OLD, NEW])
def test_autogptq_reads_our_checkpoint_as_the_same_weights(kind, bits, group_size, symmetric):
    record = quantize_rtn(random_weight(64, 128), bits, group_size, symmetric)
    tensors = to_gptq_checkpoint(record)
    assert {name: t.dtype for name, t in tensors.items()} == {
        "qweight": torch.int32, "qzeros": torch.int32, "scales": torch.float16, "g_idx": torch.int32}
    theirs = weight_in(layer_of(kind, tensors, bits, group_size))
    ours = from_gptq_checkpoint(tensors, bits, group_size, symmetric)
    assert torch.equal(theirs, ours.dequantize())
    half_scales = dataclasses.replace(record, scales=record.scales.half())
    assert torch.equal(theirs, half_scales.dequantize().half())


@pytest.mark.parametrize("bits", GPTQ_BITS)
@pytest.mark.parametrize("kind", [OLD, NEW])
def test_autogptq_packs_the_same_words(kind, bits):
    record = quantize_rtn(random_weight(64, 128), bits, 32)
    tensors = to_gptq_checkpoint(record)
    layer = kind(bits, 32, 128, 64, bias=False)
    linear = torch.nn.Linear(128, 64, bias=False)
    linear.weight.data = record.dequantize()
    layer.pack(linear, record.scales.clone(), record.zero_points.float(), tensors["g_idx"])
    for name in ("qweight", "qzeros"):
        assert torch.equal(getattr(layer, name), tensors[name]), name


@pytest.mark.parametrize("bits", GPTQ_BITS)
def test_autogptq_finds_the_group_of_each_column_when_they_are_mixed(bits):
    record = quantize_rtn(random_weight(32, 128), bits, 32)
    order = torch.randperm(128, generator=torch.Generator().manual_seed(1))
    mixed = dataclasses.replace(record, codes=record.codes[:, order], group_of_column=record.group_of_column[order])
    tensors = to_gptq_checkpoint(mixed)
    theirs = weight_in(layer_of(NEW, tensors, bits, 32))
    assert torch.equal(theirs, from_gptq_checkpoint(tensors, bits, 32).dequantize())
    assert torch.equal(theirs, from_gptq_checkpoint(to_gptq_checkpoint(record), bits, 32).dequantize()[:, order])


@given(st.sampled_from(GPTQ_BITS), st.booleans(), st.sampled_from([32, None]), st.integers(0, 2**32 - 1))
@forall
def test_codes_zero_points_and_groups_survive_the_checkpoint(bits, symmetric, group_size, seed):
    record = quantize_rtn(random_weight(32, 64, seed), bits, group_size, symmetric)
    assume((record.zero_points > 0).all())
    back = from_gptq_checkpoint(to_gptq_checkpoint(record), bits, group_size, symmetric)
    for name in ("codes", "zero_points", "group_of_column"):
        assert torch.equal(getattr(back, name), getattr(record, name)), name
    assert torch.equal(back.scales, record.scales.half())
    assert (back.bits, back.group_size, back.symmetric) == (bits, group_size, symmetric)
    farthest = (back.dequantize().float() - record.dequantize()).abs() / record.scales[:, record.group_of_column]
    assert float(farthest.max()) <= 2**bits / 2**10  # the scale's rounding, and that of the product


def test_constant_groups_survive_the_checkpoint_exactly():
    weight = torch.tensor([0.0, 0.25, -0.75, 1.5]).repeat_interleave(32).repeat(32, 1)
    for bits in GPTQ_BITS:
        record = quantize_rtn(weight, bits, 32)
        assert torch.equal(from_gptq_checkpoint(to_gptq_checkpoint(record), bits, 32).dequantize().float(), weight)


@pytest.mark.parametrize(("bits", "old", "new"), [(2, 0, 4), (3, 8, 8), (4, 0, 16), (8, 0, 256)])
def test_readers_differ_on_a_zero_point_of_0(bits, old, new):
    """Stored as -1, that is as 2^bits - 1. What the two layers read is measured here; we refuse to write it."""
    record = quantize_rtn(random_weight(32, 32).abs(), bits, None)
    assert (record.zero_points == 0).all()
    with pytest.raises(ValueError, match="32 zero-points of 0"):
        to_gptq_checkpoint(record)
    tensors = to_gptq_checkpoint(dataclasses.replace(record, zero_points=record.zero_points + 1))
    tensors["qzeros"] = torch.full_like(tensors["qzeros"], -1)
    steps_OI = record.codes.int()
    scales_OI = record.scales.half()
    for kind, read in ((OLD, old), (NEW, new)):
        assert torch.equal(weight_in(layer_of(kind, tensors, bits, None)), scales_OI * (steps_OI - read))


# ---- bad input -----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("codes", "bits", "message"), [
    (torch.tensor([0, 16]), 4, "codes runs from 0 to 16; codes of 4 bits must lie in 0..15"),
    (torch.tensor([-1, 2]), 4, "codes runs from -1 to 2"),
    (torch.tensor([1, 2, 3]), 4, r"codes has the shape \(3,\)"),
    (torch.tensor(1), 4, r"codes has the shape \(\)"),
    (torch.tensor([1.0, 2.0]), 4, "codes is torch.float32"),
    (torch.tensor([True, False]), 4, "codes is torch.bool"),
    ([1, 2], 4, "codes is list"),
    (torch.tensor([1, 2]), 1, "bits = 1 is not allowed"),
])
def test_codes_that_cannot_be_packed_are_named(codes, bits, message):
    with pytest.raises(ValueError, match=message):
        pack_codes(codes, bits)


@pytest.mark.parametrize(("packed", "bits", "message"), [
    (torch.zeros(4, dtype=torch.uint8), 3, r"packed has the shape \(4,\)"),
    (torch.zeros(4, dtype=torch.int32), 4, "packed is torch.int32"),
    (np.zeros(4, np.uint8), 4, "packed is uint8"),
    (torch.zeros(4, dtype=torch.uint8), 9, "bits = 9 is not allowed"),
])
def test_bytes_that_cannot_be_unpacked_are_named(packed, bits, message):
    with pytest.raises(ValueError, match=message):
        unpack_codes(packed, bits)


def test_records_that_a_checkpoint_cannot_hold_are_refused():
    weight = random_weight(32, 32)
    for record, message in [
        (quantize_rtn(weight, 5, None), "bits = 5 is not allowed; a GPTQ checkpoint has codes of 2, 3, 4 or 8 bits"),
        (quantize_rtn(weight[:31], 4, None), "outputs = 31 is not allowed"),
        (quantize_rtn(weight[:, :24], 4, None), "inputs = 24 is not allowed"),
        (quantize_rtn(weight * 1e7, 4, None), "float16 holds 6e-08 to 65504"),
        (quantize_rtn(weight * 1e-9, 4, None), "float16 holds 6e-08 to 65504"),
        (dataclasses.replace(quantize_rtn(weight, 4, None), input_scales=torch.ones(32)), "record has input_scales"),
    ]:
        with pytest.raises(ValueError, match=message):
            to_gptq_checkpoint(record)


def test_checkpoints_that_do_not_fit_together_are_refused():
    tensors = to_gptq_checkpoint(quantize_rtn(random_weight(32, 64), 4, 32))
    for change, arguments, message in [
        ({}, (8, 32), r"qweight has the shape \(8, 32\); it must be \(16, 32\)"),
        ({}, (4, 64), r"qzeros has the shape \(2, 4\); it must be \(1, 4\)"),
        ({}, (4, 48), "group_size = 48 does not divide the width 64"),
        ({}, (5, 32), "bits = 5 is not allowed"),
        ({"g_idx": tensors["g_idx"] + 1}, (4, 32), r"g_idx runs from 1 to 2; it must lie in 0\.\.1"),
        ({"qweight": tensors["qweight"].long()}, (4, 32), "qweight and qzeros must be int32"),
    ]:
        with pytest.raises(ValueError, match=message):
            from_gptq_checkpoint(tensors | change, *arguments)
    del tensors["g_idx"]
    with pytest.raises(ValueError, match="tensors has no 'g_idx'"):
        from_gptq_checkpoint(tensors, 4, 32)

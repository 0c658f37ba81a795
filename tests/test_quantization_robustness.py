"""Every quantizer, given what it cannot take, says so; given what is merely odd, it gives the right answer."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_quantization_gptq import layer, random
from test_quantization_grid import weights

from scalebook.quantization import from_codes, obq, quantize_awq, quantize_gptq, quantize_rtn, to_codes
from scalebook.quantization.hessian import layer_error, layer_hessian

# Each takes (weight, hessian, bits, group_size, symmetric=...).
WITH_HESSIAN = {
    "gptq": quantize_gptq,
    "gptq, act-order": lambda *a, **k: quantize_gptq(*a, act_order=True, **k),
    "gptq, static groups": lambda *a, **k: quantize_gptq(*a, static_groups=True, act_order=True, **k),
    "awq": lambda *a, **k: quantize_awq(*a, kind="hessian", steps=4, **k),
    "awq, clipped": lambda *a, **k: quantize_awq(*a, kind="hessian", steps=4, clip=True, **k),
    "obq": obq,
    "obq, greedy": lambda *a, **k: obq(*a, order="greedy", **k),
}
ALL = {"rtn": lambda weight, _, *a, **k: quantize_rtn(weight, *a, **k), **WITH_HESSIAN}
INVERTED = [name for name in WITH_HESSIAN if "awq" not in name]  # AWQ measures with the Hessian, and inverts nothing
every_quantizer = pytest.mark.parametrize("name", ALL)


# What cannot be quantized.


@every_quantizer
@pytest.mark.parametrize(("weight", "message"), [
    (torch.tensor([[1.0, math.nan, 2.0, 3.0]]), "weight has 1 elements that are infinite or not a number"),
    (torch.tensor([[1.0, math.inf, -math.inf, 3.0]]), "weight has 2 elements that are infinite or not a number"),
    (torch.full((2, 4), math.inf).half(), "weight has 8 elements"),
    (torch.ones(0, 4), r"weight has the shape \(0, 4\)"),
    (torch.ones(2, 0), r"weight has the shape \(2, 0\)"),
    (torch.ones(4), r"weight has the shape \(4,\)"),
    (torch.ones(1, 2, 4), r"weight has the shape \(1, 2, 4\)"),
    (torch.ones(2, 4, dtype=torch.int8), "weight is torch.int8"),
    (torch.ones(2, 4, dtype=torch.complex64), "weight is torch.complex64"),
    ([[1.0, 2.0, 3.0, 4.0]], "weight is list"),
])
def test_weights_that_cannot_be_quantized_are_named(name, weight, message):
    with pytest.raises(ValueError, match=message):
        ALL[name](weight, torch.eye(4), 4, None)


@every_quantizer
@pytest.mark.parametrize("bits", [-4, 0, 1, 9, 16, 4.0, "4", None, True])
def test_bits_outside_2_to_8_are_named(name, bits):
    with pytest.raises(ValueError, match=f"bits = {bits!r} is not allowed; bits must be a whole number from 2 to 8"):
        ALL[name](torch.ones(2, 4), torch.eye(4), bits, None)


@every_quantizer
@pytest.mark.parametrize("group_size", [3, 5, 8, 0, -1, 2.0, True, "row"])
def test_group_sizes_that_do_not_divide_the_width_are_named(name, group_size):
    with pytest.raises(ValueError, match=f"group_size = {group_size!r} (does not divide the width 4|is not allowed)"):
        ALL[name](torch.ones(2, 4), torch.eye(4), 4, group_size)


def changed(*places, value):
    """The identity with one value in some places."""
    matrix = torch.eye(4)
    for row, column in places:
        matrix[row, column] = value
    return matrix


@pytest.mark.parametrize("name", WITH_HESSIAN)
@pytest.mark.parametrize(("hessian", "message"), [
    (torch.eye(3), r"has the shape \(3, 3\); for a weight of 4 inputs it must be \(4, 4\)"),
    (torch.ones(4, 5), r"has the shape \(4, 5\)"),
    (torch.ones(4), r"has the shape \(4,\)"),
    (torch.ones(0, 4), r"has the shape \(0, 4\)"),
    (torch.eye(4, dtype=torch.int64), "is torch.int64"),
    (torch.eye(4, dtype=torch.complex128), "is torch.complex128"),
    ([[1.0]], "is list"),
    (changed((3, 0), (0, 3), value=math.nan), "has 2 elements that are infinite or not a number"),
    (changed((1, 1), value=math.inf), "has 1 elements that are infinite or not a number"),
    (changed((0, 1), value=0.1), "is not symmetric: an element differs by 0.1 from its mirror image"),
    (changed((1, 1), value=-1), "has -1 on its diagonal"),
    (changed((2, 2), value=0) + changed((2, 0), (0, 2), value=1) - torch.eye(4), "has a 0 on its diagonal in a row"),
])
def test_matrices_that_are_no_hessian_are_named(name, hessian, message):
    argument = "activations_or_hessian" if "awq" in name else "hessian"
    with pytest.raises(ValueError, match=f"{argument} {message}"):
        WITH_HESSIAN[name](torch.ones(2, 4), hessian, 4, None)


@pytest.mark.parametrize("name", INVERTED)
@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
def test_a_hessian_that_is_not_positive_definite_is_named_with_the_damping(name, precision):
    weight, singular = random(2, 6).to(precision), layer_hessian(random(3, 6))
    with pytest.raises(ValueError, match=r"hessian is not positive definite with damping = 0[,;]"):
        WITH_HESSIAN[name](weight, singular, 4, None, damping=0)
    assert WITH_HESSIAN[name](weight, singular, 4, None).dequantize().isfinite().all()  # 1% is enough
    indefinite = 2 * torch.ones(6, 6) - torch.eye(6)  # its diagonal is 1, its eigenvalues are 11 and five times -1
    with pytest.raises(ValueError, match=r"hessian is not positive definite with damping = 0\.9[,;]"):
        WITH_HESSIAN[name](weight, indefinite, 4, None, damping=0.9)
    assert WITH_HESSIAN[name](weight, indefinite, 4, None, damping=1.1).dequantize().isfinite().all()


# What is merely odd.


@pytest.mark.parametrize("name", INVERTED)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_dead_channels_are_rounded_to_nearest(name, dtype):
    inputs, weight = random(100, 12) @ random(12, 12, seed=2), random(4, 12, seed=1).clamp(-1, 1).to(dtype)
    dead = torch.tensor([0, 5, 11])
    inputs[:, dead] = 0
    weight[:, 1::3], weight[:, 4] = 1, -1  # the ends of the grid are no dead channel's
    record = WITH_HESSIAN[name](weight, layer_hessian(inputs), 4, None)
    plain = quantize_rtn(weight, 4, None)
    assert torch.equal(record.codes[:, dead], plain.codes[:, dead])
    assert torch.equal(record.scales, plain.scales)
    assert record.codes.ne(plain.codes).any()  # others are not
    assert record.dequantize().dtype == dtype


@every_quantizer
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_constant_groups_come_back_exactly(name, bits, symmetric):
    """So nothing is left for other columns to make up for, and no scale of AWQ's can do better."""
    values = torch.tensor([[0.0, 0.3, -7.0], [1e-20, -0.1, 1e20]], dtype=torch.float64)
    weight, (_, hessian) = values.repeat_interleave(4, dim=1), layer(2, 12)
    record = ALL[name](weight, hessian, bits, 4, symmetric=symmetric)
    if "act-order" not in name:  # it mixes the columns of groups
        assert torch.equal(record.dequantize(), weight)
    rows = torch.tensor([[0.3], [-7.0], [0.0]], dtype=torch.float64).expand(3, 12)
    assert torch.equal(ALL[name](rows, hessian, bits, None, symmetric=symmetric).dequantize(), rows)
    assert torch.equal(ALL[name](rows, hessian, bits, 4, symmetric=symmetric).dequantize(), rows)


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(list(ALL)), weights(), st.integers(2, 8), st.booleans(), st.integers(0, 999),
       st.sampled_from([1e-30, 1.0, 1e30]))
def test_every_round_trip_holds(name, case, bits, symmetric, seed, size):
    """What is stored is in range, what comes back is finite, and rounding that again on its grid changes no code."""
    weight, group_size = case
    hessian = size * layer(1, weight.shape[1], seed, tokens=max(1, seed % 40))[1]
    kept = weight.clone(), hessian.clone()
    try:
        record = ALL[name](weight, hessian, bits, group_size, symmetric=symmetric)
    except ValueError as error:
        limit = torch.finfo(torch.promote_types(weight.dtype, torch.float32)).max  # of the dtype that it computes in
        if float(weight.abs().max()) > limit / 2**12 and "weight is too large: its updates overflow" in str(error):
            return
        raise
    assert torch.equal(weight, kept[0])
    assert torch.equal(hessian, kept[1])
    assert record.codes.shape == weight.shape
    assert int(record.codes.max()) < 2**bits
    assert record.scales.isfinite().all()
    assert (record.scales > 0).all()
    back = record.dequantize()
    assert back.dtype == weight.dtype
    assert back.isfinite().all()
    scales, zeros = (part[:, record.group_of_column] for part in (record.scales, record.zero_points))
    stored = from_codes(record.codes, scales, zeros)
    again = to_codes(stored.clamp(*limits(stored)), scales, zeros, bits)
    assert torch.equal(again[stored.isfinite()], record.codes[stored.isfinite()])
    if stored.isfinite().all() and record.input_scales is None and record.dtype == record.scales.dtype:
        assert torch.equal(back, stored)


def limits(tensor):
    """The least and the greatest number of a tensor's dtype."""
    return torch.finfo(tensor.dtype).min, torch.finfo(tensor.dtype).max


@settings(deadline=None, max_examples=25)
@given(st.sampled_from(list(WITH_HESSIAN)), st.integers(1, 4), st.integers(1, 3), st.sampled_from([2, 4]),
       st.integers(2, 8), st.integers(0, 999))
def test_half_precision_is_quantized_as_the_same_numbers_in_float32(name, outputs, groups, columns, bits, seed):
    weight, hessian = layer(outputs, groups * columns, seed)
    for dtype in (torch.float16, torch.bfloat16):
        half, whole = (WITH_HESSIAN[name](one, hessian, bits, columns) for one in (weight.to(dtype),
                                                                                   weight.to(dtype).float()))
        assert torch.equal(half.codes, whole.codes)
        assert torch.equal(half.dequantize(), whole.dequantize().to(dtype))


@pytest.mark.parametrize("name", WITH_HESSIAN)
def test_a_weight_that_is_far_too_large_is_named_or_quantized(name):
    """Beside a large weight, a small one comes back as 0, and nothing overflows."""
    weight = torch.tensor([[3e38, 1.0, -3e38, 2.0]])
    record = WITH_HESSIAN[name](weight, torch.eye(4), 8, None)
    assert record.dequantize().isfinite().all()
    assert layer_error(weight.double() / 1e38, record.dequantize().double() / 1e38, torch.eye(4).double()) < 1e-3

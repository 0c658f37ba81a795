"""The affine map: every weight within half a step, codes in range, 0 and constants exact, bad input named."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import scalebook.quantization
from scalebook.quantization import (
    QuantizedLinear,
    group_grid,
    measured_error,
    quantize_rtn,
    to_codes,
)

DTYPES = {torch.float16: 16, torch.bfloat16: 32, torch.float32: 32, torch.float64: 64}
forall = settings(deadline=None, max_examples=150)
bits_of_codes = st.integers(2, 8)


@st.composite
def weights(draw, dtypes=tuple(DTYPES)):
    """Any finite weight: tiny, huge, one-sided, constant, mixed, in any dtype; and a group size that divides it."""
    dtype = draw(st.sampled_from(dtypes))
    O, G, C = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 6))
    limits = torch.finfo(dtype)
    size = draw(st.sampled_from([limits.max, 1.0, 1e-4, limits.tiny, limits.tiny * limits.eps * 40]))
    low = draw(st.sampled_from([-1.0, 0.0, 1.0, 0.9]))
    high = draw(st.sampled_from([1.0, 0.0, -1.0]))
    low, high = sorted([low, high])
    values = draw(st.lists(st.floats(low, high), min_size=O * G * C, max_size=O * G * C))
    weight = (torch.tensor(values, dtype=torch.float64) * size).clamp(limits.min, limits.max).to(dtype)
    return weight.reshape(O, G * C), draw(st.sampled_from([C, None]))


def exact(tensor):
    """As float128, or what NumPy's longdouble is here, so that the check adds no rounding of its own."""
    return tensor.double().numpy().astype(np.longdouble)


def scale_of_each(record):
    return exact(record.scales[:, record.group_of_column])


def allowance(record, weight):
    """Rounding of the arithmetic: a few units in the last place of the weights, of the steps that reach them, and of S.

    A number of the dtype cannot be nearer to another than half its last place, and below the least normal number that
    place has a fixed size.
    """
    store, compute = torch.finfo(record.dtype), torch.finfo(record.scales.dtype)
    reach = np.abs(exact(weight)) + scale_of_each(record)
    return reach * (store.eps + 2**record.bits * 2 * compute.eps) + store.tiny * store.eps


@given(weights(), bits_of_codes, st.booleans())
@forall
def test_no_weight_moves_by_more_than_half_a_step(case, bits, symmetric):
    weight, group_size = case
    record = quantize_rtn(weight, bits, group_size, symmetric)
    moved = np.abs(exact(record.dequantize()) - exact(weight))
    assert (moved <= scale_of_each(record) / 2 + allowance(record, weight)).all()


@given(weights(), bits_of_codes, st.booleans())
@forall
def test_codes_and_zero_points_lie_in_range_and_zero_comes_back_exactly(case, bits, symmetric):
    weight, group_size = case
    record = quantize_rtn(weight, bits, group_size, symmetric)
    assert record.codes.dtype == torch.uint8
    assert int(record.codes.max()) <= 2**bits - 1
    assert 0 <= int(record.zero_points.min()) <= int(record.zero_points.max()) <= 2**bits - 1
    assert torch.isfinite(record.scales).all()
    assert (record.scales > 0).all()
    assert record.dequantize().dtype == weight.dtype
    assert record.dequantize().isfinite().all()
    assert (record.dequantize()[weight == 0] == 0).all()
    at_zero = to_codes(torch.zeros_like(record.scales), record.scales, record.zero_points, bits)
    assert torch.equal(at_zero.int(), record.zero_points)
    if symmetric:
        assert (record.zero_points == 2**(bits - 1)).all()


@given(st.floats(-1, 1), st.sampled_from(list(DTYPES)), st.integers(-1080, 1020), bits_of_codes, st.booleans())
@settings(deadline=None, max_examples=400)
def test_a_constant_group_comes_back_exactly(fraction, dtype, exponent, bits, symmetric):
    limits = torch.finfo(dtype)
    value = torch.tensor(math.ldexp(fraction, exponent)).double().clamp(limits.min, limits.max).to(dtype)
    weight = torch.stack([value.expand(6), torch.arange(6).to(dtype)])
    record = quantize_rtn(weight, bits, 3, symmetric)
    assert torch.equal(record.dequantize()[0], weight[0])


@given(weights(dtypes=(torch.float32, torch.float64)), bits_of_codes)
@forall
def test_weights_that_use_both_ends_of_an_asymmetric_grid_keep_their_codes(case, bits):
    weight, group_size = case
    first = quantize_rtn(weight, bits, group_size)
    back = first.dequantize()
    second = quantize_rtn(back, bits, group_size)
    G = first.scales.shape[1]
    codes_OGC = first.codes.reshape(len(weight), G, -1)
    whole_OG = (codes_OGC.amin(-1) == 0) & (codes_OGC.amax(-1) == 2**bits - 1)
    within_OG = (back.abs() < torch.finfo(back.dtype).max).reshape(codes_OGC.shape).all(-1)
    normal_OG = first.scales > torch.finfo(back.dtype).tiny
    same_OG = (codes_OGC == second.codes.reshape(codes_OGC.shape)).all(-1)
    assert same_OG[whole_OG & within_OG & normal_OG].all()


@pytest.mark.parametrize("bits", range(2, 9))
def test_the_greatest_weight_of_a_symmetric_grid_lies_half_a_step_off_it(bits):
    """m is (2^(b-1) - 1/2) S: a price of using all codes. So a second rounding finds another grid, by choice."""
    weight = torch.tensor([[-1.0, 0.4, 0.9]], dtype=torch.float64)
    first = quantize_rtn(weight, bits, None, symmetric=True)
    assert float((first.dequantize() - weight)[0, 0].abs() / first.scales) == pytest.approx(0.5)
    second = quantize_rtn(first.dequantize(), bits, None, symmetric=True)
    assert float((second.scales / first.scales - 1).abs()) == pytest.approx(1 / (2**bits - 1))


@pytest.mark.parametrize(("weight", "codes", "back"), [
    ([2.0, 4.0, 6.0, 3.0], [1, 2, 3, 2], [2.0, 4.0, 6.0, 4.0]),      # one-sided: 0 is forced in, S = 2
    ([-2.0, -4.0, -6.0, -3.0], [2, 1, 0, 1], [-2.0, -4.0, -6.0, -4.0]),
    ([-1.0, 0.0, 2.0, 0.4], [0, 1, 3, 1], [-1.0, 0.0, 2.0, 0.0]),
])
def test_small_groups_by_hand(weight, codes, back):
    record = quantize_rtn(torch.tensor([weight]), 2, None)
    assert record.codes.tolist() == [codes]
    assert record.dequantize().tolist() == [back]


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("symmetric", [False, True])
def test_an_independent_affine_quantizer_gives_the_same_weights(bits, symmetric):
    """PyTorch's own fake quantization, given the grid. A symmetric grid's greatest weight is a tie: both are right."""
    weight = torch.randn(5, 64, generator=torch.Generator().manual_seed(bits))
    record = quantize_rtn(weight, bits, None, symmetric)
    theirs = torch.fake_quantize_per_channel_affine(weight, record.scales[:, 0], record.zero_points[:, 0], 0, 0,
                                                    2**bits - 1)
    assert ((record.dequantize() - weight).abs() - (theirs - weight).abs()).abs().max() < 1e-6
    if not symmetric:
        assert (record.dequantize() - theirs).abs().max() < 1e-6


def test_the_min_max_observer_of_pytorch_finds_the_same_grid():
    weight = torch.randn(7, 96, generator=torch.Generator().manual_seed(0))
    for bits in range(2, 9):
        observer = torch.ao.quantization.PerChannelMinMaxObserver(
            ch_axis=0, dtype=torch.quint8, qscheme=torch.per_channel_affine, quant_min=0, quant_max=2**bits - 1)
        observer(weight)
        scale, zero = observer.calculate_qparams()
        ours_scale, ours_zero = group_grid(weight, bits, symmetric=False)
        torch.testing.assert_close(ours_scale, scale, rtol=1e-6, atol=0)
        assert torch.equal(ours_zero, zero)


def test_groups_of_a_row_are_quantized_as_if_each_were_a_row():
    weight = torch.randn(4, 96, generator=torch.Generator().manual_seed(1))
    grouped = quantize_rtn(weight, 3, 32)
    rows = quantize_rtn(weight.reshape(12, 32), 3, None)
    assert torch.equal(grouped.dequantize(), rows.dequantize().reshape(4, 96))


def test_columns_in_any_order_find_their_group():
    record = quantize_rtn(torch.randn(3, 12, generator=torch.Generator().manual_seed(2)), 4, 4)
    order = torch.tensor([5, 0, 11, 3, 8, 1, 9, 2, 6, 4, 10, 7])
    mixed = dataclasses.replace(record, codes=record.codes[:, order], group_of_column=record.group_of_column[order])
    assert torch.equal(mixed.dequantize(), record.dequantize()[:, order])


def test_input_scales_are_divided_out_again():
    weight = torch.randn(3, 8, generator=torch.Generator().manual_seed(3))
    factors = torch.tensor([1.0, 2.0, 0.5, 4.0, 1.0, 1.0, 8.0, 1.0])
    plain = quantize_rtn(weight * factors, 4, 4)
    record = dataclasses.replace(plain, input_scales=factors)
    assert torch.equal(record.dequantize() * factors, plain.dequantize())
    torch.testing.assert_close(measured_error(weight, record), measured_error(weight * factors, plain))


def test_bits_per_weight_of_the_formats_that_people_name():
    weight = torch.zeros(2, 256)
    assert quantize_rtn(weight).bits_per_weight == 4.15625
    assert quantize_rtn(weight, symmetric=True).bits_per_weight == 4.125
    assert quantize_rtn(weight, 3, None).bits_per_weight == 3 + 19 / 256


# ---- bad input -----------------------------------------------------------------------------------------------------

GOOD = torch.ones(2, 8)


@pytest.mark.parametrize(("arguments", "message"), [
    ({"weight": torch.tensor([[1.0, math.nan, 2.0, 3.0]])}, "weight has 1 elements that are infinite or not a number"),
    ({"weight": torch.tensor([[1.0, math.inf, 2.0, 3.0]])}, "weight has 1 elements"),
    ({"weight": torch.ones(8)}, r"weight has the shape \(8,\)"),
    ({"weight": torch.ones(0, 8)}, r"weight has the shape \(0, 8\)"),
    ({"weight": torch.ones(2, 8, dtype=torch.int32)}, "weight is torch.int32"),
    ({"weight": [[1.0, 2.0]]}, "weight is list"),
    ({"bits": 1}, "bits = 1 is not allowed"),
    ({"bits": 9}, "bits = 9 is not allowed"),
    ({"bits": 4.0}, r"bits = 4\.0 is not allowed"),
    ({"bits": True}, "bits = True is not allowed"),
    ({"group_size": 3}, "group_size = 3 does not divide the width 8"),
    ({"group_size": 16}, "group_size = 16 does not divide the width 8"),
    ({"group_size": 0}, "group_size = 0 is not allowed"),
    ({"group_size": -1}, "group_size = -1 is not allowed"),
    ({"group_size": 2.0}, r"group_size = 2\.0 is not allowed"),
    ({"symmetric": 1}, "symmetric = 1 is not allowed"),
])
def test_bad_input_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        quantize_rtn(**({"weight": GOOD, "group_size": 4} | arguments))


def test_a_record_whose_parts_do_not_fit_is_refused():
    record = quantize_rtn(GOOD, 4, 4)
    for change, message in [({"codes": record.codes.int()}, "codes is torch.int32"), ({"bits": 9}, "bits = 9"),
                            ({"scales": record.scales[:, :1]}, r"scales has the shape \(2, 1\)"),
                            ({"zero_points": record.zero_points[:1]}, r"zero_points has the shape \(1, 2\)"),
                            ({"group_of_column": torch.zeros(3)}, r"group_of_column has the shape \(3,\)"),
                            ({"input_scales": torch.ones(2)}, r"input_scales has the shape \(2,\)")]:
        with pytest.raises(ValueError, match=message):
            dataclasses.replace(record, **change)
    with pytest.raises(ValueError, match=r"weight has the shape \(2, 4\)"):
        measured_error(torch.ones(2, 4), record)
    assert isinstance(record, QuantizedLinear)


def test_every_name_of_the_package_is_where_the_package_says():
    names = {name for held in scalebook.quantization._NAMES.values() for name in held}
    assert names <= set(dir(scalebook.quantization))
    assert all(callable(getattr(scalebook.quantization, name)) for name in names)
    with pytest.raises(AttributeError, match="has no attribute 'quantize_magic'"):
        _ = scalebook.quantization.quantize_magic


def test_a_parameter_that_wants_a_gradient_is_quantized_without_one():
    record = quantize_rtn(torch.nn.Linear(8, 2).weight, 4, 4)
    assert not record.dequantize().requires_grad

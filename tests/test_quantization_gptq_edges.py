"""GPTQ's corners: dead channels, too few tokens, every dtype and option, and what it refuses."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_quantization_gptq import correlated, layer, random

from scalebook.quantization import QuantizedLinear, from_codes, quantize_gptq, quantize_rtn, to_codes
from scalebook.quantization.hessian import layer_hessian


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("act_order", [False, True])
def test_dead_channels_are_rounded_to_nearest_and_touch_no_other(dtype, act_order):
    inputs, weight = correlated(200, 32), random(8, 32, seed=3).to(dtype)
    dead = torch.tensor([0, 5, 31])
    inputs[:, dead] = 0
    weight[:, 1::8], weight[:, 2::8] = 3, -3  # the range of every group, so that no dead channel decides it
    options = {"bits": 4, "group_size": 8, "static_groups": True, "act_order": act_order}
    record, plain = quantize_gptq(weight, layer_hessian(inputs), **options), quantize_rtn(weight, 4, 8)
    assert torch.equal(record.codes[:, dead], plain.codes[:, dead])
    alive = [i for i in range(32) if i not in dead]
    assert record.codes[:, alive].ne(plain.codes[:, alive]).any()
    other = weight.clone()
    other[:, dead] *= -1
    assert torch.equal(quantize_gptq(other, layer_hessian(inputs), **options).codes[:, alive], record.codes[:, alive])


def test_a_layer_whose_inputs_were_all_0_is_rounded_to_nearest():
    weight = random(4, 16)
    assert torch.equal(quantize_gptq(weight, torch.zeros(16, 16), 4, 8).codes, quantize_rtn(weight, 4, 8).codes)


def test_fewer_tokens_than_channels_need_damping():
    weight, H = layer(4, 64, tokens=16)
    assert quantize_gptq(weight, H, 4, 16).dequantize().isfinite().all()
    for precision in (torch.float32, torch.float64):
        with pytest.raises(ValueError, match="hessian is not positive definite with damping = 0, "):
            quantize_gptq(weight.to(precision), H, 4, 16, damping=0)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 6), st.integers(1, 5), st.integers(1, 8), st.integers(2, 8), st.integers(0, 999), st.data())
def test_every_record_is_sound(outputs, groups, width, bits, seed, data):
    group_size = data.draw(st.sampled_from([None, width]))
    dtype = data.draw(st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]))
    symmetric, act_order, static = (data.draw(st.booleans()) for _ in range(3))
    weight, H = layer(outputs, groups * width, seed, tokens=data.draw(st.integers(1, 80)))
    weight = (weight * data.draw(st.sampled_from([1e-30, 1.0, 1e4]))).to(dtype)
    kept = weight.clone(), H.clone()
    record = quantize_gptq(weight, H, bits, group_size, symmetric=symmetric, act_order=act_order, static_groups=static)
    assert torch.equal(weight, kept[0])
    assert torch.equal(H, kept[1])
    assert isinstance(record, QuantizedLinear)
    assert record.codes.shape == weight.shape
    assert int(record.codes.max()) < 2**bits
    assert record.dequantize().dtype == dtype
    assert record.dequantize().isfinite().all()
    if symmetric:
        assert (record.zero_points == 2 ** (bits - 1)).all()
    scales, zeros = (part[:, record.group_of_column] for part in (record.scales, record.zero_points))
    assert torch.equal(to_codes(from_codes(record.codes, scales, zeros), scales, zeros, bits), record.codes)


GOOD = torch.eye(4)
NEGATIVE, OFF_DIAGONAL, SKEW, INFINITE = torch.eye(4), torch.eye(4), torch.eye(4), torch.eye(4)
NEGATIVE[1, 1] = -1
OFF_DIAGONAL[2, 2] = 0
OFF_DIAGONAL[2, 0] = OFF_DIAGONAL[0, 2] = 1
SKEW[0, 1] = 0.1
INFINITE[3, 0] = INFINITE[0, 3] = torch.inf


@pytest.mark.parametrize(("hessian", "options", "message"), [
    (torch.eye(3), {}, r"hessian has the shape \(3, 3\); for a weight of 4 inputs it must be \(4, 4\)"),
    (torch.ones(4), {}, "hessian has the shape"),
    (torch.eye(4, dtype=torch.int64), {}, "hessian is torch.int64"),
    (None, {}, "hessian is NoneType"),
    (INFINITE, {}, "hessian has 2 elements that are infinite"),
    (SKEW, {}, "hessian is not symmetric"),
    (NEGATIVE, {}, "hessian has -1 on its diagonal"),
    (OFF_DIAGONAL, {}, "hessian has a 0 on its diagonal"),
    (torch.eye(4) - 0.5, {}, "hessian is not positive definite with damping = 0.01"),
    (torch.ones(4, 4), {"damping": 0}, "hessian is not positive definite with damping = 0"),
    (GOOD, {"damping": -1}, "damping = -1"),
    (GOOD, {"damping": float("nan")}, "damping = nan"),
    (GOOD, {"block_size": 0}, "block_size = 0"),
    (GOOD, {"block_size": 2.0}, "block_size = 2.0"),
    (GOOD, {"act_order": "yes"}, "act_order = 'yes'"),
    (GOOD, {"static_groups": 1}, "static_groups = 1"),
    (GOOD, {"symmetric": None}, "symmetric = None"),
    (GOOD, {"bits": 9}, "bits = 9"),
    (GOOD, {"group_size": 3}, "group_size = 3 does not divide the width 4"),
])
def test_bad_arguments_are_named(hessian, options, message):
    with pytest.raises(ValueError, match=message):
        quantize_gptq(torch.ones(2, 4), hessian, **{"bits": 4, "group_size": None, **options})


def test_bad_weights_are_named():
    with pytest.raises(ValueError, match="weight has 1 elements that are infinite"):
        quantize_gptq(torch.tensor([[torch.nan, 1.0]]), torch.eye(2), 4, None)
    with pytest.raises(ValueError, match="weight is too large: its updates overflow"):
        quantize_gptq(torch.tensor([[1.2e38, 3e38]]), torch.tensor([[1.0, 0.01], [0.01, 1.1e-4]]), 2, None, damping=0)

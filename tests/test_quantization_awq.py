"""AWQ: against its search written out in loops, against the paper's table of scales, and its equivalences."""

import doctest
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scalebook import published
from scalebook.quantization import awq, quantize_awq, quantize_rtn
from scalebook.quantization.hessian import layer_error, layer_hessian


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def with_outliers(tokens=256, inputs=256, channels=(17, 130, 200), size=30.0, seed=0):
    """Inputs of which a few channels are far larger than the others, as in language models."""
    inputs = random(tokens, inputs, seed=seed)
    inputs[:, list(channels)] *= size
    return inputs


def rounded(weight, bits, group_size):
    """Rounding to nearest, group by group, in loops."""
    out = weight.clone()
    for row in out:
        for start in range(0, len(row), group_size):
            group = row[start:start + group_size]
            low, high = min(float(group.min()), 0.0), max(float(group.max()), 0.0)
            scale = (high - low) / (2**bits - 1)
            zero = torch.round(torch.tensor(-low / scale, dtype=torch.float64))
            group.copy_(scale * (torch.clamp(torch.round(group / scale) + zero, 0, 2**bits - 1) - zero))
    return out


def test_the_examples_in_the_docstrings_hold():
    result = doctest.testmod(awq)
    assert result.attempted > 0
    assert result.failed == 0


# The search.


def test_the_search_is_that_of_the_paper():
    """Equations 4 and 5, on the outputs themselves: no Hessian, no shortcut."""
    inputs, weight = with_outliers(64, 32, (3, 20)), random(6, 32, seed=1)
    size, best = inputs.abs().mean(dim=0), (math.inf,)
    errors = []
    for step in range(21):
        scales = size ** (step / 20)
        scales = scales / (scales.max() * scales.min()) ** 0.5
        approximation = rounded(weight * scales, 3, 8)
        error = float((inputs @ weight.T - (inputs / scales) @ approximation.T).square().sum())
        errors.append(error)
        best = min(best, (error, step / 20, scales, approximation / scales), key=lambda one: one[0])
    curve = awq.awq_curve(weight, inputs, 3, 8)
    assert [alpha for alpha, _ in curve] == [step / 20 for step in range(21)]
    assert [error for _, error in curve] == pytest.approx(errors, rel=1e-9)
    record = quantize_awq(weight, inputs, 3, 8)
    assert 0 < best[1] < 1
    assert torch.allclose(record.input_scales, best[2], rtol=1e-12)
    assert torch.allclose(record.dequantize(), best[3], rtol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("symmetric", [False, True])
def test_alpha_0_is_rounding_to_nearest(dtype, symmetric):
    inputs, weight = with_outliers(), random(8, 256).to(dtype)
    plain = quantize_rtn(weight, 3, 64, symmetric)
    assert torch.equal(awq.awq_scales(inputs.abs().mean(dim=0), 0.0), torch.ones(256, dtype=torch.float64))
    even = torch.ones(4, 256)  # all channels alike: every alpha is alpha = 0
    record = quantize_awq(weight, even, 3, 64, symmetric=symmetric)
    for name in ("codes", "scales", "zero_points"):
        assert torch.equal(getattr(record, name), getattr(plain, name))
    assert torch.equal(record.dequantize(), plain.dequantize())
    if dtype != torch.float16:
        error = layer_error(weight, plain.dequantize(), layer_hessian(inputs))
        assert awq.awq_curve(weight, inputs, 3, 64, symmetric=symmetric)[0][1] == pytest.approx(error, rel=1e-5)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 8), st.integers(2, 8), st.integers(0, 999), st.data())
def test_every_record_is_sound_and_no_worse_than_rounding(outputs, groups, width, bits, seed, data):
    group_size = data.draw(st.sampled_from([None, width]))
    dtype = data.draw(st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]))
    symmetric, clip = data.draw(st.booleans()), data.draw(st.booleans())
    weight = (random(outputs, groups * width, seed=seed) * data.draw(st.sampled_from([1e-30, 1.0, 1e4]))).to(dtype)
    inputs = with_outliers(data.draw(st.integers(1, 30)), groups * width, (0,), data.draw(st.sampled_from([0, 1, 100])))
    kept = weight.clone(), inputs.clone()
    record = quantize_awq(weight, inputs, bits, group_size, symmetric=symmetric, kind="activations", clip=clip)
    assert torch.equal(weight, kept[0])
    assert torch.equal(inputs, kept[1])
    assert record.codes.shape == weight.shape
    assert record.dequantize().dtype == dtype
    assert record.dequantize().isfinite().all()
    assert (record.input_scales > 0).all()
    plain = quantize_rtn(weight, bits, group_size, symmetric)
    assert record.bits_per_weight == plain.bits_per_weight
    if not clip and dtype == torch.float64:
        errors = [layer_error(weight, one.dequantize(), layer_hessian(inputs)) for one in (record, plain)]
        assert errors[0] <= errors[1] * (1 + 1e-9)


def test_outliers_are_where_it_gains():
    weight = random(64, 256, seed=2)
    gains = []
    for size in (1.0, 10.0, 100.0):
        H = layer_hessian(with_outliers(size=size))
        errors = [layer_error(weight, record.dequantize(), H)
                  for record in (quantize_awq(weight, H, 3, 64), quantize_rtn(weight, 3, 64))]
        gains.append(errors[1] / errors[0])
    assert gains[0] < 1.1
    assert gains[1] > 1.5
    assert gains[2] > 10


# Activations or a Hessian.


def test_a_hessian_serves_as_well_as_the_activations():
    inputs, weight = with_outliers(), random(16, 256)
    H = layer_hessian(inputs)
    size, hessian = awq.calibration(H, 256)
    assert torch.allclose(size / size.max(), inputs.square().mean(0).sqrt() / inputs.square().mean(0).sqrt().max())
    assert torch.equal(hessian, H)
    errors = [layer_error(weight, quantize_awq(weight, one, 3, 64).dequantize(), H) for one in (inputs, H)]
    assert errors[0] == pytest.approx(errors[1], rel=0.05)
    signs = torch.sign(inputs) * torch.linspace(1, 5, 256)  # of constant size: both measures of it agree
    records = [quantize_awq(weight, one, 3, 64) for one in (signs, layer_hessian(signs))]
    assert torch.allclose(records[0].input_scales, records[1].input_scales)
    assert torch.equal(records[0].codes, records[1].codes)


def test_a_square_matrix_is_a_hessian_only_when_it_can_be():
    square = random(8, 8).abs()
    symmetric = square @ square.T
    negative = square + square.T - 20 * torch.eye(8)
    assert torch.equal(awq.calibration(square, 8)[1], layer_hessian(square))
    assert torch.equal(awq.calibration(symmetric, 8)[1], symmetric)
    assert torch.equal(awq.calibration(negative, 8)[1], layer_hessian(negative))
    assert torch.equal(awq.calibration(symmetric, 8, "activations")[1], layer_hessian(symmetric))
    with pytest.raises(ValueError, match="activations_or_hessian is not symmetric"):
        awq.calibration(square, 8, "hessian")


@pytest.mark.parametrize("factor", [0.25, 1024.0])
def test_larger_inputs_change_nothing(factor):
    inputs, weight = with_outliers(), random(16, 256)
    for one in (inputs, layer_hessian(inputs)):
        assert torch.equal(quantize_awq(weight, factor * one, 3, 64).codes, quantize_awq(weight, one, 3, 64).codes)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dead_channels_get_a_scale(dtype):
    inputs, weight = with_outliers(), random(16, 256).to(dtype)
    inputs[:, ::7] = 0
    record = quantize_awq(weight, inputs, 4, 64)
    assert (record.input_scales > 0).all()
    assert record.dequantize().isfinite().all()
    plain = quantize_rtn(weight, 4, 64)
    for nothing in (torch.zeros(3, 256), torch.zeros(256, 256)):
        assert torch.equal(quantize_awq(weight, nothing, 4, 64).codes, plain.codes)


# What a scale does.


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 999), st.floats(1, 8), st.booleans())
def test_a_step_changes_only_when_a_scaled_weight_becomes_an_end_of_its_group(seed, scale, symmetric):
    weight, scales = random(6, 32, seed=seed), torch.ones(32, dtype=torch.float64)
    scales[3] = scale
    ratios = awq.step_ratios(weight, scales, 4, 8, symmetric=symmetric)
    assert (ratios[:, 1:] == 1).all()  # other groups
    assert (ratios >= 1).all()
    assert (ratios <= scale * (1 + 1e-12)).all()
    group, scaled = weight[:, :8], (weight * scales)[:, 3]
    ends = group.abs().amax(1), -group.abs().amax(1)
    if not symmetric:
        ends = group.amax(1).clamp(min=0), group.amin(1).clamp(max=0)
    inside = (scaled <= ends[0]) & (scaled >= ends[1])
    assert ((ratios[:, 0] == 1) == inside).all()


def test_the_error_of_the_layer_first_falls_and_then_rises_with_the_scale():
    """Table 2 of the paper: 3 bits, groups of 128, 1% of the channels scaled. There perplexity is least at s = 2."""
    weight = random(128, 512, seed=3)
    inputs = with_outliers(1024, 512, (17, 130, 250, 400, 500), 30.0)
    table = list(published.table("awq_table2_opt67b"))
    results = [awq.salient_scale_error(weight, inputs, row["s"]) for row in table]
    errors = [result.layer_error for result in results]
    least = errors.index(min(errors))
    assert errors == sorted(errors[:4], reverse=True) + errors[4:]
    assert table[least]["s"] == 2
    perplexities = [row["perplexity"] for row in table]
    assert perplexities.index(min(perplexities)) == least
    assert errors[4] > 1.1 * errors[3]
    assert awq.salient_scale_error(weight, inputs, 16.0).layer_error > errors[0]
    for result, row in zip(results, table, strict=True):
        assert result.error_ratio == pytest.approx(result.mean_step_ratio / result.scale)
        assert result.error_ratio == pytest.approx(row["error_ratio"], rel=0.03 if row["s"] <= 2 else 0.25)
        assert row["error_ratio"] == pytest.approx(row["mean_delta_ratio"] / row["s"], abs=1e-3)
    for name in ("share_changed", "mean_step_ratio"):
        values = [getattr(result, name) for result in results]
        assert values == sorted(values)
    assert (results[0].share_changed, results[0].mean_step_ratio, results[0].error_ratio) == (0, 1, 1)


@pytest.mark.parametrize("scale", [1.5, 2.0, 4.0])
def test_where_the_step_stays_the_error_of_a_channel_falls_by_the_scale(scale):
    """Its square by the square. Where the channel became its group's largest, its error has nothing to do with s."""
    weight, scales = random(20000, 128, seed=5), torch.ones(128, dtype=torch.float64)
    scales[100] = scale
    ratios = awq.step_ratios(weight, scales, 4, None, symmetric=True)[:, 0]
    plain, scaled = (quantize_rtn(one, 4, None, symmetric=True).dequantize()[:, 100]
                     for one in (weight, weight * scales))
    before, after = (plain - weight[:, 100]).square(), (scaled / scale - weight[:, 100]).square()
    stays = ratios == 1
    assert stays.double().mean() > 0.4
    assert float(after[stays].mean() / before[stays].mean()) == pytest.approx(scale**-2, rel=0.05)
    assert torch.allclose(after[~stays], (weight[~stays, 100] / 15).square())  # half of 15 steps: between two codes


def test_folding_the_scales_into_the_operation_before_changes_nothing():
    before, bias, weight = random(32, 24), random(32, seed=1), random(8, 32, seed=2)
    inputs = random(50, 24, seed=3)
    record = quantize_awq(weight, inputs @ before.T + bias, 4, 8)
    stored = record.dequantize() * record.input_scales  # what the device multiplies by
    folded, folded_bias = awq.fold_into_previous(record.input_scales, before, bias)
    direct = (inputs @ before.T + bias) @ record.dequantize().T
    assert torch.allclose((inputs @ folded.T + folded_bias) @ stored.T, direct, rtol=1e-12, atol=1e-12)
    powers = 2.0 ** torch.arange(-16, 16)
    folded, folded_bias = awq.fold_into_previous(powers, before, bias)
    assert torch.equal((inputs @ folded.T + folded_bias) * powers, inputs @ before.T + bias)
    gain, nothing = awq.fold_into_previous(powers, bias)
    assert torch.equal(gain * powers, bias)
    assert nothing is None

"""The error of rounding to nearest: a twelfth of the squared step, where that fails, and what other scales cost."""

import dataclasses

import pytest
import torch

from scalebook.quantization import expected_error, from_codes, measured_error, quantize_rtn, to_codes


def ratio_of_errors(weight, record):
    return float(measured_error(weight, record).sum() / expected_error(record).sum())


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("bits", [3, 4, 8])
def test_the_mean_squared_error_of_gaussian_weights_is_a_twelfth_of_the_squared_step(bits, symmetric):
    weight = torch.randn(256, 1024, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    assert ratio_of_errors(weight, quantize_rtn(weight, bits, 128, symmetric)) == pytest.approx(1, abs=0.02)


def test_a_twelfth_fails_when_an_outlier_leaves_few_levels_to_the_rest():
    """The other weights all become 0, so that their error is their own variance, far less than S^2/12."""
    weight = torch.randn(256, 128, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    weight[:, 0] = 100.0
    record = quantize_rtn(weight, 3, None)
    assert (record.dequantize()[:, 1:] == 0).all()
    rest = (record.dequantize() - weight)[:, 1:]
    assert float((rest**2).mean()) == pytest.approx(1, rel=0.03)
    assert ratio_of_errors(weight, record) < 0.07


def test_a_twelfth_fails_when_the_weights_lie_on_the_grid():
    weight = torch.randint(0, 16, (64, 128), generator=torch.Generator().manual_seed(6)).double() - 5
    weight[:, 0], weight[:, 1] = -5, 10
    assert ratio_of_errors(weight, quantize_rtn(weight, 4, None)) == 0


def test_a_twelfth_fails_when_the_grid_cuts_weights_off():
    weight = torch.randn(256, 128, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    whole = quantize_rtn(weight, 4, None)
    short_scales = whole.scales / 3
    codes = to_codes(weight, short_scales, whole.zero_points, 4)
    short = dataclasses.replace(whole, codes=codes, scales=short_scales)
    assert ratio_of_errors(weight, short) > 10


@pytest.mark.parametrize(("bits", "cut", "unused"), [(2, .62, 1.95), (3, .80, 1.33), (4, .91, 1.12), (8, 1.01, .98)])
def test_what_the_other_symmetric_scales_cost_on_gaussian_weights(bits, cut, unused):
    """m/2^(b-1) cuts the greatest positive weights and m/(2^(b-1) - 1) leaves a code unused; in groups of 128.

    Cutting pays on average, but then a weight can move by a whole step.
    """
    weight = torch.randn(4096, 128, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    m = weight.abs().amax(-1, keepdim=True)
    middle = 2**(bits - 1)

    def steps_and_error(scale):
        moved = from_codes(to_codes(weight, scale, middle, bits), scale, middle) - weight
        return float((moved / scale).abs().max()), float((moved**2).mean())

    farthest, ours = steps_and_error(2 * m / (2**bits - 1))
    assert farthest == pytest.approx(0.5, abs=1e-4)
    farthest, error = steps_and_error(m / 2**(bits - 1))
    assert farthest == pytest.approx(1)
    assert error / ours == pytest.approx(cut, abs=0.02)
    farthest, error = steps_and_error(m / (2**(bits - 1) - 1))
    assert farthest == pytest.approx(0.5, abs=1e-4)
    assert error / ours == pytest.approx(unused, abs=0.02)

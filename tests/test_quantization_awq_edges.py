"""AWQ's clipping, group by group, and what its functions refuse."""

import math

import pytest
import torch
from test_quantization_awq import random, with_outliers

from scalebook.quantization import awq, quantize_awq, quantize_rtn
from scalebook.quantization.hessian import layer_error, layer_hessian

# Clipping.


@pytest.mark.parametrize("symmetric", [False, True])
def test_clipping_takes_the_best_share_of_each_group(symmetric):
    weight, H = random(5, 12), layer_hessian(random(40, 12, seed=1) @ random(12, 12, seed=2))
    clipped = awq.clip_weight(weight, H, 2, 4, symmetric=symmetric)
    for row in range(5):
        for start in (0, 4, 8):
            group, block = weight[row:row + 1, start:start + 4], H[start:start + 4, start:start + 4]
            candidates = [group.clamp(-share * group.abs().max(), share * group.abs().max())
                          for share in torch.linspace(1, 0.55, 10).tolist()]
            chosen = clipped[row:row + 1, start:start + 4]
            error, *errors = [layer_error(group, quantize_rtn(one, 2, None, symmetric).dequantize(), block)
                              for one in (chosen, *candidates)]
            assert error == pytest.approx(min(errors), rel=1e-9)
            assert any(torch.equal(chosen, one) for one in candidates)


def test_clipping_helps_a_layer_with_large_weights():
    weight = random(32, 256, seed=4) ** 3
    H = layer_hessian(with_outliers())
    errors = [layer_error(weight, quantize_awq(weight, H, 3, 64, clip=clip).dequantize(), H) for clip in (False, True)]
    assert errors[1] < 0.9 * errors[0]


# What it refuses.


@pytest.mark.parametrize(("calibration", "options", "message"), [
    (torch.ones(3, 5), {}, r"activations_or_hessian has the shape \(3, 5\); activations for a weight of 4 inputs"),
    (torch.ones(4), {}, "activations_or_hessian has the shape"),
    (None, {}, "activations_or_hessian is NoneType"),
    (torch.ones(2, 4).long(), {}, "activations_or_hessian is torch.int64"),
    (torch.full((2, 4), math.nan), {}, "activations_or_hessian has 8 elements"),
    (torch.ones(2, 4), {"kind": "hessian"}, r"activations_or_hessian has the shape \(2, 4\); for a weight of 4 inputs"),
    (torch.eye(4) - 0.5, {}, "activations_or_hessian is not positive semi-definite"),
    (torch.ones(2, 4), {"kind": "inputs"}, "kind = 'inputs'"),
    (torch.ones(2, 4), {"steps": 0}, "steps = 0"),
    (torch.ones(2, 4), {"steps": 2.5}, "steps = 2.5"),
    (torch.ones(2, 4), {"bits": 1}, "bits = 1"),
    (torch.ones(2, 4), {"group_size": 3}, "group_size = 3 does not divide"),
])
def test_bad_arguments_are_named(calibration, options, message):
    with pytest.raises(ValueError, match=message):
        quantize_awq(torch.ones(2, 4), calibration, **{"bits": 4, "group_size": None, **options})


def test_bad_weights_scales_and_shares_are_named():
    with pytest.raises(ValueError, match="weight has 1 elements"):
        quantize_awq(torch.tensor([[math.inf, 1.0]]), torch.ones(1, 2), 4, None)
    for scale in (0, -1.0, math.inf, "2"):
        with pytest.raises(ValueError, match="scale = "):
            awq.salient_scale_error(torch.ones(2, 4), torch.ones(2, 4), scale, group_size=None)
    for share in (0, 1.5, None):
        with pytest.raises(ValueError, match="share = "):
            awq.salient_scale_error(torch.ones(2, 4), torch.ones(2, 4), 2.0, share=share, group_size=None)
    with pytest.raises(ValueError, match=r"previous_bias has the shape \(2,\)"):
        awq.fold_into_previous(torch.ones(3), torch.ones(3, 2), torch.ones(2))


def test_scales_that_would_overflow_are_left_out_of_the_search():
    weight = torch.tensor([[3e38, 1.0, -2e38, 5.0]])
    inputs = torch.tensor([[100.0, 1.0, 3.0, 0.1], [90.0, 2.0, 1.0, 1.0]])
    curve = awq.awq_curve(weight, inputs, 4, 2)
    assert curve[-1][1] == math.inf
    assert quantize_awq(weight, inputs, 4, 2).dequantize().isfinite().all()

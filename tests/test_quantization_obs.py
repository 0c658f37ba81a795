"""Optimal brain damage, surgeon and quantization: against least squares, enumeration, and the layer's real error."""

import doctest
import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scalebook.quantization import from_codes, group_grid, hessian, obs, quantize_rtn, to_codes
from scalebook.quantization.hessian import accumulate_hessian, damp, layer_error, layer_hessian, row_errors


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def correlated(tokens=200, inputs=6, seed=0):
    """Inputs whose channels lean on each other."""
    return random(tokens, inputs, seed=seed) @ random(inputs, inputs, seed=seed + 1) + random(tokens, inputs, seed=seed)


def row_grid(row_I, bits=2):
    scale, zero = group_grid(row_I[None], bits, symmetric=False)
    return scale.expand(len(row_I)), zero.expand(len(row_I))


@pytest.mark.parametrize("module", [hessian, obs])
def test_the_examples_in_the_docstrings_hold(module):
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


# The Hessian and the error.


def test_the_error_is_that_of_the_layers_outputs():
    inputs, weight, other = correlated(), random(4, 6), random(4, 6, seed=9)
    outputs = (inputs @ (weight - other).T).square()
    error = layer_error(weight, other, layer_hessian(inputs))
    assert error == pytest.approx(float(outputs.sum()), rel=1e-12)
    assert torch.allclose(row_errors(weight, other, layer_hessian(inputs)), outputs.sum(0), rtol=1e-12)


def test_the_hessian_is_that_of_autograd():
    inputs, row = correlated(), random(6)
    exact = torch.autograd.functional.hessian(lambda w: (inputs @ (w - row)).square().sum(), random(6, seed=5))
    assert torch.allclose(layer_hessian(inputs), exact, rtol=1e-12)


def test_the_hessian_adds_up_over_batches_in_float64():
    inputs = correlated().float()
    total = accumulate_hessian(iter(inputs.split(70)))
    assert total.dtype == torch.float64
    assert torch.allclose(total, layer_hessian(inputs), rtol=1e-13)
    assert torch.equal(total, total.T)


@pytest.mark.parametrize(("batches", "message"), [
    ([], "batches is empty"),
    ([torch.ones(2, 3), torch.ones(2, 4)], "3 and 4 channels"),
    ([torch.ones(3)], "inputs_NI has the shape"),
    ([torch.ones(0, 3)], "inputs_NI has the shape"),
    ([torch.ones(2, 3, dtype=torch.int64)], "inputs_NI is torch.int64"),
    ([[1.0, 2.0]], "inputs_NI is list"),
    ([torch.tensor([[math.nan, 1.0]])], "inputs_NI has 1 elements"),
])
def test_bad_inputs_are_named(batches, message):
    with pytest.raises(ValueError, match=message):
        accumulate_hessian(batches)


@pytest.mark.parametrize("damping", [-0.1, math.inf, math.nan, "1", True, None])
def test_bad_damping_is_named(damping):
    with pytest.raises(ValueError, match="damping = "):
        damp(torch.eye(2), damping)


def test_shapes_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match=r"hessian_II \(3, 3\)"):
        layer_error(torch.ones(2, 2), torch.ones(2, 2), torch.eye(3))


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 6), st.integers(0, 1000), st.floats(0.001, 10))
def test_damping_adds_its_share_of_the_mean_of_the_live_channels(inputs, seed, damping):
    matrix = layer_hessian(correlated(50, inputs, seed))
    dead = random(inputs, seed=seed) > 1
    matrix[dead, :], matrix[:, dead] = 0, 0
    live = matrix.diagonal()[~dead]
    mean = float(live.mean()) if len(live) else 1.0
    expected = matrix + damping * mean * torch.eye(inputs, dtype=torch.float64) + torch.diag(mean * dead.double())
    assert torch.allclose(damp(matrix, damping), expected, rtol=1e-12)


# One step: the other weights move to where least squares would put them.


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 7), st.integers(0, 1000), st.floats(-3, 3), st.data())
def test_a_step_moves_the_others_to_the_least_squares_solution(inputs, seed, target, data):
    X, row = correlated(100, inputs, seed), random(inputs, seed=seed + 2)
    q = data.draw(st.integers(0, inputs - 1))
    moved, error = obs.obq_step(row, torch.linalg.inv(layer_hessian(X)), q, target)
    others = [i for i in range(inputs) if i != q]
    solution = torch.linalg.lstsq(X[:, others], X @ row - X[:, q] * target).solution
    assert moved[q] == target
    assert torch.allclose(moved[others], solution, rtol=1e-6, atol=1e-8)
    assert float(error) == pytest.approx(layer_error(row[None], moved[None], layer_hessian(X)), rel=1e-6, abs=1e-8)


def test_pruning_costs_what_the_saliencies_say():
    X, row = correlated(), random(6)
    H = layer_hessian(X)
    inverse = torch.linalg.inv(H)
    for q in range(6):
        pruned, error = obs.obs_step(row, inverse, q)
        assert pruned[q] == 0
        assert float(error) == pytest.approx(float(obs.obs_saliency(row, inverse)[q]), rel=1e-12)
        alone = row.clone()
        alone[q] = 0
        damage = layer_error(row[None], alone[None], H)
        assert float(obs.obd_saliency(row, H)[q]) == pytest.approx(damage, rel=1e-12)


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 8), st.integers(0, 1000))
def test_surgery_never_costs_more_than_damage(inputs, seed):
    H, weight = layer_hessian(correlated(100, inputs, seed)), random(3, inputs, seed=seed)
    assert (obs.obs_saliency(weight, torch.linalg.inv(H)) <= obs.obd_saliency(weight, H) * (1 + 1e-9)).all()


@settings(deadline=None, max_examples=30)
@given(st.integers(2, 8), st.integers(0, 1000), st.data())
def test_the_downdate_is_the_inverse_of_what_remains(inputs, seed, data):
    H = damp(layer_hessian(correlated(100, inputs, seed)), 0.01)
    order = data.draw(st.permutations(range(inputs)))
    inverse = torch.linalg.inv(H)
    for step, q in enumerate(order[:-1]):
        inverse = obs.remove_from_inverse(inverse, q)
        rest = order[step + 1:]
        exact = torch.linalg.inv(H[rest][:, rest])
        assert torch.allclose(inverse[rest][:, rest], exact, rtol=1e-8, atol=1e-10 * float(exact.abs().max()))
        assert not inverse[order[:step + 1]].any()
        assert not inverse[:, order[:step + 1]].any()


# Optimal brain quantization.


@pytest.mark.parametrize("order", ["given", "greedy"])
def test_the_errors_of_the_steps_add_up_to_the_error_of_the_row(order):
    H, row = damp(layer_hessian(correlated()), 0.01), random(6)
    inverse, (scale, zero) = torch.linalg.inv(H), row_grid(row)
    codes = obs.obq_row(row, inverse, scale, zero, 2, order)
    total, moved, remaining = 0.0, row, list(range(6))
    while remaining:
        targets = from_codes(to_codes(moved, scale, zero, 2), scale, zero)
        costs = [float((targets[q] - moved[q]) ** 2 / inverse[q, q]) for q in remaining]
        q = remaining.pop(costs.index(min(costs)) if order == "greedy" else 0)
        moved, error = obs.obq_step(moved, inverse, q, targets[q])
        inverse = obs.remove_from_inverse(inverse, q)
        total += float(error)
    assert torch.equal(from_codes(codes, scale, zero), moved)
    assert total == pytest.approx(layer_error(row[None], moved[None], H), rel=1e-9)


def test_brute_force_finds_the_best_of_all_codes():
    X, row = correlated(50, 3), random(3)
    H, (scale, zero) = layer_hessian(X), row_grid(row)
    codes, error = obs.brute_force(row, H, scale, zero, 2)
    errors = {}
    for choice in itertools.product(range(4), repeat=3):
        rounded = torch.stack([s * (c - z) for c, s, z in zip(choice, scale, zero, strict=True)])
        errors[choice] = float((X @ (row - rounded)).square().sum())
    assert tuple(codes.tolist()) == min(errors, key=errors.get)
    assert error == pytest.approx(min(errors.values()), rel=1e-9)


def test_rounding_with_feedback_lies_between_the_optimum_and_plain_rounding():
    total = torch.zeros(4)  # the optimum, the given order, the greedy order, plain rounding
    for seed in range(20):
        X, row = correlated(100, 6, seed), random(6, seed=seed + 50)
        H, (scale, zero) = layer_hessian(X), row_grid(row)
        inverse = torch.linalg.inv(H)
        best = obs.brute_force(row, H, scale, zero, 2)[1]
        errors = [layer_error(row[None], from_codes(codes, scale, zero)[None], H)
                  for codes in (obs.obq_row(row, inverse, scale, zero, 2),
                                obs.obq_row(row, inverse, scale, zero, 2, "greedy"),
                                to_codes(row, scale, zero, 2))]
        assert min(errors) >= best * (1 - 1e-12)
        total += torch.tensor([best, *errors])
    optimum, given_order, greedy, plain = total.tolist()
    assert optimum < greedy < plain
    assert optimum < given_order < plain


def test_uncorrelated_inputs_leave_nothing_to_make_up():
    weight = random(3, 8)
    for order in ("given", "greedy"):
        record = obs.obq(weight, 3 * torch.eye(8), bits=3, group_size=4, order=order)
        assert torch.equal(record.codes, quantize_rtn(weight, 3, 4).codes)


@pytest.mark.parametrize("symmetric", [False, True])
def test_obq_keeps_the_grids_of_rounding(symmetric):
    weight = random(3, 6)
    record = obs.obq(weight, layer_hessian(correlated()), bits=3, group_size=3, symmetric=symmetric, order="greedy")
    plain = quantize_rtn(weight, 3, 3, symmetric)
    assert torch.equal(record.scales, plain.scales)
    assert torch.equal(record.zero_points, plain.zero_points)
    assert record.dequantize().dtype == torch.float64
    assert record.codes.ne(plain.codes).any()


def test_bad_arguments_of_obq_are_named():
    weight, singular = torch.ones(2, 2), torch.ones(2, 2)
    with pytest.raises(ValueError, match="order = 'best'"):
        obs.obq(weight, torch.eye(2), order="best")
    with pytest.raises(ValueError, match="hessian is not positive definite with damping = 0"):
        obs.obq(weight, singular, damping=0)
    with pytest.raises(ValueError, match="hessian has the shape"):
        obs.obq(weight, torch.eye(3))
    with pytest.raises(ValueError, match="at most 4194304"):
        obs.brute_force(torch.ones(12), torch.eye(12), torch.ones(12), torch.zeros(12), 2)
    with pytest.raises(ValueError, match="bits = 1"):
        obs.brute_force(torch.ones(2), torch.eye(2), torch.ones(2), torch.zeros(2), 1)

"""What ZeRO keeps and sends by the formulas, the layout of its shards, and its Adam, each against an oracle."""

import doctest
import importlib
import subprocess
import sys
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scalebook import published, zero
from scalebook.formulas import zero as formulas
from scalebook.zero import Bucket, MixedAdam, buckets_of, communication_bytes, model_state_bytes, passes, units_of

SETTINGS = settings(deadline=None, max_examples=50)
COUNTS = st.integers(1, 10**13)


@pytest.mark.parametrize("name", ["states", "buckets", "adam"])  # those of the stages need ranks: test_labs_zero
def test_the_examples_in_the_docstrings_hold(name):
    result = doctest.testmod(importlib.import_module(f"{zero.__name__}.{name}"))
    assert result.failed == 0
    assert result.attempted > 0


def test_counting_needs_no_torch():
    code = ("import sys; from scalebook.zero import model_state_bytes, communication_bytes; "
            "model_state_bytes(10, 2, 3); communication_bytes(10, 2, 3); print('torch' in sys.modules)")
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


# What a rank keeps


def test_the_bytes_of_a_rank_are_those_of_the_papers_table():
    for row in published.table("zero_table1"):
        for stage, column in enumerate(("os_GB", "os_g_GB", "os_g_p_GB"), start=1):
            ours = model_state_bytes(7_500_000_000, row["DP"], stage) / 10**9
            assert float(ours) == pytest.approx(row[column], abs=0.051 if row[column] > 10 else 0.0051)


def test_a_100b_model_on_64_ranks_has_25_gb_of_states():
    assert model_state_bytes(10**11, 64, 3) == 25 * 10**9
    assert model_state_bytes(10**11, 64, 0) == 1600 * 10**9


def test_the_4x_and_8x_are_limits():
    whole = model_state_bytes(10**9, 64, 0)
    assert round(float(whole / model_state_bytes(10**9, 64, 1)), 2) == 3.82
    assert round(float(whole / model_state_bytes(10**9, 64, 2)), 2) == 7.21
    assert whole / model_state_bytes(10**9, 64, 3) == 64
    assert whole / model_state_bytes(10**9, 10**9, 1) == pytest.approx(4)
    assert whole / model_state_bytes(10**9, 10**9, 2) == pytest.approx(8)


@SETTINGS
@given(COUNTS, st.integers(1, 5000), st.integers(0, 3), st.sampled_from(sorted(formulas.recipes())))
def test_the_shards_of_all_ranks_are_one_copy_of_what_is_sharded(parameters, size, stage, recipe):
    sizes = formulas.recipes()[recipe]
    replicated = parameters * sum([sizes.b_w, sizes.b_g, sizes.K][: 3 - stage])
    kept = model_state_bytes(parameters, size, stage, recipe)
    assert kept * size == parameters * sizes.total + (size - 1) * replicated
    assert isinstance(kept, int | Fraction)


@SETTINGS
@given(COUNTS, st.integers(0, 3), st.sampled_from(sorted(formulas.recipes())))
def test_one_rank_shards_nothing_and_sends_nothing(parameters, stage, recipe):
    assert model_state_bytes(parameters, 1, stage, recipe) == model_state_bytes(parameters, 1, 0, recipe)
    assert communication_bytes(parameters, 1, stage, recipe=recipe) == 0


def test_the_recipes_have_16_18_20_and_10_bytes_a_parameter():
    totals = {name: model_state_bytes(1, 1, 0, name) for name in formulas.recipes()}
    assert totals["mixed precision"] == 16
    assert totals["fp32 gradients"] == 18
    assert totals["16-bit and fp32 gradients"] == 20
    assert totals["8-bit Adam"] == 10
    assert model_state_bytes(12, 4, 3, formulas.Recipe("own", 1, 2, 3, "here")) == 18


# What a rank sends


@SETTINGS
@given(COUNTS, st.integers(1, 5000), st.integers(0, 3), st.integers(1, 64))
def test_the_bytes_sent_are_two_for_each_element_of_the_formulas(parameters, size, stage, microbatches):
    formula = formulas.ELEMENTS[stage]
    known = {"Psi": parameters, "N": size, "M": microbatches}
    elements = formula(**{variable.name: known[variable.name] for variable in formula.symbols})
    assert communication_bytes(parameters, size, stage, microbatches) == 2 * elements
    kept = formulas.elements_stage3_kept(**known)
    assert communication_bytes(parameters, size, 3, microbatches, release_after_forward=False) == 2 * kept


def test_stage_3_sends_half_as_much_again_and_neither_nothing_nor_double():
    plain, *sharded = (communication_bytes(10**6, 64, stage) for stage in range(4))
    assert [each / plain for each in sharded] == [1, 1, Fraction(3, 2)]


def test_gradients_of_4_bytes_travel_with_4():
    sent = [communication_bytes(10, 2, stage, recipe="fp32 gradients") for stage in range(4)]
    assert sent == [2 * 4 * 5, (2 + 4) * 5, (2 + 4) * 5, (2 + 2 + 4) * 5]


# What is refused


@pytest.mark.parametrize(("given_values", "named"), [
    ((0, 4, 1), "parameters = 0"), ((1.5, 4, 1), "parameters = 1.5"), ((-5, 4, 1), "parameters = -5"),
    ((Fraction(3, 2), 4, 1), "parameters = Fraction"), ((True, 4, 1), "parameters = True"),
    (("7B", 4, 1), "parameters = '7B'"), ((10, 0, 1), "ranks = 0"), ((10, 2.5, 1), "ranks = 2.5"),
    ((10, -1, 1), "ranks = -1"), ((10, None, 1), "ranks = None"), ((10, 4, 4), "stage = 4"),
    ((10, 4, -1), "stage = -1"), ((10, 4, 1.0), "stage = 1.0"), ((10, 4, True), "stage = True"),
])
def test_what_cannot_be_is_named(given_values, named):
    for call in (model_state_bytes, communication_bytes):
        with pytest.raises(ValueError, match=f"{named}.* is not allowed; .* must be"):
            call(*given_values)


def test_a_recipe_a_number_of_micro_batches_and_a_release_that_cannot_be_are_named():
    with pytest.raises(ValueError, match=r"recipe = 'fp8' is not allowed; .*mixed precision"):
        model_state_bytes(10, 4, 1, "fp8")
    with pytest.raises(ValueError, match="recipe = 16 is not allowed"):
        communication_bytes(10, 4, 1, recipe=16)
    with pytest.raises(ValueError, match="microbatches = 0 is not allowed"):
        communication_bytes(10, 4, 2, microbatches=0)
    with pytest.raises(ValueError, match="release_after_forward = False is not allowed at stage 2"):
        communication_bytes(10, 4, 2, release_after_forward=False)
    assert passes(3, 2, release_after_forward=False) == (2, 2)


# The layout of buckets and units


@SETTINGS
@given(st.lists(st.lists(st.integers(1, 4), max_size=3), min_size=1, max_size=6), st.integers(1, 9), st.integers(1, 40))
def test_flattening_loses_nothing_and_pads_less_than_one_element_a_rank(shapes, size, elements):
    model = torch.nn.ParameterList([torch.randn(shape) for shape in shapes])
    found = buckets_of(model, elements, size)
    assert [p for bucket in found for p in bucket.parameters] == list(reversed(list(model.parameters())))
    for bucket in found:
        flat_P = bucket.flatten([p.detach() for p in bucket.parameters])
        assert len(flat_P) == bucket.padded == size * formulas.shard_elements(Psi=bucket.elements, N=size)
        assert bucket.padded - bucket.elements == formulas.padding_elements(Psi=bucket.elements, N=size) < size
        assert not flat_P[bucket.elements:].any()
        for p, view in zip(bucket.parameters, bucket.views(flat_P), strict=True):
            assert torch.equal(p, view)
            assert view.untyped_storage()._cdata == flat_P.untyped_storage()._cdata
    assert all(bucket.elements >= elements for bucket in found[:-1])


def test_a_layer_that_ties_two_groups_joins_them():
    a, b, c = (torch.nn.Linear(2, 2) for _ in range(3))
    c.weight, c.bias = a.weight, b.bias
    unit, = units_of([a, b, c], ranks=2)
    assert unit.layers == [a, b, c]
    assert unit.elements == 4 + 2 + 4 + 2


def test_parameters_that_cannot_share_a_bucket_are_named():
    fixed, half = torch.ones(3), torch.ones(2, dtype=torch.float16, requires_grad=True)
    with pytest.raises(ValueError, match=r"shapes \[\(3,\)\] are not allowed; every parameter must want a gradient"):
        Bucket([fixed], 2)
    with pytest.raises(ValueError, match=r"torch.float16 and torch.float32 are not allowed"):
        Bucket([half, torch.ones(2, requires_grad=True)], 2)
    for call, named in (
        (lambda: Bucket([half], 0), "ranks = 0"), (lambda: Bucket([], 2), r"parameters = \[\]"),
        (lambda: units_of([], 2), r"layers = \[\]"), (lambda: units_of([torch.nn.ReLU()], 2), r"parameters = \[\]"),
        (lambda: buckets_of(torch.nn.Linear(2, 2), 0, 2), "elements = 0"),
    ):
        with pytest.raises(ValueError, match=f"{named} is not allowed"):
            call()


def test_a_bucket_is_ready_once_in_each_backward_when_its_last_gradient_is_there():
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    bucket, calls = Bucket(model.parameters(), 2), []
    bucket.when_ready(lambda ready: calls.append([p.grad is not None for p in ready.parameters]))
    for _ in range(2):
        model(torch.ones(1, 3)).sum().backward()
    assert calls == [[True] * 4] * 2
    bucket.check_complete()
    model[0](torch.ones(1, 3)).sum().backward()
    with pytest.raises(RuntimeError, match=r"no gradient to parameters of shapes \[\(3,\), \(3, 3\)\]"):
        bucket.check_complete()


# Adam


@SETTINGS
@given(st.integers(0, 10**6), st.floats(1e-5, 1.0), st.sampled_from([0.0, 0.1]), st.floats(0.0, 0.99),
       st.floats(0.5, 0.9999))
def test_adam_is_pytorchs(seed, rate, decay, beta_1, beta_2):
    drawn = torch.Generator().manual_seed(seed)
    start, *gradients = torch.randn(5, 20, generator=drawn, dtype=torch.float64)
    right = start.clone().requires_grad_()
    theirs = torch.optim.AdamW([right], lr=rate, betas=(beta_1, beta_2), weight_decay=decay)
    ours = MixedAdam([start[:7].clone(), start[7:].clone()], rate, (beta_1, beta_2), decay=decay)
    for gradient in gradients:
        right.grad = gradient / 8
        theirs.step()
        ours.step([gradient[:7], gradient[7:]], scale=1 / 8)
    torch.testing.assert_close(torch.cat(ours.masters), right.detach(), rtol=1e-10, atol=1e-10)


def test_without_master_weights_small_updates_are_rounded_away():
    master, alone = torch.ones(1), torch.ones(1, dtype=torch.bfloat16)
    kept = MixedAdam([master], learning_rate=1e-3)
    lost = MixedAdam([alone], learning_rate=1e-3)
    for _ in range(10):
        kept.step([torch.ones(1)])
        lost.step([torch.ones(1, dtype=torch.bfloat16)])
    assert master.item() == pytest.approx(1 - 10 * 1e-3, rel=1e-4)
    assert alone.item() == 1

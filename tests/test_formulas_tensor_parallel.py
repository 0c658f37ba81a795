"""Chapter 3's formulas: equal to published tables, to PyTorch's own counts and to algebra."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from scalebook import published
from scalebook.formulas import collectives
from scalebook.formulas import tensor_parallel as formulas
from scalebook.formulas.core import Formula

ALL = {name: value for name, value in vars(formulas).items() if isinstance(value, Formula)}
forall = settings(deadline=None, max_examples=40)
counts = st.integers(1, 300)
powers = st.sampled_from([1, 2, 4, 8])


@pytest.mark.parametrize("name", ALL)
def test_each_formula_bears_its_own_name_a_left_side_and_a_source(name):
    assert ALL[name].name == name
    assert ALL[name].result
    assert ALL[name].source.strip()


# ---- what is sent --------------------------------------------------------------------------------------------------

@given(counts, counts, counts, st.integers(1, 16))
@forall
def test_a_layer_sends_four_ring_all_reduces_six_with_full_recomputation(b, s, h, t):
    one = collectives.sent_all_reduce(R=t, S=b * s * h)
    shape = {"b": b, "s": s, "h": h, "t": t}
    assert formulas.all_reduce_elements(**shape) == one
    assert formulas.layer_elements_forward(**shape) == 2 * one
    assert formulas.layer_elements(**shape) == 4 * one == Fraction(8 * b * s * h * (t - 1), t)
    assert formulas.layer_elements_recomputed(**shape) == 6 * one
    for n in (2, 4, 6):
        assert formulas.elements_of_all_reduces(n=n, **shape) == n * one


def test_the_counts_are_the_published_ones():
    printed = {row["quantity"]: row["count"] for row in published.table("tp_collectives")}
    assert printed["all-reduces a layer, forward"] == formulas.FORWARD
    assert printed["all-reduces a layer, backward"] == formulas.BACKWARD
    assert printed["all-reduces a layer, with full recomputation"] == formulas.ALL_REDUCES["full"]
    assert formulas.ALL_REDUCES["none"] == formulas.ALL_REDUCES["selective"] == 4


@given(counts, counts, counts, powers)
@forall
def test_sequence_parallelism_sends_as_much_but_for_what_it_gathers_again(b, h, multiple, t):
    shape = {"b": b, "s": multiple * t, "h": h, "t": t}
    half = collectives.sent_all_gather(R=t, S=b * multiple * t * h)
    assert half == collectives.sent_reduce_scatter(R=t, S=b * multiple * t * h)
    assert formulas.layer_elements_sequence_parallel(**shape) == 8 * half == formulas.layer_elements(**shape)
    assert formulas.gathered_again_elements(**shape) == 2 * half


def test_row_before_column_sends_four_and_a_half_times_as_much_forward():
    shape = {"b": 2, "s": 64, "h": 128, "t": 4}
    middle = collectives.sent_all_reduce(R=4, S=2 * 64 * 4 * 128)
    end = collectives.sent_all_gather(R=4, S=2 * 64 * 128)
    assert formulas.mlp_elements_row_first(**shape) == middle + end
    assert formulas.mlp_elements_row_first(**shape) == Fraction(9, 2) * formulas.mlp_elements(**shape)


def test_the_loss_by_parts_sends_three_numbers_a_position_instead_of_a_row_of_logits():
    sizes = {"b": 1, "s": 2048, "t": 8}
    by_parts = formulas.cross_entropy_elements(**sizes)
    assert by_parts == 3 * collectives.sent_all_reduce(R=8, S=2048)
    assert Fraction(formulas.gathered_logits_elements(V=51200, **sizes), by_parts) == Fraction(51200, 6)


@given(st.integers(1, 8), st.integers(1, 8), st.sampled_from([2, 4, 6]), powers)
@forall
def test_a_step_sends_every_layers_all_reduces_for_every_micro_batch(L, M, n, t):
    shape = {"b": 2, "s": 16, "h": 32, "t": t}
    sent = formulas.step_bytes(epsilon=2, L=L, M=M, n=n, **shape)
    assert sent == 2 * L * M * formulas.elements_of_all_reduces(n=n, **shape)


# ---- FLOPs ---------------------------------------------------------------------------------------------------------

def layer(x, weights, a):
    """The products of one transformer layer, attention over all pairs."""
    b, s, h = x.shape
    q, k, v = ((x @ w).view(b, s, a, h // a).transpose(1, 2) for w in weights[:3])
    mixed = (torch.softmax(q @ k.transpose(2, 3), -1) @ v).transpose(1, 2).reshape(b, s, h)
    return torch.nn.functional.gelu(mixed @ weights[3] @ weights[4]) @ weights[5]


@pytest.mark.parametrize(("b", "s", "h", "a"), [(1, 8, 16, 2), (2, 24, 8, 4), (3, 16, 16, 1)])
def test_flops_of_a_layer_are_those_that_pytorch_counts(b, s, h, a):
    weights = [torch.randn(h, h, requires_grad=True) for _ in range(4)]
    weights += [torch.randn(h, 4 * h, requires_grad=True), torch.randn(4 * h, h, requires_grad=True)]
    x = torch.randn(b, s, h, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        out = layer(x, weights, a)
    assert counter.get_total_flops() == formulas.flops_forward(b=b, s=s, h=h)
    with FlopCounterMode(display=False) as backward:
        out.sum().backward()
    whole = counter.get_total_flops() + backward.get_total_flops()
    assert whole == formulas.flops_layer(b=b, s=s, h=h)
    assert whole + formulas.flops_forward(b=b, s=s, h=h) == formulas.flops_recomputed(b=b, s=s, h=h)
    q, k = torch.randn(b, a, s, h // a), torch.randn(b, a, h // a, s)
    with FlopCounterMode(display=False) as core:
        (q @ k) @ q
    assert formulas.flops_selective(b=b, s=s, h=h) == whole + core.get_total_flops()


@given(counts, counts, counts, counts, counts)
@forall
def test_a_models_flops_are_its_layers_and_the_head_forward_twice_backward(b, s, h, L, V):
    head = 3 * 2 * b * s * h * V
    sizes = {"b": b, "s": s, "h": h}
    assert formulas.flops_model(**sizes, L=L, V=V) == L * formulas.flops_layer(**sizes) + head
    assert formulas.flops_model_recomputed(**sizes, L=L, V=V) == L * formulas.flops_recomputed(**sizes) + head


def test_narayanans_peak_shares_follow_from_the_flops_of_an_iteration():
    """The last row of Table 1: 163 TFLOP/s a GPU, so an iteration's time; then the 84 days for 450e9 tokens."""
    row = published.table("narayanan2021_table1").row(TP=8, PP=64)
    iteration = formulas.flops_model_recomputed(b=row["batch"], s=2048, h=row["hidden"], L=row["layers"], V=51200)
    seconds = iteration / (row["TFLOPs_per_GPU"] * 1e12 * row["GPUs"])
    assert seconds * 450e9 / (row["batch"] * 2048) / 86400 == pytest.approx(84, abs=1.5)


def test_korthikantis_model_flops_utilization_is_reproduced():
    for row in published.table("korthikanti2022_table5"):
        flops = formulas.flops_model(b=row["global_batch"], s=2048, h=row["hidden"], L=row["layers"], V=51200)
        assert flops / (row["t_present_s"] * row["GPUs"] * 312e12) * 100 == pytest.approx(row["MFU"], abs=0.06)


# ---- time ----------------------------------------------------------------------------------------------------------

RACE = {"epsilon": 2, "rho": 312 * 10**12, "omega": 300 * 10**9}


@given(counts, counts, counts, st.integers(1, 64))
@forall
def test_the_ratio_is_communication_over_compute_whatever_the_batch(b, s, h, t):
    shape = {"b": b, "s": s, "h": h, "t": t}
    times = (formulas.communication_time(**shape, epsilon=2, omega=RACE["omega"]),
             formulas.compute_time(**shape, rho=RACE["rho"]))
    ratio = formulas.communication_over_compute(s=s, h=h, t=t, **RACE)
    assert times[0] / times[1] == ratio
    assert formulas.computing_share(s=s, h=h, t=t, **RACE) == times[1] / (times[0] + times[1])
    forward = formulas.communication_over_compute_forward(s=s, h=h, t=t, **RACE)
    again = formulas.communication_over_compute_recomputed(s=s, h=h, t=t, **RACE)
    assert forward == ratio * Fraction(3, 2)  # half of the messages for a third of the work
    assert again == ratio * Fraction(9, 8)  # three halves of the messages for four thirds of the work


@given(counts, st.integers(200, 10**5), st.integers(2, 64))
@forall
def test_at_the_balance_communication_takes_as_long_as_compute(s, h, t):
    ranks = formulas.balanced_ranks(s=s, h=h, **RACE)
    ratio = (ranks - 1) * RACE["epsilon"] * RACE["rho"] / (RACE["omega"] * (9 * h + Fraction(3, 2) * s))
    assert ratio == 1
    width = formulas.balanced_width(s=s, t=t, **RACE)
    if width:
        at = {"s": s, "t": t, **RACE}
        assert formulas.communication_over_compute(h=math.floor(width) + 1, **at) < 1
        if width >= 1:
            assert formulas.communication_over_compute(h=math.floor(width), **at) >= 1


def test_shoeybis_eight_ranks_fall_below_what_bandwidth_alone_allows():
    """39 TFLOP/s alone, 150 GB/s one way, activations recomputed: at best 88%; published are 77%."""
    row = published.table("shoeybi2019_table1").row(MP_GPUs=8)
    link = published.machine("V100").nvlink_one_way
    ratio = formulas.communication_over_compute_recomputed(s=1024, h=row["hidden"], t=8, epsilon=2, rho=39e12,
                                                           omega=link)
    assert 1 / (1 + ratio) == pytest.approx(0.877, abs=0.002)
    assert (row["MP_eff_pct"], row["MP_DP_eff_pct"]) == (77, 74)
    assert row["MP_eff_pct"] / 100 < 1 / (1 + ratio)

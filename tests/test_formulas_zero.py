"""Chapter 5's formulas: what the papers print, what DeepSpeed documents, and how they follow from each other."""

import math
import re
from fractions import Fraction

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from scalebook import published
from scalebook.formulas import zero as formulas
from scalebook.formulas import zero_estimators as estimators
from scalebook.formulas.core import Formula

ALL = {name: value for name, value in (vars(formulas) | vars(estimators)).items() if isinstance(value, Formula)}
ADAM = formulas.recipes()["mixed precision"].sizes
GIGA = 10**9
forall = settings(deadline=None, max_examples=20)
count, few = st.integers(1, 10**6), st.integers(1, 64)
sizes = st.fixed_dictionaries({"b_w": st.integers(1, 4), "b_g": st.integers(0, 4), "K": st.integers(0, 16)})


def states(stage, Psi, N, **bytes_):
    formula = formulas.STATE_BYTES[stage]
    known = {"Psi": Psi, "N": N, **(bytes_ or ADAM)}
    return formula(**{variable.name: known[variable.name] for variable in formula.symbols})


def elements(stage, **values):
    formula = formulas.ELEMENTS[stage]
    return formula(**{variable.name: values[variable.name] for variable in formula.symbols})


def reductions(N):
    return [formulas.reduction_stage1(**ADAM, N=N), formulas.reduction_stage2(**ADAM, N=N),
            formulas.reduction_stage3(N=N)]


@pytest.mark.parametrize("name", ALL)
def test_each_formula_bears_its_own_name_a_left_side_and_a_source(name):
    assert ALL[name].name == name
    assert ALL[name].result
    assert re.search(r"arXiv:\d{4}\.\d{5}|deepspeedai/DeepSpeed|chapter 5", ALL[name].source)


def printed_as(value, printed):
    """Whether a number is the one printed, to the digits printed."""
    digits = len(f"{printed}".partition(".")[2])
    return abs(float(value) - printed) <= 0.5000001 * 10**-digits


@pytest.mark.parametrize("row", published.table("zero_table1").rows, ids=lambda row: str(row["DP"]))
def test_memory_is_what_table_1_of_the_paper_prints(row):
    for stage, column in enumerate(("os_GB", "os_g_GB", "os_g_p_GB"), 1):
        assert printed_as(states(stage, 7_500_000_000, row["DP"]) / GIGA, row[column])


def test_memory_is_what_figure_1_of_the_paper_prints():
    for row in published.table("zero_figure1"):
        assert printed_as(states(row["stage"], 7_500_000_000, 64) / GIGA, row["GB"])


def test_four_and_eight_times_are_limits_that_64_ranks_do_not_reach():
    assert [round(float(value), 2) for value in reductions(64)] == [3.82, 7.21, 64]
    limits = formulas.reduction_limit_stage1(**ADAM), formulas.reduction_limit_stage2(**ADAM)
    assert limits == (4, 8)
    for N in (2, 64, 10**6):
        assert all(value < limit for value, limit in zip(reductions(N), limits, strict=False))
    N = formulas.N
    for formula, limit in ((formulas.reduction_stage1, formulas.reduction_limit_stage1),
                           (formulas.reduction_stage2, formulas.reduction_limit_stage2)):
        assert sympy.simplify(sympy.limit(formula.expression, N, sympy.oo) - limit.expression) == 0


def test_a_hundred_billion_parameters_on_64_ranks():
    Psi = 100 * GIGA
    assert [states(stage, Psi, 64) / GIGA for stage in (0, 3)] == [1600, 25]
    activations = int(re.search(r"about (\d+) GB", published.table("zero_formulas").note)[1])
    assert states(3, Psi, 64) / GIGA + activations == 85
    assert formulas.ranks_needed_stage3(Psi=Psi, **ADAM, C=80 * GIGA, A=60 * GIGA) == 80
    assert printed_as((estimators.stage3(Psi=Psi, Psi_l=1, N=64) - 4) / GIGA, 28.1)


@given(count, few, sizes)
@forall
def test_a_later_stage_never_keeps_more_and_one_rank_saves_nothing(Psi, N, bytes_):
    kept = [states(stage, Psi, N, **bytes_) for stage in range(4)]
    assert kept == sorted(kept, reverse=True)
    assert N * kept[3] == kept[0] == sum(bytes_.values()) * Psi
    assert len({states(stage, Psi, 1, **bytes_) for stage in range(4)}) == 1
    whole = dict(zip(("n_o", "n_g", "n_w"), (N, N, 1), strict=True))
    assert formulas.state_bytes(Psi=Psi, **bytes_, **whole) == kept[2]


@given(count, few)
@forall
def test_padded_shards_hold_all_elements_and_less_than_a_rank_too_many(Psi, N):
    shard, padding = formulas.shard_elements(Psi=Psi, N=N), formulas.padding_elements(Psi=Psi, N=N)
    assert shard == -(-Psi // N)
    assert N * shard - padding == Psi
    assert 0 <= padding < N


def test_recipes_are_the_bytes_that_megatron_documents():
    recipes = formulas.recipes()
    names = {"fp16 parameters, fp16 gradients": "16-bit and fp32 gradients",
             "bf16 parameters, fp32 gradients": "fp32 gradients", "fp32 parameters, fp32 gradients": "fp32 throughout"}
    for row in published.table("megatron_bytes_per_parameter"):
        recipe = recipes[names[row["precision"]]]
        kept, shared = map(int, re.fullmatch(r"(\d+) \+ (\d+)/d", row["distributed_optimizer"]).groups())
        assert recipe.total == row["plain"]
        for d in (1, 8, 64):
            assert states(1, 1, d, **recipe.sizes) == kept + Fraction(shared, d)


def test_8_bit_moments_save_six_bytes_of_twelve():
    recipes = formulas.recipes()
    assert recipes["mixed precision"].total - recipes["8-bit Adam"].total == 6


@given(count, st.integers(2, 64), few)
@forall
def test_the_stages_send_two_two_two_and_three_passes(Psi, N, M):
    once = [elements(stage, Psi=Psi, N=N, M=1) / (Psi * Fraction(N - 1, N)) for stage in range(4)]
    assert once == [2, 2, 2, 3]
    each = [elements(stage, Psi=Psi, N=N, M=M) / (Psi * Fraction(N - 1, N)) for stage in range(4)]
    assert each == [2, 2, M + 1, 3 * M]
    assert formulas.stage3_over_stage0(M=M) == each[3] / each[0] == Fraction(3 * M, 2)
    assert formulas.elements_stage3_kept(Psi=Psi, N=N, M=M) <= formulas.elements_stage3_once(Psi=Psi, N=N, M=M)


def ring_sends(chunks, N):
    """Elements that rank 0 sends when a ring reduces and scatters chunks of these sizes: all but its own once."""
    return sum(chunks[(0 - step) % N] for step in range(N - 1))


@given(few, st.integers(1, 12))
@forall
def test_one_pass_is_what_a_ring_sends_with_equal_chunks(size, N):
    assert formulas.one_pass_elements(Psi=size * N, N=N) == ring_sends([size] * N, N)


@given(count, few, few, st.integers(1, 8))
@forall
def test_sent_bytes_are_the_passes_in_their_own_sizes(Psi, N, M, b):
    stage3 = formulas.sent_bytes(Psi=Psi, N=N, b_w=b, b_g=b, c_w=2 * M, c_g=M)
    assert stage3 == b * elements(3, Psi=Psi, N=N, M=M)
    assert formulas.sent_bytes(Psi=Psi, N=N, b_w=2, b_g=4, c_w=1, c_g=1) == 6 * Psi * Fraction(N - 1, N)


@given(count, few, few)
@forall
def test_one_shard_group_is_stage_3_and_groups_of_one_rank_are_plain_data_parallelism(Psi, N, M):
    assert formulas.hybrid_elements_inside(Psi=Psi, G=N, M=M) == elements(3, Psi=Psi, N=N, M=M)
    assert formulas.hybrid_elements_between(Psi=Psi, G=N, N=N) == 0
    assert formulas.hybrid_elements_inside(Psi=Psi, G=1, M=M) == 0
    assert formulas.hybrid_elements_between(Psi=Psi, G=1, N=N) == elements(0, Psi=Psi, N=N)


def test_zero_plus_plus_sends_a_quarter_of_stage_3():
    # Before: 3 Psi. Weights once in 8 bits of 16, no gather in the backward, gradients in 4 bits.
    assert formulas.zeropp_elements(Psi=1, q_w=8, q_g=4) == Fraction(3, 4)
    (total,) = [row["effect"] for row in published.table("zeropp") if row["part"] == "all three"]
    assert "3M to 0.75M" in total


@given(st.integers(10**9, 10**12), st.integers(0, 10**9), few, sizes)
@forall
def test_the_largest_model_fits_and_one_parameter_more_does_not(C, A, N, bytes_):
    for shared in range(4):
        ranks = dict(zip(("n_o", "n_g", "n_w"), [N] * shared + [1] * (3 - shared), strict=True))
        largest = formulas.largest_model(C=C, A=A, **bytes_, **ranks)
        if largest > 0:
            assert states(shared, largest, N, **bytes_) + A <= C
        assert states(shared, largest + 1, N, **bytes_) + A > C


@given(st.integers(1, 10**6), st.integers(1, 10**8), st.integers(0, 10**6), sizes)
@forall
def test_the_ranks_needed_are_the_fewest_that_fit(Psi, room, A, bytes_):
    C = A + room
    for stage, formula in ((1, formulas.ranks_needed_stage1), (2, formulas.ranks_needed_stage2),
                           (3, formulas.ranks_needed_stage3)):
        replicated = {1: bytes_["b_w"] + bytes_["b_g"], 2: bytes_["b_w"], 3: 0}[stage] * Psi
        if replicated >= room:
            with pytest.raises(ValueError, match="no N is enough"):
                formula(Psi=Psi, **bytes_, C=C, A=A)
            continue
        N = formula(Psi=Psi, **bytes_, C=C, A=A)
        assert states(stage, Psi, N, **bytes_) + A <= C
        assert N == 1 or states(stage, Psi, N - 1, **bytes_) + A > C


@given(count, st.integers(2, 64), st.integers(1, 10**6), st.integers(1, 10**6), few)
@forall
def test_the_tokens_that_hide_stage_3_make_computing_as_long_as_sending_whatever_the_model(Psi, N, rho, omega, M):
    T = formulas.tokens_to_hide_stage3(b_w=2, b_g=2, rho=rho, omega=omega, N=N)
    sent = formulas.sent_bytes(Psi=Psi, N=N, b_w=2, b_g=2, c_w=2 * M, c_g=M)
    sending = formulas.communication_time(V=sent, omega=omega, n_m=0, alpha=0)
    more, less = math.ceil(T), max(1, math.floor(T))
    assert formulas.compute_time(Psi=Psi, T=more, M=M, rho=rho) >= sending
    if less <= T:
        assert formulas.compute_time(Psi=Psi, T=less, M=M, rho=rho) <= sending


def test_latency_counts_messages_and_many_small_layers_cost_more_than_few_buckets():
    assert formulas.messages_stage0(N=64, u=10) == 2 * 10 * 63
    assert formulas.messages_stage3(N=64, M=1, L=80) == 3 * 80 * 63
    alpha = Fraction(1, 10**5)
    assert formulas.communication_time(V=0, omega=1, n_m=3 * 80 * 63, alpha=alpha) == 3 * 80 * 63 * alpha
    assert formulas.buckets(Psi=7_500_000_000, Psi_b=500_000_000) == 15


def test_the_host_link_carries_a_shard_for_the_optimizer_and_the_weights_twice_when_they_rest_there():
    assert formulas.offload_bytes_optimizer(Psi=64, N=4, M=1, b_w=2, b_g=2) == 16 * 4
    assert formulas.offload_bytes_weights(Psi=64, N=4, M=3, b_w=2, b_g=2) == 3 * 16 * 6
    assert formulas.zeropp_secondary_bytes(Psi=80, b_w=2, G=8) == 20


def test_the_peak_is_the_resident_states_plus_what_is_whole_for_a_while():
    known = {"Psi": 1000, "N": 4, **ADAM}
    assert formulas.peak_bytes_stage3(**known, Psi_l=100, g_w=2, g_g=1) == states(3, 1000, 4) + 2 * 200 + 200
    # A bucket as large as the model brings the whole gradient back.
    assert formulas.peak_bytes_stage2(**known, Psi_b=1000, g_g=1) == states(2, 1000, 4) + 2 * 1000

"""The costs of the collectives: equal to rings run step by step here, to algebra, and to what nccl-tests prints."""

from fractions import Fraction

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from scalebook.formulas import collectives as formulas
from scalebook.formulas.core import Formula

ALL = {name: value for name, value in vars(formulas).items() if isinstance(value, Formula)}
forall = settings(deadline=None, max_examples=40)
ranks = st.integers(1, 9)
latency = st.fractions(Fraction(1, 100), 10)
speed = st.fractions(Fraction(1, 100), 10)


@pytest.mark.parametrize("name", ALL)
def test_each_formula_bears_its_own_name_a_left_side_and_a_source(name):
    assert ALL[name].name == name
    assert ALL[name].result
    assert ALL[name].source.strip()


# ---- rings, run --------------------------------------------------------------------------------------------------

def ring_reduce_scatter(parts):
    """Each rank passes a part on, its neighbour adds it. Return what rank r holds, and the parts sent a rank."""
    R = len(parts)
    held, sent = [list(row) for row in parts], [0] * R
    for step in range(R - 1):
        moving = [(rank, (rank - step) % R, held[rank][(rank - step) % R]) for rank in range(R)]
        for rank, place, value in moving:
            held[(rank + 1) % R][place] += value
            sent[rank] += 1
    return held, sent, R - 1


def ring_all_gather(held):
    """Each rank passes on the part that it got last, beginning with the one that it owns, (rank + 1) mod R."""
    R = len(held)
    held, sent = [list(row) for row in held], [0] * R
    for step in range(R - 1):
        moving = [(rank, (rank + 1 - step) % R, held[rank][(rank + 1 - step) % R]) for rank in range(R)]
        for rank, place, value in moving:
            held[(rank + 1) % R][place] = value
            sent[rank] += 1
    return held, sent, R - 1


@pytest.mark.parametrize("R", [1, 2, 3, 4, 8])
def test_a_ring_sums_in_as_many_steps_and_with_as_many_bytes_as_the_formulas_say(R):
    parts = [[10**rank * (place + 1) for place in range(R)] for rank in range(R)]
    halves, sent_first, steps_first = ring_reduce_scatter(parts)
    whole, sent_second, steps_second = ring_all_gather(halves)
    totals = [sum(column) for column in zip(*parts, strict=True)]
    assert all(halves[rank][(rank + 1) % R] == totals[(rank + 1) % R] for rank in range(R))
    assert whole == [totals] * R
    size = R * 12  # bytes: a part has 12
    assert steps_first == formulas.steps_reduce_scatter(R=R)
    assert steps_second == formulas.steps_all_gather(R=R)
    assert {12 * count for count in sent_first} == {formulas.sent_reduce_scatter(R=R, S=size)}
    assert {12 * count for count in sent_second} == {formulas.sent_all_gather(R=R, S=size)}
    both = {12 * (one + two) for one, two in zip(sent_first, sent_second, strict=True)}
    assert both == {formulas.sent_all_reduce(R=R, S=size)}
    assert steps_first + steps_second == formulas.steps_all_reduce(R=R)


@pytest.mark.parametrize("R", [2, 3, 5, 8])
@pytest.mark.parametrize("k", [1, 2, 7])
def test_a_chain_has_passed_all_chunks_on_after_as_many_steps_as_the_formula_says(R, k):
    held, steps = [k] + [0] * (R - 1), 0
    while held[-1] < k:
        passing = [rank for rank in range(R - 1) if held[rank] > held[rank + 1]]
        for rank in passing:
            held[rank + 1] += 1
        steps += 1
    assert steps == formulas.steps_broadcast(R=R, k=k)


@pytest.mark.parametrize("R", [2, 3, 5, 8])
def test_an_all_to_all_meets_every_other_rank_once(R):
    met = [{(rank + step) % R for step in range(1, R)} for rank in range(R)]
    assert all(len(partners) == formulas.steps_all_to_all(R=R) and rank not in partners
               for rank, partners in enumerate(met))
    assert formulas.sent_all_to_all(R=R, S=R * 12) == 12 * (R - 1)


# ---- algebra -------------------------------------------------------------------------------------------------------

def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather_in_steps_bytes_and_time():
    for kind in ("steps", "sent", "time"):
        whole, one, two = (getattr(formulas, f"{kind}_{name}").expression
                           for name in ("all_reduce", "reduce_scatter", "all_gather"))
        assert sympy.simplify(whole - one - two) == 0


@given(st.integers(2, 9), st.integers(1, 10**6), latency, speed)
@forall
def test_each_time_is_alpha_a_step_and_the_bytes_over_the_bandwidth(R, S, alpha, omega):
    for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        steps, sent, time = (getattr(formulas, f"{kind}_{name}") for kind in ("steps", "sent", "time"))
        assert time(R=R, S=S, alpha=alpha, omega=omega) == alpha * steps(R=R) + sent(R=R, S=S) / omega
    assert formulas.time_point_to_point(S=S, alpha=alpha, omega=omega) == alpha + S / omega
    assert formulas.time_broadcast(R=2, S=S, k=1, alpha=alpha, omega=omega) == alpha + S / omega


@given(ranks, latency, speed)
@forall
def test_one_rank_sends_nothing_and_an_empty_array_costs_latency_alone(R, alpha, omega):
    for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        time, steps = getattr(formulas, f"time_{name}"), getattr(formulas, f"steps_{name}")
        assert time(R=1, S=1000, alpha=alpha, omega=omega) == 0
        assert time(R=R, S=0, alpha=alpha, omega=omega) == alpha * steps(R=R)


@given(st.integers(2, 9), latency, speed)
@forall
def test_at_the_balanced_size_half_of_the_time_is_latency_and_the_bus_half_as_fast(R, alpha, omega):
    S = formulas.balanced_size(R=R, alpha=alpha, omega=omega)
    for name in ("all-reduce", "all-gather", "reduce-scatter", "all-to-all"):
        one = formulas.COLLECTIVES[name]
        T = one.time(R=R, S=S, alpha=alpha, omega=omega)
        assert one.sent(R=R, S=S) / omega == T / 2
        assert one.bus_bandwidth(R=R, S=S, T=T) == omega / 2
    S = formulas.balanced_size_point_to_point(alpha=alpha, omega=omega)
    assert formulas.time_point_to_point(S=S, alpha=alpha, omega=omega) == 2 * alpha


@given(st.integers(2, 9), st.integers(1, 10**6), speed)
@forall
def test_without_latency_the_bus_bandwidth_is_that_of_the_link(R, S, omega):
    """So nccl-tests chose its factors: 2(n-1)/n, (n-1)/n and 1."""
    for name, factor in (("all-reduce", Fraction(2 * (R - 1), R)), ("all-gather", Fraction(R - 1, R)),
                         ("reduce-scatter", Fraction(R - 1, R)), ("all-to-all", Fraction(R - 1, R))):
        one = formulas.COLLECTIVES[name]
        T = one.time(R=R, S=S, alpha=0, omega=omega)
        assert one.bus_bandwidth(R=R, S=S, T=T) == omega
        assert one.bus_bandwidth(R=R, S=S, T=T) == factor * formulas.algorithm_bandwidth(S=S, T=T)


@given(st.integers(2, 9), st.integers(1, 10**5), latency, speed)
@forall
def test_no_number_of_chunks_is_faster_than_the_best_and_a_whole_neighbour_is_nearly_as_fast(R, S, alpha, omega):
    sizes = {"R": R, "S": S, "alpha": alpha, "omega": omega}
    best = float(formulas.time_broadcast_best(**sizes))
    k = float(formulas.best_chunks(**sizes))
    times = {chunks: float(formulas.time_broadcast(k=chunks, **sizes)) for chunks in (1, 2, 3, 10, 100)}
    assert all(best <= time * (1 + 1e-12) for time in times.values())
    neighbours = [float(formulas.time_broadcast(k=chunks, **sizes)) for chunks in (int(k), int(k) + 1)]
    assert best <= min(neighbours) * (1 + 1e-12)
    assert min(neighbours) <= best * 1.07  # the worst is at k* near sqrt 2


def test_with_many_chunks_a_broadcast_takes_the_time_of_one_transfer():
    sizes = {"R": 8, "S": 10**12, "alpha": Fraction(1, 10**5), "omega": 10**9}
    assert float(formulas.time_broadcast_best(**sizes)) == pytest.approx(1000, rel=0.001)
    assert formulas.time_broadcast(k=1, **sizes) == pytest.approx(7000, rel=0.001)


def test_a_vendor_prints_both_directions():
    assert formulas.two_way_bandwidth(omega=450e9) == 900e9


def test_wrong_values_are_named():
    with pytest.raises(ValueError, match="time_all_reduce: R = 0 is not allowed"):
        formulas.time_all_reduce(R=0, S=1, alpha=1, omega=1)
    with pytest.raises(ValueError, match="omega must be above 0"):
        formulas.time_all_reduce(R=2, S=1, alpha=1, omega=0)
    with pytest.raises(ValueError, match="R must be at least 2"):
        formulas.steps_broadcast(R=1, k=4)

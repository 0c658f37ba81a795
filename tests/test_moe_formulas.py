"""Chapter 1's formulas: equal to the counts, to enumeration, and to what the papers print."""

import dataclasses
import itertools
import random
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalebook import published
from scalebook.formulas import moe as formulas
from scalebook.formulas.core import Formula
from scalebook.moe.parameters import count_parameters, flops_per_token

ALL = {name: value for name, value in vars(formulas).items() if isinstance(value, Formula)}
MIXTRAL = published.model("Mixtral-8x7B")
forall = settings(deadline=None, max_examples=60)
size = st.integers(1, 50)


def values_of(formula, shape):
    values = {"V": shape.vocabulary, "D": shape.d_model, "L": shape.layers, "H": shape.heads, "G": shape.kv_heads,
              "d_h": shape.head_dim, "E": shape.experts, "F": shape.d_ff_expert, "K": shape.top_k}
    return {variable.name: values[variable.name] for variable in formula.symbols}


def check_shape(shape):
    count = count_parameters(shape)
    assert formulas.total_parameters(**values_of(formulas.total_parameters, shape)) == count.total
    active = values_of(formulas.active_parameters, shape)
    assert formulas.active_parameters(**active) == count.active
    assert formulas.multiplying_parameters(**active) == count.active_without_input_embedding
    assert formulas.resting_share(**active) == Fraction(count.resting, count.total)
    experts = count.by_part["routed experts"]
    assert formulas.resting_expert_share(K=shape.top_k, E=shape.experts) == 1 - Fraction(experts.active, experts.total)


@pytest.mark.parametrize("name", ALL)
def test_each_formula_bears_its_own_name_a_left_side_and_a_source(name):
    assert ALL[name].name == name
    assert ALL[name].result
    assert "arXiv:" in ALL[name].source or "chapter 1" in ALL[name].source


@pytest.mark.parametrize("name", ["Mixtral-8x7B", "Mixtral-8x22B", "DBRX"])
def test_closed_forms_of_a_published_model_equal_its_count(name):
    check_shape(published.model(name))


@given(size, size, size, size, size, size, size, size, size)
@forall
def test_closed_forms_equal_the_count_of_any_mixtral_like_shape(V, D, L, G, groups, d_h, K, others, F):
    check_shape(dataclasses.replace(MIXTRAL, vocabulary=V, d_model=D, layers=L, kv_heads=G, heads=G * groups,
                                    head_dim=d_h, top_k=K, experts=K + others - 1, d_ff_expert=F))


def test_mixtrals_flops_and_resting_parameters_as_the_errata_print_them():
    values = values_of(formulas.active_parameters, MIXTRAL)
    N = formulas.multiplying_parameters(**values)
    assert N == 12_748_853_248
    assert round(formulas.flops_forward(N=N) / 1e9, 1) == 25.5
    assert round(formulas.flops_forward_backward(N=N) / 1e9) == 76
    assert round(formulas.flops_forward(N=formulas.multiplying_parameters(**(values | {"K": 8}))) / 1e9) == 93
    assert formulas.resting_expert_share(K=2, E=8) == Fraction(3, 4)
    assert round(float(100 * formulas.resting_share(**values)), 1) == 72.4


@given(st.integers(1, 8192))
@forall
def test_scores_and_router_equal_the_flop_count(s):
    counted = flops_per_token(MIXTRAL, s).by_part
    assert formulas.score_flops(L=32, s=s, H=32, d_h=128) == counted["attention scores"]
    assert 32 * formulas.router_flops(D=4096, E=8) == counted["router"]


@given(st.integers(1, 8), st.integers(1, 8))
@forall
def test_balanced_losses_are_the_loss_at_equal_loads(E, K):
    K = min(K, E)
    f, P = [Fraction(K, E)] * E, [Fraction(1, E)] * E
    loss = Fraction(1, 100) * E * sum(a * b for a, b in zip(f, P, strict=True))
    assert formulas.balanced_loss(alpha=Fraction(1, 100), K=K) == loss
    first = [Fraction(1, E)] * E
    assert formulas.balanced_loss_gshard(E=E) == sum(a * b for a, b in zip(first, P, strict=True)) / E


@pytest.mark.parametrize(("E", "K", "T"), [(1, 1, 3), (2, 1, 5), (4, 1, 4), (4, 2, 3), (5, 2, 3), (4, 3, 3), (3, 3, 2)])
def test_distinct_experts_equal_the_mean_over_all_choices(E, K, T):
    batches = list(itertools.product(itertools.combinations(range(E), K), repeat=T))
    touched = sum(len(set().union(*batch)) for batch in batches)
    assert formulas.distinct_experts(E=E, K=K, T=T) == Fraction(touched, len(batches))


def test_distinct_experts_equal_a_simulation_within_five_standard_errors():
    draw = random.Random(1)
    found = [len({expert for _ in range(8) for expert in draw.sample(range(64), 6)}) for _ in range(2000)]
    mean = sum(found) / 2000
    error = (sum((x - mean)**2 for x in found) / 1999 / 2000)**0.5
    assert abs(mean - formulas.distinct_experts(E=64, K=6, T=8)) < 5 * error < 0.5


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 300), st.fractions(0, 3, max_denominator=20))
@forall
def test_capacity_is_the_least_whole_number_that_holds_the_share(E, K, T, factor):
    K = min(K, E)
    held = formulas.expert_capacity(c=factor, K=K, T=T, E=E)
    assert held - 1 < factor * K * T / E <= held
    assert formulas.expert_capacity(c=1, K=K, T=T, E=E) * E >= K * T


@pytest.mark.parametrize(("E", "K", "R"), [(4, 1, 2), (4, 2, 2), (6, 2, 3), (6, 3, 2), (8, 2, 8), (4, 2, 1)])
def test_all_to_all_elements_equal_the_choices_that_leave_the_rank(E, K, R):
    tokens = list(itertools.combinations(range(E), K))  # each choice once: perfect balance
    for rank in range(R):
        leaving = sum(expert // (E // R) != rank for chosen in tokens for expert in chosen)
        assert formulas.all_to_all_elements(K=K, T=len(tokens), D=7, R=R, E=E) == 2 * 7 * leaving


@pytest.mark.parametrize("name", [name for name in ALL if {"K", "E"} <= {v.name for v in ALL[name].symbols}])
def test_more_choices_than_experts_are_refused(name):
    values = {v.name: 1 for v in ALL[name].symbols} | {"K": 2}
    with pytest.raises(ValueError, match="K must be at most E"):
        ALL[name](**values)

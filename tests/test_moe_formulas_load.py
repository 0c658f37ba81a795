"""The formulas of load and exchange, against counts, draws and the layer's own numbers."""

import math
from fractions import Fraction

import pytest
import torch

from scalebook import moe
from scalebook.formulas import moe as formulas


@pytest.mark.parametrize(("factor", "tokens"), [(1, 64), (1.25, 64), (2, 8), (8, 16)])
def test_a_collapsed_router_drops_what_the_formula_says(factor, tokens):
    one_expert = torch.zeros(tokens, 1, dtype=torch.long)
    plan = moe.dispatch(one_expert, torch.ones(tokens, 1), 8, moe.capacity(tokens, 8, factor=factor))
    assert plan.dropped_share == formulas.dropped_share_collapsed(c=factor, E=8)


def test_more_capacity_than_experts_is_refused():
    with pytest.raises(ValueError, match="c must be at most E"):
        formulas.dropped_share_collapsed(c=9, E=8)


def exact_dropped_share(tokens, experts, k):
    """The expectation, from the binomial distribution of an expert's load, at a capacity of exactly the mean."""
    share, mean = Fraction(k, experts), Fraction(tokens * k, experts)
    over = sum(math.comb(tokens, n) * share**n * (1 - share) ** (tokens - n) * (n - mean)
               for n in range(math.ceil(mean), tokens + 1))
    return float(over / mean)


@pytest.mark.parametrize(("tokens", "experts", "k"), [(256, 8, 1), (256, 8, 2), (512, 16, 4), (512, 4, 3)])
def test_the_share_that_balance_drops_is_near_the_binomial_expectation(tokens, experts, k):
    estimate = float(formulas.dropped_share_balanced(K=k, E=experts, T=tokens))
    assert estimate == pytest.approx(exact_dropped_share(tokens, experts, k), rel=0.02)


def test_the_share_that_balance_drops_needs_tokens_and_at_most_all_experts():
    assert formulas.dropped_share_balanced(K=4, E=4, T=10) == 0
    with pytest.raises(ValueError, match="T must be at least 1"):
        formulas.dropped_share_balanced(K=2, E=8, T=0)
    with pytest.raises(ValueError, match="K must be at most E"):
        formulas.dropped_share_balanced(K=9, E=8, T=10)


@pytest.mark.parametrize(("tokens", "width", "k"), [(64, 128, 1), (4096, 512, 8)])
def test_exchange_over_compute_is_bytes_over_the_link_and_flops_over_the_rate(tokens, width, k):
    hidden, rate, link, ranks = 96, 3e12, 2e10, 10**9
    sent = formulas.all_to_all_elements(K=k, T=tokens, D=width, R=ranks, E=ranks) * 2 / link
    computed = tokens * k * 2 * 3 * width * hidden / rate
    found = formulas.exchange_over_compute(epsilon=2, rho=rate, F=hidden, omega=link)
    assert float(found) == pytest.approx(float(sent / computed), rel=1e-6)


def test_a_link_that_sends_nothing_is_refused():
    with pytest.raises(ValueError, match="omega must be above 0"):
        formulas.exchange_over_compute(epsilon=2, rho=1e12, F=64, omega=0)

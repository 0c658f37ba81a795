"""The numbers for how even a load is, against their definitions and against other libraries' functions."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from scalebook.moe import balance, capacity, dispatch

HISTOGRAMS = arrays.arrays(np.int64, st.integers(2, 9), elements=st.integers(0, 1000)).filter(lambda c: c.sum() > 0)
property_test = settings(deadline=None, max_examples=60)


@property_test
@given(HISTOGRAMS)
def test_entropy_is_that_of_torch_over_its_largest_value(counts):
    torch_entropy = torch.distributions.Categorical(probs=torch.tensor(counts, dtype=torch.float64)).entropy()
    assert balance.entropy(counts) == pytest.approx(torch_entropy.item() / math.log(len(counts)), abs=1e-9)


@property_test
@given(HISTOGRAMS)
def test_variation_and_slowest_rank_keep_their_bounds(counts):
    experts = len(counts)
    assert 0 <= balance.variation(counts) <= math.sqrt(experts - 1) + 1e-9
    assert 1 - 1e-9 <= balance.slowest_rank(counts) <= experts + 1e-9
    assert balance.variation(counts) == pytest.approx(torch.tensor(counts).double().std(correction=0).item()
                                                      / counts.mean())


@property_test
@given(HISTOGRAMS, st.sampled_from([1.0, 1.25, 2.0]))
def test_dropped_share_is_what_dispatch_drops_but_for_the_rounding_of_capacity(counts, factor):
    experts_TK = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts)).unsqueeze(-1)
    tokens = len(experts_TK)
    limit = capacity(tokens, len(counts), 1, factor)
    plan = dispatch(experts_TK, torch.ones(tokens, 1), len(counts), limit)
    dropped = plan.dropped_TK.double().mean().item()
    assert dropped <= balance.dropped_share(counts, factor) + 1e-9
    assert balance.dropped_share(counts, factor) - dropped < len(counts) / tokens


@pytest.mark.parametrize("experts", [2, 8, 64])
def test_at_balance_and_at_collapse_the_numbers_are_the_known_ones(experts):
    even, collapsed = [5] * experts, [5] + [0] * (experts - 1)
    for counts, expected in ((even, (1, 0, 1, 0)), (collapsed, (0, math.sqrt(experts - 1), experts, experts - 1))):
        found = (balance.entropy(counts), balance.variation(counts), balance.slowest_rank(counts),
                 balance.idle_experts(counts))
        assert found == pytest.approx(expected)


def test_leading_dimensions_are_kept():
    counts = np.arange(1, 25).reshape(2, 3, 4)
    assert balance.load_shares(counts).sum(axis=-1) == pytest.approx(np.ones((2, 3)))
    for function in (balance.entropy, balance.variation, balance.slowest_rank, balance.idle_experts):
        assert function(counts).shape == (2, 3)
        assert function(counts)[1, 2] == pytest.approx(function(counts[1, 2]))


@pytest.mark.parametrize("counts", [[], [1, -1], [math.nan, 1], 3, [[0, 0], [1, 2]], "abc", {1: 2}, [[1], [2, 3]],
                                    [1j, 2], [10**400, 1], torch.ones(2, requires_grad=True),
                                    torch.ones(2, dtype=torch.bfloat16)])
def test_counts_that_are_no_load_are_refused(counts):
    with pytest.raises(ValueError, match="counts"):
        balance.load_shares(counts)


def test_the_ratio_of_entropy_is_refused_for_one_expert():
    with pytest.raises(ValueError, match="one expert"):
        balance.entropy([4])


def test_counts_too_large_to_be_added_up_have_shares_all_the_same():
    assert balance.load_shares([1e308, 1e308]).tolist() == [0.5, 0.5]
    assert balance.entropy([1] * 5) == 1


@pytest.mark.parametrize("factor", [0, -1, math.nan, math.inf, None, "1", True, 1j, [1.0]])
def test_a_capacity_factor_that_is_none_is_refused(factor):
    with pytest.raises(ValueError, match="capacity_factor"):
        balance.dropped_share([1, 2], factor)

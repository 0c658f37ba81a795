"""Capacity and dispatch: against loops over the choices, on every edge, and the shares that are dropped."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scalebook import moe


@pytest.mark.parametrize(("arguments", "want"), [
    ((8, 4), 2), ((10, 4, 1, 1.0), 3), ((6, 3, 1, 1.5), 3), ((100, 8, 2, 1.25), 32), ((0, 8), 0), ((10, 1, 1, 1.1), 11),
])
def test_capacity_is_the_formula_rounded_up(arguments, want):
    assert moe.capacity(*arguments) == want


@pytest.mark.parametrize(("arguments", "name"), [
    ((-1, 4), "tokens"), ((True, 4), "tokens"), ((4, 0), "experts"), ((4, 2, 3), "k"), ((4, 2, 0), "k"),
    ((4, 2, 1, 0), "factor"), ((4, 2, 1, math.nan), "factor"), ((4, 2, 1, math.inf), "factor"),
])
def test_a_capacity_that_cannot_be_is_named(arguments, name):
    with pytest.raises(ValueError, match=f"^{name} = .* is not allowed"):
        moe.capacity(*arguments)


def loop_over_choices(experts_TK, experts, limit, priority):
    """Each expert's (token, choice) pairs, served one at a time."""
    tokens, k = len(experts_TK), len(experts_TK[0])
    queue = [(t, c) for t in range(tokens) for c in range(k)]
    if priority == "choice":
        queue.sort(key=lambda pair: (pair[1], pair[0]))
    rows = [[] for _ in range(experts)]
    for t, c in queue:
        e = experts_TK[t][c]
        if e >= 0 and (limit is None or len(rows[e]) < limit):
            rows[e].append((t, c))
    return rows


@settings(deadline=None, max_examples=80)
@given(st.integers(1, 12), st.integers(1, 5), st.sampled_from(["choice", "token"]), st.none() | st.integers(0, 6),
       st.data())
def test_dispatch_equals_a_loop_over_the_choices(tokens, experts, priority, limit, data):
    k = data.draw(st.integers(1, experts))
    rows_of = [data.draw(st.permutations(range(experts)))[:k] if data.draw(st.integers(0, 4)) else [-1] * k
               for _ in range(tokens)]
    experts_TK = torch.tensor(rows_of)
    weights_TK = torch.arange(tokens * k, dtype=torch.float64).view(tokens, k)
    plan = moe.dispatch(experts_TK, weights_TK, experts, limit, priority=priority)
    want = loop_over_choices(rows_of, experts, limit, priority)
    flat = [pair for rows in want for pair in rows]
    assert plan.counts == [len(rows) for rows in want]
    assert plan.offsets == [sum(plan.counts[:e]) for e in range(experts + 1)]
    assert plan.tokens_N.tolist() == [t for t, _ in flat]
    assert plan.weights_N.tolist() == [t * k + c for t, c in flat]
    dropped = {(t, c) for t in range(tokens) for c in range(k) if rows_of[t][c] >= 0} - set(flat)
    assert {tuple(pair) for pair in plan.dropped_TK.nonzero().tolist()} == dropped


def test_the_priority_decides_who_is_dropped():
    experts_TK, weights_TK = torch.tensor([[1, 0], [0, 1]]), torch.ones(2, 2)
    assert moe.dispatch(experts_TK, weights_TK, 2, 1).dropped_TK.tolist() == [[False, True], [False, True]]
    by_token = moe.dispatch(experts_TK, weights_TK, 2, 1, priority="token")
    assert by_token.dropped_TK.tolist() == [[False, False], [True, True]]


def test_zero_tokens_are_dispatched_nowhere():
    plan = moe.dispatch(torch.empty(0, 2, dtype=torch.int64), torch.empty(0, 2), 4, 3)
    assert plan.counts == [0, 0, 0, 0]
    assert len(plan.tokens_N) == len(plan.weights_N) == 0
    assert plan.dropped_TK.shape == (0, 2)


@pytest.mark.parametrize(("change", "message"), [
    ({"weights_TK": torch.ones(2, 1)}, r"weights_TK has the shape \(2, 1\), so K = 1; but experts_TK has"),
    ({"experts_TK": torch.tensor([[0, 4], [1, 0]])}, "experts_TK holds 0 to 4; an index must be from 0 to 3"),
    ({"experts_TK": torch.tensor([[0, -2], [1, 0]])}, "experts_TK holds -2 to 1"),
    ({"experts": 0}, "experts = 0 is not allowed"), ({"experts": True}, "experts = True"),
    ({"capacity": -1}, "capacity = -1 is not allowed"), ({"capacity": 1.5}, "capacity = 1.5 is not allowed"),
    ({"priority": "random"}, "priority = 'random' is not allowed"),
])
def test_a_dispatch_that_cannot_be_is_named(change, message):
    arguments = {"experts_TK": torch.tensor([[0, 1], [1, 0]]), "weights_TK": torch.ones(2, 2), "experts": 4, **change}
    with pytest.raises(ValueError, match=message):
        moe.dispatch(**arguments)


# What capacity drops.


def test_the_shares_of_dropped_choices_and_lost_tokens_are_counted():
    """Expert 0 takes two: of four first choices two stay, so two tokens lose their first, one of them all it had."""
    experts_TK = torch.tensor([[0, 1], [0, 1], [0, 1], [0, -1], [-1, -1]])
    plan = moe.dispatch(experts_TK, torch.ones(5, 2), 2, capacity=2)
    assert plan.dropped_share == 3 / 7  # two of expert 0, one of expert 1
    assert plan.lost_share == 2 / 4


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 12), st.integers(1, 5), st.none() | st.integers(0, 6), st.integers(0, 10**6), st.data())
def test_the_shares_are_those_of_a_loop(tokens, experts, capacity, seed, data):
    k = data.draw(st.integers(1, experts))
    experts_TK = torch.randint(-1, experts, (tokens, k), generator=torch.Generator().manual_seed(seed))
    plan = moe.dispatch(experts_TK, torch.ones(tokens, k), experts, capacity)
    wanted = [[e for e in row if e >= 0] for row in experts_TK.tolist()]
    rows = plan.tokens_N.tolist()
    choices, real = sum(map(len, wanted)), [t for t in range(tokens) if wanted[t]]
    lost = [t for t in real if t not in rows]
    assert plan.dropped_share == pytest.approx((choices - len(rows)) / choices if choices else 0)
    assert plan.lost_share == pytest.approx(len(lost) / len(real) if real else 0)
    assert capacity is not None or plan.dropped_share == plan.lost_share == 0

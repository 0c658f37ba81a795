"""The collectives made of messages give what NumPy says, for every size and dtype, and send what they say they send."""

import doctest

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scalebook import collectives, ranks

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int16,
          torch.int8, torch.uint8, torch.complex64)



def numbers(seed, rank, lengths):
    """Small whole numbers, exact in every dtype and so are their sums: an array for each length."""
    drawn = np.random.default_rng([seed, rank])
    return [drawn.integers(0, 6, length) for length in lengths]


def run_cases(rank, size, cases):
    """Every collective on the data of each case; whole numbers come back as such."""
    def plain(x):
        if isinstance(x, list):
            return [plain(part) for part in x]
        return (x.real if x.is_complex() else x).long().numpy()

    found = []
    for seed, lengths, dtype, source, pieces in cases:
        parts = [torch.from_numpy(part).to(dtype) for part in numbers(seed, rank, lengths)]
        whole, before = torch.cat(parts), [part.clone() for part in parts]
        out = (
            collectives.ring_reduce_scatter(parts), collectives.ring_all_gather(parts[rank], like=parts),
            collectives.ring_all_reduce(whole), collectives.ring_broadcast(whole, source, pieces),
            collectives.all_to_all(parts),
        )
        assert all(map(torch.equal, parts, before))
        assert {part.dtype for x in out for part in (x if isinstance(x, list) else [x])} == {dtype}
        found.append([plain(x) for x in out])
    return found


@st.composite
def worlds(draw):
    """A number of ranks, and cases: a seed, the length of each rank's part, a dtype, a source, a number of pieces."""
    size = draw(st.integers(1, 4))
    case = st.tuples(st.integers(0, 1000), st.lists(st.integers(0, 9), min_size=size, max_size=size),
                     st.sampled_from(DTYPES), st.integers(0, size - 1), st.integers(1, 12))
    return size, draw(st.lists(case, min_size=5, max_size=20))


@settings(deadline=None, max_examples=12)
@given(worlds())
def test_every_collective_gives_what_numpy_says_for_parts_of_any_size(world):
    size, cases = world
    results = ranks.run(run_cases, size, cases)
    for case, (seed, lengths, _, source, _) in enumerate(cases):
        data = [numbers(seed, rank, lengths) for rank in range(size)]
        total = [sum(parts) for parts in zip(*data, strict=True)]
        for rank in range(size):
            scattered, gathered, reduced, sent, exchanged = results[rank][case]
            np.testing.assert_array_equal(scattered, total[rank])
            np.testing.assert_array_equal(np.concatenate(gathered), np.concatenate([d[r] for r, d in enumerate(data)]))
            np.testing.assert_array_equal(reduced, np.concatenate(total))
            np.testing.assert_array_equal(sent, np.concatenate(data[source]))
            np.testing.assert_array_equal(np.concatenate(exchanged), np.concatenate([d[rank] for d in data]))


# What else is said of them


def facts(rank, size, elements):
    """What a rank sends and gets in each, for a tensor of any length, and a few odd tensors."""
    drawn = torch.Generator().manual_seed(rank)
    x = torch.randn(elements, generator=drawn)
    with ranks.count() as reduce_traffic:
        reduced = collectives.ring_all_reduce(x)
    with ranks.count() as broadcast_traffic:
        collectives.ring_broadcast(x, pieces=5)
    table = torch.arange(12.0).view(3, 4) + rank
    odd = {
        "transposed": collectives.ring_all_reduce(table.T),
        "broadcast, transposed": collectives.ring_broadcast(table.T, source=size - 1),
        "all-to-all of columns": collectives.all_to_all([table.T[:, :2]] * size)[size - 1],
        "no dimension": collectives.ring_all_reduce(torch.tensor(rank)),
        "empty": collectives.ring_all_reduce(torch.empty(0, 3)),
        "bool": collectives.ring_all_reduce(torch.tensor([rank == 0, rank == size - 1, False])),
        "of a graph": collectives.ring_all_reduce(torch.ones(3, requires_grad=True) * 2),
        "shorter than the ring": collectives.ring_all_reduce(torch.ones(1)),
    }
    shares = len({t.untyped_storage().data_ptr() for t in (x, reduced, *collectives.ring_all_gather(x))}) < 2 + size
    return reduced, reduce_traffic, broadcast_traffic, odd, shares


@pytest.fixture(scope="module", params=[1, 2, 3, 4])
def told(request):
    return request.param, ranks.run(facts, request.param, 1001)


def part_sizes(elements, size):
    return [len(part) for part in np.array_split(np.arange(elements), size)]


def test_all_ranks_get_the_same_bits(told):
    size, results = told
    assert all(torch.equal(result[0], results[0][0]) for result in results)
    exact = sum(torch.randn(1001, generator=torch.Generator().manual_seed(rank)).double() for rank in range(size))
    assert (results[0][0] - exact).abs().max() < 1e-6


def test_a_ring_all_reduce_sends_all_parts_twice_but_one_and_the_next(told):
    """2 (N-1) messages; in the reduce-scatter all but the rank's own part, in the all-gather all but the next one's."""
    size, results = told
    sizes = part_sizes(1001, size)
    for rank, (_, traffic, *_) in enumerate(results):
        kept = sizes[rank] + sizes[(rank + 1) % size]
        assert traffic.calls["send"] == traffic.calls["recv"] == 2 * (size - 1)
        assert traffic.bytes["send"] == 4 * (2 * 1001 - kept)
        assert set(traffic.calls) <= {"send", "recv"}


def last_arrival(logs):
    """In which step the last message arrives, if a link carries one message a step and a rank waits for its receives.

    `logs[d]` is the order of calls of the rank at distance d from the source.
    """
    arrivals = []  # of each message over the link before this rank
    for log in logs:
        coming, now, free, leaving = iter(arrivals), 0, 0, []
        for kind, _, _ in log:
            if kind == "recv":
                now = max(now, next(coming))
            else:
                free = max(now, free) + 1
                leaving.append(free)
        arrivals = leaving or [now]
    return arrivals[-1]


def test_a_broadcast_in_pieces_is_a_pipeline(told):
    size, results = told
    logs = [result[2].log for result in results]
    if size > 1:
        assert last_arrival(logs) == size - 2 + 5
        unpiped = [sorted(log, key=lambda call: call[0]) for log in logs]  # all receives, then all sends
        assert last_arrival(unpiped) == (size - 1) * 5
    assert [result[2].calls["send"] for result in results] == [5] * (size - 1) + [0]
    assert [result[2].bytes["send"] for result in results] == [4004] * (size - 1) + [0]


def test_tensors_of_any_layout_shape_and_dtype_are_taken(told):
    size, results = told
    table = np.arange(12.0).reshape(3, 4)
    for *_, odd, shares in results:
        assert odd["transposed"].tolist() == (size * table + size * (size - 1) / 2).T.tolist()
        assert odd["broadcast, transposed"].tolist() == (table.T + size - 1).tolist()
        assert odd["all-to-all of columns"].tolist() == (table.T[:, :2] + size - 1).tolist()
        assert odd["no dimension"].item() == size * (size - 1) / 2
        assert odd["no dimension"].shape == ()
        assert odd["empty"].shape == (0, 3)
        assert odd["bool"].tolist() == [True, True, False]
        assert odd["of a graph"].tolist() == [2.0 * size] * 3
        assert not odd["of a graph"].requires_grad
        assert odd["shorter than the ring"].tolist() == [size]
        assert not shares


def complaints(rank, size):
    """What is said about arguments that are not allowed. They are refused before a message is sent."""
    x, found = torch.ones(2), {}
    calls = {
        "few parts": lambda: collectives.ring_reduce_scatter([x]),
        "few parts to exchange": lambda: collectives.all_to_all([x] * 3),
        "few shapes": lambda: collectives.ring_all_gather(x, like=[x]),
        "another shape": lambda: collectives.ring_all_gather(x, like=[torch.ones(3)] * size),
        "another shape to exchange": lambda: collectives.all_to_all([x] * size, like=[torch.ones(3)] * size),
        "no such source": lambda: collectives.ring_broadcast(x, source=size),
        "source of another kind": lambda: collectives.ring_broadcast(x, source=True),
        "no pieces": lambda: collectives.ring_broadcast(x, pieces=0),
    }
    for name, call in calls.items():
        try:
            call()
        except ValueError as error:
            found[name] = str(error)
    return found


def test_what_cannot_be_is_named():
    for rank, said in enumerate(ranks.run(complaints, 2)):
        assert said == {
            "few parts": "parts has 1 tensors; it must have 2, one for each rank",
            "few parts to exchange": "parts has 3 tensors; it must have 2, one for each rank",
            "few shapes": "like has 1 tensors; it must have 2, one for each rank",
            "another shape": f"like[{rank}] has shape (3,); it must be that of x, (2,)",
            "another shape to exchange": f"like[{rank}] has shape (3,); it must be that of parts[{rank}], (2,)",
            "no such source": "source = 2 is not allowed; it must be a whole number, from 0 to 1",
            "source of another kind": "source = True is not allowed; it must be a whole number, from 0 to 1",
            "no pieces": "pieces = 0 is not allowed; it must be a whole number, at least 1",
        }


def test_the_examples_in_the_docstrings_hold():
    result = doctest.testmod(collectives)
    assert result.attempted == 10
    assert result.failed == 0

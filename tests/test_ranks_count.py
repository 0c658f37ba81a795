"""What `count` counts equals what arithmetic says, for programs whose traffic is known."""

import pickle
from collections import Counter

import pytest
import torch
from traffic_programs import count_all, log_all_to_alls

from scalebook import ranks

N = 4
WEIGHTS = 2 * 8 * 16 * 4  # bytes of the two layers, float32
EXPECTED = {
    "single_tensor": {"all_gather": (1, 24), "reduce_scatter": (1, 24 * N), "all_to_all": (1, 8 * N)},
    "asynchronous": {"all_reduce": (3, 3 * 80)},
    "point_to_point": {"send": (3, 30), "recv": (3, 30)},
    "functional_collectives": {
        "all_reduce": (1, 24), "all_gather": (2, 48), "reduce_scatter": (2, 2 * 24 * N), "all_to_all": (1, 8 * N),
    },
    "coalesced": {"all_reduce": (1, 28)},
    "tensor_parallel": {"all_reduce": (2, 2 * 4 * 8 * 4)},
    "redistribute": {"all_gather": (1, 2 * 4)},
    # Forward and backward gather each layer's shard; the last layer is still there when the backward begins.
    "fully_sharded": {"all_gather": (4, 2 * WEIGHTS // N), "reduce_scatter": (2, WEIGHTS)},
    "data_parallel": {"all_reduce": (1, WEIGHTS)},
}


@pytest.fixture(scope="module")
def counted():
    """What each rank counted in each program."""
    return ranks.run(count_all, N)


@pytest.mark.parametrize("name", EXPECTED)
def test_the_traffic_of_a_known_program_is_counted_exactly(counted, name):
    assert [traffic[name] for traffic in counted] == [EXPECTED[name]] * N


def test_an_all_to_all_with_splits_is_counted_with_all_that_each_rank_hands_over(counted):
    for rank, traffic in enumerate(counted):
        assert traffic["uneven_all_to_all"] == {"all_to_all": (2, 2 * 12 * (4 * rank + 6))}
        assert traffic["pair_all_to_all"] == {"all_to_all": (1, 16)}


def test_every_plain_collective_is_counted_with_what_the_rank_hands_over(counted):
    everywhere = {
        "all_reduce": (1, 24), "broadcast": (1, 24), "reduce": (1, 24), "all_gather": (1, 24),
        "reduce_scatter": (1, 24 * N), "all_to_all": (1, 8 * N), "gather": (1, 24), "barrier": (1, 0),
    }
    for rank, traffic in enumerate(counted):
        assert traffic["plain"] == {**everywhere, "scatter": (1, 24 * N if rank == 0 else 0)}


def test_what_a_rank_hands_to_itself_in_an_all_to_all_is_told_apart():
    """Rank s sends s + d rows of 12 bytes to rank d, so 2 s of its 4 s + 6 rows stay."""
    for rank, logged in enumerate(ranks.run(log_all_to_alls, N)):
        sizes = 12 * (4 * rank + 6), 12 * 2 * rank
        assert logged["uneven_all_to_all"] == ([("all_to_all", *sizes)] * 2, 2 * (sizes[0] - sizes[1]))
        assert logged["pair_all_to_all"] == ([("all_to_all", 16, 12)], 4)
        for name in ("plain", "single_tensor", "functional_collectives"):  # equal parts of 8 bytes
            assert logged[name] == ([("all_to_all", 8 * N, 8)], 8 * (N - 1))


def test_the_log_lists_the_calls_in_order():
    traffic = ranks.Traffic()
    traffic.add("send", 8)
    traffic.add("all_to_all", 12, 4)
    traffic.add("barrier")
    assert traffic.log == [("send", 8, 0), ("all_to_all", 12, 4), ("barrier", 0, 0)]
    assert traffic.ring_bytes(3) == {"send": 8, "all_to_all": 8}


def test_all_gather_and_reduce_scatter_in_a_ring_send_what_one_all_reduce_sends():
    parts = ranks.Traffic(bytes=Counter(all_gather=100, reduce_scatter=400)).ring_bytes(4)
    whole = ranks.Traffic(bytes=Counter(all_reduce=400)).ring_bytes(4)
    assert parts == {"reduce_scatter": 300, "all_gather": 300}
    assert whole == {"all_reduce": 600}


def test_one_rank_sends_nothing_in_a_ring():
    alone = ranks.Traffic(bytes=Counter(all_reduce=8, all_to_all=8), kept=Counter(all_to_all=8))
    assert alone.ring_bytes(1) == {"all_reduce": 0, "all_to_all": 0}


@pytest.mark.parametrize("number", [0, True, 2.0])
def test_a_ring_of_no_ranks_is_refused(number):
    with pytest.raises(ValueError, match=r"ranks = .* at least 1"):
        ranks.Traffic().ring_bytes(number)


def test_a_count_survives_the_way_to_the_parent():
    traffic = ranks.Traffic(Counter(send=2), Counter(send=8))
    assert pickle.loads(pickle.dumps(traffic)) == traffic


def test_every_operation_that_pytorch_has_is_known_or_refused():
    """A new operation must be put into the table; until then `count` raises, and this test names it."""
    known = {f"{space}::{name}" for space, names in ranks.traffic.OPERATIONS.items() for name in names}
    known |= {f"{space}::{name}" for space in ranks.traffic.OPERATIONS for name in ranks.traffic.SILENT}
    existing = {
        name for name in torch._C._dispatch_get_all_op_names()
        if name.split("::")[0] in ranks.traffic.OPERATIONS and "." not in name
    }
    assert existing - known <= {"_c10d_functional::batch_p2p_ops"}

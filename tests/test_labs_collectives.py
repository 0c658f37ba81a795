"""Collectives run for real move what NumPy says; the ring beneath them adds each number once; ours equal PyTorch's."""

import doctest
import itertools
import subprocess
import sys

import pytest
import torch

from scalebook import ranks
from scalebook.labs import collective_comparison
from scalebook.labs import collectives as lab

N = 4


def all_of_rank(rank, size):
    """Everything of the labs, on the same processes."""
    return lab.move_rank(rank, size), lab.step_rank(rank, size), collective_comparison.compare_rank(rank, size, 12)


@pytest.fixture(scope="module", params=[1, 2, 3, 4])
def told(request):
    """The number of ranks, the movements, the steps of the ring, the comparisons."""
    moves, steps, compared = zip(*ranks.run(all_of_rank, request.param), strict=True)
    beside = {key: collective_comparison.beside(key[0], [result[key] for result in compared]) for key in compared[0]}
    return request.param, lab.gather_moves(moves), lab.gather_steps(steps), beside


@pytest.mark.parametrize("module", [lab, collective_comparison], ids=lambda module: module.__name__)
def test_the_examples_in_the_docstrings_hold(module):
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


# What each collective does


def test_each_collective_leaves_what_numpy_says(told):
    size, moves, _, _ = told
    assert tuple(moves) == lab.COLLECTIVES
    for name, moved in moves.items():
        assert len(moved.before) == len(moved.after) == size
        assert moved.after == lab.predict(name, moved.before)


def test_the_predictions_are_those_of_the_definitions():
    """By hand, for two ranks."""
    before = {name: lab.data_before(name, 2) for name in lab.COLLECTIVES}
    assert before["all-gather"] == before["gather"] == ((10,), (20,))
    assert before["broadcast"] == before["scatter"] == ((10, 11), ())
    assert {name: lab.predict(name, rows) for name, rows in before.items()} == {
        "all-reduce": ((30, 32), (30, 32)), "reduce-scatter": ((30,), (32,)), "all-gather": ((10, 20), (10, 20)),
        "broadcast": ((10, 11), (10, 11)), "scatter": ((10,), (11,)), "gather": ((10, 20), ()),
        "all-to-all": ((10, 20), (11, 21)), "send to the next": ((20, 21), (10, 11)),
    }


def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather(told):
    size, moves, _, _ = told
    scattered = moves["reduce-scatter"].after
    assert lab.predict("all-gather", scattered) == moves["all-reduce"].after
    assert all(len(row) == 1 for row in scattered)
    assert size == len(scattered)


# The ring


def test_every_number_is_added_once_and_reaches_all(told):
    size, _, steps, _ = told
    everybody = tuple(range(size))
    assert [state.step for state in steps] == list(range(2 * size - 1))
    assert steps[0].holds == tuple(((rank,),) * size for rank in range(size))
    assert steps[-1].holds == ((everybody,) * size,) * size
    after_reduce_scatter = steps[size - 1].holds
    assert all(after_reduce_scatter[rank][rank] == everybody for rank in range(size))


def test_a_partial_sum_grows_by_one_rank_in_each_step_and_then_travels_whole(told):
    size, _, steps, _ = told
    for before, after in itertools.pairwise(steps):
        reducing = after.step < size
        assert after.phase == ("reduce-scatter" if reducing else "all-gather")
        assert sorted(after.sent) == list(range(size))  # every link carries another part
        for rank in range(size):
            sender = (rank - 1) % size
            part = after.sent[sender]
            arrived = before.holds[sender][part]
            assert len(arrived) == min(after.step, size)
            assert after.holds[rank][part] == (tuple(sorted({*arrived, rank})) if reducing else arrived)
            assert all(after.holds[rank][p] == before.holds[rank][p] for p in range(size) if p != part)


def test_a_sum_with_a_number_twice_is_refused():
    with pytest.raises(RuntimeError, match="after step 3 a rank's numbers are in a sum twice"):
        lab.read_state(3, [[[1, 0], [2, 1]], [[0, 1], [0, 1]]])


# Ours beside PyTorch's


def test_ours_equal_pytorchs_exactly_for_whole_numbers_and_to_rounding_for_floats(told):
    size, _, _, beside = told
    assert len(beside) == 5 * len(collective_comparison.DTYPES)
    for (name, dtype), found in beside.items():
        adds = name in ("reduce-scatter", "all-reduce") and dtype.is_floating_point
        assert found.gap <= (4 * size * torch.finfo(dtype).eps if adds else 0.0)
        if size <= 2:  # the order of two terms does not matter
            assert found.gap == 0


def test_all_ranks_have_the_same_bits_where_they_should(told):
    _, _, _, beside = told
    assert all(found.alike for (name, _), found in beside.items() if name in ("all-reduce", "all-gather", "broadcast"))


def test_messages_and_bytes_are_those_of_the_formula(told):
    size, _, _, beside = told
    steps = {"reduce-scatter": size - 1, "all-gather": size - 1, "all-to-all": size - 1, "all-reduce": 2 * (size - 1)}
    for (name, dtype), found in beside.items():
        if name == "broadcast":
            assert found.messages == (8,) * (size - 1) + (0,)
            assert found.bytes == (12 * dtype.itemsize,) * (size - 1) + (0,)
        else:
            assert found.messages == (steps[name],) * size
            assert found.bytes == found.ring_bytes
    assert sum(beside["all-reduce", torch.int64].bytes) == 2 * (size - 1) * 12 * 8


def test_a_result_that_differs_is_seen():
    same, other = torch.tensor([4.0, 2.0]), torch.tensor([4.0, 1.0])
    none = ranks.Traffic()
    none.add("all_reduce", 8)
    found = collective_comparison.beside("all-reduce", [(same, same, none, none), (other, same, none, none)])
    assert found.gap == 0.25
    assert not found.alike


# The edges


@pytest.mark.parametrize("size", [0, -1, True, 2.0, "2"])
def test_a_size_that_is_none_is_named(size):
    for each in (lab.move_data, lab.ring_steps, collective_comparison.compare):
        with pytest.raises(ValueError, match=f"size = {size!r} is not allowed"):
            each(size)


@pytest.mark.parametrize("elements", [0, 6, True, 8.0])
def test_elements_that_do_not_divide_are_named(elements):
    with pytest.raises(ValueError, match=f"elements = {elements!r} is not allowed; it must be a multiple of size = 4"):
        collective_comparison.compare(4, elements)


def test_an_unknown_collective_is_named():
    with pytest.raises(ValueError, match="name = 'reduce' is not allowed; it must be one of"):
        lab.data_before("reduce", 2)


def test_the_lab_runs_by_itself_and_under_torchrun(tmp_path):
    arguments = ["-m", "scalebook.labs.collectives", "--ranks", "2"]
    # torchrun leaves a folder of logs behind, so it is told where; --standalone takes a free port.
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--log-dir", str(tmp_path), "--nproc-per-node", "2"]
    alone, started = (
        subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=100, check=True)
        for command in (arguments, [*torchrun, *arguments])
    )
    assert alone.stdout == started.stdout
    assert alone.stdout.count("as NumPy says") == len(lab.COLLECTIVES)
    assert "NOT" not in alone.stdout
    assert "rank 1: 1 | 0+1" in alone.stdout
    assert "Warning" not in alone.stderr + started.stderr


def test_bad_input_on_the_command_line_is_told_without_a_traceback(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["lab", "--ranks", "0"])
    with pytest.raises(SystemExit) as ended:
        lab.main()
    assert ended.value.code == 2
    assert "size = 0 is not allowed" in capsys.readouterr().err

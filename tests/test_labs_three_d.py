"""Three kinds of parallelism at once, on real processes: the training of one process, and the messages predicted."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch

from scalebook import ranks
from scalebook.labs import three_d as lab
from scalebook.labs.three_d_task import AXES, Task
from scalebook.mesh import LLAMA_3, RankGrid

TOLERANCE = 1e-10  # of float64
CUBE = Task()


@pytest.fixture(scope="module")
def oracle():
    return lab.single_process(CUBE)


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "sequence parallel"])
def run(request):
    return lab.train(replace(CUBE, sequence_parallel=request.param))


def test_eight_ranks_as_2x2x2_train_to_the_parameters_of_one_process(run, oracle):
    losses, parameters = oracle
    assert run.difference(parameters) < TOLERANCE
    assert run.losses == pytest.approx(losses, abs=TOLERANCE)
    assert sum(p.numel() for p in run.parameters(0).values()) == sum(p.numel() for p in parameters.values())


def test_the_oracle_learns_so_equality_says_something(oracle):
    losses, parameters = oracle
    before = CUBE.model().state_dict()
    assert max((parameters[name] - before[name]).abs().max().item() for name in before) > 0.01
    assert len(set(losses)) == CUBE.steps


def test_bytes_along_each_axis_are_those_of_the_formulas_on_every_rank(run):
    for rank in range(8):
        for axis in AXES:
            assert run.sent_bytes(rank, axis) == run.formula_bytes(rank, axis) > 0


def test_each_axis_carries_its_own_collectives_and_no_other(run):
    layers, batches, sequence = CUBE.shape.layers // 2, CUBE.microbatches, run.task.sequence_parallel
    for rank, one in enumerate(run.ranks):
        last = one.place["pp"] == 1
        regions = batches * (4 * layers + 1)  # f and g of two regions a layer, and one end of the model
        loss, copies = 2 * batches * last, 1 * sequence
        expected = ({"all_gather": regions, "all_reduce": loss + copies, "reduce_scatter": regions} if sequence
                    else {"all_reduce": regions + loss})
        assert run.calls(rank, "tp") == expected
        assert run.calls(rank, "pp") == {"recv": batches, "send": batches}
        assert run.calls(rank, "dp") == {"all_gather": len(one.buckets), "reduce_scatter": len(one.buckets)}


def test_data_parallel_messages_do_not_grow_with_the_micro_batches_and_the_others_do():
    few, many = (lab.train(replace(CUBE, steps=1, microbatches=number)) for number in (2, 4))
    for rank in range(8):
        assert many.sent_bytes(rank, "dp") == few.sent_bytes(rank, "dp")
        for axis in ("tp", "pp"):
            assert many.sent_bytes(rank, axis) == 2 * few.sent_bytes(rank, axis)


@pytest.mark.parametrize("grid", [RankGrid(tp=1, dp=2, pp=3, order=LLAMA_3), RankGrid(tp=2, dp=1, pp=1)], ids=str)
def test_other_grids_and_orders_train_alike(grid):
    task = Task(grid=grid, shape=replace(CUBE.shape, layers=3), steps=2, microbatches=3)
    run = lab.train(task)
    losses, parameters = lab.single_process(task)
    assert run.difference(parameters) < TOLERANCE
    assert run.losses == pytest.approx(losses, abs=TOLERANCE)
    assert all(run.sent_bytes(rank, axis) == run.formula_bytes(rank, axis)
               for rank in range(grid.world_size) for axis in AXES)


def test_a_wrong_parameter_on_one_tensor_parallel_rank_is_seen(oracle):
    run = lab.train(replace(CUBE, steps=1))
    right = {name: value.clone() for name, value in run.parameters(0).items()}
    assert run.difference(right) < TOLERANCE
    run.ranks[3].parameters["blocks.0.attention_norm.weight"][0] += 1e-3  # a copy, which putting together leaves out
    assert run.difference(right) == pytest.approx(1e-3)


def test_replicas_whose_optimizers_work_alone_train_to_what_one_process_makes_of_each_part_of_the_batch(oracle):
    wrong = replace(CUBE, mistake="replicas apart")
    predicted = [lab.single_process(wrong, replica) for replica in range(2)]
    run = lab.train(wrong)
    for replica, (_, parameters) in enumerate(predicted):
        found = run.parameters(replica)
        assert max((found[name] - parameters[name]).abs().max().item() for name in found) < TOLERANCE
    losses = [sum(parts) / 2 for parts in zip(*(losses for losses, _ in predicted), strict=True)]
    assert run.losses == pytest.approx(losses, abs=TOLERANCE)
    assert run.losses[0] == pytest.approx(oracle[0][0], abs=TOLERANCE)  # nothing shows in the first step
    assert run.difference(oracle[1]) > 1e-3


def test_a_replicas_part_of_the_batch_is_its_micro_batches():
    for replica in range(2):
        parts = CUBE.microbatches_of(0, replica)
        assert len(parts) == CUBE.microbatches
        for place in (0, 1):
            assert torch.equal(torch.cat([part[place] for part in parts], dim=1), CUBE.data_of(0, replica)[place])
    assert torch.equal(torch.cat([CUBE.data_of(0, replica)[0] for replica in range(2)], dim=1), CUBE.data(0)[0])


def collective_over_all_ranks(rank, size):
    groups = lab.make_groups(CUBE.grid, rank)
    with lab.count_by_axis(groups, CUBE.grid, rank):
        torch.distributed.all_reduce(torch.ones(1))


def test_a_collective_over_another_group_is_refused_by_the_count():
    with pytest.raises(ranks.RankError, match="which is along no axis"):
        ranks.run(collective_over_all_ranks, 8, timeout=60)


class DiesInItsSecondBackward(lab.PieceWork):
    """Rank 5's work, which ends the process."""

    def backward(self, microbatch, chunk, given, split):
        if torch.distributed.get_rank() == 5 and microbatch == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().backward(microbatch, chunk, given, split)


def train_until_killed(rank, size):
    lab.PieceWork = DiesInItsSecondBackward
    return lab.measure_rank(rank, size, CUBE)


def test_one_killed_rank_ends_all_eight_with_its_name():
    before = time.monotonic()
    with pytest.raises(ranks.RankError, match="rank 5 of 8 was killed by SIGKILL") as error:
        ranks.run(train_until_killed, 8, timeout=60)
    assert (error.value.rank, error.value.signal) == (5, signal.SIGKILL)
    assert time.monotonic() - before < 60


@pytest.mark.parametrize(("task", "message"), [
    (Task(steps=0), "steps = 0 is not allowed"),
    (Task(microbatches=True), "microbatches = True is not allowed"),
    (Task(grid=RankGrid(tp=3, dp=1, pp=1)), "heads = 4 is not allowed"),
    (Task(grid=RankGrid(tp=1, dp=1, pp=3)), "pp = 3 is not allowed; it must divide the 4 layers"),
    (Task(grid=RankGrid(tp=1, cp=2, dp=1, pp=1)), "cp = 2 is not allowed"),
    (Task(positions=7, sequence_parallel=True), "positions = 7 is not allowed"),
    (Task(mistake="a typo"), "mistake = 'a typo' is not allowed"),
    ("2x2x2", "task = '2x2x2' is not allowed"),
], ids=str)
def test_a_task_that_the_grid_cannot_run_is_refused_by_name(task, message):
    with pytest.raises(ValueError, match=message):
        lab.train(task)


def test_the_lab_prints_the_same_by_itself_and_under_torchrun(tmp_path):
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--log-dir", str(tmp_path), "--nproc-per-node", "2"]
    alone = ["-m", "scalebook.labs.three_d", "--steps", "1", "--tp", "1", "--dp", "1"]
    printed = [
        subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=280, check=True).stdout
        for command in (alone, [*torchrun, *alone])
    ]
    assert printed[0] == printed[1]
    rows = [line.split() for line in printed[0].splitlines()[4:]]
    assert len(rows) == 2 * len(AXES)
    assert all(row[5] == row[6] for row in rows)


def test_bad_input_on_the_command_line_is_told_without_a_traceback():
    command = [sys.executable, "-m", "scalebook.labs.three_d", "--pp", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert "pp = 3 is not allowed" in done.stderr
    assert "Traceback" not in done.stderr

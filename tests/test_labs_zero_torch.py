"""PyTorch's DDP, ZeroRedundancyOptimizer and fully_shard beside the stages by hand: results, memory, bytes sent."""

from dataclasses import replace

import pytest
import torch

from scalebook.labs import zero_torch as lab
from scalebook.labs.zero import single_process
from scalebook.labs.zero_task import Task

R = 4
TOLERANCE = 1e-10
TASKS = {1: Task(), 2: Task(microbatches=2)}


@pytest.fixture(scope="module")
def runs():
    """Each system with one and with two micro-batches, on the same four processes."""
    found = lab.torch_train(R, *TASKS.values(), timeout=240)
    return {(run.system, run.task.microbatches): run for run in found}


def test_all_systems_come_to_the_parameters_of_one_process(runs):
    oracle = single_process(TASKS[1])  # micro-batches cut the same batch
    assert set(runs) == {(system, count) for system in lab.SYSTEMS for count in TASKS}
    for run in runs.values():
        assert run.difference(oracle) < TOLERANCE
        assert run.losses == pytest.approx(oracle.losses, rel=1e-12)


def test_each_keeps_what_the_formula_says_on_the_mean_over_the_ranks(runs):
    for run in runs.values():
        assert sum(run.resident_bytes) == R * run.formula_resident_bytes
    same = {system: len(set(runs[system, 1].resident_bytes)) for system in lab.SYSTEMS}
    assert same["DDP"] == 1
    assert same["DDP + ZeroRedundancyOptimizer"] > 1  # whole parameters at a time
    assert same["fully_shard"] > 1  # the last rank has the shorter end of each parameter


def test_each_sends_what_the_formula_says(runs):
    for run in runs.values():
        assert set(run.sent_bytes) == {run.formula_sent_bytes}


def test_ddp_sends_2_its_zero_optimizer_3_and_fully_shard_3_or_2_times_the_model(runs):
    passes = {}
    for key, run in runs.items():
        one = run.padded * 8 * (R - 1) / R
        passes[key] = run.sent_bytes[0] / one
    assert passes == {
        ("DDP", 1): 2, ("DDP", 2): 2, ("DDP + ZeroRedundancyOptimizer", 1): 3, ("DDP + ZeroRedundancyOptimizer", 2): 3,
        ("fully_shard", 1): 3, ("fully_shard", 2): 6, ("fully_shard, kept", 1): 2, ("fully_shard, kept", 2): 4,
    }


def test_ddp_with_the_zero_optimizer_all_reduces_and_then_broadcasts_every_parameter_once(runs):
    run = runs["DDP + ZeroRedundancyOptimizer", 1]
    for each in run.ranks:
        assert set(each.sent.calls) == {"all_reduce", "broadcast"}
        assert each.sent.bytes["all_reduce"] == each.sent.bytes["broadcast"] == 8 * run.parameters
        assert each.sent.calls["broadcast"] == len(each.parameters)


def test_fully_shard_gathers_and_reduces_a_layer_at_a_time(runs):
    for name, gathers in (("fully_shard", 10), ("fully_shard, kept", 5)):
        for each in runs[name, 1].ranks:
            assert each.sent.calls == {"all_gather": gathers, "reduce_scatter": 5}
    assert runs["fully_shard", 1].padded > runs["DDP", 1].padded == runs["DDP", 1].parameters


def test_keeping_the_gathered_weights_costs_memory_at_the_peak(runs):
    kept, released = (max(each.peak for each in runs[name, 2].ranks) for name in ("fully_shard, kept", "fully_shard"))
    assert kept > released


@pytest.mark.parametrize(("changed", "message"), [
    ({"steps": 2}, "steps = 2 is not allowed; steps must be at least 3"), ({"tied": True}, "tied = True is not"),
    ({"max_norm": 1.0}, "max_norm = 1.0 is not allowed"), ({"dtype": torch.bfloat16}, "dtype = torch.bfloat16 is not"),
])
def test_what_cannot_be_is_named_before_a_process_starts(changed, message):
    with pytest.raises(ValueError, match=message):
        lab.torch_train(R, replace(Task(), **changed))
    with pytest.raises(ValueError, match=r"systems = .* is not allowed; they must be among DDP"):
        lab.torch_train(R, Task(), systems=("FSDP",))

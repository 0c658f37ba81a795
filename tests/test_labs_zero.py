"""Every stage of ZeRO on real processes trains as one process does, and keeps and sends what the formulas say."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch

from scalebook import ranks
from scalebook.formulas import zero as formulas
from scalebook.labs import zero as lab
from scalebook.labs import zero_task
from scalebook.labs.tiny_transformer import token_loss
from scalebook.labs.zero_task import Task
from scalebook.zero import Zero1, Zero2, buckets_of, communication_bytes, model_state_bytes

R = 4
TOLERANCE = 1e-10  # of any parameter after 3 steps in float64, each of which moves it by about 0.01

# Each with every stage. 9,796 parameters: no layer's number is a multiple of 4.
VARIANTS = {
    "plain": Task(),
    "accumulated, tied, clipped": Task(microbatches=2, batch=16, tied=True, max_norm=0.5),
}
ALL = {(name, stage): replace(task, stage=stage) for name, task in VARIANTS.items() for stage in range(4)}
ALL["kept", 3] = Task(stage=3, release_after_forward=False)  # else as "plain", so that their peaks compare
HALF = {("bfloat16", stage): Task(stage=stage, dtype=torch.bfloat16) for stage in range(4)}
HALF["float16", 2] = Task(stage=2, dtype=torch.float16)


@pytest.fixture(scope="module")
def runs():
    """All tasks on the same four processes."""
    tasks = ALL | HALF
    return dict(zip(tasks, lab.train(R, *tasks.values(), timeout=240), strict=True))


@pytest.fixture(scope="module")
def oracles():
    """The same on one process. The stage and the release make no difference there."""
    return {name: lab.single_process(task) for name, task in {**VARIANTS, "kept": ALL["kept", 3]}.items()}


# What is computed


@pytest.mark.parametrize(("name", "stage"), ALL)
def test_every_stage_comes_to_the_parameters_of_one_process(runs, oracles, name, stage):
    run, oracle = runs[name, stage], oracles[name]
    assert run.difference(oracle) < TOLERANCE
    assert run.losses == pytest.approx(oracle.losses, rel=1e-12)
    start = dict(run.task.model(torch.float64).named_parameters())
    moved = [(oracle.ranks[0].parameters[key] - start[key]).abs().max() for key in oracle.ranks[0].parameters]
    assert min(moved) > 0.005


def test_accumulation_clipping_and_tying_each_change_the_result(oracles):
    """So the comparisons above could have failed."""
    base = VARIANTS["accumulated, tied, clipped"]
    right = oracles["accumulated, tied, clipped"]
    assert replace(right, task=base).difference(lab.single_process(replace(base, max_norm=None))) > 1e-4
    assert right.losses[0] != oracles["plain"].losses[0]
    assert right.parameters == oracles["plain"].parameters - 31 * 15


@pytest.mark.parametrize(("name", "stage"), HALF)
def test_16_bits_agree_as_far_as_their_rounding_lets_them(runs, name, stage):
    """The order of sums differs, and Adam turns the rounding of a gradient near zero into a whole step."""
    run, oracle = runs[name, stage], lab.single_process(HALF[name, stage])
    start = dict(run.task.model(torch.float32).named_parameters())
    ours, right = run.ranks[0].parameters, oracle.ranks[0].parameters
    wrong = torch.cat([(ours[key] - right[key]).float().flatten() for key in right]).square().mean().sqrt()
    moved = torch.cat([(start[key] - right[key]).detach().float().flatten() for key in right]).square().mean().sqrt()
    assert wrong < 0.2 * moved
    assert ours["head.norm.weight"].dtype == run.task.dtype
    assert run.losses == pytest.approx(oracle.losses, abs=0.05)


def test_stages_0_1_and_2_agree_to_the_last_bit_in_bfloat16(runs):
    """They reduce the same buckets, and the ring adds them up in the same order."""
    for stage in (1, 2):
        assert runs["bfloat16", stage].difference(runs["bfloat16", 0]) == 0


def test_all_ranks_hold_the_same_parameters(runs):
    for run in runs.values():
        first, *others = (each.parameters for each in run.ranks)
        assert all(torch.equal(first[name], other[name]) for other in others for name in first)


# What is kept


@pytest.mark.parametrize(("name", "stage"), ALL | HALF)
def test_each_rank_keeps_what_the_formula_says(runs, name, stage):
    run = runs[name, stage]
    assert set(run.resident_bytes) == {run.formula_resident_bytes}
    assert {each.alive for each in run.ranks} == {run.formula_resident_bytes}  # and no other tensor is alive
    item = run.task.dtype.itemsize
    parts = {"weights": (item, 3), "gradients": (item, 2), "optimizer": (max(4, item) * 3, 1)}
    for kind, (size, sharded_from) in parts.items():
        assert run.ranks[0].resident[kind] == size * run.padded // (R if stage >= sharded_from else 1)


def test_shards_of_uneven_parameters_are_padded_by_less_than_one_element_a_rank_and_bucket(runs):
    for (_, stage), run in runs.items():
        units = run.ranks[0].units
        assert all(0 <= unit.padded - unit.elements < R for unit in units)
        assert (run.padded > run.parameters) == (stage > 0)
        exact = model_state_bytes(run.parameters, R, stage, run.task.recipe)
        assert exact <= run.resident_bytes[0] < exact + len(units) * (R - 1) * run.task.recipe.total


def test_the_peak_falls_with_the_stage_and_is_above_what_is_resident(runs):
    peaks = [max(each.peak for each in runs["plain", stage].ranks) for stage in range(4)]
    assert peaks[0] > peaks[1] > peaks[3]
    assert peaks[0] > peaks[2] > peaks[3]
    for stage in range(4):
        assert peaks[stage] > 1.2 * runs["plain", stage].resident_bytes[0]
    kept = min(each.peak for each in runs["kept", 3].ranks)
    assert kept > peaks[3] + 8 * runs["kept", 3].padded // 4  # whole layers more, beyond what a buffer held longer adds


# The life of a layer's parameters at stage 3


def test_a_layer_is_gathered_twice_and_released_twice_and_one_is_whole_at_a_time(runs):
    for each in runs["plain", 3].ranks:
        lives = {unit: [event.kind for event in each.events if event.unit == unit] for unit in range(5)}
        assert set(map(tuple, lives.values())) == {
            ("gather", "release", "gather", "gradients", "release", "reduced")}
        forward = [event.unit for event in each.events if event.kind == "gather"]
        assert forward == [0, 1, 2, 3, 4, 4, 3, 2, 1, 0]
        resident = runs["plain", 3].resident_bytes[0]
        whole = {resident + 8 * unit.padded for unit in each.units}
        assert {event.total for event in each.events if event.kind == "gather"} == whole
        assert each.events[-1].kind == "step"
        assert each.events[-1].total == resident


def test_the_peak_of_states_is_the_formulas_with_one_layer_gathered_and_its_gradients(runs):
    run = runs["plain", 3]
    sizes = run.task.recipe.sizes
    largest = max(run.ranks[0].units, key=lambda unit: unit.padded)
    predicted = formulas.peak_bytes_stage3(Psi=run.padded, N=R, Psi_l=largest.padded, g_w=1, g_g=1, **sizes)
    padding = largest.padded - largest.elements  # gradients wait without it
    assert max(event.total for event in run.ranks[0].events) == predicted - padding * sizes["b_g"]


def test_kept_and_tied_layers_stay_whole_from_forward_to_backward(runs):
    for name, kept, microbatches in (("kept", range(5), 1), ("accumulated, tied, clipped", [0], 2)):
        events = runs[name, 3].ranks[0].events
        for unit in kept:
            kinds = [event.kind for event in events if event.unit == unit]
            assert kinds == ["gather", "gradients", "release", "reduced"] * microbatches
    assert [unit.kept for unit in runs["accumulated, tied, clipped", 3].ranks[0].units] == [True, False, False, False]


# What is sent


@pytest.mark.parametrize(("name", "stage"), ALL | HALF)
def test_each_rank_sends_what_the_formula_says(runs, name, stage):
    run = runs[name, stage]
    assert set(run.sent_bytes) == {run.formula_sent_bytes}
    kinds = [{"all_reduce"}, {"reduce_scatter", "all_gather"}][min(stage, 1)]
    clipped = {"all_reduce"} if run.task.max_norm else set()
    assert all(set(each.sent.calls) == kinds | clipped for each in run.ranks)


def test_stages_send_2_2_2_and_3_times_the_model_and_accumulation_costs_stages_2_and_3(runs):
    passes = {}
    for name, stage in ALL:
        run = runs[name, stage]
        one = communication_bytes(run.padded, R, 0, recipe=run.task.recipe) / 2
        passes[name, stage] = run.sent_bytes[0] / float(one)
    assert [passes["plain", stage] for stage in range(4)] == [2, 2, 2, 3]
    assert passes["kept", 3] == 2
    tied = [passes["accumulated, tied, clipped", stage] for stage in range(4)]
    assert tied[:3] == pytest.approx([2, 2, 3], rel=1e-3)  # and the clipping's one number
    assert 5.7 < tied[3] < 6  # the tied layers are gathered once for each micro-batch


def test_stage_2_reduces_while_the_backward_runs_and_stage_1_after_it(runs):
    log = [kind for kind, _, _ in runs["plain", 2].ranks[0].sent.log]
    buckets = len(runs["plain", 2].ranks[0].units)
    assert log == ["reduce_scatter"] * buckets + ["all_gather"] * buckets
    order = ["all_gather"] * 5 + ["all_gather", "reduce_scatter"] * 5
    assert [kind for kind, _, _ in runs["plain", 3].ranks[0].sent.log] == order


# Its edges


@pytest.mark.parametrize("size", [1, 2])
def test_other_numbers_of_ranks_give_the_same(size, oracles):
    stages = range(4) if size == 2 else (3,)
    for run in lab.train(size, *(ALL["plain", stage] for stage in stages)):
        assert run.difference(oracles["plain"]) < TOLERANCE
        assert set(run.resident_bytes) == {run.formula_resident_bytes}
        assert sum(run.sent_bytes) == size * run.formula_sent_bytes


@pytest.mark.parametrize(("changed", "message"), [
    ({"stage": 4}, "stage = 4 is not allowed"), ({"batch": 6}, "batch = 6 is not allowed; it must be a multiple"),
    ({"steps": 0}, "steps = 0 is not allowed"), ({"microbatches": 1.5}, "microbatches = 1.5 is not allowed"),
    ({"dtype": torch.int8}, "dtype = torch.int8 is not allowed"),
    ({"stage": 1, "release_after_forward": False}, "release_after_forward = False is not allowed at stage 1"),
])
def test_what_cannot_be_is_named_before_a_process_starts(changed, message):
    with pytest.raises(ValueError, match=message):
        lab.train(R, replace(Task(), **changed))
    with pytest.raises(ValueError, match="ranks = 0 is not allowed"):
        lab.train(0, Task())


def wrong_buckets(rank, size):
    """Padded for 1 rank and given to more."""
    Zero1(buckets_of(Task().model(torch.float32), 1, ranks=1))


def test_buckets_for_another_number_of_ranks_are_refused():
    with pytest.raises(ranks.RankError, match="a bucket of 31 elements is not allowed; 2 ranks must divide it"):
        ranks.run(wrong_buckets, 2)


class DiesReducing(Zero2):
    """A stage 2 whose process is killed as it reduces its second bucket of the second step."""

    reductions = 0

    def reduce(self, bucket):
        self.reductions += 1
        if self.rank == 1 and self.reductions == len(self.buckets) + 2:
            os.kill(os.getpid(), signal.SIGKILL)
        super().reduce(bucket)


def train_until_killed(rank, size):
    """Two steps, the second of which rank 1 does not survive."""
    task = Task(stage=2)
    model = task.model(torch.float32)
    optimizer = DiesReducing(buckets_of(model, task.elements, size), task.dtype)
    for step in range(2):
        tokens, targets = task.data(step)
        token_loss(model(tokens), targets).backward()
        optimizer.step()


def test_a_rank_killed_in_the_middle_of_a_backward_ends_all_with_its_name():
    before = time.monotonic()
    with pytest.raises(ranks.RankError, match=r"rank 1 of 4 was killed by SIGKILL") as error:
        ranks.run(train_until_killed, R, timeout=60)
    assert error.value.rank == 1
    assert error.value.signal == signal.SIGKILL
    assert time.monotonic() - before < 60


# By itself


def test_the_lab_prints_the_same_table_by_itself_and_under_torchrun(tmp_path):
    # torchrun leaves a folder of logs behind, so it is told where; --standalone takes a free port.
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--log-dir", str(tmp_path), "--nproc-per-node", "2"]
    alone = ["-m", "scalebook.labs.zero", "--ranks", "2"]
    printed = [
        subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=280, check=True).stdout
        for command in (alone, [*torchrun, "-m", "scalebook.labs.zero"])
    ]
    assert printed[0] == printed[1]
    rows = [line.split() for line in printed[0].splitlines()[2:]]
    assert [row[0] for row in rows] == ["0", "1", "2", "3"]
    for _, kept, by_formula, sent, sent_by_formula, difference in rows:
        assert kept == by_formula
        assert sent == sent_by_formula
        assert float(difference) < TOLERANCE


def test_bad_input_on_the_command_line_is_told_without_a_traceback():
    command = [sys.executable, "-m", "scalebook.labs.zero", "--microbatches", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert "microbatches = 0 is not allowed" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_modules_of_the_lab_say_what_a_task_is():
    assert zero_task.Task(dtype=torch.bfloat16).recipe.sizes == {"b_w": 2, "b_g": 2, "K": 12}
    assert zero_task.Task(dtype=torch.float64).recipe.sizes == {"b_w": 8, "b_g": 8, "K": 24}

"""Where labs run: on the processor, or on GPUs where there are as many as ranks; the choice, made explicitly.

No test here needs a GPU. That a lab's tensors all lie on the rank's device is shown on a stand-in for it
(`stand_in.py`), which refuses what a GPU refuses. It shows nothing of NCCL itself.
"""

from dataclasses import replace
from unittest import mock

import pytest
import stand_in
import torch

from scalebook import ranks
from scalebook.labs import (
    collective_comparison,
    collective_times,
    collectives,
    expert_parallel,
    hello,
    mesh,
    pipeline,
    quantized_bandwidth,
    saved_activations_parallel,
    sparse_speed,
    tensor_parallel,
    tensor_parallel_torch,
    tensor_parallel_wrong,
    three_d,
    zero,
    zero_checkpoint,
    zero_torch,
)
from scalebook.labs.three_d_task import Task as GridTask
from scalebook.labs.zero_task import Task as ZeroTask
from scalebook.mesh import RankGrid
from scalebook.ranks.checks import choose_backend

NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")


def test_the_processor_is_always_measured_and_comes_first():
    assert collective_times.backends(2)[0] == "gloo"
    assert quantized_bandwidth.devices()[0] == "cpu"


def test_gpus_are_taken_when_there_are_as_many_as_ranks(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert collective_times.backends(4) == ("gloo", "nccl")
    assert collective_times.backends(5) == ("gloo",)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert quantized_bandwidth.devices() == ("cpu", "cuda")


def test_every_backend_of_this_machine_is_measured():
    for backend in collective_times.backends(2):
        times = collective_times.measure(2, sizes=(1024, 2**20), repeats=2, backend=backend)["PyTorch"]
        assert all(seconds > 0 for seconds in times.seconds)


def test_every_device_of_this_machine_is_measured(monkeypatch):
    monkeypatch.setattr(sparse_speed, "OTHER_DATA", 10)
    for device in quantized_bandwidth.devices():
        found = quantized_bandwidth.time_products(rows=64, columns=64, rounds=1, device=device)
        assert tuple(reading.bits for reading in found) == quantized_bandwidth.BITS[device]
        row, = sparse_speed.compare(device, batches=(4,), width=64, repeats=1)
        assert sum(row.counts) == 4 * 2
        assert set(row.dense) == {*row.counts, 4} - {0}


@NO_GPU
def test_a_gpu_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="backend = 'nccl' is not allowed; 2 ranks need a GPU each"):
        collective_times.measure(2, sizes=(1024, 4096), repeats=1, backend="nccl")
    with pytest.raises(ValueError, match="device = 'cuda' is not allowed"):
        quantized_bandwidth.time_products(rows=8, columns=8, rounds=1, device="cuda")
    with pytest.raises(ValueError, match="device = 'cuda' is not allowed"):
        sparse_speed.compare("cuda", batches=(1,), width=8, repeats=1)


def test_bits_that_a_gpu_does_not_multiply_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(ValueError, match="bits = 8 is not allowed; on cuda it must be one of"):
        quantized_bandwidth.time_products((8,), rows=8, columns=8, rounds=1, device="cuda")


# Every lab at small sizes, and what shows that it came out right. Each takes the backend.


def say_hello(**options):
    assert ranks.launch(hello.rank_sum, 2, **options) == [1, 1]


def time_all_reduces(**options):
    assert collective_times.measure(2, sizes=(1024, 4096), repeats=1, **options)["our ring"].sizes == (1024, 4096)


def move_data(**options):
    moved = collectives.move_data(2, **options)
    assert all(one.after == collectives.predict(name, one.before) for name, one in moved.items())


def step_rings(**options):
    assert collectives.ring_steps(2, **options)[-1].holds == (((0, 1), (0, 1)),) * 2


def compare_collectives(**options):
    assert max(one.gap for one in collective_comparison.compare(2, elements=8, **options).values()) == 0


def spread_experts(**options):
    for layer in ({"gate": "even", "n_shared": 1}, {"capacity_factor": 1.0, "skew": 1.0}):
        run = expert_parallel.expert_parallel(2, **layer, **options)
        assert max(run.difference(expert_parallel.single_process(2, **layer)).values()) < 1e-12
        assert run.load == expert_parallel.single_process(2, **layer).load


def make_meshes(**options):
    assert all(one.equal() for one in mesh.compare(RankGrid(tp=2, dp=1, pp=1), RankGrid(tp=1, dp=2, pp=1), **options))


def cut_layers(**options):
    settings = tensor_parallel.standard_settings(2)
    assert max(one.largest_gap for one in tensor_parallel.compare(2, settings, **options).values()) < 1e-10


def make_mistakes(**options):
    assert max(one.gap for one in tensor_parallel_wrong.run_mistakes(2, **options).values()) < 1e-10


def keep_activations(**options):
    for one in saved_activations_parallel.saved_on_ranks(2, positions=8, width=16, heads=4, **options)[
            "sequence parallel, inputs gathered again"]:
        assert sum(item.counted for item in one.items) == (8 * 2 * 16 * 34 + 5 * 4 * 8**2 * 2) / 2


def run_pipelines(**options):
    for schedule in ("1f1b", "interleaved", "zb-v"):  # a chunk and two, the backward whole and split
        step = pipeline.train_step(schedule, 2, 4, **options)
        assert max(step.difference(pipeline.single_process_step(4))) < 1e-12


def sleep_in_turn(**options):
    assert pipeline.measure_makespan("1f1b", 2, 2, 0.001, 0.002, **options).operations


def shard_states(**options):
    tasks = [ZeroTask(stage=stage, microbatches=2, batch=8, tied=True, max_norm=0.5) for stage in range(4)]
    for run in zero.train(2, *tasks, **options):
        assert run.difference(zero.single_process(tasks[0])) < 1e-10
        assert set(run.resident_bytes) == {run.formula_resident_bytes}
        assert tuple(one.alive for one in run.ranks) == run.resident_bytes


def train_on_a_grid(**options):
    task = GridTask(RankGrid(tp=1, dp=2, pp=2), steps=1, microbatches=2)
    for one in (task, replace(task, grid=RankGrid(tp=2, dp=1, pp=2), sequence_parallel=True)):
        run = three_d.train(one, **options)
        assert run.difference(three_d.single_process(one)[1]) < 1e-10
        assert all(run.sent_bytes(rank, axis) == run.formula_bytes(rank, axis)
                   for rank in range(4) for axis in ("tp", "pp", "dp"))


OURS = [say_hello, time_all_reduces, move_data, step_rings, compare_collectives, spread_experts, make_meshes,
        cut_layers, make_mistakes, keep_activations, run_pipelines, shard_states, train_on_a_grid]


# PyTorch's own systems ask their device for streams and events, which the stand-in hasn't.


def run_plans(**options):
    for one in tensor_parallel_torch.run_plans(2, **options).values():
        assert max(one.gaps.values()) < 1e-10


def run_their_pipeline(**options):
    step = pipeline.torch_1f1b_step(2, 4, **options)
    assert max(step.difference(pipeline.single_process_step(4))) < 1e-12


def train_by_pytorch(**options):
    for run in zero_torch.torch_train(2, ZeroTask(), **options):
        assert run.sent_bytes[0] == run.formula_sent_bytes


def resume(**options):
    task = ZeroTask(stage=2)
    whole, = zero_checkpoint.train_in_two_parts(2, 1, task, after=1, **options)
    right = zero.single_process(task).ranks[0].parameters
    assert max((whole[name] - right[name]).abs().max().item() for name in right) < 1e-10


THEIRS = [run_plans, run_their_pipeline, train_by_pytorch, resume]


@pytest.mark.parametrize("lab", [*OURS, sleep_in_turn, *THEIRS], ids=lambda lab: lab.__name__)
def test_every_lab_runs_on_the_backend_that_is_chosen(lab, monkeypatch):
    chosen, check = [], ranks.processes.checks.choose_backend
    monkeypatch.setattr(ranks.processes.checks, "choose_backend", lambda backend, size: chosen.append(backend)
                        or check(backend, size))
    lab(backend="gloo")
    assert set(chosen) == {"gloo"}


@pytest.mark.parametrize("lab", OURS, ids=lambda lab: lab.__name__)
def test_every_lab_computes_on_the_ranks_device_and_brings_the_same_results_back(lab, monkeypatch):
    monkeypatch.setattr(ranks, "launch", stand_in.launch)
    lab()


@pytest.mark.parametrize(("program", "words"), [
    (stand_in.mix, "all tensors to be on the same device"),
    (stand_in.sum_on_the_cpu, "no backend for tensors of the CPU"),
    (stand_in.draw_there, "generator"),
], ids=lambda value: getattr(value, "__name__", ""))
def test_the_stand_in_refuses_what_a_gpu_refuses(program, words):
    with pytest.raises(ranks.RankError, match=words):
        stand_in.launch(program, 1)


def test_results_come_back_on_the_cpu_however_deep_a_tensor_lies():
    found, = stand_in.launch(stand_in.nested, 1)
    [(part, rank)] = found["deep"]
    assert {type(one) for one in (found["parameter"], part, found["here"])} == {torch.Tensor}
    assert found["parameter"].requires_grad
    assert (found["parameter"].tolist(), part.tolist(), rank) == ([0, 1, 2], [1, 2], 0)


def test_nccl_is_chosen_when_there_are_as_many_gpus_as_ranks_with_gloo_beside_it():
    with mock.patch.object(torch.cuda, "device_count", return_value=4):
        assert choose_backend(None, 4) == choose_backend("nccl", 4) == "cpu:gloo,cuda:nccl"
        assert choose_backend(None, 5) == choose_backend("gloo", 4) == "gloo"


def test_a_process_that_is_no_rank_has_the_cpu():
    assert ranks.device() == torch.device("cpu")

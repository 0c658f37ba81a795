"""A real pipeline computes what one process computes, holds what the formulas say, and takes the time simulated."""

import math
import os
import signal
import subprocess
import sys
import threading
import time
from fractions import Fraction

import psutil
import pytest
import torch
import torch.nn.functional as F

from scalebook import ranks
from scalebook.formulas.pipeline import makespan, peak_in_flight_1f1b, peak_in_flight_gpipe
from scalebook.labs import pipeline as lab
from scalebook.labs.saved_tensors import SavedTensors
from scalebook.labs.tiny_transformer import Shape, SplitLinear, add_weight_gradient, build, cut
from scalebook.pipeline import SCHEDULES, simulate
from scalebook.pipeline.validation import check_dependencies, check_devices, check_each_once

P, M = 4, 8
TOLERANCE = 1e-14  # of the loss and of any gradient, in float64; gradients are up to about 0.1
MESSAGE = 2 * 16 * 32 * 8  # bytes: samples, positions, width, float64


def default_chunks(schedule):
    return 2 if schedule in ("interleaved", "zb-v") else 1


@pytest.fixture(scope="module")
def reference():
    return lab.single_process_step(M)


@pytest.fixture(scope="module")
def steps():
    return {schedule: lab.train_step(schedule, P, M) for schedule in SCHEDULES}


@pytest.fixture(scope="module")
def torch_step():
    return lab.torch_1f1b_step(P, M)


def assert_same_step(step, reference, tolerance=TOLERANCE):
    loss_gap, gradient_gap = step.difference(reference)
    assert loss_gap <= tolerance * 10  # the loss is about 4
    assert gradient_gap <= tolerance


# What is computed


def test_the_oracle_is_plain_autograd_on_the_whole_batch(reference):
    model = build(Shape())
    task = lab.Task(M)
    tokens, targets = (torch.cat(parts) for parts in zip(*task.batches(), strict=True))
    loss = F.cross_entropy(model(tokens).transpose(1, 2), targets)
    loss.backward()
    assert reference.gradients.keys() == dict(model.named_parameters()).keys()
    assert abs(loss.item() - reference.loss) < 1e-14
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(reference.gradients[name], parameter.grad, rtol=0, atol=1e-16)
    assert max(g.abs().max() for g in reference.gradients.values()) > 0.01


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_loss_and_every_gradient_equal_the_single_process(steps, reference, schedule):
    assert_same_step(steps[schedule], reference)


@pytest.mark.parametrize(
    ("schedule", "stages", "microbatches", "layers"),
    [("gpipe", 3, 5, 3), ("1f1b", 3, 5, 6), ("1f1b", 4, 2, 4), ("1f1b", 1, 3, 2), ("zb-h1", 3, 7, 3),
     ("zb-v", 1, 2, 2), ("zb-v", 2, 3, 4), ("interleaved", 2, 4, 8)],
)
def test_other_sizes_equal_the_single_process_too(schedule, stages, microbatches, layers):
    shape = Shape(vocabulary=11, width=12, heads=3, layers=layers, context=7)
    step = lab.train_step(schedule, stages, microbatches, shape=shape, samples=3, seed=5)
    assert_same_step(step, lab.single_process_step(microbatches, shape=shape, samples=3, seed=5))


def test_float32_agrees_to_its_own_precision():
    kind = {"dtype": torch.float32}
    step, reference = lab.train_step("1f1b", 2, 4, **kind), lab.single_process_step(4, **kind)
    assert step.gradients["head.project.weight"].dtype == torch.float32
    assert_same_step(step, reference, 1e-7)


def test_another_seed_is_another_step(reference):
    assert max(lab.single_process_step(M, seed=1).difference(reference)) > 0.01


# What is held


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_peak_of_live_activations_is_what_the_simulation_says(steps, schedule):
    simulated = simulate(schedule, P, M, chunks=default_chunks(schedule))
    assert steps[schedule].peak_live == simulated.peak_in_flight


@pytest.mark.parametrize("microbatches", [2, 6, M])
def test_the_measured_peak_is_the_formula(microbatches):
    gpipe, one = (lab.train_step(schedule, P, microbatches) for schedule in ("gpipe", "1f1b"))
    assert gpipe.peak_live == tuple(peak_in_flight_gpipe(M=microbatches) for _ in range(P))
    assert one.peak_live == tuple(peak_in_flight_1f1b(P=P, M=microbatches, r=rank) for rank in range(P))
    # In bytes, too: each micro-batch of a stage saves the same, so the peaks stand as the counts do.
    for rank in range(P):
        assert Fraction(gpipe.peak_bytes[rank], one.peak_bytes[rank]) == Fraction(
            gpipe.peak_live[rank], one.peak_live[rank]
        )


def test_stage_0_holds_under_1f1b_as_many_bytes_as_one_micro_batch_of_the_whole_model(steps):
    """P micro-batches of L/P layers: 1F1B bounds the activations, and does not make stage 0 hold less than L layers."""
    whole_model = sum(size / M for size in steps["gpipe"].peak_bytes)
    assert steps["1f1b"].peak_bytes[0] == pytest.approx(whole_model, rel=0.05)  # the head's are on the last stage


def test_saved_tensors_count_storages_once_and_parameters_never():
    weight = torch.ones(4, 4, requires_grad=True)
    x = torch.ones(3, 4, requires_grad=True)
    saved = SavedTensors(permanent=[weight])
    with saved.during("a"):
        first = (x @ weight.T).sum() + (x @ weight).sum() + (x.view(4, 3) ** 2).sum()
    assert (saved.live_keys, saved.live_bytes) == (1, 3 * 4 * 4)
    with saved.during("b"):
        second = x.exp().sum()
    assert (saved.live_keys, saved.live_bytes) == (2, 2 * 3 * 4 * 4)
    first.backward()
    assert (saved.live_keys, saved.live_bytes) == (1, 3 * 4 * 4)
    del second
    assert (saved.live_keys, saved.live_bytes, saved.peak_keys, saved.peak_bytes) == (0, 0, 2, 2 * 3 * 4 * 4)


def test_saved_tensors_see_what_a_retained_graph_keeps():
    x = torch.ones(5, requires_grad=True)
    saved = SavedTensors()
    for key in range(3):
        with saved.during(key):
            y = x.exp().sum()
        y.backward(retain_graph=True)
        del y
    assert saved.peak_keys == 1
    kept = []
    for key in range(3):
        with saved.during(key):
            kept.append(x.exp().sum())
        kept[-1].backward(retain_graph=True)
    assert (saved.live_keys, saved.peak_keys) == (3, 3)


# What is run


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_operations_run_in_the_simulated_order_and_keep_every_dependency_on_a_real_clock(steps, schedule):
    simulated = simulate(schedule, P, M, chunks=default_chunks(schedule))
    assert_really_ran(steps[schedule].operations, simulated)
    assert [steps[schedule].order(stage) for stage in range(P)] == [simulated.order(stage) for stage in range(P)]


def assert_really_ran(operations, simulated):
    check_each_once(simulated.pipeline, operations, simulated.split)
    check_devices(operations)
    check_dependencies(simulated.pipeline, {(op.kind, op.stage, op.chunk, op.microbatch): op for op in operations})


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_messages_are_one_activation_and_one_gradient_for_each_border_and_micro_batch(steps, schedule):
    plan = simulate(schedule, P, M, chunks=default_chunks(schedule)).pipeline
    sent, received = [0] * P, [0] * P
    for piece in range(P * plan.chunks - 1):
        here, there = plan.device(piece), plan.device(piece + 1)
        if here != there:  # an activation one way, a gradient the other
            for stage in (here, there):
                sent[stage] += M
                received[stage] += M
    traffic = steps[schedule].messages
    assert [t.calls["send"] for t in traffic] == sent
    assert [t.calls["recv"] for t in traffic] == received
    assert [t.bytes["send"] for t in traffic] == [MESSAGE * count for count in sent]


def test_interleaving_sends_v_times_as_much_and_more(steps):
    """v P - 1 borders instead of P - 1."""
    total = {name: sum(t.bytes["send"] for t in steps[name].messages) for name in ("1f1b", "interleaved")}
    assert Fraction(total["interleaved"], total["1f1b"]) == Fraction(2 * P - 1, P - 1)


# The split backward


def test_a_split_linear_layer_computes_no_weight_gradient_in_its_backward():
    torch.manual_seed(0)
    x = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    weight, bias = (torch.randn(*size, dtype=torch.float64, requires_grad=True) for size in ((5, 4), (5,)))
    outside = torch.randn(2, 3, 5, dtype=torch.float64)
    expected = torch.autograd.grad(F.linear(x, weight, bias), (x, weight, bias), outside)
    deferred = []
    SplitLinear.apply(x, weight, bias, lambda *item: deferred.append(item)).backward(outside)
    torch.testing.assert_close(x.grad, expected[0])
    assert weight.grad is None
    assert bias.grad is None
    for _ in range(2):  # it adds up
        add_weight_gradient(*deferred[0])
    torch.testing.assert_close(weight.grad, 2 * expected[1])
    torch.testing.assert_close(bias.grad, 2 * expected[2])


def test_zero_bubble_holds_on_every_stage_what_1f1b_holds_on_the_first(steps):
    assert steps["zb-h1"].peak_live == (P,) * P
    assert max(steps["zb-h1"].peak_bytes) == pytest.approx(max(steps["1f1b"].peak_bytes), rel=0.05)
    assert steps["zb-h1"].peak_bytes[-1] > 3 * steps["1f1b"].peak_bytes[-1]


# PyTorch's own


def test_pytorchs_own_1f1b_gives_the_same_loss_and_gradients(torch_step, steps, reference):
    assert_same_step(torch_step, reference)
    assert_same_step(torch_step, steps["1f1b"])


def test_pytorchs_own_1f1b_holds_runs_and_sends_the_same(torch_step, steps):
    assert torch_step.peak_live == steps["1f1b"].peak_live
    assert [torch_step.order(stage) for stage in range(P)] == [steps["1f1b"].order(stage) for stage in range(P)]
    assert torch_step.messages == steps["1f1b"].messages
    assert torch_step.peak_bytes == pytest.approx(steps["1f1b"].peak_bytes, rel=0.02)


# Mistakes


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1"])
def test_summing_the_losses_of_micro_batches_makes_every_gradient_m_times_too_large(reference, schedule):
    wrong = lab.train_step(schedule, P, M, mistake="sum")
    assert wrong.loss == pytest.approx(M * reference.loss, rel=1e-14)
    for name, gradient in reference.gradients.items():
        torch.testing.assert_close(wrong.gradients[name], M * gradient, rtol=0, atol=M * TOLERANCE)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved"])
def test_overwriting_the_gradient_leaves_the_last_micro_batch_alone(reference, schedule):
    wrong = lab.train_step(schedule, P, M, mistake="overwrite")
    last = lab.single_process_step(M, only=M - 1)
    assert wrong.loss == pytest.approx(reference.loss, rel=1e-14)  # so the loss doesn't show it
    for name, gradient in last.gradients.items():
        torch.testing.assert_close(wrong.gradients[name], gradient / M, rtol=0, atol=TOLERANCE)
    assert wrong.difference(reference)[1] > 0.001


# How long it takes


@pytest.mark.alone
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_measured_makespan_is_the_simulated_one(schedule, measured_again):
    simulated = float(simulate(schedule, P, M, 0.04, 0.08, chunks=default_chunks(schedule)).makespan)
    for _ in range(5):  # another program may take the cores for a moment
        measured = lab.measure_makespan(schedule, P, M, 0.04, 0.08)
        assert_really_ran(measured.operations, measured.simulated)
        assert float(measured.simulated.makespan) == pytest.approx(simulated)
        assert measured.seconds >= simulated
        if measured.seconds < 1.2 * simulated:
            break
        measured_again(f"{measured.seconds:.3f} s; simulated {simulated:.3f} s, the limit is 1.2 times that")
    assert measured.seconds < 1.2 * simulated  # on a quiet machine 1 to 5 % more
    if schedule in ("gpipe", "1f1b"):
        assert simulated == pytest.approx(float(makespan(P=P, M=M, t_f=0.04, t_b=0.08)))


# Failures


@pytest.mark.alone
def test_a_killed_stage_ends_the_lab_with_an_error_in_time_and_leaves_nothing():
    killed = []

    def kill_one():
        until = time.monotonic() + 20
        while time.monotonic() < until:
            stages = [rank for server in psutil.Process().children() for rank in server.children()]
            if len(stages) == P:
                time.sleep(1)
                killed.append(time.monotonic())
                os.kill(stages[1].pid, signal.SIGKILL)
                return
            time.sleep(0.02)

    killer = threading.Thread(target=kill_one)
    killer.start()
    with pytest.raises(ranks.RankError, match=r"was killed by SIGKILL \(signal 9\)") as caught:
        lab.measure_makespan("1f1b", P, M, 0.5, 1.0, timeout=30)
    assert time.monotonic() - killed[0] < 1.5
    killer.join()
    assert caught.value.signal == signal.SIGKILL
    assert [rank for server in psutil.Process().children() for rank in server.children()] == []
    assert [c for c in psutil.Process().net_connections("tcp") if c.status == psutil.CONN_LISTEN] == []


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("stages", lambda: lab.train_step("1f1b", 0, 8)),
        ("microbatches", lambda: lab.train_step("1f1b", 2, 0)),
        ("microbatches", lambda: lab.train_step("interleaved", 4, 6)),
        ("schedule", lambda: lab.train_step("2f2b", 2, 4)),
        ("pieces", lambda: lab.train_step("1f1b", 3, 6)),
        ("chunks", lambda: lab.train_step("gpipe", 2, 4, chunks=2)),
        ("mistake", lambda: lab.train_step("1f1b", 2, 4, mistake="typo")),
        ("mistake", lambda: lab.train_step("zb-h1", 2, 4, mistake="overwrite")),
        ("samples", lambda: lab.train_step("1f1b", 2, 4, samples=0)),
        ("seed", lambda: lab.train_step("1f1b", 2, 4, seed=-1)),
        ("dtype", lambda: lab.train_step("1f1b", 2, 4, dtype=torch.float16)),
        ("timeout", lambda: lab.train_step("1f1b", 2, 4, timeout=0)),
        ("only", lambda: lab.single_process_step(4, only=4)),
        ("microbatches", lambda: lab.single_process_step(True)),
        ("stages", lambda: lab.torch_1f1b_step(0, 4)),
        ("forward", lambda: lab.measure_makespan("1f1b", 2, 4, -1, 1)),
        ("forward_s", lambda: lab.measure_makespan("1f1b", 2, 4, "1", 1)),
        ("backward", lambda: lab.measure_makespan("1f1b", 2, 4, 1, math.nan)),
        ("weight", lambda: lab.measure_makespan("zb-h1", 2, 4, 1, 1, weight_s=2)),
        ("width", lambda: Shape(width=30, heads=4)),
        ("layers", lambda: Shape(layers=0)),
        ("pieces", lambda: cut(build(Shape(layers=2)), 3)),
    ],
)
def test_bad_input_is_refused_by_name(name, call):
    with pytest.raises(ValueError, match=rf"{name}.* not allowed"):
        call()


# From a shell


def test_the_lab_runs_by_itself_and_under_torchrun(tmp_path):
    arguments = ["-m", "scalebook.labs.pipeline", "--schedule", "1f1b", "--stages", "4", "--microbatches", "8"]
    # torchrun leaves a folder of logs behind, so it is told where; --standalone takes a free port.
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--log-dir", str(tmp_path), "--nproc-per-node", "4"]
    printed = [
        subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=100, check=True).stdout
        for command in (arguments, [*torchrun, *arguments])
    ]
    assert printed[0] == printed[1]
    assert "1f1b, 4 stages, 8 micro-batches: loss 4.294338" in printed[0]
    for stage in range(4):
        assert f"stage {stage}: peak {4 - stage} micro-batches alive (simulated {4 - stage})" in printed[0]


def test_help_says_how_to_run_it():
    command = [sys.executable, "-m", "scalebook.labs.pipeline", "--help"]
    out = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert "--microbatches" in out
    assert "torchrun --nproc-per-node 4" in out

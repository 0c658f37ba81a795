"""Runs that no constant was fitted to: Megatron's other rows, BLOOM, Nemotron-4, fully sharded data parallelism."""

import doctest
import sys
from dataclasses import replace

import pytest

from scalebook import published
from scalebook.moe import count_parameters
from scalebook.planner import EFFICIENCY, Cluster, Plan, elsewhere, estimate, gpt, validation
from scalebook.planner.validation import MEGATRON, Run, compare, median_error


@pytest.fixture(scope="module")
def megatron():
    return compare(list(elsewhere.megatron()), EFFICIENCY)


@pytest.fixture(scope="module")
def fsdp():
    return compare(list(elsewhere.fsdp()), EFFICIENCY)


def test_the_example_in_the_docstring_holds():
    result = doctest.testmod(validation)
    assert result.attempted
    assert not result.failed


def test_the_median_error_of_megatrons_runs_that_no_constant_has_seen(megatron):
    print("\n".join(validation.rows(megatron)))
    print(f"median error of {len(megatron)} runs: {100 * median_error(megatron):.1f}%")
    assert len(megatron) == 14
    assert median_error(megatron) < 0.08
    assert {one.run.name for one in megatron if abs(one.error) > 0.10} == {"BLOOM, TP8, 64 heads, micro-batch 2"}


def test_the_median_error_of_fully_sharded_runs_that_no_constant_has_seen(fsdp):
    print("\n".join(validation.rows(fsdp)))
    print(f"median error of {len(fsdp)} runs: {100 * median_error(fsdp):.1f}%")
    assert len(fsdp) == 47
    short = [one for one in fsdp if one.run.plan["sequence"] <= 4096]
    assert len(short) == 32
    assert median_error(short) < 0.10
    assert all(-0.20 < one.error < 0.40 for one in short)


def test_the_longer_the_sequence_the_more_the_planner_is_too_fast_for_fsdp(fsdp):
    for kind in EFFICIENCY:
        errors = {one.run.plan["sequence"]: one.error for one in fsdp
                  if one.run.kind == kind and "MPT 7B" in one.run.name and one.run.plan["recompute"] == "full"}
        in_order = [errors[length] for length in sorted(errors)]
        assert in_order == sorted(in_order)
        assert in_order[-1] > 0.5


def test_nvidias_benchmark_is_as_fast_as_if_tensor_parallelism_cost_nothing():
    """It is faster than the planner thinks; its configuration says that these messages run beside the products."""
    *benchmark, training = compare(list(elsewhere.megatron_core()), EFFICIENCY)
    assert len(benchmark) == 5
    for one in benchmark:
        found = one.run.predict(one.efficiency)
        assert -0.16 < one.error < -0.10
        assert found.step_seconds - found.time["tensor parallel"] == pytest.approx(one.run.seconds, rel=0.03)
    assert abs(training.error) < 0.05


def test_the_constant_was_fitted_to_none_of_them(megatron, fsdp):
    assert not any(one.fitted for one in (*megatron, *fsdp))
    assert not {(run.model, run.gpus, run.seconds) for run in elsewhere.runs()} & {
        (run.model, run.gpus, run.seconds) for run in validation.runs()}


def test_one_port_a_gpu_is_too_little_for_what_others_measured():
    """70 billion parameters sharded over four nodes: the messages of a step went at more than one port's 50 GB/s."""
    row = published.table("mpt_runs").row(model="70b", machine="H100", GPUs=32)
    micro_batches = row["sequences"] / (row["GPUs"] * row["micro_batch"])
    sent = 3 * micro_batches * 2 * row["parameters"] * 31 / 32
    seconds = row["sequences"] * row["positions"] / (row["tokens_per_second"] * row["GPUs"])
    assert sent / seconds > 1.5 * published.machine("H100").internode_gpu


def test_the_shapes_have_the_parameters_that_the_sources_print():
    for row in published.table("mpt_runs"):
        assert count_parameters(elsewhere.mpt(row["model"], row["positions"])).total == row["parameters"]
    assert round(count_parameters(elsewhere.NEMOTRON).total / 1e9) == 341
    for row in published.table("narayanan2021_table1_others"):
        shape = gpt(row["hidden"], row["heads"], row["layers"])
        assert round(count_parameters(shape).total / 1e9, 1) == row["params_B"]
        assert row["TFLOPs_per_GPU"] * row["GPUs"] / 1000 == pytest.approx(row["agg_PFLOPs"], rel=0.01)


def test_the_other_rows_of_table_5_agree_with_themselves():
    for row in published.table("korthikanti2022_table5_others"):
        assert 100 * (row["t_full_s"] / row["t_present_s"] - 1) == pytest.approx(row["speedup_pct"], abs=0.6)


def test_every_run_fits_its_gpus_but_one_that_is_not_said_to():
    for run in elsewhere.runs():
        found = run.predict(1)
        if run.name == "Nemotron-4 340B on 128":
            assert found.problems == ("it needs 85.3 GB on a GPU of 80 GB",)  # and it ran
        else:
            assert found.problems == (), run.name


def test_a_run_on_a_machine_that_is_not_published_is_predicted_too():
    """40 GB and a name of its own: there is no constant for it, so the one for machines without a run is taken."""
    machine = replace(published.machine("A100-80GB"), name="A100-40GB", memory_bytes=40e9)
    plan = {"tp": 1, "pp": 1, "dp": 8, "batch": 64, "sequence": 1024}
    run = Run("own", machine, gpt(2048, 16, 24), plan, 1.0, "mine")
    [one] = compare([run], EFFICIENCY)
    assert (one.efficiency, one.fitted) == (0.6, False)
    assert compare([run, run])[0].predicted == pytest.approx(1.0)  # fitted to itself


def test_a_run_is_fed_with_any_model_degree_and_recipe():
    """Latent attention, experts, context parallelism, other bytes a parameter: no part is negative or infinite."""
    plans = [Plan(tp=2, cp=2, dp=8, pp=2, ep=16, batch=64, sequence=4096, chunks=1, micro_batch=2, zero=1),
             Plan(tp=1, dp=64, pp=1, batch=64, sequence=32768, zero=3, recompute="full", recipe="8-bit Adam"),
             Plan(tp=8, dp=8, pp=1, batch=8, sequence=2048, zero=2, attention="unfused", recompute="selective",
                  overlap=False, sequence_parallel=False, recipe="fp32 gradients")]
    h100 = published.machine("H100")
    machines = (published.machine("A100-80GB"), h100, replace(h100, name="of 32", gpus_per_node=32, memory_bytes=192e9))
    for name in published.models():
        for machine in machines:
            for plan in plans:
                found = estimate(published.model(name), Cluster(machine, 64), plan)
                parts = [*found.memory.values(), *found.time.values()]
                assert all(0 <= part < float("inf") for part in parts)
                assert 0 < found.mfu < 1.2
                assert found.tokens_per_second > 0


def test_unfitted_settings_of_a_run_are_found_and_an_empty_comparison_has_no_median():
    run = Run("own", "A100-80GB", gpt(6144, 48, 40), {**MEGATRON, "tp": 8, "pp": 1, "dp": 32, "batch": 1024,
              "sequence": 2048, "recompute": "full"}, 9.4, "arXiv:2104.04473, Table 1", ("micro_batch", "chunks"))
    assert validation.settled(run).micro_batch in (1, 2, 4, 8)
    with pytest.raises(ValueError, match=r"comparisons = \[\]"):
        median_error([])


def test_the_command_prints_every_family(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["elsewhere"])
    elsewhere.main()
    printed = capsys.readouterr().out
    assert all(run.name in printed for run in elsewhere.runs())
    assert "Megatron: median error" in printed
    assert "Megatron-Core: median error" in printed
    assert "FSDP: median error" in printed

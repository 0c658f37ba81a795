"""Predictions beside published runs: one constant for each machine kind, fitted on half of its runs."""

import sys
from dataclasses import replace

import pytest

from scalebook.planner import EFFICIENCY, Cluster, Plan, estimate, validation
from scalebook.planner.validation import compare, fit, median_error, runs

# Named because the planner gets them wrong, each by more than 15%.
#
# DeepSpeed's ZeRO-3 of 2021: the step takes the same time on 768 and on 1536 GPUs, so messages alone decide, and they
# went at 16 GB/s a GPU. The planner's rings go by all eight ports of a node, eight times 25 GB/s, as PyTorch's do
# (`test_one_port_a_gpu_is_too_little_for_what_others_measured`). The paper does not say why these did not.
# MT-NLG: the same model at the same degrees took NVIDIA 49.05 s for 280 micro-batches (arXiv:2205.05198, Table 5, full
# recomputation), 0.175 s each; here 240 took 60.1 s, 0.250 s each. Interleaving explains a part, which the planner
# counts; the paper does not say where the rest went.
WRONG = {"175B by ZeRO-3 on 384", "175B by ZeRO-3 on 768", "175B by ZeRO-3 on 1536", "MT-NLG 530B on 2240",
         "MT-NLG 530B on 2800", "MT-NLG 530B on 3360"}


@pytest.fixture(scope="module")
def compared():
    return compare()


def test_the_median_error_of_the_runs_that_were_not_fitted(compared):
    tested = [one for one in compared if not one.fitted]
    for one in compared:
        print(f"{one.run.name:42}{one.run.seconds:9.2f} s published{one.predicted:9.2f} s predicted "
              f"{100 * one.error:+6.1f}%{'  fitted' if one.fitted else ''}")
    print(f"median error of the {len(tested)} runs not fitted: {100 * median_error(tested):.1f}%")
    assert len(tested) >= len(compared) // 2 - 1
    assert median_error(tested) < 0.10


def test_the_runs_that_the_planner_gets_wrong_are_those_named(compared):
    assert {one.run.name for one in compared if abs(one.error) > 0.15} == WRONG
    assert all(one.error > 0 for one in compared if one.run.name in WRONG)  # it thinks them faster than they were


def test_the_constants_in_use_are_those_that_the_fit_gives(compared):
    for one in compared:
        assert EFFICIENCY[one.run.machine] == pytest.approx(one.efficiency, abs=0.0006)


def test_every_other_run_of_a_machine_kind_is_fitted_and_the_others_are_not(compared):
    for kind in EFFICIENCY:
        assert [one.fitted for one in compared if one.run.machine == kind] == [
            place % 2 == 0 for place in range(sum(one.run.machine == kind for one in compared))]


def test_every_published_configuration_with_a_speed_is_compared():
    names = [run.name for run in runs()]
    assert len(set(names)) == len(names) == 5 + 6 + 3 + 5 + 3
    assert all(run.seconds > 0 and run.source for run in runs())


def test_the_fit_finds_an_efficiency_that_made_the_times():
    measured = [run for run in runs() if not run.unknown]
    made = [replace(run, seconds=run.predict(0.43).step_seconds) for run in measured]
    assert fit(made) == pytest.approx(0.43, rel=1e-9)


def test_the_median_is_the_middle():
    assert validation._median([3, 1, 2]) == 2
    assert validation._median([4, 1, 2, 3]) == 2.5


def test_every_published_plan_can_be_run_as_the_papers_say_it_was():
    """Degrees, batches and layers of every run divide, and it fits the memory of its GPUs, but for Llama 3.

    Its second stage has eight layers where the first has seven. Its program frees tensors early, and the paper does not
    say how many bytes that saves (section 3.3.2); by the formulas it lacks up to nine gigabytes.
    """
    for run in runs():
        found = run.predict(1)
        if run.name.startswith("Llama 3"):
            assert [problem.split(" needs ")[0] for problem in found.problems] == ["it"]
            assert 80e9 < found.memory_bytes < 90e9
        else:
            assert found.problems == (), run.name


def test_seconds_of_the_trillion_parameter_run_follow_from_its_flops():
    run = next(run for run in runs() if run.name == "1008B on 3072")
    flops = 96 * 3072 * 2048 * 128 * 25600**2 * (1 + 2048 / (6 * 25600) + 51200 / (16 * 128 * 25600))
    assert run.seconds == pytest.approx(flops / (3072 * 163e12))


def test_data_parallelism_costs_korthikantis_530b_model_about_what_was_published():
    named = {run.name: run for run in runs()}
    alone, eight = (named[f"530B, SP + selective, on {gpus}"] for gpus in (280, 2240))
    published = eight.seconds - alone.seconds
    predicted = eight.predict(0.670).step_seconds - alone.predict(0.670).step_seconds
    assert published == pytest.approx(1.32)
    assert 0.2 * published < predicted < published


def test_the_command_prints_the_comparison(compared, monkeypatch, capsys):
    monkeypatch.setattr(validation, "compare", lambda: compared)
    monkeypatch.setattr(sys, "argv", ["validation"])
    validation.main()
    printed = capsys.readouterr().out
    assert all(one.run.name in printed for one in compared)
    assert float(printed.rstrip().rstrip("%").split()[-1]) == pytest.approx(
        100 * median_error([one for one in compared if not one.fitted]), abs=0.05)


def test_the_trillion_parameter_model_does_not_fit_the_cube():
    """Published with 3072 GPUs. On 512, its states alone take what a GPU has, and activations come on top."""
    run = next(run for run in runs() if run.name == "1008B on 3072")
    plan = Plan(tp=8, pp=8, dp=8, batch=512, sequence=2048, zero=1, recompute="full", attention="unfused")
    found = estimate(run.model, Cluster(run.predict(1).cluster.machine, 512), plan)
    states = sum(found.memory[part] for part in ("weights", "gradients", "optimizer"))
    assert states > 85.9e9
    assert any("GB on a GPU of 80 GB" in problem for problem in found.problems)

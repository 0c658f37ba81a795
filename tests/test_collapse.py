"""Which balancing keeps a small trained mixture of experts from collapsing: each claim over every stored seed.

"Late" is from step 120 on: the mean over those counts of the largest load share, in the deepest layer unless said.
"""

import statistics
import subprocess
import sys

import numpy as np
import pytest
import torch

from scalebook import texts
from scalebook.data import load
from scalebook.labs import collapse
from scalebook.moe import balance

LATE = 120 // collapse.EVERY
RUNS = {(record["variant"], record["seed"]): record for record in load("collapse")["runs"]}
SEEDS = range(5)
each_seed = pytest.mark.parametrize("seed", SEEDS)


def late_share(variant, seed):
    return balance.load_shares(RUNS[variant, seed]["counts"])[LATE:, -1].max(axis=-1).mean()


def late_entropy(variant, seed):
    """Over all layers."""
    return balance.entropy(RUNS[variant, seed]["counts"])[LATE:].mean()


def final(variant, seed, layer=-1):
    return RUNS[variant, seed]["final"]["counts"][layer]


def test_the_stored_results_are_whole_and_consistent():
    results = collapse.load()
    assert set(RUNS) == {(name, seed) for name in collapse.VARIANTS for seed in SEEDS}
    assert len(results["runs"]) == len(RUNS) == 55
    assert [record["alpha"] for record in results["grid"]] == list(collapse.COEFFICIENTS)
    for record in [*results["runs"], *results["grid"]]:
        choices = 2 if record.get("variant", "").startswith("top-2") else 1
        assert record["steps"] == list(range(0, 301, 20))
        assert np.shape(record["counts"]) == (16, 3, 8)
        assert set(np.sum(record["counts"], axis=-1).ravel()) == {4096 * choices}
        assert set(np.sum(record["final"]["counts"], axis=-1)) == {32768 * choices}
        assert len(record["held_out"]) == len(record["training"]) == 16


def test_the_provenance_names_the_text_and_the_settings_of_the_code():
    results = load("collapse")
    stored = results["provenance"]
    now = collapse.provenance()
    for key in set(now) - {"python", "torch", "machine"}:
        assert stored[key] == now[key]
    assert stored["text_sha256"] == texts.TEXT_SHA256
    assert results["variants"] == {name: vars(balancing) for name, balancing in collapse.VARIANTS.items()}


def test_the_grid_shares_its_runs_with_the_variants():
    grid = {record["alpha"]: record["counts"] for record in load("collapse")["grid"]}
    for alpha, name in ((0, "no balancing"), (0.01, "loss 0.01"), (0.1, "loss 0.1")):
        assert grid[alpha] == RUNS[name, 0]["counts"]


@each_seed
def test_without_balancing_the_deepest_layer_sends_most_tokens_to_one_expert(seed):
    assert late_share("no balancing", seed) > 0.55
    assert balance.load_shares(final("no balancing", seed)).max() > 0.6
    assert balance.entropy(final("no balancing", seed)) < 0.5


@each_seed
def test_without_balancing_at_least_three_of_eight_experts_get_none_of_32768_tokens(seed):
    assert balance.idle_experts(final("no balancing", seed)) >= 3


@each_seed
def test_with_the_loss_at_0_1_every_expert_of_every_layer_is_used_evenly(seed):
    shares = balance.load_shares(RUNS["loss 0.1", seed]["final"]["counts"])
    assert shares.min() > 0.02
    assert shares.max() < 0.25
    assert late_share("loss 0.1", seed) < 0.2
    assert late_entropy("loss 0.1", seed) > 0.97


@each_seed
def test_the_loss_at_0_01_cures_in_part(seed):
    assert late_share("loss 0.1", seed) + 0.03 < late_share("loss 0.01", seed) < late_share("no balancing", seed) - 0.3
    assert 0.2 < late_share("loss 0.01", seed) < 0.3


def test_a_larger_coefficient_gives_a_more_even_load():
    """A coefficient against one that is ten times as large; neighbours on the grid are too close for one seed."""
    grid = {record["alpha"]: balance.entropy(record["counts"])[LATE:].mean() for record in load("collapse")["grid"]}
    for smaller, larger in ((0, 0.001), (0.001, 0.01), (0.003, 0.03), (0.01, 0.1)):
        assert grid[smaller] < grid[larger]


@each_seed
def test_two_experts_a_token_skew_and_do_not_collapse(seed):
    assert 0.3 < late_share("top-2, no balancing", seed) < 0.5  # of the choices: 0.5 is an expert in every pair
    assert balance.idle_experts(final("top-2, no balancing", seed)) == 0
    assert late_entropy("no balancing", seed) < 0.6 < 0.8 < late_entropy("top-2, no balancing", seed)


@each_seed
@pytest.mark.parametrize(("with_bias", "control"), [
    ("slow router, sigmoid, bias", "slow router, sigmoid, no bias"),
    ("slow router, softmax, bias", "slow router, no balancing"),
])
def test_beside_a_slow_router_the_bias_balances_on_either_gate(seed, with_bias, control):
    assert late_share(with_bias, seed) < late_share(control, seed) - 0.05
    assert late_entropy(with_bias, seed) > 0.92
    assert late_entropy(control, seed) < 0.84


@each_seed
def test_beside_a_fast_router_the_bias_balances_on_neither_gate(seed):
    assert late_share("sigmoid, bias", seed) > 0.35
    assert late_share("softmax, bias", seed) > 0.45
    assert late_entropy("softmax, bias", seed) < 0.6


def test_beside_a_fast_router_the_bias_makes_some_seeds_more_and_some_less_even():
    for with_bias, control in (("sigmoid, bias", "sigmoid, no bias"), ("softmax, bias", "no balancing")):
        changes = [late_share(with_bias, seed) - late_share(control, seed) for seed in SEEDS]
        assert min(changes) < -0.05
        assert max(changes) > 0.05


def test_the_sigmoid_gate_alone_skews_less_than_the_softmax_gate():
    for seed in SEEDS:
        assert 0.3 < late_share("sigmoid, no bias", seed) < late_share("no balancing", seed)


def test_the_task_loss_of_the_collapsed_runs_is_not_worse_in_most_seeds():
    """As it is: lower than with the loss at 0.1 in three seeds of five; in one seed it is clearly higher."""
    collapsed = [RUNS["no balancing", seed]["final"]["held_out"] for seed in SEEDS]
    balanced = [RUNS["loss 0.1", seed]["final"]["held_out"] for seed in SEEDS]
    differences = [one - other for one, other in zip(collapsed, balanced, strict=True)]
    assert sum(difference < 0 for difference in differences) == 3
    assert sum(difference > 0.1 for difference in differences) == 1
    assert abs(statistics.median(collapsed) - statistics.median(balanced)) < 0.03


def test_the_bias_that_balances_does_not_lower_the_task_loss_either():
    for seed in SEEDS:
        with_bias = RUNS["slow router, sigmoid, bias", seed]["final"]["held_out"]
        control = RUNS["slow router, sigmoid, no bias", seed]["final"]["held_out"]
        assert control < with_bias < control + 0.05


@each_seed
def test_what_collapse_costs_is_dropped_tokens_and_waiting(seed):
    dropped = {name: RUNS[name, seed]["final"]["dropped"]["1.25"][-1] for name in ("no balancing", "loss 0.1")}
    assert dropped["no balancing"] > 0.5
    assert dropped["loss 0.1"] < 0.05
    assert balance.slowest_rank(final("no balancing", seed)) > 5
    assert balance.slowest_rank(final("loss 0.1", seed)) < 1.5


def test_dropped_tokens_are_what_the_loads_say_or_more():
    """Capacity holds for each batch of 1,024 tokens, whose loads vary: it drops no less than the sum implies."""
    for record in RUNS.values():
        for factor in collapse.FACTORS:
            implied = balance.dropped_share(record["final"]["counts"], factor)
            assert (np.array(record["final"]["dropped"][str(factor)]) > implied - 0.01).all()


@pytest.fixture(scope="module")
def part():
    return {record["variant"]: record for record in collapse.recompute_part()}


def test_training_again_starts_from_the_stored_loads(part):
    """Before the first step only rounding differs; a token on a tie may go elsewhere."""
    for name, record in part.items():
        stored = RUNS[name, record["seed"]]
        difference = balance.load_shares(record["counts"][0]) - balance.load_shares(stored["counts"][0])
        assert np.abs(difference).max() < 0.005
        assert record["held_out"][0] == pytest.approx(stored["held_out"][0], abs=0.005)


def test_training_again_collapses_and_is_balanced_as_stored(part):
    """Weights that start one millionth apart are at other loads after 40 steps, so only what holds then is asserted."""
    collapsed, balanced = (balance.load_shares(part[name]["counts"])[:, -1].max(axis=-1) for name in collapse.PART)
    assert part["no balancing"]["steps"] == [0, 20, 40, 60, 80]
    assert collapsed[2:].min() > 0.5
    assert balanced[2:].max() < 0.4
    for name, record in part.items():
        stored = RUNS[name, record["seed"]]["held_out"][:5]
        assert record["held_out"] == pytest.approx(stored, abs=0.2)
        assert record["held_out"][-1] < record["held_out"][0] - 2


def test_two_trainings_on_one_machine_are_equal_to_the_digit_and_leave_the_threads_alone():
    threads = torch.get_num_threads()
    first, second = (collapse.run(collapse.VARIANTS["sigmoid, bias"], 1, 20, finish=False) for _ in range(2))
    assert first == second
    assert torch.get_num_threads() == threads
    assert not torch.are_deterministic_algorithms_enabled()


def test_the_run_and_the_file_have_one_form():
    record = collapse.run(collapse.VARIANTS["no balancing"], 0, 20)
    stored = RUNS["no balancing", 0]
    assert set(record) | {"variant", "seed"} == set(stored)
    assert set(record["final"]) == set(stored["final"])
    assert record["steps"] == stored["steps"][:2]


def test_json_is_written_with_one_run_a_line():
    text = collapse.as_json(load("collapse"))
    assert text.count('\n{"variant"') == 55
    assert len(text) < 200_000


@pytest.mark.parametrize("steps", [0, 10, 30, True, 40.0])
def test_a_part_of_another_length_is_refused(steps):
    with pytest.raises(ValueError, match="steps"):
        collapse.recompute_part(steps=steps)


def test_the_command_explains_itself():
    command = [sys.executable, "-m", "scalebook.labs.collapse", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "--part" in done.stdout
    assert "collapse.json" in done.stdout


def test_the_stored_results_are_read_without_pytorch():
    code = ("import sys; from scalebook.data import load; from scalebook.moe import balance; load('collapse'); "
            "sys.exit('torch' in sys.modules)")
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

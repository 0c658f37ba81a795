"""The chart of the page on collectives: its links are the published ones, its points lie in the frame."""

import itertools

import pytest

from scalebook.charts import collectives as charts
from scalebook.charts import units
from scalebook.charts.collectives import times
from scalebook.formulas import collectives as formulas
from scalebook.labs import collectives as lab
from tests.vega_oracle import evaluate


def test_each_link_has_nccls_latency_and_the_published_bandwidth():
    assert times.link_costs("NVLink, DGX A100") == {"alpha": 3.4e-6, "omega": 300e9, "joins": 8}
    assert times.link_costs("network, DGX A100") == {"alpha": 14e-6, "omega": 25e9, "joins": None}
    assert times.link_costs("network, DGX H100")["omega"] == 50e9


def test_every_point_lies_in_the_frame_at_every_setting():
    for link, R, S in itertools.product(charts.LINKS, charts.RANKS, (charts.SIZES[0], charts.SIZES[-1])):
        cost = times.link_costs(link)
        sizes = {"S": S, "alpha": cost["alpha"], "omega": cost["omega"]}
        found = [f(R=R, **sizes) for f in (formulas.time_all_reduce, formulas.time_all_gather,
                                           formulas.time_broadcast_best)]
        found.append(formulas.time_point_to_point(**sizes))
        assert times.SHORTEST <= min(found) <= max(found) <= times.LONGEST
        level = formulas.balanced_size(R=R, alpha=cost["alpha"], omega=cost["omega"])
        assert charts.SIZES[0] < level < charts.SIZES[-1]


def test_the_curves_of_the_browser_are_the_formulas():
    cost = times.link_costs("NVLink, DGX H100")
    texts = [text.replace("cost.", "datum.cost.").replace("ranks", "datum.ranks")
             for text in times.time_expressions("datum.size").values()]
    values = {"size": 2**26, "ranks": 8, "cost": cost}
    shown = evaluate([(text, values) for text in texts])
    sizes = {"S": 2**26, "alpha": cost["alpha"], "omega": cost["omega"]}
    assert shown == pytest.approx([
        formulas.time_all_reduce(R=8, **sizes), formulas.time_all_gather(R=8, **sizes),
        formulas.time_broadcast_best(R=8, **sizes), formulas.time_point_to_point(**sizes)], rel=1e-12)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_the_ring_that_is_drawn_is_the_one_that_real_processes_walk(size):
    states = lab.ring_steps(size)
    assert [state.step for state in states] == list(range(formulas.steps_all_reduce(R=size) + 1))
    for state in states:
        assert charts.ring_sums(size, state.step) == [[len(part) for part in parts] for parts in state.holds]


@pytest.mark.parametrize("R", charts.RING)
def test_a_step_of_the_ring_brings_each_rank_one_part(R):
    """What a rank holds grows by one cell a step: by one rank's numbers, or to the whole sum."""
    for step in range(1, formulas.steps_all_reduce(R=R) + 1):
        before, after = charts.ring_sums(R, step - 1), charts.ring_sums(R, step)
        for old, new in zip(before, after, strict=True):
            [(had, has)] = [pair for pair in zip(old, new, strict=True) if pair[0] != pair[1]]
            assert has == (step + 1 if step < R else R)
            assert had < has
    assert charts.ring_sums(R, charts.MOST_STEPS) == [[R] * R] * R


def test_no_number_of_chunks_that_is_drawn_is_faster_than_the_best():
    for link, R, S in itertools.product(charts.LINKS, charts.RANKS, charts.SIZES):
        cost = times.link_costs(link)
        at = {"R": R, "S": S, "alpha": cost["alpha"], "omega": cost["omega"]}
        best = formulas.time_broadcast_best(**at)
        drawn = formulas.time_broadcast(k=list(charts.CHUNKS), **at)
        assert charts.CHUNKS[0] <= formulas.best_chunks(**at) <= charts.CHUNKS[-1]
        assert best <= drawn.min() * (1 + 1e-12)
        assert drawn.min() < 1.1 * best


@pytest.mark.parametrize("name", ["all-gather", "reduce-scatter", "all-to-all"])
def test_the_collectives_of_one_curve_cost_the_same(name):
    assert formulas.COLLECTIVES[name].time.expression == formulas.time_all_gather.expression


@pytest.mark.parametrize(("write", "number", "text"), [
    (units.decimal_bytes, 2.5e6, "2.5 MB"), (units.decimal_bytes, 1e9, "1 GB"), (units.decimal_bytes, 4.3e13, "43 TB"),
    (units.binary_bytes, 1536, "1.5 KiB"), (units.binary_bytes, 2**26, "64 MiB"), (units.binary_bytes, 2**30, "1 GiB"),
    (units.seconds, 3.4e-6, "3.4 µs"), (units.seconds, 0.0123, "12.3 ms"), (units.seconds, 12, "12 s"),
])
def test_numbers_are_written_with_the_unit_that_fits(write, number, text):
    assert evaluate([(write("datum.x"), {"x": number})]) == [text]

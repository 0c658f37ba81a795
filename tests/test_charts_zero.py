"""The functions behind the explorers of chapter 5, over their grids: right steps of stage 3, and all in the frame."""

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalebook.charts.zero import largest_chart, life, life_chart, memory, memory_chart, step, step_chart
from scalebook.explorer import grid
from scalebook.formulas import zero as formulas

SETTINGS = [dict(zip(life.GRID, values, strict=True)) for values in itertools.product(*life.GRID.values())]
any_step = st.fixed_dictionaries({
    "L": st.integers(1, 7), "prefetch": st.integers(0, 3), "reshard": st.booleans(),
    "gather": st.sampled_from([0.25, 0.5, 1, 1.5, 2, 3])})
forall = settings(deadline=None, max_examples=80)


def of_kind(step, *kinds):
    return [one for one in step.operations if one.kind in kinds]


@given(any_step)
@forall
def test_link_and_processor_do_one_thing_at_a_time_and_each_thing_takes_its_time(setting):
    taken = life.simulate_step(**setting)
    for kinds in ((life.GATHER, life.REDUCE), (life.FORWARD, life.BACKWARD)):
        ordered = sorted(of_kind(taken, *kinds), key=lambda one: one.start)
        assert all(first.end <= second.start for first, second in itertools.pairwise(ordered))
        for one in ordered:
            assert one.end - one.start == pytest.approx(life.TIMES.get(one.kind, setting["gather"]))


@given(any_step)
@forall
def test_each_layer_computes_only_while_its_weights_are_held_whole(setting):
    taken = life.simulate_step(**setting)
    gathers = {(one.layer, one.start): one.end for one in of_kind(taken, life.GATHER)}
    for one in of_kind(taken, life.FORWARD, life.BACKWARD):
        assert any(layer == one.layer and gathers[layer, start] <= one.start and one.end <= end
                   for layer, start, end in taken.weights)


@given(any_step)
@forall
def test_gradients_are_reduced_after_their_backward_and_then_no_longer_held(setting):
    taken = life.simulate_step(**setting)
    backwards = {one.layer: one for one in of_kind(taken, life.BACKWARD)}
    reduces = {one.layer: one for one in of_kind(taken, life.REDUCE)}
    assert set(backwards) == set(reduces) == set(range(1, setting["L"] + 1))
    assert all(reduces[layer].start >= backwards[layer].end for layer in backwards)
    assert sorted(taken.gradients) == sorted((layer, backwards[layer].start, reduces[layer].end) for layer in backwards)


@given(any_step)
@forall
def test_every_layer_is_gathered_twice_but_for_the_last_and_once_when_kept(setting):
    taken = life.simulate_step(**setting)
    gathered = [one.layer for one in of_kind(taken, life.GATHER)]
    L = setting["L"]
    assert sorted(gathered) == sorted([*range(1, L + 1), *(range(1, L) if setting["reshard"] else [])])
    # The formulas count the last layer twice: the difference is one layer of L.
    formula = formulas.elements_stage3 if setting["reshard"] else formulas.elements_stage3_kept
    layers = formula(Psi=2 * L, N=2, M=1)
    assert len(of_kind(taken, life.GATHER, life.REDUCE)) == layers - setting["reshard"]


@given(any_step)
@forall
def test_resharding_holds_one_layer_and_those_prefetched_and_keeping_holds_all(setting):
    taken = life.simulate_step(**setting)
    most = max(weights for _, _, weights, _ in taken.held())
    assert most <= setting["prefetch"] + 1 if setting["reshard"] else most == setting["L"]
    # A layer's two uses are at least 3 operations apart: only a prefetch that long gathers it while it is still held.
    assert most <= setting["L"] or setting["prefetch"] >= 3


def test_without_prefetch_the_processor_waits_for_every_gather():
    taken = life.simulate_step(4, prefetch=0, reshard=True, gather=0.5)
    assert taken.waiting == 7 * 0.5
    hidden = life.simulate_step(4, prefetch=1, reshard=True, gather=0.5)
    assert hidden.waiting == 0.5  # the first gather has nothing to hide under


@pytest.mark.parametrize("wrong", [{"L": 0}, {"prefetch": -1}, {"gather": 0}], ids=str)
def test_a_step_that_cannot_be_names_what_is_wrong(wrong):
    ((name, value),) = wrong.items()
    with pytest.raises(ValueError, match=f"{name} = {value} is not allowed"):
        life.simulate_step(**({"L": 4, "prefetch": 1, "reshard": True, "gather": 1} | wrong))


def test_every_step_of_the_grid_lies_in_the_frame():
    ends = life.longest()
    for setting in SETTINGS:
        taken = life.simulate_step(**setting)
        assert taken.end <= ends[setting["L"]][setting["gather"]]
        assert max(weights + gradients for _, _, weights, gradients in taken.held()) <= setting["L"] + life.ROOM


def test_packed_steps_read_back_as_the_steps():
    for row in grid(life.life_row, L=(4,), prefetch=(1,), reshard=(True, False), gather=(1.5,)):
        taken = life.simulate_step(4, 1, row["reshard"], 1.5)
        numbers = [int(row["operations"][i:i + 2], 36) for i in range(0, len(row["operations"]), 2)]
        back = [(list(life.KINDS)[numbers[i]], numbers[i + 1], numbers[i + 2] / life.TICKS, numbers[i + 3] / life.TICKS)
                for i in range(0, len(numbers), 4)]
        assert back == [(one.kind, one.layer, one.start, one.end) for one in taken.operations]


def test_the_largest_models_lie_in_the_frame_for_every_card_and_recipe_with_up_to_60_gb_for_the_rest():
    alone, all_ranks = (dict.fromkeys(("n_w", "n_g", "n_o"), ranks) for ranks in (1, memory.RANKS[-1]))
    for card, recipe in itertools.product(memory.cards(), formulas.recipes().values()):
        known = {"C": card * 10**9, **recipe.sizes}
        assert formulas.largest_model(**known, **alone, A=60 * 10**9) / 1e9 >= memory.LEAST
        assert formulas.largest_model(**known, **all_ranks, A=0) / 1e9 <= memory.MOST


def test_the_links_are_those_of_the_published_machines():
    links = step.links()
    assert links["H100, NVLink"]["omega"] == 9 * links["H100, between nodes"]["omega"]
    assert all(link["most"] == (8 if "NVLink" in name else 0) for name, link in links.items())


@pytest.mark.parametrize("chart", [memory_chart, largest_chart, step_chart, life_chart])
def test_a_chart_is_the_same_each_time_it_is_made(chart):
    assert json.dumps(chart().to_dict(), sort_keys=True) == json.dumps(chart().to_dict(), sort_keys=True)

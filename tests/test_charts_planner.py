"""The functions behind the explorers of chapter 6: the planner's numbers, in the frame, at every position."""

import itertools
import json

import pytest

from scalebook import published
from scalebook.charts.mesh import cube, cube_chart, isometric
from scalebook.charts.planner import (
    expressions,
    memory,
    memory_chart,
    parts,
    scaling,
    scaling_chart,
    table,
    table_chart,
    time_chart,
)
from scalebook.colours import DARK_PAGE, LIGHT_PAGE, contrast
from scalebook.planner import Cluster, costs, search


def read(row):
    """The packed layouts of a row, as dicts."""
    text, width = row["best"], table.WIDTH
    numbers = [int(text[at:at + width], 36) for at in range(0, len(text), width)]
    return [dict(zip(table.NUMBERS, numbers[at:at + len(table.NUMBERS)], strict=True))
            for at in range(0, len(numbers), len(table.NUMBERS))]


def test_a_packed_row_is_the_planners_answer():
    asked = {"model": "Llama-3-70B", "machine": "H100", "gpus": 512, "sequence": 8192, "tokens": 4}
    row = table.table_row(**asked)
    answer = search(published.model("Llama-3-70B"), Cluster(published.machine("H100"), 512), batch=512, sequence=8192,
                    **table.SETTINGS)
    best = answer.best_layouts(table.ROWS)
    assert (row["run"], row["full"]) == (len(answer.plans), answer.counts["memory"])
    assert len(read(row)) == len(best) == table.ROWS
    for shown, right in zip(read(row), best, strict=True):
        assert all(shown[name] == getattr(right.plan, name) for name in table.NUMBERS[:7])
        assert shown["step"] / 1000 == pytest.approx(right.step_seconds, abs=5e-4)
        assert shown["mfu"] / 1000 == pytest.approx(right.mfu, abs=5e-4)
        assert shown["memory"] / 10 == pytest.approx(right.memory_bytes / 1e9, abs=0.05)


def test_layouts_come_fastest_first_and_change_with_the_question():
    few, many = (table.table_row("Llama-3-70B", "H100", gpus, 8192, 4) for gpus in (128, 512))
    for row in (few, many):
        steps = [one["step"] for one in read(row)]
        assert steps == sorted(steps)
    assert [one["tp"] for one in read(few)] != [one["tp"] for one in read(many)]


def test_more_tokens_than_memory_leaves_no_layout_and_says_so():
    row = table.table_row("Llama-3-405B", "A100-80GB", 128, 131072, 4)
    assert (row["best"] == "") == (row["run"] == 0)


def test_the_parts_are_those_of_the_planner():
    kept = [part for part in costs.MEMORY if part in expressions.MEMORY]
    assert [*kept, "recomputed and head"] == list(expressions.MEMORY)
    assert set(costs.MEMORY) - set(kept) == {"recomputed activations", "head activations"}
    assert set(costs.TIME) - set(expressions.TIME) == {"context parallel", "expert parallel"}


def test_every_model_divides_into_the_stages_of_the_memory_chart():
    for model, stages in itertools.product(expressions.MODELS, (1, 2, 4, 8, 16)):
        layers = expressions.shape_of(model).layers
        assert layers % stages == 0 or (layers + 2) % stages == 0
        assert all(expressions.shape_of(model).heads % ranks == 0 for ranks in (1, 2, 4, 8))


def test_a_trillion_parameters_on_the_cube_are_held_as_the_lesson_counts():
    """16 bytes a parameter over 64 ranks, the optimizer's 12 over 8 more: of a model of 1.008e12."""
    from scalebook.moe import count_parameters

    total = count_parameters(expressions.shape_of(expressions.TRILLION)).total
    assert total / 64 * (4 + 12 / 8) / 1e9 == pytest.approx(85.9 * total / 1e12, rel=1e-3)


def test_cards_and_published_runs_are_read_from_the_tables():
    assert list(memory.cards()) == [80, 180]
    assert [run["g"] for run in scaling.published_runs()] == [8192, 16384]
    assert scaling.COUNTS[0] == 8
    assert scaling.COUNTS[-1] == 16384


@pytest.mark.parametrize("page", [LIGHT_PAGE, DARK_PAGE])
def test_every_colour_is_seen_on_each_page(page):
    for colour in (*parts.MEMORY_COLOURS.values(), *parts.KINDS.values(), *isometric.AXES.values()):
        assert contrast(colour, page) >= 3
    for group in (parts.MEMORY_COLOURS, parts.KINDS, isometric.AXES):
        assert len(set(group.values())) == len(group)


def test_no_rank_of_the_cube_hides_another_and_all_lie_in_the_frame():
    places = [isometric.flat(tp=tp, dp=dp, pp=pp) for tp, dp, pp in itertools.product(range(cube.MOST), repeat=3)]
    nearest = min(abs(x - u) + abs(y - v) for (x, y), (u, v) in itertools.combinations(places, 2))
    assert nearest > 0.05
    assert all(x > 0 and y > 0 for x, y in places)


@pytest.mark.parametrize("chart", [cube_chart, memory_chart, time_chart, scaling_chart])
def test_a_chart_is_the_same_each_time_it_is_made(chart):
    assert json.dumps(chart().to_dict(), sort_keys=True) == json.dumps(chart().to_dict(), sort_keys=True)


def test_the_table_travels_in_less_than_half_of_what_an_explorer_may(monkeypatch):
    monkeypatch.setattr(table, "GRID", {**table.GRID, "gpus": (512,), "model": ("Llama-3-70B",)})
    size = len(json.dumps(table_chart().to_dict()))
    assert 8 * size < 120_000  # the whole grid has eight times as many rows


def test_the_picture_has_three_groups_of_eight_that_meet_and_names_their_links():
    from scalebook.charts.mesh import picture

    places = [dict(zip(isometric.AXES, place, strict=True)) for place in itertools.product(range(8), repeat=3)]
    colours = [picture.colour_of(place, picture.DARK) for place in places]
    for axis, colour in isometric.AXES.items():
        drawn = [place for place, own in zip(places, colours, strict=True) if own == colour]
        assert [place[axis] for place in drawn] == list(range(7))  # the eighth is the rank that they share
    assert colours.count(picture.DARK.ink) == 1
    assert picture.DARK.page == "#0f172a"
    assert set(picture.links().values()) == {"NVLink, 450 GB/s each way", "InfiniBand, 50 GB/s each way"}
    for ground in (picture.DARK, picture.LIGHT):
        for colour in isometric.AXES.values():
            assert contrast(picture.mixed(colour, ground.ink, ground.text), ground.page) >= 4.5

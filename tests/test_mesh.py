"""The grid of ranks: groups are partitions, in the published orders; and what is not allowed is refused by name."""

import doctest
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalebook import mesh, published
from scalebook.mesh import AXES, DENSE, EXPERT, LLAMA_3, MEGATRON, RankGrid

DEGREE = st.sampled_from([1, 2, 3, 4])
CUBE = {"tp": [0, 1, 2, 3, 4, 5, 6, 7], "second": [0, 8, 16, 24, 32, 40, 48, 56],
        "third": [0, 64, 128, 192, 256, 320, 384, 448]}


@st.composite
def grids(draw):
    """A grid of any degrees and any order of the axes, its experts carved out where they can be."""
    tp, cp, dp, pp = (draw(DEGREE) for _ in range(4))
    ep = draw(st.sampled_from([n for n in range(1, cp * dp + 1) if cp * dp % n == 0]))
    order = "-".join(draw(st.permutations(AXES)))
    return RankGrid(tp=tp, cp=cp, ep=ep, dp=dp, pp=pp, order=order)


def joined(names):
    """All choices of some of the axes, joined by hyphens."""
    return ["-".join(some) for size in range(1, len(names) + 1) for some in itertools.combinations(names, size)]


def test_the_examples_in_the_docstrings_hold():
    result = doctest.testmod(mesh)
    assert result.attempted > 0
    assert result.failed == 0


@given(grids())
@settings(deadline=None, max_examples=60)
def test_the_groups_of_every_axis_are_a_partition_into_world_over_degree_groups(grid):
    for axes in joined(DENSE) + joined(EXPERT):
        groups = grid.groups(axes)
        assert sorted(rank for group in groups for rank in group) == list(range(grid.world_size))
        assert {len(group) for group in groups} == {grid.degree(axes)}
        assert len(groups) * grid.degree(axes) == grid.world_size
        assert groups == sorted(sorted(group) for group in groups)


@given(grids(), st.data())
@settings(deadline=None, max_examples=60)
def test_ranks_of_a_group_differ_in_its_axis_only(grid, data):
    axis = data.draw(st.sampled_from(DENSE))
    for group in grid.groups(axis)[:8]:
        places = [grid.coordinates(rank) for rank in group]
        assert [place[axis] for place in places] == list(range(grid.degree(axis)))
        assert len({tuple(place[other] for other in DENSE if other != axis) for place in places}) == 1


@given(grids(), st.data())
@settings(deadline=None, max_examples=60)
def test_rank_is_the_inverse_of_coordinates(grid, data):
    rank = data.draw(st.integers(0, grid.world_size - 1))
    place = grid.coordinates(rank)
    assert grid.rank(place) == rank
    assert grid.rank({axis: place[axis] for axis in DENSE}) == rank
    assert rank in grid.group_of(rank, "dp")


@given(grids())
@settings(deadline=None, max_examples=60)
def test_the_first_axis_of_the_order_changes_fastest(grid):
    dense = [axis for axis in grid.order.split("-") if axis != "ep"]
    stride = 1
    for axis in dense:
        group = grid.group_of(0, axis)
        assert group == [stride * place for place in range(grid.degree(axis))]
        stride *= grid.degree(axis)


@given(grids())
@settings(deadline=None, max_examples=60)
def test_experts_are_carved_out_of_the_ranks_that_share_a_stage_and_a_slice(grid):
    shared = {tuple(group) for group in grid.groups("dp-cp")}
    assert {tuple(group) for group in grid.groups("ep-edp")} == shared
    assert grid.degree("ep") * grid.degree("edp") == grid.cp * grid.dp
    assert grid.groups("pp") == RankGrid(tp=grid.tp, cp=grid.cp, dp=grid.dp, pp=grid.pp, order=grid.order).groups("pp")


@given(st.tuples(DEGREE, DEGREE, DEGREE, DEGREE, DEGREE))
@settings(deadline=None, max_examples=60)
def test_with_pp_last_the_experts_grid_is_the_ranks_counted_through_tp_ep_edp_pp(degrees):
    """Megatron-Core numbers a second grid of the same ranks, with cp dp / ep copies: here by plain arithmetic."""
    tp, ep, edp, pp, _ = degrees
    grid = RankGrid(tp=tp, cp=1, ep=ep, dp=ep * edp, pp=pp, order=MEGATRON)
    for rank in range(grid.world_size):
        expected = {"tp": rank % tp, "ep": rank // tp % ep, "edp": rank // (tp * ep) % edp,
                    "pp": rank // (tp * ep * edp)}
        assert grid.expert_coordinates(rank) == expected


def test_megatrons_example_of_16_gpus():
    """The example in the docstring of initialize_model_parallel: tensor 2, pipeline 4, so data 2."""
    grid = RankGrid(tp=2, dp=2, pp=4)
    assert grid.groups("dp") == [[0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9, 11], [12, 14], [13, 15]]
    assert grid.groups("tp") == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11], [12, 13], [14, 15]]
    assert grid.groups("pp") == [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15]]


@pytest.mark.parametrize(("order", "second", "third"), [(MEGATRON, "dp", "pp"), (LLAMA_3, "pp", "dp")])
def test_the_cubes_first_groups_in_both_published_orders(order, second, third):
    grid = RankGrid(tp=8, dp=8, pp=8, order=order)
    assert (grid.groups("tp")[0], grid.groups(second)[0], grid.groups(third)[0]) == tuple(CUBE.values())


def test_the_published_orders_are_the_books():
    orders = published.table("rank_order")
    assert {row["system"]: row["order"] for row in orders} == {"Megatron-Core": MEGATRON, "Llama 3": LLAMA_3}
    assert RankGrid().order == MEGATRON


def test_published_runs_have_the_gpus_that_their_degrees_multiply_to():
    checked = 0
    for run in published.table("runs_3d"):
        if run["DP"] is None:
            continue
        grid = RankGrid(tp=run["TP"], cp=run["CP"] or 1, dp=run["DP"], pp=run["PP"])
        assert grid.world_size == run["GPUs"]
        checked += 1
    assert checked == 11


def test_experts_do_not_enter_the_world_size():
    # DeepSeek-V3: 2048 GPUs, 16 stages, no tensor parallelism, experts shared by 64 of the 128 data-parallel ranks
    grid = RankGrid(tp=1, pp=16, dp=128, ep=64)
    assert (grid.world_size, grid.edp, grid.degree("ep")) == (2048, 2, 64)


def test_a_stage_of_the_cube_is_64_gpus_and_a_node_holds_one_tensor_parallel_group():
    grid = RankGrid()
    assert grid.degree("tp-dp") == 64
    assert grid.nodes_of_a_group("tp", 8) == 1
    assert grid.nodes_of_a_group("pp", 8) == 8
    assert RankGrid(order="dp-tp-pp").nodes_of_a_group("tp", 8) == 8


@given(st.integers(1, 200))
@settings(deadline=None, max_examples=40)
def test_all_grids_of_a_number_of_gpus_are_found_once(gpus):
    found = [(grid.tp, grid.dp, grid.pp) for grid in mesh.grids(gpus)]
    assert len(set(found)) == len(found)
    assert all(math.prod(degrees) == gpus for degrees in found)
    brute = sum(1 for tp in range(1, gpus + 1) for dp in range(1, gpus // tp + 1) if gpus % (tp * dp) == 0)
    assert len(found) == brute


@pytest.mark.parametrize("value", [0, -1, 2.0, "2", None, True])
@pytest.mark.parametrize("axis", AXES)
def test_a_degree_that_is_no_count_is_refused_by_name(axis, value):
    with pytest.raises(ValueError, match=rf"^{axis} = .* is not allowed; it must be a whole number, at least 1"):
        RankGrid(**{axis: value})


@pytest.mark.parametrize(("order", "words"), [
    ("tp-dp-xx-pp", "must name axes out of"), ("tp-tp-dp-pp", "each once"), ("tp-dp", "pp is missing"),
    ("", "must name axes"), (7, "is missing"), ("tp dp pp", "must name axes"),
])
def test_an_order_that_does_not_fit_is_refused(order, words):
    with pytest.raises(ValueError, match=rf"order = .* is not allowed; .*{words}"):
        RankGrid(order=order)


def test_an_axis_of_degree_1_may_be_left_out_and_one_of_more_may_not():
    assert RankGrid(tp=2, dp=1, pp=2, order="tp-pp").groups("dp") == [[0], [1], [2], [3]]
    with pytest.raises(ValueError, match=r"order = .tp-dp-pp. is not allowed; .*ep is missing"):
        RankGrid(ep=2, order="tp-dp-pp")


def test_experts_that_do_not_divide_the_ranks_are_refused():
    with pytest.raises(ValueError, match=r"ep = 3 is not allowed; it must divide cp dp = 8"):
        RankGrid(ep=3)


@pytest.mark.parametrize("rank", [-1, 512, 1.0, "0", None, True])
def test_a_rank_outside_the_world_is_refused(rank):
    for ask in (RankGrid().coordinates, RankGrid().expert_coordinates, lambda r: RankGrid().group_of(r, "tp")):
        with pytest.raises(ValueError, match=r"rank = .* is not allowed; it must be a whole number from 0 to 511"):
            ask(rank)


@pytest.mark.parametrize("axes", ["", "xx", "tp-tp", "ep-dp", "cp-edp", None, 3])
def test_an_axis_that_no_grid_has_is_refused(axes):
    with pytest.raises(ValueError, match=r"axes = .* is not allowed"):
        RankGrid().groups(axes)


@pytest.mark.parametrize(("coordinates", "words"), [
    ({"tp": 8, "dp": 0, "pp": 0}, "tp = 8 is not allowed; it must be a whole number from 0 to 7"),
    ({"tp": 0, "dp": 0}, "pp is missing"), ({"x": 0}, "'x', which is not an axis"), (5, "it must map axes to places"),
    ({"tp": 0, "dp": 0, "pp": True}, "pp = True is not allowed"),
])
def test_coordinates_outside_the_grid_are_refused(coordinates, words):
    with pytest.raises(ValueError, match=words):
        RankGrid().rank(coordinates)


def test_an_ep_that_contradicts_the_other_coordinates_is_refused():
    grid = RankGrid(tp=1, ep=2, dp=4, pp=1)
    assert grid.rank({"dp": 3, "ep": 1}) == 3
    with pytest.raises(ValueError, match="ep = 0 is not allowed; at the other coordinates ep is 1"):
        grid.rank({"dp": 3, "ep": 0})


def test_a_numpy_rank_is_a_rank():
    assert RankGrid().coordinates(np.int64(77)) == RankGrid().coordinates(77)

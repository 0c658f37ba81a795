"""The grid's groups are those that PyTorch's DeviceMesh makes on real processes, and messages stay inside them."""

import subprocess
import sys
from dataclasses import replace

import pytest

from scalebook.labs import mesh as lab
from scalebook.mesh import LLAMA_3, MEGATRON, RankGrid

# The axes from slowest to fastest, written out by hand: what the order says, read from the right.
CUBES = {
    "Megatron-Core": (MEGATRON, {"pp": 2, "dp": 2, "tp": 2}),
    "Llama 3": (LLAMA_3, {"dp": 2, "pp": 2, "tp": 2}),
    "context": (MEGATRON, {"dp": 2, "cp": 2, "tp": 2}),
    "pipeline first": ("pp-dp-tp", {"tp": 2, "dp": 2, "pp": 2}),
    "uneven": (MEGATRON, {"pp": 4, "dp": 1, "tp": 2}),
}
GRIDS = {name: RankGrid(**{"tp": 1, "dp": 1, "pp": 1, **axes}, order=order) for name, (order, axes) in CUBES.items()}
EXPERTS = RankGrid(tp=2, ep=2, dp=4, pp=1)


@pytest.fixture(scope="module")
def compared():
    return dict(zip([*GRIDS, "experts"], lab.compare(*GRIDS.values(), EXPERTS), strict=True))


@pytest.mark.parametrize("name", CUBES)
def test_the_groups_are_those_of_pytorchs_device_mesh(compared, name):
    grid, found = GRIDS[name], compared[name]
    for rank in range(8):
        for axis in CUBES[name][1]:
            assert grid.group_of(rank, axis) == found.group_of(rank, axis)
            assert found.sums[rank][axis] == sum(found.members[rank][axis])
    for axis in CUBES[name][1]:
        assert grid.groups(axis) == [list(group) for group in found.groups(axis)]
    assert found.equal()


@pytest.mark.parametrize("name", CUBES)
def test_the_dimensions_of_the_mesh_are_those_written_out_by_hand(name):
    of_more_than_one = [(axis, degree) for axis, degree in lab.dimensions(GRIDS[name]) if degree > 1]
    assert of_more_than_one == [(axis, degree) for axis, degree in CUBES[name][1].items() if degree > 1]


def test_the_experts_groups_are_those_of_a_second_device_mesh_of_the_same_ranks(compared):
    assert lab.dimensions(EXPERTS) == [("pp", 1), ("edp", 2), ("ep", 2), ("tp", 2)]
    assert compared["experts"].axes == ("pp", "edp", "ep", "tp")
    assert compared["experts"].equal()
    assert compared["experts"].groups("ep") == [(0, 2), (1, 3), (4, 6), (5, 7)]


def test_a_wrong_order_is_seen_and_so_is_a_group_that_did_not_work(compared):
    found = compared["Megatron-Core"]
    assert not found.equal(GRIDS["Llama 3"])
    assert not found.equal(GRIDS["pipeline first"])
    broken = [dict(sums) for sums in found.sums]
    broken[3]["tp"] += 1
    assert not replace(found, sums=tuple(broken)).equal()


@pytest.mark.parametrize(("grids", "words"), [
    ((), r"grids = \(\) is not allowed"),
    (("2x2x2",), "'2x2x2' is not allowed; it must be a RankGrid"),
    ((RankGrid(tp=2, dp=1, pp=1), RankGrid(tp=2, dp=2, pp=1)), "equally many ranks"),
    ((RankGrid(tp=1, ep=2, dp=2, pp=1, order="tp-ep-dp"),), "order = 'tp-ep-dp' is not allowed where ep is above 1"),
])
def test_grids_that_cannot_be_compared_are_refused(grids, words):
    with pytest.raises(ValueError, match=words):
        lab.compare(*grids)


def test_the_lab_prints_the_same_by_itself_and_under_torchrun(tmp_path):
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--log-dir", str(tmp_path), "--nproc-per-node", "4"]
    alone = ["-m", "scalebook.labs.mesh", "--pp", "1", "--order", LLAMA_3]
    printed = [
        subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=280, check=True).stdout
        for command in (alone, [*torchrun, *alone])
    ]
    assert printed[0] == printed[1]
    assert printed[0].splitlines()[-1] == "equal to RankGrid's on every rank: True"
    assert "  tp: [0, 1] [2, 3]" in printed[0]


def test_bad_input_on_the_command_line_is_told_without_a_traceback():
    done = subprocess.run([sys.executable, "-m", "scalebook.labs.mesh", "--order", "tp-dp"], capture_output=True,
                          text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert "order = 'tp-dp' is not allowed" in done.stderr
    assert "Traceback" not in done.stderr

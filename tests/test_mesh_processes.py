"""The grid's groups are those that PyTorch's DeviceMesh makes on real processes, and messages stay inside them."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from scalebook import ranks
from scalebook.mesh import LLAMA_3, MEGATRON, RankGrid

# The axes from slowest to fastest, written out by hand: what the order says, read from the right.
CUBES = {
    "Megatron-Core": (MEGATRON, {"pp": 2, "dp": 2, "tp": 2}),
    "Llama 3": (LLAMA_3, {"dp": 2, "pp": 2, "tp": 2}),
    "context": (MEGATRON, {"dp": 2, "cp": 2, "tp": 2}),
    "pipeline first": ("pp-dp-tp", {"tp": 2, "dp": 2, "pp": 2}),
    "uneven": (MEGATRON, {"pp": 4, "dp": 1, "tp": 2}),
}


def groups_of_device_mesh(rank, world_size, cubes):
    """This rank's group on every axis of every cube, as PyTorch has it, and the sum of the ranks in it."""
    found = {}
    for name, axes in cubes.items():
        mesh = init_device_mesh("cpu", tuple(axes.values()), mesh_dim_names=tuple(axes))
        for axis in axes:
            group, total = mesh.get_group(axis), torch.tensor(rank)
            dist.all_reduce(total, group=group)
            found[name, axis] = dist.get_process_group_ranks(group), total.item()
    return found


def groups_of_experts(rank, world_size):
    """This rank's groups in a second mesh of the same ranks: stages, copies, experts, slices."""
    mesh = DeviceMesh("cpu", torch.arange(world_size).view(1, 2, 2, 2), mesh_dim_names=("pp", "edp", "ep", "tp"))
    return {axis: dist.get_process_group_ranks(mesh.get_group(axis)) for axis in ("pp", "edp", "ep", "tp")}


@pytest.fixture(scope="module")
def measured():
    return ranks.run(groups_of_device_mesh, 8, {name: axes for name, (_, axes) in CUBES.items()})


@pytest.mark.parametrize("name", CUBES)
def test_the_groups_are_those_of_pytorchs_device_mesh(measured, name):
    order, axes = CUBES[name]
    grid = RankGrid(**{"tp": 1, "dp": 1, "pp": 1, **axes}, order=order)
    assert grid.world_size == 8
    for rank, found in enumerate(measured):
        for axis in axes:
            members, total = found[name, axis]
            assert grid.group_of(rank, axis) == members
            assert total == sum(members)


def test_the_experts_groups_are_those_of_a_second_device_mesh_of_the_same_ranks():
    grid = RankGrid(tp=2, ep=2, dp=4, pp=1)
    for rank, found in enumerate(ranks.run(groups_of_experts, 8)):
        for axis, members in found.items():
            assert grid.group_of(rank, axis) == members

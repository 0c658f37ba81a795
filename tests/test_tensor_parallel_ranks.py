"""Tensor parallelism on real processes, in small: the four operations, the vocabulary's ends, groups, dropout.

All checks of a number of ranks run in one `ranks.run`; each returns what the tests compare.
"""

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from scalebook import ranks
from scalebook import tensor_parallel as tp

R = 4
TOLERANCE = {"atol": 1e-12, "rtol": 1e-12}


def drawn(*sizes, seed=0):
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def pass_through(operation, x, gradient):
    """What an operation gives, and the gradient of x when that of its result is `gradient`."""
    x = x.clone().requires_grad_()
    y = operation(x)
    y.backward(gradient)
    return y.detach(), x.grad


def everything(rank, world_size):
    """All that the tests look at."""
    own, own_gradient = drawn(8, 3, seed=rank), drawn(8, 3, seed=100 + rank)
    part, part_gradient = drawn(2, 3, seed=rank), drawn(2, 3, seed=100 + rank)
    strided = drawn(3, 8, seed=rank).T  # not contiguous
    found = {
        "f": pass_through(tp.copy_to_ranks, own, own_gradient),
        "g": pass_through(tp.reduce_from_ranks, own, own_gradient),
        "gather": pass_through(tp.gather_sequence, part, own_gradient),
        "scatter": pass_through(tp.scatter_sequence, own, part_gradient),
        "strided": pass_through(tp.scatter_sequence, strided, part_gradient),
        "loss": loss_of_extreme_logits(rank, world_size),
        "embedding": embed(rank, world_size),
        "groups": in_groups_of_two(rank),
        "errors": errors(),
        "untouched": torch.equal(own, drawn(8, 3, seed=rank)),
    }
    with torch.no_grad():
        found["no gradients"] = tp.reduce_from_ranks(own)
    return found


def logits_and_targets():
    """Logits so large that their exponentials overflow, and a target in each rank's part of the vocabulary."""
    return 1000 * drawn(5, 2, 4 * R), torch.randint(4 * R, (5, 2), generator=torch.Generator().manual_seed(3))


def loss_of_extreme_logits(rank, world_size):
    """The losses, the gradient of this rank's logits, and the calls."""
    logits, targets = logits_and_targets()
    own = logits.chunk(world_size, dim=-1)[rank].clone().requires_grad_()
    with ranks.count() as traffic:
        losses = tp.vocabulary_parallel_cross_entropy(own, targets)
        losses.sum().backward()
    return losses.detach(), own.grad, traffic


def embed(rank, world_size):
    """This rank's embedded positions with and without sequence parallelism, and the gradients of its rows."""
    table, tokens = drawn(4 * R, 3), torch.arange(4 * R).view(8, -1).flip(0)
    found = []
    for sequence_parallel in (False, True):
        embedding = tp.VocabularyParallelEmbedding(4 * R, 3, tp.Region(sequence_parallel=sequence_parallel)).double()
        embedding.weight.data.copy_(tp.shard_columns(table, rank, world_size))
        x = embedding(tokens)
        gradient = drawn(8, 2, 3, seed=7)
        x.backward(tp.shard_sequence(gradient, rank, world_size) if sequence_parallel else gradient)
        found.append((x.detach(), embedding.weight.grad))
    return found


def in_groups_of_two(rank):
    """Ranks 0 and 1 share one block, 2 and 3 another: the output, and whether a group of others is refused."""
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    whole = block_of_group(rank // 2)
    region = tp.Region(groups[rank // 2], sequence_parallel=True)
    block = tp.ParallelBlock.of(whole, region)
    y = block(tp.shard_sequence(drawn(6, 2, 16), region.rank, 2))
    (y * y).sum().backward()
    tp.sum_copies(block, region.group)
    try:
        tp.Region(groups[1 - rank // 2])
    except ValueError as error:
        return y.detach(), block.mlp_norm.weight.grad, str(error)
    return y.detach(), block.mlp_norm.weight.grad, "allowed"


def block_of_group(number):
    """The block that the ranks of a group share."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(number)
        return tp.Block(tp.Shape(hidden=16, heads=2)).double()


def errors():
    """What is refused on four ranks, as text."""
    calls = [lambda: tp.scatter_sequence(torch.ones(6, 1)), lambda: tp.ColumnParallelLinear(8, 6, tp.Region()),
             lambda: tp.RowParallelLinear(6, 8, tp.Region()),
             lambda: tp.VocabularyParallelEmbedding(6, 8, tp.Region()),
             lambda: tp.ParallelBlock(tp.Shape(hidden=12, heads=6), tp.Region())]
    found = []
    for call in calls:
        with pytest.raises(ValueError, match="not allowed") as refused:
            call()
        found.append(str(refused.value))
    return found


@pytest.fixture(scope="module")
def found():
    return ranks.run(everything, R, timeout=240)


@pytest.fixture(scope="module")
def total():
    """The sums over the ranks of what each drew: x, and the gradient."""
    return sum(drawn(8, 3, seed=r) for r in range(R)), sum(drawn(8, 3, seed=100 + r) for r in range(R))


def test_f_is_the_identity_and_its_gradient_the_sum(found, total):
    for rank, one in enumerate(found):
        assert torch.equal(one["f"][0], drawn(8, 3, seed=rank))
        torch.testing.assert_close(one["f"][1], total[1], **TOLERANCE)


def test_g_is_the_sum_and_its_gradient_the_identity(found, total):
    for rank, one in enumerate(found):
        torch.testing.assert_close(one["g"][0], total[0], **TOLERANCE)
        assert torch.equal(one["g"][1], drawn(8, 3, seed=100 + rank))
        torch.testing.assert_close(one["no gradients"], total[0], **TOLERANCE)


def test_the_pair_of_sequence_parallelism_gathers_and_scatters_each_other_way(found, total):
    gathered, gathered_gradient = (torch.cat([drawn(2, 3, seed=first + r) for r in range(R)]) for first in (0, 100))
    for rank, one in enumerate(found):
        own = slice(2 * rank, 2 * rank + 2)
        assert torch.equal(one["gather"][0], gathered)
        torch.testing.assert_close(one["gather"][1], total[1][own], **TOLERANCE)
        torch.testing.assert_close(one["scatter"][0], total[0][own], **TOLERANCE)
        assert torch.equal(one["scatter"][1], gathered_gradient)
        strided = sum(drawn(3, 8, seed=r).T for r in range(R))
        torch.testing.assert_close(one["strided"][0], strided[own], **TOLERANCE)


def test_an_operation_leaves_its_input_as_it_was(found):
    assert all(one["untouched"] for one in found)


def test_the_loss_is_pytorchs_without_gathering_logits_and_without_overflow(found):
    logits, targets = logits_and_targets()
    logits.requires_grad_()
    losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view_as(targets)
    losses.sum().backward()
    assert torch.isinf(logits.exp()).any()
    for rank, one in enumerate(found):
        torch.testing.assert_close(one["loss"][0], losses, **TOLERANCE)
        torch.testing.assert_close(one["loss"][1], logits.grad.chunk(R, dim=-1)[rank], **TOLERANCE)
        # The largest, then the sum and the target: three numbers a position, forward alone.
        assert one["loss"][2].log == [("all_reduce", 80, 0), ("all_reduce", 160, 0)]


def test_the_embedding_is_a_row_of_one_rank_and_learns_there(found):
    table, tokens = drawn(4 * R, 3).requires_grad_(), torch.arange(4 * R).view(8, -1).flip(0)
    x = F.embedding(tokens, table)
    x.backward(drawn(8, 2, 3, seed=7))
    for rank, one in enumerate(found):
        (whole, whole_gradient), (part, part_gradient) = one["embedding"]
        torch.testing.assert_close(whole, x)
        torch.testing.assert_close(part, tp.shard_sequence(x, rank, R))
        for gradient in (whole_gradient, part_gradient):
            torch.testing.assert_close(gradient, tp.shard_columns(table.grad, rank, R))


def test_a_group_of_ranks_shares_a_layer_of_its_own(found):
    for number in (0, 1):
        whole = block_of_group(number)
        y = whole(drawn(6, 2, 16))
        (y * y).sum().backward()
        members = found[2 * number:2 * number + 2]
        torch.testing.assert_close(torch.cat([one["groups"][0] for one in members]), y, **TOLERANCE)
        for one in members:
            torch.testing.assert_close(one["groups"][1], whole.mlp_norm.weight.grad, **TOLERANCE)
            assert "it must be None or a process group of this process" in one["groups"][2]


def test_what_four_ranks_cannot_share_is_named_on_each(found):
    for one in found:
        assert one["errors"] == [
            "the sequence length = 6 is not allowed; it must be a multiple of the 4 ranks",
            "width_out = 6 is not allowed; it must be a multiple of the 4 ranks",
            "width_in = 6 is not allowed; it must be a multiple of the 4 ranks",
            "vocabulary = 6 is not allowed; it must be a multiple of the 4 ranks",
            "heads = 6 is not allowed; it must be a multiple of the 4 ranks",
        ]

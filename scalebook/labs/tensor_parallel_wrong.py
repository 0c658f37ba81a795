"""Tensor parallelism done wrong, on real processes, with the wrong value predicted on one process first.

The first function of a pair in `MISTAKES` runs on a rank (`scalebook.labs.tensor_parallel_mistakes`); the second says
what will come out on every rank, from the whole matrices on one process, with the mistake written out. Shapes, as
suffixes: S positions, B samples, D hidden width, F inner width; a small letter is one rank's part.

Run it with `python -m scalebook.labs.tensor_parallel_wrong --ranks 4`.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from scalebook import ranks
from scalebook import tensor_parallel as tp
from scalebook.borders import guard
from scalebook.labs import command
from scalebook.labs import tensor_parallel_mistakes as mistakes
from scalebook.labs.gaps import largest
from scalebook.labs.kinds import KINDS
from scalebook.labs.tensor_parallel_mistakes import DROPPED, inputs, mask_of_heads, setting_for
from scalebook.labs.tensor_parallel_settings import RankMasks

TOLERANCE = 1e-10  # of float64: what may remain of rounding


@dataclass(frozen=True)
class Wrong:
    """What a mistake gave on each rank, what was predicted, and what is right: tuples of a tensor for each rank.

    `traffic` is what rank 0 called meanwhile.
    """

    measured: tuple
    predicted: tuple
    right: tuple
    traffic: ranks.Traffic

    @property
    def gap(self):
        """The largest difference of the measured from the predicted."""
        return difference(self.measured, self.predicted)

    @property
    def error(self):
        """The largest difference of the measured from the right."""
        return difference(self.measured, self.right)


def difference(ones, others):
    """The largest difference of two tuples of tensors; infinite where shapes differ."""
    pairs = list(zip(ones, others, strict=True))
    if any(one.shape != other.shape for one, other in pairs):
        return float("inf")
    return largest((one.double() - other.double()).abs().max().item() for one, other in pairs)


def predict_bias(size):
    """(t - 1) biases too many."""
    mlp, x_SBD, _ = whole_part(setting_for(size))
    y_SBD = mlp(x_SBD)
    return [y_SBD + (size - 1) * mlp.down.bias] * size, [y_SBD] * size


def predict_without_f(size):
    """The gradient through the columns that rank r has: those of others are cut off before the second product."""
    mlp, x_SBD, other_SBD = whole_part(setting_for(size))
    inner_SBF = F.gelu(mlp.up(x_SBD))
    parts = [inner_SBf @ b_Df.T for inner_SBf, b_Df in zip(inner_SBF.chunk(size, -1), mlp.down.weight.chunk(size, 1),
                                                           strict=True)]
    flows = [torch.autograd.grad((part * other_SBD).sum(), x_SBD, retain_graph=True)[0] for part in parts]
    right, = torch.autograd.grad((mlp(x_SBD) * other_SBD).sum(), x_SBD)
    return flows, [right] * size


def predict_row_first(size):
    """The sum over ranks of GELU of each rank's summand, where GELU of the sum is due."""
    mlp, x_SBD, _ = whole_part(setting_for(size))
    summands = [F.gelu(x_SBd @ a_Fd.T + mlp.up.bias / size)
                for x_SBd, a_Fd in zip(x_SBD.chunk(size, -1), mlp.up.weight.chunk(size, 1), strict=True)]
    return [mlp.down(sum(summands))] * size, [mlp(x_SBD)] * size


def predict_row_first_with_its_messages(size):
    """The right value."""
    mlp, x_SBD, _ = whole_part(setting_for(size))
    return [mlp(x_SBD)] * size, [mlp(x_SBD)] * size


def predict_gate_and_up_as_one(size):
    """On each rank the first half of what it got stands for the gate, the second for up."""
    mlp, x_SBD, _ = whole_part(setting_for(size, activation="swiglu"))
    got = [part.chunk(2, -1) for part in mlp.up(x_SBD).chunk(size, -1)]
    inner_SBF = torch.cat([F.silu(first) * second for first, second in got], dim=-1)
    return [mlp.down(inner_SBF)] * size, [mlp(x_SBD)] * size


def predict_one_stream(size):
    """The same mask on every rank."""
    mask = mask_of_heads(tp.RandomStreams(0, 0).shared, size)
    return [mask] * size, [mask_of_heads(tp.RandomStreams(0, rank).own, size) for rank in range(size)]


def predict_own_stream_outside(size):
    """After the first dropout each rank has activations of its own, and the second sum adds up parts of different."""
    block, x_SBD, _ = whole_part(setting_for(size, "block"))
    own = [tp.RandomStreams(0, rank).own for rank in range(size)]
    middle = [x_SBD + tp.dropout(block.attention(block.attention_norm(x_SBD)), DROPPED, stream) for stream in own]
    parts = [F.gelu(block.mlp.up(block.mlp_norm(x))).chunk(size, -1)[rank] for rank, x in enumerate(middle)]
    mlp_SBD = block.mlp.down(torch.cat(parts, dim=-1))
    wrong = [x + tp.dropout(mlp_SBD, DROPPED, stream) for x, stream in zip(middle, own, strict=True)]
    shared = tp.RandomStreams(0, 0).shared
    block.attention_dropout = block.mlp_dropout = RankMasks(DROPPED, [shared], dim=0)
    return wrong, [block(x_SBD)] * size


def predict_norms(size):
    """The sum over a rank's positions of the gradient times the normed input, where all positions are due."""
    block, x_SBD, other_SBD = whole_part(setting_for(size, "block"))
    met = []
    block.mlp_norm.register_forward_hook(lambda norm, given, y_SBD: met.extend([given[0], y_SBD]))
    (gradient_SBD,) = torch.autograd.grad((block(x_SBD) * other_SBD).sum(), met[1:])
    each_SBD = gradient_SBD * F.layer_norm(met[0], met[0].shape[-1:])
    parts = [each_sBD.sum(dim=(0, 1)) for each_sBD in each_SBD.chunk(size)]
    return parts, [each_SBD.sum(dim=(0, 1))] * size


def predict_key_heads(size):
    """The gradient with only the rank's query heads passing it on."""
    setting = setting_for(size, "attention")
    attention, x_SBD, other_SBD = whole_part(setting)
    kept = -2 * setting.shape.head_width
    right, = torch.autograd.grad((attention(x_SBD) * other_SBD).sum(), attention.qkv.weight)
    parts = []
    for rank in range(size):
        def cut(out, given, rank=rank):
            heads = list(given[0].chunk(size, dim=-1))
            return torch.cat([one if number == rank else one.detach() for number, one in enumerate(heads)], dim=-1)
        hook = attention.out.register_forward_pre_hook(cut)
        parts.append(torch.autograd.grad((attention(x_SBD) * other_SBD).sum(), attention.qkv.weight)[0][kept:])
        hook.remove()
    return parts, [right[kept:]] * size


def whole_part(setting):
    """The part on one process, its input, and what the output is multiplied with."""
    return setting.whole(), *inputs(setting)


# By name: what a rank does, and what is predicted.
MISTAKES = {
    "bias on every rank": (mistakes.bias_on_every_rank, predict_bias),
    "f left out": (mistakes.without_f, predict_without_f),
    "row before column": (mistakes.row_first, predict_row_first),
    "row before column, with its messages": (mistakes.row_first_with_its_messages, predict_row_first_with_its_messages),
    "gate and up cut as one": (mistakes.gate_and_up_as_one, predict_gate_and_up_as_one),
    "one stream for the heads": (mistakes.one_stream_for_heads, predict_one_stream),
    "own stream outside": (mistakes.own_stream_outside, predict_own_stream_outside),
    "norms' gradients not added up": (mistakes.norms_not_added_up, predict_norms),
    "key heads' gradients not added up": (mistakes.key_heads_not_added_up, predict_key_heads),
}


def predict(size=4):
    """What each mistake will give on each of `size` ranks, and what is right: a dict of pairs of tuples.

    Raises ValueError unless `size` is a number of ranks.

    >>> wrong, right = predict(2)["norms' gradients not added up"]
    >>> torch.allclose(wrong[0] + wrong[1], right[0])
    True
    """
    found = {name: prediction(size) for name, (_, prediction) in MISTAKES.items()}
    return {name: tuple(tuple(one.detach() for one in each) for each in pair) for name, pair in found.items()}


def run_mistakes(size=4, *, timeout=120, backend=None):
    """Make every mistake on `size` processes; return a dict of `Wrong`.

    `backend` is that of `ranks.run`. Under `torchrun` rank 0 gets the dict and the others None. Raises ValueError as
    `predict`, and `ranks.RankError` when a rank fails.

    >>> found = run_mistakes(2)
    >>> found["f left out"].gap < 1e-12, found["f left out"].error > 0.1
    (True, True)
    """
    predicted = predict(size)
    results = ranks.launch(measure_rank, size, timeout=timeout, backend=backend)
    if results is None:
        return None
    return {name: Wrong(tuple(one[name][0] for one in results), *predicted[name], results[0][name][1])
            for name in MISTAKES}


def measure_rank(rank, world_size):
    """What one rank got from each mistake, and what it called."""
    found = {}
    for name, (mistake, _) in MISTAKES.items():
        with ranks.count() as traffic:
            result = mistake(rank, world_size)
        found[name] = result, traffic
    return found


def table(found):
    """The lines of the table: how far each mistake was from what is right, and from what was predicted.

    Raises ValueError unless `found` is a dict of `Wrong`, with one or more.
    """
    if not isinstance(found, dict) or not found:
        raise ValueError(f"found = {found!r} is not allowed; it must be a dict of Wrong, with one or more")
    width = max(map(len, found))
    lines = [f"{'mistake':<{width}}  off by   as predicted"]
    for name, one in found.items():
        error = f"{one.error:.4g}" if one.error > TOLERANCE else "0"
        lines.append(f"{name:<{width}}  {error:<7}  {'yes' if one.gap <= TOLERANCE else f'no: {one.gap:.2g}'}")
    return lines


def main():
    """Print what each mistake gave."""
    parser = command.parser_of_ranks(__doc__)
    given = parser.parse_args()
    with command.errors_in_words(parser):
        found = run_mistakes(given.ranks, backend=given.backend)
    if found is not None:
        print("\n".join(table(found)))


guard(globals(), KINDS, "run_mistakes")


if __name__ == "__main__":
    from scalebook.labs.tensor_parallel_wrong import main

    main()

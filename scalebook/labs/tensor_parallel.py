"""Tensor parallelism on real processes: are the results those of one process, and what is sent?

Each setting runs a part of a transformer forward and backward on all ranks, in float64. `compare` puts outputs and
every gradient beside those of the same part on one process (`scalebook.tensor_parallel.reference`), and the messages
that were counted beside the formulas.

Run it with `python -m scalebook.labs.tensor_parallel --ranks 4`, or let PyTorch start the processes:
`torchrun --nproc-per-node 4 -m scalebook.labs.tensor_parallel`, on several machines with `--nnodes`.
"""

from dataclasses import dataclass

import torch

from scalebook import ranks
from scalebook import tensor_parallel as tp
from scalebook.borders import guard
from scalebook.checks import whole
from scalebook.formulas import tensor_parallel as formulas
from scalebook.labs import command
from scalebook.labs.gaps import largest
from scalebook.labs.kinds import KINDS
from scalebook.labs.tensor_parallel_settings import Pass, Setting, build_part, single_process

TOLERANCE = 1e-10  # of float64: what may remain of rounding


@dataclass(frozen=True)
class Comparison:
    """A setting on `size` ranks: each rank's results put together, those of one process, and each rank's messages.

    `copies_differ` is the largest difference between ranks in what all of them have: outputs and gradients.
    """

    setting: Setting
    size: int
    ranks: Pass
    single: Pass
    copies_differ: float
    forward: tuple
    backward: tuple
    update: tuple

    @property
    def gaps(self):
        """The largest differences between ranks and one process, by name."""
        return self.ranks.gaps(self.single)

    @property
    def largest_gap(self):
        """The largest of all differences."""
        return largest([*self.gaps.values(), self.copies_differ])

    @property
    def sent(self):
        """Bytes that a rank sends forward and backward, counted, in a ring."""
        return sum(sum(traffic[0].ring_bytes(self.size).values()) for traffic in (self.forward, self.backward))

    @property
    def predicted(self):
        """The same by the formulas; None where they have no word on the part."""
        return predicted_bytes(self.setting, self.size)


def predicted_bytes(setting, size):
    """Bytes of float64 that a rank sends in a block or a model, forward and backward, by the formulas.

    None for other parts, and under conditions that the formulas leave out.

    >>> predicted_bytes(Setting(tp.Shape(hidden=64)), 4)  # 8 b s h (t - 1)/t elements
    49152
    """
    fewer = setting.early_stop or (setting.frozen_norms and not setting.input_gradient)  # see `condition_settings`
    if setting.part not in ("block", "model") or fewer:
        return None
    sizes = {"b": setting.samples, "s": setting.positions, "h": setting.shape.hidden, "t": size}
    layer = formulas.layer_elements_recomputed if setting.recomputed else formulas.layer_elements
    elements = layer(**sizes)
    if setting.regather:
        elements += formulas.gathered_again_elements(**sizes)
    if setting.part == "model":
        ends = formulas.ends_elements(**sizes)
        if setting.regather:  # the head gathers its input again too
            ends += formulas.gathered_again_elements(**sizes) / 2
        loss = formulas.cross_entropy_elements(**{name: sizes[name] for name in "bst"})
        elements = setting.shape.layers * elements + ends + loss
    return elements * torch.float64.itemsize


def compare(size=4, settings=None, *, timeout=120, backend=None):
    """Run the settings on `size` processes and on one; return a dict of `Comparison` by the settings' names.

    `settings` None means `standard_settings(size)`. `backend` is that of `ranks.run`. Under `torchrun` rank 0 gets the
    dict and the others None. Raises ValueError when the ranks cannot run a setting, and `ranks.RankError` when a rank
    fails.

    >>> found = compare(2, {"SwiGLU": Setting(tp.Shape(activation="swiglu"))})
    >>> found["SwiGLU"].largest_gap < 1e-10, found["SwiGLU"].forward[0].calls["all_reduce"]
    (True, 2)
    """
    settings = standard_settings(size) if settings is None else settings
    for setting in settings.values():
        setting.check(size)
    results = ranks.launch(measure_rank, size, settings, timeout=timeout, backend=backend)
    if results is None:
        return None
    return {name: gather(setting, [result[name] for result in results]) for name, setting in settings.items()}


def measure_rank(rank, world_size, settings):
    """One rank: its results and messages, by the names of the settings."""
    return {name: run_part(setting, rank, world_size) for name, setting in settings.items()}


def run_part(setting, rank, size):
    """One rank's forward, backward and the sum of copies' gradients, each with its messages counted."""
    region = tp.Region(None, setting.sequence_parallel, setting.regather)
    part, call = build_part(setting, region)
    x, other = setting.data()
    if setting.part != "model":
        x, other = (tp.shard_sequence(one, rank, size) if setting.sequence_parallel else one for one in (x, other))
        x = x.clone().requires_grad_(setting.input_gradient)
    with ranks.count() as forward:
        y = call(x, other) if setting.part == "model" else call(x)
    with ranks.count() as backward:
        (y if setting.part == "model" else (y * other).sum()).backward()
    with ranks.count() as update:
        tp.sum_copies(part, region.group)
    gradients = {name: p.grad for name, p in part.named_parameters() if p.grad is not None}
    return Pass(y.detach(), x.grad, gradients), forward, backward, update


def gather(setting, results):
    """Put the ranks' results together, and beside those of one process."""
    passes, *traffic = zip(*results, strict=True)
    size = len(passes)
    gradients = tp.unshard_state([one.gradients for one in passes], setting.shape)
    outputs, inputs = ([getattr(one, name) for one in passes] for name in ("output", "input_gradient"))
    in_parts = setting.sequence_parallel and setting.part != "model"
    output, input_gradient = (
        None if each[0] is None else tp.unshard_sequence(each) if in_parts else each[0] for each in (outputs, inputs))
    # What was put together and is cut again must be what each rank had, so that copies are compared too.
    pairs = []
    for rank, one in enumerate(passes):
        again = tp.shard_state(gradients, setting.shape, rank, size)
        pairs += [(again[name], gradient) for name, gradient in one.gradients.items()]
        pairs += [] if in_parts else [(output, one.output)]
        pairs += [] if in_parts or input_gradient is None else [(input_gradient, one.input_gradient)]
    differ = max((one - two).abs().max().item() for one, two in pairs)
    together = Pass(output, input_gradient, gradients)
    return Comparison(setting, size, together, single_process(setting, size), differ, *traffic)


def standard_settings(size=4):
    """The settings of the chapter's table, by name: sizes that `size` ranks can share. Raises ValueError unless it is
    a number of ranks.

    >>> standard_settings(4)["GELU, SP"].shape.hidden
    64
    """
    shape, common = common_sizes(size)
    sequence = {**common, "sequence_parallel": True}
    gelu, grouped = tp.Shape(**shape), tp.Shape(**shape, kv_heads=2, activation="swiglu")
    dropping, two = tp.Shape(**shape, dropout=0.1), tp.Shape(**shape, layers=2)
    return {
        "GELU": Setting(gelu, **common),
        "GELU, SP": Setting(gelu, **sequence),
        "SwiGLU, 2 KV heads": Setting(grouped, **common),
        "SwiGLU, 2 KV heads, SP": Setting(grouped, **sequence),
        "dropout": Setting(dropping, **common),
        "dropout, SP": Setting(dropping, **sequence),
        "recomputed": Setting(dropping, **common, recomputed=True),
        "recomputed, SP": Setting(dropping, **sequence, recomputed=True),
        "SP, gathered again": Setting(gelu, **sequence, regather=True),
        "model, 2 blocks": Setting(two, "model", **common),
        "model, 2 blocks, SP": Setting(two, "model", **sequence),
    }


def condition_settings(size=4):
    """Settings in which the count of all-reduces is another, by name: pairs of a `Setting` and what is predicted.

    The prediction is the number of all-reduces forward and backward.

    >>> condition_settings(4)["MLP alone, its input needs no gradient"][1]
    (1, 0)
    """
    shape, common = common_sizes(size)
    gelu, unneeded = tp.Shape(**shape), {**common, "input_gradient": False}
    return {
        "MLP alone": (Setting(gelu, "mlp", **common), (1, 1)),
        "MLP alone, its input needs no gradient": (Setting(gelu, "mlp", **unneeded), (1, 0)),
        "attention alone": (Setting(gelu, "attention", **common), (1, 1)),
        # The norms before f learn, so they need what comes through it.
        "block, its input needs no gradient": (Setting(gelu, **unneeded), (2, 2)),
        "block, nor do its norms learn": (Setting(gelu, **unneeded, frozen_norms=True), (2, 1)),
        "recomputed, without dropout": (Setting(gelu, **common, recomputed=True), (2, 4)),
        # After the last product nothing is saved, so PyTorch leaves the second run before the second g.
        "recomputed, without dropout, left early": (Setting(gelu, **common, recomputed=True, early_stop=True), (2, 3)),
    }


def common_sizes(size):
    """Sizes of a transformer that `size` ranks can share, and of its input."""
    whole("size", size)
    each = max(size, 2)
    return {"hidden": 16 * each, "heads": 2 * each, "vocabulary": 16 * each}, {"positions": 2 * each}


def table(found):
    """The lines of the table: what is equal to one process, what was called, and bytes sent by one rank in a ring.

    `found` is what `compare` returned. Raises ValueError unless it is a dict with something in it.
    """
    if not isinstance(found, dict) or not found:
        raise ValueError(f"found = {found!r} is not allowed; it must be a dict of Comparison, with one or more")
    rows = [("setting", "output", "gradients", "forward", "backward", "copies", "bytes sent", "by formula")]
    for name, one in found.items():
        gaps = one.gaps
        output = gaps.pop("output")
        gradients = largest([*gaps.values(), one.copies_differ])
        calls = [calls_of(each[0]) for each in (one.forward, one.backward, one.update)]
        predicted = "" if one.predicted is None else str(one.predicted)
        rows.append((name, equality(output), equality(gradients), *calls, str(one.sent), predicted))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def equality(gap):
    """A difference in words."""
    return "equal" if gap <= TOLERANCE else f"off by {gap:.2g}"


def calls_of(traffic):
    """What was called, in words: AR all-reduce, AG all-gather, RS reduce-scatter.

    >>> calls_of(ranks.Traffic({"all_reduce": 2}))
    '2 AR'
    """
    short = {"all_reduce": "AR", "all_gather": "AG", "reduce_scatter": "RS"}
    return " ".join(f"{traffic.calls[kind]} {short[kind]}" for kind in sorted(traffic.calls)) or "-"


def main():
    """Print the table, and the counts under other conditions."""
    parser = command.parser_of_ranks(__doc__)
    given = parser.parse_args()
    size = given.ranks
    with command.errors_in_words(parser):
        settings, conditions = standard_settings(size), condition_settings(size)
        every = settings | {name: setting for name, (setting, _) in conditions.items()}
        found = compare(size, every, backend=given.backend)
    if found is None:
        return
    sizes = settings["GELU"]
    print(f"t = {size} ranks, s = {sizes.positions} positions, b = {sizes.samples} samples, h = {sizes.shape.hidden}, "
          f"float64; equal: to {TOLERANCE:.0e}")
    print("AR all-reduce, AG all-gather, RS reduce-scatter; copies: to add up gradients of copies, once a step\n")
    print("\n".join(table({name: found[name] for name in settings})))
    print("\nAll-reduces forward and backward, predicted and counted")
    for name, (_, predicted) in conditions.items():
        counted = tuple(traffic[0].calls["all_reduce"] for traffic in (found[name].forward, found[name].backward))
        print(f"{name}: {predicted} {counted}")


guard(globals(), KINDS, "compare")


if __name__ == "__main__":
    from scalebook.labs.tensor_parallel import main

    main()

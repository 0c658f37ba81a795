"""What a transformer layer keeps for its backward pass, measured tensor by tensor beside Korthikanti's formula.

arXiv:2205.05198, section 4.1, counts by hand: sbh (34 + 5as/h) bytes, of which attention 11 sbh + 5as^2 b, the MLP
19 sbh, the two LayerNorms 4 sbh. Here hooks see every tensor that autograd saves. Memory is counted by storage, each
once, under the operation that saved it first; parameters are not counted. The layer is in bfloat16, as in the paper
two bytes a number.

Shapes, as suffixes of names: B samples, S positions, D width of the model (the paper's h), H heads (the paper's a), K
width of a head, F = 4 D.

Run it with `python -m scalebook.labs.saved_activations --positions 128`.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

import torch
import torch.nn.functional as F
from torch import nn

from scalebook.borders import guard
from scalebook.checks import whole
from scalebook.labs import command
from scalebook.labs.kinds import KINDS
from scalebook.labs.saved_tensors import SavedTensors

RATE = 0.1  # of dropout
VARIANTS = ("one-byte masks", "F.dropout", "fused attention")

# What each operation saves, in the order in which PyTorch saves it: (tensor, bytes over sbh, bytes over a s^2 b) by
# arXiv:2205.05198, section 4.1. The paper leaves the statistics out.
KEPT = {
    "first LayerNorm": (("input", 2, 0), ("mean", 0, 0), ("inverse deviation", 0, 0)),
    "query, key, value": (("input", 2, 0),),
    "scores": (("keys", 2, 0), ("queries", 2, 0)),
    "softmax": (("weights", 0, 2),),
    "dropout of the weights": (("mask", 0, 1),),
    "weighted sum": (("values", 2, 0), ("weights after dropout", 0, 2)),
    "output projection": (("input", 2, 0),),
    "dropout after attention": (("mask", 1, 0),),
    "second LayerNorm": (("input", 2, 0), ("mean", 0, 0), ("inverse deviation", 0, 0)),
    "up projection": (("input", 2, 0),),
    "GELU": (("input", 8, 0),),
    "down projection": (("input", 8, 0),),
    "dropout after the MLP": (("mask", 1, 0),),
}
# In place of four operations. What the output projection reads is the result, which is there already.
KEPT_FUSED = {
    "fused attention": (("queries, keys and values", 6, 0), ("logarithms of the rows' sums", 0, 0), ("result", 2, 0)),
    "output projection": (),
}
PARTS = dict.fromkeys(KEPT | KEPT_FUSED, "attention") | {
    "first LayerNorm": "LayerNorm", "second LayerNorm": "LayerNorm",
    "up projection": "MLP", "GELU": "MLP", "down projection": "MLP", "dropout after the MLP": "MLP",
}


def dropout_with_a_byte_mask(x):
    """Dropout as a GPU does it: what it saves is a mask of one byte for each element."""
    return torch.ops.aten.native_dropout(x, RATE, True)[0]


def dropout_of_pytorch(x):
    """`F.dropout`: on a CPU its mask has the type of x, two bytes for each element in bfloat16."""
    return F.dropout(x, RATE)


class Attention(nn.Module):
    """Causal attention in the steps that the paper counts."""

    def __init__(self, width, heads, drop):
        """Make both projections; `drop` is the dropout on the attention weights."""
        super().__init__()
        self.heads, self.drop = heads, drop
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x_BSD, at):
        """(B, S, D) to (B, S, D); `at(name)` is a context: what is saved inside it counts under that name."""
        with at("query, key, value"):
            qkv_BSHK = self.qkv(x_BSD).unflatten(-1, (3 * self.heads, -1)).chunk(3, dim=2)
        context_BHSK = self.attend(*(part.transpose(1, 2) for part in qkv_BSHK), at)
        with at("output projection"):
            return self.out(context_BHSK.transpose(1, 2).flatten(2))

    def attend(self, q_BHSK, k_BHSK, v_BHSK, at):
        """The weights of each position on those up to it, dropout on them, and the weighted sum of values."""
        future_SS = torch.full(q_BHSK.shape[-2:-1] * 2, -math.inf, dtype=q_BHSK.dtype).triu(1)
        # One matrix for each head, in memory of its own: a product of many matrices would copy them by itself.
        own = {"memory_format": torch.contiguous_format}
        q_BHSK, k_BHSK, v_BHSK = (part.clone(**own) for part in (q_BHSK, k_BHSK, v_BHSK))
        with at("scores"):
            # The mask is added, which saves nothing; `masked_fill` would save it.
            scores_BHSS = q_BHSK @ k_BHSK.transpose(-1, -2) / math.sqrt(q_BHSK.shape[-1]) + future_SS
        with at("softmax"):
            weights_BHSS = scores_BHSS.softmax(dim=-1)
        with at("dropout of the weights"):
            weights_BHSS = self.drop(weights_BHSS)
        with at("weighted sum"):
            return weights_BHSS @ v_BHSK


class FusedAttention(Attention):
    """The same in PyTorch's fused kernel, which computes the weights again in the backward pass.

    There is no dropout on the weights: on a CPU PyTorch fuses attention only without it.
    """

    def attend(self, q_BHSK, k_BHSK, v_BHSK, at):
        """Save q, k, v, the result, and one float32 for each row of weights."""
        with at("fused attention"):
            return F.scaled_dot_product_attention(q_BHSK, k_BHSK, v_BHSK, is_causal=True)


class Layer(nn.Module):
    """One pre-norm transformer layer with GELU, as in arXiv:2205.05198, figure 2."""

    def __init__(self, width, heads, variant):
        """Make the parts for one of `VARIANTS`."""
        super().__init__()
        self.drop = dropout_of_pytorch if variant == "F.dropout" else dropout_with_a_byte_mask
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = (FusedAttention if variant == "fused attention" else Attention)(width, heads, self.drop)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x_BSD, at):
        """(B, S, D) to (B, S, D); `at` as in `Attention`."""
        with at("first LayerNorm"):
            y_BSD = self.norm_1(x_BSD)
        y_BSD = self.attention(y_BSD, at)
        with at("dropout after attention"):
            x_BSD = x_BSD + self.drop(y_BSD)
        with at("second LayerNorm"):
            y_BSD = self.norm_2(x_BSD)
        with at("up projection"):
            y_BSF = self.up(y_BSD)
        with at("GELU"):
            y_BSF = F.gelu(y_BSF)
        with at("down projection"):
            y_BSD = self.down(y_BSF)
        with at("dropout after the MLP"):
            return x_BSD + self.drop(y_BSD)


# The measurement


class Items(SavedTensors):
    """The saved tensors that are alive, and in `items` each storage as it was saved first: (name, bytes)."""

    def __init__(self, permanent=()):
        """Start with nothing alive."""
        super().__init__(permanent)
        self.items = []

    def add(self, storage, key):
        """Count one more holder of a storage; note the storage if it is new."""
        before = self.live_bytes
        super().add(storage, key)
        if self.live_bytes > before:
            self.items.append((key, self.live_bytes - before))


@dataclass(frozen=True)
class Item:
    """A tensor kept for the backward pass: the part of the layer, the operation that saved it, its name.

    `bytes` is measured; `counted` is what the paper counts for it, in bytes.
    """

    part: str
    operation: str
    tensor: str
    bytes: int
    counted: int


@dataclass(frozen=True)
class Saved:
    """All that a layer keeps, tensor by tensor, and the sizes it was measured at."""

    variant: str
    batch: int
    positions: int
    width: int
    heads: int
    items: tuple

    @property
    def total(self):
        """Bytes kept."""
        return sum(item.bytes for item in self.items)

    @property
    def by_part(self):
        """Bytes kept by each part of the layer."""
        return {part: sum(item.bytes for item in self.items if item.part == part)
                for part in sorted({item.part for item in self.items})}

    @property
    def statistics(self):
        """Bytes of the items that the paper does not count: the means and deviations of LayerNorm, sums of rows."""
        return sum(item.bytes for item in self.items if not item.counted)

    def over_sbh(self, nbytes):
        """Bytes as a multiple of positions x batch x width, exactly."""
        return Fraction(nbytes, self.positions * self.batch * self.width)


def saved_activations(variant="one-byte masks", *, batch=2, positions=64, width=64, heads=4):
    """Run the forward of one layer and return what it keeps, as `Saved`.

    `variant`: "one-byte masks" is the paper's layer; "F.dropout" has PyTorch's dropout, whose masks on a CPU take two
    bytes; "fused attention" keeps no weights (and has no dropout on them).

    Raises ValueError for another variant, sizes that are no counts, or a width that is no multiple of the heads;
    RuntimeError when an operation saves other tensors than `KEPT` names.

    >>> found = saved_activations(batch=1, positions=8, width=16, heads=2)
    >>> found.total == 8 * 16 * 34 + 5 * 2 * 8**2 + 8 * 8  # sbh (34 + 5as/h), and LayerNorm's statistics, 8sb
    True
    """
    if variant not in VARIANTS:
        raise ValueError(f"variant = {variant!r} is not allowed; it must be one of {VARIANTS}")
    check_sizes(batch, positions, width, heads)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layer = Layer(width, heads, variant).to(torch.bfloat16)
        x_BSD = torch.randn(batch, positions, width, dtype=torch.bfloat16, requires_grad=True)
        ledger = Items(layer.parameters())
        y_BSD = layer(x_BSD, ledger.during)
    items = name_items(ledger.items, KEPT | KEPT_FUSED if variant == "fused attention" else KEPT,
                       PARTS, positions * batch * width, heads * positions**2 * batch)
    del y_BSD  # until here autograd held what was counted
    return Saved(variant, batch, positions, width, heads, items)


def check_sizes(batch, positions, width, heads):
    """ValueError unless all are counts, and the width is a multiple of the heads."""
    for name, value in (("batch", batch), ("positions", positions), ("width", width), ("heads", heads)):
        whole(name, value)
    if width % heads:
        raise ValueError(f"width = {width} is not allowed; it must be a multiple of heads = {heads}")


def name_items(found, kept, parts, sbh, assb):
    """The `Item`s of (operation, bytes) as they were saved; `sbh` and `assb` are elements."""
    items = []
    for operation in dict(found):
        sizes, names = [nbytes for name, nbytes in found if name == operation], kept[operation]
        if len(sizes) != len(names):
            raise RuntimeError(f"{operation} saved {len(sizes)} tensors of {sizes} bytes, not the {len(names)} known")
        items += [Item(parts[operation], operation, tensor, nbytes, linear * sbh + quadratic * assb)
                  for (tensor, linear, quadratic), nbytes in zip(names, sizes, strict=True)]
    return tuple(items)


def main():
    """Print what the layer keeps, tensor by tensor, beside the paper's count."""
    parser = command.parser_of(__doc__)
    for name, what, default in (("batch", "samples of the micro-batch", 2), ("positions", "tokens of a sample", 64),
                                ("width", "of the model", 64), ("heads", "of the attention", 4)):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{what} (default: {default})")
    given = vars(parser.parse_args())
    for variant in VARIANTS:
        with command.errors_in_words(parser):
            found = saved_activations(variant, **given)
        print(f"{variant}: {found.total} B; the paper counts {sum(item.counted for item in found.items)} B for these")
        for item in found.items:
            name = f"{item.operation}, {item.tensor}"
            print(f"  {item.part:10} {name:46} {item.bytes:9} B  paper {item.counted:9} B")


guard(globals(), KINDS, "saved_activations")


if __name__ == "__main__":
    from scalebook.labs.saved_activations import main

    main()

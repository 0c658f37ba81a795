"""The sizes of a transformer, and what they must be for a number of ranks to share it."""

import numbers
from dataclasses import dataclass

from scalebook import checks
from scalebook.checks import whole

ACTIVATIONS = ("gelu", "swiglu")


@dataclass(frozen=True)
class Shape:
    """The sizes of a transformer: `hidden` is the width of the residual stream, `inner` that of the MLP.

    `kv_heads` key and value heads serve `heads` query heads (grouped-query attention); None means as many. `inner`
    None means 4 times `hidden`. `dropout` is the probability that dropout zeroes an element.

    Raises ValueError for sizes that no transformer has.

    >>> Shape(hidden=12, heads=3).kv_heads, Shape(hidden=12, heads=3).inner, Shape(hidden=12, heads=3).head_width
    (3, 48, 4)
    """

    hidden: int = 32
    heads: int = 4
    kv_heads: int | None = None
    inner: int | None = None
    activation: str = "gelu"
    vocabulary: int = 64
    layers: int = 1
    dropout: float = 0.0

    def __post_init__(self):
        """Fill in what follows from other sizes; check all of them."""
        for name in ("hidden", "heads"):
            whole(name, getattr(self, name))
        if self.kv_heads is None:
            object.__setattr__(self, "kv_heads", self.heads)
        if self.inner is None:
            object.__setattr__(self, "inner", 4 * self.hidden)
        for name in ("kv_heads", "inner", "vocabulary", "layers"):
            whole(name, getattr(self, name))
        multiple("hidden", self.hidden, self.heads, "heads")
        multiple("heads", self.heads, self.kv_heads, "kv_heads")
        checks.one_of("activation", self.activation, ACTIVATIONS)
        probability("dropout", self.dropout)

    @property
    def head_width(self):
        """The width of one head."""
        return self.hidden // self.heads

    def check(self, ranks):
        """Raise ValueError unless `ranks` ranks can share this transformer.

        Query heads, `inner` and the vocabulary must be multiples of the ranks. Key and value heads must be too, or,
        where they are fewer, the ranks a multiple of them: then each head lies on several ranks.

        >>> Shape(heads=8, kv_heads=2).check(4)
        >>> Shape(heads=4).check(3)
        Traceback (most recent call last):
            ...
        ValueError: heads = 4 is not allowed; it must be a multiple of the 3 ranks
        """
        whole("ranks", ranks)
        multiple("heads", self.heads, ranks)
        if self.kv_heads % ranks and ranks % self.kv_heads:
            raise ValueError(f"kv_heads = {self.kv_heads} is not allowed; it must be a multiple or a divisor of the "
                             f"{ranks} ranks")
        multiple("inner", self.inner, ranks)
        if self.vocabulary % ranks:
            raise ValueError(f"vocabulary = {self.vocabulary} is not allowed; it must be a multiple of the {ranks} "
                             f"ranks: pad it with {-self.vocabulary % ranks} rows or more")


def check_shape(shape, ranks):
    """Raise ValueError unless it is a shape that so many ranks can share."""
    if not isinstance(shape, Shape):
        raise ValueError(f"shape = {shape!r} is not allowed; it must be a Shape")
    shape.check(ranks)


def multiple(name, value, of, other=None):
    """Raise ValueError unless `value` is a multiple of `of`, which is called `other`, or is the number of ranks."""
    if value % of:
        what = f"the {of} ranks" if other is None else f"{other} = {of}"
        raise ValueError(f"{name} = {value} is not allowed; it must be a multiple of {what}")


def probability(name, value):
    """Raise ValueError unless the value is a probability below 1."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 <= value < 1:
        raise ValueError(f"{name} = {value!r} is not allowed; {name} must be a number from 0 to below 1")

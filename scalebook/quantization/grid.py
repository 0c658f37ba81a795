"""The affine map between weights and codes, and the record that every quantizer of the book returns.

A group of weights shares one grid: a scale S > 0 and a whole zero-point Z. A weight w has the code

    q = clamp(round(w / S) + Z, 0, 2^b - 1)    and comes back as    w_hat = S (q - Z).

Rounding is to the nearest, ties to even. Both ends of a group are widened to contain 0, so 0 has the code Z and comes
back exactly, Z lies in 0..2^b - 1, and no weight of the group moves by more than S/2 (Jacob et al. 2018,
arXiv:1712.05877, equation 1; GPTQ, arXiv:2210.17323, section 5 takes S and Z from the least and the greatest weight).

Shapes: O outputs, I inputs, G groups in a row, C columns in a group.
"""

import numbers
from dataclasses import dataclass

import torch

from scalebook import checks

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True, eq=False)
class QuantizedLinear:
    """A weight of shape (O, I) as codes of `bits` bits, with a scale and a zero-point for each group of each row.

    `codes` (O, I) are uint8 in 0..2^bits - 1; `scales` (O, G) are floats, `zero_points` (O, G) whole numbers.
    `group_size` is the number of columns in a group (None: a row is one group), and `group_of_column` (I,) says which
    group a column belongs to: 0, ..., 0, 1, ... unless the columns were grouped in another order. `input_scales` (I,)
    is what each column was multiplied by before rounding (None: by nothing). `dtype` is the dtype of the weight.

    >>> record = QuantizedLinear(torch.tensor([[0, 3, 1, 2]], dtype=torch.uint8), torch.tensor([[0.5, 2.0]]),
    ...                          torch.tensor([[0, 1]]), bits=2, group_size=2, symmetric=False)
    >>> record.dequantize()
    tensor([[0.0000, 1.5000, 0.0000, 2.0000]])
    >>> record.bits_per_weight  # 2 + (16 + 2)/2
    11.0
    """

    codes: torch.Tensor
    scales: torch.Tensor
    zero_points: torch.Tensor
    bits: int
    group_size: int | None
    symmetric: bool
    group_of_column: torch.Tensor | None = None
    input_scales: torch.Tensor | None = None
    dtype: torch.dtype | None = None

    def __post_init__(self):
        """Fill in the order of the groups and the dtype; raise ValueError for parts that do not fit together."""
        check_bits(self.bits)
        checks.flag("symmetric", self.symmetric)
        for name in ("codes", "scales", "zero_points", "group_of_column", "input_scales"):
            if getattr(self, name) is not None or name in ("codes", "scales", "zero_points"):
                checks.real_tensor(name, getattr(self, name))
        if self.codes.ndim != 2 or self.codes.dtype != torch.uint8:
            raise ValueError(f"codes is {self.codes.dtype} of shape {tuple(self.codes.shape)}; "
                             "it must be uint8 of shape (O, I)")
        O, I = self.codes.shape
        G = I // columns_in_a_group(I, self.group_size)
        for name in ("scales", "zero_points"):
            if tuple(getattr(self, name).shape) != (O, G):
                raise ValueError(f"{name} has the shape {tuple(getattr(self, name).shape)}; it must be {(O, G)}")
        if self.group_of_column is None:
            object.__setattr__(self, "group_of_column", contiguous_groups(I, self.group_size))
        for name in ("group_of_column", "input_scales"):
            if getattr(self, name) is not None and tuple(getattr(self, name).shape) != (I,):
                raise ValueError(f"{name} has the shape {tuple(getattr(self, name).shape)}; it must be {(I,)}")
        if self.dtype is None:
            object.__setattr__(self, "dtype", self.scales.dtype)

    def dequantize(self) -> torch.Tensor:
        """Return the weight of shape (O, I) that the codes stand for, in the weight's dtype.

        A column that was multiplied by its input scale is divided by it again. What lies beyond the greatest number of
        the dtype becomes that number.
        """
        scales_OG = self.scales.to(torch.promote_types(self.scales.dtype, self.dtype))
        scales_OI, zeros_OI = (x.index_select(1, self.group_of_column) for x in (scales_OG, self.zero_points))
        weight_OI = from_codes(self.codes, scales_OI, zeros_OI)
        if self.input_scales is not None:
            weight_OI = weight_OI / self.input_scales
        limits = torch.finfo(self.dtype)
        return weight_OI.clamp(limits.min, limits.max).to(self.dtype)

    @property
    def bits_per_weight(self) -> float:
        """What a weight costs: its code, and its share of a 16-bit scale and a zero-point as wide as a code.

        b + (16 + z)/g with z = b, or z = 0 when the grid is symmetric, because then every zero-point is 2^(b-1). The
        input scales cost nothing here: they are folded into the operation before. Neither does `group_of_column`.
        """
        zero_point_bits = 0 if self.symmetric else self.bits
        return self.bits + (16 + zero_point_bits) / columns_in_a_group(self.codes.shape[1], self.group_size)


def group_grid(weight_OC, bits, symmetric):
    """Return the scale (O,) and the zero-point (O,) of one group of columns: of each row of `weight_OC`.

    The grid runs from the least to the greatest weight, with 0 forced in, in 2^b - 1 steps. When it is symmetric it
    runs from -m to m instead, m = max|w|, in as many steps, and Z = 2^(b-1): S = 2m/(2^b - 1), as GPTQ's own code has
    it. (S = m/2^(b-1), AWQ's equation 1, is finer, but moves a weight of +m by a whole step; S = m/(2^(b-1) - 1) has m
    on the grid, but never uses the code 0.) A constant group gets a scale of which its value is an exact multiple.

    Works on any leading shape, and in the dtype of `weight_OC`: give it float32 or float64.

    >>> group_grid(torch.tensor([[-1.0, 0.0, 2.0], [1.0, 3.0, 2.0]]), bits=2, symmetric=False)
    (tensor([1., 1.]), tensor([1, 0], dtype=torch.int32))
    """
    steps, middle = 2**bits - 1, 2**(bits - 1)
    least, greatest = weight_OC.amin(-1), weight_OC.amax(-1)
    constant = least == greatest
    if symmetric:
        greatest = torch.maximum(-least, greatest)
        least = -greatest
    else:
        least, greatest = least.clamp(max=0), greatest.clamp(min=0)
    # Where the range overflows, divide first. A scale below the least normal number would have lost its digits.
    scale = torch.where((greatest - least).isfinite(), (greatest - least) / steps, greatest / steps - least / steps)
    scale = scale.clamp(min=torch.finfo(scale.dtype).tiny)
    zero = torch.full_like(scale, middle) if symmetric else torch.round(-least / scale).clamp(0, steps)
    return _exact_where(constant, weight_OC[..., 0], scale, zero, bits, symmetric)


def _exact_where(constant, value, scale, zero, bits, symmetric):
    """Replace the grid of each constant group by one that holds its value: a power of two of steps away from Z.

    Where the value is not negative, Z is 1 and not 0, because a GPTQ checkpoint has no place for a 0 (`packing`).
    """
    steps = 2**(bits - 2) if symmetric else 2**(bits - 1)
    size = value.abs()
    exact = torch.where(size >= steps * torch.finfo(size.dtype).tiny, size / steps, size)
    scale = torch.where(constant, torch.where(size == 0, 1.0, exact), scale)
    if not symmetric:
        zero = torch.where(constant, torch.where(value < 0, float(steps), 1.0), zero)
    return scale, zero.to(torch.int32)


def to_codes(w, scale, zero, bits):
    """Return the codes of `w` as uint8: clamp(round(w / scale) + zero, 0, 2^bits - 1), element by element.

    >>> to_codes(torch.tensor([-9.0, -1.0, 0.4, 0.6]), torch.tensor(1.0), torch.tensor(1), bits=2)
    tensor([0, 0, 1, 2], dtype=torch.uint8)
    """
    return (torch.round(w / scale) + zero).clamp(0, 2**bits - 1).to(torch.uint8)


def from_codes(codes, scale, zero):
    """Return the weights that the codes stand for: scale (codes - zero), in the dtype of `scale`.

    >>> from_codes(torch.tensor([0, 1, 2], dtype=torch.uint8), torch.tensor(0.5), torch.tensor(1))
    tensor([-0.5000,  0.0000,  0.5000])
    """
    return scale * (codes.to(scale.dtype) - zero)


def contiguous_groups(I, group_size):
    """Return the group of each of I columns when neighbours share a group.

    >>> contiguous_groups(4, 2)
    tensor([0, 0, 1, 1])
    """
    return torch.arange(I) // columns_in_a_group(I, group_size)


def columns_in_a_group(I, group_size):
    """Return how many of a row's I columns make a group; raise ValueError when `group_size` does not divide I.

    >>> columns_in_a_group(576, None), columns_in_a_group(576, 64)
    (576, 64)
    >>> columns_in_a_group(576, 128)
    Traceback (most recent call last):
    ...
    ValueError: group_size = 128 does not divide the width 576 of the weight; give a divisor of it, or None for a row
    """
    if group_size is None:
        return I
    if isinstance(group_size, bool) or not isinstance(group_size, numbers.Integral) or group_size < 1:
        raise ValueError(f"group_size = {group_size!r} is not allowed; it must be a whole number of columns, "
                         "at least 1, or None for a row")
    if I % group_size:
        raise ValueError(f"group_size = {group_size} does not divide the width {I} of the weight; "
                         "give a divisor of it, or None for a row")
    return int(group_size)


def check_bits(bits):
    """Raise ValueError unless `bits` is a whole number from 2 to 8.

    >>> check_bits(9)
    Traceback (most recent call last):
    ...
    ValueError: bits = 9 is not allowed; bits must be a whole number from 2 to 8
    """
    if isinstance(bits, bool) or not isinstance(bits, numbers.Integral) or not 2 <= bits <= 8:
        raise ValueError(f"bits = {bits!r} is not allowed; bits must be a whole number from 2 to 8")


def check_weight(weight, bits, group_size, symmetric=False, name="weight"):
    """Return the weight to compute with: float64 if it is float64, else float32, without its gradient.

    Raises ValueError for a weight that is not a finite float tensor of shape (O, I), for bits outside 2..8, for a
    group size that does not divide I, and for a `symmetric` that is neither True nor False.
    """
    check_bits(bits)
    if not isinstance(symmetric, bool):
        raise ValueError(f"symmetric = {symmetric!r} is not allowed; it must be True or False")
    if not isinstance(weight, torch.Tensor) or weight.dtype not in DTYPES:
        kind = weight.dtype if isinstance(weight, torch.Tensor) else type(weight).__name__
        raise ValueError(f"{name} is {kind}; it must be a tensor of {', '.join(map(str, DTYPES))}")
    if weight.ndim != 2 or not weight.numel():
        raise ValueError(f"{name} has the shape {tuple(weight.shape)}; it must be (outputs, inputs), neither of them 0")
    columns_in_a_group(weight.shape[1], group_size)
    if not torch.isfinite(weight).all():
        raise ValueError(f"{name} has {int((~torch.isfinite(weight)).sum())} elements that are infinite or "
                         "not a number; every element must be finite")
    return weight.detach().to(torch.float64 if weight.dtype == torch.float64 else torch.float32)

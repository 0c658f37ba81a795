"""Checks at the border of the library: they see every argument once, and leave the function what it was."""

import inspect

import pytest
import torch

from scalebook import quantization
from scalebook.borders import guard, guarded, sizes_agree
from scalebook.checks import number, whole
from scalebook.quantization import grid


def seen_by(seen):
    return lambda name, value: seen.append((name, value))


def test_an_argument_is_checked_by_its_name_however_it_is_given():
    seen = []
    call = guarded(lambda first, second=2, **rest: (first, second, rest), {"first": seen_by(seen),
                                                                         "second": seen_by(seen)})
    assert call(1, second=5, other=6) == (1, 5, {"other": 6})
    assert call(first=3) == (3, 2, {})
    assert seen == [("first", 1), ("second", 5), ("first", 3)]  # a default is not checked


def test_a_default_that_is_given_is_not_checked_but_another_equal_value_is():
    call = guarded(lambda limit=None: limit, {"limit": whole})
    assert call(None) is None
    with pytest.raises(ValueError, match="limit = 0 is not allowed"):
        call(0)


def test_what_python_refuses_it_refuses_in_its_own_words():
    call = guarded(lambda ranks: ranks, {"ranks": whole})
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        call()
    with pytest.raises(TypeError, match="unexpected keyword argument 'rank'"):
        call(1, rank=2)


def test_all_arguments_together_are_checked_with_their_defaults():
    def ordered(low, high):
        if low > high:
            raise ValueError("low must be at most high")

    call = guarded(lambda low, high=3: high - low, {"low": number}, ordered)
    assert call(1) == 2
    with pytest.raises(ValueError, match="low must be at most high"):
        call(4)


def test_a_letter_means_one_size_and_what_has_other_dimensions_is_left_alone():
    sizes_agree({"x_TD": torch.ones(2, 3), "y_T": torch.ones(2), "mask": torch.ones(9), "z_TD": torch.ones(9)})
    with pytest.raises(ValueError, match=r"y_T has the shape \(4,\), so T = 4; but x_TD has the shape \(2, 3\)"):
        sizes_agree({"x_TD": torch.ones(2, 3), "y_T": torch.ones(4)})


def test_a_class_is_guarded_in_its_place():
    class Box:
        def __init__(self, width):
            self.width = width

        def forward(self, x):
            return x

        def grow(self, by):
            self.width += by

    namespace = {"Box": Box}
    guard(namespace, {"width": whole, "by": whole, "x": number}, "Box", "Box.grow")
    assert namespace["Box"] is Box
    for wrong in (lambda: Box(0), lambda: Box(1).grow(0), lambda: Box(1).forward("a")):
        with pytest.raises(ValueError, match="is not allowed"):
            wrong()


def test_a_package_gives_out_the_checked_function_and_its_modules_use_the_plain_one():
    assert quantization.to_codes.__wrapped__ is grid.to_codes
    assert inspect.signature(quantization.to_codes) == inspect.signature(grid.to_codes)
    assert quantization.to_codes.__doc__ == grid.to_codes.__doc__

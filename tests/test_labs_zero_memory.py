"""The instruments that measure what a rank keeps see what is there, and the examples of the labs hold."""

import doctest

import pytest
import torch

from scalebook.labs import zero as lab
from scalebook.labs import zero_memory


@pytest.mark.parametrize("module", [lab, zero_memory], ids=lambda module: module.__name__)
def test_the_examples_in_the_docstrings_hold(module):
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


def test_a_forgotten_copy_is_found():
    before = zero_memory.storage_bytes(zero_memory.reachable())
    forgotten = [torch.zeros(1000)]
    assert zero_memory.alive_bytes(before, patience_s=0.02) - before == 4000
    del forgotten
    assert zero_memory.alive_bytes(before) == before


def test_what_only_autograd_holds_counts_in_the_peak():
    x = torch.ones(1000, requires_grad=True)
    with zero_memory.Peak([x]) as peak:
        y = x.exp().exp().sum()
        assert peak.now() == 3 * 4000 + 4
        y.backward()
        assert peak.now() == 2 * 4000 + 4  # x, its gradient, and the loss
    assert peak.most > 3 * 4000

"""Every lab fifty times in a row: the same answer each time, and the parent has what it had before."""

import dataclasses
import inspect

import psutil
import pytest
import torch
from fuzz.good import GOOD
from fuzz.public import found_at

from scalebook.pipeline import Operation

# What a lab measures differs from run to run: all that these return, and when an operation of a pipeline ran.
MEASURED = {"collective_times.measure", "pipeline.measure_makespan"}


def starts_ranks(name):
    return name.startswith("scalebook.labs.") and "timeout" in inspect.signature(found_at(name)).parameters


LABS = [name.removeprefix("scalebook.labs.") for name in GOOD if starts_ranks(name)]


def answer(lab):
    """What the lab's good call of the fuzz tests returns, to the bit, as text and numbers."""
    name = f"scalebook.labs.{lab}"
    return plain(found_at(name)(**GOOD[name]()))


def plain(value):
    """A result with its tensors as bytes, so that two compare."""
    if isinstance(value, torch.Tensor):
        return value.dtype, tuple(value.shape), value.detach().numpy().tobytes()
    if isinstance(value, Operation):
        return value._replace(start=0, end=0)
    if dataclasses.is_dataclass(value):
        return [plain(getattr(value, field.name)) for field in dataclasses.fields(value)]
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value


def held():
    """What this process has open and running."""
    process = psutil.Process()
    return process.num_fds(), process.num_threads(), len(process.children(recursive=True))


def test_every_lab_that_starts_ranks_is_among_them():
    assert {"collective_comparison.compare", "three_d.train", "zero_checkpoint.train_in_two_parts"} < set(LABS)
    assert len(LABS) >= 12
    assert set(LABS) > MEASURED


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(900)
@pytest.mark.parametrize("lab", LABS)
def test_fifty_runs_in_a_row_give_the_same_and_leave_nothing_open(lab):
    first = answer(lab)
    before = held()
    for turn in range(50):
        again = answer(lab)
        assert lab in MEASURED or again == first, f"run {turn + 2} gave something else"
        assert held() == before, f"run {turn + 2} left something"

"""A sharded optimizer saved on some ranks goes on on others, to the parameters of a training that never stopped."""

import doctest
from dataclasses import replace

import pytest

from scalebook.labs import zero_checkpoint
from scalebook.labs.zero import single_process
from scalebook.labs.zero_checkpoint import train_in_two_parts
from scalebook.labs.zero_task import Task

TOLERANCE = 1e-10
TASK = Task(steps=3, microbatches=1)


@pytest.mark.parametrize(("first", "second", "stage", "tied"), [(4, 2, 3, False), (4, 2, 1, True), (2, 4, 2, False)])
def test_training_goes_on_on_another_number_of_ranks(first, second, stage, tied):
    task = replace(TASK, stage=stage, tied=tied)
    right = single_process(task).ranks[0].parameters
    for parameters in train_in_two_parts(first, second, task, after=2):
        assert parameters.keys() == right.keys()
        assert max((parameters[name] - right[name]).abs().max() for name in right) < TOLERANCE


def test_the_example_in_the_docstring_holds():
    result = doctest.testmod(zero_checkpoint)
    assert result.attempted > 0
    assert result.failed == 0


def test_the_last_step_alone_or_from_the_start_would_be_seen():
    right = single_process(TASK).ranks[0].parameters
    for steps in (1, 2):
        other = single_process(replace(TASK, steps=steps)).ranks[0].parameters
        assert max((other[name] - right[name]).abs().max() for name in right) > 1e-3


@pytest.mark.parametrize(("changed", "after", "message"), [
    ({"stage": 0}, 2, "stage = 0 is not allowed"), ({}, 3, "after = 3 is not allowed; it must be 1 to 2"),
    ({}, 0, "after = 0 is not allowed"), ({}, True, "after = True is not allowed"), ({"batch": 6}, 2, "batch = 6"),
])
def test_what_cannot_be_is_named(changed, after, message):
    with pytest.raises(ValueError, match=message):
        train_in_two_parts(4, 2, replace(TASK, **changed), after=after)

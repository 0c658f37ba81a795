"""Save a sharded optimizer on some ranks, and go on with it on more or fewer.

The batch of a step is the same on any number of ranks, so the training must come to the same parameters.
"""

import tempfile

from scalebook import ranks
from scalebook.borders import guard
from scalebook.labs.kinds import KINDS, task
from scalebook.labs.zero import make_optimizer, run_microbatches, whole_parameters
from scalebook.labs.zero_task import check
from scalebook.zero import load, save
from scalebook.zero.adam import MASTER


def train_in_two_parts(first, second, task, after=2, timeout=120, backend=None):
    """Train `after` steps on `first` processes, save, and the rest of the task on `second` that load.

    Returns the parameters, by name, as each of the second processes has them. `backend` is that of `ranks.run`. Raises
    ValueError for a task that cannot be run on so many ranks, for stage 0, which shards nothing, and for `after` that
    leaves no step to either part.

    >>> from scalebook.labs.zero_task import Task
    >>> whole, = train_in_two_parts(2, 1, Task(stage=1), after=1)
    >>> whole["head.norm.weight"].shape
    torch.Size([15])
    """
    for size in (first, second):
        check(task, size)
    if task.stage == 0:
        raise ValueError("stage = 0 is not allowed; stage must be 1, 2 or 3, which shard the optimizer")
    if isinstance(after, bool) or not isinstance(after, int) or not 0 < after < task.steps:
        raise ValueError(f"after = {after!r} is not allowed; it must be 1 to {task.steps - 1}")
    with tempfile.TemporaryDirectory() as folder:
        ranks.run(train_and_save, first, task, after, folder, timeout=timeout, backend=backend)
        return ranks.run(load_and_train, second, task, after, folder, timeout=timeout, backend=backend)


def train_and_save(rank, size, task, after, folder):
    """The first part, on one rank."""
    model = task.model(MASTER[task.dtype])
    optimizer = make_optimizer(task, model, size)
    for step in range(after):
        run_microbatches(task, model, rank, size, step)
        optimizer.step(task.microbatches)
    save(optimizer, folder)


def load_and_train(rank, size, task, after, folder):
    """The second part, on one rank: it starts from a model that has learned nothing."""
    model = task.model(MASTER[task.dtype])
    optimizer = make_optimizer(task, model, size)
    load(optimizer, folder)
    for step in range(after, task.steps):
        run_microbatches(task, model, rank, size, step)
        optimizer.step(task.microbatches)
    return whole_parameters(optimizer, model)


guard(globals(), KINDS | {"task": task("zero_task:Task")}, "train_in_two_parts")

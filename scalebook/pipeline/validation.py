"""Checks that a timeline could have happened.

The validator reads only the operations of a timeline. It knows the rules of a pipeline and nothing of how the times
were found, so a simulation that breaks a dependency does not pass.
"""

import math
from collections import Counter, defaultdict
from fractions import Fraction
from itertools import pairwise
from numbers import Rational


def validate(timeline):
    """Raise ValueError, naming the operation, if a timeline breaks a rule of its pipeline.

    The rules: each operation exactly once, and as long as it takes; a forward before its backward before its weight
    gradient; pieces of the model in order, with the time to send between devices; one operation at a time on a
    device; and `peak_in_flight` is what the operations say.
    """
    pipeline, operations = timeline.pipeline, timeline.operations
    check_each_once(pipeline, operations, timeline.split)
    when = {(op.kind, op.stage, op.chunk, op.microbatch): op for op in operations}
    check_durations(pipeline, when)
    check_dependencies(pipeline, when)
    check_devices(operations)
    counted = count_in_flight(pipeline, operations)
    if counted != timeline.peak_in_flight:
        raise ValueError(f"peak_in_flight is {timeline.peak_in_flight}, but the operations say {counted}")


def check_each_once(pipeline, operations, split):
    """Each forward and backward, and each weight gradient where they are `split`, is there once, and nothing else.

    `split` None leaves it open for each backward whether it is split.
    """
    count = Counter((op.kind, op.stage, op.chunk, op.microbatch) for op in operations)
    possible = {
        (kind, stage, chunk, microbatch)
        for kind in ("FB" if split is False else "FBW")
        for stage in range(pipeline.stages)
        for chunk in range(pipeline.chunks)
        for microbatch in range(pipeline.microbatches)
    }
    for key, times in count.items():
        if key not in possible:
            raise ValueError(f"{_name(*key)} does not belong to this pipeline")
        if times > 1:
            raise ValueError(f"{_name(*key)} occurs {times} times")
    missing = [key for key in possible if key not in count and (split is not None or key[0] != "W")]
    if missing:
        raise ValueError(f"{_name(*min(missing))} is missing")


def check_durations(pipeline, when):
    """Each operation takes the time that its stage needs for it."""
    needed = {
        (kind, stage, split): pipeline.duration(kind, stage, split)
        for kind in "FBW"
        for stage in range(pipeline.stages)
        for split in (False, True)
    }
    for (kind, stage, chunk, microbatch), op in when.items():
        split = ("W", stage, chunk, microbatch) in when
        if not _same(op.end - op.start, needed[kind, stage, split]):
            raise ValueError(f"{_describe(op)} takes {op.end - op.start}, not {needed[kind, stage, split]}")


def check_dependencies(pipeline, when):
    """Each operation starts when its inputs have arrived, from its own device and from its neighbour's."""
    holder = {
        pipeline.piece(stage, chunk): (stage, chunk)
        for stage in range(pipeline.stages)
        for chunk in range(pipeline.chunks)
    }
    place = {holding: piece for piece, holding in holder.items()}
    for (kind, stage, chunk, microbatch), op in when.items():
        if kind != "F":
            check_after(op, when["F" if kind == "B" else "B", stage, chunk, microbatch], 0)
        if kind == "W":
            continue
        neighbour = holder.get(place[stage, chunk] + (-1 if kind == "F" else 1))
        if neighbour is not None:
            lag = 0 if neighbour[0] == stage else pipeline.send
            check_after(op, when[kind, *neighbour, microbatch], lag)


def check_devices(operations):
    """No device runs two operations at a time."""
    lanes = defaultdict(list)
    for op in operations:
        lanes[op.stage].append(op)
    for lane in lanes.values():
        lane.sort(key=lambda op: (op.start, op.end))
        for first, second in pairwise(lane):
            if second.start < first.end:
                raise ValueError(f"{_describe(second)} starts at {second.start}, while {_describe(first)} runs "
                                 f"until {first.end}")


def count_in_flight(pipeline, operations):
    """For each stage, the most micro-batches whose activations it holds at a time; a chunk counts 1/v."""
    split = {op[1:4] for op in operations if op.kind == "W"}
    held, peak = [0] * pipeline.stages, [0] * pipeline.stages
    for op in sorted(operations, key=lambda op: (op.start, op.end)):
        if op.kind == "F":
            held[op.stage] += 1
            peak[op.stage] = max(peak[op.stage], held[op.stage])
        elif op.kind == "W" or op[1:4] not in split:
            held[op.stage] -= 1
    return tuple(Fraction(chunks, pipeline.chunks) for chunks in peak)


def check_after(op, before, lag):
    """An operation starts no earlier than `lag` after another one has ended."""
    if op.start < before.end + lag:
        raise ValueError(f"{_describe(op)} starts at {op.start}, but the result of {_describe(before)} is there "
                         f"at {before.end + lag}")


def _describe(op):
    return _name(op.kind, op.stage, op.chunk, op.microbatch)


def _name(kind, stage, chunk, microbatch):
    return f"{kind} of micro-batch {microbatch} in chunk {chunk} of stage {stage}"


def _same(a, b):
    return a == b if isinstance(a, Rational) and isinstance(b, Rational) else math.isclose(a, b, abs_tol=1e-9)

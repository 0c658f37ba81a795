"""Finds when each operation of a schedule runs: as early as its device and its inputs allow.

Given the order of operations on every device (`orders.py`) nothing is left to choose: each operation starts when
the one before it on its device has ended and its input has arrived. Times are computed in whole ticks wherever they
are whole numbers or fractions, so results are exact.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from numbers import Rational, Real

import numpy as np

from scalebook import checks
from scalebook.pipeline import orders
from scalebook.pipeline.timeline import Pipeline, Timeline, divide

Times = Real | Sequence[Real]  # of every stage, or one for each

SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v")
MOST = 10_000_000  # forwards of chunks that a simulation has
_SPLIT = ("zb-h1", "zb-h2", "zb-v")


def simulate(
    schedule: str, stages: int, microbatches: int, forward: Times = 1, backward: Times = 2,
    weight: Times | None = None, chunks: int = 1, send: Real = 0,
) -> Timeline:
    """Simulate one training step of a pipeline and return its `Timeline`.

    `schedule` is one of "gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v". `forward` and `backward` are the
    times of one micro-batch on one whole stage, `weight` is the part of `backward` that computes the weight gradient
    (half of it unless given); each is a number, or a sequence with one number for each stage. The zero-bubble
    schedules run that part on its own; the others run it inside the backward, so that there it changes nothing.
    `chunks` is the number v of pieces of the model on a device: any number for "interleaved", 2 for "zb-v" (which
    always has two), 1 otherwise; an operation on a chunk takes 1/v of the stage's time. `send` is the time that an
    activation or a gradient travels from one device to another, without keeping either busy.

    Whole numbers and fractions give exact results. Raises ValueError for bad input, naming the argument, its value
    and what is allowed; "interleaved" wants `microbatches` to be a multiple of `stages`.

    Sources: see `orders.py`.

    >>> simulate("gpipe", stages=4, microbatches=8, forward=1, backward=2).makespan
    33
    >>> simulate("interleaved", stages=4, microbatches=8, chunks=3).bubble_overhead
    Fraction(1, 8)
    >>> simulate("zb-h2", stages=4, microbatches=8).device_span
    (24, 24, 24, 24)
    """
    stages, microbatches, chunks = _check_shape(schedule, stages, microbatches, chunks)
    pipeline = make_pipeline(stages, microbatches, forward, backward, weight, chunks, send,
                             "v" if schedule == "zb-v" else "loop")
    programme = [_order(schedule, stage, stages, microbatches, chunks) for stage in range(stages)]
    return run(pipeline, programme, schedule, schedule in _SPLIT)


def _check_shape(schedule, stages, microbatches, chunks):
    """Raise ValueError for a schedule or counts that don't go together; return the counts, as ints."""
    if not isinstance(schedule, str) or schedule not in SCHEDULES:
        raise ValueError(f"schedule = {schedule!r} is not allowed; it must be one of {', '.join(SCHEDULES)}")
    for name, value in (("stages", stages), ("microbatches", microbatches), ("chunks", chunks)):
        _check_count(name, value)
    stages, microbatches, chunks = int(stages), int(microbatches), int(chunks)
    _check_work(stages, microbatches, chunks)
    if schedule == "interleaved" and microbatches % stages:
        raise ValueError(f"microbatches = {microbatches} is not allowed; with the interleaved schedule it must be "
                         f"a multiple of stages = {stages}")
    if schedule == "zb-v":
        if chunks not in (1, 2):
            raise ValueError(f"chunks = {chunks} is not allowed; zb-v has 2 chunks on each stage")
        chunks = 2
    elif schedule != "interleaved" and chunks != 1:
        raise ValueError(f"chunks = {chunks} is not allowed; {schedule} has 1 chunk on each stage")
    return stages, microbatches, chunks


def order_of(schedule, stage, stages, microbatches, chunks=1):
    """The order of operations of a stage under a schedule, as a list of (kind, microbatch, chunk).

    Raises ValueError as `simulate` does, and for a `stage` that the pipeline does not have.
    """
    stages, microbatches, chunks = _check_shape(schedule, stages, microbatches, chunks)
    if isinstance(stage, bool) or not isinstance(stage, int | np.integer) or not 0 <= stage < stages:
        raise ValueError(f"stage = {stage!r} is not allowed; it must be 0 to {stages - 1}")
    return _order(schedule, int(stage), stages, microbatches, chunks)


def _order(schedule, stage, stages, microbatches, chunks):
    if schedule == "interleaved":
        return orders.interleaved(stage, stages, microbatches, chunks)
    make = {
        "gpipe": orders.gpipe,
        "1f1b": orders.one_forward_one_backward,
        "zb-h1": orders.zero_bubble_h1,
        "zb-h2": orders.zero_bubble_h2,
        "zb-v": orders.zero_bubble_v,
    }[schedule]
    return make(stage, stages, microbatches)


def simulate_order(
    order: Sequence[Sequence[tuple[str, int, int]]], microbatches: int, forward: Times = 1, backward: Times = 2,
    weight: Times | None = None, chunks: int = 1, send: Real = 0, placement: str = "loop", name: str = "custom",
) -> Timeline:
    """Simulate an order of operations of your own.

    `order` holds, for each stage, its operations (kind, microbatch, chunk) in the order in which the device is to run
    them. A backward whose weight gradient "W" is in the order too computes the gradient of the input only. The other
    arguments are as in `simulate`; `placement` is "loop" or "v" (see `Pipeline`).

    Raises ValueError for bad input, for an order that lacks an operation or has one twice, and for one that cannot
    run because operations wait for each other.

    >>> first = [("F", 0, 0), ("F", 1, 0), ("B", 0, 0), ("B", 1, 0)]
    >>> last = [("F", 0, 0), ("B", 0, 0), ("F", 1, 0), ("B", 1, 0)]
    >>> simulate_order([first, last], microbatches=2).makespan
    9
    """
    _check_count("microbatches", microbatches)
    _check_count("chunks", chunks)
    programme = _as_programme(order)
    _check_count("the number of stages in order", len(programme))
    _check_work(len(programme), microbatches, chunks)
    checks.instance("name", name, str, "a text")
    if not isinstance(placement, str) or placement not in ("loop", "v") or (placement == "v" and chunks != 2):
        raise ValueError(f"placement = {placement!r} with chunks = {chunks} is not allowed; it must be 'loop', "
                         "or 'v' with 2 chunks")
    pipeline = make_pipeline(len(programme), microbatches, forward, backward, weight, chunks, send, placement)
    for stage, lane in enumerate(programme):
        _check_lane(stage, lane, microbatches, chunks)
    return run(pipeline, programme, name, None)


def _as_programme(order):
    """The order as lists of tuples; ValueError for anything else."""
    try:
        return [[(str(kind), int(microbatch), int(chunk)) for kind, microbatch, chunk in lane] for lane in order]
    except (TypeError, ValueError):
        raise ValueError(f"order = {order!r} is not allowed; it must hold, for each stage, a list of "
                         "(kind, microbatch, chunk)") from None


def _check_lane(stage, lane, microbatches, chunks):
    """Every forward and backward of a stage is in its order once, and before what depends on it there."""
    place = {op: n for n, op in enumerate(lane)}
    if len(place) != len(lane):
        raise ValueError(f"order: stage {stage} has an operation twice")
    expected = {(kind, m, c) for kind in "FBW" for m in range(microbatches) for c in range(chunks)}
    strange = set(place) - expected
    missing = {op for op in expected if op[0] != "W"} - set(place)
    if strange or missing:
        raise ValueError(f"order: stage {stage} has {sorted(strange)[:3]} that do not belong to it, and lacks "
                         f"{sorted(missing)[:3]}")
    for kind, before in (("B", "F"), ("W", "B")):
        for _, m, c in (op for op in lane if op[0] == kind):
            if place[kind, m, c] < place[before, m, c]:
                raise ValueError(f"order: stage {stage} has {kind} of micro-batch {m} before its {before}")


def run(pipeline, programme, name, split):
    """Run every device through its order of operations, and return the `Timeline`.

    Goes from device to device and runs each one as far as the inputs that have been computed allow, until all is
    done. How often a device gets its turn changes nothing: a start depends on ends alone.
    """
    pieces, count = pipeline.stages * pipeline.chunks, pipeline.microbatches
    exact, ticks = _in_ticks(pipeline)
    ends = {kind: [[None] * count for _ in range(pieces)] for kind in "FB"}
    plans = [_plan(exact, stage, ends) for stage in range(pipeline.stages)]
    lanes, clocks = [[] for _ in programme], [0] * pipeline.stages
    splits = [{op[1:] for op in order if op[0] == "W"} for order in programme]
    waiting, turn = len(programme), range(pipeline.stages)
    while waiting:
        ran = False
        turn = turn[::-1]  # gradients travel backwards, so every second round goes that way
        for stage in turn:
            before = len(lanes[stage])
            if before < len(programme[stage]):
                clocks[stage] = _advance(programme[stage], lanes[stage], clocks[stage], plans[stage], splits[stage])
                ran |= len(lanes[stage]) > before
                waiting -= len(lanes[stage]) == len(programme[stage])
        if not ran and waiting:
            stage = next(s for s in turn if len(lanes[s]) < len(programme[s]))
            raise ValueError(f"order: stage {stage} waits for ever at {programme[stage][len(lanes[stage])]}")
    peaks = tuple(divide(_peak(order, gone), pipeline.chunks) for order, gone in zip(programme, splits, strict=True))
    return Timeline(name, pipeline, tuple(map(tuple, lanes)), ticks, peaks, split)


def _advance(order, lane, clock, plan, split):
    """Run one device's operations, from where it stands, until one lacks its input; returns the device's clock."""
    for n in range(len(lane), len(order)):
        kind, microbatch, chunk = order[n]
        source, lag, duration, whole, target = plan[kind, chunk]
        start = clock
        if source is not None:
            if source[microbatch] is None:
                break
            start = max(clock, source[microbatch] + lag)
        if whole is not None and (microbatch, chunk) not in split:
            duration = whole
        clock = start + duration
        if target is not None:
            target[microbatch] = clock
        lane.append((kind, microbatch, chunk, start, clock))
    return clock


def _plan(pipeline, stage, ends):
    """What a device must know of its operations, by kind and chunk.

    For each: the ends of the operations it takes its input from and their lag; its duration; its duration if it is a
    whole backward; and where its own end is written. A weight gradient has no input from elsewhere.
    """
    plan, last = {}, pipeline.stages * pipeline.chunks - 1
    for chunk in range(pipeline.chunks):
        piece = pipeline.piece(stage, chunk)
        forward, backward, weight = (pipeline.duration(kind, stage, split=True) for kind in "FBW")
        whole = pipeline.duration("B", stage, split=False)
        above, below = max(0, piece - 1), min(last, piece + 1)
        inputs = ends["F"][above] if piece > 0 else None
        gradients = ends["B"][below] if piece < last else ends["F"][piece]
        plan["F", chunk] = (inputs, pipeline.lag(piece, above), forward, None, ends["F"][piece])
        plan["B", chunk] = (gradients, pipeline.lag(piece, below), backward, whole, ends["B"][piece])
        plan["W", chunk] = (None, 0, weight, None, None)
    return plan


def _peak(order, split):
    """The most chunks in flight on a device that runs `order`."""
    held = peak = 0
    for kind, microbatch, chunk in order:
        if kind == "F":
            held += 1
            peak = held if held > peak else peak
        elif kind == "W" or (microbatch, chunk) not in split:
            held -= 1
    return peak


def _in_ticks(pipeline):
    """The pipeline with its times in ticks so short that all are whole numbers, and the ticks in a unit of time."""
    times = (*pipeline.forward, *pipeline.backward, *pipeline.weight, pipeline.send)
    if not all(isinstance(time, Rational) for time in times):
        return pipeline, 1
    ticks = pipeline.chunks * math.lcm(*(Fraction(time).denominator for time in times))

    def scale(values):
        return tuple(int(value * ticks) for value in values)

    return (
        Pipeline(pipeline.stages, pipeline.microbatches, pipeline.chunks, scale(pipeline.forward),
                 scale(pipeline.backward), scale(pipeline.weight), *scale([pipeline.send]), pipeline.placement),
        ticks,
    )


def make_pipeline(stages, microbatches, forward, backward, weight, chunks, send, placement):
    """Check the times and put them together as a `Pipeline`; see `simulate`."""
    forward = _times("forward", forward, stages)
    backward = _times("backward", backward, stages)
    if not any(forward) and not any(backward):
        raise ValueError("forward = 0 and backward = 0 are not allowed; their sum must be more than 0")
    if weight is None:
        weight = tuple(Fraction(time) / 2 if isinstance(time, Rational) else time / 2 for time in backward)
    else:
        weight = _times("weight", weight, stages)
        for part, whole in zip(weight, backward, strict=True):
            if part > whole:
                raise ValueError(f"weight = {part} is not allowed; it is a part of backward = {whole}")
    send = _time("send", send)
    if not all(isinstance(time, Rational) for time in (*forward, *backward, *weight, send)):
        forward, backward, weight = (tuple(map(float, times)) for times in (forward, backward, weight))
        send = float(send)
    return Pipeline(stages, microbatches, chunks, forward, backward, weight, send, placement)


def _check_count(name, value):
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"{name} = {value!r} is not allowed; it must be a whole number, at least 1")


def _check_work(stages, microbatches, chunks):
    """Refuse what would fill the memory before it is simulated: more than `MOST` operations of a kind."""
    if stages * microbatches * chunks > MOST:
        counts = ", ".join(f"{name} = {checks.shown(value)}" for name, value in
                           (("stages", stages), ("microbatches", microbatches), ("chunks", chunks)))
        raise ValueError(f"{counts} are too many; their product must be at most {MOST}")


def _times(name, value, stages):
    """One time for each stage."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if not isinstance(value, Sequence) or isinstance(value, str):
        return (_time(name, value),) * stages
    if len(value) != stages:
        raise ValueError(f"{name} = {value!r} is not allowed; it must be one time, or {stages}: one for each stage")
    return tuple(_time(name, time) for time in value)


def _time(name, value):
    wrong = isinstance(value, bool) or not isinstance(value, Real) or value < 0
    if wrong or not (isinstance(value, Rational) or math.isfinite(value)):
        raise ValueError(f"{name} = {value!r} is not allowed; a time must be a finite number, at least 0")
    if isinstance(value, Rational):
        value = Fraction(int(value.numerator), int(value.denominator))
        return int(value) if value.denominator == 1 else value
    return float(value)

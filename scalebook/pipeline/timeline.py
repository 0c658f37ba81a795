"""What a simulated pipeline did: every operation with its start and end, and the measures that the page speaks of."""

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from numbers import Rational
from typing import NamedTuple, Self

from scalebook.checks import number, one_of, shown, whole
from scalebook.pipeline.validation import validate


class Operation(NamedTuple):
    """One forward ("F"), backward ("B") or weight gradient ("W") of one micro-batch in one chunk of one stage.

    `stage` is the device, `chunk` which of the device's pieces of the model; all are counted from 0. `start` and
    `end` are in the unit of the times given to the simulation.
    """

    kind: str
    stage: int
    microbatch: int
    chunk: int
    start: Rational | float
    end: Rational | float


@dataclass(frozen=True)
class Pipeline:
    """A pipeline: its shape, and how long each stage takes for one micro-batch.

    `forward`, `backward` and `weight` hold a time for each stage (all chunks together); `weight` is a part of
    `backward`. `send` is the time from one device to the next. `placement` says which pieces of the model a device
    holds: with "loop" device r holds pieces r, P + r, 2P + r, ...; with "v" it holds r and 2P - 1 - r.
    """

    stages: int
    microbatches: int
    chunks: int
    forward: tuple
    backward: tuple
    weight: tuple
    send: Rational | float
    placement: str = "loop"

    def piece(self, stage, chunk):
        """The place, counted along the model, of a device's chunk."""
        if self.placement == "v" and chunk == 1:
            return 2 * self.stages - 1 - stage
        return chunk * self.stages + stage

    def device(self, piece):
        """The device that holds a piece of the model."""
        if self.placement == "v" and piece >= self.stages:
            return 2 * self.stages - 1 - piece
        return piece % self.stages

    def lag(self, piece, other):
        """The time that data takes from the device of one piece to that of another."""
        return 0 if self.device(piece) == self.device(other) else self.send

    def duration(self, kind, stage, split):
        """The time of an operation on a chunk. `split` says whether its backward leaves the weight gradient out."""
        whole = {"F": self.forward, "B": self.backward, "W": self.weight}[kind][stage]
        if kind == "B" and split:
            whole -= self.weight[stage]
        return divide(whole, self.chunks)

    @property
    def ideal(self):
        """The time if no device ever waited: M (t_f + t_b), with the mean over stages where they differ."""
        return divide(self.microbatches * (sum(self.forward) + sum(self.backward)), self.stages)


@dataclass(frozen=True)
class Timeline:
    """When each operation of a pipeline ran.

    `lanes` holds, for each stage, rows (kind, microbatch, chunk, start, end) in the order in which the device ran
    them, in ticks of 1 / `ticks_per_unit`. `peak_in_flight` is, for each stage, the most micro-batches whose
    activations it held at a time: from the start of a forward to the end of its backward, or of its weight gradient
    where the backward is split. A chunk counts 1/v of a micro-batch.

    >>> from scalebook.pipeline import simulate
    >>> timeline = simulate("1f1b", stages=4, microbatches=8)
    >>> timeline.makespan, timeline.bubble_overhead, timeline.bubble_share
    (33, Fraction(3, 8), Fraction(3, 11))
    >>> timeline.device_span, timeline.peak_in_flight
    ((33, 30, 27, 24), (4, 3, 2, 1))
    >>> timeline.operations[0]
    Operation(kind='F', stage=0, microbatch=0, chunk=0, start=0, end=1)
    """

    schedule: str
    pipeline: Pipeline
    lanes: tuple
    ticks_per_unit: int
    peak_in_flight: tuple
    split: bool | None = False

    @property
    def ideal(self):
        """The time if no device ever waited, M (t_f + t_b)."""
        return self.pipeline.ideal

    @cached_property
    def makespan(self) -> Rational | float:
        """The time from the start of the first operation to the end of the last, over all stages."""
        start = min(lane[0][3] for lane in self.lanes)
        return self._time(max(lane[-1][4] for lane in self.lanes) - start)

    @property
    def bubble_overhead(self) -> Rational | float:
        """The makespan over the ideal time, less 1 (the measure of arXiv:2104.04473)."""
        return _whole(self.makespan / _exact(self.ideal) - 1)

    @property
    def bubble_share(self) -> Rational | float:
        """The part of the makespan that devices spend waiting, on average (the measure of arXiv:1811.06965)."""
        return _whole(1 - _exact(self.ideal) / self.makespan)

    @cached_property
    def device_span(self) -> tuple[Rational | float, ...]:
        """For each stage, the time from the start of its first operation to the end of its last."""
        return tuple(self._time(lane[-1][4] - lane[0][3]) for lane in self.lanes)

    @property
    def span_overhead(self):
        """The longest device span over the ideal time, less 1: the measure in which "zero bubble" is zero."""
        return _whole(max(self.device_span) / _exact(self.ideal) - 1)

    @cached_property
    def idle(self):
        """For each stage, the time within the makespan in which it runs nothing."""
        busy = (sum(end - start for *_, start, end in lane) for lane in self.lanes)
        return tuple(self.makespan - self._time(ticks) for ticks in busy)

    def order(self, stage):
        """The operations of a stage, in the order in which it ran them, as (kind, microbatch, chunk)."""
        if isinstance(stage, bool) or not isinstance(stage, int) or not 0 <= stage < self.pipeline.stages:
            raise ValueError(f"stage = {stage!r} is not allowed; it must be 0 to {self.pipeline.stages - 1}")
        return tuple(row[:3] for row in self.lanes[stage])

    @cached_property
    def operations(self) -> tuple[Operation, ...]:
        """Every `Operation`, stage by stage in the order in which the stage ran them."""
        times = {tick: self._time(tick) for lane in self.lanes for row in lane for tick in row[3:]}
        return tuple(
            Operation(kind, stage, microbatch, chunk, times[start], times[end])
            for stage, lane in enumerate(self.lanes)
            for kind, microbatch, chunk, start, end in lane
        )

    def with_operations(self, operations):
        """The same pipeline with other operations; `validate` tells whether they could have happened."""
        lanes = [[] for _ in range(self.pipeline.stages)]
        for kind, stage, microbatch, chunk, start, end in self._checked(operations):
            lanes[stage].append((kind, microbatch, chunk, start, end))
        if not all(lanes):
            raise ValueError(f"operations has none for stage {lanes.index([])}; each of the {len(lanes)} has some")
        return replace(self, lanes=tuple(map(tuple, lanes)), ticks_per_unit=1)

    def _checked(self, operations):
        """The operations; ValueError unless each is one of this pipeline's, with numbers for times."""
        listed = isinstance(operations, list | tuple)
        if not listed or not all(isinstance(one, tuple | list) and len(one) == 6 for one in operations):
            raise ValueError(f"operations = {shown(operations)} is not allowed; it must be a list of `Operation`s")
        for kind, stage, microbatch, chunk, start, end in operations:
            one_of("operations: kind", kind, ("F", "B", "W"))
            for name, value, most in (("stage", stage, self.pipeline.stages),
                                      ("microbatch", microbatch, self.pipeline.microbatches),
                                      ("chunk", chunk, self.pipeline.chunks)):
                whole(f"operations: {name}", value, 0, most - 1)
            number("operations: start", start)
            number("operations: end", end)
        return operations

    def validate(self) -> Self:
        """Return the timeline if every rule of a pipeline holds; otherwise raise ValueError naming the rule broken.

        The rules are those of `validation.py`.
        """
        validate(self)
        return self

    def _time(self, ticks):
        return divide(ticks, self.ticks_per_unit)


def _exact(value):
    return Fraction(value) if isinstance(value, Rational) else value


def _whole(value):
    return int(value) if isinstance(value, Fraction) and value.denominator == 1 else value


def divide(value, by):
    """Divide exactly, and give back a whole number where it is one."""
    return _whole(_exact(value) / by)

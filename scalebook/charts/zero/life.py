"""One step of stage 3 in time: when each layer's weights are gathered, used and released, and what that holds.

A model of L equal layers. The forward of a layer takes one unit of time and its backward two. One link carries the
gathers and the reduce-scatters, a layer's in `gather` units each, in the order in which they are asked for (a gather
first, where both are asked for at one time). An operation starts when the one before it has ended and its layer's
weights are there. The last layer is never gathered again: its backward follows its forward, so it keeps its weights.
"""

import itertools
import json
from dataclasses import dataclass
from functools import partial

from scalebook import checks, colours
from scalebook.borders import guard
from scalebook.charts.kinds import positive
from scalebook.charts.words import above, words
from scalebook.charts.zero.parts import GRADIENTS, PARTS, WEIGHTS
from scalebook.explorer import grid, pack, unpack_expression

GATHER, FORWARD, BACKWARD, REDUCE = "gather", "forward", "backward", "reduce-scatter"  # the link carries first and last
KINDS = {GATHER: PARTS[WEIGHTS], FORWARD: colours.FORWARD, BACKWARD: colours.BACKWARD, REDUCE: PARTS[GRADIENTS]}
TIMES = {FORWARD: 1, BACKWARD: 2}
TICKS = 2  # a unit of time in the packed steps: halves stay whole
ROOM = 3  # layers of gradients that may be held beside all weights
FLOOR = f"(-L - {ROOM}) / 2"  # where what is held stands on, half a row high each, on the chart's axis
PALE = 0.45
GRID = {"L": (4, 6, 8), "prefetch": (0, 1, 2), "reshard": (True, False), "gather": (0.5, 1, 1.5, 2)}


@dataclass(frozen=True)
class Operation:
    """One operation of a layer (counted from 1) on the processor or the link, in units of time."""

    kind: str
    layer: int
    start: float
    end: float


@dataclass(frozen=True)
class Step:
    """A step of stage 3: its operations, and when weights and gradients are held whole: (layer, start, end) each."""

    operations: tuple
    weights: tuple
    gradients: tuple

    @property
    def end(self):
        """When the last operation ends."""
        return max(operation.end for operation in self.operations)

    @property
    def waiting(self):
        """How long the processor waits, until the last backward ends."""
        computing = [operation for operation in self.operations if operation.kind in TIMES]
        return computing[-1].end - sum(operation.end - operation.start for operation in computing)

    def held(self):
        """Rows (start, end, layers of whole weights, layers of whole gradients), one for each time without change."""
        times = sorted({time for _, *ends in (*self.weights, *self.gradients) for time in ends})

        def count(intervals, time):
            return sum(start <= time < end for _, start, end in intervals)

        return [(start, end, count(self.weights, start), count(self.gradients, start))
                for start, end in itertools.pairwise(times)]


class _Link:
    """Carries one collective at a time, first asked first; of two asked for at one time, the gather first."""

    def __init__(self, duration):
        self.duration, self.free, self.waiting, self.done = duration, 0, [], {}

    def ask(self, kind, place, layer, ready):
        self.waiting.append((kind, place, layer, ready))

    def carry_one(self):
        chosen = min(self.waiting, key=lambda one: (one[3], one[0] != GATHER, one[1]))
        self.waiting.remove(chosen)
        kind, place, layer, ready = chosen
        start = max(self.free, ready)
        self.free = start + self.duration
        self.done[kind, place] = Operation(kind, layer, start, self.free)


def simulate_step(L, prefetch, reshard, gather):
    """Return the `Step` of L layers.

    `prefetch` is how many operations ahead the next weights are gathered (0: only when the operation before has
    ended). `reshard` releases the weights after the forward and gathers them again for the backward. `gather` is the
    time of one all-gather or reduce-scatter of a layer.

    Raises ValueError for L below 1, `prefetch` below 0, and a `gather` that is not above 0.

    >>> step = simulate_step(4, prefetch=1, reshard=True, gather=1)
    >>> step.end, step.waiting, max(weights for _, _, weights, _ in step.held())
    (14, 1, 2)
    """
    order = [(FORWARD, layer) for layer in range(1, L + 1)] + [(BACKWARD, layer) for layer in range(L, 0, -1)]
    gathered = [kind == FORWARD or (reshard and layer < L) for kind, layer in order]
    link, computed, now = _Link(gather), [], 0
    for place, (kind, layer) in enumerate(order):
        asked = range(prefetch + 1) if place == 0 else [place + prefetch]
        for ahead in asked:
            if ahead < 2 * L and gathered[ahead]:
                link.ask(GATHER, ahead, order[ahead][1], now)
        while gathered[place] and (GATHER, place) not in link.done:
            link.carry_one()
        start = max(now, link.done[GATHER, place].end) if gathered[place] else now
        now = start + TIMES[kind]
        computed.append(Operation(kind, layer, start, now))
        if kind == BACKWARD:
            link.ask(REDUCE, place, layer, now)
    while link.waiting:
        link.carry_one()
    weights = []
    for place in (place for place in range(2 * L) if gathered[place]):
        last_use = place if gathered[2 * L - 1 - place] else 2 * L - 1 - place  # the backward, if that gathers nothing
        weights.append((order[place][1], link.done[GATHER, place].start, computed[last_use].end))
    gradients = [(order[place][1], computed[place].start, link.done[REDUCE, place].end) for place in range(L, 2 * L)]
    carried = sorted(link.done.values(), key=lambda one: one.start)
    return Step((*carried, *computed), tuple(weights), tuple(gradients))


def life_row(L, prefetch, reshard, gather):
    """One step as a row for the chart: every operation, and what is held, packed."""
    step = simulate_step(L, prefetch, reshard, gather)
    kinds = list(KINDS)
    return {
        "operations": pack(number for one in step.operations for number in (
            kinds.index(one.kind), one.layer, one.start * TICKS, one.end * TICKS)),
        "held": pack(number for start, end, *layers in step.held() for number in (start * TICKS, end * TICKS, *layers)),
        "intervals": pack(number for layer, start, end in step.weights
                          for number in (layer, start * TICKS, end * TICKS)),
        "end": step.end,
        "waiting": step.waiting,
        "weights": max(weights for _, _, weights, _ in step.held()),
        "gradients": max(gradients for *_, gradients in step.held()),
        "sent": sum(one.kind in (GATHER, REDUCE) for one in step.operations),
    }


def _read(packed, position):
    return unpack_expression(f"datum.{packed}", position)


def longest():
    """The longest step of each L and `gather` of the grid: without prefetch, and gathering twice."""
    return {L: {gather: simulate_step(L, 0, True, gather).end for gather in GRID["gather"]} for L in GRID["L"]}


def _unpacked(chosen, name, packed, size):
    """One row for each group of `size` numbers that are packed, with its place `i`."""
    return (
        chosen.properties(name=name).transform_calculate(i=f"sequence(length(datum.{packed}) / {2 * size})")
        .transform_flatten(["i"])
    )


def life_chart():
    """The operations of each layer above, what is held whole below; signals L, prefetch, reshard, gather."""
    import altair as alt

    chosen = alt.Chart(alt.Data(values=grid(life_row, **GRID))).transform_filter(
        "datum.L == L && datum.prefetch == prefetch && datum.reshard == reshard && datum.gather == gather")
    # One axis for both: layer l has the row from L - l to L - l + 1, and what is held stands on the floor, below 0.
    ticks = {L: [*(L - layer + 0.5 for layer in range(1, L + 1)),
                 *((held - L - ROOM) / 2 for held in range(0, L + 1, 2))] for L in GRID["L"]}
    label = f"datum.value > 0 ? 'layer ' + (L + 0.5 - datum.value) : 2 * (datum.value - ({FLOOR})) + ' held'"
    y = alt.Y("y:Q", title=None, scale=alt.Scale(domainMin=alt.ExprRef(FLOOR), domainMax=alt.ExprRef("L"), nice=False),
              axis=alt.Axis(values=alt.ExprRef(f"{json.dumps(ticks)}[L]"), grid=False, tickSize=0, domain=False,
                            labelExpr=label))
    x = alt.X("start:Q", title="time, in forwards of a layer",
              axis=alt.Axis(tickCount=6),
              scale=alt.Scale(domainMin=0, domainMax=alt.ExprRef(f"{json.dumps(longest())}[L][gather]"), nice=False))
    colour = alt.Color("kind:N", legend=alt.Legend(offset=above(4)),
                       scale=alt.Scale(domain=list(KINDS), range=list(KINDS.values())))

    def times(chart, packed, size, first):
        place = f"({size} * datum.i + {first})"
        return chart.transform_calculate(start=f"{_read(packed, place)} / {TICKS}",
                                         end=f"{_read(packed, f'{place} + 1')} / {TICKS}")

    operations = (
        times(_unpacked(chosen, "operation", "operations", 4), "operations", 4, 2)
        .transform_calculate(kind=f"{list(KINDS)}[{_read('operations', '4 * datum.i')}]",
                             y=f"L - {_read('operations', '4 * datum.i + 1')} + 0.15", y2="datum.y + 0.7")
        .mark_rect(stroke=None).encode(x=x, x2="end:Q", y=y, y2="y2:Q", color=colour)
    )
    resting = (
        times(_unpacked(chosen, "resting", "intervals", 3), "intervals", 3, 1)
        .transform_calculate(y=f"L - {_read('intervals', '3 * datum.i')} + 0.35", y2="datum.y + 0.3")
        .mark_rect(stroke=None, color=KINDS[GATHER], opacity=PALE).encode(x=x, x2="end:Q", y=y, y2="y2:Q")
    )
    held = (
        _unpacked(chosen, "held", "held", 4)
        .transform_calculate(whole=_read("held", "4 * datum.i + 2"), more=_read("held", "4 * datum.i + 3"))
    )
    held = (
        times(held, "held", 4, 0)
        .transform_calculate(**{GATHER: "[0, datum.whole]", REDUCE: "[datum.whole, datum.whole + datum.more]"})
        .transform_fold([GATHER, REDUCE], as_=["kind", "ends"]).transform_filter("datum.ends[1] > datum.ends[0]")
        .transform_calculate(y=f"{FLOOR} + datum.ends[0] / 2", y2=f"{FLOOR} + datum.ends[1] / 2")
        .mark_rect(stroke=None, opacity=PALE).encode(x=x, x2="end:Q", y=y, y2="y2:Q", color=colour)
    )
    text = words(
        chosen,
        "'a step of ' + datum.end + ' forwards; ' + datum.sent + ' layers are sent'",
        "'the processor waits ' + datum.waiting",
        "'at most ' + datum.weights + (datum.weights > 1 ? ' layers\\'' : ' layer\\'s') + ' weights'",
        "'and ' + datum.gradients + (datum.gradients > 1 ? ' layers\\'' : ' layer\\'s') + ' gradients whole'",
    )
    return alt.layer(resting, operations, held, text).properties(height=420)


guard(globals(), {"L": partial(checks.whole, most=10_000), "prefetch": partial(checks.whole, least=0, most=20_000),
                  "reshard": checks.flag, "gather": partial(positive, most=1000)},
      "simulate_step", "life_row")

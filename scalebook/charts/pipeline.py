"""The charts of chapter 4. Each function returns an Altair chart whose signals bear the names of its controls.

Signals: `P` stages, `M` micro-batches, `v` chunks a device, `schedule`, `ratio` = t_b / t_f, and those that a
function names itself.
"""

from fractions import Fraction
from functools import partial

from scalebook import checks
from scalebook.borders import guard
from scalebook.charts.kinds import amount, choice, positive
from scalebook.colours import BACKWARD, COMPARED, FORWARD, IDLE, WEIGHT
from scalebook.explorer import grid, pack, unpack_expression
from scalebook.formulas import pipeline as formulas
from scalebook.pipeline import SCHEDULES, simulate

TICKS = 4  # a unit of time in the packed schedules: halves of halves stay whole
GANTT_GRID = {"schedule": SCHEDULES, "P": (2, 4, 8), "M": (4, 8, 12, 16), "ratio": (1, 2, 3)}
SLOW_GRID = {"P": (2, 4, 8), "M": (8, 16, 32), "place": ("first", "middle", "last"), "send": (0, 0.1, 0.25, 0.5)}
LAYERS = 96  # GPT-3's, so that every stage count below divides it
LAYER_KEEPS = (34 + 80) // 2  # what a layer keeps over its input: 34 + 5as/h bytes over 2; GPT-3 has 5as/h = 80
NAMES = {"gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "interleaved", "zb-h1": "ZB-H1", "zb-h2": "ZB-H2",
         "zb-v": "ZB-V"}


def bubble_chart():
    """Both measures of the bubble against the number of micro-batches; signals P, v, M."""
    import altair as alt

    measures = {"overhead over ideal time": formulas.bubble_overhead_interleaved,
                "share of total time": formulas.bubble_share_interleaved}
    possible = "(v == 1 || datum.M % P == 0)"
    lines = (
        alt.Chart(alt.sequence(1, 129, as_="M"), name="curve")
        .transform_filter(possible)
        .transform_calculate(**{name: f.vega(M="datum.M") for name, f in measures.items()})
        .transform_fold(list(measures), as_=["measure", "bubble"])
        .mark_line(clip=True, point=alt.OverlayMarkDef(size=14))
        .encode(
            x=alt.X("M:Q", title="micro-batches M", scale=alt.Scale(domain=[0, 128], nice=False)),
            y=alt.Y("bubble:Q", title="bubble", axis=alt.Axis(format="%"), scale=alt.Scale(domain=[0, 1])),
            color=alt.Color("measure:N", scale=alt.Scale(domain=list(measures), range=COMPARED[:2])),
        )
    )
    chosen = alt.Chart(alt.Data(values=[{}])).transform_calculate(
        M="M", possible="v == 1 || M % P == 0",
        **{name: f.vega() for name, f in measures.items()})
    here = (
        chosen.properties(name="chosen").transform_filter("datum.possible")
        .transform_fold(list(measures), as_=["measure", "bubble"])
        .mark_point(clip=True, size=110, opacity=1, filled=True)
        .encode(x="M:Q", y="bubble:Q", color="measure:N")
    )
    overhead, share = (f"format(datum['{name}'], '.1%')" for name in measures)
    words = (
        chosen.properties(name="words")
        .transform_calculate(text=f"datum.possible ? 'M = ' + M + ':  overhead ' + {overhead} + ',  share ' + {share}"
                             " : 'M = ' + M + ' is not a multiple of P = ' + P + ', as interleaving needs'")
        .mark_text(align="right", fontSize=13)
        .encode(x=alt.value("width"), y=alt.value(12), text="text:N")
    )
    return alt.layer(lines, here, words).properties(height=300)


def gantt_row(schedule, P, M, ratio):
    """One schedule as a row for the Gantt chart: every start, packed in the order stage, kind, chunk, micro-batch.

    t_f is 1 and t_b is `ratio`; a schedule that splits the backward gives half of it to the weight gradient. No starts
    where there is no schedule: interleaving needs M to be a multiple of P.
    """
    if schedule == "interleaved" and M % P:
        return {"kinds": 2, "chunks": 2, "starts": ""}
    timeline = simulate(schedule, P, M, forward=1, backward=ratio, chunks=2 if schedule == "interleaved" else 1)
    kinds = "FBW" if schedule.startswith("zb") else "FB"
    ordered = sorted(timeline.operations, key=lambda op: (op.stage, kinds.index(op.kind), op.chunk, op.microbatch))
    return {
        "kinds": len(kinds),
        "chunks": timeline.pipeline.chunks,
        "starts": pack(op.start * TICKS for op in ordered),
        "makespan": float(timeline.makespan),
        "share": float(timeline.bubble_share),
        "span": float(timeline.span_overhead),
        "peak": float(max(timeline.peak_in_flight)),
    }


def gantt_bars(chosen):
    """Turn the chosen row of `gantt_row` into one row for each operation, in the browser."""
    return (
        chosen.transform_calculate(i="sequence(length(datum.starts) / 2)")
        .transform_flatten(["i"])
        .transform_calculate(
            chunk="floor(datum.i / datum.M) % datum.chunks",
            k="floor(datum.i / (datum.M * datum.chunks)) % datum.kinds",
            stage="floor(datum.i / (datum.M * datum.chunks * datum.kinds))",
        )
        .transform_calculate(
            kind="['forward', 'backward', 'weight gradient'][datum.k]",
            start=f"({unpack_expression('datum.starts', 'datum.i')}) / {TICKS}",
        )
        .transform_calculate(
            end="datum.start + (datum.k == 0 ? 1 : datum.ratio / (datum.kinds - 1)) / datum.chunks",
        )
    )


def gantt_chart():
    """A schedule in time, one row a stage; signals schedule, P, M, ratio."""
    import altair as alt

    colours = {"forward": FORWARD, "backward": BACKWARD, "weight gradient": WEIGHT}
    chosen = alt.Chart(alt.Data(values=grid(gantt_row, **GANTT_GRID))).transform_filter(
        "datum.schedule == schedule && datum.P == P && datum.M == M && datum.ratio == ratio")
    bars = gantt_bars(chosen)
    longest = formulas.makespan.vega(t_f="1", t_b="ratio")
    x = alt.X("start:Q", title="time, in forwards of one micro-batch",
              scale=alt.Scale(domainMin=0, domainMax=alt.ExprRef(longest), nice=False))
    y = alt.Y("stage:O", title="stage", scale=alt.Scale(paddingInner=0.12))
    rectangles = bars.properties(name="operation").mark_rect(stroke=None).encode(
        x=x, x2="end:Q", y=y,
        opacity=alt.Opacity("chunk:O", legend=None, scale=alt.Scale(domain=[0, 1], range=[1, 0.6])),
        color=alt.Color("kind:N", legend=alt.Legend(offset=26),
                        scale=alt.Scale(domain=list(colours), range=list(colours.values()))),
    )
    numbers = (
        bars.properties(name="number")
        .transform_filter("datum.P * datum.M * datum.chunks <= 64")
        .transform_calculate(middle="(datum.start + datum.end) / 2", microbatch="datum.i % datum.M")
        .mark_text(color="white", fontSize=10)
        .encode(x="middle:Q", y=y, text="microbatch:N")
    )
    words = (
        chosen.properties(name="words")
        .transform_calculate(text="datum.starts ? 'step ' + format(datum.makespan, '.4~r') + ',  idle '"
                             " + format(datum.share, '.1%') + ',  ' + format(datum.peak, '.4~r')"
                             " + ' micro-batches in flight' : 'interleaving needs M to be a multiple of P'")
        .mark_text(align="left", fontSize=13)
        .encode(x=alt.value(0), y=alt.value(-10), text="text:N")
    )
    return alt.layer(rectangles, numbers, words).properties(height=260)


def memory_chart():
    """Activations that a stage holds against the number of micro-batches, in layers; signals P, M, where."""
    import altair as alt

    per_stage = f"({LAYERS} / P)"
    stage = "(where == 'first' ? 0 : where == 'middle' ? floor(P / 2) : P - 1)"
    curves = {
        "GPipe": formulas.peak_in_flight_gpipe.vega(M="datum.M"),
        "1F1B": formulas.peak_in_flight_1f1b.vega(M="datum.M", r=stage),
    }
    names = [*curves, "GPipe, rematerialised"]
    held = {name: f"({expression}) * {per_stage}" for name, expression in curves.items()}
    # One sample a micro-batch, so N = M; the formula's unit is a layer's input, of which a layer keeps LAYER_KEEPS.
    rematerialised = formulas.memory_gpipe_rematerialised.vega(M="datum.M", N="datum.M", L=LAYERS, a=LAYER_KEEPS)
    held["GPipe, rematerialised"] = f"({rematerialised}) / {LAYER_KEEPS}"
    encoding = {
        "x": alt.X("M:Q", title="micro-batches M", scale=alt.Scale(domain=[1, 64], nice=False)),
        "y": alt.Y("layers:Q", title="activations held, in layers of one micro-batch",
                   scale=alt.Scale(domain=[0, 400], nice=False)),
        "color": alt.Color("schedule:N", scale=alt.Scale(domain=names, range=COMPARED)),
    }
    lines = (
        alt.Chart(alt.sequence(1, 65, as_="M"), name="curve").transform_calculate(**held)
        .transform_fold(names, as_=["schedule", "layers"]).mark_line(clip=True).encode(**encoding)
    )
    points = (
        alt.Chart(alt.Data(values=[{}]), name="chosen").transform_calculate(M="M").transform_calculate(**held)
        .transform_fold(names, as_=["schedule", "layers"]).mark_point(clip=True, filled=True, size=110, opacity=1)
        .encode(**encoding)
    )
    words = (
        alt.Chart(alt.Data(values=[{}]), name="words").transform_calculate(M="M").transform_calculate(**held)
        .transform_calculate(text="'stage ' + " + stage + " + ':  GPipe ' + format(datum['GPipe'], '.4~r')"
                             " + ',  1F1B ' + format(datum['1F1B'], '.4~r') + ' layers'")
        .mark_text(align="left", fontSize=13).encode(x=alt.value(8), y=alt.value(12), text="text:N")
    )
    return alt.layer(lines, points, words).properties(height=300)


def needed_chart():
    """The least number of micro-batches that keeps the bubble at a target; signals target (in percent), P."""
    import altair as alt

    needed = {"overhead at most the target": formulas.microbatches_for_overhead_percent,
              "share at most the target": formulas.microbatches_for_share_percent}
    counts = {name: f.vega(P="datum.P", p="target") for name, f in needed.items()}
    encoding = {
        "x": alt.X("P:Q", title="stages P", scale=alt.Scale(domain=[1, 64], nice=False)),
        "y": alt.Y("M:Q", title="micro-batches M needed", scale=alt.Scale(type="log", domain=[1, 8192], nice=False)),
        "color": alt.Color("measure:N", scale=alt.Scale(domain=list(needed), range=COMPARED[:2])),
    }
    lines = (
        alt.Chart(alt.sequence(1, 65, as_="P"), name="curve").transform_calculate(**counts)
        .transform_fold(list(needed), as_=["measure", "M"]).mark_line(interpolate="step-after", clip=True)
        .encode(**encoding)
    )
    chosen = alt.Chart(alt.Data(values=[{}])).transform_calculate(P="P").transform_calculate(**counts)
    points = (
        chosen.properties(name="chosen").transform_fold(list(needed), as_=["measure", "M"])
        .mark_point(clip=True, filled=True, size=110, opacity=1).encode(**encoding)
    )
    first, second = (f"format(datum['{name}'], 'd')" for name in needed)
    words = (
        chosen.properties(name="words")
        .transform_calculate(text=f"'P = ' + datum.P + ':  ' + {first} + ' (overhead),  ' + {second} + ' (share)'")
        .mark_text(align="right", fontSize=13).encode(x=alt.value("width"), y=alt.value("height"), text="text:N")
    )
    words = words.encode(y=alt.YValue(alt.ExprRef("height - 12")))
    return alt.layer(lines, points, words).properties(height=300)


def slow_rows(P, M, place, send):
    """Simulated steps with one slow stage and with transfers that take time, for GPipe and 1F1B."""
    slow = {"first": 0, "middle": P // 2, "last": P - 1}[place]
    rows = []
    for percent in range(0, 101, 20):
        pace = [1 + Fraction(percent, 100) if stage == slow else Fraction(1) for stage in range(P)]
        for schedule in ("gpipe", "1f1b"):
            timeline = simulate(schedule, P, M, pace, [2 * time for time in pace], send=Fraction(str(send)))
            even = formulas.ideal_time(M=M, t_f=1, t_b=2)
            rows.append({"slower": percent, "name": NAMES[schedule], "over": float(timeline.makespan / even - 1)})
    return rows


def slow_chart():
    """What an uneven stage and slow transfers add to the step; signals P, M, place, send."""
    import altair as alt

    names = [NAMES["gpipe"], NAMES["1f1b"], "the formula"]
    scales = {
        "x": alt.X("slower:Q", title="one stage is slower by, in percent", scale=alt.Scale(domain=[0, 100]),
                   axis=alt.Axis(tickCount=6)),
        "y": alt.Y("over:Q", title="step over ideal time", axis=alt.Axis(format="%"),
                   scale=alt.Scale(domain=[0, 2.5], nice=False)),
        "color": alt.Color("name:N", scale=alt.Scale(domain=names, range=COMPARED)),
    }
    simulated = (
        alt.Chart(alt.Data(values=grid(slow_rows, **SLOW_GRID)), name="simulated")
        .transform_filter("datum.P == P && datum.M == M && datum.place == place && datum.send == send")
        .mark_line(point=True, clip=True).encode(**scales)
    )
    formula = (
        alt.Chart(alt.sequence(0, 101, 100, as_="slower"), name="formula")
        .transform_calculate(over=formulas.bubble_overhead.vega(), name="'the formula'")
        .mark_line(strokeDash=[6, 4]).encode(**scales)
    )
    return alt.layer(simulated, formula).properties(height=300)


def trade_row(P, M, ratio, schedule):
    """What a schedule costs in time and holds in memory; None where there is none."""
    row = gantt_row(schedule, P, M, ratio)
    if not row["starts"]:
        return None
    return {"name": NAMES[schedule], "peak": row["peak"] / P, "span": row["span"],
            "overhead": row["makespan"] / float(formulas.ideal_time(M=M, t_f=1, t_b=ratio)) - 1}


def trade_chart():
    """Time against memory, one point a schedule; signals P, M, ratio, measure."""
    import altair as alt

    names = list(NAMES.values())
    chosen = (
        alt.Chart(alt.Data(values=grid(trade_row, **GANTT_GRID)))
        .transform_filter("datum.P == P && datum.M == M && datum.ratio == ratio")
        .transform_calculate(bubble="measure == 'span' ? datum.span : datum.overhead")
    )
    x = alt.X("peak:Q", title="most micro-batches in flight on a stage, over P",
              scale=alt.Scale(type="log", domain=[0.4, 10], nice=False), axis=alt.Axis(values=[0.5, 1, 2, 4, 8]))
    y = alt.Y("bubble:Q", title="bubble over ideal time", axis=alt.Axis(format="%"),
              scale=alt.Scale(domain=[-0.05, 1.8], nice=False))
    colours = [IDLE, *COMPARED[:2], WEIGHT, WEIGHT, WEIGHT]
    return chosen.properties(name="point", height=300).mark_point(size=150, opacity=0.9).encode(
        x=x, y=y,
        color=alt.Color("name:N", scale=alt.Scale(domain=names, range=colours)),
        shape=alt.Shape("name:N", scale=alt.Scale(domain=names)))


guard(globals(), {"P": partial(checks.whole, most=1024), "M": checks.whole,
                  "ratio": partial(positive, most=1000), "send": amount, "schedule": choice(SCHEDULES),
                  "place": choice(("first", "middle", "last"))},
      "gantt_row", "slow_rows", "trade_row")

"""Oracles of the explorers of chapter 4."""

from fractions import Fraction

from scalebook.formulas import pipeline as formulas
from scalebook.pipeline import SCHEDULES, simulate
from tests.browser.oracles import oracle, percent, significant

OVERHEAD, SHARE = "overhead over ideal time", "share of total time"
SCHEDULE_NAMES = ("GPipe", "1F1B", "interleaved", "ZB-H1", "ZB-H2", "ZB-V")


@oracle("bubble")
def bubble(P, M, v):
    plain = {OVERHEAD: formulas.bubble_overhead, SHARE: formulas.bubble_share}
    interleaved = {OVERHEAD: formulas.bubble_overhead_interleaved, SHARE: formulas.bubble_share_interleaved}

    def both(m):
        values = {name: f(P=P, M=m) for name, f in plain.items()} if v == 1 else {
            name: f(P=P, M=m, v=v) for name, f in interleaved.items()}
        return [{"x": m, "y": value, "color": name} for name, value in values.items()]

    possible = [m for m in range(1, 129) if v == 1 or m % P == 0]
    curve = [row for m in possible for row in both(m)]
    if M in possible:
        overhead, share = (row["y"] for row in both(M))
        words = f"M = {M}:  overhead {percent(overhead)},  share {percent(share)}"
    else:
        words = f"M = {M} is not a multiple of P = {P}, as interleaving needs"
    return {"curve": curve, "layer_0_layer_1": curve, "chosen": both(M) if M in possible else [],
            "words": [{"text": words}]}


def schedule_of(schedule, P, M, ratio):
    return simulate(schedule, P, M, forward=1, backward=ratio, chunks=2 if schedule == "interleaved" else 1)


@oracle("gantt")
def gantt(schedule, P, M, ratio):
    if schedule == "interleaved" and M % P:
        return {"operation": [], "number": [], "words": [{"text": "interleaving needs M to be a multiple of P"}]}
    timeline = schedule_of(schedule, P, M, ratio)
    kinds = {"F": "forward", "B": "backward", "W": "weight gradient"}
    bars = [{"x": op.start, "x2": op.end, "y": op.stage, "color": kinds[op.kind], "opacity": 0.6 if op.chunk else 1}
            for op in timeline.operations]
    numbers = [{"x": Fraction(op.start + op.end) / 2, "y": op.stage, "text": str(op.microbatch)}
               for op in timeline.operations]
    few = P * M * timeline.pipeline.chunks <= 64
    words = (f"step {significant(timeline.makespan)},  idle {percent(timeline.bubble_share)},  "
             f"{significant(max(timeline.peak_in_flight))} micro-batches in flight")
    return {"operation": bars, "number": numbers if few else [], "words": [{"text": words}]}


@oracle("memory")
def memory(P, M, where):
    stage = {"first": 0, "middle": P // 2, "last": P - 1}[where]

    def layers(m):  # of one M or of an array of them
        return {
            "GPipe": formulas.layers_held_gpipe(P=P, M=m, L=96),
            "1F1B": formulas.layers_held_1f1b(P=P, M=m, r=stage, L=96),
            # a layer keeps 57 times its input: 34 + 80 bytes over 2, in GPT-3's shape
            "GPipe, rematerialised": formulas.memory_gpipe_rematerialised(P=P, M=m, N=m, L=96, a=57) / 57}

    curve = [{"x": m, "y": held, "color": name} for name, values in layers(list(range(1, 65))).items()
             for m, held in enumerate(values, 1)]
    here = layers(M)
    text = f"stage {stage}:  GPipe {significant(here['GPipe'])},  1F1B {significant(here['1F1B'])} layers"
    return {"curve": curve, "chosen": [{"x": M, "y": held, "color": name} for name, held in here.items()],
            "words": [{"text": text}]}


@oracle("needed")
def needed(target, P):
    bubble = Fraction(target, 100)

    def points(stages):
        return [{"x": stages, "y": count, "color": f"{name} at most the target"} for name, count in (
            ("overhead", formulas.microbatches_for_overhead(P=stages, x=bubble)),
            ("share", formulas.microbatches_for_share(P=stages, y=bubble)))]

    first, second = (row["y"] for row in points(P))
    return {"curve": [row for stages in range(1, 65) for row in points(stages)], "chosen": points(P),
            "words": [{"text": f"P = {P}:  {first} (overhead),  {second} (share)"}]}


@oracle("slow")
def slow(P, M, place, send):
    stage = {"first": 0, "middle": P // 2, "last": P - 1}[place]
    rows = []
    for percents in range(0, 101, 20):
        times = [Fraction(100 + (percents if one == stage else 0), 100) for one in range(P)]
        for schedule, name in (("gpipe", "GPipe"), ("1f1b", "1F1B")):
            step = simulate(schedule, P, M, times, [2 * t for t in times], send=Fraction(str(send))).makespan
            rows.append({"x": percents, "y": Fraction(step) / (3 * M) - 1, "color": name})
    line = [{"x": x, "y": formulas.bubble_overhead(P=P, M=M), "color": "the formula"} for x in (0, 100)]
    return {"simulated": rows, "layer_0_layer_1": rows, "formula": line}


@oracle("trade")
def trade(P, M, ratio, measure):
    points = []
    for schedule, name in zip(SCHEDULES, SCHEDULE_NAMES, strict=True):
        if schedule == "interleaved" and M % P:
            continue
        timeline = schedule_of(schedule, P, M, ratio)
        bubble = timeline.span_overhead if measure == "span" else timeline.bubble_overhead
        at = {"x": Fraction(max(timeline.peak_in_flight)) / P, "y": bubble}
        points.append(at | {"color": name, "shape": name})
    return {"point": points}

"""Oracles of the explorers of chapter 3."""

from fractions import Fraction

from scalebook import published
from tests.browser.oracles import duration, oracle, percent, significant


def decimal(number):
    size, name = (1e6, "MB") if number < 1e9 else (1e9, "GB") if number < 1e12 else (1e12, "TB")
    return f"{significant(number / size, 3)} {name}"


@oracle("race")
def race(t, h, s, b, share, link):
    place, kind = link.split(", ")
    machine = published.machine({"A100": "A100-80GB"}.get(place, place))
    speed = machine.nvlink_one_way if kind == "NVLink" else machine.internode_node / machine.gpus_per_node
    work = 3 * b * (24 * s * h**2 + 4 * s**2 * h) / (share * machine.peak_flops)

    def points(ranks):
        times = {"compute": work / ranks,
                 "communication": 2 * 4 * 2 * b * s * h * (ranks - 1) / ranks / speed}
        return [{"x": ranks, "y": value, "color": name} for name, value in times.items() if value > 0]

    balance = 1 + work * speed / (16 * b * s * h)
    compute, communication = (*(row["y"] for row in points(t)), 0)[:2]
    text = (f"compute {duration(compute)}, communication {duration(communication)}\n"
            f"t = {t}: a rank computes {percent(compute / (compute + communication))} of the time\n"
            f"equal at t = {significant(balance, 3)}")
    curve = [row for step in range(25) for row in points(round(2**(step / 4), 4))]
    return {"curve": curve, "chosen": points(t), "balanced": [{"x": balance}] if balance <= 64 else [],
            "words": [{"text": text}]}


@oracle("kept")
def kept(t, s, a, h, b):
    outside, attention, mlp, scores = (10 * s * b * h, 8 * s * b * h, 16 * s * b * h, 5 * a * s**2 * b)
    ways = {"one rank": (outside, attention, mlp, scores),
            "TP": (outside, *(Fraction(part, t) for part in (attention, mlp, scores))),
            "TP + SP": tuple(Fraction(part, t) for part in (outside, attention, mlp, scores)),
            "TP, selective": (outside, Fraction(attention, t), Fraction(mlp, t), 0),
            "TP + SP, selective": (*(Fraction(part, t) for part in (outside, attention, mlp)), 0),
            "full recomputation": (2 * s * b * h, 0, 0, 0)}
    names = ("norms, inputs, masks", "Q, K, V and projection", "inside the MLP", "scores")
    bars, sums = [], []
    for way, parts in ways.items():
        end = 0
        for name, part in zip(names, parts, strict=True):
            if part:
                bars.append({"x": end, "x2": end + part, "y": way, "color": name})
                end += part
        sums.append({"x": end, "y": way, "text": decimal(end)})
    whole = sum(ways["one rank"])
    text = (f"5as/h = {significant(Fraction(5 * a * s, h), 3)} beside 34:\nscores are "
            f"{percent(Fraction(scores, whole))}\nTP + SP, selective:\n"
            f"{significant(whole / sum(ways['TP + SP, selective']), 3)} times less than one rank")
    return {"part": bars, "sum": sums, "words": [{"text": text}]}


COLUMNS, ROWS, WHOLE, SUMS = ("split by columns", "split by rows", "whole on every rank",
                              "partial sums, to all-reduce")
SHAPES = {"QKV": (4096, 6144), "output": (4096, 4096), "gate": (4096, 14336), "up": (4096, 14336),
          "down": (14336, 4096), "embedding": (128256, 4096)}
BOXES = {"X": (0, 24, 30, 70), "W": (36, 76, 0, 100), "Y": (88, 112, 30, 70)}


def owners(matrix, t):
    """The slices of the axis that is split: (first, end, ranks that hold it), each once."""
    if matrix != "QKV":
        length = SHAPES[matrix][matrix in ("gate", "up")]
        return [(rank * length // t, (rank + 1) * length // t, {rank}) for rank in range(t)]
    found = [(rank * 4096 // t, (rank + 1) * 4096 // t, {rank}) for rank in range(t)]
    for first in (4096, 5120):
        heads = {}
        for rank in range(t):
            queries = range(rank * 32 // t, (rank + 1) * 32 // t)
            heads.setdefault(tuple(sorted({query // 4 for query in queries})), set()).add(rank)
        found += [(first + 128 * held[0], first + 128 * (held[-1] + 1), ranks) for held, ranks in heads.items()]
    return found


@oracle("slices")
def slices(matrix, t, rank):
    by_columns = matrix in ("QKV", "gate", "up")
    rows, columns = SHAPES[matrix]
    kinds = {"X": WHOLE, "W": COLUMNS, "Y": COLUMNS} if by_columns else {"X": COLUMNS, "W": ROWS, "Y": SUMS}
    length, drawn = columns if by_columns else rows, []
    for panel, kind in kinds.items():
        left, right, top, bottom = BOXES[panel]
        cut = owners(matrix, t) if kind in (COLUMNS, ROWS) else [(0, length, set(range(t)))]
        for first, end, ranks in cut:
            low, high = ((first + 0.04 * (end - first)) / length, (end - 0.04 * (end - first)) / length)
            place = {"x": left, "x2": right, "y": top + low * (bottom - top), "y2": top + high * (bottom - top)}
            if kind != ROWS:
                place = {"x": left + low * (right - left), "x2": left + high * (right - left), "y": top, "y2": bottom}
            drawn.append(place | {"color": kind, "opacity": 1 if rank in ranks else 0.25})
    names = {"X": f"{'one-hot' if matrix == 'embedding' else 'X'}: s × {rows:,}",
             "W": f"{'Q, K, V' if matrix == 'QKV' else matrix}: {rows:,} × {columns:,}", "Y": f"Y: s × {columns:,}"}
    titles = [{"x": sum(BOXES[panel][:2]) / 2, "y": BOXES[panel][2], "text": text} for panel, text in names.items()]
    mine = [(first, end) for first, end, ranks in owners(matrix, t) if rank in ranks]
    if mine:
        part = sum(end - first for first, end in mine) * (rows if by_columns else columns)
        text = (f"rank {rank} of {t}: {holding(matrix, t, rank)}\n{significant(part / 1e6, 3)} of "
                f"{significant(rows * columns / 1e6, 3)} million parameters\n")
    else:
        text = f"There is no rank {rank}:\nranks are counted from 0 to {t - 1}\n"
    if mine:
        text += ("needs all of X,\nmakes its columns of Y: no message" if by_columns
                 else "needs its columns of X,\nmakes a part of a sum: all-reduce")
    else:
        text += "\n"
    return {"slice": drawn, "title": titles, "words": [{"text": text}],
            "sign": [{"x": 30, "y": 50, "text": "×"}, {"x": 82, "y": 50, "text": "="}]}


def holding(matrix, t, rank):
    def span(first, end):
        return f" {first:,}" if end - first == 1 else f"s {first:,} to {end - 1:,}"

    mine = [(first, end, ranks) for first, end, ranks in owners(matrix, t) if rank in ranks]
    if matrix != "QKV":
        return ("column" if matrix in ("gate", "up") else "row") + span(*mine[0][:2])
    (first, end, _), (key, last, ranks), _ = mine
    text = f"query head{span(first // 128, end // 128)}, KV head{span((key - 4096) // 128, (last - 4096) // 128)}"
    return text + (f" (on {len(ranks)} ranks)" if len(ranks) > 1 else "")


@oracle("messages")
def messages(measure, model, t, b, M):
    shape = published.model({"GPT-3 175B": "GPT-3-175B", "MT-NLG 530B": "MT-NLG-530B"}[model])
    ring = Fraction(2 * b * shape.context * shape.d_model * (t - 1), t)  # bytes of one all-gather
    times = shape.layers * M if "step" in measure else 1
    bars, sums = [], []
    for recomputation in ("none", "selective", "full"):
        forwards = 2 if recomputation == "full" else 1
        for parallel in (False, True):
            calls = {"forward": 2, "backward": 2, "recomputation": 2 * (forwards - 1)}
            rings = {part: 2 * count for part, count in calls.items()}  # an all-reduce is two halves
            if parallel:
                calls = rings | {"inputs gathered again": 2}
                rings = dict(calls)
            values = {part: times * (count if "collectives" in measure else ring * rings[part])
                      for part, count in calls.items()}
            way, end = recomputation + (", SP" if parallel else ""), 0
            for part, value in values.items():
                if value:
                    bars.append({"x": end, "x2": end + value, "y": way, "color": part})
                    end += value
            sums.append({"x": end, "y": way, "text": f"{end:,}" if "collectives" in measure else decimal(end)})
    return {"part": bars, "sum": sums, "words": [{"text": f"{measure}, sent by one rank"}]}

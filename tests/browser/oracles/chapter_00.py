"""Oracles of the explorers of the page on collectives."""

import math

from scalebook import published
from tests.browser.oracles import duration, oracle, significant

STEP = {"NVLink": 3.4e-6, "network": 14e-6}  # seconds, NCCL's Simple protocol


@oracle("times")
def times(size, ranks, link):
    alpha, speed = cost_of(link)
    inside = link.startswith("NVLink")

    def broadcast(array):
        best = max(1, math.sqrt((ranks - 2) * array / (alpha * speed)))
        return (ranks - 2 + best) * (alpha + array / best / speed)

    def points(array):
        half = (ranks - 1) * (alpha + array / ranks / speed)
        values = {"all-reduce": 2 * half, "all-gather, reduce-scatter, all-to-all": half,
                  "broadcast": broadcast(array), "point to point": alpha + array / speed}
        return [{"x": array, "y": value, "color": name} for name, value in values.items()]

    now, balance = points(size)[0]["y"], ranks * alpha * speed
    text = (f"all-reduce of {binary(size)} on {ranks} ranks: {duration(now)}\n"
            f"algbw {significant(size / now / 1e9, 3)}, busbw "
            f"{significant(2 * (ranks - 1) / ranks * size / now / 1e9, 3)} of {significant(speed / 1e9, 3)} GB/s\n"
            f"latency is half of it at {binary(balance)}\n")
    if inside and ranks > 8:
        text += "but this link joins only 8"
    return {"curve": [row for power in range(10, 31) for row in points(2**power)], "chosen": points(size),
            "balanced": [{"x": balance}], "words": [{"text": text}]}


@oracle("ring")
def ring(ranks, step):
    """The ring played here with sets: each rank's parts, and what it passes on."""
    holds = [[[rank] for _ in range(ranks)] for rank in range(ranks)]
    taken = min(step, 2 * ranks - 2)
    arrived = []
    for turn in range(1, taken + 1):
        sent = [(rank, (rank - turn) % ranks, holds[rank][(rank - turn) % ranks]) for rank in range(ranks)]
        for rank, part, numbers in sent:
            right = (rank + 1) % ranks
            holds[right][part] = [*numbers, right] if turn < ranks else numbers
        arrived = [{"x": part + 0.5, "y": (rank + 1) % ranks} for rank, part, _ in sent]
    frames, sums, texts = [], [], []
    for rank, parts in enumerate(holds):
        for part, numbers in enumerate(parts):
            whole = len(numbers) == ranks
            state = "whole sum" if whole else "partial sum" if len(numbers) > 1 else "own numbers"
            box = {"x": part + 0.06, "x2": part + 0.94, "y2": rank + 0.94, "color": state}
            frames.append(box | {"y": rank + 0.06})
            sums.append(box | {"y": rank + 0.94 - 0.88 * len(numbers) / ranks})
            text = "".join(map(str, range(ranks) if whole else numbers))
            texts.append({"x": part + 0.5, "y": rank + 0.5, "text": text})
    doing = ("the start" if not taken else "reduce-scatter, what arrives is added" if taken < ranks
             else "all-gather, what arrives is kept")
    text = (f"step {taken} of {2 * ranks - 2}: {doing}\n"
            f"each rank has sent {significant(taken / ranks, 3)} of {significant(2 * (ranks - 1) / ranks, 3)} times "
            "the array\na row is a rank, from 0; a column is a part")
    return {"frame": frames, "sum": sums, "held": texts, "arrival": arrived, "words": [{"text": text}]}


@oracle("chunks")
def chunks(size, ranks, link):
    alpha, speed = cost_of(link)
    best = max(1, math.sqrt((ranks - 2) * size / (alpha * speed)))

    def time(number):
        return (ranks - 2 + number) * (alpha + size / number / speed)

    drawn = sorted({round(2 ** (i / 2)) for i in range(25)})
    text = (f"{binary(size)} along a chain of {ranks} ranks: {duration(time(1))} in one chunk,\n"
            f"{duration(time(best))} in {significant(best, 3)} (the best number, before rounding),\n"
            f"{duration(time(4096))} in 4,096; its bytes alone take {duration(size / speed)}")
    return {"curve": [{"x": number, "y": time(number)} for number in drawn],
            "best": [{"x": best, "y": time(best)}], "words": [{"text": text}]}


def cost_of(link):
    """The latency of a step in seconds and the bytes a second of a rank, one way."""
    kind, place = link.split(", DGX ")
    machine = published.machine({"A100": "A100-80GB"}.get(place, place))
    return STEP[kind], machine.nvlink_one_way if kind == "NVLink" else machine.internode_node / 8


def binary(number):
    unit = next(power for power in (1, 2, 3) if power == 3 or number < 1024**(power + 1))
    return f"{significant(number / 1024**unit, 3)} {('KiB', 'MiB', 'GiB')[unit - 1]}"

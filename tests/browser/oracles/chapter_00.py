"""Oracle of the explorer of the page on collectives."""

import math

from scalebook import published
from tests.browser.oracles import duration, oracle, significant

STEP = {"NVLink": 3.4e-6, "network": 14e-6}  # seconds, NCCL's Simple protocol


@oracle("times")
def times(size, ranks, link):
    kind, place = link.split(", DGX ")
    machine = published.machine({"A100": "A100-80GB"}.get(place, place))
    inside = kind == "NVLink"
    speed = machine.nvlink_one_way if inside else machine.internode_node / 8
    alpha = STEP[kind]

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


def binary(number):
    unit = next(power for power in (1, 2, 3) if power == 3 or number < 1024**(power + 1))
    return f"{significant(number / 1024**unit, 3)} {('KiB', 'MiB', 'GiB')[unit - 1]}"

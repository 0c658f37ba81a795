"""Oracles of the explorers of chapter 1."""

import math
from decimal import ROUND_HALF_UP, Decimal

import torch

from scalebook import moe, published
from scalebook.charts.moe import balance_records
from scalebook.data import load
from scalebook.formulas import moe as formulas
from tests.browser.oracles import oracle, percent, significant

MIXTRAL = {"V": 32000, "D": 4096, "L": 32, "H": 32, "G": 8, "d_h": 128}
SHORT = {"Mixtral-8x7B": "Mixtral 8x7B", "Mixtral-8x22B": "Mixtral 8x22B", "DBRX": "DBRX",
         "DeepSeek-V2": "DeepSeek-V2", "DeepSeek-V3": "DeepSeek-V3"}


@oracle("budget")
def budget(experts, K, F):
    def points(number):
        shape = MIXTRAL | {"E": number, "F": F}
        multiplying = formulas.multiplying_parameters(**shape, K=K)
        values = {"parameters, all": formulas.total_parameters(**shape),
                  "parameters, active": formulas.active_parameters(**shape, K=K),
                  "FLOPs of one token, forward": formulas.flops_forward(N=multiplying)}
        return [{"x": number, "y": value / 1e9, "color": name} for name, value in values.items()]

    curve = [row for number in (*range(1, 17), *range(20, 129, 4)) if number >= K for row in points(number)]
    if experts < K:
        one = "expert" if experts == 1 else "experts"
        text = f"There is no such model: a token\ncannot go to {K} of {experts} {one}"
        return {"curve": curve, "chosen": [], "words": [{"text": text}]}
    total, active, flops = (row["y"] for row in points(experts))
    text = (f"{significant(total)}B parameters, {significant(2 * total)} GB in bf16\n"
            f"{significant(active)}B active, {significant(flops)} GFLOP a token")
    return {"curve": curve, "chosen": points(experts), "words": [{"text": text}]}


@oracle("token")
def token(token, K, gate, push):
    # The weights of the lesson fix the gap between the two highest logits; the others are lower.
    first, second, gap, others = {
        "quantum": (2, 5, math.log(0.68 / 0.32), {1: 0.1, 3: -0.4, 4: 0.5, 6: -1.1, 7: 0.3, 8: -0.2}),
        "court": (1, 7, math.log(0.55 / 0.45), {2: 0.2, 3: -0.6, 4: 0.9, 5: -0.3, 6: 0.4, 8: -1.0})}[token]
    highest = {"quantum": 2.0, "court": 1.5}[token]
    logits = others | {first: highest, second: round(highest - gap, 3) + push}
    logits_E = torch.tensor([logits[expert] for expert in range(1, 9)], dtype=torch.float64)
    scores = torch.sigmoid(logits_E) if gate == "sigmoid" else torch.exp(logits_E)
    softmax = (torch.exp(logits_E) / torch.exp(logits_E).sum()).tolist()
    ranked = sorted(range(8), key=lambda expert: -float(logits_E[expert]))[:K]
    whole = float(scores.sum() if gate == "all" else scores[ranked].sum())
    weights = [float(scores[expert]) / whole if expert in ranked else 0 for expert in range(8)]
    bars = {"softmax over all experts": softmax, "weight of the gate": weights}
    shown = {name: [round(value, 4) for value in values] for name, values in bars.items()}
    rows = [{"x": expert + 1, "y": 0, "y2": value, "color": name} for name, values in shown.items()
            for expert, value in enumerate(values) if value]
    labels = [{"x": expert + 1, "y": value, "text": f"{value:.2f}"}
              for expert, value in enumerate(shown["weight of the gate"]) if value]
    one = K == 1
    text = (f"goes to {'expert' if one else 'experts'} {', '.join(str(expert + 1) for expert in ranked)}\n"
            f"{'with weight' if one else 'with weights that sum to'} {sum(shown['weight of the gate']):.3f}")
    return {"bar": rows, "label": labels, "words": [{"text": text}]}


@oracle("presets")
def presets(measure):
    bars, labels = [], []
    for name, short in SHORT.items():
        shape = published.model(name)
        count = moe.count_parameters(shape)
        flops = moe.flops_per_token(shape, 1).by_part
        tables = {"embedding and head": 2 * shape.vocabulary * shape.d_model,
                  "experts that a token uses": count.by_part["routed experts"].active,
                  "experts at rest": count.total - count.active}
        always = sum(count.by_part[part].total for part in ("shared experts", "dense feed-forward"))
        sizes = {"embedding and head": tables["embedding and head"],
                 "attention, router, norms": count.total - always - sum(tables.values()),
                 "shared and dense feed-forward": always,
                 "experts that a token uses": tables["experts that a token uses"],
                 "experts at rest": tables["experts at rest"]}
        work = {"embedding and head": flops["head"], "attention, router, norms": flops["attention"] + flops["router"],
                "shared and dense feed-forward": flops["shared experts"] + flops["dense feed-forward"],
                "experts that a token uses": flops["routed experts"]}
        used, whole = count.active / 1e9, count.total / 1e9
        values, text = {
            "parameters, in billions": ({part: size / 1e9 for part, size in sizes.items()},
                                        f"{whole:.1f}B, a token uses {used:.1f}B"),
            "GFLOP of one token, forward": ({part: size / 1e9 for part, size in work.items()},
                                            f"{sum(work.values()) / 1e9:.1f} GFLOP"),
            "GB in memory at 16 bits": ({part: 2 * size / 1e9 for part, size in sizes.items()},
                                        f"{2 * whole:.1f} GB, a token uses {2 * used:.1f} GB"),
            "share of all parameters": ({part: size / count.total for part, size in sizes.items()},
                                        f"a token uses {percent(used / whole)}")}[measure]
        end = 0
        for part, value in values.items():
            if value:
                bars.append({"x": end, "x2": end + value, "y": short, "color": part})
                end += value
        labels.append({"y": short, "text": text})
    return {"part": bars, "label": labels, "words": [{"text": measure}]}


@oracle("distinct")
def distinct(model, tokens):
    shape = published.model(model)
    E, K = shape.experts, shape.top_k
    stored = 2 * moe.count_parameters(shape).by_part["routed experts"].total / 1e9

    def touched(batch):
        return formulas.distinct_experts(E=E, K=K, T=float(batch))

    batches = sorted({2**i + 2**i * quarter // 4 for i in range(9) for quarter in range(5)})
    curve = [{"x": batch, "y": value / E, "color": f"experts that {who} touches"} for batch in batches
             for who, value in (("the batch", touched(batch)), ("one token", K))]
    now = touched(tokens)
    text = (f"{tokens} {'token touches' if tokens == 1 else 'tokens touch'} {significant(now)} of {E} experts\n"
            f"reads {significant(now / E * stored)} of {significant(stored)} GB: {significant(now / K, 3)} "
            "times one token")
    chosen = {"x": tokens, "y": now / E, "color": "experts that the batch touches"}
    return {"curve": curve, "chosen": [chosen], "words": [{"text": text}]}


def choices(skew, K):
    """Each token's K experts: the K highest of -skew log(i) plus Gumbel noise, from the same seeded numbers."""
    uniform = torch.rand(4096, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    keys = [[-math.log(-math.log(u)) - skew * math.log(i) for i, u in enumerate(row, 1)] for row in uniform.tolist()]
    return [sorted(range(8), key=lambda e, row=row: -row[e])[:K] for row in keys]


@oracle("capacity")
def capacity(K, skew, factor):
    room = moe.capacity(4096, 8, k=K, factor=factor)
    chosen = choices(skew, K)
    taken, wanted, kept = [0] * 8, [0] * 8, [0] * 4096
    for rank in range(K):  # all first choices in the order of the tokens, then all second choices
        for number, experts in enumerate(chosen):
            wanted[experts[rank]] += 1
            if taken[experts[rank]] < room:
                taken[experts[rank]] += 1
                kept[number] += 1
    bars = []
    for expert in range(8):
        ends = {"kept": (0, taken[expert]), "dropped": (taken[expert], wanted[expert]),
                "empty slots": (taken[expert], max(taken[expert], room))}
        bars += [{"x": expert + 1, "y": low, "y2": high, "color": fate, "opacity": 0.5 if fate == "empty slots" else 1}
                 for fate, (low, high) in ends.items() if high > low]
    lost, vacant, bare = 1 - sum(kept) / (4096 * K), 1 - sum(taken) / (8 * room), kept.count(0) / 4096
    text = (f"an expert has room for {room} tokens\n"
            f"{percent(lost)} of choices dropped,  {percent(vacant)} of slots empty\n"
            f"{percent(bare)} of tokens lose every choice")
    return {"bar": bars, "capacity": [{"y": room}], "words": [{"text": text}]}


RECORDS = balance_records(load("collapse")["grid"])


def fixed(value, digits):
    """A number that travelled with four decimals, written as Vega's format writes it: a tie is rounded up."""
    return f"{Decimal(float(value)).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP)}"


@oracle("balance")
def balance(coefficient, layer, step):
    (record,) = [one for one in RECORDS
                 if (one["coefficient"], one["layer"], one["step"]) == (coefficient, layer, step)]
    loads = torch.tensor(record["loads"], dtype=torch.float64)
    shares = [round(share, 4) for share in (loads / loads.sum()).tolist()]
    entropy = torch.distributions.Categorical(probs=loads).entropy() / math.log(8)
    variation = loads.std(correction=0) / loads.mean()
    loss = 10 * round(record["loss"] / 10, 4)
    bars = [{"x": expert, "y": 0, "y2": share} for expert, share in enumerate(shares, 1) if share]
    text = (f"largest share {percent(max(shares))},  relative entropy {fixed(round(float(entropy), 4), 3)}\n"
            f"coefficient of variation {fixed(round(float(variation), 4), 2)},  task loss {fixed(loss, 2)}")
    return {"bar": bars, "even": [{"y": 1 / 8}], "words": [{"text": text}]}

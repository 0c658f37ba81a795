"""Oracles of the explorers of chapter 6."""

import itertools
from functools import cache

from scalebook import published
from scalebook.charts.planner.expressions import positions_of, shape_of
from scalebook.mesh import RankGrid
from scalebook.planner import Cluster, Plan, estimate, search
from scalebook.planner.costs import memory_of_stage
from scalebook.planner.sizes import sizes_of
from tests.browser.oracles import oracle, percent, significant

LABELS = {"tp": "tensor parallel", "dp": "data parallel", "pp": "pipeline"}


def on_page(tp, dp, pp):
    """Where a place of the grid comes to lie."""
    return {"x": 6 + 0.92 * tp - 0.75 * dp, "y": 7 + 1.27 * pp - 0.37 * tp - 0.55 * dp}


@oracle("rank-cube")
def rank_cube(tp, dp, pp, order, rank):
    degrees = {"tp": tp, "dp": dp, "pp": pp}
    grid = RankGrid(**degrees, order=order)
    places = [{axis: grid.coordinates(one)[axis] for axis in degrees} for one in range(grid.world_size)]
    rank %= grid.world_size
    groups = {axis: grid.group_of(rank, axis) for axis in degrees}
    lines, edges, words = [], [], [f"rank {rank} of {grid.world_size}: TP {places[rank]['tp']}, "
                                   f"DP {places[rank]['dp']}, PP {places[rank]['pp']}"]
    for axis, group in groups.items():
        nodes = len({one // 8 for one in group})
        apart = group[1] - group[0] if len(group) > 1 else 0
        assert all(two - one == apart for one, two in itertools.pairwise(group))
        words.append(f"{axis.upper()}: alone" if len(group) == 1 else
                     f"{axis.upper()}: ranks {group[0]} to {group[-1]}" + (f" in steps of {apart}" if apart > 1 else "")
                     + (", in one node" if nodes == 1 else f", over {nodes} nodes"))
        if len(group) > 1:
            lines.append(segment(places[group[0]], places[group[-1]]) | {"color": LABELS[axis]})
            one, two = (other for other in degrees if other != axis)
            edges += [segment({axis: 0, one: i * (degrees[one] - 1), two: j * (degrees[two] - 1)},
                              {axis: degrees[axis] - 1, one: i * (degrees[one] - 1), two: j * (degrees[two] - 1)})
                      for i in (0, 1) for j in (0, 1)]
    members = [on_page(**places[one]) | {"color": LABELS[axis]} for axis, group in groups.items()
               for one in group if one != rank]
    return {"rank": [on_page(**place) for one, place in enumerate(places) if one != rank], "group": members,
            "line": lines, "edge": edges, "picked": [on_page(**places[rank])], "words": [{"text": "\n".join(words)}]}


def segment(first, last):
    """A line between two places. One straight up has no x2."""
    start, end = on_page(**first), on_page(**last)
    return start | {"x2": None if start["x"] == end["x"] else end["x"], "y2": end["y"]}


@cache
def planned(model, machine, gpus, batch, **fields):
    """The planner's own estimate of a plan."""
    cluster = Cluster(published.machine(machine), gpus)
    return estimate(shape_of(model), cluster, Plan(batch=batch, **fields))


PARTS = ("weights", "gradients", "optimizer", "gathered weights", "activations", "recomputed and head")


@oracle("plan-memory")
def plan_memory(model, tp, pp, dp, zero, micro_batch, sequence, recompute):
    stages = stage_memories(model, tp, pp, dp, zero, micro_batch, sequence, recompute)
    bars, labels, totals = [], [], []
    for name, memory in stages.items():
        memory["recomputed and head"] = memory["recomputed activations"] + memory["head activations"]
        end = 0
        for part in PARTS:
            size = memory[part] / 1e9
            if size and end < 240:
                bars.append({"x": end, "x2": min(240, end + size), "y": name, "color": part})
            end += size
        totals.append(end)
        labels.append({"y": name, "text": f"{significant(end)} GB{', cut off' if end > 240 else ''}"})
    gpus, layers, most = tp * pp * dp, shape_of(model).layers, max(totals)
    fits = "fits 80 GB" if most <= 80 else "fits 180 GB, not 80" if most <= 180 else "fits no card here"
    last = (f"ZeRO-{zero} is not used with a pipeline" if zero >= 2 and pp > 1
            else f"{layers} layers, " + (f"{layers // pp} on each stage" if layers % pp == 0 else
                                         f"{(layers + 2) // pp - 1} on the first and on the last stage"))
    words = [f"{gpus} GPU{'s' if gpus > 1 else ''}, {pp} micro-batch{'es' if pp > 1 else ''} in flight",
             f"the fullest GPU needs {significant(most)} GB: {fits}", last]
    return {"part": bars, "label": labels, "card": [{"x": 80}, {"x": 180}],
            "cardname": [{"x": 80, "text": "A100 and H100"}, {"x": 180, "text": "B200"}],
            "words": [{"text": "\n".join(words)}]}


def stage_memories(model, tp, pp, dp, zero, micro_batch, sequence, recompute):
    """Bytes by part on the first, the second and the last stage, by the planner; its estimate is the largest."""
    from scalebook.planner import costs
    from scalebook.planner.estimating import columns_of
    from scalebook.planner.plans import all_recipes

    plan = Plan(tp=tp, pp=pp, dp=dp, batch=dp * micro_batch * pp, sequence=sequence, micro_batch=micro_batch, zero=zero,
                recompute="full" if recompute else "none")
    sizes, columns = sizes_of(shape_of(model)), columns_of(plan)
    values = {**sizes.layer, **columns, **all_recipes()[plan.recipe].sizes, "s": sequence, "epsilon": 2, "M": pp,
              "A_o": sizes.A_o["fused"], "A_s": sizes.A_s["fused"], "n_s": tp}
    layers = costs.split_layers(sizes.L, columns["P"], columns["v"])[:3]
    stages = costs.stages_of(sizes, columns["P"], *layers)
    found = {f"{name} stage": {part: float(value[0]) for part, value in memory_of_stage({**values, **stage}).items()}
             for name, stage in stages.items()}
    if pp <= 2:
        del found["second stage"]  # there is none between the first and the last
    whole = planned(model, "H100", max(8, tp * pp * dp), plan.batch, tp=tp, pp=pp, dp=dp, sequence=sequence,
                    micro_batch=micro_batch, zero=zero, recompute=plan.recompute)
    largest = max(sum(memory.values()) for memory in found.values())
    assert abs(whole.memory_bytes / largest - 1) < 1e-12
    return found


TIMES = {"compute": "work", "recomputation": "more work", "elementwise": "work", "tensor parallel": "messages",
         "head": "waiting", "bubble": "waiting", "pipeline parallel": "messages", "data parallel": "messages",
         "optimizer": "work"}


@oracle("plan-time")
def plan_time(model, machine, tp, pp, dp, chunks, micro_batch, batch, recompute):
    gpus, layers = tp * pp * dp, shape_of(model).layers
    found = step_of(model, machine, gpus, batch, tp, pp, dp, chunks, micro_batch, recompute)
    time, step = found["time"], sum(found["time"].values())
    micro_batches = -(-batch // (dp * micro_batch))
    divided = any(rest % (pp * chunks) == 0 for rest in ((layers, layers + 2) if pp > 1 else (layers,)))
    last = ("the last micro-batch is not full" if batch % (dp * micro_batch) else
            "some stages have fewer layers" if not divided else
            "one stage has nothing to interleave" if chunks > 1 and pp == 1 else
            "TP crosses the node" if tp > 1 and 8 % tp else "TP runs inside nodes")
    tokens = batch * positions_of(model)
    words = [f"{gpus} GPU{'s' if gpus > 1 else ''}, a step of {in_seconds(step)}, "
             f"{float(significant(tokens / step, 3)):,.10g} tokens/s",
             f"MFU {percent(found['mfu'])}, {micro_batches} micro-batches a rank", last]
    return {"part": [{"x": 0, "x2": time[part] / step, "y": part, "color": kind} for part, kind in TIMES.items()
                     if time[part] > 0],
            "label": [{"x": time[part] / step, "y": part, "text": in_seconds(time[part]) if time[part] > 0 else "none"}
                      for part in TIMES],
            "words": [{"text": "\n".join(words)}]}


def step_of(model, machine, gpus, batch, tp, pp, dp, chunks, micro_batch, recompute):
    """Seconds by part and MFU, by the planner; also of what no `Plan` may be: one stage with chunks, odd GPUs."""
    from scalebook.formulas import planner as formulas
    from scalebook.planner import costs
    from scalebook.planner.estimating import columns_of

    plan = Plan(tp=tp, pp=pp, dp=dp, batch=batch, sequence=positions_of(model), micro_batch=micro_batch,
                recompute="full" if recompute else "none")
    sizes, columns = sizes_of(shape_of(model)), columns_of(plan)
    columns["v"] = columns["v"] * chunks
    kind = published.machine(machine)
    whole_nodes = gpus if gpus <= kind.gpus_per_node or gpus % kind.gpus_per_node == 0 else gpus * kind.gpus_per_node
    cluster = Cluster(kind, whole_nodes)
    _, time = costs.costs(sizes, cluster, columns, plan.sequence)
    time = {part: float(value[0]) for part, value in time.items()}
    assert time.pop("context parallel") == time.pop("expert parallel") == 0
    values = {**sizes.layer, "s": plan.sequence, "B_s": batch, "kappa": plan.sequence}
    flops = costs.ask(formulas.model_flops, values)
    return {"time": time, "mfu": float(flops) / (sum(time.values()) * gpus * kind.peak_flops)}


def in_seconds(value):
    """Seconds as a chart writes them: three digits, in µs, ms or s."""
    size, unit = (1e-6, "µs") if value < 1e-3 else (1e-3, "ms") if value < 1 else (1, "s")
    return f"{significant(value / size, 3)} {unit}"


@oracle("plan-table")
def plan_table(model, machine, gpus, sequence, tokens):
    batch = tokens * 2**20 // sequence
    answer = search(published.model(model), Cluster(published.machine(machine), gpus), batch=batch, sequence=sequence,
                    micro_batches=(1, 2), zero=(1, 3), sequence_parallel=(True,))
    places = (3, 10, 17, 24, 32, 41, 48, 54, 63, 75, 87, 97)
    names = ("TP", "CP", "PP", "DP", "ZeRO", "b", "v", "again", "step, s", "MFU", "GB")
    cells, bars, fastest = [], [], None
    for place, best in enumerate(answer.best_layouts(8), 1):
        plan, step = best.plan, round(best.step_seconds * 1000)
        fastest = fastest or step
        seconds = float(significant(step / 1000, 3))
        digits = f"{seconds:.{0 if seconds >= 100 else 1 if seconds >= 10 else 2 if seconds >= 1 else 3}f}"
        texts = (place, plan.tp, plan.cp, plan.pp, plan.dp, plan.zero, plan.micro_batch, plan.chunks,
                 "all" if plan.recompute == "full" else "none", digits, percent(round(best.mfu * 1e3) / 1e3),
                 f"{round(best.memory_bytes / 1e8) / 10:.1f}")
        cells += [{"x": x, "y": place, "text": str(text)} for x, text in zip(places, texts, strict=True)]
        bars.append({"x": 0, "x2": 100 * fastest / step, "y": place - 0.4, "y2": place + 0.4})
    words = [f"{gpus:,} GPUs, steps of {batch} samples of {sequence:,} positions",
             f"{len(answer.plans):,} plans can be run; {answer.counts.get('memory', 0):,} more would need more memory"]
    return {"cell": cells, "speed": bars, "words": [{"text": "\n".join(words)}],
            "heading": [{"x": x, "y": 0, "text": name} for x, name in zip(places[1:], names, strict=True)]}


@oracle("weak-scaling")
def weak_scaling(model, machine, tp, pp, chunks, batch, each):
    points, ends = [], None
    for g in (2**power for power in range(3, 15)):
        if g < tp * pp:
            continue
        dp = g // (tp * pp)
        for growth, samples in (("the batch grows with the GPUs", each * dp), ("the batch stays", batch)):
            if samples < dp or (chunks > 1 and (pp == 1 or samples // dp % pp)):
                continue
            one = planned(model, machine, g, samples, tp=tp, pp=pp, dp=dp, chunks=chunks,
                          sequence=positions_of(model))
            points.append({"x": g, "y": one.mfu_causal, "color": growth})
            if growth == "the batch stays":
                ends = g, dp, samples // dp, one
    words = []
    if ends:
        g, dp, many, one = ends
        step = one.step_seconds
        words = [{"text": f"the same batch on {g:,} GPUs: DP {dp}, {many} "
                          f"micro-batch{'es' if many > 1 else ''}\n"
                          f"a step of {significant(step, 3)} s, MFU {percent(one.mfu_causal)}\n"
                          f"the bubble takes {percent(one.time['bubble'] / step)}, DP messages "
                          f"{percent(one.time['data parallel'] / step)}"}]
    known = [{"x": 8192, "y": 0.43}, {"x": 16384, "y": 0.41}] if (model, machine) == ("Llama-3-405B", "H100") else []
    return {"curve": points, "dot": points, "words": words,
            "published": [row | {"color": "published: Llama 3 405B, 8K"} for row in known]}

"""How fast the library's searches and simulations are, beside their oracles, and how they grow.

- `simulate`, to the makespan, beside the longest path that networkx finds in the same graph of operations.
- `planner.search`, which evaluates compiled formulas over arrays, beside one `estimate` a plan that keeps the rules
  (timed on a sample of them).
- The import of what needs no PyTorch, beside the import of PyTorch.
- Growth: the same with the work doubled, beside the single.

Times are the processor's, so that another program on the machine does not lengthen them much.
"""

import itertools
import statistics
import subprocess
import sys
import time

import networkx

from scalebook import published
from scalebook.pipeline import simulate
from scalebook.planner import Cluster, estimate, reasons, search
from tests.bench.rows import Row

STAGES, MICROBATCHES = 8, 128
SAMPLE = 100
LIGHT = "import scalebook.formulas.planner, scalebook.explorer, scalebook.pipeline, scalebook.published"


def longest_path(stages, microbatches, timeline):
    """The makespan as networkx finds it, from the orders of a timeline and the dependencies of a pipeline."""
    graph = networkx.DiGraph()
    seconds = {"F": 1, "B": 2}
    for stage in range(stages):
        graph.add_edge("start", ("F", stage, 0), weight=0)
        own = [(op.kind, stage, op.microbatch) for op in timeline.operations if op.stage == stage]
        for before, after in itertools.pairwise(own):
            graph.add_edge(before, after, weight=seconds[before[0]])
        for m in range(microbatches):
            if stage:
                graph.add_edge(("F", stage - 1, m), ("F", stage, m), weight=1)
                graph.add_edge(("B", stage, m), ("B", stage - 1, m), weight=2)
            graph.add_edge(("F", stage, m), ("B", stage, m), weight=1)
            graph.add_edge(("B", stage, m), "end", weight=2)
    return networkx.dag_longest_path_length(graph)


def processor(function, rounds):
    """The median of the processor's seconds of a call, after one that warms up."""
    function()
    found = []
    for _ in range(rounds):
        start = time.process_time()
        function()
        found.append(time.process_time() - start)
    return statistics.median(found)


def simulation_rows(rounds):
    """`simulate` beside networkx, and how it grows."""
    timeline = simulate("1f1b", STAGES, MICROBATCHES)
    assert timeline.makespan == longest_path(STAGES, MICROBATCHES, timeline), "they must find the same"
    ours = processor(lambda: simulate("1f1b", STAGES, MICROBATCHES).makespan, rounds)
    other = processor(lambda: longest_path(STAGES, MICROBATCHES, timeline), rounds)
    double = processor(lambda: simulate("1f1b", STAGES, 2 * MICROBATCHES).makespan, rounds)
    what = f"simulate 1F1B, {STAGES} stages, {MICROBATCHES} micro-batches"
    yield Row("simulate", what, ours, "networkx's longest path", other, "s", 1)
    yield Row("simulate", "the same with twice the micro-batches", double, "once", ours, "s", 2.5)


def search_rows(rounds):
    """`planner.search` beside an estimate for each plan, and how it grows with the plans."""
    model, machine = published.model("Llama-3-405B"), published.machine("H100")

    def whole(gpus):
        return search(model, Cluster(machine, gpus), batch=2048, sequence=8192)

    answer = whole(16384)
    plans = answer.plans[::max(1, len(answer.plans) // SAMPLE)]  # from the fastest to the slowest
    one_by_one = processor(lambda: [estimate(model, answer.cluster, one.plan) for one in plans], rounds) / len(plans)
    ours = processor(lambda: whole(16384), rounds)
    half, few = whole(4096), processor(lambda: whole(4096), rounds)
    tried, fewer = (len(one.plans) + len(one.rejected) for one in (answer, half))
    estimated = len(answer.plans) + answer.counts[reasons.MEMORY]  # the rest break a rule and are not estimated
    yield Row("planner", f"search, 16,384 GPUs, {tried:,} plans", ours, f"an estimate for each of {estimated:,}",
              one_by_one * estimated, "s", 0.05)
    yield Row("planner", "the same, a plan", 1e6 * ours / tried, f"a plan of 4,096 GPUs ({fewer:,} plans)",
              1e6 * few / fewer, "us", 1.5)
    yield Row("planner", "search, 16,384 GPUs and every setting", ours, "what is promised", 2, "s", 1)


def import_rows(rounds):
    """The import without PyTorch, beside PyTorch's."""
    def seconds(code):
        timed = f"import time; start = time.process_time(); {code}; print(time.process_time() - start)"
        run = [float(subprocess.run([sys.executable, "-c", timed], capture_output=True, text=True, check=True).stdout)
               for _ in range(rounds)]
        return min(run)

    yield Row("import", "formulas, explorers, pipeline, published", seconds(LIGHT), "import torch",
              seconds("import torch"), "s", 1)


def run(options):
    """The rows."""
    rounds = options.rounds or 5
    return [*simulation_rows(rounds), *search_rows(rounds), *import_rows(min(rounds, 3))]

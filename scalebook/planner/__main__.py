"""Plan a training run: the best ways to lay a model over a cluster, and why the others lose.

`python -m scalebook.planner --model llama-3-70b --gpus 512 --gpu h100`. A model or a cluster may also be the path of a
TOML file (`scalebook.planner.files` says what stands in it).
"""

import argparse
import sys

from scalebook import published
from scalebook.planner import files
from scalebook.planner.clusters import Cluster, named
from scalebook.planner.searching import search

TOKENS = 4 * 2**20  # of a step, unless told otherwise
DEGREES = {
    "tp": "ranks that share each matrix product", "cp": "ranks that share a sample's positions",
    "ep": "ranks that share the experts", "dp": "replicas, each with its own samples",
    "pp": "stages of the pipeline", "chunks": "pieces of the model that a stage holds, interleaved",
}


def main(arguments=None):
    """Print the answer; exit with status 2 and one line on what is wrong for input that is not allowed."""
    parser = parser_of_the_command()
    given = parser.parse_args(arguments)
    try:
        print("\n".join(lines(given)))
    except ValueError as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    except BrokenPipeError:
        sys.stderr.close()  # whoever reads has read enough


def parser_of_the_command():
    """The command's arguments."""
    parser = argparse.ArgumentParser(prog="python -m scalebook.planner", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a published model's name, or a TOML file")
    parser.add_argument("--cluster", help="a TOML file, in place of --gpus and --gpu")
    parser.add_argument("--gpus", type=int, help="how many GPUs")
    parser.add_argument("--gpu", help="a published machine's name, such as h100")
    parser.add_argument("--batch", type=int, help=f"samples in a step (default: those of {TOKENS} tokens)")
    parser.add_argument("--sequence", type=int, help="positions in a sample (default: the model's, at most 8192)")
    parser.add_argument("--top", type=int, default=5, help="layouts to print (default: 5)")
    parser.add_argument("--attention", default="fused", help="fused (default) or unfused")
    parser.add_argument("--efficiency", type=float, help="the share of peak that is reached (default: as fitted)")
    for name, what in DEGREES.items():
        parser.add_argument(f"--{name}", type=int, help=f"{what}: only plans with this many (default: any)")
    return parser


def lines(given):
    """The answer, line by line."""
    model, cluster = model_of(given.model), cluster_of(given)
    sequence = min(model.context or 2048, 8192) if given.sequence is None else given.sequence
    batch = max(1, TOKENS // max(1, sequence)) if given.batch is None else given.batch
    if given.top < 1:
        raise ValueError(f"top = {given.top} is not allowed; it must be a whole number, at least 1")
    fixed = {name: getattr(given, name) for name in DEGREES if getattr(given, name) is not None}
    answer = search(model, cluster, batch=batch, sequence=sequence, attention=given.attention, **fixed)
    yield (f"{model.name} on {cluster.gpus} x {cluster.machine.gpu}, {batch} samples of {sequence} positions a step, "
           f"at {100 * cluster.efficiency:.1f}% of what the GPU is sold for")
    yield f"{len(answer.plans)} plans can be run, {len(answer.rejected)} cannot"
    if not answer.plans and not answer.rejected:
        asked = ", ".join(f"{name} = {value}" for name, value in fixed.items())
        yield f"No way to lay a model of {model.layers} layers over {cluster.gpus} GPUs has {asked}"
    best = answer.best_layouts(given.top)
    if best:
        yield from of_the_best(best[0])
        yield from of_the_others(best)
    yield from of_the_rejected(answer, best[0].step_seconds if best else float("inf"))


def of_the_best(best):
    """The best plan, its time and its memory by part."""
    yield f"\nBest: {best}"
    for what, parts, unit, scale in (("step", best.time, "s", 1), ("GPU", best.memory, "GB", 1e9)):
        shown = sorted(((size, part) for part, size in parts.items() if size >= 0.0005 * scale), reverse=True)
        yield f"  of the {what}: " + ", ".join(f"{part} {size / scale:.3g} {unit}" for size, part in shown)
    yield (f"  {best.tokens_per_second:,.0f} tokens/s; MFU {100 * best.mfu:.1f}% ({100 * best.mfu_causal:.1f}% when "
           f"masked pairs do not count), HFU {100 * best.hfu:.1f}%")


def of_the_others(plans):
    """The best plans of the next layouts, and what each loses to the first, by part."""
    for place, other in enumerate(plans[1:], 2):
        gaps = {part: other.time[part] - plans[0].time[part] for part in other.time}
        lost = sorted(((gap, part) for part, gap in gaps.items() if gap > 0), reverse=True)[:2]
        won = sorted((gap, part) for part, gap in gaps.items() if gap < 0)[:1]
        words = [f"{part} {gap:+.2g} s" for gap, part in lost + won]
        yield f"{place}. {other}\n   loses {other.step_seconds - plans[0].step_seconds:.2g} s: {', '.join(words)}"


def of_the_rejected(answer, seconds):
    """What would be faster and does not fit; then how many plans each reason rules out."""
    for one in answer.rejected[:3]:
        if one.step_seconds < seconds:
            yield f"Faster, but out: {one.plan}: {one.step_seconds:.3g} s; {'; '.join(one.reasons)}"
    if answer.counts:
        yield "\nRuled out (a plan may break several rules):"
    for name, count, example in answer.examples():
        yield f"  {count:7} by {name}, such as {example.plan}: {'; '.join(example.reasons)}"


def model_of(name):
    """A published model, or the one in a TOML file."""
    if name.endswith(".toml"):
        return files.read_model(name)
    return published.model(named("model", name, published.models()))


def cluster_of(given):
    """The cluster that the arguments describe."""
    if given.cluster is not None:
        if given.gpus is not None or given.gpu is not None or given.efficiency is not None:
            raise ValueError("--cluster stands in place of --gpus, --gpu and --efficiency: give one or the others")
        return files.read_cluster(given.cluster)
    if given.gpus is None or given.gpu is None:
        raise ValueError("give --gpus and --gpu, or --cluster")
    return Cluster(published.machine(named("GPU", given.gpu, published.machines())), given.gpus, given.efficiency)


if __name__ == "__main__":
    main()

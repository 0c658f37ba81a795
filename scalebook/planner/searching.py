"""The search: every way to lay a model over the GPUs, what each costs, and why the others are out."""

import itertools
import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, partial

import numpy as np

from scalebook.checks import shown, whole
from scalebook.planner import costs, reasons
from scalebook.planner.clusters import Cluster
from scalebook.planner.estimating import SYMBOL_OF, Estimate, estimate
from scalebook.planner.plans import MOST, RECOMPUTE, ZERO_STAGES, Plan
from scalebook.planner.sizes import Sizes, sizes_of
from scalebook.published import ModelShape

MICRO_BATCHES = (1, 2, 4, 8)
MOST_LAYOUTS = 100_000  # each has up to 64 settings; 16,384 GPUs have some thousands


class _Listed(Sequence):
    """A sequence whose entries are made when they are asked for: a search has hundreds of thousands."""

    def __init__(self, places, make):
        self.places, self._make = places, make

    def __len__(self):
        return len(self.places)

    def __getitem__(self, place):
        if isinstance(place, slice):
            return [self._make(int(one)) for one in self.places[place]]
        return self._make(int(self.places[place]))


@dataclass(frozen=True)
class Rejected:
    """A plan that is out: the `plan`, the `reasons` in words, and the seconds of its step (inf: not estimated)."""

    plan: Plan
    reasons: tuple[str, ...]
    step_seconds: float


@dataclass(frozen=True)
class Answer:
    """What a search found. `plans` are `Estimate`s of those that can be run, fastest first; `rejected` all others.

    The entries are made when they are asked for; both sequences can be sliced. `rejected` begins with what only lacks
    memory, fastest first. `counts` says how many plans each reason rules out, alone or with others.
    """

    model: ModelShape
    cluster: Cluster
    plans: Sequence[Estimate]
    rejected: Sequence[Rejected]
    counts: dict[str, int]
    columns: dict = field(repr=False)
    step_seconds: np.ndarray = field(repr=False)
    memory_bytes: np.ndarray = field(repr=False)
    bits: np.ndarray = field(repr=False)

    @property
    def best(self) -> Estimate:
        """The fastest plan; ValueError when none can be run."""
        if not self.plans:
            raise ValueError(f"no plan can be run: {self.counts}")
        return self.plans[0]

    def best_layouts(self, number: int) -> list[Estimate]:
        """The fastest plan of each layout (tp, cp, ep, pp, dp): the first `number` of them, fastest first."""
        places = self.plans.places
        degrees = np.stack([self.columns[SYMBOL_OF[name]][places] for name in ("tp", "cp", "ep", "pp", "dp")])
        whole("number", number, 0)
        first = np.sort(np.unique(degrees, axis=1, return_index=True)[1])[:number]
        return [self.plans[int(place)] for place in first]

    def examples(self):
        """For each reason its name, how many plans it rules out, and one that breaks as few other rules as can be."""
        for name, count in self.counts.items():
            if name == reasons.MEMORY:
                yield name, count, self.rejected[0]
                continue
            broken = self.bits[self.rejected.places]
            place = [rule.name for rule in reasons.RULES].index(name)
            candidates = np.flatnonzero(broken >> place & 1)
            others = [int(bits).bit_count() for bits in broken[candidates]]
            yield name, count, self.rejected[int(candidates[np.argmin(others)])]


def search(
    model: ModelShape, cluster: Cluster, *, batch: int, sequence: int | None = None,
    micro_batches: int | Sequence[int] = MICRO_BATCHES, zero: int | Sequence[int] = ZERO_STAGES,
    recompute: str | Sequence[str] | None = None, sequence_parallel: bool | Sequence[bool] = (True, False),
    attention: str = "fused", overlap: bool = True, recipe: str = "mixed precision", **fixed: int | Sequence[int],
) -> Answer:
    """All plans for a model on a cluster, the fastest first: an `Answer`.

    Tries every product tp cp dp pp of the cluster's GPUs, every ep that divides both cp dp and the experts, every
    number of chunks that the layers allow, and all of the settings given. `batch` is in samples a step, `sequence` is
    in positions (None: the model's context, at most 8192). `fixed` holds degrees to some values: `tp=8`, `pp=(1, 2)`;
    `chunks=1`. `attention`, `overlap` and `recipe` are those of `Plan`. Ties go to the plan that needs less memory.

    Raises ValueError that names the argument, its value and what is allowed.

    >>> from scalebook import published
    >>> answer = search(published.model("Llama-3-8B"), Cluster(published.machine("H100"), 8), batch=64, sequence=4096)
    >>> answer.best.plan.gpus, len(answer.plans) > 100, "memory" in answer.counts
    (8, True, True)
    """
    common = {"attention": attention, "overlap": overlap, "recipe": recipe}
    if recompute is not None:
        recompute = _several("recompute", recompute)
    sizes, sequence = _check(model, cluster, batch, sequence, fixed, **common)
    again = recompute or (("none", "full") if attention == "fused" else RECOMPUTE)
    settings = {"b": _several("micro_batches", micro_batches), "Z": _several("zero", zero),
                "recompute": [_code(name) for name in _several("recompute", again)],
                "sp": _several("sequence_parallel", sequence_parallel)}
    columns = all_plans(layouts(sizes, cluster.gpus, fixed), settings, batch)
    bits = reasons.broken_rules(sizes, cluster, columns, sequence)
    seconds, most = np.full(len(bits), np.inf), np.full(len(bits), np.inf)
    usable = bits == 0
    if usable.any():
        kept = {name: column[usable] for name, column in columns.items()}
        memory, time = costs.costs(sizes, cluster, kept, sequence, attention, recipe, overlap)
        seconds[usable], most[usable] = sum(time.values()), sum(memory.values())
    return _answer(model, cluster, sizes, columns, bits, seconds, most, {"sequence": sequence, **common})


def layouts(sizes, gpus, fixed):
    """Every (tp, cp, dp, pp, ep, chunks) on the GPUs that the fixed degrees allow, as rows of an array."""
    rows, each = [], cache(partial(chunks_of, sizes.L))
    allowed = {name: _several(name, values) for name, values in fixed.items()}
    shared = allowed.get("ep", _divisors(sizes.experts or 1))
    for t, c, d, p in _products(gpus, allowed):
        chunks = [v for v in each(p) if v in allowed.get("chunks", (v,))]
        rows += [(t, c, d, p, e, v) for e in shared if (c * d) % e == 0 for v in chunks]
        if len(rows) > MOST_LAYOUTS:
            raise ValueError(f"gpus = {gpus} is not allowed; it must have at most {MOST_LAYOUTS} layouts: fix a degree "
                             "or the chunks, such as tp = 8")
    return np.array(rows, dtype=np.int64).reshape(-1, 6)


def _products(gpus, allowed):
    """Every tp, cp, dp and pp whose product is `gpus`, out of the values that are allowed for each."""
    divisors = _divisors(gpus)

    @cache
    def of(number):
        return [n for n in divisors if n <= number and number % n == 0]

    for t in of(gpus):
        for c in of(gpus // t) if t in allowed.get("tp", (t,)) else ():
            for d in of(gpus // (t * c)) if c in allowed.get("cp", (c,)) else ():
                p = gpus // (t * c * d)
                if d in allowed.get("dp", (d,)) and p in allowed.get("pp", (p,)):
                    yield t, c, d, p


def all_plans(rows, settings, batch):
    """Every layout with every setting, as columns by symbol; what makes no difference is left out.

    Sequence parallelism needs tensor parallelism, and ZeRO ranks that hold the same parameters.
    """
    chosen = np.array(list(itertools.product(*settings.values())), dtype=np.int64).reshape(-1, len(settings))
    layout = np.repeat(rows, len(chosen), axis=0)
    setting = np.tile(chosen, (len(rows), 1))
    columns = dict(zip(("t", "n_c", "N", "P", "n_e", "v"), layout.T, strict=True))
    columns |= dict(zip(settings, setting.T, strict=True))
    columns["sp"] = columns["sp"].astype(bool)
    differ = (~columns["sp"] | (columns["t"] > 1)) & ((columns["Z"] == 0) | (columns["N"] * columns["n_c"] > 1))
    columns = {name: column[differ] for name, column in columns.items()}
    columns["B"] = np.full(differ.sum(), batch)
    return {**columns, "n": costs.all_reduces(columns["recompute"])}


def chunks_of(layers, stages):
    """The numbers of chunks that divide the layers of a stage, 1 always among them.

    >>> chunks_of(96, 8), chunks_of(126, 16), chunks_of(61, 16)
    ([1, 2, 3, 4, 6, 12], [1, 2, 4, 8], [1])
    """
    if stages == 1:
        return [1]
    return [v for v in range(1, max(2, (layers + 2) // stages + 1))
            if v == 1 or layers % (stages * v) == 0 or (layers + 2) % (stages * v) == 0]


def _answer(model, cluster, sizes, columns, bits, seconds, most, common):
    """Sort the plans, and say how to make each when it is asked for."""
    fits = (bits == 0) & (most <= cluster.machine.memory_bytes)
    order = np.lexsort((most, seconds))
    counts = {rule.name: int((bits >> place & 1).sum()) for place, rule in enumerate(reasons.RULES)}
    counts[reasons.MEMORY] = int(((bits == 0) & ~fits).sum())

    def plan(i):
        values = {name: int(columns[symbol][i]) for name, symbol in SYMBOL_OF.items()}
        return Plan(**values, **common, recompute=RECOMPUTE[columns["recompute"][i]],
                    sequence_parallel=bool(columns["sp"][i]))

    def rejected(i):
        broken = reasons.in_words(bits[i], sizes, cluster, plan(i)) or reasons.of_memory(most[i], cluster)
        return Rejected(plan(i), broken, float(seconds[i]))

    return Answer(model, cluster, _Listed(order[fits[order]], lambda i: estimate(model, cluster, plan(i))),
                  _Listed(order[~fits[order]], rejected), {name: count for name, count in counts.items() if count},
                  columns, seconds, most, bits)


def _divisors(number):
    low = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return low + [number // n for n in reversed(low) if n * n < number]


def _code(name):
    if not isinstance(name, str) or name not in RECOMPUTE:
        raise ValueError(f"recompute = {shown(name)} is not allowed; it must be among "
                         + ", ".join(map(repr, RECOMPUTE)))
    return RECOMPUTE.index(name)


def _several(name, values):
    """One value or several, as a tuple; whole numbers, but for techniques and switches."""
    values = tuple(values) if isinstance(values, tuple | list | range) else (values,)
    if not values:
        raise ValueError(f"{name} = () is not allowed; it must have a value")
    least = 0 if name == "zero" else 1
    for value in values:
        whole = isinstance(value, numbers.Integral) and not isinstance(value, bool) and least <= value < MOST
        if name == "sequence_parallel" and not isinstance(value, bool):
            raise ValueError(f"{name} = {value!r} is not allowed; it must be True or False, or both")
        if (name not in ("recompute", "sequence_parallel") and not whole) or (name == "zero" and value > 3):
            raise ValueError(f"{name} = {shown(value)} is not allowed; it must be a whole number, at least {least}"
                             + (", at most 3" if name == "zero" else ""))
    return values


def _check(model, cluster, batch, sequence, fixed, **common) -> tuple[Sizes, int]:
    """Check what the plans have in common; return the model's sizes and the sequence."""
    for name, value, kind in (("model", model, ModelShape), ("cluster", cluster, Cluster)):
        if not isinstance(value, kind):
            raise ValueError(f"{name} = {value!r} is not allowed; it must be a {kind.__name__}")
    for name in fixed:
        if name not in ("tp", "cp", "ep", "dp", "pp", "chunks"):
            raise ValueError(f"search has no argument {name!r}; what can be fixed are tp, cp, ep, dp, pp and chunks")
        _several(name, fixed[name])
    sequence = min(model.context or 2048, 8192) if sequence is None else sequence
    Plan(tp=1, pp=1, dp=1, batch=batch, sequence=sequence, **common)  # refuses what no plan can have
    return sizes_of(model), int(sequence)

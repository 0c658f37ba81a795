"""Expert parallelism on real processes: each holds a part of the experts and its own tokens.

The layer is in `scalebook.labs.expert_layer`. Here it is run, forward and backward, and measured: outputs, gradients,
load, and the bytes of each collective. `single_process` is the oracle: one `MoELayer` with all experts, on the tokens
of all ranks. The shapes, as suffixes of names: T tokens of all ranks, D width of the model.

Run it with `python -m scalebook.labs.expert_parallel --ranks 4`, or let PyTorch start the processes:
`torchrun --nproc-per-node 4 -m scalebook.labs.expert_parallel --ranks 4`.
"""

import math
import numbers
from dataclasses import dataclass

import torch
import torch.distributed as dist

from scalebook import checks, moe, ranks
from scalebook.borders import guard
from scalebook.checks import whole
from scalebook.formulas.moe import all_to_all_elements
from scalebook.labs import command
from scalebook.labs.expert_layer import SHARDED, ExpertParallelMoE, route_evenly
from scalebook.labs.kinds import KINDS, task

MISTAKES = (None, "no all-reduce", "all-reduce experts")
GATES = {"top-k": moe.route_top_k, "even": route_evenly}


@dataclass(frozen=True)
class Task:
    """What every rank must know: the tokens of each rank, the layer, and how the data are drawn."""

    tokens: tuple
    d_model: int
    d_ff_expert: int
    n_experts: int
    top_k: int
    n_shared: int
    gate: str
    skew: float
    capacity_factor: float | None
    seed: int
    dtype: torch.dtype
    mistake: str | None

    def build(self, kind, *places):
        """The layer, with the same weights on every rank and device: they are drawn on the CPU."""
        sizes = self.d_model, self.d_ff_expert, self.n_experts, self.top_k
        options = {"gate": GATES[self.gate], "n_shared": self.n_shared, "capacity_factor": self.capacity_factor}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return kind(*places, *sizes, **options).to(ranks.device(), self.dtype)

    def data(self):
        """Each rank's tokens, and the gradient that the loss gives to each of their outputs.

        `skew` times a direction that all tokens share makes some experts more popular: it adds to each expert's logit
        a constant, normal with about that deviation.
        """
        drawn = torch.Generator().manual_seed(self.seed)
        x_TD, gradient_TD = torch.randn(2, sum(self.tokens), self.d_model, generator=drawn, dtype=self.dtype)
        x_TD = x_TD + self.skew * torch.randn(self.d_model, generator=drawn, dtype=self.dtype)
        return tuple(each_TD.to(ranks.device()).split(self.tokens) for each_TD in (x_TD, gradient_TD))


@dataclass(frozen=True)
class Pass:
    """One forward and backward. What has one entry for each rank is a tuple.

    `gradients` maps the experts' parameters to the gradients of all experts, and `replicated` the router's (and the
    shared experts') to what each rank has. `rows[r][q]` are the rows that rank r sends to rank q. `forward`, `backward`
    and `update` are each rank's `ranks.Traffic`, None for the oracle.
    """

    task: Task
    outputs: tuple
    input_gradients: tuple
    gradients: dict
    replicated: dict
    rows: tuple
    forward: tuple | None = None
    backward: tuple | None = None
    update: tuple | None = None

    @property
    def load(self):
        """The rows that each rank's experts compute."""
        return tuple(map(sum, zip(*self.rows, strict=True)))

    @property
    def forward_bytes(self):
        """Bytes that each rank sends to others in the forward, counted: for the counts, the dispatch, the combine."""
        return tuple(tuple(size - kept for _, size, kept in traffic.log) for traffic in self.forward)

    @property
    def backward_bytes(self):
        """The same of the backward: the gradients of what was combined, then of what was dispatched."""
        return tuple(tuple(size - kept for _, size, kept in traffic.log) for traffic in self.backward)

    @property
    def bytes_from_rows(self):
        """What `forward_bytes` should be, from the rows alone: a rank dispatches its own and returns what it got."""
        row, number = self.task.d_model * self.task.dtype.itemsize, torch.int64.itemsize
        size = len(self.rows)
        counts = (size - 1) * self.task.n_experts // size * number
        arrived = zip(*self.rows, strict=True)
        return tuple((counts, (sum(to) - to[r]) * row, (sum(by) - by[r]) * row)
                     for r, (to, by) in enumerate(zip(self.rows, arrived, strict=True)))

    @property
    def formula_bytes(self):
        """What the formula says that a rank sends in the forward, counts left out; its T is the mean over the ranks."""
        task, size = self.task, len(self.rows)
        elements = sum(all_to_all_elements(K=task.top_k, T=tokens, D=task.d_model, R=size, E=task.n_experts)
                       for tokens in task.tokens) / size
        return float(elements * task.dtype.itemsize)

    def difference(self, other):
        """The largest difference from another pass, of any entry and rank: a dict by what it is the difference of."""
        gaps = {}
        for name, ours in self.parts().items():
            pairs = zip(ours, other.parts()[name], strict=True)
            gaps[name] = max(((one - two).abs().max().item() for one, two in pairs if one.numel()), default=0.0)
        return gaps

    def parts(self):
        """Everything computed, by name: a tuple of tensors each."""
        experts = {name: (gradient,) for name, gradient in self.gradients.items()}
        return {"output": self.outputs, "input": self.input_gradients, **experts, **self.replicated}


def expert_parallel(size=4, *, timeout=60, backend=None, **options):
    """Run one forward and backward on `size` processes; return the `Pass`.

    Options, of the default task: `tokens=64` of each rank, or a sequence of them; `d_model=16`, `d_ff_expert=24`,
    `n_experts=8`, `top_k=2`, `n_shared=0`; `gate="top-k"`, or "even", which needs multiples of E tokens to be even;
    `skew=0.0` (`Task.data`); `capacity_factor=None`; `seed=0`; `dtype=torch.float64`. The loss is the sum over all
    outputs of all ranks, each times a number of its own, so a gradient of all tokens is a sum over ranks.

    `mistake="no all-reduce"` leaves out the sum of the router's gradients over the ranks: each rank's router then
    learns from the rank's own tokens, and the copies part. `mistake="all-reduce experts"` sums the experts' gradients
    too, as data parallelism would: each expert then gets the gradients of other experts, those with its place on other
    ranks. `single_process` predicts both. `backend` is that of `ranks.run`. Under `torchrun` rank 0 gets the pass and
    the others None.

    Raises ValueError for bad input, and `ranks.RankError` when a rank fails.

    >>> run, oracle = expert_parallel(2), single_process(2)
    >>> max(run.difference(oracle).values()) < 1e-12, run.load == oracle.load
    (True, True)
    """
    task = make_task(size, **options)
    results = ranks.launch(measure_rank, size, task, timeout=timeout, backend=backend)
    return None if results is None else gather(task, results)


def single_process(size=4, **options):
    """The same in this process, with one `MoELayer`: the oracle. `rows` follow from the routing.

    A capacity is each rank's own, so there each rank's tokens pass the layer by themselves; else all of them at once.
    With a mistake, the gradients are what the mistake is predicted to give.
    """
    task = make_task(size, **options)
    layer = task.build(moe.MoELayer)
    x, gradients = task.data()
    x = [part.requires_grad_() for part in x]
    together = layer(torch.cat(x))[0].split(task.tokens)
    outputs = together if task.capacity_factor is None else [layer(part)[0] for part in x]
    losses = [(y * gradient).sum() for y, gradient in zip(outputs, gradients, strict=True)]
    held = {name: getattr(layer, name) for name in SHARDED}
    replicated = {name: p for name, p in layer.named_parameters() if name not in SHARDED}
    wanted = [*x, *held.values(), *replicated.values()]
    found = list(torch.autograd.grad(sum(losses), wanted, retain_graph=True))
    from_all = dict(zip([*held, *replicated], found[size:], strict=True))
    if task.mistake == "all-reduce experts":  # every rank gets the sum over the ranks, in its experts' places
        for name in SHARDED:
            parts = from_all[name].unflatten(0, (size, -1))
            from_all[name] = parts.sum(dim=0, keepdim=True).expand_as(parts).flatten(0, 1)
    each = {name: (from_all[name],) * size for name in replicated}
    if task.mistake == "no all-reduce":  # every rank has the gradient of its own loss
        own = [torch.autograd.grad(loss, replicated.values(), retain_graph=True) for loss in losses]
        each = dict(zip(replicated, zip(*own, strict=True), strict=True))
    with torch.no_grad():
        plans = [layer.plan(layer(part)[1]) for part in x]
    rows = tuple(tuple(torch.tensor(plan.counts).view(size, -1).sum(dim=1).tolist()) for plan in plans)
    outputs, inputs = tuple(y.detach() for y in outputs), tuple(found[:size])
    return Pass(task, outputs, inputs, {name: from_all[name] for name in SHARDED}, each, rows)


def measure_rank(rank, world_size, task):
    """One rank of `expert_parallel`."""
    layer = task.build(ExpertParallelMoE, rank, world_size)
    x_TD, gradient_TD = (parts[rank].clone() for parts in task.data())
    x_TD.requires_grad_()
    with ranks.count() as forward:
        y_TD, routing = layer(x_TD)
    with ranks.count() as backward:
        (y_TD * gradient_TD).sum().backward()
    with ranks.count() as update:
        for name, parameter in layer.named_parameters():
            # The experts' gradients are complete: the backward has brought them the tokens of all ranks.
            needed = task.mistake == "all-reduce experts" if name in SHARDED else task.mistake != "no all-reduce"
            if needed:
                dist.all_reduce(parameter.grad)
    sent = torch.tensor(layer.plan(routing).counts).view(world_size, -1).sum(dim=1).tolist()
    gradients = {name: parameter.grad for name, parameter in layer.named_parameters()}
    return y_TD.detach(), x_TD.grad, gradients, tuple(sent), forward, backward, update


def gather(task, results):
    """Put the ranks' measurements together."""
    outputs, inputs, gradients, rows, *traffic = zip(*results, strict=True)
    held = {name: torch.cat([one[name] for one in gradients]) for name in SHARDED}
    replicated = {name: tuple(one[name] for one in gradients) for name in gradients[0] if name not in SHARDED}
    return Pass(task, outputs, inputs, held, replicated, rows, *traffic)


def make_task(size, *, tokens=64, d_model=16, d_ff_expert=24, n_experts=8, top_k=2, n_shared=0, gate="top-k", skew=0.0,
              capacity_factor=None, seed=0, dtype=torch.float64, mistake=None):
    """Check the input and put it together."""
    whole("size", size, 1, 1024)
    tokens = tuple(tokens) if isinstance(tokens, (list, tuple)) else (tokens,) * size
    if len(tokens) != size:
        raise ValueError(f"tokens = {tokens} is not allowed; it must be one number, or {size} of them")
    for count in tokens:
        checks.size("tokens", count, 0)
    whole("seed", seed, 0)
    if seed >= 2**63:
        raise ValueError(f"seed = {seed} is not allowed; seed must be below 2^63")
    task = Task(tokens, d_model, d_ff_expert, n_experts, top_k, n_shared, gate, skew, capacity_factor, seed, dtype,
                mistake)
    for name, value, allowed in (("gate", gate, tuple(GATES)), ("mistake", mistake, MISTAKES),
                                 ("dtype", dtype, (torch.float32, torch.float64))):
        checks.one_of(name, value, allowed)
    if isinstance(skew, bool) or not isinstance(skew, numbers.Real) or not abs(skew) <= 1e6:
        raise ValueError(f"skew = {skew!r} is not allowed; it must be a number from -1e6 to 1e6")
    task.build(moe.MoELayer)  # raises for sizes that no layer can have
    number = isinstance(capacity_factor, numbers.Real) and not isinstance(capacity_factor, bool)
    if capacity_factor is not None and not (number and 0 < capacity_factor < math.inf):
        raise ValueError(f"capacity_factor = {capacity_factor!r} is not allowed; it must be None, or a finite number "
                         "above 0")
    if n_experts % size:
        raise ValueError(f"n_experts = {n_experts} is not allowed; it must be a multiple of the {size} ranks")
    if gate == "even" and any(count % n_experts for count in tokens):
        raise ValueError(f"tokens = {tokens} is not allowed; the even gate needs multiples of {n_experts} tokens")
    return task


def main():
    """Run a pass from the command line and print it beside the oracle and the formula."""
    parser = command.parser_of(__doc__)
    parser.add_argument("--ranks", type=int, default=4, help="processes (default: 4)")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of each rank (default: 64)")
    parser.add_argument("--experts", type=int, default=8, help="experts of all ranks (default: 8)")
    parser.add_argument("--top-k", type=int, default=2, help="experts of a token (default: 2)")
    parser.add_argument("--gate", choices=GATES, default="top-k",
                        help="how tokens choose their experts (default: top-k)")
    parser.add_argument("--skew", type=float, default=0.0, help="how much more popular some experts are (default: 0)")
    parser.add_argument("--capacity-factor", type=float,
                        help="room of an expert over its even share (default: no limit, no token is dropped)")
    command.add_backend(parser)
    given = vars(parser.parse_args())
    size, backend, given["n_experts"] = given.pop("ranks"), given.pop("backend"), given.pop("experts")
    with command.errors_in_words(parser):
        run = expert_parallel(size, backend=backend, **given)
    if run is None:
        return
    gaps = run.difference(single_process(size, **given))
    print("largest difference from one process: " + ", ".join(f"{name} {gap:.1e}" for name, gap in gaps.items()))
    for rank, (load, sent) in enumerate(zip(run.load, run.forward_bytes, strict=True)):
        print(f"rank {rank}: its experts compute {load} rows; sent {sent[0]} B of counts, {sent[1]} B to dispatch, "
              f"{sent[2]} B to combine")
    mean = sum(sum(sent[1:]) for sent in run.forward_bytes) / size
    print(f"a rank sends {mean:.0f} B of rows on average; by the formula {run.formula_bytes:.0f} B")


guard(globals(), KINDS | {"other": task("expert_parallel:Pass")},
      "expert_parallel", "single_process", "Pass.difference")


if __name__ == "__main__":
    from scalebook.labs.expert_parallel import main

    main()

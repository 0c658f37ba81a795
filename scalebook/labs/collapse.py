"""Train a small mixture-of-experts transformer on real text and watch where its tokens go.

Without balancing, a gate may send most tokens of a layer to one expert. Each way to balance runs with several seeds
beside its control. The result is stored as data, since two processors train to different digits, and training enlarges
the difference: when the weights were changed by a millionth at the start, about a quarter of the tokens went elsewhere
after 80 steps, while the same runs collapsed. `scalebook.data.load("collapse")` reads the data without PyTorch.

    python -m scalebook.labs.collapse                  # all runs, written to scalebook/data/collapse.json
    python -m scalebook.labs.collapse --part           # two short runs, printed beside the stored ones

Loads are counted on held-out text, 4,096 tokens every 20 steps. At the end they are counted on 32,768 tokens, on which
the final loss and the dropped tokens are measured too. Suffixes as in `moe_transformer`; L layers.
"""

import json
import platform
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path

import torch

from scalebook import data, texts
from scalebook.checks import whole
from scalebook.labs import command
from scalebook.labs.moe_transformer import EXPERT_WIDTH, EXPERTS, LEARNING_RATE, SHAPE, Balancing, build, train_step
from scalebook.labs.tiny_transformer import encode, token_loss
from scalebook.moe import balance, capacity, dispatch

STEPS, EVERY, SEQUENCES = 300, 20, 16  # steps, steps between two counts, sequences in a batch
PROBE, FINAL = 64, 512  # held-out sequences for a count along the way, and at the end
FACTORS = (1.0, 1.25, 2.0)  # capacity factors for which dropped tokens are counted
SEEDS = (0, 1, 2, 3, 4)
VARIANTS = {
    "no balancing": Balancing(),
    "loss 0.01": Balancing(alpha=0.01),
    "loss 0.1": Balancing(alpha=0.1),
    "top-2, no balancing": Balancing(top_k=2),
    "sigmoid, no bias": Balancing(gate="sigmoid"),
    "sigmoid, bias": Balancing(gate="sigmoid", gamma=0.003),
    "softmax, bias": Balancing(gamma=0.003),
    "slow router, no balancing": Balancing(router_factor=1),
    "slow router, softmax, bias": Balancing(gamma=0.003, router_factor=1),
    "slow router, sigmoid, no bias": Balancing(gate="sigmoid", router_factor=1),
    "slow router, sigmoid, bias": Balancing(gate="sigmoid", gamma=0.003, router_factor=1),
}
COEFFICIENTS = (0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3)  # of the loss, for the explorer, with the first seed
PART = ("no balancing", "loss 0.1")


def load():
    """The stored results: `provenance`, `runs` (each variant and seed) and `grid` (each coefficient of the loss).

    A run has `steps`, and for each of them the `counts` (layers x experts), the `held_out` loss and the `training` loss
    (a mean over the steps since the last count), in nats per byte; and `final`, with the same and the `dropped` share
    of choices at each capacity factor, for each layer.

    >>> len(load()["runs"]) == len(VARIANTS) * len(SEEDS)
    True
    """
    return data.load("collapse")


def recompute_part(seed=0, steps=80):
    """Train again without balancing and with the loss at 0.1, for fewer steps: two runs, as `load()["runs"]` has them.

    Raises FileNotFoundError when the text is missing, and ValueError for steps that are not a multiple of 20.
    """
    return [{"variant": name, "seed": seed, **run(VARIANTS[name], seed, steps, finish=False)} for name in PART]


def run(balancing, seed, steps=STEPS, *, finish=True):
    """Train one model on one thread, and count where it sends held-out tokens.

    The seed draws the weights and the batches: with one seed, all variants start from the same weights and see the same
    text. `finish` adds the measures at the end.

    Raises ValueError for a balancing that is no `Balancing`, for steps that are not a multiple of 20, and for a seed
    that is not a whole number from 0 to 2^63 - 1.
    """
    if not isinstance(balancing, Balancing):
        raise ValueError(f"balancing = {balancing!r} is not allowed; it must be a moe_transformer.Balancing")
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < EVERY or steps % EVERY:
        raise ValueError(f"steps = {steps!r} is not allowed; steps must be a multiple of {EVERY}, at least {EVERY}")
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise ValueError(f"seed = {seed!r} is not allowed; seed must be a whole number from 0 to 2^63 - 1")
    training, held_out = map(encode, texts.split())
    probe = evenly_spaced(held_out, PROBE)
    generator = torch.Generator().manual_seed(seed)
    record = {"steps": [], "counts": [], "held_out": [], "training": []}
    with one_deterministic_thread():
        model, optimizer = build(balancing, seed)
        losses = []
        for step in range(steps + 1):
            if step % EVERY == 0:
                loss, counts_LE, _ = measure(model, *probe)
                mean_loss = round(sum(losses) / len(losses), 4) if losses else None
                for key, value in zip(record, (step, counts_LE, loss, mean_loss), strict=True):
                    record[key].append(value)
                losses = []
            if step < steps:
                losses.append(train_step(model, optimizer, *random_batch(training, generator), balancing))
        if finish:
            loss, counts_LE, dropped = measure(model, *evenly_spaced(held_out, FINAL))
            record["final"] = {"counts": counts_LE, "held_out": loss, "dropped": dropped}
    return record


@torch.no_grad()
def measure(model, tokens_BS, targets_BS):
    """Held-out loss, tokens that each expert of each layer gets, and the share of choices that capacity would drop.

    Capacity holds for a batch of the training's size; the model itself drops none.
    """
    losses, counts_LE = [], torch.zeros(SHAPE.layers, EXPERTS, dtype=torch.long)
    dropped_LF = torch.zeros(SHAPE.layers, len(FACTORS))
    batches = list(zip(tokens_BS.split(SEQUENCES), targets_BS.split(SEQUENCES), strict=True))
    for tokens, targets in batches:
        logits_BSV, routings = model(tokens)
        losses.append(token_loss(logits_BSV, targets).item())
        for layer, routing in enumerate(routings):
            counts_LE[layer] += torch.bincount(routing.experts_TK.flatten(), minlength=EXPERTS)
            for column, factor in enumerate(FACTORS):
                limit = capacity(tokens.numel(), EXPERTS, routing.experts_TK.shape[1], factor)
                plan = dispatch(routing.experts_TK, routing.weights_TK, EXPERTS, limit)
                dropped_LF[layer, column] += plan.dropped_TK.float().mean() / len(batches)
    dropped = {str(factor): [round(share, 4) for share in dropped_LF[:, column].tolist()]
               for column, factor in enumerate(FACTORS)}
    return round(sum(losses) / len(losses), 4), counts_LE.tolist(), dropped


def windows(text, starts_B):
    """Sequences from the given places, and as targets the bytes that follow: two (B, S) tensors."""
    text_BS = text[starts_B[:, None] + torch.arange(SHAPE.context + 1)]
    return text_BS[:, :-1], text_BS[:, 1:]


def random_batch(text, generator):
    """A batch from random places of the text."""
    return windows(text, torch.randint(len(text) - SHAPE.context, (SEQUENCES,), generator=generator))


def evenly_spaced(text, sequences):
    """Sequences spread evenly over a text, always the same."""
    return windows(text, torch.arange(sequences) * ((len(text) - SHAPE.context) // sequences))


@contextmanager
def one_deterministic_thread():
    """One thread and deterministic algorithms, and afterwards what was there before."""
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(deterministic)


def run_all(processes=1):
    """All runs of the experiment, with their provenance. A run is on one thread, so `processes` changes no digit."""
    jobs = {(name, seed): (balancing, seed) for seed in SEEDS for name, balancing in VARIANTS.items()}
    names = {balancing: name for name, balancing in VARIANTS.items()}
    extra = {alpha: (Balancing(alpha=alpha), SEEDS[0]) for alpha in COEFFICIENTS if Balancing(alpha=alpha) not in names}
    every_job = [*jobs.items(), *extra.items()]
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        futures = {key: pool.submit(run, *job) for key, job in every_job}
        records = {}
        for number, (key, future) in enumerate(futures.items(), 1):
            records[key] = future.result()
            print(f"{number} of {len(every_job)}: {key}", flush=True)
    runs = [{"variant": name, "seed": seed, **records[name, seed]} for name, seed in jobs]
    grid = [{"alpha": alpha, "seed": SEEDS[0], **records[alpha]} if alpha in extra
            else {"alpha": alpha, "seed": SEEDS[0], **records[names[Balancing(alpha=alpha)], SEEDS[0]]}
            for alpha in COEFFICIENTS]
    return {"provenance": provenance(), "variants": {name: vars(v) for name, v in VARIANTS.items()},
            "runs": runs, "grid": grid}


def provenance():
    """What the results were made with."""
    return {
        "command": "python -m scalebook.labs.collapse", "python": platform.python_version(),
        "torch": torch.__version__, "machine": platform.machine(), "threads": 1, "seeds": list(SEEDS),
        "text": texts.SDIST, "text_sha256": texts.TEXT_SHA256, "steps": STEPS, "every": EVERY,
        "tokens_per_step": SEQUENCES * SHAPE.context, "layers": SHAPE.layers, "width": SHAPE.width, "experts": EXPERTS,
        "expert_width": EXPERT_WIDTH, "learning_rate": LEARNING_RATE, "optimizer": "Adam",
    }


def as_json(results):
    """JSON with one run a line."""
    parts = []
    for key, value in results.items():
        if isinstance(value, list):
            lines = ",\n".join(json.dumps(item, separators=(",", ":")) for item in value)
            parts.append(f'"{key}": [\n{lines}\n]')
        else:
            parts.append(f'"{key}": {json.dumps(value, indent=1)}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def describe(record):
    """One line: the deepest layer's largest share at the last count, and the loss."""
    share = balance.load_shares(record["counts"][-1][-1]).max()
    return f"step {record['steps'][-1]}: largest share {share:.3f}, held-out loss {record['held_out'][-1]:.3f}"


def main():
    """Run the experiment, or the part of it, from the command line."""
    parser = command.parser_of(__doc__)
    parser.add_argument("--part", action="store_true", help="only two short runs, compared with the stored")
    parser.add_argument("--processes", type=int, default=1, help="runs at a time, each on one thread (default: 1)")
    options = parser.parse_args()
    with command.errors_in_words(parser):
        if options.part:
            print_part()
            return
        whole("processes", options.processes)
        target = Path(data.__file__).with_name("collapse.json")
        texts.write_whole(target, as_json(run_all(options.processes)).encode())
        print(f"written: {target}")


def print_part():
    """Run the part again, and print each run beside the stored one."""
    stored = {(record["variant"], record["seed"]): record for record in load()["runs"]}
    for record in recompute_part():
        there = stored[record["variant"], record["seed"]]
        last = there["steps"].index(record["steps"][-1]) + 1
        print(f"{record['variant']}\n  now    {describe(record)}")
        print(f"  stored {describe({key: there[key][:last] for key in ('steps', 'counts', 'held_out')})}")


if __name__ == "__main__":
    main()

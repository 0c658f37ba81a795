"""How fast the mixture-of-experts layer is: beside transformers' Mixtral block, and beside its matrix products alone.

All have the same weights and get the same tokens, in the same run, one after the other in rounds whose order turns.
transformers' block runs with each of its implementations of the experts that computes in float32 on a CPU: `eager`, and
`grouped_mm`, its default. (`batched_mm` copies the experts' weights once for each row: 51 GB here. The others need a
GPU.) The matrix products are those of the chosen experts when tokens are even: two forward and four more backward for
each expert, on rows that lie there already, without activation, router or autograd. The machine may be busy with other
things: what counts is the time that the processor spends on each, of each round the ratio, and of these the median.
"""

import os
import statistics
import time

import torch

from scalebook.moe import MoELayer
from tests.bench.quantization import take_turns
from tests.bench.rows import Row

T, D, H, E, K = 4096, 512, 1024, 8, 2
SLOWER = 1.1  # the target: at most this many times as long as transformers' faster implementation
OURS, PRODUCTS = "scalebook", "matrix products"
IMPLEMENTATIONS = ("eager", "grouped_mm")


def mixtral_block(layer, implementation):
    """transformers' block with the layer's weights."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers import MixtralConfig, MixtralModel

    config = MixtralConfig(hidden_size=D, intermediate_size=H, num_local_experts=E, num_experts_per_tok=K,
                           num_hidden_layers=1, num_attention_heads=8, num_key_value_heads=8, vocab_size=8)
    model = MixtralModel(config)
    model.set_experts_implementation(implementation)
    block = model.layers[0].mlp
    with torch.no_grad():
        block.gate.weight.copy_(layer.router_ED)
        block.experts.gate_up_proj.copy_(layer.gate_up_ED)
        block.experts.down_proj.copy_(layer.down_ED)
    return block


def passes(module, x, gradient):
    """The forward of a module, and its forward and backward, as functions without arguments."""
    x, parameters = x.clone().requires_grad_(), list(module.parameters())

    def output():
        y = module(x)
        return y[0] if isinstance(y, tuple) else y

    def forward():
        with torch.no_grad():
            return output()

    return forward, lambda: torch.autograd.grad(output(), [x, *parameters], gradient)


def products(layer):
    """The matrix products of the forward, and of forward and backward, as functions without arguments."""
    rows = T * K // E
    pairs = [(torch.randn(rows, weight.shape[1]), weight.detach(), torch.randn(rows, weight.shape[0]))
             for gate_up, down in zip(layer.gate_up_ED, layer.down_ED, strict=True) for weight in (gate_up, down)]

    def forward():
        for x, weight, _ in pairs:
            x @ weight.T

    def both():
        for x, weight, gradient in pairs:
            x @ weight.T
            gradient @ weight
            gradient.T @ x

    return forward, both


def contenders():
    """Everything that is timed, by name: (forward, forward and backward)."""
    torch.manual_seed(0)
    layer, x, gradient = MoELayer(D, H, E, K), torch.randn(1, T, D), torch.randn(1, T, D)
    found = {OURS: passes(layer, x, gradient)}
    found |= {f"transformers {name}": passes(mixtral_block(layer, name), x, gradient) for name in IMPLEMENTATIONS}
    for one in list(found)[1:]:  # what is compared must be the same computation
        torch.testing.assert_close(found[one][0](), found[OURS][0](), rtol=1e-5, atol=1e-5)
        for theirs, ours in zip(found[one][1](), found[OURS][1](), strict=True):
            torch.testing.assert_close(theirs, ours, rtol=1e-4, atol=1e-4)
    return found | {PRODUCTS: products(layer)}


def measure(found, rounds):
    """Seconds of each contender in each round, forward and then both: {name: ([...], [...])}."""
    names, seconds = list(found), {name: ([], []) for name in found}
    for number in range(rounds):
        turned = names[number % len(names):] + names[:number % len(names)]
        for kind in (0, 1):
            for name in turned:
                start = time.process_time()
                found[name][kind]()
                seconds[name][kind].append(time.process_time() - start)
    return seconds


def ratio(ours, theirs):
    """The median over the rounds of ours by theirs."""
    return statistics.median(one / other for one, other in zip(ours, theirs, strict=True))


def table(seconds):
    """Write the timings as lines of one table."""
    yield (f"{T:,} tokens, width {D}, {K} of {E} experts of {H}, float32, one thread, {len(seconds[OURS][0])} rounds; "
           f"milliseconds, and the median of each round's ratio")
    for kind, title in enumerate(("forward", "forward + backward")):
        yield f"{title:24} {'median':>8} {'minimum':>8} {'scalebook by it':>16} {'by matrix products':>19}"
        for name, one in seconds.items():
            own, base = one[kind], seconds[PRODUCTS][kind]
            yield (f"  {name:22} {1000 * statistics.median(own):8.1f} {1000 * min(own):8.1f} "
                   f"{ratio(seconds[OURS][kind], own):16.3f} {ratio(own, base):19.3f}")


def run(options):
    """Print the table; return the rows."""
    torch.set_num_threads(1)
    found = contenders()
    measure(found, 1)
    seconds = measure(found, options.rounds or 9)
    print("\n".join(table(seconds)))
    rows = [Row("moe", f"layer, {T:,} tokens, {title}", statistics.median(seconds[OURS][kind]),
                f"transformers, {name}", statistics.median(seconds[f"transformers {name}"][kind]), "s", SLOWER)
            for kind, title in enumerate(("forward", "forward + backward")) for name in IMPLEMENTATIONS]
    layer = MoELayer(D, H, E, K)
    once, twice = (passes(layer, torch.randn(1, tokens, D), None)[0] for tokens in (T, 2 * T))
    times, _ = take_turns((once, twice), (), 5)
    single, double = map(statistics.median, zip(*times, strict=True))
    return [*rows, Row("moe", "forward with twice the tokens", double, "once", single, "s", 2.5)]

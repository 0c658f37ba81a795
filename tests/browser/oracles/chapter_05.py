"""Oracles of the explorers of chapter 5."""

import math
from fractions import Fraction

from scalebook import zero
from scalebook.charts.zero.life import simulate_step
from scalebook.formulas import zero as formulas
from tests.browser.oracles import oracle, significant

STAGES = (0, 1, 2, 3)
CARDS = {80: "A100 and H100", 180: "B200"}


def exact(number):
    """A control's value as a fraction, so that 1.5 billion parameters are a whole number."""
    return Fraction(str(number))


def state_parts(billions, N, recipe, stage):
    """GB of weights, gradients and optimizer states of one rank."""
    sizes = formulas.recipes()[recipe]
    shares = (N if stage == 3 else 1, N if stage >= 2 else 1, N if stage >= 1 else 1)
    each = dict(zip(("weights", "gradients", "optimizer states"),
                    (exact(billions) * bytes_ / ranks for bytes_, ranks in
                     zip((sizes.b_w, sizes.b_g, sizes.K), shares, strict=True)), strict=True))
    assert sum(each.values()) * 10**9 == zero.model_state_bytes(int(exact(billions) * 10**9), N, stage, recipe)
    return each


@oracle("states")
def states(billions, N, recipe, rest):
    bars, labels, totals = [], [], []
    for stage in STAGES:
        parts = state_parts(billions, N, recipe, stage) | {"activations and buffers": rest}
        end = 0
        for part, size in parts.items():
            if size and end < 240:
                bars.append({"x": end, "x2": min(240, end + size), "y": f"stage {stage}", "color": part})
            end += size
        totals.append(end)
        cut = ", cut off" if end > 240 else ""
        labels.append({"y": f"stage {stage}", "text": f"{significant(end)} GB{cut}"})
    lines = []
    for size in CARDS:
        fitting = [str(stage) for stage in STAGES if totals[stage] <= size]
        named = f"stage{'s' if len(fitting) > 1 else ''} {', '.join(fitting)}" if fitting else "no stage"
        lines.append(f"fits {size} GB: {named}")
    return {"part": bars, "label": labels, "card": [{"x": size} for size in CARDS],
            "cardname": [{"x": size, "text": name} for size, name in CARDS.items()],
            "words": [{"text": "\n".join(lines)}]}


@oracle("largest")
def largest(card, N, recipe, rest):
    sizes = formulas.recipes()[recipe]

    def most(stage, ranks):
        """The most parameters of which a rank's states fit, by trying: no larger number does."""
        room = (card - rest) * 10**9
        guess = int(room / zero.model_state_bytes(1, ranks, stage, sizes))
        return max(number for number in (guess - 1, guess, guess + 1)
                   if number > 0 and zero.model_state_bytes(number, ranks, stage, sizes) <= room) / 1e9

    ranks = sorted({round(2**(quarter / 4)) for quarter in range(49)})
    curve = [{"x": number, "y": most(stage, number), "color": f"stage {stage}"} for number in ranks for stage in STAGES]
    chosen = [{"x": N, "y": most(stage, N), "color": f"stage {stage}"} for stage in STAGES]
    listed = ",  ".join(f"{stage}: {significant(most(stage, N), 3)}B" for stage in STAGES)
    text = f"{N} {'GPU' if N == 1 else 'GPUs'} of {card} GB,\n{card - rest} GB of it for the states\nstage {listed}"
    return {"curve": curve, "chosen": chosen, "words": [{"text": text}]}


LINKS = {"A100, NVLink": (300, 312, 8), "A100, between nodes": (25, 312, None),  # GB/s, TFLOP/s, ranks
         "H100, NVLink": (450, 989, 8), "H100, between nodes": (50, 989, None)}


@oracle("step")
def step(billions, N, M, T, link, reached):
    omega, peak, most = LINKS[link]
    ranks = most or N
    Psi, omega, rho = exact(billions) * 10**9, omega * 10**9, Fraction(peak * 10**12 * reached, 100)
    computing = 6 * Psi * T * M / rho
    once = 2 * Psi * Fraction(ranks - 1, ranks) / omega  # seconds of one pass of 16-bit weights or gradients
    passes = {f"stage {stage}": zero.passes(stage, M) for stage in STAGES} | {"stage 3, kept": zero.passes(3, M, False)}
    bars, labels = [], []
    for name, (gathers, reduces) in passes.items():
        ends = {"weights gathered": (0, gathers * once),
                "gradients reduced": (gathers * once, (gathers + reduces) * once)}
        bars += [{"x": low, "x2": high, "y": name, "color": part} for part, (low, high) in ends.items() if high > low]
        labels.append({"y": name, "text": f"{significant((gathers + reduces) * once * omega / 10**9)} GB"})
    sending = 3 * M * once
    text = (f"{ranks} ranks; computation (dashed) {significant(computing, 3)} s\n"
            f"stage 3 sends {significant(Fraction(3 * M, 2), 3)} times what stage 0 sends:\n"
            f"a step of {significant(max(computing, sending), 3)} s, {significant(computing + sending, 3)} s "
            "without overlap\n"
            f"stage 3's messages hide from {math.ceil(rho * (ranks - 1) / (ranks * omega)):,} tokens\n"
            "of a micro-batch on")
    return {"part": bars, "label": labels, "computation": [{"x": computing}], "words": [{"text": text}]}


@oracle("life")
def life(L, prefetch, reshard, gather):
    taken = simulate_step(L, prefetch, reshard, gather)
    operations = [{"x": one.start, "x2": one.end, "y": L - one.layer + 0.15, "y2": L - one.layer + 0.85,
                   "color": one.kind} for one in taken.operations]
    resting = [{"x": start, "x2": end, "y": L - layer + 0.35, "y2": L - layer + 0.65}
               for layer, start, end in taken.weights]
    floor, held, most = -(L + 3) / 2, [], {"weights": 0, "gradients": 0}
    for start, end, weights, gradients in taken.held():
        ends = {"gather": (0, weights), "reduce-scatter": (weights, weights + gradients)}
        held += [{"x": start, "x2": end, "y": floor + low / 2, "y2": floor + high / 2, "color": part}
                 for part, (low, high) in ends.items() if high > low]
        most = {"weights": max(most["weights"], weights), "gradients": max(most["gradients"], gradients)}
    whole = [f"{number} layer{'s' + chr(39) if number > 1 else chr(39) + 's'} {what}" for what, number in most.items()]
    sent = (3 * L - 1 if reshard else 2 * L)
    text = (f"a step of {significant(taken.end)} forwards; {sent} layers are sent\n"
            f"the processor waits {significant(taken.waiting)}\nat most {whole[0]}\nand {whole[1]} whole")
    return {"operation": operations, "resting": resting, "held": held, "words": [{"text": text}]}

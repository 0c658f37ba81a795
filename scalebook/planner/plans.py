"""A plan: how a model, its batch and its states are laid over the GPUs, and how a step is run."""

import numbers
from dataclasses import dataclass
from functools import cache

from scalebook import checks
from scalebook.mesh import RankGrid
from scalebook.planner.sizes import ATTENTION

RECOMPUTE = ("none", "selective", "full")
MOST = 2**53  # counts and their products are floats in a search, which hold whole numbers up to here
ZERO_STAGES = (0, 1, 2, 3)


@dataclass(frozen=True)
class Plan:
    """One way to train on tp cp dp pp GPUs.

    - `tp`, `cp`, `dp`, `pp`, `ep`: degrees, as in `mesh.RankGrid`, in Megatron-Core's order.
    - `batch` samples in a step, `sequence` positions in a sample, `micro_batch` samples in a micro-batch.
    - `chunks` of layers on each stage: 1 is 1F1B, more is interleaved 1F1B.
    - `zero`: the stage of ZeRO over the dp cp ranks that hold the same parameters.
    - `recompute`: "none", "selective" (the attention scores) or "full" (every layer, from its input).
    - `sequence_parallel`: positions are split over the tensor-parallel ranks between their products.
    - `attention`: "fused" (FlashAttention: no scores stored, half of the pairs computed, no dropout) or "unfused" (as
      in the papers of 2021 and 2022: all pairs, scores stored, dropout).
    - `overlap`: messages between data-parallel ranks, and of the interleaved pipeline, run while the GPU computes.
    - `recipe`: the bytes of weight, gradient and optimizer state, by a name in `formulas.zero.recipes()`.

    Raises ValueError that names the field, its value and what is allowed.

    >>> plan = Plan(tp=8, pp=8, dp=8, batch=512, sequence=2048)
    >>> plan.gpus, plan.micro_batches
    (512, 64.0)
    """

    tp: int
    pp: int
    dp: int
    batch: int
    sequence: int
    cp: int = 1
    ep: int = 1
    micro_batch: int = 1
    chunks: int = 1
    zero: int = 1
    recompute: str = "none"
    sequence_parallel: bool = True
    attention: str = "fused"
    overlap: bool = True
    recipe: str = "mixed precision"

    def __post_init__(self):
        """Refuse what no plan can be; whether a model can run it is for `estimate` to say."""
        for name in ("tp", "pp", "dp", "batch", "sequence", "cp", "ep", "micro_batch", "chunks"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, numbers.Integral) or not 1 <= value < MOST:
                _refuse(name, value, f"a whole number, at least 1 and below {MOST}")
        if isinstance(self.zero, bool) or not isinstance(self.zero, numbers.Integral) or self.zero not in ZERO_STAGES:
            _refuse("zero", self.zero, "0, 1, 2 or 3")
        for name, allowed in (("recompute", RECOMPUTE), ("attention", ATTENTION), ("recipe", tuple(all_recipes()))):
            checks.one_of(name, getattr(self, name), allowed)
        for name in ("sequence_parallel", "overlap"):
            if not isinstance(getattr(self, name), bool):
                _refuse(name, getattr(self, name), "True or False")
        if self.chunks > 1 and self.pp == 1:
            _refuse("chunks", self.chunks, "1 when pp is 1: one stage has nothing to interleave")
        if (self.dp * self.cp) % self.ep:
            _refuse("ep", self.ep, f"a divisor of dp cp ({self.dp * self.cp})")

    @property
    def gpus(self):
        """The GPUs that the plan takes: tp cp dp pp."""
        return self.tp * self.cp * self.dp * self.pp

    @property
    def micro_batches(self):
        """Micro-batches of a step on each data-parallel rank; not whole when the batch cannot be divided so."""
        return self.batch / (self.dp * self.micro_batch)

    @property
    def grid(self):
        """The ranks of the plan, a `mesh.RankGrid`."""
        return RankGrid(tp=self.tp, cp=self.cp, ep=self.ep, dp=self.dp, pp=self.pp)

    def __str__(self):
        """The plan in one line; what is as by default is left out."""
        degrees = " ".join(f"{name.upper()}{getattr(self, name)}" for name in ("tp", "cp", "ep", "pp", "dp")
                           if getattr(self, name) > 1 or name in ("tp", "pp", "dp"))
        words = [f"ZeRO-{self.zero}", f"micro-batch {self.micro_batch}"]
        words += [f"{self.chunks} chunks"] if self.chunks > 1 else []
        words += [] if self.recompute == "none" else [f"{self.recompute} recomputation"]
        words += ["no SP"] if self.tp > 1 and not self.sequence_parallel else []
        return f"{degrees}, {', '.join(words)}"


@cache
def all_recipes():
    """The published recipes by name, each with its bytes a parameter."""
    from scalebook.formulas.zero import recipes

    return recipes()


def _refuse(name, value, allowed):
    raise ValueError(f"{name} = {checks.shown(value)} is not allowed; {name} must be {allowed}")

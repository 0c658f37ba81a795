"""Chapter 5: ZeRO. N data-parallel ranks train a model of Psi parameters and share its states.

A parameter has b_w bytes of weight, b_g bytes of gradient and K bytes of optimizer state (the fp32 master weight is
one of them). `recipes` lists what published systems keep. The stage says what is sharded: 0 nothing, 1 the optimizer
states, 2 the gradients too, 3 the weights too.

Shards are exact fractions here. Where N does not divide Psi, a library pads: `shard_elements` and `padding_elements`
say by how much. M is the number of micro-batches whose gradients are added up before the optimizer steps.
"""

from dataclasses import dataclass

from sympy import Eq, Max, Mod, ceiling, floor

from scalebook.formulas.core import Formula, Variable

_Psi = Variable("Psi", "parameters of the model", count=True, minimum=1, latex=r"\Psi")
_N = Variable("N", "data-parallel ranks", count=True, minimum=1)
_M = Variable("M", "micro-batches in a step", count=True, minimum=1)
_b_w = Variable("b_w", "bytes of a parameter's weight", "bytes")
_b_g = Variable("b_g", "bytes of a parameter's gradient", "bytes")
_K = Variable("K", "bytes of a parameter's optimizer state, with the master weight", "bytes")
_n_w = Variable("n_w", "ranks that share one copy of the weights", count=True, minimum=1)
_n_g = Variable("n_g", "ranks that share one copy of the gradients", count=True, minimum=1)
_n_o = Variable("n_o", "ranks that share one copy of the optimizer states", count=True, minimum=1)
_C = Variable("C", "memory of the card", "bytes")
_A = Variable("A", "bytes of all that is not model state: activations, buffers", "bytes")
_G = Variable("G", "ranks in a shard group", count=True, minimum=1)
_L = Variable("L", "layers, each gathered by itself", count=True, minimum=1)
_u = Variable("u", "buckets of gradients in a backward", count=True, minimum=1)
_Psi_l = Variable("Psi_l", "parameters of the largest layer", count=True, minimum=1, latex=r"\Psi_\ell")
_Psi_b = Variable("Psi_b", "elements of a bucket of gradients", count=True, minimum=1, latex=r"\Psi_b")
_g_w = Variable("g_w", "layers whose weights are gathered at one time", count=True, minimum=0)
_g_g = Variable("g_g", "layers, or buckets, of whole gradients held at one time", count=True, minimum=0)
_T = Variable("T", "tokens of a rank in a micro-batch", count=True, minimum=1)
_rho = Variable("rho", "FLOP/s of a rank", "FLOP/s", latex=r"\rho")
_omega = Variable("omega", "bytes that a rank sends in a second", "byte/s", latex=r"\omega")
_alpha = Variable("alpha", "latency of a message", "s", latex=r"\alpha")
_V = Variable("V", "bytes that a rank sends in a step", "bytes")
_n_m = Variable("n_m", "messages that a rank sends in a step, one after the other", count=True, minimum=0)
_t_x = Variable("t_x", "time of a step's communication", "s")
_t_c = Variable("t_c", "time of a step's computation", "s")
_c_w = Variable("c_w", "all-gathers of all weights in a step", count=True)
_c_g = Variable("c_g", "reduce-scatters or all-gathers of all gradients in a step", count=True)
_q_w = Variable("q_w", "bits of a weight on the wire", "bits", count=True, minimum=1)
_q_g = Variable("q_g", "bits of a gradient on the wire", "bits", count=True, minimum=1)

Psi, N, M, b_w, b_g, K = (variable.symbol for variable in (_Psi, _N, _M, _b_w, _b_g, _K))
n_w, n_g, n_o, C, A, G, L, u = (variable.symbol for variable in (_n_w, _n_g, _n_o, _C, _A, _G, _L, _u))
Psi_l, Psi_b, g_w, g_g, T, rho = (variable.symbol for variable in (_Psi_l, _Psi_b, _g_w, _g_g, _T, _rho))
omega, alpha, V, n_m, t_x, t_c = (variable.symbol for variable in (_omega, _alpha, _V, _n_m, _t_x, _t_c))
c_w, c_g, q_w, q_g = (variable.symbol for variable in (_c_w, _c_g, _q_w, _q_g))

_bytes = (_b_w, _b_g, _K)
_some_bytes = (b_w + b_g + K > 0, "b_w, b_g and K must not all be 0")
_whole_groups = (Eq(Mod(N, G), 0), "N must be a multiple of G")
_room = (A <= C, "A must be at most C")
_fast = (omega > 0, "omega must be more than 0")
_computes = (rho > 0, "rho must be more than 0")

_ZERO = "arXiv:1910.02054 (Rajbhandari et al. 2019)"
_OFFLOAD = "arXiv:2101.06840 (Ren et al. 2021)"
_ZEROPP = "arXiv:2306.10209 (Wang et al. 2023)"
_MICS = "arXiv:2205.00119 (Zhang et al. 2022)"
_DERIVED = "derived in chapter 5"


@dataclass(frozen=True)
class Recipe:
    """What a system keeps for one parameter, in bytes: `b_w` weight, `b_g` gradient, `K` optimizer state."""

    name: str
    b_w: int
    b_g: int
    K: int
    source: str

    @property
    def sizes(self):
        """The three sizes by their symbols, as the formulas take them."""
        return {"b_w": self.b_w, "b_g": self.b_g, "K": self.K}

    @property
    def total(self):
        """Bytes a parameter on one rank, when nothing is sharded."""
        return self.b_w + self.b_g + self.K


_MEGATRON = "NVIDIA/Megatron-LM, docs/user-guide/features/dist_optimizer.md"
_RECIPES = (
    # K: master weight 4, Adam's two moments 4 + 4.
    Recipe("mixed precision", 2, 2, 12, f"{_ZERO}, section 3.1"),
    Recipe("fp32 gradients", 2, 4, 12, f"{_MEGATRON}: bf16 parameters, fp32 gradients"),
    # K: the gradient once more, in fp32, then as above.
    Recipe("16-bit and fp32 gradients", 2, 2, 16, f"{_MEGATRON}: fp16 parameters, fp16 gradients"),
    # K: the two moments; the weight is its own master.
    Recipe("fp32 throughout", 4, 4, 8, f"{_MEGATRON}: fp32 parameters, fp32 gradients"),
    # K: master weight 4, moments 1 + 1. The constants of each block of a moment, about 0.002 bytes, are left out.
    Recipe("8-bit Adam", 2, 2, 6, "arXiv:2110.02861 (Dettmers et al. 2021), for the moments"),
)


def recipes():
    """Return the recipes as a dict of `Recipe`s by name.

    >>> recipes()["mixed precision"].sizes
    {'b_w': 2, 'b_g': 2, 'K': 12}
    """
    return {recipe.name: recipe for recipe in _RECIPES}


# Model states of one rank. The first holds for any sharding; the stages are its cases.

state_bytes = Formula(
    "state_bytes", b_w * Psi / n_w + b_g * Psi / n_g + K * Psi / n_o, "bytes",
    (_Psi, *_bytes, _n_w, _n_g, _n_o), _DERIVED, result=r"m_{\mathrm{states}}",
)


def _at_stage(stage):
    shared = {n_o: N if stage >= 1 else 1, n_g: N if stage >= 2 else 1, n_w: N if stage >= 3 else 1}
    return state_bytes.expression.subs(shared)


state_bytes_stage0 = Formula("state_bytes_stage0", _at_stage(0), "bytes", (_Psi, *_bytes), f"{_ZERO}, section 3.1",
                             result="m_0")
state_bytes_stage1 = Formula("state_bytes_stage1", _at_stage(1), "bytes", (_Psi, *_bytes, _N),
                             f"{_ZERO}, section 5.1", result="m_1")
state_bytes_stage2 = Formula("state_bytes_stage2", _at_stage(2), "bytes", (_Psi, *_bytes, _N),
                             f"{_ZERO}, section 5.2", result="m_2")
state_bytes_stage3 = Formula("state_bytes_stage3", _at_stage(3), "bytes", (_Psi, *_bytes, _N),
                             f"{_ZERO}, section 5.3", result="m_3")
STATE_BYTES = (state_bytes_stage0, state_bytes_stage1, state_bytes_stage2, state_bytes_stage3)

# What a library allocates: equal shards, the last one padded. DeepSpeed and FSDP pad further, to aligned sizes.
shard_elements = Formula("shard_elements", ceiling(Psi / N), "elements", (_Psi, _N), _DERIVED, result="s")
padding_elements = Formula("padding_elements", N * ceiling(Psi / N) - Psi, "elements", (_Psi, _N), _DERIVED,
                           result=r"\mathrm{padding}")

# How many times less than stage 0, and what that tends to as N grows.

reduction_stage1 = Formula("reduction_stage1", (b_w + b_g + K) / (b_w + b_g + K / N), "1", (*_bytes, _N),
                           f"{_ZERO}, section 5.1", requires=(_some_bytes,), result=r"\frac{m_0}{m_1}")
reduction_stage2 = Formula("reduction_stage2", (b_w + b_g + K) / (b_w + (b_g + K) / N), "1", (*_bytes, _N),
                           f"{_ZERO}, section 5.2", requires=(_some_bytes,), result=r"\frac{m_0}{m_2}")
reduction_stage3 = Formula("reduction_stage3", N, "1", (_N,), f"{_ZERO}, section 5.3", result=r"\frac{m_0}{m_3}")
reduction_limit_stage1 = Formula(
    "reduction_limit_stage1", (b_w + b_g + K) / (b_w + b_g), "1", _bytes, f"{_ZERO}, section 5.1",
    requires=((b_w + b_g > 0, "b_w + b_g must be more than 0"),), result=r"\lim_{N \to \infty} \frac{m_0}{m_1}",
)
reduction_limit_stage2 = Formula(
    "reduction_limit_stage2", (b_w + b_g + K) / b_w, "1", _bytes, f"{_ZERO}, section 5.2",
    requires=((b_w > 0, "b_w must be more than 0"),), result=r"\lim_{N \to \infty} \frac{m_0}{m_2}",
)

# The largest model whose states, with A bytes of everything else, fit one card.

largest_model = Formula(
    "largest_model", floor((C - A) / (state_bytes.expression / Psi).expand()), "parameters",
    (_C, _A, *_bytes, _n_w, _n_g, _n_o), _DERIVED, requires=(_room, _some_bytes), result=r"\Psi_{\max}",
)
# The fewest ranks on which a model fits: of stage 3, and of stages 1 and 2, where what is not shared must fit first.
ranks_needed_stage1 = Formula(
    "ranks_needed_stage1", Max(1, ceiling(K * Psi / (C - A - (b_w + b_g) * Psi))), "ranks", (_Psi, *_bytes, _C, _A),
    _DERIVED, requires=(((b_w + b_g) * Psi < C - A, "C - A must be more than (b_w + b_g) Psi: no N is enough"),),
    result=r"N_{\min}",
)
ranks_needed_stage2 = Formula(
    "ranks_needed_stage2", Max(1, ceiling((b_g + K) * Psi / (C - A - b_w * Psi))), "ranks", (_Psi, *_bytes, _C, _A),
    _DERIVED, requires=((b_w * Psi < C - A, "C - A must be more than b_w Psi: no N is enough"),),
    result=r"N_{\min}",
)
ranks_needed_stage3 = Formula(
    "ranks_needed_stage3", Max(1, ceiling((b_w + b_g + K) * Psi / (C - A))), "ranks", (_Psi, *_bytes, _C, _A),
    _DERIVED, requires=((C > A, "C must be more than A"),), result=r"N_{\min}",
)

# Elements that one rank sends in a step. One ring reduce-scatter or all-gather of Psi elements sends Psi (N-1)/N; an
# all-reduce is both.

one_pass_elements = Formula("one_pass_elements", Psi * (N - 1) / N, "elements", (_Psi, _N), f"{_ZERO}, section 7.1",
                            result=r"S_{\mathrm{pass}}")
_pass = one_pass_elements.expression

# Stages 0 and 1 add micro-batches up where they are and reduce once. Stage 2 holds no whole gradient, so it reduces
# each micro-batch. Stage 3 gathers the weights for each forward and again for each backward.
elements_stage0 = Formula("elements_stage0", 2 * _pass, "elements", (_Psi, _N), f"{_ZERO}, section 7.1", result="S_0")
elements_stage1 = Formula("elements_stage1", 2 * _pass, "elements", (_Psi, _N), f"{_ZERO}, section 7.2.1",
                          result="S_1")
elements_stage2 = Formula("elements_stage2", (M + 1) * _pass, "elements", (_Psi, _N, _M),
                          f"{_ZERO}, section 7.2.1, for M = 1", result="S_2")
elements_stage3 = Formula("elements_stage3", 3 * M * _pass, "elements", (_Psi, _N, _M),
                          f"{_ZERO}, section 7.2.2, for M = 1", result="S_3")
ELEMENTS = (elements_stage0, elements_stage1, elements_stage2, elements_stage3)
# Reducing each micro-batch where once would do: plain data parallelism, and stage 1.
elements_stage0_each = Formula("elements_stage0_each", 2 * M * _pass, "elements", (_Psi, _N, _M), _DERIVED,
                               result=r"S_{0,\mathrm{each}}")
elements_stage1_each = Formula("elements_stage1_each", (M + 1) * _pass, "elements", (_Psi, _N, _M), _DERIVED,
                               result=r"S_{1,\mathrm{each}}")
# Stage 3 that keeps the gathered weights from the forward to the backward (FSDP's reshard_after_forward=False).
elements_stage3_kept = Formula("elements_stage3_kept", 2 * M * _pass, "elements", (_Psi, _N, _M), _DERIVED,
                               result=r"S_{3,\mathrm{kept}}")
# Stage 3 that reduces once a step, and so holds a whole gradient meanwhile.
elements_stage3_once = Formula("elements_stage3_once", (2 * M + 1) * _pass, "elements", (_Psi, _N, _M), _DERIVED,
                               result=r"S_{3,\mathrm{once}}")
# PyTorch's DistributedDataParallel with ZeroRedundancyOptimizer: all-reduce, then each rank broadcasts its shard. The
# mean over the ranks, which is each rank's own in a ring broadcast but for the shards' order.
elements_ddp_zero_optimizer = Formula("elements_ddp_zero_optimizer", 3 * _pass, "elements", (_Psi, _N), _DERIVED,
                                      result=r"S_{\mathrm{DDP+ZRO}}")
stage3_over_stage0 = Formula("stage3_over_stage0", elements_stage3.expression / elements_stage0.expression, "1",
                             (_M,), f"{_ZERO}, section 7.2.2, for M = 1", result=r"\frac{S_3}{S_0}")

# In bytes: weights travel with b_w bytes, gradients with b_g. c_w and c_g are the passes that the stage makes.
sent_bytes = Formula("sent_bytes", (c_w * b_w + c_g * b_g) * _pass, "bytes", (_Psi, _N, _b_w, _b_g, _c_w, _c_g),
                     _DERIVED, result="V")

# Messages, one after the other: a ring of N ranks has N - 1 steps, for each bucket of gradients or layer of weights.

messages_stage0 = Formula("messages_stage0", 2 * u * (N - 1), "messages", (_N, _u), _DERIVED, result="n_m")
messages_stage2 = Formula("messages_stage2", (M + 1) * u * (N - 1), "messages", (_N, _M, _u), _DERIVED, result="n_m")
messages_stage3 = Formula("messages_stage3", 3 * M * L * (N - 1), "messages", (_N, _M, _L), _DERIVED, result="n_m")
buckets = Formula("buckets", ceiling(Psi / Psi_b), "buckets", (_Psi, _Psi_b), _DERIVED, result="u")

# Hybrid sharding: groups of G ranks share one copy of everything, and N/G groups are replicas of each other.

hybrid_elements_inside = Formula("hybrid_elements_inside", 3 * M * Psi * (G - 1) / G, "elements", (_Psi, _G, _M),
                                 _MICS, result=r"S_{\mathrm{inside}}")
# Between the groups: an all-reduce of the rank's shard, once a step.
hybrid_elements_between = Formula(
    "hybrid_elements_between", 2 * (Psi / G) * (1 - G / N), "elements", (_Psi, _G, _N), _MICS,
    requires=(_whole_groups,), result=r"S_{\mathrm{between}}",
)

# ZeRO++, between nodes, in elements of 16 bits: quantized weights (qwZ) in the forward, no gather in the backward (a
# second copy of the weights is shared inside a node: hpZ), quantized gradients (qgZ). The paper leaves (N-1)/N out.
zeropp_elements = Formula("zeropp_elements", Psi * (q_w + q_g) / 16, "elements of 16 bits", (_Psi, _q_w, _q_g),
                          f"{_ZEROPP}, abstract, for 8 and 4 bits", result=r"S_{\mathrm{ZeRO{+}{+}}}")
zeropp_secondary_bytes = Formula("zeropp_secondary_bytes", b_w * Psi / G, "bytes", (_Psi, _b_w, _G),
                                 f"{_ZEROPP}: hpZ", result=r"m_{\mathrm{hpZ}}")

# Offload: bytes that one rank moves between its GPU and the host in a step, both ways together. With the optimizer on
# the host, gradients go down after each micro-batch and new weights come up once; with the weights there too, they
# come up for each forward and each backward.
offload_bytes_optimizer = Formula("offload_bytes_optimizer", (M * b_g + b_w) * Psi / N, "bytes",
                                  (_Psi, _N, _M, _b_w, _b_g), f"{_OFFLOAD}, for M = 1",
                                  result=r"V_{\mathrm{host}}")
offload_bytes_weights = Formula("offload_bytes_weights", M * (2 * b_w + b_g) * Psi / N, "bytes",
                                (_Psi, _N, _M, _b_w, _b_g), _DERIVED, result=r"V_{\mathrm{host}}")

# Peak beside resident: gathered layers, and gradients that are not reduced yet.

peak_bytes_stage3 = Formula(
    "peak_bytes_stage3", _at_stage(3) + (g_w * b_w + g_g * b_g) * Psi_l, "bytes",
    (_Psi, *_bytes, _N, _Psi_l, _g_w, _g_g), _DERIVED, result=r"m_{3,\mathrm{peak}}",
)
peak_bytes_stage2 = Formula(
    "peak_bytes_stage2", _at_stage(2) + g_g * b_g * Psi_b, "bytes", (_Psi, *_bytes, _N, _Psi_b, _g_g), _DERIVED,
    result=r"m_{2,\mathrm{peak}}",
)

# Time.

compute_time = Formula(
    "compute_time", 6 * Psi * T * M / rho, "s", (_Psi, _T, _M, _rho),
    "arXiv:2001.08361 (Kaplan et al. 2020), section 2.1", requires=(_computes,), result="t_c",
)
communication_time = Formula("communication_time", V / omega + n_m * alpha, "s", (_V, _omega, _n_m, _alpha), _DERIVED,
                             requires=(_fast,), result="t_x")
step_time_apart = Formula("step_time_apart", t_c + t_x, "s", (_t_c, _t_x), _DERIVED, result="t")
step_time_hidden = Formula("step_time_hidden", Max(t_c, t_x), "s", (_t_c, _t_x), _DERIVED, result="t")
# Tokens of a rank in a micro-batch at which stage 3's communication takes as long as the computation. Psi cancels.
tokens_to_hide_stage3 = Formula(
    "tokens_to_hide_stage3", (2 * b_w + b_g) * rho * (N - 1) / (6 * N * omega), "tokens",
    (_b_w, _b_g, _rho, _omega, _N), _DERIVED, requires=(_fast,), result=r"T_{\mathrm{hide}}",
)

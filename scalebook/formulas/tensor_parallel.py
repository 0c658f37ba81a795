"""Chapter 3: tensor parallelism. t ranks share every layer of a GPT-like transformer of L layers.

A layer is attention with a heads and a feed-forward network of width 4h with GELU, as in the papers: biases, LayerNorm,
dropout. b samples of s positions are one micro-batch. Elements sent are those of one rank, by ring algorithms; what the
ranks send at the same time is not added up. Activations are in bytes at 16 bits with one-byte dropout masks.
"""

from sympy import Eq, Max, Mod, Or, ceiling, floor

from scalebook.formulas.core import Formula, Variable

_b = Variable("b", "samples in a micro-batch", count=True, minimum=1)
_s = Variable("s", "positions in a sample", count=True, minimum=1)
_h = Variable("h", "width of the model", count=True, minimum=1)
_a = Variable("a", "query heads", count=True, minimum=1)
_G = Variable("G", "key and value heads", count=True, minimum=1)
_L = Variable("L", "layers of the model", count=True, minimum=1)
_M = Variable("M", "micro-batches in a step", count=True, minimum=1)
_V = Variable("V", "rows of the vocabulary", count=True, minimum=1)
_t = Variable("t", "tensor-parallel ranks", count=True, minimum=1)
_r = Variable("r", "tensor-parallel rank, from 0", count=True, minimum=0)
_w = Variable("w", "rows or columns of a matrix", count=True, minimum=1)
_m = Variable("m", "what a rank's rows of the vocabulary are padded to a multiple of", count=True, minimum=1,
              latex=r"m_{\mathrm{pad}}")
_n = Variable("n", "all-reduces of a layer", count=True, minimum=0)
_epsilon = Variable("epsilon", "bytes of an element", unit="byte", latex=r"\epsilon")
_rho = Variable("rho", "FLOP/s of a rank", unit="FLOP/s", latex=r"\rho")
_omega = Variable("omega", "bytes that a rank sends in a second", unit="byte/s", latex=r"\omega")

b, s, h, a, G, L, M, V = (variable.symbol for variable in (_b, _s, _h, _a, _G, _L, _M, _V))
t, r, w, m, n = (variable.symbol for variable in (_t, _r, _w, _m, _n))
epsilon, rho, omega = (variable.symbol for variable in (_epsilon, _rho, _omega))

_sends = (omega > 0, "omega must be above 0")
_computes = (rho > 0, "rho must be above 0")
_weighs = (epsilon > 0, "epsilon must be above 0")
_heads_split = (Eq(Mod(a, t), 0), "a must be a multiple of t")
_width_split = (Eq(Mod(h, t), 0), "h must be a multiple of t")
_vocabulary_split = (Eq(Mod(V, t), 0), "V must be a multiple of t")
_sequence_split = (Eq(Mod(s, t), 0), "s must be a multiple of t")
_is_rank = (r <= t - 1, "r must be at most t - 1")
_slices = (Eq(Mod(w, t), 0), "w must be a multiple of t")
_grouped = (Or(Eq(Mod(G, t), 0), Eq(Mod(t, G), 0)), "G must be a multiple of t, or t of G")

_SHOEYBI = "arXiv:1909.08053 (Shoeybi et al. 2019), section 3"
_NARAYANAN = "arXiv:2104.04473 (Narayanan et al. 2021)"
_KORTHIKANTI = "arXiv:2205.05198 (Korthikanti et al. 2022)"
_ZERO = "arXiv:1910.02054 (Rajbhandari et al. 2019), section 8"
_DERIVED = "derived in chapter 3"


def _named(name, expression, unit, symbols, source, result, *requires):
    return Formula(name, expression, unit, symbols, source, requires=requires, result=result)


# What a rank sends. Two all-reduces forward, two backward; computing a layer again repeats those of its forward.

FORWARD, BACKWARD = 2, 2
ALL_REDUCES = {"none": FORWARD + BACKWARD, "selective": FORWARD + BACKWARD, "full": 2 * FORWARD + BACKWARD}

_tensor = b * s * h
_ring = (t - 1) / t  # what a rank sends of a tensor in an all-gather or a reduce-scatter
_link = (_b, _s, _h, _t)
all_reduce_elements = _named(
    "all_reduce_elements", 2 * _tensor * _ring, "elements", _link, f"{_NARAYANAN}, section 3.2",
    r"n_{\mathrm{all\text{-}reduce}}")
elements_of_all_reduces = _named(
    "elements_of_all_reduces", n * all_reduce_elements.expression, "elements", (_n, *_link),
    f"{_NARAYANAN}, section 3.2", r"n_{\mathrm{layer}}")
layer_elements_forward = _named(
    "layer_elements_forward", FORWARD * all_reduce_elements.expression, "elements", _link,
    f"{_NARAYANAN}, section 3.2", r"n_{\mathrm{forward}}")
layer_elements = _named(
    "layer_elements", ALL_REDUCES["none"] * all_reduce_elements.expression, "elements", _link,
    f"{_NARAYANAN}, section 3.2", r"n_{\mathrm{layer}}")
layer_elements_recomputed = _named(
    "layer_elements_recomputed", ALL_REDUCES["full"] * all_reduce_elements.expression, "elements", _link,
    f"{_ZERO}: six all-reduces", r"n_{\mathrm{layer,\,recomputed}}")
# Sequence parallelism: each all-reduce becomes an all-gather and a reduce-scatter, of (t - 1)/t each.
layer_elements_sequence_parallel = _named(
    "layer_elements_sequence_parallel", (4 + 4) * _tensor * _ring, "elements", _link, f"{_KORTHIKANTI}, section 4.2.2",
    r"n_{\mathrm{layer,\,SP}}", _sequence_split)
# The input of both column-parallel pairs is stored in parts and gathered once more for the weights' gradients.
gathered_again_elements = _named(
    "gathered_again_elements", 2 * _tensor * _ring, "elements", _link, f"{_KORTHIKANTI}, section 4.2.2",
    r"n_{\mathrm{again}}", _sequence_split)
# Once a micro-batch, outside the layers: the embedding's sum forward, and the gradient of the head's input.
ends_elements = _named(
    "ends_elements", 2 * all_reduce_elements.expression, "elements", _link,
    f"{_SHOEYBI}: one g at the embedding, one f at the head", r"n_{\mathrm{ends}}")
# The loss: three numbers a position (the largest logit, the sum of exponentials, the target's logit), not V of them.
cross_entropy_elements = _named(
    "cross_entropy_elements", 3 * 2 * b * s * _ring, "elements", (_b, _s, _t),
    "Megatron-LM, megatron/core/tensor_parallel/cross_entropy.py", r"n_{\mathrm{loss}}")
gathered_logits_elements = _named(
    "gathered_logits_elements", b * s * V * _ring, "elements", (_b, _s, _V, _t), _SHOEYBI, r"n_{\mathrm{logits}}")
step_bytes = _named(
    "step_bytes", epsilon * L * M * elements_of_all_reduces.expression, "byte", (_epsilon, _L, _M, _n, *_link),
    _DERIVED, r"B_{\mathrm{step}}")
# Forward. Column then row: one sum, h wide. Row then column: the sum comes before GELU and is 4h wide, and the columns
# of the second product, h wide, are gathered.
mlp_elements = _named(
    "mlp_elements", all_reduce_elements.expression, "elements", _link, _SHOEYBI, r"n_{\mathrm{MLP}}")
mlp_elements_row_first = _named(
    "mlp_elements_row_first", (2 * 4 + 1) * _tensor * _ring, "elements", _link, _DERIVED,
    r"n_{\mathrm{MLP,\,row\ first}}")

# FLOPs of one layer, all ranks together. The second term is the two products of attention, over all s^2 pairs.

_work = (_b, _s, _h)
flops_forward = _named(
    "flops_forward", 24 * b * s * h**2 * (1 + s / (6 * h)), "FLOP", _work, f"{_NARAYANAN}, appendix",
    r"C_{\mathrm{forward}}")
flops_layer = _named("flops_layer", 3 * flops_forward.expression, "FLOP", _work, f"{_NARAYANAN}, appendix",
                     r"C_{\mathrm{layer}}")
flops_recomputed = _named(
    "flops_recomputed", 4 * flops_forward.expression, "FLOP", _work, f"{_NARAYANAN}, equation 3, one layer",
    r"C_{\mathrm{layer,\,recomputed}}")
# The scores and what attention takes of the values once more.
flops_selective = _named(
    "flops_selective", flops_layer.expression + 4 * b * s**2 * h, "FLOP", _work, _DERIVED,
    r"C_{\mathrm{layer,\,selective}}")
_model = (_b, _s, _h, _L, _V)
flops_model = _named(
    "flops_model", 72 * b * L * s * h**2 * (1 + s / (6 * h) + V / (12 * h * L)), "FLOP", _model,
    f"{_KORTHIKANTI}, appendix A, and three quarters of equation 3 of arXiv:2104.04473, but for the head",
    r"C_{\mathrm{model}}")
flops_model_recomputed = _named(
    "flops_model_recomputed", 96 * b * s * L * h**2 * (1 + s / (6 * h) + V / (16 * L * h)), "FLOP", _model,
    f"{_NARAYANAN}, equation 3", r"C_{\mathrm{model,\,recomputed}}")

# Time. rho is what a rank reaches, omega one direction of its link; nothing overlaps, and latency is left out.

_race = (_b, _s, _h, _t, _epsilon, _rho, _omega)
compute_time = _named(
    "compute_time", flops_layer.expression / (t * rho), "s", (_b, _s, _h, _t, _rho), _DERIVED, r"t_{\mathrm{compute}}",
    _computes)
communication_time = _named(
    "communication_time", epsilon * layer_elements.expression / omega, "s", (_b, _s, _h, _t, _epsilon, _omega),
    _DERIVED, r"t_{\mathrm{communication}}", _sends)
_ratio = (_s, _h, _t, _epsilon, _rho, _omega)
# Forward and backward; no b, since both grow with it.
communication_over_compute = _named(
    "communication_over_compute", (t - 1) * epsilon * rho / (omega * (9 * h + 3 * s / 2)), "1", _ratio, _DERIVED,
    r"\frac{t_{\mathrm{communication}}}{t_{\mathrm{compute}}}", _sends)
communication_over_compute_forward = _named(
    "communication_over_compute_forward", (t - 1) * epsilon * rho / (omega * (6 * h + s)), "1", _ratio, _DERIVED,
    r"\left(\frac{t_{\mathrm{communication}}}{t_{\mathrm{compute}}}\right)_{\mathrm{forward}}", _sends)
communication_over_compute_recomputed = _named(
    "communication_over_compute_recomputed", (t - 1) * epsilon * rho / (omega * (8 * h + 4 * s / 3)), "1", _ratio,
    _DERIVED, r"\left(\frac{t_{\mathrm{communication}}}{t_{\mathrm{compute}}}\right)_{\mathrm{recomputed}}", _sends)
# The share of its time that a rank computes, in a layer that waits for every message.
computing_share = _named(
    "computing_share", 1 / (1 + communication_over_compute.expression), "1", _ratio, _DERIVED,
    r"\frac{t_{\mathrm{compute}}}{t_{\mathrm{layer}}}", _sends)
balanced_ranks = _named(
    "balanced_ranks", 1 + omega * (9 * h + 3 * s / 2) / (epsilon * rho), "ranks", (_s, _h, _epsilon, _rho, _omega),
    _DERIVED, r"t_{\mathrm{balanced}}", _computes, _weighs)
# Zero: even the narrowest layer computes for longer, by its attention.
balanced_width = _named(
    "balanced_width", Max(0, (t - 1) * epsilon * rho / (9 * omega) - s / 6), "elements",
    (_s, _t, _epsilon, _rho, _omega), _DERIVED, r"h_{\mathrm{balanced}}", _sends)

# Parameters of the papers' model: learned positions, tied embedding, biases, GELU, LayerNorm.

_shape = (_L, _h, _V, _s)
parameters_narayanan = _named(
    "parameters_narayanan", 12 * L * h**2 * (1 + 13 / (12 * h) + (V + s) / (12 * L * h)), "parameters", _shape,
    f"{_NARAYANAN}, equation 2", "P")
# With the last LayerNorm, which equation 2 leaves out.
parameters_gpt = _named(
    "parameters_gpt", L * (12 * h**2 + 13 * h) + (V + s) * h + 2 * h, "parameters", _shape,
    f"{_SHOEYBI} and Table 1; counted in chapter 3", r"P_{\mathrm{GPT}}")
# Split: matrices, biases of the column-parallel ones, the token embedding. Whole on each: everything else.
parameters_per_rank = _named(
    "parameters_per_rank", L * (12 * h**2 / t + 7 * h / t + 6 * h) + V * h / t + s * h + 2 * h, "parameters",
    (*_shape, _t), _SHOEYBI, r"P_{\mathrm{rank}}", _width_split, _vocabulary_split)
padded_vocabulary = _named(
    "padded_vocabulary", ceiling(V / (m * t)) * m * t, "rows", (_V, _m, _t),
    "Megatron-LM, --make-vocab-size-divisible-by (m = 128)", r"V_{\mathrm{padded}}")

# Slices of a matrix, and heads.

slice_width = _named("slice_width", w / t, "rows or columns", (_w, _t), _SHOEYBI, r"w_{\mathrm{rank}}", _slices)
slice_start = _named("slice_start", r * w / t, "rows or columns", (_w, _t, _r), _SHOEYBI, r"w_{\mathrm{first}}(r)",
                     _slices, _is_rank)
heads_per_rank = _named("heads_per_rank", a / t, "heads", (_a, _t), _SHOEYBI, r"a_{\mathrm{rank}}", _heads_split)
# Fewer key and value heads than ranks: ranks with consecutive numbers hold copies.
kv_heads_per_rank = _named("kv_heads_per_rank", Max(1, G / t), "heads", (_G, _t), _DERIVED, r"G_{\mathrm{rank}}",
                           _grouped)
first_kv_head = _named("first_kv_head", floor(r * G / t), "heads", (_G, _t, _r), _DERIVED, r"G_{\mathrm{first}}(r)",
                       _grouped, _is_rank)
kv_copies = _named("kv_copies", Max(1, t / G), "ranks", (_G, _t), _DERIVED, r"c_{\mathrm{KV}}", _grouped)

# Activations that one layer keeps for its backward, bytes of one rank. Parts first. What every rank of a group keeps
# whole: the inputs of both LayerNorms and of both column-parallel products, 8sbh, and two dropout masks, 2sbh. Queries,
# keys, values and the projection's input. The inputs of GELU and of the last product. Of the scores: the softmax, its
# dropout mask and what dropout leaves.

activations_outside = _named("activations_outside", 10 * s * b * h, "byte", _work, f"{_KORTHIKANTI}, section 4.2.1",
                             r"A_{\mathrm{outside}}")
activations_attention = _named(
    "activations_attention", 8 * s * b * h, "byte", _work, f"{_KORTHIKANTI}, section 4.1", r"A_{\mathrm{attention}}")
activations_mlp = _named("activations_mlp", 16 * s * b * h, "byte", _work, f"{_KORTHIKANTI}, section 4.1",
                         r"A_{\mathrm{MLP}}")
activations_scores = _named("activations_scores", 5 * a * s**2 * b, "byte", (_a, _s, _b),
                            f"{_KORTHIKANTI}, section 4.1", r"A_{\mathrm{scores}}")
activations_input = _named("activations_input", 2 * s * b * h, "byte", _work, f"{_KORTHIKANTI}, section 5",
                           r"A_{\mathrm{input}}")
# The sums, as printed.
_sbh = s * b * h
_kept, _kept_split = (_s, _b, _h, _a), (_s, _b, _h, _a, _t)
_in_parts = (_s, _b, _h, _t)
activations = _named("activations", _sbh * (34 + 5 * a * s / h), "byte", _kept, f"{_KORTHIKANTI}, equation 1",
                     r"A_{\mathrm{all}}")
activations_tensor_parallel = _named(
    "activations_tensor_parallel", _sbh * (10 + 24 / t + 5 * a * s / (h * t)), "byte", _kept_split,
    f"{_KORTHIKANTI}, equation 2", r"A_{\mathrm{TP}}", _heads_split)
activations_sequence_parallel = _named(
    "activations_sequence_parallel", _sbh / t * (34 + 5 * a * s / h), "byte", _kept_split,
    f"{_KORTHIKANTI}, equation 4", r"A_{\mathrm{TP+SP}}", _heads_split, _sequence_split)
activations_selective = _named(
    "activations_selective", _sbh * (10 + 24 / t), "byte", _in_parts, f"{_KORTHIKANTI}, Table 2",
    r"A_{\mathrm{TP,\,selective}}", _width_split)
activations_sequence_parallel_selective = _named(
    "activations_sequence_parallel_selective", 34 * _sbh / t, "byte", _in_parts,
    f"{_KORTHIKANTI}, equation 6, one layer", r"A_{\mathrm{TP+SP,\,selective}}", _width_split, _sequence_split)
activations_full = _named(
    "activations_full", activations_input.expression, "byte", _work, f"{_KORTHIKANTI}, Table 2", r"A_{\mathrm{full}}")
# Mean and inverse deviation of each position, in both LayerNorms. The papers leave it out; measured in chapter 3.
layer_norm_statistics = _named(
    "layer_norm_statistics", 4 * epsilon * s * b, "byte", (_epsilon, _s, _b), "measured in chapter 3",
    r"A_{\mathrm{statistics}}")

"""Chapter 6: a whole plan. t tensor-, n_c context-, N data-parallel and n_e expert ranks, P stages of v chunks.

Nothing is derived anew that an earlier chapter has: states and their traffic are chapter 5's, what tensor parallelism
sends is chapter 3's, schedules are chapter 4's, FLOPs and all-to-all are chapter 1's. New is what a general layer
needs: a layer is described by numbers that follow from its shape (Psi_t, Psi_c, Psi_x, Psi_m parameters; A_o, A_i,
A_s bytes of activations), so that the papers' GPT is one case and Llama another. `scalebook.planner.sizes` finds them.

Memory is of one rank. Times are of one micro-batch on a stage of ell layers, until they are put together to a step.
"""

from sympy import Eq, Max, Min, Piecewise

from scalebook.formulas import moe, pipeline, tensor_parallel, zero
from scalebook.formulas.core import Formula, Variable

_known = {variable.name: variable for formula in (
    zero.state_bytes, zero.sent_bytes, zero.step_time_hidden, zero.elements_stage3,
    tensor_parallel.elements_of_all_reduces, tensor_parallel.activations, tensor_parallel.kv_heads_per_rank,
    tensor_parallel.compute_time, tensor_parallel.communication_time,
    tensor_parallel.flops_model, pipeline.makespan_interleaved_send, pipeline.peak_in_flight_1f1b)
    for variable in formula.symbols}
_new = {variable.name: variable for variable in (
    Variable("n_c", "context-parallel ranks: those that share a sequence", count=True, minimum=1),
    Variable("n_e", "expert-parallel ranks: those that share the experts of a layer", count=True, minimum=1),
    Variable("n_s", "ranks that share the positions between tensor-parallel products (1: no sequence parallelism)",
             count=True, minimum=1),
    Variable("Z", "stage of ZeRO", count=True, minimum=0),
    Variable("ell", "layers on a stage", count=True, minimum=0, latex=r"\ell"),
    Variable("ell_P", "layers on the last stage", count=True, minimum=0, latex=r"\ell_P"),
    Variable("d_h", "width of a head", minimum=0),
    Variable("kappa", "keys that a query meets", minimum=1, latex=r"\kappa"),
    Variable("Psi_t", "parameters of a layer that tensor-parallel ranks split, but for routed experts",
             latex=r"\Psi_t"),
    Variable("Psi_c", "parameters of a layer that each tensor-parallel rank has whole", latex=r"\Psi_c"),
    Variable("Psi_x", "parameters of a layer's routed experts", latex=r"\Psi_x"),
    Variable("Psi_m", "parameters of a layer that multiply for a token", latex=r"\Psi_m"),
    Variable("Psi_V", "parameters of a stage in embedding and head, split by tensor-parallel ranks", latex=r"\Psi_V"),
    Variable("Psi_o", "parameters of a stage outside its layers that each rank has whole", latex=r"\Psi_o"),
    Variable("A_o", "bytes of activations of a token that tensor parallelism leaves whole", "byte"),
    Variable("A_i", "bytes of activations of a token that tensor parallelism splits", "byte"),
    Variable("A_s", "bytes of a token's attention score of one head and key", "byte"),
    Variable("k_x", "experts that a token is sent to", count=True, minimum=0),
    Variable("f_x", "share of the layers that have experts"),
    Variable("x_m", "forwards of the matrices that are computed again", latex=r"x_m"),
    Variable("x_s", "forwards of the attention scores that are computed again", latex=r"x_s"),
    Variable("beta", "bytes that a rank moves to or from its memory in a second", "byte/s", latex=r"\beta"),
    Variable("k_n", "ranks of a group in one node", count=True, minimum=1),
    Variable("omega_n", "bytes that a rank sends inside its node in a second, one way", "byte/s",
             latex=r"\omega_{\mathrm{node}}"),
    Variable("omega_p", "bytes that a rank sends to another node in a second: its share of the node's ports", "byte/s",
             latex=r"\omega_{\mathrm{port}}"),
    Variable("omega_x", "bytes that a rank sends in a second to ranks with copies of the same experts", "byte/s",
             latex=r"\omega_{\mathrm{x}}"),
    Variable("t_l", "time of a layer's forward and backward of one micro-batch", "s", latex=r"t_\ell"),
    Variable("t_m", "time of a stage's forward and backward of one micro-batch, but for the head", "s"),
    Variable("t_h", "time of the head, forward and backward of one micro-batch", "s"),
    Variable("t_d", "time that messages between data-parallel ranks can hide behind", "s"),
    Variable("g_p", "GPUs", count=True, minimum=1, latex="g"),
    Variable("rho_p", "FLOP/s that the GPU is sold for", "FLOP/s", latex=r"\rho_{\mathrm{peak}}"),
    Variable("C_s", "FLOPs of a step", "FLOP", latex="C"),
    Variable("T_s", "time of a step", "s", latex="T"),
    Variable("B_s", "samples in a step", count=True, minimum=1, latex="B"),
    Variable("T_n", "tokens to train on", minimum=0, latex=r"T_{\mathrm{all}}"),
)}
_variables = {**_known, **_new}
_ = {name: variable.symbol for name, variable in _variables.items()}
b, s, h, a, G, V, t, L, M, P, v, N = (_[name] for name in ("b", "s", "h", "a", "G", "V", "t", "L", "M", "P", "v", "N"))
Psi, b_w, b_g, K, n_w, n_g, n_o = (_[name] for name in ("Psi", "b_w", "b_g", "K", "n_w", "n_g", "n_o"))
rho, omega, epsilon, r, t_s = (_[name] for name in ("rho", "omega", "epsilon", "r", "t_s"))
Psi_l = zero.Psi_l
(n_c, n_e, n_s, Z, ell, ell_P, d_h, kappa, Psi_t, Psi_c, Psi_x, Psi_m, Psi_V, Psi_o, A_o, A_i, A_s, k_x, f_x, x_m, x_s,
 beta, k_n, omega_n, omega_p, omega_x, t_l, t_m, t_h, t_d, g_p, rho_p, C_s, T_s, B_s, T_n) = (_[name] for name in _new)

_DERIVED = "derived in chapter 6"
_KORTHIKANTI = "arXiv:2205.05198 (Korthikanti et al. 2022)"
_NARAYANAN = "arXiv:2104.04473 (Narayanan et al. 2021)"
_ZERO = "chapter 5; arXiv:1910.02054, section 5"


_rates = {rate: (rate > 0, f"{rate} must be above 0") for rate in (rho, omega, omega_x, beta, rho_p, T_s)}


def _named(name, expression, unit, source, result):
    """A formula whose variables are those that its expression uses, in the order of the lists above. Rates divide."""
    used = expression.free_symbols
    requires = tuple(words for rate, words in _rates.items() if rate in used)
    symbols = tuple(variable for variable in _variables.values() if variable.symbol in used)
    return Formula(name, expression, unit, symbols, source, requires=requires, result=result)


# Parameters of one rank.

rank_parameters = _named("rank_parameters", ell * (Psi_t / t + Psi_c) + Psi_V / t + Psi_o, "parameters", _DERIVED,
                         r"\Psi_{\mathrm{rank}}")
rank_expert_parameters = _named("rank_expert_parameters", ell * Psi_x / (t * n_e), "parameters", _DERIVED,
                                r"\Psi_{\mathrm{rank,\,experts}}")
_dense, _routed = rank_parameters.expression, rank_expert_parameters.expression
_copies, _expert_copies = N * n_c, N * n_c / n_e  # ranks that hold the same parameters

# Model states, by what they are. Each is one term of chapter 5's formula, for dense and for expert parameters.


def _states(alone, shared, stage):
    """One term of chapter 5's states: `alone` stays, and `shared` are all copies from `stage` on."""
    one = zero.state_bytes.expression.subs({size: 0 for size in (b_w, b_g, K) if size != alone})
    return sum(one.subs({Psi: part, shared: Piecewise((group, stage <= Z), (1, True))})
               for part, group in ((_dense, _copies), (_routed, _expert_copies)))


weight_bytes = _named("weight_bytes", _states(b_w, n_w, 3), "byte", _ZERO, r"m_{\mathrm{weights}}")
gradient_bytes = _named("gradient_bytes", _states(b_g, n_g, 2), "byte", _ZERO, r"m_{\mathrm{gradients}}")
optimizer_bytes = _named("optimizer_bytes", _states(K, n_o, 1), "byte", _ZERO, r"m_{\mathrm{optimizer}}")
# What stage 3 has whole for a while: two layers' weights, the one at work and the next, and one layer's gradients. The
# tables of the vocabulary are a layer too.
gathered_parameters = _named("gathered_parameters", Max(Psi_t / t + Psi_c + Psi_x / (t * n_e), Psi_V / t), "parameters",
                             _DERIVED, r"\Psi_\ell")
_gathered = zero.peak_bytes_stage3.expression.subs({Psi: 0, zero.g_w: 2, zero.g_g: 1})
gathered_bytes = _named(
    "gathered_bytes", Piecewise((_gathered.subs(Psi_l, gathered_parameters.expression), Z >= 3), (0, True)), "byte",
    "chapter 5: peak beside resident", r"m_{\mathrm{gathered}}")

# Activations of one layer and micro-batch that a rank keeps for the backward, by technique. Sequence parallelism is
# n_s = t. With fused attention no scores are stored: A_s = 0.

_tokens = b * s / n_c
kept_none = _named("kept_none", _tokens * (A_o / n_s + (A_i + A_s * a * s) / t), "byte",
                   f"{_KORTHIKANTI}, Table 2, for a general layer", "A")
kept_selective = _named("kept_selective", _tokens * (A_o / n_s + A_i / t), "byte",
                        f"{_KORTHIKANTI}, Table 2, for a general layer", r"A_{\mathrm{selective}}")
kept_full = _named("kept_full", tensor_parallel.activations_input.expression / (n_c * n_s), "byte",
                   f"{_KORTHIKANTI}, Table 2", r"A_{\mathrm{full}}")
KEPT = {"none": kept_none, "selective": kept_selective, "full": kept_full}
# What is computed again lives for one layer at a time.
working_selective = _named("working_selective", _tokens * A_s * a * s / t, "byte", _DERIVED,
                           r"A_{\mathrm{working}}")
working_full = _named("working_full", kept_none.expression, "byte", _DERIVED, r"A_{\mathrm{working}}")
in_flight = _named(
    "in_flight", Piecewise((pipeline.peak_in_flight_1f1b.expression, Eq(v, 1)),
                           (pipeline.peak_in_flight_interleaved.expression, True)),
    "micro-batches of a whole stage", "chapter 4: 1F1B, and interleaved with chunks", "n(r)")
# Logits in fp32, and the inputs of the last norm and of the head.
head_activations = _named("head_activations", _tokens * (4 * h / n_s + 4 * V / t), "byte",
                          f"{_KORTHIKANTI}, section 4.3", r"A_{\mathrm{head}}")

# FLOPs: forward, one layer, one micro-batch, all ranks together; then of a step. kappa is s when a kernel computes all
# pairs and masks afterwards, (s + 1)/2 when it skips what the causal mask hides.

matrix_flops = _named(
    "matrix_flops", b * s * moe.flops_forward.expression.subs(moe.N, Psi_m), "FLOP", "chapter 1",
    r"C_{\mathrm{matrices}}")
score_flops = _named(
    "score_flops", b * s * moe.score_flops.expression.subs({moe.L: 1, moe.s: kappa, moe.H: a, moe.d_h: d_h}), "FLOP",
    "chapter 1", r"C_{\mathrm{scores}}")
head_flops = _named(
    "head_flops", b * s * moe.flops_forward.expression.subs(moe.N, V * h), "FLOP", "chapter 1", r"C_{\mathrm{head}}")
_layer = matrix_flops.expression + score_flops.expression
# Forward once, backward twice.
model_flops = _named(
    "model_flops", 3 * (L * _layer + head_flops.expression).subs(b, B_s), "FLOP",
    f"{_KORTHIKANTI}, appendix A, for a general layer", r"C_{\mathrm{model}}")
hardware_flops = _named(
    "hardware_flops", model_flops.expression
    + L * (x_m * matrix_flops.expression + x_s * score_flops.expression).subs(b, B_s), "FLOP",
    f"{_NARAYANAN}, equation 3, for a general layer", r"C_{\mathrm{hardware}}")

# A ring through k_n ranks of each node, as NCCL lays several at once: each leaves the node by another rank's port, so
# together they have k_n ports; inside the node all of it passes over the links between neighbours.
ring_bandwidth = _named("ring_bandwidth", Min(omega_n, k_n * omega_p), "byte/s", _DERIVED, r"\omega")

# Times of one micro-batch on a stage. rho, omega and beta are what is reached, not what is sold.

compute_time = _named("compute_time", 3 * ell * _layer / (t * n_c * rho), "s", _DERIVED, r"t_{\mathrm{compute}}")
recompute_time = _named(
    "recompute_time", ell * (x_m * matrix_flops.expression + x_s * score_flops.expression) / (t * n_c * rho), "s",
    _DERIVED, r"t_{\mathrm{recompute}}")
# Norms, activations, dropout, softmax: limited by memory. What a forward keeps it has written once and read once; the
# backward reads it again, and writes a gradient as large.
elementwise_time = _named(
    "elementwise_time", 2 * ell * ((2 + x_m) * kept_selective.expression + (2 + x_s) * working_selective.expression)
    / beta, "s", _DERIVED, r"t_{\mathrm{elementwise}}")
tensor_time = _named(
    "tensor_time", ell * epsilon * tensor_parallel.elements_of_all_reduces.expression.subs(s, s / n_c) / omega, "s",
    "chapter 3", r"t_{\mathrm{TP}}")
_keys_and_values = 2 * b * s * tensor_parallel.kv_heads_per_rank.expression * d_h
# Keys and values of the whole sequence are gathered forward and again backward, and their gradients reduced.
context_time = _named(
    "context_time", ell * epsilon * (3 + x_m)
    * zero.one_pass_elements.expression.subs({Psi: _keys_and_values, N: n_c}) / omega, "s", _DERIVED,
    r"t_{\mathrm{CP}}")
_sent_to_experts = moe.all_to_all_elements.expression.subs({moe.K: k_x, moe.T: _tokens / n_s, moe.D: h, moe.R: n_e})
# There and back in the forward, and so in the backward.
expert_time = _named("expert_time", f_x * ell * epsilon * (2 + x_m) * _sent_to_experts / omega, "s", "chapter 1",
                     r"t_{\mathrm{EP}}")
head_time = _named("head_time", 3 * head_flops.expression / (t * n_c * rho), "s", _DERIVED, r"t_{\mathrm{head}}")
# Each tensor-parallel rank sends its part of what crosses, and the parts are gathered on the other side.
send_time = _named(
    "send_time", epsilon * pipeline.boundary_elements.expression / (n_c * t * omega), "s",
    f"{_NARAYANAN}, section 4.1", "t_s")

# Times of a step. t_m is the sum of the times above but for head and sends.

ideal_time = _named("ideal_time", M * t_m, "s", "chapter 4", r"t_{\mathrm{ideal}}")
_both = {pipeline.t_f: t_m / 3, pipeline.t_b: 2 * t_m / 3}
_bubble = (pipeline.makespan_interleaved.expression - pipeline.ideal_time.expression).subs(_both).factor()
bubble_time = _named("bubble_time", _bubble, "s", "chapter 4: 1F1B (v = 1) and interleaved", r"t_{\mathrm{bubble}}")
# The last stage, with the head, when it is the slowest: the others wait for it, micro-batch by micro-batch.
imbalance_time = _named(
    "imbalance_time", M * Max(0, t_h - (ell - ell_P) * t_l), "s", "chapter 4: one slow stage, the last",
    r"t_{\mathrm{head}}")
_sends = (pipeline.makespan_1f1b_send.expression - pipeline.makespan.expression).expand()
_hidden_sends = (pipeline.makespan_interleaved_send.expression - pipeline.makespan_interleaved.expression).expand()
pipeline_time_1f1b = _named("pipeline_time_1f1b", _sends, "s", "chapter 4", r"t_{\mathrm{PP}}")
pipeline_time_interleaved = _named("pipeline_time_interleaved", _hidden_sends, "s", "chapter 4", r"t_{\mathrm{PP}}")
# A program that waits for each message: activations on and gradients back, for every chunk.
pipeline_time_waiting = _named(
    "pipeline_time_waiting", M * pipeline.sent_per_device.expression.subs(b * s * h, 1).subs({b: 1, s: 1, h: 1}) * t_s,
    "s", f"{_NARAYANAN}, section 2.2.2", r"t_{\mathrm{PP}}")


def _data(c_w, c_g):
    sent = zero.sent_bytes.expression.subs({zero.c_w: c_w, zero.c_g: c_g})
    return sum(sent.subs({Psi: part, N: group}, simultaneous=True) / rate
               for part, group, rate in ((_dense, _copies, omega), (_routed, _expert_copies, omega_x)))


# Passes over weights and gradients, by stage: all-reduce; reduce-scatter and all-gather; a reduce-scatter for each
# micro-batch; two gathers and a reduce-scatter for each.
PASSES = {0: (0, 2), 1: (1, 1), 2: (1, M), 3: (2 * M, M)}
data_time = _named(
    "data_time", Piecewise(*((_data(*passes), Eq(Z, stage)) for stage, passes in PASSES.items() if stage < 3),
                           (_data(*PASSES[3]), True)),
    "s", "chapter 5", "t_x")
# They hide behind one micro-batch (gradients behind the last backward, weights behind the first forward), behind all
# backwards in stage 2, behind everything in stage 3.
hiding_time = _named("hiding_time", Piecewise((M * t_m, Z >= 3), (M * 2 * t_m / 3, Z >= 2), (t_m, True)),
                     "s", _DERIVED, "t_d")
exposed_time = _named("exposed_time", zero.step_time_hidden.expression.subs(
    {zero.t_c: t_d}) - t_d, "s", "chapter 5", r"t_{\mathrm{DP}}")
# Gradients and weights move once, optimizer states are read and written.
optimizer_time = _named(
    "optimizer_time", _states(K, n_o, 1).subs(K, b_g + b_w + 2 * K) / beta, "s", _DERIVED, r"t_{\mathrm{optimizer}}")

# What a run is judged by.

utilization = _named("utilization", C_s / (T_s * g_p * rho_p), "1",
                     "arXiv:2204.02311 (Chowdhery et al. 2022), appendix B: MFU with model FLOPs, HFU with hardware's",
                     r"\mathrm{MFU}")
training_days = _named(
    "training_days", T_n * C_s / (B_s * s * g_p * rho) / 86400, "day", f"{_NARAYANAN}, section 5.1, without rounding",
    r"\mathrm{days}")
# Selective recomputation as the paper counts it: three forwards of the scores more, where one is computed again.
hardware_flops_korthikanti = _named(
    "hardware_flops_korthikanti",
    tensor_parallel.flops_model.expression + 12 * b * L * s**2 * h, "FLOP", f"{_KORTHIKANTI}, appendix A",
    r"C_{\mathrm{hardware}}")

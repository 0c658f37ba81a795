"""Chapter 4: pipelines. P stages, M micro-batches, v chunks a device, rank r counted from 0.

t_f is the time of the forward and t_b that of the whole backward of one micro-batch on one whole stage; t_w is the
part of t_b that computes the weight gradient. So the letter B of the zero-bubble paper is t_b - t_w. The unit of
time is the reader's: seconds, or forwards.

Each formula was compared with the event simulation of `scalebook.pipeline` over all small pipelines. Where it holds
only for some times or some M, `requires` says so; outside, the simulation can differ.
"""

from sympy import And, Eq, Max, Min, Mod, ceiling

from scalebook.formulas.core import Formula, Variable

_P = Variable("P", "pipeline stages, one a device", count=True, minimum=1)
_M = Variable("M", "micro-batches in a step", count=True, minimum=1)
_v = Variable("v", "chunks of the model on a device", count=True, minimum=1)
_r = Variable("r", "rank of the stage, from 0", count=True, minimum=0)
_t_f = Variable("t_f", "time of a forward on a stage", "time")
_t_b = Variable("t_b", "time of a whole backward on a stage", "time")
_t_w = Variable("t_w", "part of t_b that computes the weight gradient", "time")
_t_s = Variable("t_s", "time to send an activation or a gradient to the next stage", "time")
_T_f = Variable("T_f", "time of a forward on the slow stage", "time")
_T_b = Variable("T_b", "time of a whole backward on the slow stage", "time")
_x = Variable("x", "bubble overhead: idle time over ideal time", latex=r"\beta")
_y = Variable("y", "bubble share: idle time over total time", latex=r"\sigma")
_percent = Variable("p", "bubble allowed, in percent", "%")
_L = Variable("L", "layers of the model", count=True, minimum=1)

P, M, v, r = _P.symbol, _M.symbol, _v.symbol, _r.symbol
t_f, t_b, t_w, t_s, T_f, T_b = (variable.symbol for variable in (_t_f, _t_b, _t_w, _t_s, _T_f, _T_b))
x, y, percent, L = _x.symbol, _y.symbol, _percent.symbol, _L.symbol

_rank_is_a_stage = (r <= P - 1, "r must be at most P - 1")
_groups = (Eq(Mod(M, P), 0), "M must be a multiple of P")
_enough = (M >= P, "M must be at least P")
_twice_enough = (M >= 2 * P - 1, "M must be at least 2P - 1")
_part = (t_w <= t_b, "t_w is a part of t_b, so at most t_b")
_short_weight = (And(t_w <= t_f, 2 * t_w <= t_b), "t_w must be at most t_f and at most t_b - t_w")
_weight_under_forward = (t_w <= t_f, "t_w must be at most t_f")
_thirds = (And(Eq(t_f, t_w), Eq(t_b, 2 * t_w)), "t_f, t_b - t_w and t_w must be equal")
_slower = (And(T_f >= t_f, T_b >= t_b), "the slow stage must be the slowest: T_f at least t_f, T_b at least t_b")

_NARAYANAN = "arXiv:2104.04473 (Narayanan et al. 2021)"
_GPIPE = "arXiv:1811.06965 (Huang et al. 2019), section 2.3"
_ZERO_BUBBLE = "arXiv:2401.10241 (Qi et al. 2023)"
_DEEPSEEK = "arXiv:2412.19437 (DeepSeek-V3), table 2"
_KORTHIKANTI = "arXiv:2205.05198 (Korthikanti et al. 2022), section 4.2.3"
_DERIVED = "this book, chapter 4; its tests compare it with the simulation or with its derivation"

# Time of one step, GPipe and 1F1B.

ideal_time = Formula(
    "ideal_time", M * (t_f + t_b), "time", (_M, _t_f, _t_b), f"{_NARAYANAN}, section 2.2.1",
    result=r"t_{\mathrm{ideal}}",
)
# GPipe and 1F1B alike. No schedule with one chunk a device that keeps the backward whole is faster.
makespan = Formula(
    "makespan", (M + P - 1) * (t_f + t_b), "time", (_P, _M, _t_f, _t_b), f"{_NARAYANAN}, section 2.2.1",
    result=r"t_{\mathrm{total}}",
)
idle_time = Formula(
    "idle_time", (P - 1) * (t_f + t_b), "time", (_P, _t_f, _t_b), f"{_NARAYANAN}, section 2.2.1",
    result=r"t_{\mathrm{idle}}",
)
bubble_overhead = Formula(
    "bubble_overhead", (P - 1) / M, "1", (_P, _M), f"{_NARAYANAN}, section 2.2.1",
    result=r"\frac{t_{\mathrm{idle}}}{t_{\mathrm{ideal}}}",
)
bubble_share = Formula(
    "bubble_share", (P - 1) / (M + P - 1), "1", (_P, _M), _GPIPE,
    result=r"\frac{t_{\mathrm{idle}}}{t_{\mathrm{total}}}",
)
share_from_overhead = Formula("share_from_overhead", x / (1 + x), "1", (_x,), _DERIVED, result=r"\sigma")
overhead_from_share = Formula(
    "overhead_from_share", y / (1 - y), "1", (_y,), _DERIVED, requires=((y < 1, "y must be less than 1"),),
    result=r"\beta",
)

# The fewest micro-batches with a bubble no larger than allowed. P - 1 is whole, so it leaves the ceiling.

microbatches_for_overhead = Formula(
    "microbatches_for_overhead", Max(1, ceiling((P - 1) / x)), "micro-batches", (_P, _x), _DERIVED,
    requires=((x > 0, "x must be more than 0: no M makes the bubble zero"),), result=r"M_{\min}",
)
microbatches_for_share = Formula(
    "microbatches_for_share", Max(1, ceiling((P - 1) / y) - P + 1), "micro-batches", (_P, _y), _DERIVED,
    requires=((y > 0, "y must be more than 0: no M makes the bubble zero"),), result=r"M_{\min}",
)
# The same in percent: the browser then divides whole numbers, and no rounding pushes the ceiling up by one.
microbatches_for_overhead_percent = Formula(
    "microbatches_for_overhead_percent", microbatches_for_overhead.expression.subs(x, percent / 100),
    "micro-batches", (_P, _percent), _DERIVED, requires=((percent > 0, "p must be more than 0"),),
    result=r"M_{\min}",
)
microbatches_for_share_percent = Formula(
    "microbatches_for_share_percent", microbatches_for_share.expression.subs(y, percent / 100),
    "micro-batches", (_P, _percent), _DERIVED, requires=((percent > 0, "p must be more than 0"),),
    result=r"M_{\min}",
)

# Warm-up and activations in flight.

warmup_1f1b = Formula(
    "warmup_1f1b", Min(M, P - r - 1), "forwards", (_P, _M, _r), f"{_NARAYANAN}, section 2.2.1",
    requires=(_rank_is_a_stage,), result=r"n_{\mathrm{warm}}(r)",
)
peak_in_flight_gpipe = Formula("peak_in_flight_gpipe", M, "micro-batches", (_M,), f"{_NARAYANAN}, section 2.2.1",
                               result="n(r)")
peak_in_flight_1f1b = Formula(
    "peak_in_flight_1f1b", Min(M, P - r), "micro-batches", (_P, _M, _r), _KORTHIKANTI,
    requires=(_rank_is_a_stage,), result="n(r)",
)
_whole_layers = (Eq(Mod(L, P), 0), "L must be a multiple of P")
layers_held_gpipe = Formula(
    "layers_held_gpipe", M * L / P, "layers' activations of a micro-batch", (_P, _M, _L), _DERIVED,
    requires=(_whole_layers,), result=r"A(r)",
)
layers_held_1f1b = Formula(
    "layers_held_1f1b", Min(M, P - r) * L / P, "layers' activations of a micro-batch", (_P, _M, _r, _L), _KORTHIKANTI,
    requires=(_rank_is_a_stage, _whole_layers), result=r"A(r)",
)

# GPipe that keeps only what enters each stage and computes one stage's activations again when it needs them. The
# unit is what enters a stage for one sample, s h numbers. The paper's O(N + (L/K) (N/M)) is this sum with K = P.

_N = Variable("N", "samples in a step", count=True, minimum=1)
_a = Variable("a", "activations of one layer, over what enters a stage", latex=r"\lambda")
N, a = _N.symbol, _a.symbol
_whole_microbatches = (Eq(Mod(N, M), 0), "N must be a multiple of M")
memory_gpipe = Formula(
    "memory_gpipe", N * a * L / P, "stage inputs of a sample", (_P, _N, _L, _a), _DERIVED,
    requires=(_whole_layers,), result="A",
)
memory_gpipe_rematerialised = Formula(
    "memory_gpipe_rematerialised", N + (N / M) * (L / P) * a, "stage inputs of a sample", (_P, _M, _N, _L, _a), _GPIPE,
    requires=(_whole_layers, _whole_microbatches), result="A",
)

# Interleaving: v chunks on each device.

makespan_interleaved = Formula(
    "makespan_interleaved", (M + (P - 1) / v) * (t_f + t_b), "time", (_P, _M, _v, _t_f, _t_b),
    f"{_NARAYANAN}, section 2.2.2", requires=(_groups,), result=r"t_{\mathrm{total}}",
)
bubble_overhead_interleaved = Formula(
    "bubble_overhead_interleaved", (P - 1) / (v * M), "1", (_P, _M, _v), f"{_NARAYANAN}, section 2.2.2",
    requires=(_groups,), result=r"\frac{t_{\mathrm{idle}}}{t_{\mathrm{ideal}}}",
)
bubble_share_interleaved = Formula(
    "bubble_share_interleaved", (P - 1) / (v * M + P - 1), "1", (_P, _M, _v), _DERIVED,
    requires=(_groups,), result=r"\frac{t_{\mathrm{idle}}}{t_{\mathrm{total}}}",
)
warmup_interleaved = Formula(
    "warmup_interleaved", Min(M * v, 2 * (P - r - 1) + (v - 1) * P), "forwards of a chunk", (_P, _M, _v, _r),
    "Megatron-LM, pipeline_parallel/schedules.py; the order of arXiv:2104.04473, figure 4",
    requires=(_rank_is_a_stage, _groups), result=r"n_{\mathrm{warm}}(r)",
)
peak_in_flight_interleaved = Formula(
    "peak_in_flight_interleaved", Min(M, P + (P - 1 - 2 * r) / v), "micro-batches of a whole stage", (_P, _M, _v, _r),
    f"{_KORTHIKANTI} (r = 0, M at least 2P)", requires=(_rank_is_a_stage, _groups), result="n(r)",
)
memory_ratio_interleaved = Formula(
    "memory_ratio_interleaved", 1 + (P - 1) / (P * v), "1", (_P, _v), _KORTHIKANTI,
    result=r"\frac{n_{\mathrm{interleaved}}(0)}{n_{\mathrm{1F1B}}(0)}",
)

# What crosses from device to device. b samples in a micro-batch, s positions, h wide.

_b = Variable("b", "samples in a micro-batch", count=True, minimum=1)
_s = Variable("s", "positions in a sample", count=True, minimum=1)
_h = Variable("h", "width of the model", count=True, minimum=1)
boundary_elements = Formula("boundary_elements", _b.symbol * _s.symbol * _h.symbol, "elements", (_b, _s, _h),
                            f"{_NARAYANAN}, section 3.2", result=r"n_{\mathrm{boundary}}")
sent_per_device = Formula(
    "sent_per_device", 2 * v * boundary_elements.expression, "elements a micro-batch", (_v, _b, _s, _h),
    f"{_NARAYANAN}, sections 2.2.2 and 3.2: activations on, gradients back, by a device with neighbours on both sides",
    result=r"n_{\mathrm{sent}}",
)

# What no schedule with forwards in one direction, first device to last, can beat.

makespan_lower_bound = Formula(
    "makespan_lower_bound", (P - 1) * t_f / v + M * (t_f + t_b), "time", (_P, _M, _v, _t_f, _t_b),
    "derived in chapter 4: the last device waits for its first input, then has all its work to do",
    result=r"t_{\min}",
)

# Backwards split in two (zero bubble).

makespan_zb_h1 = Formula(
    "makespan_zb_h1", (M + P - 1) * (t_f + t_b - t_w) + Max(1, M - P + 1) * t_w, "time",
    (_P, _M, _t_f, _t_b, _t_w), _DERIVED, requires=(_short_weight,), result=r"t_{\mathrm{total}}",
)
idle_time_zb_h1 = Formula(
    "idle_time_zb_h1", (P - 1) * (t_f + t_b - 2 * t_w), "time", (_P, _M, _t_f, _t_b, _t_w),
    f"{_ZERO_BUBBLE}, section 2.3, table 2; {_DEEPSEEK} (ZB1P)", requires=(_short_weight, _enough),
    result=r"t_{\mathrm{idle}}",
)
# For any times. The paper's bubble is the last of the three; the others take over when t_w is longer than a forward or
# than the gradient of the input, and then a longer t_w no longer helps.
idle_time_zb_h1_any_times = Formula(
    "idle_time_zb_h1_any_times", (P - 1) * Max(t_f, t_b - t_w, t_f + t_b - 2 * t_w), "time",
    (_P, _M, _t_f, _t_b, _t_w), _DERIVED, requires=(_part, _enough), result=r"t_{\mathrm{idle}}",
)
peak_in_flight_zb_h1 = Formula(
    "peak_in_flight_zb_h1", Min(M, P), "micro-batches", (_P, _M), f"{_ZERO_BUBBLE}, section 2.3", result="n(r)",
)
# Idle time within a device's span, from its first operation to its last; the makespan still holds a fill of the line.
span_idle_time_zb_h2 = Formula(
    "span_idle_time_zb_h2", (P - 1) * Max(0, t_f + t_b - 3 * t_w), "time", (_P, _M, _t_f, _t_b, _t_w),
    f"{_ZERO_BUBBLE}, section 2.3, table 2", requires=(_part, _weight_under_forward, _twice_enough),
    result=r"t_{\mathrm{idle\ in\ span}}",
)
span_idle_time_zb_h2_any_times = Formula(
    "span_idle_time_zb_h2_any_times", (P - 1) * Max(0, t_b - t_w - t_f, t_f + t_b - 3 * t_w), "time",
    (_P, _M, _t_f, _t_b, _t_w), _DERIVED, requires=(_part, _twice_enough), result=r"t_{\mathrm{idle\ in\ span}}",
)
makespan_zb_h2 = Formula(
    "makespan_zb_h2", M * (t_f + t_b) + (P - 1) * Max(t_f, t_b - t_w - t_f, t_f + t_b - 3 * t_w), "time",
    (_P, _M, _t_f, _t_b, _t_w), _DERIVED, requires=(_part, _twice_enough), result=r"t_{\mathrm{total}}",
)
peak_in_flight_zb_h2 = Formula(
    "peak_in_flight_zb_h2", Min(M, 2 * P - 1), "micro-batches", (_P, _M), f"{_ZERO_BUBBLE}, section 2.3",
    result="n(r)",
)
span_idle_time_zb_v = Formula(
    "span_idle_time_zb_v", Max(0, 2 * P - 1 - M) * t_f / 2, "time", (_P, _M, _t_f, _t_b, _t_w),
    f"{_ZERO_BUBBLE}, section 6 (zero); with fewer than 2P - 1 micro-batches, derived in chapter 4",
    requires=(_thirds, _enough), result=r"t_{\mathrm{idle\ in\ span}}",
)
makespan_zb_v = Formula(
    "makespan_zb_v", M * (t_f + t_b) + (P - 1) * t_f / 2, "time", (_P, _M, _t_f, _t_b, _t_w), _DERIVED,
    requires=(_thirds, (M >= 2 * P - 2, "M must be at least 2P - 2")), result=r"t_{\mathrm{total}}",
)
peak_in_flight_zb_v = Formula(
    "peak_in_flight_zb_v", (Min(M, 2 * P - 1 - r) + Min(M, r + 1)) / 2, "micro-batches of a whole stage",
    (_P, _M, _r), f"{_ZERO_BUBBLE}, section 6 (P)", requires=(_rank_is_a_stage,), result="n(r)",
)

# The same bubbles in the letters of their papers, which differ in what B is.

_T_F = Variable("T_F", "forward", "time")
_T_B = Variable("T_B", "gradient of the input only", "time")
_T_W = Variable("T_W", "gradient of the weights", "time")
_F = Variable("F", "forward of a chunk", "time")
_B = Variable("B", "whole backward of a chunk, W included", "time")
_W = Variable("W", "gradient of the weights of a chunk", "time")
_FB = Variable("FB", "a forward and a backward of two micro-batches run as one, overlapped", "time", latex=r"F\&B")
idle_time_zb_h1_in_its_letters = Formula(
    "idle_time_zb_h1_in_its_letters", (P - 1) * (_T_F.symbol + _T_B.symbol - _T_W.symbol), "time",
    (_P, _T_F, _T_B, _T_W), f"{_ZERO_BUBBLE}, table 2",
    requires=((_T_W.symbol <= Min(_T_F.symbol, _T_B.symbol), "T_W must be at most T_F and T_B"),),
    result=r"t_{\mathrm{idle}}",
)
idle_time_zb1p = Formula(
    "idle_time_zb1p", (P - 1) * (_F.symbol + _B.symbol - 2 * _W.symbol), "time", (_P, _F, _B, _W), _DEEPSEEK,
    requires=((_W.symbol <= Min(_F.symbol, _B.symbol - _W.symbol), "W must be at most F and B - W"),),
    result=r"t_{\mathrm{idle}}",
)
# P counts DualPipe's own stages, two on a device of DualPipeV. The order of DualPipeV that PyTorch lists has exactly
# this idle time while F = B - W, W is at most F, and M is at least P; for other times the formula is an estimate.
idle_time_dualpipe = Formula(
    "idle_time_dualpipe", (P / 2 - 1) * (_FB.symbol + _B.symbol - 3 * _W.symbol), "time", (_P, _FB, _B, _W), _DEEPSEEK,
    requires=((Eq(Mod(P, 2), 0), "P must be even"),), result=r"t_{\mathrm{idle}}",
)
peak_in_flight_dualpipe = Formula(
    "peak_in_flight_dualpipe", P + 1, "micro-batches of one of the P stages", (_P,), _DEEPSEEK,
    requires=((Eq(Mod(P, 2), 0), "P must be even"),), result="n(r)",
)

# What the plain formula no longer says: time to send, and one slow stage.

makespan_gpipe_send = Formula(
    "makespan_gpipe_send", (M + P - 1) * (t_f + t_b) + 2 * (P - 1) * t_s, "time", (_P, _M, _t_f, _t_b, _t_s),
    _DERIVED, result=r"t_{\mathrm{total}}",
)
makespan_1f1b_send = Formula(
    "makespan_1f1b_send", (M + P - 1) * (t_f + t_b) + 2 * (M + P - 2 - ceiling((M - 1) / P)) * t_s, "time",
    (_P, _M, _t_f, _t_b, _t_s), _DERIVED, result=r"t_{\mathrm{total}}",
)
# Interleaving's doubled warm-up hides each send behind an operation on another micro-batch, all but one way there and
# back. (With v = 1 it hides sends up to half of t_f + t_b.)
makespan_interleaved_send = Formula(
    "makespan_interleaved_send", (M + (P - 1) / v) * (t_f + t_b) + 2 * (v * P - 1) * t_s, "time",
    (_P, _M, _v, _t_f, _t_b, _t_s), _DERIVED,
    requires=(_groups, (P > 1, "P must be at least 2: one device sends nothing"),
              (v * t_s <= Min(t_f, t_b), "t_s must be at most a chunk's forward and its backward")),
    result=r"t_{\mathrm{total}}",
)
makespan_gpipe_slow_stage = Formula(
    "makespan_gpipe_slow_stage", (P - 1) * (t_f + t_b) + M * (T_f + T_b), "time", (_P, _M, _t_f, _t_b, _T_f, _T_b),
    _DERIVED, requires=(_slower,), result=r"t_{\mathrm{total}}",
)
makespan_1f1b_slow_stage = Formula(
    "makespan_1f1b_slow_stage",
    r * (t_f + t_b) + M * (T_f + T_b) + (P - 1 - r) * (Max(0, t_f + t_b - T_f) + Max(0, t_f + t_b - T_b)), "time",
    (_P, _M, _r, _t_f, _t_b, _T_f, _T_b), f"{_DERIVED}; r is the slow stage",
    requires=(_rank_is_a_stage, _slower, (P - r <= M, "M must be at least P - r")), result=r"t_{\mathrm{total}}",
)

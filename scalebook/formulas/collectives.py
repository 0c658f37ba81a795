"""Front matter: what a collective costs. R ranks, S bytes, alpha seconds a step and omega bytes a second.

S is the whole array, as nccl-tests counts it: what every rank holds after an all-gather and before a reduce-scatter, an
all-reduce or an all-to-all. Every rank sends and receives at once, to and from one neighbour; omega is one direction.
Rings for the all-reduce and its two halves; for the broadcast a chain that passes k chunks on; for the all-to-all a
direct exchange, one partner a step. Adding numbers takes no time here.

Two of the sources by their numbers: Thakur, Rabenseifner and Gropp is doi 10.1177/1094342005051521;
Patarasuk, Faraj and Yuan is doi 10.1109/IPDPS.2006.1639364.
"""

from dataclasses import dataclass

from sympy import Max, Mod, Piecewise, sqrt

from scalebook.formulas.core import Formula, Variable

_R = Variable("R", "ranks", count=True, minimum=1)
_S = Variable("S", "bytes of the whole array", unit="byte")
_alpha = Variable("alpha", "latency of a step", unit="s", latex=r"\alpha")
_omega = Variable("omega", "bytes that a rank sends in a second", unit="byte/s", latex=r"\omega")
_k = Variable("k", "chunks of a broadcast", count=True, minimum=1)
_T = Variable("T", "time of the collective", unit="s")
_r = Variable("r", "a rank", count=True)
_c = Variable("c", "a part of the array, by number", count=True)
_s = Variable("s", "steps taken on the ring", count=True)

R, S, alpha, omega, k, T = (variable.symbol for variable in (_R, _S, _alpha, _omega, _k, _T))
r, c, s = (variable.symbol for variable in (_r, _c, _s))

_sends = (omega > 0, "omega must be above 0")
_late = (alpha > 0, "alpha must be above 0")
_takes_time = (T > 0, "T must be above 0")
_two = (R >= 2, "R must be at least 2: one rank sends nothing")

_PATARASUK = "Patarasuk and Yuan 2009, J. Parallel Distrib. Comput. 69(2), section 4"
_THAKUR = "Thakur, Rabenseifner and Gropp 2005, Int. J. High Perform. Comput. Appl. 19(1)"
_CHAIN = "Patarasuk, Faraj and Yuan 2006, IPDPS: pipelined broadcast"
_NCCL_TESTS = "NVIDIA/nccl-tests, doc/PERFORMANCE.md"
_DERIVED = "derived on the page on collectives"


def _named(name, expression, unit, symbols, source, result, *requires):
    return Formula(name, expression, unit, symbols, source, requires=requires, result=result)


# Steps, one after another, each with one message from every rank.

steps_all_gather = _named("steps_all_gather", R - 1, "steps", (_R,), _THAKUR, r"n_{\mathrm{all\text{-}gather}}")
steps_reduce_scatter = _named(
    "steps_reduce_scatter", R - 1, "steps", (_R,), _PATARASUK, r"n_{\mathrm{reduce\text{-}scatter}}")
steps_all_reduce = _named(
    "steps_all_reduce", steps_reduce_scatter.expression + steps_all_gather.expression, "steps", (_R,), _PATARASUK,
    r"n_{\mathrm{all\text{-}reduce}}")
steps_all_to_all = _named("steps_all_to_all", R - 1, "steps", (_R,), _THAKUR, r"n_{\mathrm{all\text{-}to\text{-}all}}")
# The last rank gets the first chunk after R - 1 steps, and then one chunk a step.
steps_broadcast = _named("steps_broadcast", R - 2 + k, "steps", (_R, _k), _CHAIN, r"n_{\mathrm{broadcast}}", _two)

# What has been added up on the way. Part c sets out at rank c + 1 and visits rank r in step (r - c - 1) mod R; it is
# whole where it ends, at rank c, and its copy reaches rank r R steps after its partial sum did.

_visit = Mod(r - c - 1, R)
_exists = ((r < R, "r must be below R: ranks are counted from 0"), (c < R, "c must be below R: there are R parts"))
ring_visit = _named("ring_visit", _visit, "steps", (_R, _r, _c), _DERIVED, r"\mathrm{visit}", *_exists)
ring_summed = _named(
    "ring_summed", Piecewise((R, s >= R + _visit), (_visit + 1, s >= _visit), (1, True)), "ranks", (_R, _r, _c, _s),
    _DERIVED, r"\mathrm{summed}", *_exists)

# Bytes that one rank sends. (The broadcast: every rank but the last.)

sent_all_gather = _named(
    "sent_all_gather", (R - 1) * S / R, "byte", (_R, _S), _THAKUR, r"B_{\mathrm{all\text{-}gather}}")
sent_reduce_scatter = _named(
    "sent_reduce_scatter", (R - 1) * S / R, "byte", (_R, _S), _PATARASUK, r"B_{\mathrm{reduce\text{-}scatter}}")
sent_all_reduce = _named(
    "sent_all_reduce", sent_reduce_scatter.expression + sent_all_gather.expression, "byte", (_R, _S), _PATARASUK,
    r"B_{\mathrm{all\text{-}reduce}}")
sent_all_to_all = _named(
    "sent_all_to_all", (R - 1) * S / R, "byte", (_R, _S), _THAKUR, r"B_{\mathrm{all\text{-}to\text{-}all}}")
sent_broadcast = _named("sent_broadcast", S, "byte", (_S,), _CHAIN, r"B_{\mathrm{broadcast}}")
sent_point_to_point = _named("sent_point_to_point", S, "byte", (_S,), _DERIVED, r"B_{\mathrm{send}}")

# Times: alpha for each step, and the bytes of the steps over the bandwidth.

_cost = (_R, _S, _alpha, _omega)
time_all_gather = _named(
    "time_all_gather", alpha * steps_all_gather.expression + sent_all_gather.expression / omega, "s", _cost, _THAKUR,
    r"T_{\mathrm{all\text{-}gather}}", _sends)
time_reduce_scatter = _named(
    "time_reduce_scatter", alpha * steps_reduce_scatter.expression + sent_reduce_scatter.expression / omega, "s", _cost,
    _PATARASUK, r"T_{\mathrm{reduce\text{-}scatter}}", _sends)
time_all_reduce = _named(
    "time_all_reduce", alpha * steps_all_reduce.expression + sent_all_reduce.expression / omega, "s", _cost,
    _PATARASUK, r"T_{\mathrm{all\text{-}reduce}}", _sends)
time_all_to_all = _named(
    "time_all_to_all", alpha * steps_all_to_all.expression + sent_all_to_all.expression / omega, "s", _cost, _THAKUR,
    r"T_{\mathrm{all\text{-}to\text{-}all}}", _sends)
time_broadcast = _named(
    "time_broadcast", steps_broadcast.expression * (alpha + S / (k * omega)), "s", (_R, _S, _k, _alpha, _omega),
    _CHAIN, r"T_{\mathrm{broadcast}}", _sends, _two)
time_point_to_point = _named(
    "time_point_to_point", alpha + S / omega, "s", (_S, _alpha, _omega), _THAKUR, r"T_{\mathrm{send}}", _sends)
# Many chunks cost latency, few make the chain wait. The least time lies between, at a number that need not be whole: no
# whole number of chunks is faster than `time_broadcast_best`.
best_chunks = _named(
    "best_chunks", Max(1, sqrt((R - 2) * S / (alpha * omega))), "chunks", _cost, _DERIVED, r"k_{\min T}",
    _sends, _late, _two)
time_broadcast_best = _named(
    "time_broadcast_best", time_broadcast.expression.subs(k, best_chunks.expression), "s", _cost, _DERIVED,
    r"T_{\mathrm{broadcast}}", _sends, _late, _two)

# Bandwidths as nccl-tests prints them. The bus bandwidth of a collective that is not held up by latency is omega.

algorithm_bandwidth = _named(
    "algorithm_bandwidth", S / T, "byte/s", (_S, _T), _NCCL_TESTS, r"\mathrm{algbw}", _takes_time)
bus_bandwidth_all_reduce = _named(
    "bus_bandwidth_all_reduce", 2 * (R - 1) / R * S / T, "byte/s", (_R, _S, _T), _NCCL_TESTS,
    r"\mathrm{busbw}_{\mathrm{all\text{-}reduce}}", _takes_time)
# Of an all-gather, a reduce-scatter and an all-to-all alike.
bus_bandwidth_all_gather = _named(
    "bus_bandwidth_all_gather", (R - 1) / R * S / T, "byte/s", (_R, _S, _T), _NCCL_TESTS,
    r"\mathrm{busbw}_{\mathrm{all\text{-}gather}}", _takes_time)
bus_bandwidth_broadcast = _named(
    "bus_bandwidth_broadcast", S / T, "byte/s", (_S, _T), _NCCL_TESTS, r"\mathrm{busbw}_{\mathrm{broadcast}}",
    _takes_time)
# What vendors print for a link.
two_way_bandwidth = _named(
    "two_way_bandwidth", 2 * omega, "byte/s", (_omega,), _DERIVED, r"\omega_{\mathrm{two\text{-}way}}")

# The size at which all steps' latency is as long as all transfer: half of the time is spent on each. It is the same for
# an all-reduce, for both of its halves and for an all-to-all, since latency and bytes double together.

balanced_size = _named(
    "balanced_size", R * alpha * omega, "byte", (_R, _alpha, _omega), _DERIVED, r"S_{\mathrm{balanced}}", _two)
balanced_size_point_to_point = _named(
    "balanced_size_point_to_point", alpha * omega, "byte", (_alpha, _omega), _DERIVED, r"S_{\mathrm{balanced}}")


@dataclass(frozen=True)
class Collective:
    """One collective's formulas: bytes `sent` by a rank, `time`, and `bus_bandwidth` from a time.

    >>> COLLECTIVES["all-reduce"].sent(R=4, S=1000)
    1500
    """

    sent: Formula
    time: Formula
    bus_bandwidth: Formula


COLLECTIVES = {
    "all-reduce": Collective(sent_all_reduce, time_all_reduce, bus_bandwidth_all_reduce),
    "all-gather": Collective(sent_all_gather, time_all_gather, bus_bandwidth_all_gather),
    "reduce-scatter": Collective(sent_reduce_scatter, time_reduce_scatter, bus_bandwidth_all_gather),
    "all-to-all": Collective(sent_all_to_all, time_all_to_all, bus_bandwidth_all_gather),
    "broadcast": Collective(sent_broadcast, time_broadcast_best, bus_bandwidth_broadcast),
    "point-to-point": Collective(sent_point_to_point, time_point_to_point, bus_bandwidth_broadcast),
}

"""Chapter 1: sparse mixtures of experts. E experts in each of L layers, K of them a token.

The parameter counts are those of a Mixtral-like model: grouped-query attention, gated experts in every layer, RMSNorm,
no biases, separate embedding and head. `scalebook.moe.parameters` counts any shape; both are tested to agree.
Symbols of sizes are numbers of elements; FLOPs are for one token.
"""

from sympy import Eq, Mod, ceiling, pi, sqrt

from scalebook.formulas.core import Formula, Variable

_E = Variable("E", "experts in a layer", count=True, minimum=1)
_K = Variable("K", "experts that a token is sent to", count=True, minimum=1)
_L = Variable("L", "layers", count=True, minimum=1)
_D = Variable("D", "width of the residual stream", count=True, minimum=1)
_F = Variable("F", "width of an expert", count=True, minimum=1)
_V = Variable("V", "rows of the vocabulary", count=True, minimum=1)
_H = Variable("H", "query heads", count=True, minimum=1)
_G = Variable("G", "key and value heads", count=True, minimum=1)
_d_h = Variable("d_h", "width of a head", count=True, minimum=1)
_s = Variable("s", "keys that a query meets", count=True, minimum=1)
_N = Variable("N", "parameters that multiply for a token", count=True, minimum=1)
_T = Variable("T", "tokens in a batch", count=True, minimum=0)
_R = Variable("R", "ranks that share the experts", count=True, minimum=1)
_c = Variable("c", "capacity factor")
_rho = Variable("rho", "FLOP/s of a rank", unit="FLOP/s", latex=r"\rho")
_omega = Variable("omega", "bytes that a rank sends in a second", unit="byte/s", latex=r"\omega")
_epsilon = Variable("epsilon", "bytes of an element", unit="byte", latex=r"\epsilon")
_alpha = Variable("alpha", "coefficient of the balancing loss", latex=r"\alpha")

E, K, L, D, F, V, H, G = (variable.symbol for variable in (_E, _K, _L, _D, _F, _V, _H, _G))
d_h, s, N, T, R, c, alpha = (variable.symbol for variable in (_d_h, _s, _N, _T, _R, _c, _alpha))
rho, omega, epsilon = (variable.symbol for variable in (_rho, _omega, _epsilon))

_chosen = (K <= E, "K must be at most E")
_shared_evenly = (Eq(Mod(E, R), 0), "E must be a multiple of R")

_MIXTRAL = "arXiv:2401.04088 (Jiang et al. 2024), section 2"
_KAPLAN = "arXiv:2001.08361 (Kaplan et al. 2020), section 2.1"
_SWITCH = "arXiv:2101.03961 (Fedus et al. 2021)"
_GSHARD = "arXiv:2006.16668 (Lepikhin et al. 2020)"
_DERIVED = "derived in chapter 1"

# Parameters.

_expert = 3 * D * F
_layer = 2 * D * d_h * (H + G) + D * E + 2 * D
_shape = (_V, _D, _L, _H, _G, _d_h, _E)

total_parameters = Formula(
    "total_parameters", 2 * V * D + L * (_layer + E * _expert) + D, "parameters", (*_shape, _F), _MIXTRAL,
    result=r"N_{\mathrm{total}}",
)
# Embedding and head both counted, as Mistral prints it.
active_parameters = Formula(
    "active_parameters", 2 * V * D + L * (_layer + K * _expert) + D, "parameters", (*_shape, _F, _K), _MIXTRAL,
    requires=(_chosen,), result=r"N_{\mathrm{active}}",
)
# The input embedding is a look-up.
multiplying_parameters = Formula(
    "multiplying_parameters", active_parameters.expression - V * D, "parameters", (*_shape, _F, _K), _DERIVED,
    requires=(_chosen,), result="N",
)
resting_expert_share = Formula(
    "resting_expert_share", 1 - K / E, "1", (_K, _E), _DERIVED, requires=(_chosen,), result=r"r_{\mathrm{experts}}",
)
resting_share = Formula(
    "resting_share", (total_parameters.expression - active_parameters.expression) / total_parameters.expression, "1",
    (*_shape, _F, _K), _DERIVED, requires=(_chosen,), result="r",
)

# FLOPs of one token.

flops_forward = Formula("flops_forward", 2 * N, "FLOP", (_N,), _KAPLAN, result=r"C_{\mathrm{forward}}")
flops_forward_backward = Formula(
    "flops_forward_backward", 6 * N, "FLOP", (_N,), _KAPLAN, result=r"C_{\mathrm{forward+backward}}",
)
# Forward. Under a causal mask the keys of a sequence of n tokens are (n + 1)/2 on the mean.
score_flops = Formula(
    "score_flops", 4 * L * s * H * d_h, "FLOP", (_L, _s, _H, _d_h), _DERIVED, result=r"C_{\mathrm{scores}}",
)
# Forward, one layer: grows with E, though slowly.
router_flops = Formula("router_flops", 2 * D * E, "FLOP", (_D, _E), _DERIVED, result=r"C_{\mathrm{router}}")

# Balancing losses when all loads and all mean probabilities are equal: f_i = K/E, P_i = 1/E. Not lower bounds.

balanced_loss = Formula(
    "balanced_loss", alpha * K, "1", (_alpha, _K), f"{_SWITCH}, equations 4-6, with f summing to K",
    result=r"\mathcal{L}_{\mathrm{balanced}}",
)
balanced_loss_gshard = Formula(
    "balanced_loss_gshard", 1 / E**2, "1", (_E,), f"{_GSHARD}, algorithm 1: first choices only, before its coefficient",
    result=r"\ell_{\mathrm{aux}}",
)

# Load.

# Tokens choose independently of each other, each a set of K different experts, every expert equally often.
distinct_experts = Formula(
    "distinct_experts", E * (1 - (1 - K / E)**T), "experts", (_E, _K, _T), _DERIVED, requires=(_chosen,),
    result=r"\mathbb{E}[\mathrm{distinct}]",
)
# Rounded up, so that perfect balance drops nothing at c = 1. Exact for integers and fractions.
expert_capacity = Formula(
    "expert_capacity", ceiling(c * K * T / E), "tokens", (_c, _K, _T, _E),
    f"{_SWITCH}, equation 3, for K choices; rounded up", requires=(_chosen,), result="C",
)
# Elements that one rank sends in one layer's forward, when its T tokens are spread evenly over all ranks: dispatch and
# combine, one copy for each choice, and what stays on the rank not counted.
all_to_all_elements = Formula(
    "all_to_all_elements", 2 * K * T * D * (R - 1) / R, "elements", (_K, _T, _D, _R, _E), _DERIVED,
    requires=(_chosen, _shared_evenly), result=r"S_{\mathrm{all\text{-}to\text{-}all}}",
)
# One of K = 1 choice, all of them for the same expert; exact where c T / E is a whole number.
dropped_share_collapsed = Formula(
    "dropped_share_collapsed", 1 - c / E, "1", (_c, _E), _DERIVED, requires=((c <= E, "c must be at most E"),),
    result=r"\mathrm{dropped}_{\mathrm{collapsed}}",
)
# Uniformly random choices at c = 1: the normal approximation of a binomial load.
dropped_share_balanced = Formula(
    "dropped_share_balanced", sqrt((1 - K / E) * E / (2 * pi * K * T)), "1", (_K, _E, _T), _DERIVED,
    requires=(_chosen, (T >= 1, "T must be at least 1")), result=r"\mathrm{dropped}_{\mathrm{balanced}}",
)
# Dispatch and combine beside the experts' products, forward, many ranks.
exchange_over_compute = Formula(
    "exchange_over_compute", epsilon * rho / (3 * F * omega), "1", (_epsilon, _rho, _F, _omega), _DERIVED,
    requires=((omega > 0, "omega must be above 0"),), result=r"t_{\mathrm{exchange}} / t_{\mathrm{compute}}",
)

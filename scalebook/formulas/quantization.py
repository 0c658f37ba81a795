"""Chapter 2: quantization. A weight w becomes a code q of b bits on a grid of scale S and zero-point Z.

`scalebook.quantization` holds the quantizers; the tests compare these formulas with what they return. Codes are
unsigned, 0..2^b - 1, unless a name says signed. Formulas round halves up, the quantizers to the even neighbour: at a
tie both neighbours are equally near.
"""

from sympy import Max, Min, Rational, floor, log

from scalebook.formulas.core import Formula, Variable

_b = Variable("b", "bits of a code", count=True, minimum=2)
_w = Variable("w", "a weight", minimum=None)
_w_hat = Variable("w_hat", "what a weight comes back as", minimum=None, latex=r"\hat{w}")
_w_min = Variable("w_min", "least weight of the group, or 0 if that is less", minimum=None, latex=r"w_{\min}")
_w_max = Variable("w_max", "greatest weight of the group, or 0 if that is more", minimum=None, latex=r"w_{\max}")
_m = Variable("m", "greatest absolute value in the group")
_S = Variable("S", "scale: the step of the grid")
_Z = Variable("Z", "zero-point: the code of 0, unsigned", count=True, minimum=0)
_q = Variable("q", "code of a weight, unsigned", count=True, minimum=0, latex="Q")
_k = Variable("k", "range of the group over the standard deviation of its weights")
_g = Variable("g", "weights in a group", count=True, minimum=1)
_z = Variable("z", "bits of a stored zero-point", count=True, minimum=0)
_n = Variable("n", "weights in a block", count=True, minimum=1)
_n_bytes = Variable("n_bytes", "bytes of a block", "bytes", count=True, minimum=1, latex=r"n_{\mathrm{bytes}}")
_c = Variable("c", "bits of a group's scale, and of its offset, inside a super-block", count=True, minimum=1)

b, w, w_hat, w_min, w_max, m = (variable.symbol for variable in (_b, _w, _w_hat, _w_min, _w_max, _m))
S, Z, q, k, g, z, n, n_bytes, c = (variable.symbol for variable in (_S, _Z, _q, _k, _g, _z, _n, _n_bytes, _c))
_half = Rational(1, 2)

_below_zero = (w_min <= 0, "w_min must be at most 0")
_above_zero = (w_max >= 0, "w_max must be at least 0")
_wide = (w_min < w_max, "w_min must be less than w_max")
_step = (S > 0, "S must be more than 0")

_JACOB = "arXiv:1712.05877 (Jacob et al. 2018), equation 1"
_GPTQ = "arXiv:2210.17323 (Frantar et al. 2022)"
_AWQ = "arXiv:2306.00978 (Lin et al. 2023)"
_LLAMA_CPP = "block_q4_K and its kin in ggml-common.h of ggml-org/llama.cpp"
_DERIVED = "derived in chapter 2"

# The grid of a group.

scale = Formula(
    "scale", (w_max - w_min) / (2**b - 1), "1", (_w_min, _w_max, _b), f"{_GPTQ}, section 5: the min-max grid",
    requires=(_below_zero, _above_zero, _wide), result="S",
)
zero_point = Formula("zero_point", floor(_half - w_min / S), "1", (_w_min, _S), _DERIVED,
                     requires=(_below_zero, _step), result="Z")
# For codes -2^(b-1)..2^(b-1) - 1. It differs from the unsigned one by 2^(b-1), as the codes do: S (q - Z) is the same.
zero_point_signed = Formula(
    "zero_point_signed", floor(_half - 2**(b - 1) - w_min / S), "1", (_w_min, _S, _b), _DERIVED,
    requires=(_below_zero, _step), result=r"Z_{\mathrm{signed}}",
)
code = Formula("code", Min(Max(floor(w / S + _half) + Z, 0), 2**b - 1), "1", (_w, _S, _Z, _b), _JACOB,
               requires=(_step,), result="Q")
dequantized = Formula("dequantized", S * (q - Z), "1", (_q, _S, _Z), _JACOB, result=r"\hat{w}")

# Symmetric grids, Z = 2^(b-1). The first spreads all 2^b - 1 steps over [-m, m]: no weight moves by more than S/2.
symmetric_scale = Formula("symmetric_scale", 2 * m / (2**b - 1), "1", (_m, _b), _DERIVED, result="S")
# The smallest step, but a weight of +m is cut to m - S, a whole step.
symmetric_scale_awq = Formula("symmetric_scale_awq", m / 2**(b - 1), "1", (_m, _b), f"{_AWQ}, equation 1",
                              result=r"\Delta")
# Both -m and +m lie on the grid, and the code 0 is never used.
symmetric_scale_restricted = Formula("symmetric_scale_restricted", m / (2**(b - 1) - 1), "1", (_m, _b), _DERIVED,
                                     result="S")

# The error of rounding, when the error is spread evenly over a step: many steps, weights off the grid, none clipped.

rounding_variance = Formula("rounding_variance", S**2 / 12, "1", (_S,), _DERIVED,
                            result=r"\mathbb{E}[(w - \hat{w})^2]")
mean_rounding_error = Formula("mean_rounding_error", S / 4, "1", (_S,), f"{_AWQ}, at equation 2: 0.25 steps",
                              result=r"\mathbb{E}[\vert w - \hat{w}\vert]")
# Signal over noise, with the signal's variance (k is its range in standard deviations: sqrt(12) if it is even).
signal_to_noise = Formula(
    "signal_to_noise", 10 * log(12 * (2**b - 1)**2 / k**2) / log(10), "dB", (_b, _k), _DERIVED,
    requires=((k > 0, "k must be more than 0"),), result=r"\mathrm{SQNR}",
)

# Bits per weight.

# Each group has a 16-bit scale and a zero-point: z = b when that is packed like a code, 16 when it is stored as a
# float, 0 when the grid is symmetric.
bits_per_weight = Formula("bits_per_weight", b + (16 + z) / g, "bits", (_b, _z, _g),
                          f"{_GPTQ}, section 5: 0.15 extra bits in groups of 128", result=r"\beta")
block_bits_per_weight = Formula("block_bits_per_weight", 8 * n_bytes / n, "bits", (_n_bytes, _n), _LLAMA_CPP,
                                result=r"\beta")
# n weights share two 16-bit floats; each group of g in it has a scale and an offset of c bits.
k_quant_bits_per_weight = Formula("k_quant_bits_per_weight", b + 2 * c / g + 32 / n, "bits", (_b, _c, _g, _n),
                                  _LLAMA_CPP, result=r"\beta")

# Bytes, and what they cost in time.

_beta = Variable("beta", "bits per quantized weight, with its share of scales and zero-points", "bits", latex=r"\beta")
_N_q = Variable("N_q", "weights that are quantized", count=True, minimum=0)
_N_r = Variable("N_r", "parameters that are not quantized", count=True, minimum=0)
_p = Variable("p", "bytes of a parameter that is not quantized", "bytes", count=True, minimum=1)
_p_kv = Variable("p_kv", "bytes of a cached number", "bytes", latex=r"p_{\mathrm{kv}}")
_L = Variable("L", "layers", count=True, minimum=1)
_G = Variable("G", "key and value heads", count=True, minimum=1)
_d_h = Variable("d_h", "width of a head", count=True, minimum=1)
_s = Variable("s", "tokens in the cache", count=True, minimum=0, latex=r"n_{\mathrm{kv}}")
_M = Variable("M", "bytes of the model", "bytes")
_C = Variable("C", "memory of the card", "bytes")
_B_mem = Variable("B_mem", "memory bandwidth", "bytes/s", latex=r"B_{\mathrm{mem}}")
_M_read = Variable("M_read", "bytes read for one token", "bytes", latex=r"M_{\mathrm{read}}")

beta, N_q, N_r, p, p_kv = (variable.symbol for variable in (_beta, _N_q, _N_r, _p, _p_kv))
L, G, d_h, s, M, C, B_mem, M_read = (variable.symbol for variable in (_L, _G, _d_h, _s, _M, _C, _B_mem, _M_read))
_reads = (M_read > 0, "M_read must be more than 0")

model_bytes = Formula("model_bytes", N_q * beta / 8 + N_r * p, "bytes", (_N_q, _beta, _N_r, _p), _DERIVED, result="M")
kv_bytes_per_token = Formula("kv_bytes_per_token", 2 * L * G * d_h * p_kv, "bytes", (_L, _G, _d_h, _p_kv), _DERIVED,
                             result=r"M_{\mathrm{kv}}(1)")
kv_cache_bytes = Formula("kv_cache_bytes", kv_bytes_per_token.expression * s, "bytes", (_L, _G, _d_h, _p_kv, _s),
                         _DERIVED, result=r"M_{\mathrm{kv}}(n_{\mathrm{kv}})")
# Weights and cache only: activations and buffers take their part too.
tokens_that_fit = Formula(
    "tokens_that_fit", floor((C - M) / kv_bytes_per_token.expression), "tokens", (_C, _M, _L, _G, _d_h, _p_kv),
    _DERIVED, requires=((M <= C, "M must be at most C: the model alone does not fit"),
                        (p_kv > 0, "p_kv must be more than 0")), result=r"n_{\mathrm{kv},\,\max}",
)
# An upper bound for one sequence: every weight and the whole cache are read once for each token.
decode_tokens_per_second = Formula("decode_tokens_per_second", B_mem / M_read, "tokens/s", (_B_mem, _M_read), _DERIVED,
                                   requires=(_reads,), result=r"v_{\mathrm{decode}}")

# The layer's output error, for one row: E = 1/2 d^T H d with d = w_hat - w and H = 2 X X^T.

_H_qq = Variable("H_qq", "diagonal entry of the Hessian", latex="H_{qq}")
_a_qq = Variable("a_qq", "diagonal entry of the inverse Hessian of the weights still free", latex="[H_F^{-1}]_{qq}")
_a_iq = Variable("a_iq", "entry (i, q) of the inverse Hessian", minimum=None, latex="[H_F^{-1}]_{iq}")
_a_qj = Variable("a_qj", "entry (q, j) of the inverse Hessian", minimum=None, latex="[H_F^{-1}]_{qj}")
_a_ij = Variable("a_ij", "entry (i, j) of the inverse Hessian", minimum=None, latex="[H_F^{-1}]_{ij}")
H_qq, a_qq, a_iq, a_qj, a_ij = (variable.symbol for variable in (_H_qq, _a_qq, _a_iq, _a_qj, _a_ij))
_positive = (a_qq > 0, "a_qq must be more than 0")

_OBS = "Hassibi and Stork 1993, optimal brain surgeon"
_OBQ = f"{_GPTQ}, equation 2"

# No other weight moves.
obd_error = Formula("obd_error", H_qq * (w - w_hat)**2 / 2, "1", (_w, _w_hat, _H_qq),
                    "LeCun, Denker and Solla 1990, optimal brain damage, for pruning: w_hat = 0",
                    result=r"\tfrac12 d^\top H d")
# All other free weights move to make up for it: by `compensation`, weight i.
obs_error = Formula("obs_error", (w - w_hat)**2 / (2 * a_qq), "1", (_w, _w_hat, _a_qq),
                    f"{_OBS}, for pruning: w_hat = 0; {_OBQ}", requires=(_positive,), result=r"\tfrac12 d^\top H d")
compensation = Formula("compensation", -(w - w_hat) / a_qq * a_iq, "1", (_w, _w_hat, _a_qq, _a_iq), _OBQ,
                       requires=(_positive,), result=r"\delta_i")
# The inverse Hessian of those that remain, once weight q is fixed.
downdated_inverse = Formula("downdated_inverse", a_ij - a_iq * a_qj / a_qq, "1", (_a_ij, _a_iq, _a_qj, _a_qq),
                            f"{_GPTQ}, equation 3", requires=(_positive,), result=r"[H_{F \setminus q}^{-1}]_{ij}")

# Activation-aware scaling.

_s_c = Variable("s_c", "factor of a channel's weights", latex="s")
_D = Variable("D", "scale of the group before", latex=r"\Delta")
_D_s = Variable("D_s", "scale of the group when the channel is multiplied by its factor", latex=r"\Delta'")
s_c, D, D_s = _s_c.symbol, _D.symbol, _D_s.symbol
scaled_error_ratio = Formula(
    "scaled_error_ratio", D_s / (D * s_c), "1", (_D_s, _D, _s_c), f"{_AWQ}, equation 2 over equation 1",
    requires=((D > 0, "D must be more than 0"), (s_c > 0, "s_c must be more than 0")),
    result=r"\frac{\mathrm{Err}'}{\mathrm{Err}}",
)
# The step grows only when the scaled channel holds the group's extreme.
_m_c = Variable("m_c", "greatest absolute value of the channel in the group")
_m_rest = Variable("m_rest", "greatest absolute value of the group's other channels", latex=r"m_{\mathrm{rest}}")
m_c, m_rest = _m_c.symbol, _m_rest.symbol
scaled_step_ratio = Formula(
    "scaled_step_ratio", Max(s_c * m_c, m_rest) / Max(m_c, m_rest), "1", (_s_c, _m_c, _m_rest), _DERIVED,
    requires=((Max(m_c, m_rest) > 0, "m_c or m_rest must be more than 0"),), result=r"\frac{\Delta'}{\Delta}",
)

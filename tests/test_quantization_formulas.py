"""Chapter 2's formulas: equal to what the quantizers do, to exact algebra, and to what is published."""

import math
from fractions import Fraction

import pytest
import sympy
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from scalebook import published
from scalebook.formulas import quantization as formulas
from scalebook.formulas.core import Formula
from scalebook.moe.parameters import count_parameters
from scalebook.quantization import expected_error, group_grid, measured_error, quantize_rtn
from scalebook.quantization.llama_cpp import LAYOUTS, WEIGHTS

ALL = {name: value for name, value in vars(formulas).items() if isinstance(value, Formula)}
forall = settings(deadline=None, max_examples=50)
bits_of_codes = st.integers(2, 8)
LLAMA = published.model("Llama-3-70B")
SIZES = {row["quantity"]: row["value"] for row in published.table("llama3_70b_sizes")}


@pytest.mark.parametrize("name", ALL)
def test_each_formula_bears_its_own_name_a_left_side_and_a_source(name):
    assert ALL[name].name == name
    assert ALL[name].result
    assert ALL[name].source.strip()


# ---- the grid ------------------------------------------------------------------------------------------------------

@given(st.lists(st.integers(-50, 50), min_size=1, max_size=8), bits_of_codes)
@forall
def test_the_quantizer_follows_the_formulas_except_at_ties(weights, bits):
    """At a tie one rounds up, the other to the even neighbour."""
    assume(min(weights) != max(weights))
    low, high = min(*weights, 0), max(*weights, 0)
    S = formulas.scale(w_min=low, w_max=high, b=bits)
    record = quantize_rtn(torch.tensor([weights], dtype=torch.float64), bits, None)
    assert float(record.scales) == pytest.approx(float(S), rel=1e-14)
    Z = int(record.zero_points)
    if not tie(low / S):
        assert formulas.zero_point(w_min=low, S=S) == Z
    for w, code, back in zip(weights, record.codes[0].tolist(), record.dequantize()[0].tolist(), strict=True):
        if not tie(w / S):
            assert formulas.code(w=w, S=S, Z=Z, b=bits) == code
        assert float(formulas.dequantized(q=code, S=S, Z=Z)) == pytest.approx(back, abs=1e-12)


def tie(steps):
    return Fraction(steps) % 1 == Fraction(1, 2)


@given(st.integers(-30, 0), st.integers(0, 30), st.integers(-40, 40), bits_of_codes)
@forall
def test_signed_codes_are_the_unsigned_shifted_and_stand_for_the_same_weights(low, high, w, bits):
    assume(low < high)
    S = formulas.scale(w_min=low, w_max=high, b=bits)
    Z = formulas.zero_point(w_min=low, S=S)
    signed = formulas.zero_point_signed(w_min=low, S=S, b=bits)
    assert Z - signed == 2**(bits - 1)
    assert 0 <= Z <= 2**bits - 1
    unsigned_code = formulas.code(w=w, S=S, Z=Z, b=bits)
    nearest = math.floor(Fraction(w) / S + Fraction(1, 2)) + signed
    signed_code = min(max(nearest, -2**(bits - 1)), 2**(bits - 1) - 1)
    assert signed_code == unsigned_code - 2**(bits - 1)
    assert S * (signed_code - signed) == formulas.dequantized(q=unsigned_code, S=S, Z=Z)


@given(st.integers(-30, 0), st.integers(0, 30), bits_of_codes, st.fractions(0, 1))
@forall
def test_no_weight_between_the_ends_is_cut_or_moves_by_more_than_half_a_step(low, high, bits, where):
    assume(low < high)
    w = low + where * (high - low)
    S = formulas.scale(w_min=low, w_max=high, b=bits)
    Z = formulas.zero_point(w_min=low, S=S)
    q = formulas.code(w=w, S=S, Z=Z, b=bits)
    assert abs(formulas.dequantized(q=q, S=S, Z=Z) - w) <= Fraction(S) / 2


@pytest.mark.parametrize("bits", range(2, 9))
def test_symmetric_scales_in_order_and_the_librarys_is_the_one_that_bounds_the_error(bits):
    ours = formulas.symmetric_scale(m=3, b=bits)
    fine, coarse = formulas.symmetric_scale_awq(m=3, b=bits), formulas.symmetric_scale_restricted(m=3, b=bits)
    assert fine < ours < coarse
    scale, zero = group_grid(torch.tensor([[-1.0, 3.0]], dtype=torch.float64), bits, symmetric=True)
    assert float(scale) == pytest.approx(float(ours), rel=1e-14)
    Z = int(zero)
    assert int(zero) == 2**(bits - 1)
    for S, farthest in ((ours, Fraction(1, 2)), (fine, 1), (coarse, 0)):
        errors = [abs(formulas.dequantized(q=formulas.code(w=w, S=S, Z=Z, b=bits), S=S, Z=Z) - w) for w in (-3, 3)]
        assert max(errors) / Fraction(S) == farthest


# ---- the error of rounding -----------------------------------------------------------------------------------------

def test_variance_and_mean_of_an_even_error_are_its_integrals():
    S, e = sympy.symbols("S e", positive=True)
    assert sympy.integrate(e**2 / S, (e, -S / 2, S / 2)) == formulas.rounding_variance.expression.subs(formulas.S, S)
    mean = sympy.integrate(e / (S / 2), (e, 0, S / 2))
    assert mean == formulas.mean_rounding_error.expression.subs(formulas.S, S)


def test_the_signal_to_noise_of_even_weights_is_measured_and_grows_by_6_decibels_a_bit():
    weight = torch.rand(64, 4096, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 0.5
    for bits in range(2, 9):
        record = quantize_rtn(weight, bits, None)
        measured = 10 * math.log10(float((weight**2).mean() / measured_error(weight, record).mean()))
        assert formulas.signal_to_noise(b=bits, k=math.sqrt(12)) == pytest.approx(measured, abs=0.1)
    step = formulas.signal_to_noise(b=17, k=5) - formulas.signal_to_noise(b=16, k=5)
    assert step == pytest.approx(20 * math.log10(2), abs=1e-3)  # 6.02


def test_the_signal_to_noise_is_the_variance_over_the_twelfth_for_any_range():
    weight = torch.randn(64, 1024, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    record = quantize_rtn(weight, 4, None)
    k = (weight.amax(1) - weight.amin(1)) / weight.std(1, correction=0)
    expected = 10 * torch.log10(weight.var(1, correction=0) / expected_error(record)[:, 0])
    for row in range(64):
        assert formulas.signal_to_noise(b=4, k=float(k[row])) == pytest.approx(float(expected[row]), abs=1e-9)


# ---- bits and bytes ------------------------------------------------------------------------------------------------

def test_bits_per_weight_of_both_conventions():
    assert float(formulas.bits_per_weight(b=4, z=4, g=128)) == 4.15625   # printed as 4.156
    assert formulas.bits_per_weight(b=4, z=16, g=128) == Fraction(17, 4)  # 4.25
    assert round(float(formulas.bits_per_weight(b=3, z=3, g=128)) - 3, 3) == 0.148  # GPTQ: about 0.15
    assert round(float(formulas.bits_per_weight(b=3, z=3, g=1024)) - 3, 2) == 0.02  # GPTQ: about 0.02


@given(bits_of_codes, st.integers(1, 6), st.integers(1, 6), st.booleans())
@forall
def test_a_record_costs_what_the_formula_says(bits, G, C, symmetric):
    record = quantize_rtn(torch.ones(2, G * C), bits, C, symmetric)
    expected = formulas.bits_per_weight(b=bits, z=0 if symmetric else bits, g=C)
    assert record.bits_per_weight == pytest.approx(float(expected), rel=1e-15)
    counted = bits * record.codes.numel() + record.scales.numel() * 16
    counted += 0 if symmetric else bits * record.zero_points.numel()
    assert counted / record.codes.numel() == pytest.approx(record.bits_per_weight, rel=1e-15)


def test_the_k_quant_formula_gives_the_bytes_of_q4_k():
    size = formulas.block_bits_per_weight(n_bytes=LAYOUTS["Q4_K"].itemsize, n=WEIGHTS["Q4_K"])
    assert formulas.k_quant_bits_per_weight(b=4, c=6, g=32, n=256) == size == Fraction(9, 2)


def test_llama_3_70b_at_4_bits_is_the_published_configuration_counted():
    count = count_parameters(LLAMA)
    linear = SIZES["linear weights"]
    # Per layer: q and o, k and v, gate, up and down.
    assert linear == 80 * (2 * 8192 * 8192 + 2 * 8192 * 1024 + 3 * 8192 * 28672)
    beta = formulas.bits_per_weight(b=4, z=4, g=128)
    rest = count.total - linear
    size = formulas.model_bytes(N_q=linear, beta=beta, N_r=rest, p=2)
    assert round(size / 1e9, 3) == SIZES["4 bits, groups of 128 asymmetric, fp16 embeddings"] == 39.768
    assert round(size / 2**30, 3) == SIZES["the same"]
    assert size < 1e9 * published.table("llamacpp_q4_k_m_disk").row(model="70B")["disk_GB"]
    assert round(formulas.model_bytes(N_q=0, beta=beta, N_r=count.total, p=2) / 1e9, 3) == SIZES["fp16"]
    assert round(float(formulas.model_bytes(N_q=count.total, beta=4, N_r=0, p=2)) / 1e9, 3) == SIZES["4 bits flat"]


def test_the_cache_of_llama_3_70b():
    shape = {"L": LLAMA.layers, "G": LLAMA.kv_heads, "d_h": LLAMA.head_dim, "p_kv": 2}
    assert formulas.kv_bytes_per_token(**shape) == SIZES["KV cache a token, fp16"] == 327_680
    assert round(formulas.kv_cache_bytes(s=8192, **shape) / 1e9, 3) == SIZES["KV cache, 8192 tokens"]


@given(st.integers(0, 10**9), st.integers(0, 10**9), st.integers(1, 40), st.integers(1, 8), st.integers(1, 128))
@forall
def test_one_token_more_than_fits_does_not_fit(model, free, L, G, d_h):
    shape = {"L": L, "G": G, "d_h": d_h, "p_kv": 2}
    s = formulas.tokens_that_fit(C=model + free, M=model, **shape)
    assert model + formulas.kv_cache_bytes(s=s, **shape) <= model + free
    assert model + formulas.kv_cache_bytes(s=s + 1, **shape) > model + free


def test_a_model_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="the model alone does not fit"):
        formulas.tokens_that_fit(C=32e9, M=39.77e9, L=80, G=8, d_h=128, p_kv=2)


def test_decoding_is_bound_by_bandwidth_over_bytes():
    bandwidth = published.machine("A100-80GB").memory_bandwidth
    quantized = formulas.decode_tokens_per_second(B_mem=bandwidth, M_read=39.77e9)
    assert round(quantized) == 50
    half_precision = formulas.decode_tokens_per_second(B_mem=bandwidth, M_read=141.1e9)
    assert quantized / half_precision == pytest.approx(141.1 / 39.77)


# ---- the layer's output error --------------------------------------------------------------------------------------

entry = st.integers(-4, 4)


@given(st.lists(st.lists(entry, min_size=3, max_size=3), min_size=3, max_size=6), st.integers(0, 2), entry, entry)
@forall
def test_obs_is_the_constrained_minimum_in_exact_fractions(inputs, q, w, w_hat):
    """The Lagrangian's equations, solved by SymPy: H d + lambda e_q = 0 and d_q = w_hat - w."""
    X = sympy.Matrix(inputs)
    H = 2 * X.T * X
    assume(H.det() != 0)
    inverse = H.inv()
    e = sympy.eye(3)[:, q]
    system = sympy.Matrix([[H, e], [e.T, sympy.zeros(1, 1)]])
    d = system.LUsolve(sympy.Matrix([0, 0, 0, w_hat - w]))[:3, :]
    values = {"w": w, "w_hat": w_hat, "a_qq": inverse[q, q]}
    for i in range(3):
        assert formulas.compensation(a_iq=inverse[i, q], **values) == d[i]
    error = (d.T * H * d)[0] / 2
    assert formulas.obs_error(**values) == error == ((X * d).T * (X * d))[0]
    alone = formulas.obd_error(w=w, w_hat=w_hat, H_qq=H[q, q])
    assert alone == (sympy.Matrix(X[:, q]) * (w_hat - w)).dot(sympy.Matrix(X[:, q]) * (w_hat - w))
    assert error <= alone


@given(st.lists(st.lists(entry, min_size=3, max_size=3), min_size=3, max_size=6), st.integers(0, 2))
@forall
def test_the_downdate_is_the_inverse_of_the_hessian_without_the_weight(inputs, q):
    X = sympy.Matrix(inputs)
    H = 2 * X.T * X
    assume(H.det() != 0)
    inverse = H.inv()
    rest = [i for i in range(3) if i != q]
    expected = H.extract(rest, rest).inv()
    for row, i in enumerate(rest):
        for column, j in enumerate(rest):
            assert formulas.downdated_inverse(a_ij=inverse[i, j], a_iq=inverse[i, q], a_qj=inverse[q, j],
                                              a_qq=inverse[q, q]) == expected[row, column]


# ---- activation-aware scaling --------------------------------------------------------------------------------------

def test_the_error_ratio_of_awqs_table_2_follows_from_its_step_ratio():
    for row in published.table("awq_table2_opt67b"):
        ratio = formulas.scaled_error_ratio(D_s=row["mean_delta_ratio"], D=1, s_c=row["s"])
        assert ratio == pytest.approx(row["error_ratio"], abs=0.001)


@given(st.integers(1, 9), st.lists(st.integers(-20, 20), min_size=2, max_size=6), bits_of_codes)
@forall
def test_the_step_grows_as_the_formula_says_when_a_channel_is_scaled(factor, weights, bits):
    assume(any(weights) and len(set(weights)) > 1)
    before = torch.tensor([weights], dtype=torch.float64)
    after = before.clone()
    after[0, 0] *= factor
    assume(len(set(after[0].tolist())) > 1)
    steps = [float(group_grid(w, bits, symmetric=True)[0]) for w in (before, after)]
    expected = formulas.scaled_step_ratio(s_c=factor, m_c=abs(weights[0]), m_rest=max(map(abs, weights[1:])))
    assert steps[1] / steps[0] == pytest.approx(float(expected), rel=1e-12)


def test_a_channel_that_holds_the_groups_extreme_gains_nothing_from_its_factor():
    grown = formulas.scaled_step_ratio(s_c=4, m_c=3, m_rest=1)
    assert formulas.scaled_error_ratio(D_s=grown, D=1, s_c=4) == 1
    kept = formulas.scaled_step_ratio(s_c=2, m_c=1, m_rest=3)
    assert formulas.scaled_error_ratio(D_s=kept, D=1, s_c=2) == Fraction(1, 2)

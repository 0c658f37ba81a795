"""Chapter 3's memory: activations, parameters and slices, against published tables and transformers' GPT-2."""

from fractions import Fraction

import pytest
import sympy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scalebook import published
from scalebook.formulas import tensor_parallel as formulas
from scalebook.tensor_parallel.sharding import held_kv_heads

forall = settings(deadline=None, max_examples=40)
counts = st.integers(1, 300)
powers = st.sampled_from([1, 2, 4, 8])

# ---- activation memory ---------------------------------------------------------------------------------------------

VARIANTS = {"none": "activations", "TP": "activations_tensor_parallel", "TP+SP": "activations_sequence_parallel",
            "TP+selective": "activations_selective", "TP+SP+selective": "activations_sequence_parallel_selective",
            "full recompute": "activations_full"}


def test_every_row_of_korthikantis_table_2_is_our_formula():
    s, b, h, a, t = sympy.symbols("s b h a t", positive=True)
    for row in published.table("korthikanti2022_table2"):
        text = row["bytes_per_layer"]
        for short, long in (("sbh", "s*b*h*"), ("5as", "5*a*s"), ("(ht)", "(h*t)"), ("34s*", "34*s*"), ("2s*", "2*s*"),
                            ("*/", "/")):
            text = text.replace(short, long)
        printed = sympy.sympify(text.rstrip("*"), locals={"s": s, "b": b, "h": h, "a": a, "t": t})
        ours = getattr(formulas, VARIANTS[row["configuration"]])
        theirs = printed.subs({symbol: variable.symbol for symbol in (s, b, h, a, t) for variable in ours.symbols
                               if variable.name == symbol.name})
        assert sympy.simplify(theirs - ours.expression) == 0, row
    assert set(published.table("korthikanti2022_table2").column("configuration")) == set(VARIANTS)


@given(counts, counts, powers, st.integers(1, 8), st.integers(1, 8))
@forall
def test_the_parts_sum_to_each_variant(b, multiple, t, heads, width):
    s, a = multiple * t, heads * t
    h = a * width
    work = {"b": b, "s": s, "h": h}
    outside, attention, mlp = (getattr(formulas, f"activations_{part}")(**work)
                               for part in ("outside", "attention", "mlp"))
    scores = formulas.activations_scores(a=a, s=s, b=b)
    inside = attention + mlp
    split = work | {"t": t}
    assert formulas.activations(**work, a=a) == outside + inside + scores
    assert formulas.activations_tensor_parallel(**split, a=a) == outside + Fraction(inside + scores, t)
    assert formulas.activations_sequence_parallel(**split, a=a) == Fraction(outside + inside + scores, t)
    assert formulas.activations_selective(**split) == outside + Fraction(inside, t)
    assert formulas.activations_sequence_parallel_selective(**split) == Fraction(outside + inside, t)
    if t == 1:
        assert formulas.activations_tensor_parallel(**split, a=a) == formulas.activations(**work, a=a)


def test_gpt_3_keeps_eighty_over_thirty_four_in_scores():
    shape = {"b": 1, "s": 2048, "h": 12288}
    whole = formulas.activations(**shape, a=96)
    assert whole == 2048 * 12288 * (34 + 80)
    assert formulas.layer_norm_statistics(epsilon=2, s=2048, b=1) == 8 * 2048
    best = formulas.activations_sequence_parallel_selective(**shape, t=8)
    assert Fraction(whole, best) == Fraction(8 * 114, 34)


# ---- parameters ----------------------------------------------------------------------------------------------------

def test_narayanans_table_1_is_reproduced_to_its_printed_digits():
    for row in published.table("narayanan2021_table1"):
        count = formulas.parameters_narayanan(L=row["layers"], h=row["hidden"], V=51200, s=2048)
        assert round(float(count) / 1e9, 1) == row["params_B"]


def test_shoeybis_table_1_is_reproduced_to_its_printed_digits():
    for row in published.table("shoeybi2019_table1"):
        count = formulas.parameters_gpt(L=row["layers"], h=row["hidden"], V=51200, s=1024)
        assert round(count / 1e9, 1) == row["params_B"]


@pytest.mark.parametrize(("L", "h", "a", "V", "s"), [(2, 16, 2, 64, 8), (3, 48, 4, 100, 24)])
def test_the_count_is_that_of_transformers_gpt_2(L, h, a, V, s):
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=L, n_embd=h, n_head=a, vocab_size=V, n_positions=s)
    with torch.device("meta"):
        model = GPT2LMHeadModel(config)
    assert sum(p.numel() for p in model.parameters()) == formulas.parameters_gpt(L=L, h=h, V=V, s=s)


@given(st.integers(1, 9), counts, counts, counts, st.integers(1, 16))
@forall
def test_equation_2_leaves_out_the_last_norm_and_the_ranks_hold_copies_of_little(L, width, rows, s, t):
    h, V = width * t, rows * t
    shape = {"L": L, "h": h, "V": V, "s": s}
    exact = formulas.parameters_gpt(**shape)
    assert exact - formulas.parameters_narayanan(**shape) == 2 * h
    of_a_rank = formulas.parameters_per_rank(**shape, t=t)
    assert t * of_a_rank - exact == (t - 1) * (6 * h * L + s * h + 2 * h)
    assert formulas.parameters_per_rank(**shape, t=1) == exact


def test_gpt_2s_vocabulary_is_padded_as_megatron_pads_it():
    assert formulas.padded_vocabulary(V=50257, m=128, t=8) == 51200
    assert formulas.padded_vocabulary(V=50257, m=128, t=1) == 50304
    assert formulas.padded_vocabulary(V=51200, m=128, t=8) == 51200


# ---- slices --------------------------------------------------------------------------------------------------------

@given(counts, st.integers(1, 16))
@forall
def test_the_slices_of_all_ranks_tile_a_matrix(width, t):
    w = width * t
    starts = [formulas.slice_start(w=w, t=t, r=r) for r in range(t)]
    assert starts == list(range(0, w, formulas.slice_width(w=w, t=t)))


@given(powers, st.sampled_from([1, 2, 4, 8, 16]))
@forall
def test_a_rank_holds_the_key_heads_of_its_query_heads(G, t):
    a = 16 * G
    group = a // G  # query heads of one key head
    for r in range(t):
        queries = range(r * formulas.heads_per_rank(a=a, t=t), (r + 1) * formulas.heads_per_rank(a=a, t=t))
        first = formulas.first_kv_head(G=G, t=t, r=r)
        held = list(range(first, first + formulas.kv_heads_per_rank(G=G, t=t)))
        assert sorted({query // group for query in queries}) == held == list(held_kv_heads(r, t, G))
    assert t * formulas.kv_heads_per_rank(G=G, t=t) == G * formulas.kv_copies(G=G, t=t)


def test_what_does_not_divide_is_refused_in_words():
    with pytest.raises(ValueError, match=r"heads_per_rank: a must be a multiple of t \(given a = 6, t = 4\)"):
        formulas.heads_per_rank(a=6, t=4)
    with pytest.raises(ValueError, match="h must be a multiple of t"):
        formulas.parameters_per_rank(L=1, h=6, V=8, s=1, t=4)
    with pytest.raises(ValueError, match="G must be a multiple of t, or t of G"):
        formulas.kv_heads_per_rank(G=6, t=4)
    with pytest.raises(ValueError, match="r must be at most t - 1"):
        formulas.slice_start(w=8, t=4, r=4)

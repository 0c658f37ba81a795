"""What the labs measure is timed on the device that is asked for, until that is done.

No test here needs a GPU: the stand-in (`stand_in.py`) has its place, chosen explicitly.
"""

import time
from types import SimpleNamespace

import pytest
import stand_in
import torch

from scalebook import published
from scalebook.labs import devices, quantized_bandwidth, sparse_speed

THERE = str(stand_in.DEVICE)


@pytest.fixture
def gpu(monkeypatch):
    """The stand-in beside the processor: how often it was waited for, 2 ms each, and the operations that it did."""
    waits = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waits.append(time.sleep(0.002)))
    for lab in (quantized_bandwidth, sparse_speed):
        monkeypatch.setattr(lab, "devices", lambda: ("cpu", THERE))
    for of_kind in (quantized_bandwidth.BITS, sparse_speed.DTYPES, sparse_speed.WIDTHS):
        monkeypatch.setitem(of_kind, THERE, of_kind["cuda"])
    monkeypatch.setattr(sparse_speed, "OTHER_DATA", 10)
    with stand_in.tensors_from_data(), stand_in.StandIn() as mode:
        yield SimpleNamespace(waits=waits, mode=mode)


def test_products_are_timed_where_they_are_asked_for_until_they_are_done(gpu):
    found = quantized_bandwidth.time_products(rows=64, columns=64, rounds=2, device=THERE)
    assert [reading.bits for reading in found] == [32, 16]
    assert len(gpu.waits) == 2 * (2 + 1) <= gpu.mode.computed
    assert all(reading.seconds >= 0.002 for reading in found)


def test_both_layers_are_timed_where_they_are_asked_for_until_they_are_done(gpu):
    row, = sparse_speed.compare(THERE, batches=(4,), width=64, repeats=2)
    functions = 1 + len(row.dense)
    assert len(gpu.waits) == 2 * 2 * functions < gpu.mode.computed  # before the clock starts, and before it stops
    assert min(row.sparse, *row.dense.values()) >= 0.002
    assert sum(row.counts) == 4 * 2
    assert torch.get_default_dtype() == torch.float32


def test_the_processor_computes_and_is_not_waited_for(gpu):
    sparse_speed.compare(batches=(4,), width=64, repeats=1)
    quantized_bandwidth.time_products(rows=64, columns=64, rounds=1)
    assert (len(gpu.waits), gpu.mode.computed) == (0, 0)


def test_a_layer_on_a_gpu_is_mixtrals_at_16_bits():
    mixtral = published.model("Mixtral-8x7B")
    width, wide, of_element = mixtral.d_model, mixtral.d_ff_expert, sparse_speed.DTYPES["cuda"].itemsize
    assert (mixtral.experts, mixtral.top_k) == (sparse_speed.EXPERTS, sparse_speed.CHOSEN)
    assert {"cpu": width / 4, "cuda": width} == sparse_speed.WIDTHS
    assert wide == width * 7 // 2
    assert of_element == 2
    assert of_element * 3 * width * wide // 10**6 == 352


def test_pytorchs_defaults_are_as_before_when_a_layer_cannot_be_made(monkeypatch):
    seen = []

    def no_layer(**sizes):
        seen.append((torch.get_default_dtype(), torch.ones(1).device))
        raise MemoryError

    monkeypatch.setattr(sparse_speed, "MoELayer", no_layer)
    monkeypatch.setitem(sparse_speed.DTYPES, "cpu", torch.float16)
    with pytest.raises(MemoryError):
        sparse_speed.compare(batches=(1,), width=8)
    assert seen == [(torch.float16, torch.device("cpu"))]
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize("given", [{"batches": (0,)}, {"width": 7}, {"width": 1}, {"repeats": True}, {"device": "tpu"}])
def test_bad_sizes_are_named(given):
    with pytest.raises(ValueError, match=f"{next(iter(given))} = .* is not allowed"):
        sparse_speed.compare(**({"batches": (1,), "width": 8, "repeats": 1} | given))


def test_the_processor_is_never_waited_for(monkeypatch):
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: pytest.fail("there may be no GPU"))
    devices.finish("cpu")

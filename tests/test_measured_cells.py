"""The chapters' cells that measure speed have rows for every device, as they stand in the notebooks.

Each is run with what a reader without a GPU has, and with what one with a GPU has. The times are made up: those of this
machine are measured when the chapters run.
"""

from types import SimpleNamespace

import matplotlib.pyplot as plt
import pytest

from scalebook import published
from scalebook.book import notebooks
from scalebook.formulas import quantization as formulas
from scalebook.labs import collective_times, quantized_bandwidth, sparse_speed
from scalebook.labs.quantized_bandwidth import Reading
from scalebook.labs.sparse_speed import Row

PLACES = [("cpu",), ("cpu", "cuda")]


def run_cell(chapter, name, capsys, monkeypatch, **names):
    """Run a cell after its chapter's imports, with names of ours in place of some; return its lines and its axes."""
    monkeypatch.setattr(plt, "show", lambda: None)
    cells = {cell["id"]: cell.source for cell in notebooks.read(notebooks.CHAPTERS / f"{chapter}.ipynb").cells}
    known = {}
    exec(cells["setup"], known)
    known |= names
    capsys.readouterr()
    try:
        exec(cells[name], known)
        figures = [plt.figure(number) for number in plt.get_fignums()]
        return capsys.readouterr().out.splitlines(), [axis for figure in figures for axis in figure.axes]
    finally:
        plt.close("all")


@pytest.mark.parametrize("backends", [("gloo",), ("gloo", "nccl")])
def test_the_cell_of_chapter_0_times_all_reduces_on_every_backend(backends, capsys, monkeypatch):
    asked = []

    def measure(size, repeats, backend):
        asked.append((size, backend))
        fit = collective_times.Fit(size, 1e-5, 1e10, ())
        seconds = tuple((fit.seconds(nbytes),) for nbytes in collective_times.SIZES)
        return {"PyTorch": collective_times.Times(size, collective_times.SIZES, seconds)}

    lab = SimpleNamespace(measure=measure, backends=lambda size: backends)
    lines, (axis,) = run_cell("00_collectives", "measure-run", capsys, monkeypatch, collective_times=lab)
    assert asked == [(size, backend) for size in (2, 4) for backend in backends]
    assert [line.partition(": alpha 10 us, omega 10 GB/s;")[0] for line in lines] == [
        f"{size} processes, {backend}" for size, backend in asked]
    assert len(axis.get_legend().get_texts()) == len(asked)
    assert {curve.get_linestyle() for curve in axis.lines if curve.get_marker() == "None"} == {
        ":", *("-", "--")[:len(backends)]}


def layer_rows(device, of_sparse):
    """Rows in which the sparse layer takes so many times what is predicted, and a dense layer 1 second for any rows."""
    return [Row(batch, (2,) * 4 + (0,) * 4, of_sparse * 2, {2: 1.0, batch: 1.0}) for batch in sparse_speed.BATCHES]


@pytest.mark.parametrize("places", PLACES, ids=" and ".join)
def test_the_cell_of_chapter_1_times_layers_on_every_device(places, capsys, monkeypatch):
    lab = SimpleNamespace(devices=lambda: places, BATCHES=sparse_speed.BATCHES, compare=lambda device: layer_rows(
        device, 1 if device == "cpu" else 3))
    lines, axes = run_cell("01_sparse_moe", "trap-speed-run", capsys, monkeypatch, sparse_speed=lab)
    assert [line.split()[0] for line in lines[1:]] == [place for place in places for _ in sparse_speed.BATCHES]
    assert [axis.get_xlabel() for axis in axes] == [f"tokens in the batch ({place})" for place in places]


@pytest.mark.parametrize(("place", "of_sparse"), [("cpu", 3), ("cpu", 0.5), ("cuda", 0.5)])
def test_the_cell_of_chapter_1_fails_when_the_belief_holds_or_the_prediction_does_not(
        place, of_sparse, capsys, monkeypatch):
    lab = SimpleNamespace(devices=lambda: (place,), BATCHES=sparse_speed.BATCHES,
                          compare=lambda device: layer_rows(device, of_sparse))
    with pytest.raises(AssertionError):
        run_cell("01_sparse_moe", "trap-speed-run", capsys, monkeypatch, sparse_speed=lab)


@pytest.mark.parametrize("places", PLACES, ids=" and ".join)
def test_the_cell_of_chapter_2_times_products_on_every_device(places, capsys, monkeypatch):
    def time_products(device):
        return [Reading(bits, 2**26, bits / 1000) for bits in quantized_bandwidth.BITS[device]]

    lab = SimpleNamespace(devices=lambda: places, time_products=time_products)
    table = published.table("dense_parameter_counts").row(model="Llama-3-70B")
    lines, _ = run_cell("02_quantization", "model-bandwidth", capsys, monkeypatch, quantized_bandwidth=lab, f=formulas,
                        sizes=table, llama=published.model("Llama-3-70B"), quantized=4e10)
    rows = [(place, str(bits)) for place in places for bits in quantized_bandwidth.BITS[place]]
    assert [tuple(line.split()[:2]) for line in lines[1:1 + len(rows)]] == rows

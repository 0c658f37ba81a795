"""The public calls say their types, and the types are ones that resolve."""

import inspect
import typing
from importlib.resources import files

import pytest
import torch

from scalebook import data, mesh, moe, pipeline, planner, published, quantization, ranks, texts, zero
from scalebook.explorer import explore, grid
from scalebook.moe import parameters
from scalebook.pipeline import Timeline
from scalebook.quantization import QuantizedLinear

# The calls of the library that other programs build on.
FUNCTIONS = [
    pipeline.simulate, pipeline.simulate_order, zero.model_state_bytes, zero.communication_bytes,
    moe.count_parameters, parameters.flops_per_token, parameters.resident_bytes, quantization.quantize_rtn,
    quantization.quantize_gptq, quantization.quantize_awq, planner.estimate, planner.search,
    ranks.run, ranks.launch, ranks.device, ranks.count, explore, grid, published.model, published.models,
    published.machine, published.machines, published.table, published.tables, data.load, texts.works, texts.split,
    mesh.RankGrid.groups, mesh.RankGrid.coordinates, mesh.RankGrid.rank, mesh.RankGrid.degree, mesh.RankGrid.group_of,
    QuantizedLinear.dequantize, Timeline.validate, planner.Answer.best_layouts,
]
PROPERTIES = [
    (Timeline, ["makespan", "bubble_overhead", "bubble_share", "device_span", "operations"]),
    (QuantizedLinear, ["bits_per_weight"]),
    (parameters.ParameterCount, ["total", "active", "by_part", "active_without_input_embedding",
                                 "active_without_embeddings", "resting"]),
    (planner.Estimate, ["memory_bytes", "step_seconds", "mfu", "feasible"]),
    (planner.Answer, ["best"]),
]
FIELDS = [
    (Timeline, ["peak_in_flight"]),
    (QuantizedLinear, ["codes", "scales", "zero_points", "bits", "group_size"]),
]
RECORDS = [Timeline, pipeline.Pipeline, QuantizedLinear, planner.Plan, planner.Cluster, planner.Estimate, mesh.RankGrid,
           published.ModelShape, published.Machine]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda one: one.__qualname__)
def test_every_argument_and_the_result_have_a_type(function):
    hints = typing.get_type_hints(function)
    assert set(inspect.signature(function).parameters) - {"self"} == set(hints) - {"return"}
    assert "return" in hints


@pytest.mark.parametrize(("record", "names"), PROPERTIES, ids=lambda one: getattr(one, "__name__", ""))
def test_what_a_record_computes_has_a_type(record, names):
    for name in names:
        found = inspect.getattr_static(record, name)
        assert "return" in typing.get_type_hints(getattr(found, "func", None) or found.fget), name


@pytest.mark.parametrize(("record", "names"), FIELDS, ids=lambda one: getattr(one, "__name__", ""))
def test_what_a_record_holds_has_a_type(record, names):
    assert set(names) <= typing.get_type_hints(record).keys()


@pytest.mark.parametrize("record", RECORDS, ids=lambda one: one.__name__)
def test_the_fields_of_a_record_have_types(record):
    assert typing.get_type_hints(record)


def test_the_results_are_what_the_types_say():
    assert isinstance(mesh.RankGrid().groups("dp"), list)
    assert isinstance(zero.model_state_bytes(100, 3, 3), typing.get_type_hints(zero.model_state_bytes)["return"])
    assert isinstance(pipeline.simulate("1f1b", 2, 2), typing.get_type_hints(pipeline.simulate)["return"])
    timeline = pipeline.simulate("1f1b", 2, 2)
    assert isinstance(timeline.peak_in_flight, typing.get_type_hints(Timeline)["peak_in_flight"])
    count = moe.count_parameters(published.model("Mixtral-8x7B"))
    assert isinstance(count, typing.get_type_hints(moe.count_parameters)["return"])
    assert {type(number) for number in (count.total, count.active, count.resting)} == {int}
    weight, hessian = torch.ones(2, 4), torch.eye(4)
    for record in (quantization.quantize_rtn(weight, group_size=None),
                   quantization.quantize_gptq(weight, hessian, group_size=None),
                   quantization.quantize_awq(weight, hessian, group_size=None)):
        assert isinstance(record, QuantizedLinear)
    assert timeline.validate() is timeline


def test_type_checkers_are_told_that_there_are_types():
    assert files("scalebook").joinpath("py.typed").is_file()

"""The functions behind the explorers of chapter 2, over their grids: the library's values, and all in the frame."""

import itertools
import json
import random
import re

import pytest
import torch

from scalebook import moe, published
from scalebook.charts.quantization import alpha, alpha_chart, ellipse, ellipse_chart, fit, fit_chart, grid, grid_chart
from scalebook.explorer import grid as every_setting
from scalebook.formulas import quantization as formulas
from scalebook.quantization import quantize_awq, quantize_rtn
from scalebook.quantization.awq import awq_curve
from scalebook.quantization.hessian import layer_error, layer_hessian, row_errors
from scalebook.quantization.obs import brute_force, obq_step
from tests.vega_oracle import evaluate_rows


def as_datum(expression, names):
    """The expression with the signals `names` read from the row, as the oracle has no signals."""
    return re.sub(rf"(?<![\w.'])({'|'.join(names)})\b", r"datum.\1", expression)


def test_a_row_of_weights_and_its_grids_lie_in_the_frame_at_every_setting():
    frame = evaluate_rows(as_datum(f"'' + {grid.LOWEST} + ' ' + {grid.HIGHEST}", ["outlier"]),
                          [{"outlier": factor} for factor in grid.FACTORS])
    for factor, ends in zip(grid.FACTORS, frame, strict=True):
        low, high = map(float, ends.split())
        weights = grid.row_weights()
        weights[grid.OUTLIER] *= factor
        row = torch.tensor([weights], dtype=torch.float64)
        for bits, size in itertools.product(grid.BITS, grid.SIZES):
            record = quantize_rtn(row, bits=bits, group_size=size)
            first, last = -record.scales * record.zero_points, record.scales * (2**bits - 1 - record.zero_points)
            assert -low <= min(float(first.min()), min(weights))
            assert max(float(last.max()), max(weights)) <= high


def test_the_formulas_that_the_browser_evaluates_give_the_codes_of_the_library():
    weights = grid.row_weights()
    weights[grid.OUTLIER] *= 6
    for bits, size in itertools.product(grid.BITS, grid.SIZES):
        record = quantize_rtn(torch.tensor([weights], dtype=torch.float64), bits=bits, group_size=size)
        for group in range(128 // size):
            part = weights[group * size:(group + 1) * size]
            scale = formulas.scale(w_min=min(0, *part), w_max=max(0, *part), b=bits)
            zero = formulas.zero_point(w_min=min(0, *part), S=scale)
            assert (scale, zero) == pytest.approx((float(record.scales[0, group]), int(record.zero_points[0, group])))
            codes = formulas.code(w=part, S=scale, Z=zero, b=bits)
            assert list(codes) == record.codes[0, group * size:(group + 1) * size].tolist()


def test_at_first_the_outlier_is_one_weight_among_others():
    weights = sorted(map(abs, grid.row_weights()))  # neither among the small half nor one of the two largest
    assert grid.OUTLIER_BASE in weights[64:-2]


@pytest.fixture(scope="module")
def places():
    generator = random.Random(0)
    rows = [{"rho": generator.choice(ellipse.CORRELATIONS), "w1": 1 + generator.randrange(21) / 20,
             "w2": 1 + generator.randrange(21) / 20} for _ in range(60)]
    return [row | {"c1": generator.choice((0, 1, 2, 3)), "c2": generator.choice((0, 1, 2, 3))} for row in rows]


def hessian_of(rho):
    return torch.tensor([[1, rho], [rho, 1]], dtype=torch.float64)


def test_the_error_of_a_point_is_half_of_its_quadratic_form(places):
    expression = as_datum(ellipse.error("datum.c1", "datum.c2"), ["rho", "w1", "w2"])
    for row, value in zip(places, evaluate_rows(expression, places), strict=True):
        weights, point = (torch.tensor([[row[f"{kind}1"], row[f"{kind}2"]]], dtype=torch.float64) for kind in "wc")
        assert value == pytest.approx(float(row_errors(weights, point, hessian_of(row["rho"]))), abs=1e-12)


def test_the_other_weight_moves_as_in_the_librarys_step(places):
    moved = evaluate_rows(as_datum(ellipse.compensated("w2", "w1", "datum.c1"), ["rho", "w1", "w2"]), places)
    for row, value in zip(places, moved, strict=True):
        weights = torch.tensor([row["w1"], row["w2"]], dtype=torch.float64)
        step, _ = obq_step(weights, torch.linalg.inv(hessian_of(row["rho"])), 0, float(row["c1"]))
        assert value == pytest.approx(float(step[1]), abs=1e-12)


def test_the_least_error_of_all_grid_points_is_at_a_corner_of_the_cell(places):
    expression = as_datum(ellipse.least_error(), ["rho", "w1", "w2"])
    for row, value in zip(places, evaluate_rows(expression, places), strict=True):
        weights = torch.tensor([row["w1"], row["w2"]])
        _, least = brute_force(weights, hessian_of(row["rho"]), torch.ones(2), torch.full((2,), 3.0), bits=3)  # -3 to 4
        assert value == pytest.approx(least, abs=1e-6)


@pytest.mark.parametrize("rho", ellipse.CORRELATIONS)
def test_every_point_of_the_two_weights_lies_in_the_frame_and_making_up_never_costs(rho):
    steps = [1 + i / 20 for i in range(21)]
    for weights in itertools.product(steps, repeat=2):
        near = [int(w + 0.5) for w in weights]
        for fixed, other in ((0, 1), (1, 0)):
            touch = weights[other] - rho * (near[fixed] - weights[fixed])
            assert 0.5 <= touch <= 2.5
            assert abs(int(touch + 0.5) - touch) <= abs(near[other] - touch) + 1e-9


@pytest.fixture(scope="module")
def alpha_rows():
    return every_setting(alpha.alpha_row, **alpha.GRID)


def test_the_layers_curve_is_awqs_search_and_its_best_is_what_awq_takes(alpha_rows):
    for row in alpha_rows:
        weight_OI, inputs_NI, _ = alpha.seeded_layer(row["outliers"])
        curve = awq_curve(weight_OI, inputs_NI, bits=row["bits"], group_size=row["size"])
        rounding = curve[0][1]
        assert row["curves"][0] == pytest.approx([error / rounding for _, error in curve])
        record = quantize_awq(weight_OI, inputs_NI, bits=row["bits"], group_size=row["size"])
        error = layer_error(weight_OI, record.dequantize(), layer_hessian(inputs_NI))
        assert row["least"][0] == pytest.approx(error / rounding) == pytest.approx(min(row["curves"][0]))
        assert row["curves"][0][round(row["best"] * alpha.STEPS)] == row["least"][0]


def test_all_errors_lie_in_the_frame_and_the_two_parts_nearly_add_up(alpha_rows):
    low, high = alpha.FRAME
    for row in alpha_rows:
        for whole, loud, rest in zip(*row["curves"], strict=True):
            assert all(low <= value <= high for value in (whole, loud, rest))
            assert abs(loud + rest - whole) < 0.11 * whole


def test_only_the_loud_channels_inputs_differ_between_the_layers():
    (weight, quiet, loud), (same, louder, places) = alpha.seeded_layer(1), alpha.seeded_layer(50)
    assert torch.equal(weight, same)
    assert torch.equal(loud, places)
    assert int(loud.sum()) == alpha.LOUD
    assert torch.equal(louder[:, loud], 50 * quiet[:, loud])
    assert torch.equal(louder[:, ~loud], quiet[:, ~loud])


@pytest.mark.parametrize("model", fit.MODELS)
def test_the_parts_of_a_model_add_up_to_its_published_count(model):
    sizes = fit.model_sizes(model)
    assert sizes["N_q"] + sizes["N_r"] == moe.count_parameters(published.model(model)).total
    known = [row for row in published.table("dense_parameter_counts") if row["model"] == model]
    for row in known:
        assert sizes["N_q"] == row["linear"]
    assert known or model in ("Mixtral-8x7B", "Llama-3-405B")


def test_llama_3_70b_weighs_what_the_published_table_says():
    table = {row["quantity"]: row["value"] for row in published.table("llama3_70b_sizes")}
    assert formulas_of("Llama-3-70B", bits=4, size=128, context=8192, kv=2) == pytest.approx(
        [table["4 bits, groups of 128 asymmetric, fp16 embeddings"], table["KV cache, 8192 tokens"]], abs=1e-3)
    assert formulas_of("Llama-3-70B", bits=16, size=0, context=8192, kv=2)[0] == pytest.approx(table["fp16"], abs=1e-3)


def formulas_of(model, bits, size, context, kv):
    """The GB of model and cache, as the chart's expressions give them in Vega."""
    return fit_values([{"model": model, "bits": bits, "size": size, "context": context, "kv": kv}])[0]


def fit_values(rows):
    _, parts = fit.expressions("bits")
    weights, rest, cache = parts.values()
    expression = as_datum(f"({weights} + {rest}) + ' ' + {cache}", ["sizes", "size", "bits", "context", "kv"])
    rows = [row | {"sizes": fit.model_sizes(row["model"])} for row in rows]
    return [list(map(float, value.split())) for value in evaluate_rows(expression, rows)]


def test_every_bar_ends_in_the_frame_and_is_what_the_groups_of_each_row_weigh():
    axes = {"model": fit.MODELS, "bits": fit.BITS, "size": fit.SIZES, "context": fit.CONTEXTS[::7], "kv": (1, 2)}
    rows = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    values = fit_values(rows)
    whole = {tuple(row[name] for name in ("model", "context", "kv")): sum(value)
             for row, value in zip(rows, values, strict=True) if row["bits"] == 16}
    for row, (model, cache) in zip(rows, values, strict=True):
        assert model + cache <= whole[row["model"], row["context"], row["kv"]] * (1 + 1e-12)
        shape, sizes = published.model(row["model"]), fit.model_sizes(row["model"])
        groups = sizes["N_q"] / row["size"] if row["size"] else fit.output_rows(shape)
        overhead = 0 if row["bits"] == 16 else groups * (16 + row["bits"]) / 8
        assert model == pytest.approx((sizes["N_q"] * row["bits"] / 8 + overhead + 2 * sizes["N_r"]) / 1e9)
        assert cache == pytest.approx(formulas.kv_cache_bytes(L=shape.layers, G=shape.kv_heads, d_h=shape.head_dim,
                                                              p_kv=row["kv"], s=row["context"]) / 1e9)


@pytest.mark.parametrize(("total", "words"), [
    (24, "fits one RTX 4090 (24 GB)"), (24.01, "fits one RTX 5090 (32 GB)"), (35.3, "fits one L40S (48 GB)"),
    (141.1, "fits 8 x H100 (640 GB)"), (641, "more than 8 H100 (640 GB) hold")])
def test_the_verdict_names_the_smallest_that_holds_it(total, words):
    assert evaluate_rows(fit.verdict("datum.total"), [{"total": total}]) == [words]


@pytest.mark.parametrize("chart", [grid_chart, ellipse_chart, alpha_chart, fit_chart])
def test_a_chart_is_the_same_each_time_it_is_made(chart):
    assert json.dumps(chart().to_dict(), sort_keys=True) == json.dumps(chart().to_dict(), sort_keys=True)

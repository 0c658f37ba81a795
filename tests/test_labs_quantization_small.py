"""A model trained in float32 repeats what a real model shows of GPTQ, and shows where AWQ has nothing to protect.

On AWQ the tables say: the error of the layers falls by 3 to 6%, and the loss does not follow. The same error can come
with a loss that is 5% higher or lower, and AWQ's loss is 2% above rounding's on average. No input channel is loud, so
there is nothing to protect. Make two of 128 loud, with the function unchanged: rounding loses 3 to 13 times as much,
and AWQ takes back nine tenths of that.
"""

import math
import statistics

import pytest
import torch

from scalebook import texts
from scalebook.data import load
from scalebook.labs import quantized_small as lab
from scalebook.labs.quantized_layers import METHODS, collect_hessians, quantize_apart, quantizer, restored


@pytest.fixture(scope="module")
def stored():
    return load(lab.NAME)


@pytest.fixture(scope="module")
def text():
    return tuple(map(lab.encode, texts.split()))


@pytest.fixture(scope="module")
def short(text):
    """The model after its first 20 steps, and the losses of these."""
    return lab.train(text[0], 20)


def rows(stored, method):
    return {(row["bits"], row["group_size"]): row for row in stored["rows"] if row["method"] == method}


def test_the_first_steps_of_training_are_those_that_were_stored(short, stored):
    assert short[1] == pytest.approx(stored["losses"], rel=1e-3)


def test_a_start_with_another_seed_is_another_one(text, stored):
    _, losses = lab.train(text[0], 1, seed=lab.SEED + 1)
    assert losses[0] != pytest.approx(stored["losses"][0], rel=1e-3)


def test_the_table_is_complete(stored):
    found = [(row["method"], row["bits"], row["group_size"]) for row in stored["rows"]]
    assert found == [(method, bits, group_size) for bits, group_size in lab.GRID for method in METHODS]
    for row in stored["rows"]:
        assert row["perplexity"] == pytest.approx(stored["base"]["perplexity"] * math.exp(row["loss"]), rel=1e-4)
    assert stored["base"]["perplexity"] < 6  # of 128 characters; the model has learnt


def test_gptq_loses_a_third_of_what_rounding_loses_at_most(stored):
    rounded, best = rows(stored, "rtn"), rows(stored, "gptq")
    for bits, group_size in lab.GRID:
        if bits < 8:
            assert best[bits, group_size]["loss"] < rounded[bits, group_size]["loss"] / 2.5, (bits, group_size)


# Why AWQ gains nothing here.


def test_awq_has_an_error_a_little_lower_than_rounding_and_no_lower_loss(stored):
    """What AWQ minimizes does fall. The perplexity does not follow: it is higher at some settings, lower at others."""
    rounded, scaled = rows(stored, "rtn"), rows(stored, "awq")
    ratios = {name: [scaled[place][name] / rounded[place][name] for place in rounded if place[0] < 8]
              for name in ("error", "loss")}
    assert len(ratios["error"]) == 9
    assert all(0.94 < ratio < 0.975 for ratio in ratios["error"])
    assert min(ratios["loss"]) < 0.9 < 1 < statistics.mean(ratios["loss"]) < 1.05 < max(ratios["loss"])


def test_the_same_error_comes_with_losses_that_differ_by_as_much_as_the_error_falls(stored):
    rounded = rows(stored, "rtn")
    for row in stored["scatter"]:
        plain = rounded[row["bits"], row["group_size"]]
        assert len(row["losses"]) == lab.SCATTER_SEEDS
        assert all(error == pytest.approx(plain["error"], rel=0.01) for error in row["errors"])
        spread = statistics.stdev(row["losses"]) / statistics.mean(row["losses"])
        assert 0.03 < spread < 0.08
    assert [(row["bits"], row["group_size"]) for row in stored["scatter"]] == lab.PLACES


def test_no_input_channel_is_loud_and_awq_chooses_a_small_alpha(stored):
    assert len(stored["outliers"]) == 4 * lab.SHAPE.layers
    for row in stored["outliers"]:
        assert row["largest"] < 3.5 * row["median"], row
        assert row["alpha"] <= 0.5, row
        assert row["gain_at_1"] < 1 <= row["gain"] <= 1.3, row
    assert statistics.median(row["gain"] for row in stored["outliers"]) < 1.06


def test_where_channels_are_loud_awq_takes_back_what_they_cost_rounding(stored):
    """The same function; two channels behind each norm are 30 times as large, and their weights as much smaller."""
    quiet, loud = rows(stored, "rtn"), {method: {(row["bits"], row["group_size"]): row for row in stored["loud"]
                                                 if row["method"] == method} for method in METHODS}
    for place in lab.PLACES:
        cost = loud["rtn"][place]["loss"] - quiet[place]["loss"]
        assert cost > 2 * quiet[place]["loss"]
        assert loud["awq"][place]["loss"] - quiet[place]["loss"] < 0.1 * cost
        assert loud["gptq"][place]["loss"] < quiet[place]["loss"]
    for before, after in zip(stored["outliers"], stored["loud_outliers"], strict=True):
        assert (before["block"], before["names"]) == (after["block"], after["names"])
        if after["names"] in ("qkv", "up"):
            assert after["largest"] > 30 * after["median"]
            assert after["alpha"] >= 0.65
            assert after["gain"] > 2
        else:
            assert {name: after[name] for name in ("alpha", "channel")} == {
                name: before[name] for name in ("alpha", "channel")}


def test_loud_channels_leave_the_function_and_come_off_again(short, text):
    model, _ = short
    tokens = lab.take_windows(text[1], 4, lab.SHAPE.context)
    before, logits = {name: value.clone() for name, value in model.named_parameters()}, model(tokens)
    quiet = lab.collect_hessians(model, [tokens])
    with lab.with_loud_channels(model):
        torch.testing.assert_close(model(tokens), logits, rtol=1e-4, atol=1e-4)
        loud = lab.collect_hessians(model, [tokens])
        found = lab.what_awq_finds(model, [tokens], loud)
    assert all(torch.equal(value, before[name]) for name, value in model.named_parameters())
    for row in found:
        key = row["block"], (row["names"],)
        if row["names"] in ("qkv", "up"):
            sizes = (loud[key].diagonal() / quiet[key].diagonal()).sqrt()
            assert (sizes > 2).sum() == lab.LOUD_CHANNELS
            assert float(sizes.max()) == pytest.approx(lab.LOUDNESS, rel=1e-3)
            assert row["gain"] > 1.2, row
        else:
            torch.testing.assert_close(loud[key], quiet[key], rtol=1e-3, atol=1e-5)


def test_scattered_rounding_has_the_error_of_rounding_and_another_loss_for_each_seed(short, text):
    model, _ = short
    tokens = lab.take_windows(text[1], 8, lab.SHAPE.context)
    base, hessians = lab.measure_perplexity(model, tokens, batch=8), collect_hessians(model, [tokens])
    [row] = lab.scattered_losses(model, tokens, base, hessians, places=[(3, 32)], seeds=3)
    with restored(model):
        plain = statistics.mean(quantize_apart(model, quantizer("rtn", 3, 32), hessians)[0].values())
    assert len(set(row["losses"])) == 3
    assert all(error == pytest.approx(plain, rel=0.03) for error in row["errors"])
    assert lab.scattered(model, tokens, base, hessians, 3, 32, 1) == (row["losses"][1], row["errors"][1])


def test_measuring_leaves_the_model_as_it_was(short, text):
    model, _ = short
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    base, found = lab.measure(model, text[0], text[1], grid=[(2, None)])
    assert [row["method"] for row in found] == list(METHODS)
    assert base.value == pytest.approx(math.exp(base.nll))
    assert all(torch.equal(parameter, before[name]) for name, parameter in model.named_parameters())


def test_every_method_quantizes_the_small_model_too(short, text):
    model, _ = short
    calibration = lab.take_windows(text[0], 8, lab.SHAPE.context)
    hessians = collect_hessians(model, [calibration])
    for method in METHODS:
        with restored(model):
            errors, records = quantize_apart(model, quantizer(method, 4, 32), hessians)
        assert len(errors) == len(records) == 4 * lab.SHAPE.layers
        assert all(0 < error < 0.1 for error in errors.values())

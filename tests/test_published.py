"""The published figures: every one has a source, and those that can be recomputed agree with themselves."""

import dataclasses
import math
import re

import pytest

from scalebook import published
from scalebook.moe import count_parameters
from scalebook.published import Machine, ModelShape, Table, files
from scalebook.published.tables import NOT_TABLES

SOURCE = re.compile(r"arXiv:\d{4}\.\d{5}|\w+/[\w.-]+,|computed|released configuration|gguf 0|MLSys|launch script"
                    r"|\w+/[\w.-]+, README|sail-sg/|Mistral blog|model card|torch \d")


def every_table():
    return [published.table(name) for name in published.tables()]


def model_entries():
    return [published.model(name) for name in published.models()]


def rows_of_counts():
    return [("moe_parameter_counts", row) for row in published.table("moe_parameter_counts")] + \
           [("dense_parameter_counts", row) for row in published.table("dense_parameter_counts")]


# Sources ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("found", every_table(), ids=lambda t: t.name)
def test_every_row_of_a_table_has_a_source(found):
    assert len(found) > 0
    for row in found:
        assert found.source_of(row).strip()
        if "source" not in found.columns:
            assert SOURCE.search(found.source), found.source


@pytest.mark.parametrize("name", published.models())
def test_every_model_has_a_source(name):
    assert SOURCE.search(published.model(name).source), published.model(name).source


@pytest.mark.parametrize("name", published.machines())
def test_every_machine_has_a_source_for_each_kind_of_figure(name):
    found = published.machine(name)
    assert SOURCE.search(found.source)
    for figure, word in (("nvlink_one_way", "NVLink"), ("peak_flops", "peak"), ("memory_bytes", "memory")):
        assert getattr(found, figure) is None or word in found.source, f"{figure} has no source"


def test_a_table_without_a_source_is_refused():
    with pytest.raises(ValueError, match="source"):
        Table("t", " ", ("a",), ((1,),))


def test_a_row_with_an_empty_source_column_is_refused():
    with pytest.raises(ValueError, match="row 1 has no source"):
        Table("t", "each row names its own", ("a", "source"), ((1, "arXiv:1"), (2, "")))


def test_tables_do_not_depend_on_files_outside_the_package():
    for stem in files.stems():
        assert (files.FOLDER / f"{stem}.toml").is_file()
    assert set(NOT_TABLES) < set(files.stems())


# Tables ----------------------------------------------------------------------------------------------------


def test_where_row_and_column_agree_with_the_rows():
    table = published.table("narayanan2021_table1")
    assert len(table) == 5
    assert table.where(TP=8).column("PP") == [2, 8, 64]
    assert table.where(TP=8, PP=64).row() == table.rows[-1]
    assert list(table.where(TP=3)) == []


def test_an_unknown_column_is_refused_with_the_columns_there_are():
    with pytest.raises(ValueError, match=r"no column 'pp'; it has params_B"):
        published.table("narayanan2021_table1").where(pp=64)
    with pytest.raises(ValueError, match="no column 'stages'"):
        published.table("narayanan2021_table1").column("stages")


def test_row_refuses_to_choose():
    with pytest.raises(ValueError, match="3 rows meet"):
        published.table("narayanan2021_table1").row(TP=8)


def test_an_empty_cell_is_none_and_a_row_of_wrong_length_is_refused():
    assert published.table("switch_table1").rows[0]["capacity_factor"] is None
    with pytest.raises(ValueError, match="row 0 has 1 values for 2 columns"):
        Table("t", "arXiv:1", ("a", "b"), ((1,),))
    with pytest.raises(ValueError, match="'c', which is not a column"):
        Table("t", "arXiv:1", ("a",), ({"c": 1},))
    with pytest.raises(ValueError, match="units names 'c'"):
        Table("t", "arXiv:1", ("a",), ((1,),), units={"c": "GB"})
    with pytest.raises(ValueError, match="each once"):
        Table("t", "arXiv:1", ("a", "a"), ((1, 2),))


def test_a_table_shows_its_source_and_escapes_its_text():
    html = published.table("pipeline_formulas")._repr_html_()
    assert "F&amp;B" in html
    assert "<caption>arXiv:2104.04473</caption>" in html
    assert " at 0x" not in html


@pytest.mark.parametrize(("kind", "wrong", "nearest"), [
    (published.table, "zb_table", "'zb_table"), (published.model, "Mixtral 8x7B", "'Mixtral-8x7B'"),
    (published.machine, "h100", "'H100'"), (published.model, "??", "'DBRX'")])
def test_an_unknown_name_lists_the_nearest(kind, wrong, nearest):
    with pytest.raises(ValueError, match="nearest names are") as error:
        kind(wrong)
    assert repr(wrong) in str(error.value)
    assert nearest in str(error.value)


# Models ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("table", "row"), rows_of_counts(), ids=lambda x: x["model"] if isinstance(x, dict) else "")
def test_a_shape_gives_the_computed_parameter_count_exactly(table, row):
    count = count_parameters(published.model(row["model"]))
    assert count.total == row["total"]
    if table == "moe_parameter_counts":
        assert count.active == row["active"]


@pytest.mark.parametrize(("name", "printed_e9", "digits"), [
    ("GPT-3-175B", 174.6, 1), ("MT-NLG-530B", 530, 0), ("BLOOM-176B", 176.2, 1),
    ("Llama-3-405B", 406, 0), ("Mistral-7B", 7.2, 1),
    ("gpt-oss-120b", 116.83, 2), ("gpt-oss-20b", 20.91, 2), ("Qwen3-30B-A3B", 30.5, 1), ("Qwen3-235B-A22B", 235, 0)])
def test_a_shape_gives_the_printed_parameter_count(name, printed_e9, digits):
    assert round(count_parameters(published.model(name)).total / 1e9, digits) == printed_e9


def test_layers_of_large_models_agree_with_the_shapes():
    layers = {row["model"]: row["layers"] for row in published.table("layers_of_large_models")}
    assert layers == {"DeepSeek-V3": 61, "GPT-3 175B": 96, "MT-NLG 530B": 105, "Llama 3 405B": 126}
    for printed, name in (("DeepSeek-V3", "DeepSeek-V3"), ("GPT-3 175B", "GPT-3-175B"),
                          ("MT-NLG 530B", "MT-NLG-530B"), ("Llama 3 405B", "Llama-3-405B")):
        assert published.model(name).layers == layers[printed]


def test_moe_layers_respect_leading_dense_layers_and_every_nth():
    shape = published.model("DeepSeek-V3")
    assert shape.moe_layers == tuple(range(3, 61))
    every_second = dataclasses.replace(shape, layers=10, dense_layers=2, moe_every=2)
    assert every_second.moe_layers == (3, 5, 7, 9)
    assert published.model("Llama-3-8B").moe_layers == ()


@pytest.mark.parametrize(("name", "change", "message"), [
    ("Mixtral-8x7B", {"top_k": 9}, "top_k = 9 .* at most experts"),
    ("Mixtral-8x7B", {"layers": 0}, "layers = 0 .* at least 1"),
    ("Mixtral-8x7B", {"kv_heads": 5}, "kv_heads = 5 .* divisor of heads"),
    ("Mixtral-8x7B", {"d_ff_expert": 0}, "d_ff_expert = 0 "),
    ("Mixtral-8x7B", {"scoring": "none"}, "scoring = 'none'"),
    ("Mixtral-8x7B", {"dense_layers": 1}, "d_ff = 0 .* some layer is dense"),
    ("Mixtral-8x7B", {"dense_layers": 32}, "dense_layers = 32 .* below layers"),
    ("Mixtral-8x7B", {"moe_every": 2}, "d_ff = 0 "),
    ("Mixtral-8x7B", {"ffn_mats": 4}, "ffn_mats = 4 .* one of 2, 3"),
    ("Mixtral-8x7B", {"norm": "none"}, "norm = 'none' .* 'rmsnorm'"),
    ("Mixtral-8x7B", {"source": " "}, "source"),
    ("Mixtral-8x7B", {"v_head": 64}, "v_head = 64 .* 0 when kv_lora_rank is 0"),
    ("Mixtral-8x7B", {"head_dim": 0}, "head_dim = 0 "),
    ("Mixtral-8x7B", {"tied_embeddings": 1}, "tied_embeddings = 1 .* True or False"),
    ("Mixtral-8x7B", {"vocabulary": 32000.0}, "vocabulary = 32000.0 .* whole number"),
    ("Mixtral-8x7B", {"vocabulary": True}, "vocabulary = True "),
    ("DeepSeek-V3", {"head_dim": 128}, "head_dim = 128 .* 0 when kv_lora_rank"),
    ("DeepSeek-V3", {"kv_heads": 8}, "kv_heads = 8 .* equal to heads"),
    ("DeepSeek-V3", {"qk_rope": 0}, "qk_rope = 0 "),
    ("DeepSeek-V3", {"expert_groups": 7}, "expert_groups = 7 .* divisor of experts"),
    ("DeepSeek-V3", {"groups_per_token": 9}, "groups_per_token = 9 .* at most expert_groups"),
    ("DeepSeek-V3", {"route_scale": 0}, "route_scale = 0 .* above 0"),
    ("Llama-3-8B", {"shared_experts": 1}, "shared_experts = 1 .* 0 when experts is 0"),
    ("Llama-3-8B", {"shared_expert_gate": True}, "shared_expert_gate = True .* False when shared_experts is 0"),
    ("Llama-3-8B", {"layers": 10**22}, "layers = 10000000000000000000000 .* at most 16384"),
    ("Mixtral-8x7B", {"experts": 2**17}, "experts = 131072 .* at most 65536"),
    ("Mixtral-8x7B", {"route_scale": float("nan")}, "route_scale = nan .* a finite number above 0"),
    ("Llama-3-8B", {"d_ff": 0}, "d_ff = 0 ")])
def test_an_impossible_shape_is_refused_by_field_value_and_what_is_allowed(name, change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(published.model(name), **change)


def test_an_unknown_field_in_a_file_is_refused():
    with pytest.raises(ValueError, match="'d_modle' is not a field"):
        files.build(ModelShape, "model", "X", {"d_modle": 1})


# Machines --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", [row for row in published.table("interconnect") if row["two_way_GBs"]],
                         ids=lambda row: row["link"])
def test_machines_and_the_interconnect_table_agree(row):
    name = {"V100": "V100", "A100": "A100-80GB", "H100": "H100", "B200": "B200"}[row["link"].split()[-1]]
    assert published.machine(name).nvlink_one_way == row["one_way_GBs"] * 1e9
    assert published.machine(name).nvlink_two_way == row["two_way_GBs"] * 1e9 == 2 * row["one_way_GBs"] * 1e9


def test_what_no_source_states_is_none():
    assert published.machine("V100").peak_flops is None
    assert published.machine("B200").internode_gpu is None
    assert published.machine("H100").internode_gpu == 50e9


@pytest.mark.parametrize(("change", "message"), [
    ({"nvlink_two_way": 300e9}, "nvlink_two_way = .* twice"), ({"peak_flops": 0}, "peak_flops = 0 "),
    ({"memory_bytes": "80"}, "memory_bytes = '80' "), ({"gpu": ""}, "gpu = '' ")])
def test_an_impossible_machine_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(published.machine("A100-80GB"), **change)
    assert isinstance(published.machine("A100-80GB"), Machine)


# Figures that can be recomputed from their own row ---------------------------------------------------------


@pytest.mark.parametrize("row", published.table("narayanan2021_table1").rows, ids=lambda r: f"{r['params_B']}B")
def test_narayanan_table1_is_consistent_with_itself(row):
    replicas, rest = divmod(row["GPUs"], row["TP"] * row["PP"])
    assert rest == 0
    assert row["batch"] % replicas == 0
    assert row["layers"] % row["PP"] == 0
    peak = published.machine("A100-80GB").peak_flops / 1e12
    assert abs(100 * row["TFLOPs_per_GPU"] / peak - row["pct_peak"]) < 0.7
    # The aggregate is of the unrounded TFLOP/s: half a TFLOP/s a GPU either way, and its own last digit.
    aggregate = row["TFLOPs_per_GPU"] * row["GPUs"] / 1e3
    assert abs(aggregate - row["agg_PFLOPs"]) <= 0.5 * row["GPUs"] / 1e3 + 0.051
    h, layers, vocabulary, s = row["hidden"], row["layers"], 51200, 2048
    parameters = 12 * layers * h**2 * (1 + 13 / (12 * h) + (vocabulary + s) / (12 * layers * h))
    assert round(parameters / 1e9, 1) == row["params_B"]


@pytest.mark.parametrize("row", published.table("narayanan2021_table2").rows,
                         ids=lambda r: f"{r['scheme']}-{r['GPUs']}")
def test_narayanan_table2_days_follow_from_flops_within_a_day(row):
    layers, h, vocabulary, s, tokens = 96, 12288, 51200, 2048, 300e9
    flops = 96 * tokens * layers * h**2 * (1 + s / (6 * h) + vocabulary / (16 * layers * h))
    days = flops / (row["GPUs"] * row["TFLOPs_per_GPU"] * 1e12) / 86400
    assert abs(days - row["days_300B"]) < 1.0
    assert row["GPUs"] % row["MP"] == 0


@pytest.mark.parametrize("row", [row for row in published.table("runs_3d") if row["DP"]],
                         ids=lambda r: f"{r['run']}-{r['GPUs']}")
def test_gpus_are_the_product_of_the_axes(row):
    assert row["TP"] * (row["CP"] or 1) * row["PP"] * row["DP"] == row["GPUs"]


@pytest.mark.parametrize("row", [row for row in published.table("runs_3d") if row["MFU_pct"]],
                         ids=lambda r: r["run"])
def test_llama3_mfu_is_tflops_over_the_h100_peak(row):
    peak = published.machine("H100").peak_flops / 1e12
    assert abs(100 * row["TFLOPs_per_GPU"] / peak - row["MFU_pct"]) < 0.7


@pytest.mark.parametrize("row", published.table("korthikanti2022_table5").rows, ids=lambda r: r["model"])
def test_korthikanti_speedup_and_mfu_follow_from_the_times(row):
    # The paper divides the time saved by the new time; its times are rounded to 0.01 s.
    assert abs(100 * (row["t_full_s"] / row["t_present_s"] - 1) - row["speedup_pct"]) < 0.15
    assert row["TP"] * row["PP"] == row["GPUs"]
    s, vocabulary, peak = 2048, 51200, 312e12
    layers = published.model("GPT-3-175B" if row["model"] == "175B" else "MT-NLG-530B").layers
    h, batch = row["hidden"], row["global_batch"]
    model_flops = 72 * batch * layers * s * h**2 * (1 + s / (6 * h) + vocabulary / (12 * h * layers))
    mfu = 100 * model_flops / (row["t_present_s"] * row["GPUs"] * peak)
    assert abs(mfu - row["MFU"]) < 0.1


@pytest.mark.parametrize("row", [*published.table("bloom_configurations").rows, published.table("runs_3d").row(
    run="BLOOM 176B") | {"seconds": 104.70}], ids=lambda row: f"{row['seconds']}")
def test_blooms_flops_follow_from_its_seconds(row):
    # The program counts FLOPs by equation 3 of arXiv:2104.04473, with recomputation.
    layers, h, vocabulary, s = 70, 14336, 250880, 2048
    flops = 96 * row["sequences"] * s * layers * h**2 * (1 + s / (6 * h) + vocabulary / (16 * layers * h))
    assert flops / (384 * row["seconds"] * 1e12) == pytest.approx(row["TFLOPs_per_GPU"], rel=0.005)
    assert row["TP"] * row["PP"] * row["DP"] == 384


def test_deepseek_v3s_steps_and_days_are_the_same_speed():
    for row in published.table("deepseek_v3_step"):
        assert 15360 * 4096 / row["seconds"] * 86400 / 1e9 == pytest.approx(row["tokens_a_day_B"], abs=0.02)
        peak = published.machine("H100").peak_flops  # an H800 computes as an H100 does
        assert 100 * row["tokens_a_day_B"] * 1e9 / 86400 * 250e9 / (2048 * peak) == pytest.approx(
            row["MFU_causal_pct"], rel=0.005)


def test_the_printed_totals_of_trainings_agree_with_themselves():
    totals = {row["run"]: row for row in published.table("training_totals")}
    for name, parameters in (("GPT-3 175B", 174.6e9), ("Narayanan 1T", 1008e9), ("BLOOM 176B", 167e9)):
        row = totals[name]
        days = 8 * row["tokens_B"] * 1e9 * parameters / (row["GPUs"] * row["TFLOPs_per_GPU"] * 1e12) / 86400
        assert days == pytest.approx(row["days"], rel=0.01)
    assert totals["DeepSeek-V3"]["GPU_hours_M"] == pytest.approx(0.18 * totals["DeepSeek-V3"]["tokens_B"] / 1000)
    days_of_1e12_tokens = 180_000 / 2048 / 24
    assert days_of_1e12_tokens == pytest.approx(3.7, abs=0.05)
    llama_flops = 6 * 405e9 * 15.6e12
    assert llama_flops == pytest.approx(totals["Llama 3 405B"]["FLOPs"], rel=0.01)


def test_zero_bubble_rates_lie_above_the_ideal_for_1f1b():
    for row in published.table("zb_table5_bubble_rate"):
        ideal = (row["p"] - 1) / (row["m"] + row["p"] - 1)
        assert ideal < row["1F1B"] < 1.3 * ideal
        assert row["ZB-2p"] < row["ZB-H2"] < row["ZB-H1"] < row["1F1B"]


def test_zero_bubble_table4_has_every_model_schedule_and_size_once():
    table = published.table("zb_table4")
    keys = {(row["model"], row["m"], row["schedule"]) for row in table}
    assert len(keys) == len(table) == 4 * 3 * 4
    row = table.row(model="28.3B", m=256, schedule="ZB-1p")
    assert (row["samples_per_GPU_s"], row["memory_GB"]) == (0.96, 44)


def test_gpipe_table2_is_normalised_and_exceeds_the_ideal_as_its_note_says():
    table = published.table("gpipe_table2")
    for name in ("AmoebaNet", "Transformer"):
        assert table.row(model=name, K=2, M=1)["speedup"] == 1

    def ideal(k, m):
        return (k * m / (m + k - 1)) / (2 * 1 / (1 + 2 - 1))

    four = [table.row(model="Transformer", K=k, M=4)["speedup"] for k in (2, 4, 8)]
    assert [round(ideal(k, 4), 2) for k in (2, 4, 8)] == [1.60, 2.29, 2.91]
    assert all(printed > ideal(k, 4) for printed, k in zip(four, (2, 4, 8), strict=True))


def test_zero_table1_follows_from_its_formulas():
    psi, extra = 7.5, 12
    for row in published.table("zero_table1"):
        ranks = row["DP"]
        exact = (4 * psi + extra * psi / ranks, 2 * psi + (2 + extra) * psi / ranks, (4 + extra) * psi / ranks)
        for printed, value in zip((row["os_GB"], row["os_g_GB"], row["os_g_p_GB"]), exact, strict=True):
            digits = len(str(printed).partition(".")[2].rstrip("0"))
            assert abs(printed - value) <= 0.5 * 10**-digits + 1e-9


def test_the_cube_follows_from_sixteen_bytes_a_parameter():
    largest = {row["plan"]: row["max_params_B"] for row in published.table("cube_8x8x8")}
    model_gpus, d, budget = 64, 8, 80
    assert largest["one GPU"] == budget / 16
    assert largest["TP8xPP8, plain DP"] == model_gpus * budget / 16
    assert math.isclose(largest["+ZeRO-1 over d=8"], model_gpus * budget / (4 + 12 / d), rel_tol=1e-4)
    assert largest["+ZeRO-3 over d=8"] == model_gpus * d * budget / 16


def test_ggml_bits_follow_from_block_and_bytes():
    for row in published.table("ggml_block_types"):
        assert 8 * row["bytes"] / row["block"] == row["bits_per_weight"]


def test_printed_perplexities_are_at_or_above_the_unquantized_model():
    for name in ("gptq_table3_opt_wikitext2", "gptq_table4_bloom_wikitext2"):
        table = published.table(name)
        for row in table:
            assert row["perplexity"] >= table.row(model=row["model"], method="fp16")["perplexity"]

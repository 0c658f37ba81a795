"""The planner's formulas are those of the earlier chapters for the papers' GPT, and published tables hold."""

from fractions import Fraction

import pytest
import sympy

from scalebook import published
from scalebook.formulas import planner, tensor_parallel, zero
from scalebook.moe import count_parameters, flops_per_token
from scalebook.planner import gpt, sizes_of

h, L, V, s, t, a, b = (getattr(tensor_parallel, name) for name in "hLVstab")
# A layer of the papers' GPT, in the planner's numbers: counted by hand from the matrices, biases and norms.
GPT = {planner.Psi_t: 12 * h**2 + 7 * h, planner.Psi_c: 6 * h, planner.Psi_x: 0, planner.Psi_m: 12 * h**2,
       planner.A_o: 10 * h, planner.A_i: 24 * h, planner.A_s: 5, planner.n_c: 1, planner.kappa: s, planner.d_h: h / a}


def same(ours, theirs):
    return sympy.simplify(ours.subs(GPT) - theirs) == 0


def test_the_parameters_of_a_rank_are_chapter_3s():
    ends = {planner.Psi_V: V * h, planner.Psi_o: s * h + 2 * h}
    whole = planner.rank_parameters.expression.subs({planner.ell: L, **ends})
    assert same(whole, tensor_parallel.parameters_per_rank.expression)


@pytest.mark.parametrize(("ours", "theirs", "share"), [
    ("kept_none", "activations_tensor_parallel", 1), ("kept_none", "activations_sequence_parallel", t),
    ("kept_selective", "activations_selective", 1), ("kept_selective", "activations_sequence_parallel_selective", t),
    ("kept_full", "activations_full", 1),
])
def test_kept_activations_are_chapter_3s(ours, theirs, share):
    assert same(getattr(planner, ours).expression.subs(planner.n_s, share), getattr(tensor_parallel, theirs).expression)


def test_flops_are_the_papers_equations():
    model = planner.model_flops.expression.subs(planner.B_s, b)
    assert same(model, tensor_parallel.flops_model.expression)
    full = planner.hardware_flops.expression.subs({planner.B_s: b, planner.x_m: 1, planner.x_s: 1})
    assert same(full, tensor_parallel.flops_model_recomputed.expression)


def test_the_time_of_what_ranks_send_in_a_layer_is_chapter_3s():
    ours = planner.tensor_time.expression.subs({planner.ell: 1, tensor_parallel.n: 4})
    assert same(ours, tensor_parallel.communication_time.expression)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_states_of_a_whole_model_are_chapter_5s(stage):
    psi = zero.Psi
    whole = {planner.ell: 1, planner.Psi_t: psi, planner.Psi_c: 0, planner.Psi_x: 0, planner.Psi_V: 0,
             planner.Psi_o: 0, planner.n_c: 1, t: 1, planner.n_e: 1, planner.Z: stage}
    ours = sum(getattr(planner, name).expression.subs(whole) for name in ("weight_bytes", "gradient_bytes",
                                                                           "optimizer_bytes"))
    assert sympy.simplify(ours - zero.STATE_BYTES[stage].expression) == 0


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_what_data_parallel_ranks_send_is_chapter_5s_elements(stage):
    psi = zero.Psi
    whole = {planner.ell: 1, planner.Psi_t: psi, planner.Psi_c: 0, planner.Psi_x: 0, planner.Psi_V: 0,
             planner.Psi_o: 0, planner.n_c: 1, t: 1, planner.n_e: 1, planner.Z: stage, zero.b_w: 1, zero.b_g: 1,
             planner.omega: 1, planner.omega_x: 1}
    assert sympy.simplify(planner.data_time.expression.subs(whole) - zero.ELEMENTS[stage].expression) == 0


@pytest.mark.parametrize("name", published.models())
def test_the_sizes_of_every_published_model_add_up_to_its_parameters_and_flops(name):
    shape = published.model(name)
    sizes = sizes_of(shape)
    tables = sizes.V * sizes.h * (1 if sizes.tied else 2)
    whole = sizes.L * (sizes.Psi_t + sizes.Psi_c + sizes.Psi_x) + tables + sizes.positions + sizes.norm
    assert whole == pytest.approx(count_parameters(shape).total, rel=1e-12)
    flops = flops_per_token(shape, 4096, backward=True).total
    ours = planner.model_flops(**{key: value for key, value in sizes.layer.items()
                                  if key in ("h", "a", "L", "V", "d_h", "Psi_m")}, s=4096, kappa=4096, B_s=1)
    assert float(ours) == pytest.approx(4096 * flops, rel=1e-12)


def test_parameters_and_flops_of_every_row_of_narayanans_table_1():
    for row in published.table("narayanan2021_table1"):
        shape = gpt(row["hidden"], row["heads"], row["layers"])
        assert round(count_parameters(shape).total / 1e9, 1) == row["params_B"]
        by_equation_2 = tensor_parallel.parameters_narayanan(L=row["layers"], h=row["hidden"], V=51200, s=2048)
        assert count_parameters(shape).total == by_equation_2 + 2 * row["hidden"]  # the last LayerNorm
        assert row["TFLOPs_per_GPU"] * row["GPUs"] / 1000 == pytest.approx(row["agg_PFLOPs"], rel=0.01)
        utilization = planner.utilization(C_s=row["TFLOPs_per_GPU"], T_s=1, g_p=1, rho_p=312)
        assert abs(100 * utilization - row["pct_peak"]) <= 0.5


def test_days_of_training_of_every_row_of_narayanans_table_2():
    flops = tensor_parallel.flops_model_recomputed(b=1536, s=2048, L=96, h=12288, V=51200)
    for row in published.table("narayanan2021_table2"):
        days = planner.training_days(T_n=300 * 10**9, C_s=flops, B_s=1536, s=2048, g_p=row["GPUs"],
                                     rho=row["TFLOPs_per_GPU"] * 10**12)
        assert abs(float(days) - row["days_300B"]) < 1


def test_mfu_and_hfu_of_every_row_of_korthikantis_table_5():
    for row in published.table("korthikanti2022_table5"):
        size = {"b": row["global_batch"], "s": 2048, "L": row["layers"], "h": row["hidden"], "V": 51200}
        used = {"T_s": Fraction(str(row["t_present_s"])), "g_p": row["GPUs"], "rho_p": 312 * 10**12}
        mfu = 100 * planner.utilization(C_s=tensor_parallel.flops_model(**size), **used)
        hfu = 100 * planner.utilization(C_s=planner.hardware_flops_korthikanti(**size), **used)
        assert abs(mfu - row["MFU"]) < 0.1
        assert abs(hfu - row["HFU"]) < 0.1


def test_flops_per_second_of_mt_nlg_follow_from_its_iteration_times():
    for row in published.table("runs_3d").where(run="MT-NLG 530B"):
        flops = tensor_parallel.flops_model_recomputed(b=row["sequences"], s=2048, L=105, h=20480, V=51200)
        seconds = float(row["note"].split()[0])
        assert float(flops) / (seconds * row["GPUs"] * 1e12) == pytest.approx(row["TFLOPs_per_GPU"], abs=0.7)


def test_the_cube_holds_64_186_and_512_times_what_one_gpu_holds():
    """8 x 8 x 8 GPUs of 80 GB, 16 bytes a parameter: model states only."""
    bytes_of = {stage: states_of_the_cube(stage) for stage in (0, 1, 3)}
    one_gpu = 16 * 10**12
    ratios = {stage: Fraction(one_gpu) / Fraction(each) for stage, each in bytes_of.items()}
    assert (ratios[0], round(float(ratios[1]), 1), ratios[3]) == (64, 186.2, 512)
    assert float(bytes_of[1]) == 85.9375e9  # one trillion parameters with ZeRO-1: more than 80 GB
    table = published.table("cube_8x8x8")
    for stage, plan in ((0, "TP8xPP8, plain DP"), (1, "+ZeRO-1 over d=8"), (3, "+ZeRO-3 over d=8")):
        largest = Fraction(80 * 10**9) / (Fraction(bytes_of[stage]) / 10**12)
        assert round(float(largest) / 1e9, 1) == table.row(plan=plan)["max_params_B"]


def states_of_the_cube(stage):
    """Bytes of a rank, a trillion parameters split by 8 tensor-parallel ranks and 8 stages, here as one layer in 64."""
    values = {"Psi_t": 10**12, "Psi_c": 0, "Psi_x": 0, "Psi_V": 0, "Psi_o": 0, "ell": 1, "t": 64, "n_c": 1, "n_e": 1,
              "N": 8, "Z": stage, "b_w": 2, "b_g": 2, "K": 12}
    parts = (planner.weight_bytes, planner.gradient_bytes, planner.optimizer_bytes)
    return sum(part(**{variable.name: values[variable.name] for variable in part.symbols}) for part in parts)

"""Estimates: every part from its formula, the reasons of plans that cannot be run, and errors by name."""

import doctest
import re
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scalebook import published
from scalebook.formulas import pipeline, zero
from scalebook.formulas import planner as formulas
from scalebook.planner import Cluster, Plan, clusters, costs, estimate, estimating, gpt, plans, sizes, sizes_of

H100, A100 = published.machine("H100"), published.machine("A100-80GB")
LLAMA = published.model("Llama-3-70B")
PLAN = Plan(tp=8, pp=4, dp=16, batch=512, sequence=8192, chunks=5)


@pytest.mark.parametrize("module", [clusters, estimating, plans, sizes], ids=lambda module: module.__name__)
def test_the_examples_in_the_docstrings_hold(module):
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


def test_parts_add_up_and_each_has_its_formula():
    found = estimate(LLAMA, Cluster(H100, 512), PLAN)
    assert found.feasible
    assert found.memory_bytes == sum(found.memory.values())
    assert found.step_seconds == sum(found.time.values())
    for kind, parts, unit in (("memory", found.memory, "byte"), ("time", found.time, "s")):
        assert {part for part, value in parts.items() if value} <= set(found.formulas[kind])
        assert {formula.unit for formula in found.formulas[kind].values()} == {unit}
    assert found.formulas["time"]["bubble"] is formulas.bubble_time
    assert found.formulas["memory"]["activations"] is formulas.kept_none
    assert found.formulas["time"]["pipeline parallel"] is formulas.pipeline_time_interleaved


def test_the_optimizer_has_a_formula_of_its_bytes_and_another_of_its_time():
    found = estimate(LLAMA, Cluster(H100, 512), replace(PLAN, recompute="full", chunks=1, overlap=False))
    assert found.formulas["memory"]["optimizer"] is formulas.optimizer_bytes
    assert found.formulas["time"]["optimizer"] is formulas.optimizer_time
    assert found.formulas["memory"]["recomputed activations"] is formulas.working_full
    assert found.formulas["time"]["pipeline parallel"] is formulas.pipeline_time_1f1b


def test_weights_gradients_and_optimizer_of_one_gpu_are_chapter_5s():
    shape = published.model("Llama-3-8B")
    plan = Plan(tp=1, pp=1, dp=8, batch=64, sequence=4096)
    for stage in (0, 1, 2, 3):
        memory = estimate(shape, Cluster(H100, 8), replace(plan, zero=stage)).memory
        states = memory["weights"] + memory["gradients"] + memory["optimizer"]
        values = {"Psi": 8030261248, "b_w": 2, "b_g": 2, "K": 12} | ({"N": 8} if stage else {})
        assert states == pytest.approx(float(zero.STATE_BYTES[stage](**values)), rel=1e-12)


def test_the_bubble_is_chapter_4s_share_of_the_time_in_micro_batches():
    found = estimate(LLAMA, Cluster(H100, 512), PLAN)
    inside = sum(found.time[part] for part in costs.MICRO_BATCH)
    overhead = float(pipeline.bubble_overhead_interleaved(P=4, v=5, M=32))
    assert found.time["bubble"] == pytest.approx(overhead * inside, rel=1e-12)


def test_the_first_stage_holds_as_many_micro_batches_as_stages_and_recomputation_keeps_inputs_only():
    model, cluster = gpt(12288, 96, 96), Cluster(A100, 64)
    plan = Plan(tp=8, pp=8, dp=1, batch=64, sequence=2048, attention="unfused", zero=0)
    sbh = 2048 * 12288
    for recompute, layer in (("none", 34 * sbh + 5 * 96 * 2048**2), ("selective", 34 * sbh), ("full", 2 * sbh)):
        kept = estimate(model, cluster, replace(plan, recompute=recompute)).memory["activations"]
        assert kept == pytest.approx(8 * 12 * layer / 8)  # equation 5 of arXiv:2205.05198: L layers' worth, over t
    interleaved = estimate(model, cluster, replace(plan, chunks=3)).memory["activations"]
    assert interleaved / estimate(model, cluster, plan).memory["activations"] == pytest.approx(1 + 7 / (8 * 3))


def test_utilization_is_flops_over_time_and_recomputation_is_in_hfu_alone():
    model, cluster = gpt(12288, 96, 96), Cluster(A100, 64)
    plan = Plan(tp=8, pp=8, dp=1, batch=64, sequence=2048, attention="unfused", zero=0, recompute="full")
    found = estimate(model, cluster, plan)
    assert found.hfu / found.mfu == pytest.approx(4 / 3, rel=0.01)  # the head is not computed again
    none = estimate(model, cluster, replace(plan, recompute="none"))
    assert none.mfu == pytest.approx(none.hfu)
    assert none.tokens_per_second * none.step_seconds == pytest.approx(64 * 2048)


DEGREE = st.sampled_from([1, 2, 4, 8])


@given(DEGREE, st.sampled_from([1, 2, 4]), DEGREE, st.sampled_from([1, 2, 4]))
@settings(deadline=None, max_examples=40)
def test_a_group_has_the_links_of_the_nodes_it_touches_and_a_ring_the_ports_of_all_its_ranks_there(tp, cp, dp, pp):
    plan = Plan(tp=tp, cp=cp, dp=dp, pp=pp, batch=64, sequence=8192)
    if plan.gpus > 8 and plan.gpus % 8:
        return
    cluster = Cluster(H100, plan.gpus)
    links = costs.places(cluster, estimating.columns_of(plan))
    for axis in ("tp", "cp", "dp", "pp"):
        axes = "dp-cp" if axis == "dp" else axis
        nodes = plan.grid.nodes_of_a_group(axes, 8)
        if plan.grid.degree(axes) > 1:
            counts = [Counter(rank // 8 for rank in group) for group in plan.grid.groups(axes)]
            together = min(min(count.values()) for count in counts) if axis in ("cp", "dp") else 1
            most = cluster.link(1) if nodes == 1 else min(cluster.link(1), together * cluster.link(2))
            assert links[axis][0] == most


@given(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4, 8, 16]), st.sampled_from([1, 2, 4]))
@settings(deadline=None, max_examples=30)
def test_copies_of_experts_have_the_ports_of_the_ranks_that_hold_them_in_a_node(tp, ep, copies):
    plan = Plan(tp=tp, ep=ep, dp=ep * copies, pp=1, batch=64, sequence=8192)
    if plan.gpus <= 8 or plan.gpus % 8 or copies == 1:
        return
    cluster = Cluster(H100, plan.gpus)
    found = costs.places(cluster, estimating.columns_of(plan))["edp"][0]
    counts = [Counter(rank // 8 for rank in group) for group in plan.grid.groups("edp")]
    together = min(min(count.values()) for count in counts)
    assert found == min(cluster.link(1), together * cluster.link(2))


def test_sharding_over_whole_nodes_has_eight_ports_and_beside_eight_tensor_parallel_ranks_one():
    cluster = Cluster(H100, 64)
    for tp, ports in ((1, 8), (2, 4), (8, 1)):
        plan = Plan(tp=tp, dp=64 // tp, pp=1, batch=64, sequence=8192)
        assert costs.places(cluster, estimating.columns_of(plan))["dp"][0] == ports * 50e9


def test_126_layers_fit_16_stages_when_embedding_and_head_count_as_layers():
    shape = published.model("Llama-3-405B")
    plan = Plan(tp=8, pp=16, dp=64, batch=2048, sequence=8192)
    assert estimate(shape, Cluster(H100, 8192), plan).problems == ()
    columns = estimating.columns_of(plan)
    assert [int(part[0]) for part in costs.split_layers(126, columns["P"], columns["v"])] == [8, 7, 7, 1]


def test_the_fullest_of_uneven_stages_is_the_second_and_no_stage_has_its_layers_and_a_table_too():
    """Eight layers without a table against seven with one: both for memory and for what is sent and updated."""
    sizes, cluster = sizes_of(published.model("Llama-3-405B")), Cluster(H100, 8192)
    plan = Plan(tp=8, pp=16, dp=64, batch=2048, sequence=8192, chunks=8)
    found = estimate(published.model("Llama-3-405B"), cluster, plan)
    rank = 8 * (sizes.Psi_t / 8 + sizes.Psi_c)
    assert found.memory["weights"] == pytest.approx(2 * rank)
    assert found.memory["activations"] == pytest.approx((16 + 13 / 8) * 8 * 8192 * (8 * sizes.h + sizes.A_i) / 8)
    micro = sum(found.time[part] for part in costs.MICRO_BATCH) / 32
    sent = 4 * rank * 63 / 64 / (cluster.efficiency * 50e9)
    assert found.time["data parallel"] == pytest.approx(sent - micro)
    moved = rank / 64 * (2 + 2 + 24)
    assert found.time["optimizer"] == pytest.approx(moved / (cluster.efficiency * H100.memory_bandwidth))


@pytest.mark.parametrize(("changes", "words"), [
    ({"tp": 16, "dp": 8}, "TP = 16 crosses the node of 8 GPUs"),
    ({"tp": 1, "pp": 32}, "80 layers cannot be divided among PP = 32"),
    ({"batch": 500}, "a batch of 500 cannot be divided among DP = 16"),
    ({"zero": 2}, "ZeRO-2 with a pipeline"), ({"zero": 3}, "gather the weights again"),
    ({"dp": 8}, "it takes 256 GPUs, and the cluster has 512"),
    ({"ep": 4}, "0 experts cannot be divided among EP = 4"),
    ({"micro_batch": 16}, "interleaving needs micro-batches in multiples of PP = 4"),
    ({"sequence": 8190}, "8190 positions cannot be divided"),
    ({"zero": 0, "micro_batch": 8}, r"it needs \d+\.\d GB on a GPU of 80 GB"),
])
def test_a_plan_that_cannot_be_run_says_why(changes, words):
    found = estimate(LLAMA, Cluster(H100, 512), replace(PLAN, **changes))
    assert not found.feasible
    assert any(re.search(words, problem) for problem in found.problems)


def test_heads_that_do_not_divide_are_named():
    found = estimate(gpt(2304, 24, 24), Cluster(A100, 16), Plan(tp=16, pp=1, dp=1, batch=16, sequence=2048))
    assert "24 heads cannot be divided among TP = 16" in found.problems
    few = replace(LLAMA, heads=60, kv_heads=6)
    odd = estimate(few, Cluster(H100, 4), Plan(tp=4, pp=1, dp=1, batch=16, sequence=2048))
    assert any("6 key and value heads can neither" in problem for problem in odd.problems)


def test_experts_shared_by_more_ranks_take_less_memory_and_send_more():
    shape, cluster = published.model("Mixtral-8x7B"), Cluster(H100, 64)
    plan = Plan(tp=1, pp=4, dp=16, batch=256, sequence=4096)
    alone, shared = (estimate(shape, cluster, replace(plan, ep=ep)) for ep in (1, 8))
    assert alone.memory["weights"] - shared.memory["weights"] == pytest.approx(2 * 7 / 8 * 8 * 8 * 176160768)
    assert alone.time["expert parallel"] == 0 < shared.time["expert parallel"]


def test_every_time_is_divided_by_the_efficiency():
    half, whole = (estimate(LLAMA, Cluster(H100, 512, efficiency), PLAN) for efficiency in (0.5, 1))
    for part, seconds in whole.time.items():
        assert half.time[part] == pytest.approx(2 * seconds, rel=1e-12)


@pytest.mark.parametrize(("field", "value"), [
    ("tp", 0), ("pp", 1.5), ("dp", True), ("batch", "64"), ("sequence", None), ("zero", 4), ("recompute", "some"),
    ("attention", "flash"), ("recipe", "none"), ("overlap", 1), ("ep", 7), ("micro_batch", -1)])
def test_a_field_that_no_plan_can_have_is_refused_by_name(field, value):
    with pytest.raises(ValueError, match=rf"^{field} = .* is not allowed; {field} must be "):
        replace(PLAN, **{field: value})


def test_chunks_need_stages():
    with pytest.raises(ValueError, match=r"chunks = 2 is not allowed; chunks must be 1 when pp is 1"):
        Plan(tp=1, pp=1, dp=1, chunks=2, batch=1, sequence=1)


@pytest.mark.parametrize(("arguments", "words"), [
    ((H100, 0), "gpus = 0"), ((H100, 12), "gpus = 12 is not allowed; it must be at most 8, or a multiple"),
    ((H100, 8, 1.5), "efficiency = 1.5"), (("H100", 8), "machine = 'H100'"),
    ((published.machine("B200"), 8), "machine 'B200': internode_node is not known")])
def test_a_cluster_that_cannot_be_is_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        Cluster(*arguments)


@pytest.mark.parametrize("place", range(3))
def test_estimate_refuses_what_is_of_another_kind(place):
    arguments = [LLAMA, Cluster(H100, 512), PLAN]
    arguments[place] = "nonsense"
    with pytest.raises(ValueError, match=r"= 'nonsense' is not allowed; it must be a (ModelShape|Cluster|Plan)"):
        estimate(*arguments)


def test_a_layer_of_the_papers_gpt_has_the_numbers_of_the_papers():
    found, h = sizes_of(gpt(4096, 32, 36)), 4096
    assert (found.Psi_t, found.Psi_c, found.Psi_m) == (12 * h**2 + 7 * h, 6 * h, 12 * h**2)
    assert (found.A_o["unfused"], found.A_i, found.A_s["unfused"]) == (10 * h, 24 * h, 5)

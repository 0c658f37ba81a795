"""What a plan costs, as Vega expressions: the formulas of `formulas.planner`, put together as `scalebook.planner.costs`
puts them, for one plan without context and expert parallelism, with fused attention and sequence parallelism.

A plan is a dict from symbols of the formulas to Vega expressions: t, P, N, v, b, Z, M, s, and "full", which says
whether everything is recomputed. The model's numbers are those of the chart's param `sizes`, the machine's those of
`gpu`.
"""

import json

from scalebook import published
from scalebook.formulas import planner as formulas
from scalebook.formulas import tensor_parallel
from scalebook.formulas.zero import recipes
from scalebook.planner.clusters import Cluster
from scalebook.planner.costs import EPSILON
from scalebook.planner.sizes import gpt, sizes_of

TRILLION = "Megatron 1T"
MODELS = ("Llama-3-8B", "Llama-3-70B", "Llama-3-405B", "GPT-3-175B", TRILLION)
GPUS = ("A100-80GB", "H100")
LONGEST = 8192  # positions, where a chart does not ask for them: those of the model, at most these
RECIPE = "mixed precision"
WHOLE = {"n_c": "1", "n_e": "1"}
MEMORY = ("weights", "gradients", "optimizer", "gathered weights", "activations", "recomputed and head")
MICRO_BATCH = {"compute": formulas.compute_time, "recomputation": formulas.recompute_time,
               "elementwise": formulas.elementwise_time, "tensor parallel": formulas.tensor_time}
TIME = (*MICRO_BATCH, "head", "bubble", "pipeline parallel", "data parallel", "optimizer")


def shape_of(model):
    """The `published.ModelShape` behind a name of `MODELS`.

    >>> shape_of("Megatron 1T").layers
    128
    """
    return gpt(25600, 160, 128) if model == TRILLION else published.model(model)


def positions_of(model):
    """The positions of a sample, where a chart does not ask for them."""
    return min(shape_of(model).context, LONGEST)


def model_param():
    """The Vega param `sizes`: the numbers of the model that the control `model` names."""
    import altair as alt

    known = {}
    for name in MODELS:
        sizes = sizes_of(shape_of(name))
        own = {"positions": sizes.positions, "norm": sizes.norm, "tables": 1 if sizes.tied else 2,
               "A_o": sizes.A_o["fused"], "A_s": sizes.A_s["fused"], "s": positions_of(name)}
        known[name] = sizes.layer | own
    return alt.param(name="sizes", expr=f"{json.dumps(known)}[model]")


def gpu_param():
    """The Vega param `gpu`: FLOP/s and bytes/s that the machine of the control `machine` reaches, and is sold for."""
    import altair as alt

    known = {}
    for name in GPUS:
        cluster = Cluster(published.machine(name), 1)
        share, kind = cluster.efficiency, cluster.machine
        known[name] = {"rho": share * kind.peak_flops, "peak": kind.peak_flops, "beta": share * kind.memory_bandwidth,
                       "inside": share * cluster.link(1), "between": share * cluster.link(2),
                       "each": kind.gpus_per_node}
    return alt.param(name="gpu", expr=f"{json.dumps(known)}[machine]")


def ask(formula, values):
    """A formula as a Vega expression in parentheses, its arguments picked by name."""
    return f"({formula.vega(**{variable.name: values[variable.name] for variable in formula.symbols})})"


def with_sizes(plan):
    """The plan's values, and all others that the formulas take and that do not differ from stage to stage."""
    names = ("L", "h", "a", "G", "d_h", "V", "Psi_t", "Psi_c", "Psi_x", "Psi_m", "k_x", "f_x", "A_i", "A_o", "A_s")
    bytes_ = {name: str(value) for name, value in recipes()[RECIPE].sizes.items()}
    full, counts = plan["full"], tensor_parallel.ALL_REDUCES
    return {**{name: f"sizes.{name}" for name in names}, **bytes_, **WHOLE, "epsilon": str(EPSILON), "n_s": plan["t"],
            "kappa": f"(({plan['s']}) + 1) / 2", "x_m": f"({full} ? 1 : 0)", "x_s": f"({full} ? 1.5 : 0.5)",
            "n": f"({full} ? {counts['full']} : {counts['none']})", **plan}


def layers_of(values):
    """Vega expressions: layers on the fullest stage, and on the first and last. As `planner.costs.split_layers`."""
    L, P, v = (values[name] for name in ("L", "P", "v"))
    even = f"({L} % ({P} * {v}) == 0)"
    ends = f"({P} > 1 && ({L} + 2) % ({P} * {v}) == 0)"
    most = f"({even} ? {L} / {P} : {ends} ? ({L} + 2) / {P} : {v} * ceil({L} / ({P} * {v})))"
    first = f"({even} ? {L} / {P} : {ends} ? ({L} + 2) / {P} - 1 : {v} * ceil({L} / ({P} * {v})))"
    return f"({P} == 2 ? {first} : {most})", first


def stage_of(values, last="false", second="false"):
    """The values of the first stage, or where one of the expressions holds of the last or of the second one."""
    P, (most, first) = values["P"], layers_of(values)
    tables = f"({second} ? 0 : ({P} == 1 ? sizes.tables : 1) * {values['V']} * {values['h']})"
    outside = (f"({second} ? 0 : ({last} && {P} > 1 ? 0 : sizes.positions) + ({last} || {P} == 1 ? sizes.norm : 0))")
    return {**values, "ell": f"({second} ? {most} : {first})", "r": f"({last} ? {P} - 1 : {second} ? 1 : 0)",
            "Psi_V": tables, "Psi_o": outside}


def memory(plan, last, second):
    """Bytes of one rank of the first stage, or where `last` or `second` holds of that one: a dict of Vega expressions.

    There is a second stage only where there are more than two.
    """
    values = stage_of(with_sizes(plan), last, second)
    full, head = plan["full"], f"({last} || {values['P']} == 1)"
    kept = f"({full} ? {ask(formulas.kept_full, values)} : {ask(formulas.kept_none, values)})"
    parts = (
        ask(formulas.weight_bytes, values), ask(formulas.gradient_bytes, values), ask(formulas.optimizer_bytes, values),
        ask(formulas.gathered_bytes, values), f"{ask(formulas.in_flight, values)} * ({values['ell']}) * {kept}",
        f"(({full} ? {ask(formulas.working_full, values)} : 0)"
        f" + ({head} ? {ask(formulas.head_activations, values)} : 0))")
    return dict(zip(MEMORY, parts, strict=True))


def link(ranks, gpus, stride=None):
    """Bytes/s that a group reaches whose ranks fill a block, each `stride` from the next; as `planner.costs.places`."""
    between = "gpu.between" if stride is None else formulas.ring_bandwidth.vega(
        k_n=f"max(1, floor(min({ranks}, gpu.each) / ({stride})))", omega_n="gpu.inside", omega_p="gpu.between")
    return f"({gpus} <= gpu.each || gpu.each % ({ranks}) == 0 ? gpu.inside : {between})"


def with_times(chart, plan, gpus):
    """Compute, in every row of a chart, the seconds of a step: a field for each part of `TIME`, and `step`.

    `gpus` is the expression of how many GPUs there are.
    """
    values = {**with_sizes(plan), "rho": "gpu.rho", "beta": "gpu.beta"}
    t, N, P, M = (values[name] for name in ("t", "N", "P", "M"))
    most, end = layers_of(values)
    first, second = stage_of(values), stage_of(values, second="true")
    values = first | {"ell": "datum.ell", "ell_P": "datum.ell_P"}
    omega = {"tp": link(t, gpus, 1), "dp": link(f"{t} * {N}", gpus, t), "pp": link(f"{t} * {N} * {P}", gpus)}
    micro = {part: ask(formula, {**values, "omega": omega["tp"]}) for part, formula in MICRO_BATCH.items()}
    names = {part: f"datum['one {part}']" for part in micro}
    whole = {**values, **{name: f"datum.{name}" for name in ("t_m", "t_h", "t_l", "t_s", "t_x", "t_d")}}

    def longest(formula, **rates):  # of the stages that may have most parameters
        return f"max({ask(formula, {**first, **rates})}, {ask(formula, {**second, **rates})})"

    sends = (f"({P} == 1 ? 0 : {values['v']} == 1 ? {ask(formulas.pipeline_time_1f1b, whole)}"
             f" : {ask(formulas.pipeline_time_interleaved, whole)})")
    return (
        chart.transform_calculate(ell=most, ell_P=end)
        .transform_calculate(**{f"one {part}": expression for part, expression in micro.items()})
        .transform_calculate(t_m=" + ".join(names.values()), t_h=ask(formulas.head_time, values),
                             t_s=ask(formulas.send_time, {**values, "omega": omega["pp"]}),
                             t_x=longest(formulas.data_time, omega=omega["dp"], omega_x=omega["dp"]))
        .transform_calculate(t_l="datum.t_m / datum.ell", t_d=ask(formulas.hiding_time, whole))
        .transform_calculate(**{part: ask(formulas.ideal_time, {"M": M, "t_m": name}) for part, name in names.items()})
        .transform_calculate(**{"head": ask(formulas.imbalance_time, whole),
                                "bubble": ask(formulas.bubble_time, whole), "pipeline parallel": sends,
                                "data parallel": ask(formulas.exposed_time, whole),
                                "optimizer": longest(formulas.optimizer_time)})
        .transform_calculate(step=" + ".join(f"datum['{part}']" for part in TIME))
    )


def utilization(plan, batch, gpus, causal=False):
    """MFU as a Vega expression of a row that `with_times` made; `causal` counts the pairs that the mask leaves."""
    values = with_sizes(plan) | {"B_s": batch}
    values["kappa"] = values["kappa"] if causal else plan["s"]
    return ask(formulas.utilization, {"C_s": ask(formulas.model_flops, values), "T_s": "datum.step", "g_p": gpus,
                                      "rho_p": "gpu.peak"})

"""What a mixture of experts stores, what a token multiplies with, and what a batch reads."""

from scalebook import published
from scalebook.borders import guard
from scalebook.charts.kinds import choice
from scalebook.charts.words import above, by_width, words
from scalebook.colours import ACTIVE, COMPARED, RESTING, SHARED
from scalebook.explorer import grid
from scalebook.formulas import moe as formulas
from scalebook.moe import count_parameters, flops_per_token

BASE = "Mixtral-8x7B"
EXPERTS = (1, 2, 4, 8, 16, 32, 64, 128)
WIDTHS = (1792, 3584, 7168, 14336)
CURVE = sorted({*range(1, 17), *range(16, 129, 4)})  # numbers of experts at which the curves are drawn

PRESETS = ("Mixtral-8x7B", "Mixtral-8x22B", "DBRX", "DeepSeek-V2", "DeepSeek-V3")
NAMES = {name: name.replace("-8x", " 8x") for name in PRESETS}
BATCHES = tuple(2**i for i in range(10))
PARTS = {"embedding and head": ("embedding", "positions", "head"),
         "attention, router, norms": ("attention", "router", "norms", "attention sinks", "biases"),
         "shared and dense feed-forward": ("shared experts", "dense feed-forward"),
         "experts that a token uses": ("routed experts", "expert biases"),
         "experts at rest": ("routed experts", "expert biases")}
PART_COLOURS = (COMPARED[1], COMPARED[0], SHARED, ACTIVE, RESTING)
MEASURES = {  # what is measured: the number at the right end of the axis, and how an axis writes its numbers
    "parameters, in billions": 700,
    "GFLOP of one token, forward": 80,
    "GB in memory at 16 bits": 1400,
    "share of all parameters": 1}


def base_sizes():
    """The sizes of the base model that the sliders leave alone, by their symbols in the formulas."""
    shape = published.model(BASE)
    return {"V": shape.vocabulary, "D": shape.d_model, "L": shape.layers, "H": shape.heads, "G": shape.kv_heads,
            "d_h": shape.head_dim}


def budget_expressions(experts):
    """Billions of parameters and of FLOPs as Vega expressions; `experts` is the expression of their number."""
    sizes = base_sizes() | {"E": experts}
    multiplying = formulas.multiplying_parameters.vega(**sizes)
    return {"parameters, all": f"({formulas.total_parameters.vega(**sizes)}) / 1e9",
            "parameters, active": f"({formulas.active_parameters.vega(**sizes)}) / 1e9",
            "FLOPs of one token, forward": f"({formulas.flops_forward.vega(N=multiplying)}) / 1e9"}


def budget_chart():
    """Parameters and FLOPs against the number of experts; signals experts, K, F. Base: Mixtral 8x7B."""
    import altair as alt

    curves, here = budget_expressions("datum.E"), budget_expressions("experts")
    names = list(curves)
    encoding = {
        "x": alt.X("E:Q", title="experts in a layer", axis=alt.Axis(values=list(EXPERTS)),
                   scale=alt.Scale(type="log", base=2, domain=[1, 128], nice=False)),
        "y": alt.Y("billions:Q", title="billions", axis=alt.Axis(values=[1, 3, 10, 30, 100, 300, 1000]),
                   scale=alt.Scale(type="log", domain=[1, 1000], nice=False)),
        "color": alt.Color("curve:N", legend=alt.Legend(offset=above(2)),
                           scale=alt.Scale(domain=names, range=[RESTING, ACTIVE, COMPARED[0]])),
    }
    lines = (
        alt.Chart(alt.Data(values=[{"E": number} for number in CURVE]), name="curve")
        .transform_filter("datum.E >= K").transform_calculate(**curves)
        .transform_fold(names, as_=["curve", "billions"]).mark_line(clip=True).encode(**encoding)
    )
    chosen = alt.Chart(alt.Data(values=[{}])).transform_calculate(E="experts", **here)
    points = (
        chosen.properties(name="chosen").transform_filter("experts >= K")
        .transform_fold(names, as_=["curve", "billions"])
        .mark_point(filled=True, size=110, opacity=1).encode(**encoding)
    )
    total, active, flops = (f"format(datum['{name}'], '.4~r')" for name in names)
    text = words(
        chosen,
        f"experts >= K ? {total} + 'B parameters, ' + format(2 * datum['{names[0]}'], '.4~r') + ' GB in bf16'"
        " : 'There is no such model: a token'",
        f"experts >= K ? {active} + 'B active, ' + {flops} + ' GFLOP a token'"
        " : 'cannot go to ' + K + ' of ' + experts + (experts == 1 ? ' expert' : ' experts')",
    )
    return alt.layer(lines, points, text).properties(height=300)


def preset_rows(model, measure):
    """The parts of a published model in one measure of `MEASURES`, from zero to the end of its bar."""
    shape = published.model(model)
    count, flops = count_parameters(shape), flops_per_token(shape, context=1)
    rows, end = [], 0
    for part, names in PARTS.items():
        if part == "experts at rest":
            size, work = count.resting, 0
        else:
            size = sum(count.by_part[name].active for name in names)
            work = sum(flops.by_part.get(name, 0) for name in names)
        value = dict(zip(MEASURES, (size / 1e9, work / 1e9, 2 * size / 1e9, size / count.total), strict=True))[measure]
        if value:
            rows.append({"name": NAMES[model], "part": part, "start": end, "end": end + value})
            end += value
    return rows


def preset_label(model, measure):
    """What stands above the bar of a model: the whole, and how much of it a token uses."""
    rows = preset_rows(model, measure)
    whole = rows[-1]["end"]
    used = max(row["end"] for row in rows if row["part"] != "experts at rest")
    texts = (f"{whole:.1f}B, a token uses {used:.1f}B", f"{whole:.1f} GFLOP",
             f"{whole:.1f} GB, a token uses {used:.1f} GB", f"a token uses {used:.1%}")
    return {"name": NAMES[model], "text": dict(zip(MEASURES, texts, strict=True))[measure]}


def presets_chart():
    """The parts of five published models side by side; signal measure."""
    import altair as alt

    axes = {"model": PRESETS, "measure": list(MEASURES)}
    y = alt.Y("name:N", title=None, sort=list(NAMES.values()), scale=alt.Scale(paddingInner=0.6, paddingOuter=0.4))
    ends = "{" + ", ".join(f"'{measure}': {end}" for measure, end in MEASURES.items()) + "}[measure]"
    bars = (
        alt.Chart(alt.Data(values=grid(preset_rows, **axes)), name="part")
        .transform_filter("datum.measure == measure").mark_bar()
        .encode(
            x=alt.X("start:Q", title=None, scale=alt.Scale(domainMin=0, domainMax=alt.ExprRef(ends), nice=False),
                    axis=alt.Axis(tickCount=5)),
            x2="end:Q", y=y,
            color=alt.Color("part:N", legend=alt.Legend(offset=above(1), columns=by_width(1, 2)),
                            scale=alt.Scale(domain=list(PARTS), range=list(PART_COLOURS))))
    )
    labels = (
        alt.Chart(alt.Data(values=grid(preset_label, **axes)), name="label")
        .transform_filter("datum.measure == measure")
        .mark_text(align="left", dx=3, dy=-22).encode(x=alt.value(0), y=y, text="text:N")
    )
    return alt.layer(bars, labels, words(alt.Chart(alt.Data(values=[{}])), "measure")).properties(height=310)


def expert_sizes(model):
    """E, K and the bytes of all routed experts at 16 bits of a published model, in GB."""
    shape = published.model(model)
    routed = sum(count_parameters(shape).by_part[name].total for name in PARTS["experts at rest"])
    return {"E": shape.experts, "K": shape.top_k, "GB": 2 * routed / 1e9}


def distinct_chart():
    """The share of its experts that a batch touches, against the tokens of the batch; signals tokens, model."""
    import altair as alt

    chosen = alt.Chart(alt.Data(values=grid(expert_sizes, model=PRESETS))).transform_filter("datum.model == model")
    touched = formulas.distinct_experts.vega(E="datum.E", K="datum.K", T="datum.T")
    share = f"({touched}) / datum.E"
    batches = sorted({batch + batch * quarter // 4 for batch in BATCHES[:-1] for quarter in range(5)})
    names = ["experts that the batch touches", "experts that one token touches"]
    encoding = {
        "x": alt.X("T:Q", title="tokens in the batch", axis=alt.Axis(values=list(BATCHES)),
                   scale=alt.Scale(type="log", base=2, domain=[1, BATCHES[-1]], nice=False)),
        "y": alt.Y("share:Q", title="share of a layer's experts", axis=alt.Axis(format="%"),
                   scale=alt.Scale(domain=[0, 1], nice=False)),
        "color": alt.Color("what:N", legend=alt.Legend(offset=above(2)),
                           scale=alt.Scale(domain=names, range=[ACTIVE, COMPARED[0]])),
    }
    lines = (
        chosen.properties(name="curve").transform_calculate(T=f"{batches}").transform_flatten(["T"])
        .transform_calculate(**{names[0]: share, names[1]: "datum.K / datum.E"})
        .transform_fold(names, as_=["what", "share"]).mark_line().encode(**encoding)
    )
    here = chosen.transform_calculate(T="tokens").transform_calculate(share=share, what=f"'{names[0]}'")
    point = here.properties(name="chosen").mark_point(filled=True, size=110, opacity=1).encode(**encoding)
    text = words(
        here,
        "datum.T + (datum.T == 1 ? ' token touches ' : ' tokens touch ') + format(datum.share * datum.E, '.4~r')"
        " + ' of ' + datum.E + ' experts'",
        "'reads ' + format(datum.share * datum.GB, '.4~r') + ' of ' + format(datum.GB, '.4~r')"
        " + ' GB: ' + format(datum.share * datum.E / datum.K, '.3~r') + ' times one token'",
    )
    return alt.layer(lines, point, text).properties(height=300)


guard(globals(), {"model": choice(NAMES), "measure": choice(MEASURES)}, "preset_rows")

"""What a step sends at each stage, and how long that takes beside the computation."""

import json

from scalebook import published
from scalebook.charts.words import above, words
from scalebook.charts.zero.parts import GRADIENTS, PARTS, WEIGHTS
from scalebook.formulas import zero as formulas

SIZES = {"b_w": "2", "b_g": "2"}
PASSES = {  # how often the weights, and the gradients, go round the ring in a step of M micro-batches
    "stage 0": ("0", "2"), "stage 1": ("1", "1"), "stage 2": ("1", "M"), "stage 3": ("2 * M", "M"),
    "stage 3, kept": ("M", "M")}
SENT = {"weights gathered": PARTS[WEIGHTS], "gradients reduced": PARTS[GRADIENTS]}


def links():
    """What connects the ranks: bytes/s out of a GPU, its peak FLOP/s, and the ranks that it can join (0: any).

    >>> sorted(links()["H100, between nodes"].items())
    [('most', 0), ('omega', 50000000000.0), ('peak', 989000000000000.0)]
    """
    found = {}
    for short, name in (("A100", "A100-80GB"), ("H100", "H100")):
        machine = published.machine(name)
        found[f"{short}, NVLink"] = {"omega": machine.nvlink_one_way, "peak": machine.peak_flops,
                                     "most": machine.gpus_per_node}
        found[f"{short}, between nodes"] = {"omega": machine.internode_gpu, "peak": machine.peak_flops, "most": 0}
    return found


def step_chart():
    """Seconds of communication at each stage; signals billions, N, M, T, link, reached (percent of the peak).

    T is the number of tokens of a rank in a micro-batch. The ranks are those of one node where the link is NVLink.
    """
    import altair as alt

    def sent(c_w, c_g):
        return "(" + formulas.sent_bytes.vega(Psi="1e9 * billions", N="ranks", **SIZES, c_w=c_w, c_g=c_g) + ")"

    def seconds(c_w, c_g):
        return f"({formulas.communication_time.vega(V=sent(c_w, c_g), omega='wire.omega', n_m='0', alpha='0')})"

    computing = "(" + formulas.compute_time.vega(Psi="1e9 * billions", T="T", M="M", rho="rho") + ")"
    rows = (
        alt.Chart(alt.Data(values=[{"name": name, "i": i} for i, name in enumerate(PASSES)]))
        .transform_calculate(c_w=f"[{', '.join(w for w, _ in PASSES.values())}][datum.i]",
                             c_g=f"[{', '.join(g for _, g in PASSES.values())}][datum.i]")
        .transform_calculate(first=seconds("datum.c_w", "0"), both=seconds("datum.c_w", "datum.c_g"))
    )
    longest = f"1.08 * max({computing}, {seconds('2 * M', 'M')})"
    y = alt.Y("name:N", title=None, scale=alt.Scale(paddingInner=0.6, paddingOuter=0.75), sort=list(PASSES))
    x = alt.X("start:Q", title="seconds of a step", axis=alt.Axis(tickCount=5),
              scale=alt.Scale(domainMin=0, domainMax=alt.ExprRef(longest), nice=False))
    names = list(SENT)
    bars = (
        rows.properties(name="part")
        .transform_calculate(**{names[0]: "[0, datum.first]", names[1]: "[datum.first, datum.both]"})
        .transform_fold(names, as_=["part", "ends"]).transform_filter("datum.ends[1] > datum.ends[0]")
        .transform_calculate(start="datum.ends[0]", end="datum.ends[1]").mark_bar()
        .encode(x=x, x2="end:Q", y=y,
                color=alt.Color("part:N", legend=alt.Legend(offset=above(5)),
                                scale=alt.Scale(domain=names, range=list(SENT.values()))))
    )
    labels = (
        rows.properties(name="label")
        .transform_calculate(text=f"format({sent('datum.c_w', 'datum.c_g')} / 1e9, '.4~r') + ' GB'")
        .mark_text(align="left", dx=3, dy=-17).encode(x=alt.value(0), y=y, text="text:N")
    )
    one = alt.Chart(alt.Data(values=[{}])).transform_calculate(start=computing)
    rule = one.properties(name="computation").mark_rule(strokeDash=[6, 4], strokeWidth=1.5).encode(x="start:Q")
    hide = formulas.tokens_to_hide_stage3.vega(rho="rho", omega="wire.omega", N="ranks", **SIZES)
    sending = seconds("2 * M", "M")
    hidden = formulas.step_time_hidden.vega(t_c="datum.start", t_x=sending)
    apart = formulas.step_time_apart.vega(t_c="datum.start", t_x=sending)
    text = words(
        one,
        "ranks + ' ranks; computation (dashed) ' + format(datum.start, '.3~r') + ' s'",
        f"'stage 3 sends ' + format({formulas.stage3_over_stage0.vega()}, '.3~r') + ' times what stage 0 sends:'",
        f"'a step of ' + format({hidden}, '.3~r') + ' s, ' + format({apart}, '.3~r') + ' s without overlap'",
        f"'stage 3\\'s messages hide from ' + format(ceil({hide}), ',') + ' tokens'",
        "'of a micro-batch on'",
    )
    wire = alt.param(name="wire", expr=f"{json.dumps(links())}[link]")
    ranks = alt.param(name="ranks", expr="wire.most || N")
    rho = alt.param(name="rho", expr="wire.peak * reached / 100")
    return alt.layer(bars, labels, rule, text).properties(height=330).add_params(wire, ranks, rho)

"""The time of one layer's messages against that of its work, on published machines."""

import json

from scalebook import published
from scalebook.charts.units import seconds
from scalebook.charts.words import above, words
from scalebook.colours import COMPARED, MESSAGE
from scalebook.formulas import tensor_parallel as formulas

RANKS = (1, 2, 4, 8, 16, 32, 64)
CURVE = tuple(2**(i / 4) for i in range(25))  # t between 1 and 64; between two powers of two the curves are a guide
LINKS = {"A100, NVLink": "A100-80GB", "A100, network": "A100-80GB", "H100, NVLink": "H100", "H100, network": "H100",
         "B200, NVLink": "B200"}
WIDTHS = (2048, 4096, 8192, 12288, 16384, 20480)
SEQUENCES = (1024, 2048, 4096, 8192)
BATCHES = (1, 2, 4)
SHARES = (0.3, 0.4, 0.5, 0.6, 0.7)
SHORTEST, LONGEST = 2e-6, 20  # seconds
ELEMENT = 2  # bytes


def machine_speeds(link):
    """FLOP/s at the peak and bytes a second one way of one GPU: `peak` and `omega`.

    >>> machine_speeds("H100, network")
    {'peak': 989000000000000.0, 'omega': 50000000000.0}
    """
    machine = published.machine(LINKS[link])
    return {"peak": machine.peak_flops,
            "omega": machine.nvlink_one_way if link.endswith("NVLink") else machine.internode_gpu}


def time_expressions(ranks):
    """Seconds of work and of messages as Vega expressions; `ranks` is the expression of t."""
    rho = "share * speed.peak"
    compute = formulas.compute_time.vega(t=ranks, rho=rho)
    communication = formulas.communication_time.vega(t=ranks, epsilon=ELEMENT, omega="speed.omega")
    return {"compute": compute, "communication": communication}


def race_chart():
    """Time of a layer, forward and backward, against t; signals t, h, s, b, share, link.

    `share` is the part of the peak that a GPU reaches.
    """
    import altair as alt

    speeds = alt.param(name="speed", expr=json.dumps({link: machine_speeds(link) for link in LINKS}) + "[link]")
    balance = formulas.balanced_ranks.vega(epsilon=ELEMENT, rho="share * speed.peak", omega="speed.omega")
    names = list(time_expressions("t"))
    encoding = {
        "x": alt.X("t:Q", title="tensor-parallel ranks t", axis=alt.Axis(values=list(RANKS), format="d"),
                   scale=alt.Scale(type="log", base=2, domain=[RANKS[0], RANKS[-1]], nice=False)),
        "y": alt.Y("time:Q", title="time of one layer",
                   axis=alt.Axis(values=[1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1, 10], labelExpr=seconds("datum.value")),
                   scale=alt.Scale(type="log", domain=[SHORTEST, LONGEST], nice=False)),
        "color": alt.Color("part:N", legend=alt.Legend(offset=above(3)),
                           scale=alt.Scale(domain=names, range=[COMPARED[0], MESSAGE])),
    }
    lines = (
        alt.Chart(alt.Data(values=[{"t": round(t, 4)} for t in CURVE]), name="curve")
        .transform_calculate(**time_expressions("datum.t"))
        .transform_fold(names, as_=["part", "time"]).transform_filter("datum.time > 0")
        .mark_line(clip=True).encode(**encoding)
    )
    chosen = alt.Chart(alt.Data(values=[{}])).transform_calculate(t="t", **time_expressions("t"))
    points = (
        chosen.properties(name="chosen").transform_fold(names, as_=["part", "time"]).transform_filter("datum.time > 0")
        .mark_point(filled=True, size=110, opacity=1).encode(**encoding)
    )
    rule = (
        alt.Chart(alt.Data(values=[{}]), name="balanced").transform_calculate(t=balance)
        .transform_filter(f"datum.t <= {RANKS[-1]}")  # often nothing is left: an empty group says nothing
        .mark_rule(strokeDash=[6, 4], strokeWidth=1.5, aria=False).encode(x="t:Q")
    )
    text = words(
        chosen,
        f"'compute ' + {seconds('datum.compute')} + ', communication ' + {seconds('datum.communication')}",
        "'t = ' + t + ': a rank computes ' + format(datum.compute / (datum.compute + datum.communication), '.1%')"
        " + ' of the time'",
        f"'equal at t = ' + format({balance}, '.3~r')",
    )
    return alt.layer(lines, rule, points, text).properties(height=300).add_params(speeds)

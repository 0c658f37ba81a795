"""What a collective costs, against the size of its array, on published links."""

import json

from scalebook import published
from scalebook.charts.units import binary_bytes, seconds
from scalebook.charts.words import above, by_width, words
from scalebook.colours import ALL_GATHER, ALL_REDUCE, BROADCAST, POINT_TO_POINT
from scalebook.formulas import collectives as formulas

RANKS = (2, 4, 8, 16, 64, 256)
SIZES = tuple(1024 * 4**i for i in range(11))  # 1 KiB to 1 GiB
CURVE = tuple(1024 * 2**i for i in range(21))
SHORTEST, LONGEST = 2e-6, 0.2  # seconds: one step inside a server, and 1 GiB summed over 256 ranks between servers
# Name of the link: the machine, and the kind of link by which NCCL looks up a step's latency.
LINKS = {"NVLink, DGX A100": ("A100-80GB", "NVLink"), "NVLink, DGX H100": ("H100", "NVLink"),
         "network, DGX A100": ("A100-80GB", "network"), "network, DGX H100": ("H100", "network")}
COLOURS = {"all-reduce": ALL_REDUCE, "all-gather, reduce-scatter, all-to-all": ALL_GATHER, "broadcast": BROADCAST,
           "point to point": POINT_TO_POINT}


def link_costs(link):
    """The latency of a step in seconds, the bytes a second one way of a rank, and how many GPUs the link joins.

    The network joins any number: None.

    >>> link_costs("NVLink, DGX H100")
    {'alpha': 3.4e-06, 'omega': 450000000000.0, 'joins': 8}
    """
    name, kind = LINKS[link]
    machine = published.machine(name)
    latency = published.table("nccl_ring_latency").row(link=kind)["Simple_us"]
    inside = kind == "NVLink"
    return {"alpha": float(f"{latency}e-6"), "omega": machine.nvlink_one_way if inside else machine.internode_gpu,
            "joins": machine.gpus_per_node if inside else None}


def cost_of_link():
    """The parameter `cost`: what the link costs that the control `link` names, as `link_costs` says.

    >>> cost_of_link().name
    'cost'
    """
    import altair as alt

    return alt.param(name="cost", expr=json.dumps({link: link_costs(link) for link in LINKS}) + "[link]")


def time_expressions(size):
    """Seconds of each curve as Vega expressions; `size` is the expression of the bytes."""
    cost = {"S": size, "alpha": "cost.alpha", "omega": "cost.omega"}
    times = (formulas.time_all_reduce, formulas.time_all_gather, formulas.time_broadcast_best)
    curves = [f.vega(R="ranks", **cost) for f in times] + [formulas.time_point_to_point.vega(**cost)]
    return dict(zip(COLOURS, curves, strict=True))


def times_chart():
    """Time of each collective against the bytes of its array; signals ranks, size, link."""
    import altair as alt

    names = list(COLOURS)
    costs = cost_of_link()
    level = formulas.balanced_size.vega(R="ranks", alpha="cost.alpha", omega="cost.omega")
    encoding = {
        "x": alt.X("size:Q", title="bytes of the array",
                   axis=alt.Axis(values=list(SIZES[::2]), labelExpr=binary_bytes("datum.value")),
                   scale=alt.Scale(type="log", base=2, domain=[SIZES[0], SIZES[-1]], nice=False)),
        "y": alt.Y("time:Q", title="time", axis=alt.Axis(values=[1e-5, 1e-4, 1e-3, 1e-2, 1e-1],
                                                         labelExpr=seconds("datum.value")),
                   scale=alt.Scale(type="log", domain=[SHORTEST, LONGEST], nice=False)),
        "color": alt.Color("collective:N", legend=alt.Legend(offset=above(4), columns=by_width(1, 2)),
                           scale=alt.Scale(domain=names, range=list(COLOURS.values()))),
    }
    lines = (
        alt.Chart(alt.Data(values=[{"size": size} for size in CURVE]), name="curve")
        .transform_calculate(**time_expressions("datum.size"))
        .transform_fold(names, as_=["collective", "time"]).mark_line(clip=True).encode(**encoding)
    )
    chosen = alt.Chart(alt.Data(values=[{}])).transform_calculate(size="size", **time_expressions("size"))
    points = (
        chosen.properties(name="chosen").transform_fold(names, as_=["collective", "time"])
        .mark_point(filled=True, size=110, opacity=1).encode(**encoding)
    )
    rule = (
        alt.Chart(alt.Data(values=[{}]), name="balanced").transform_calculate(size=level)
        .mark_rule(strokeDash=[6, 4], strokeWidth=1.5, clip=True).encode(x="size:Q")
    )
    all_reduce = f"datum['{names[0]}']"
    bus = formulas.bus_bandwidth_all_reduce.vega(R="ranks", S="size", T=all_reduce)
    algorithm = formulas.algorithm_bandwidth.vega(S="size", T=all_reduce)
    text = words(
        chosen,
        f"'all-reduce of ' + {binary_bytes('size')} + ' on ' + ranks + ' ranks: ' + {seconds(all_reduce)}",
        f"'algbw ' + format({algorithm} / 1e9, '.3~r') + ', busbw ' + format({bus} / 1e9, '.3~r')"
        f" + ' of ' + format(cost.omega / 1e9, '.3~r') + ' GB/s'",
        f"'latency is half of it at ' + {binary_bytes(level)}",
        "cost.joins && ranks > cost.joins ? 'but this link joins only ' + cost.joins : ''",
    )
    return alt.layer(lines, rule, points, text).properties(height=300).add_params(costs)

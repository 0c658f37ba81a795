"""What a gate decides: the path of one token, and what capacity does to a batch.

Gates and dispatch are the library's own, run on the grid of the controls. PyTorch is imported only when a chart is
made.
"""

from functools import partial

from scalebook import checks
from scalebook.borders import guard
from scalebook.charts.kinds import choice, positive
from scalebook.charts.words import above, words
from scalebook.colours import ACTIVE, COMPARED, DROPPED, RESTING
from scalebook.explorer import grid, pack, unpack_expression

DIGITS = 4  # of the weights and probabilities that travel packed

# Logits of experts 1 to 8. The two highest are apart as the weights 0.68 : 0.32 and 0.55 : 0.45 need.
LOGITS = {"quantum": (0.1, 2.0, -0.4, 0.5, 1.246, -1.1, 0.3, -0.2),
          "court": (1.5, 0.2, -0.6, 0.9, -0.3, 0.4, 1.299, -1.0)}
GATES = {"softmax over the kept logits": "kept", "softmax over all, then the top K": "all",
         "sigmoid scores, divided by their sum": "sigmoid"}
PUSHES = tuple(tenths / 10 for tenths in range(-20, 21))
SHOWN = ("softmax over all experts", "weight of the gate")

TOKENS, EXPERTS = 4096, 8
TOP = 2200  # the axis ends there times K: at four times the even load, and above what expert 1 ever gets
CAPACITY_GRID = {"K": (1, 2), "skew": (0, 0.25, 0.5, 1, 1.5), "factor": (1, 1.1, 1.25, 1.5, 2, 3, 4)}
FATES = {"kept": ACTIVE, "dropped": DROPPED, "empty slots": RESTING}


def token_row(token, gate, push):
    """One token's softmax over all experts, its gate weights for every K, and its experts by rank, packed.

    `push` is added to the logit of the expert that comes second at push 0.
    """
    import torch

    from scalebook.moe import dense_gates, route_sigmoid, route_top_k

    logits = list(LOGITS[token])
    logits[sorted(range(EXPERTS), key=lambda e: -logits[e])[1]] += push
    logits_TE = torch.tensor([logits], dtype=torch.float64)
    routings = [{"kept": lambda k: route_top_k(logits_TE, k),
                 "all": lambda k: route_top_k(logits_TE, k, order="softmax-before", renormalise=False),
                 "sigmoid": lambda k: route_sigmoid(logits_TE, k)}[gate](k) for k in range(1, EXPERTS + 1)]

    def packed(rows_TE):
        return pack((round(value * 10**DIGITS) for value in rows_TE.flatten().tolist()), width=3)

    return {"softmax": packed(torch.softmax(logits_TE, dim=-1)),
            "weights": packed(torch.cat([dense_gates(routing) for routing in routings])),
            "ranked": "".join(str(expert + 1) for expert in routings[-1].experts_TK[0].tolist())}


def token_chart():
    """The path of one token through a gate; signals token, K, gate, push."""
    import altair as alt

    chosen = alt.Chart(alt.Data(values=grid(token_row, token=list(LOGITS), gate=list(GATES.values()), push=PUSHES)))
    chosen = chosen.transform_filter("datum.token == token && datum.gate == gate && abs(datum.push - push) < 0.01")

    def read(packed, position):
        return f"{unpack_expression(f'datum.{packed}', position, width=3)} / {10**DIGITS}"

    each = (
        chosen.transform_calculate(i=f"sequence({EXPERTS})").transform_flatten(["i"])
        .transform_calculate(**{SHOWN[0]: read("softmax", "datum.i"), "expert": "datum.i + 1",
                                SHOWN[1]: read("weights", f"({EXPERTS} * (K - 1) + datum.i)")})
    )
    x = alt.X("expert:O", title="expert", axis=alt.Axis(labelAngle=0), scale=alt.Scale(paddingInner=0.25))
    y = alt.Y("share:Q", title=None, scale=alt.Scale(domain=[0, 1.08], nice=False),
              axis=alt.Axis(values=[0, 0.25, 0.5, 0.75, 1], format=".2f"))
    offset = alt.XOffset("what:N", scale=alt.Scale(domain=list(SHOWN)))
    bars = (
        each.properties(name="bar").transform_fold(list(SHOWN), as_=["what", "share"])
        .transform_filter("datum.share > 0").mark_bar()
        .encode(x=x, y=y, xOffset=offset,
                color=alt.Color("what:N", legend=alt.Legend(offset=above(2)),
                                scale=alt.Scale(domain=list(SHOWN), range=[COMPARED[2], ACTIVE])))
    )
    labels = (
        each.properties(name="label").transform_filter(f"datum['{SHOWN[1]}'] > 0")
        .transform_calculate(share=f"datum['{SHOWN[1]}']", what=f"'{SHOWN[1]}'", text="format(datum.share, '.2f')")
        .mark_text(dy=-7, fontSize=11).encode(x=x, y=y, xOffset=offset, text="text:N")
    )
    summed = " + ".join(read("weights", f"({EXPERTS} * (K - 1) + {i})") for i in range(EXPERTS))
    text = words(
        chosen,
        "(K == 1 ? 'goes to expert ' : 'goes to experts ') + join(split(substring(datum.ranked, 0, K), ''), ', ')",
        f"(K == 1 ? 'with weight ' : 'with weights that sum to ') + format({summed}, '.3f')",
    )
    return alt.layer(bars, labels, text).properties(height=280)


def sampled_choices(skew, K):
    """Experts (TOKENS, K) that the tokens choose when the chance of expert i goes with i to the power of -skew.

    K different experts a token, drawn one after the other (by the highest K logits with Gumbel noise). The noise is the
    same for every skew.
    """
    import torch

    uniform = torch.rand(TOKENS, EXPERTS, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    noise = -(-uniform.log()).log()
    logits = -skew * torch.arange(1, EXPERTS + 1, dtype=torch.float64).log()
    return (noise + logits).topk(K, dim=-1).indices


def capacity_row(K, skew, factor):
    """What the experts keep, drop and leave empty, in tokens, and the shares lost."""
    import torch

    from scalebook.moe import capacity, dispatch

    experts_TK = sampled_choices(skew, K)
    room = capacity(TOKENS, EXPERTS, k=K, factor=factor)
    plan = dispatch(experts_TK, torch.ones(experts_TK.shape), EXPERTS, room)
    wanted = experts_TK.flatten().bincount(minlength=EXPERTS).tolist()
    return {"wanted": wanted, "taken": plan.counts, "room": room,
            "lost": int(plan.dropped_TK.sum()) / experts_TK.numel(),
            "bare": int(plan.dropped_TK.all(dim=1).sum()) / TOKENS,
            "vacant": 1 - sum(plan.counts) / (EXPERTS * room)}


def capacity_chart():
    """Tokens that experts keep and drop, and slots that stay empty; signals K, skew, factor."""
    import altair as alt

    chosen = alt.Chart(alt.Data(values=grid(capacity_row, **CAPACITY_GRID))).transform_filter(
        "datum.K == K && datum.skew == skew && datum.factor == factor")
    kept, dropped, empty = FATES
    bars = (
        chosen.properties(name="bar").transform_calculate(expert=f"sequence(1, {EXPERTS + 1})")
        .transform_flatten(["expert", "wanted", "taken"])
        .transform_calculate(**{kept: "[0, datum.taken]", dropped: "[datum.taken, datum.wanted]",
                                empty: "[datum.taken, max(datum.taken, datum.room)]"})
        .transform_fold(list(FATES), as_=["fate", "ends"])
        .transform_filter("datum.ends[1] > datum.ends[0]")
        .transform_calculate(start="datum.ends[0]", end="datum.ends[1]")
        .mark_bar()
        .encode(
            x=alt.X("expert:O", title="expert", axis=alt.Axis(labelAngle=0)),
            y=alt.Y("start:Q", title="tokens",
                    scale=alt.Scale(domainMin=0, domainMax=alt.ExprRef(f"{TOP} * K"), nice=False)),
            y2="end:Q",
            opacity=alt.condition(f"datum.fate == '{empty}'", alt.value(0.5), alt.value(1)),
            color=alt.Color("fate:N", legend=alt.Legend(offset=above(3), columns=0),
                            scale=alt.Scale(domain=list(FATES), range=list(FATES.values()))))
    )
    rule = chosen.properties(name="capacity").mark_rule(strokeDash=[6, 4], strokeWidth=1.5).encode(y="room:Q")
    text = words(
        chosen,
        "'an expert has room for ' + datum.room + ' tokens'",
        "format(datum.lost, '.1%') + ' of choices dropped,  ' + format(datum.vacant, '.1%') + ' of slots empty'",
        "format(datum.bare, '.1%') + ' of tokens lose every choice'",
    )
    return alt.layer(bars, rule, text).properties(height=300)


guard(globals(), {"token": choice(LOGITS), "gate": choice(GATES.values()), "push": checks.number,
                  "K": partial(checks.whole, most=EXPERTS), "skew": checks.number,
                  "factor": partial(positive, most=1000)},
      "token_row", "capacity_row")

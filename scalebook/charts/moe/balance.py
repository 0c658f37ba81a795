"""How evenly a router in training spreads the tokens, step by step, for each coefficient of the balancing loss."""

from scalebook import checks
from scalebook.borders import guard
from scalebook.charts.kinds import records
from scalebook.charts.words import words
from scalebook.colours import ACTIVE
from scalebook.explorer import pack, unpack_expression
from scalebook.moe.balance import entropy, variation

WIDTH, SCALE = 3, 10_000  # of the numbers that travel packed: three digits of base 36, four decimals
LOSS_UNIT = 10  # nats: a loss travels as a share of it, and keeps three decimals


def balance_records(runs):
    """One mapping for each run, layer (from 1) and step, as `balance_rows` takes them, from the runs of an experiment.

    A run has `alpha`, the coefficient; `steps`; and for each step `counts`, layers x experts, and `held_out`, the loss.

    >>> balance_records([{"alpha": 0.1, "steps": [20], "counts": [[[3, 1]]], "held_out": [2.5]}])
    [{'coefficient': 0.1, 'layer': 1, 'step': 20, 'loads': [3, 1], 'loss': 2.5}]
    """
    return [{"coefficient": run["alpha"], "layer": layer, "step": step, "loads": loads, "loss": loss}
            for run in runs
            for step, counts, loss in zip(run["steps"], run["counts"], run["held_out"], strict=True)
            for layer, loads in enumerate(counts, 1)]


def balance_rows(records):
    """One row for each coefficient and layer, with the shares and measures of all its steps, packed.

    `records` are mappings with `coefficient`, `layer` (from 1), `step`, `loads` (tokens of each expert) and `loss`
    (nats per byte), one for each combination. Raises ValueError when a step of a run is missing or two numbers of
    experts occur.
    """
    runs = {}
    for record in sorted(records, key=lambda one: (one["coefficient"], one["layer"], one["step"])):
        runs.setdefault((record["coefficient"], record["layer"]), []).append(record)
    steps = {tuple(record["step"] for record in run) for run in runs.values()}
    experts = {len(record["loads"]) for record in records}
    if len(steps) != 1 or len(experts) != 1:
        raise ValueError(f"records hold the steps {sorted(steps)} and {sorted(experts)} experts; every run must have "
                         "the same steps, and every record the same number of experts")

    def packed(values):
        return pack((round(float(value) * SCALE) for value in values), width=WIDTH)

    return [{"coefficient": coefficient, "layer": layer, "steps": [record["step"] for record in run],
             "shares": packed(load / sum(record["loads"]) for record in run for load in record["loads"]),
             "entropy": packed(entropy([record["loads"] for record in run])),
             "variation": packed(variation([record["loads"] for record in run])),
             "loss": packed(record["loss"] / LOSS_UNIT for record in run)}
            for (coefficient, layer), run in runs.items()]


def balance_chart(records):
    """Each expert's share of the tokens; signals coefficient, layer, step. `records` are those of `balance_rows`."""
    import altair as alt

    experts = len(records[0]["loads"])
    chosen = (
        alt.Chart(alt.Data(values=balance_rows(records)))
        .transform_filter("datum.coefficient == coefficient && datum.layer == layer")
        .transform_calculate(at="indexof(datum.steps, step)")
    )

    def read(packed, position):
        return f"({unpack_expression(f'datum.{packed}', position, width=WIDTH)} / {SCALE})"

    shares = (
        chosen.transform_calculate(i=f"sequence({experts})").transform_flatten(["i"])
        .transform_calculate(share=read("shares", f"({experts} * datum.at + datum.i)"), expert="datum.i + 1")
        .transform_filter("datum.share > 0")
    )
    bars = shares.properties(name="bar").mark_bar(color=ACTIVE).encode(
        # An expert without tokens has no bar, and keeps its place.
        x=alt.X("expert:O", title="expert", axis=alt.Axis(labelAngle=0),
                scale=alt.Scale(domain=list(range(1, experts + 1)))),
        y=alt.Y("share:Q", title="share of the tokens", axis=alt.Axis(format="%"),
                scale=alt.Scale(domain=[0, 1], nice=False)))
    rule = (
        alt.Chart(alt.Data(values=[{"share": 1 / experts}]), name="even")
        .mark_rule(strokeDash=[6, 4], strokeWidth=1.5).encode(y="share:Q")
    )
    largest = "max(" + ", ".join(read("shares", f"({experts} * datum.at + {i})") for i in range(experts)) + ")"
    loss = f"{LOSS_UNIT} * {read('loss', 'datum.at')}"
    text = words(
        chosen,
        f"'largest share ' + format({largest}, '.1%') + ',  relative entropy '"
        f" + format({read('entropy', 'datum.at')}, '.3f')",
        f"'coefficient of variation ' + format({read('variation', 'datum.at')}, '.2f')"
        f" + ',  task loss ' + format({loss}, '.2f')",
    )
    return alt.layer(bars, rule, text).properties(height=280)


def _runs(name, value):
    """ValueError unless each step of each run has its counts, layer by layer, and its loss."""
    records("alpha", "steps", "counts", "held_out")(name, value)
    for run in value:
        checks.number(f"{name}: alpha", run["alpha"])
        parts = [run[key] for key in ("steps", "counts", "held_out")]
        if not all(isinstance(part, list | tuple) and len(part) == len(parts[0]) for part in parts):
            raise ValueError(f"{name}: steps, counts and held_out must be lists of one length")
        if not all(isinstance(layers, list | tuple) for layers in run["counts"]):
            raise ValueError(f"{name}: counts must hold, for each step, a list of layers")


def _records(name, value):
    """ValueError unless each record has its numbers, and loads that some expert got."""
    records("coefficient", "layer", "step", "loads", "loss")(name, value)
    for record in value:
        for key in ("coefficient", "layer", "step"):
            checks.number(f"{name}: {key}", record[key])
        checks.number(f"{name}: loss", record["loss"], least=0)
        loads = record["loads"]
        if not isinstance(loads, list | tuple) or not all(map(checks.is_number, loads)) or not sum(loads) > 0:
            raise ValueError(f"{name}: loads = {checks.shown(loads)} is not allowed; it must be a list of counts, not "
                             "all 0")


guard(globals(), {"runs": _runs, "records": _records}, "balance_records", "balance_rows", "balance_chart")

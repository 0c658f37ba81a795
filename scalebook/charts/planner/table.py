"""The planner's answer as a table: the best layouts for a model on a cluster, ranked again when the question changes.

A search cannot run in a browser, so it is run on the grid of the controls' values, and its first layouts travel packed.
"""

from functools import cache

from scalebook import checks, published
from scalebook.borders import guard
from scalebook.charts.words import by_width, words
from scalebook.colours import COMPARED
from scalebook.explorer import grid, pack, unpack_expression
from scalebook.planner import search
from scalebook.planner.clusters import Cluster

GRID = {"model": ("Llama-3-70B", "Llama-3-405B"), "machine": ("A100-80GB", "H100"), "gpus": (128, 512, 4096, 16384),
        "sequence": (8192, 131072), "tokens": (4, 16)}  # millions of tokens (2^20) in a step
SETTINGS = {"micro_batches": (1, 2), "zero": (1, 3), "sequence_parallel": (True,)}  # what the searches try
ROWS, WIDTH = 8, 5  # layouts shown; digits of base 36 of a packed number
SHARES = {"step": 1000, "mfu": 1000, "memory": 10}  # a packed number counts milliseconds, per mille, tenths of a GB
# Columns: heading, place (of 100), and the Vega expression of a cell from the row's numbers.
NUMBERS = ("tp", "cp", "pp", "dp", "zero", "micro_batch", "chunks", "full", "step", "mfu", "memory")
COLUMNS = {"": (3, "datum.place"), "TP": (10, "datum.tp"), "CP": (17, "datum.cp"), "PP": (24, "datum.pp"),
           "DP": (32, "datum.dp"), "ZeRO": (41, "datum.zero"), "b": (48, "datum.micro_batch"),
           "v": (54, "datum.chunks"), "again": (63, "datum.full ? 'all' : 'none'"),
           "step, s": (75, f"format(datum.step / {SHARES['step']}, '.3r')"),
           "MFU": (87, f"format(datum.mfu / {SHARES['mfu']}, '.1%')"),
           "GB": (97, f"format(datum.memory / {SHARES['memory']}, '.1f')")}


@cache
def table_row(model, machine, gpus, sequence, tokens):
    """The best layouts of one search, packed, and how many plans can be run and lack memory."""
    batch = tokens * 2**20 // sequence
    cluster = Cluster(published.machine(machine), gpus)
    answer = search(published.model(model), cluster, batch=batch, sequence=sequence, **SETTINGS)
    numbers = [number for best in answer.best_layouts(ROWS) for number in numbers_of(best)]
    return {"best": pack(numbers, width=WIDTH), "run": len(answer.plans), "full": answer.counts.get("memory", 0)}


def numbers_of(estimate):
    """An `Estimate` as the whole numbers that travel, in the order of `NUMBERS`."""
    plan = estimate.plan
    measured = {"step": estimate.step_seconds, "mfu": estimate.mfu, "memory": estimate.memory_bytes / 1e9}
    return [*(getattr(plan, name) for name in NUMBERS[:7]), int(plan.recompute == "full"),
            *(round(value * SHARES[name]) for name, value in measured.items())]


def table_chart():
    """The best layouts, each with its fastest settings; signals as in `GRID`."""
    import altair as alt

    chosen = alt.Chart(alt.Data(values=grid(table_row, **GRID))).transform_filter(
        " && ".join(f"datum.{name} == {name}" for name in GRID))
    size = WIDTH * len(NUMBERS)
    rows = (
        chosen.transform_calculate(i=f"sequence(length(datum.best) / {size})").transform_flatten(["i"])
        .transform_calculate(place="datum.i + 1", **{
            name: unpack_expression("datum.best", f"({len(NUMBERS)} * datum.i + {position})", width=WIDTH)
            for position, name in enumerate(NUMBERS)})
    )
    x = alt.X("x:Q", axis=None, scale=alt.Scale(domain=[0, 100], nice=False))
    y = alt.Y("place:Q", axis=None, scale=alt.Scale(domain=[ROWS + 0.6, -0.4], nice=False, zero=False))
    small = by_width(9.5, 12.5)
    bars = (
        rows.properties(name="speed").transform_joinaggregate(fastest="min(step)")
        .transform_calculate(x="0", x2="100 * datum.fastest / datum.step", y="datum.place - 0.4",
                             y2="datum.place + 0.4")
        .mark_rect(color=COMPARED[0], opacity=0.16)
        .encode(x=x, x2="x2:Q", y=alt.Y("y:Q", axis=None), y2="y2:Q")
    )
    cells = (
        rows.properties(name="cell")
        .transform_calculate(x=f"{[place for place, _ in COLUMNS.values()]}",
                             text="[" + ", ".join(f"'' + ({cell})" for _, cell in COLUMNS.values()) + "]")
        .transform_flatten(["x", "text"])
        .mark_text(fontSize=small).encode(x=x, y=y, text="text:N")
    )
    headings = (
        chosen.properties(name="heading")
        .transform_calculate(text=f"{list(COLUMNS)}", x=f"{[place for place, _ in COLUMNS.values()]}", place="0")
        .transform_flatten(["text", "x"]).transform_filter("datum.text != ''")
        .mark_text(fontSize=small, fontWeight="bold").encode(x=x, y=y, text="text:N")
    )
    text = words(
        chosen,
        "format(gpus, ',') + ' GPUs, steps of ' + tokens * 1048576 / sequence + ' samples of '"
        " + format(sequence, ',') + ' positions'",
        "format(datum.run, ',') + ' plans can be run; ' + format(datum.full, ',') + ' more would need more memory'",
    )
    return alt.layer(bars, cells, headings, text).properties(height=260)


def _name(name, value):
    checks.instance(name, value, str, "a published name")


guard(globals(), {"model": _name, "machine": _name, "gpus": checks.whole, "sequence": checks.size,
                  "tokens": checks.size},
      "table_row")

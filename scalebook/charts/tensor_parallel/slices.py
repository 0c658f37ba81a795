"""Which rank holds which slice of a matrix, and of what goes in and comes out: Y = X W, for a layer of Llama 3 8B."""

from scalebook import published
from scalebook.charts.words import above, by_width, words
from scalebook.colours import COLUMN, MESSAGE, REPLICATED, ROW
from scalebook.formulas import tensor_parallel as formulas

RANKS = (1, 2, 4, 8, 16)
MODEL = "Llama-3-8B"
KINDS = {"split by columns": COLUMN, "split by rows": ROW, "whole on every rank": REPLICATED,
         "partial sums, to all-reduce": MESSAGE}
COLUMNS, ROWS, WHOLE, SUMS = KINDS
# Name: the matrix in words, and whether its columns or its rows are split.
MATRICES = {"QKV": COLUMNS, "output": ROWS, "gate": COLUMNS, "up": COLUMNS, "down": ROWS, "embedding": ROWS}
PLACES = {"X": (0, 24, 30, 70), "W": (36, 76, 0, 100), "Y": (88, 112, 30, 70)}  # left, right, top, bottom
GAP = 0.04  # of a slice's width, on either side


def shape_of(matrix):
    """Rows and columns of a matrix that maps rows of X to rows of Y.

    >>> shape_of("QKV"), shape_of("down")
    ((4096, 6144), (14336, 4096))
    """
    model = published.model(MODEL)
    h, heads = model.d_model, model.heads * model.head_dim
    return {"QKV": (h, heads + 2 * model.kv_heads * model.head_dim), "output": (heads, h), "gate": (h, model.d_ff),
            "up": (h, model.d_ff), "down": (model.d_ff, h), "embedding": (model.vocabulary, h)}[matrix]


def segments(matrix):
    """The parts of the axis that is split, which every rank has a slice of: (first, width, key and value heads or 0).

    >>> segments("QKV")
    [(0, 4096, 0), (4096, 1024, 8), (5120, 1024, 8)]
    """
    model = published.model(MODEL)
    if matrix != "QKV":
        rows, columns = shape_of(matrix)
        return [(0, columns if MATRICES[matrix] == COLUMNS else rows, 0)]
    queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    return [(0, queries, 0), (queries, keys, model.kv_heads), (queries + keys, keys, model.kv_heads)]


def panel_rows(matrix):
    """The rectangles of X, W and Y before they are cut: one row for each segment of each panel."""
    by_columns = MATRICES[matrix] == COLUMNS
    kinds = {"X": WHOLE, "W": COLUMNS, "Y": COLUMNS} if by_columns else {"X": COLUMNS, "W": ROWS, "Y": SUMS}
    rows, columns = shape_of(matrix)
    length = columns if by_columns else rows
    return [{"matrix": matrix, "panel": panel, "kind": kind, "first": first, "wide": wide, "G": G, "length": length}
            for panel, kind in kinds.items()
            for first, wide, G in (segments(matrix) if kind in (COLUMNS, ROWS) else [(0, length, 0)])]


def titles(matrix):
    """What stands above the three panels."""
    rows, columns = shape_of(matrix)
    names = {"X": ("one-hot" if matrix == "embedding" else "X") + f": s × {rows:,}",
             "W": ("Q, K, V" if matrix == "QKV" else matrix) + f": {rows:,} × {columns:,}",
             "Y": f"Y: s × {columns:,}"}
    return [{"matrix": matrix, "text": text, "x": sum(PLACES[panel][:2]) / 2, "y": PLACES[panel][2]}
            for panel, text in names.items()]


def cut(chosen):
    """Cut the chosen panels into the ranks' slices, in the browser."""
    copies = formulas.kv_copies.vega(G="datum.G")
    cut_here = f"(datum.kind == '{COLUMNS}' || datum.kind == '{ROWS}')"
    heads = formulas.first_kv_head.vega(G="datum.G", r="datum.r")
    per_rank = formulas.kv_heads_per_rank.vega(G="datum.G")
    start = formulas.slice_start.vega(w="datum.wide", r="datum.r")
    width = formulas.slice_width.vega(w="datum.wide")
    return (
        chosen.transform_calculate(r=f"{cut_here} ? sequence(t) : [0]").transform_flatten(["r"])
        .transform_calculate(copies=f"datum.G ? {copies} : 1")
        .transform_filter("datum.r % datum.copies == 0")
        .transform_calculate(
            low=f"!{cut_here} ? 0 : datum.first + (datum.G ? datum.wide / datum.G * ({heads}) : {start})",
            size=f"!{cut_here} ? datum.length : (datum.G ? datum.wide / datum.G * ({per_rank}) : {width})",
            mine=f"rank < t && (!{cut_here} || floor(rank / datum.copies) == datum.r / datum.copies)",
            place="{" + ", ".join(f"{panel}: {list(place)}" for panel, place in PLACES.items()) + "}[datum.panel]")
        .transform_calculate(
            from_=f"(datum.low + {GAP} * datum.size) / datum.length",
            to=f"(datum.low + {1 - GAP} * datum.size) / datum.length",
            across=f"datum.kind == '{ROWS}'")
        .transform_calculate(
            left="datum.across ? datum.place[0] : datum.place[0] + datum.from_ * (datum.place[1] - datum.place[0])",
            right="datum.across ? datum.place[1] : datum.place[0] + datum.to * (datum.place[1] - datum.place[0])",
            top="datum.across ? datum.place[2] + datum.from_ * (datum.place[3] - datum.place[2]) : datum.place[2]",
            bottom="datum.across ? datum.place[2] + datum.to * (datum.place[3] - datum.place[2]) : datum.place[3]")
    )


def sentences():
    """Four Vega expressions that say in words what the chosen rank holds, if there is such a rank."""
    model = published.model(MODEL)
    start, width = formulas.slice_start.vega(w="datum.wide", r="rank"), formulas.slice_width.vega(w="datum.wide")
    sizes = {"G": model.kv_heads}
    first_query = formulas.slice_start.vega(w=model.heads, r="rank")
    queries = formulas.heads_per_rank.vega(a=model.heads)
    keys, first_key = formulas.kv_heads_per_rank.vega(**sizes), formulas.first_kv_head.vega(**sizes, r="rank")
    copies = formulas.kv_copies.vega(**sizes)

    def span(first, count):
        return (f"({count} == 1 ? ' ' + format({first}, ',')"
                f" : 's ' + format({first}, ',') + ' to ' + format({first} + {count} - 1, ','))")

    by_columns = f"datum.kind == '{COLUMNS}'"
    held = (f"datum.matrix == 'QKV' ? 'query head' + {span(first_query, queries)}"
            f" + ', KV head' + {span(first_key, keys)} + ({copies} > 1 ? ' (on ' + {copies} + ' ranks)' : '')"
            f" : ({by_columns} ? 'column' : 'row') + {span(start, width)}")
    share = f"datum.matrix == 'QKV' ? {model.head_dim} * ({queries} + 2 * {keys}) : {width}"
    parts = f"({by_columns} ? datum.rows : datum.columns) * ({share})"
    return (
        f"rank < t ? 'rank ' + rank + ' of ' + t + ': ' + ({held}) : 'There is no rank ' + rank + ':'",
        f"rank < t ? format({parts} / 1e6, '.3~r') + ' of ' + format(datum.rows * datum.columns / 1e6, '.3~r')"
        " + ' million parameters' : 'ranks are counted from 0 to ' + (t - 1)",
        f"rank >= t ? '' : {by_columns} ? 'needs all of X,' : 'needs its columns of X,'",
        f"rank >= t ? '' : {by_columns} ? 'makes its columns of Y: no message' : 'makes a part of a sum: all-reduce'",
    )


def slices_chart():
    """The slices of a matrix, those of one rank in full colour; signals matrix, t, rank."""
    import altair as alt

    def chosen(values):
        return alt.Chart(alt.Data(values=values)).transform_filter("datum.matrix == matrix")

    x = alt.X("left:Q", axis=None, scale=alt.Scale(domain=[0, 112], nice=False))
    y = alt.Y("top:Q", axis=None, scale=alt.Scale(domain=[100, -8], nice=False))
    rectangles = cut(chosen([row for matrix in MATRICES for row in panel_rows(matrix)])).properties(name="slice")
    rectangles = rectangles.mark_rect().encode(
        x=x, x2="right:Q", y=y, y2="bottom:Q",
        opacity=alt.condition("datum.mine", alt.value(1), alt.value(0.25)),
        color=alt.Color("kind:N", legend=alt.Legend(offset=above(4), columns=by_width(1, 2)),
                        scale=alt.Scale(domain=list(KINDS), range=list(KINDS.values()))))
    labels = (
        chosen([row for matrix in MATRICES for row in titles(matrix)]).properties(name="title")
        .mark_text(baseline="bottom", dy=-4, fontSize=by_width(10, 12))
        .encode(x=alt.X("x:Q", axis=None), y=alt.Y("y:Q", axis=None), text="text:N")
    )
    signs = (
        alt.Chart(alt.Data(values=[{"x": 30, "y": 50, "text": "×"}, {"x": 82, "y": 50, "text": "="}]), name="sign")
        .mark_text(fontSize=20).encode(x=alt.X("x:Q", axis=None), y=alt.Y("y:Q", axis=None), text="text:N")
    )
    facts = [{"matrix": matrix, "kind": kind, "rows": shape_of(matrix)[0], "columns": shape_of(matrix)[1],
              "wide": segments(matrix)[0][1]} for matrix, kind in MATRICES.items()]
    return alt.layer(rectangles, labels, signs, words(chosen(facts), *sentences())).properties(height=260)

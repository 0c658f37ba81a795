"""The charts of chapter 3: published machines and shapes, sums that hold, points in the frame."""

import itertools
from fractions import Fraction

import pytest
import torch

from scalebook import moe, published
from scalebook.charts import tensor_parallel as charts
from scalebook.charts.tensor_parallel import kept, messages, race, slices
from scalebook.formulas import tensor_parallel as formulas
from scalebook.tensor_parallel.sharding import shard_qkv
from tests.vega_oracle import evaluate


def test_every_point_of_the_race_lies_in_the_frame():
    ends = ((1, 2), (race.RANKS[-1],))
    for link, share, h, s, b in itertools.product(race.LINKS, race.SHARES, race.WIDTHS, race.SEQUENCES, race.BATCHES):
        speed = race.machine_speeds(link)
        shape = {"b": b, "s": s, "h": h}
        for t in itertools.chain(*ends):
            compute = formulas.compute_time(**shape, t=t, rho=share * speed["peak"])
            communication = formulas.communication_time(**shape, t=t, epsilon=race.ELEMENT, omega=speed["omega"])
            assert race.SHORTEST <= compute <= race.LONGEST
            assert t == 1 or race.SHORTEST <= communication <= race.LONGEST


def test_within_a_server_compute_wins_at_eight_ranks_for_gpt_3_and_between_servers_hardly():
    """At half of an A100's peak: 94% of the time inside, 57% over the network."""
    shares = {}
    for link in ("A100, NVLink", "A100, network"):
        speed = race.machine_speeds(link)
        shares[link] = formulas.computing_share(s=2048, h=12288, t=8, epsilon=2, rho=speed["peak"] / 2,
                                                omega=speed["omega"])
    assert shares["A100, NVLink"] == pytest.approx(0.940, abs=0.001)
    assert shares["A100, network"] == pytest.approx(0.565, abs=0.001)


@pytest.mark.parametrize("technique", kept.TECHNIQUES)
def test_the_parts_of_a_bar_sum_to_the_techniques_formula(technique):
    formula, _ = kept.TECHNIQUES[technique]
    shapes = [{"t": t, "s": s, "a": a, "h": h, "b": b} for t, s, a, h, b in (
        (1, 2048, 96, 12288, 1), (8, 512, 128, 20480, 8), (4, 131072, 16, 4096, 2))]
    names = [variable.name for variable in formula.symbols]
    for shape in shapes:
        whole = " + ".join(f"({part})" for part in kept.technique_expressions()[technique])
        for name in shape:
            whole = whole.replace(f"{name}*", f"datum.{name}*").replace(f"*{name}", f"*datum.{name}")
            whole = whole.replace(f"pow({name}", f"pow(datum.{name}").replace(f"/ {name}", f"/ datum.{name}")
        assert evaluate([(whole, shape)])[0] == pytest.approx(formula(**{name: shape[name] for name in names}))


def test_the_shapes_are_those_of_the_models_that_korthikanti_trained():
    for name, model in (("GPT-3", "GPT-3-175B"), ("MT-NLG", "MT-NLG-530B")):
        shape = published.model(model)
        assert charts.SHAPES[name] == (shape.d_model, shape.heads)
        assert shape.d_model in kept.WIDTHS
        assert shape.heads in kept.HEADS


def test_the_messages_are_counted_by_the_formulas():
    shape = {"b": 2, "s": 64, "h": 32, "t": 4}
    one = formulas.all_reduce_elements(**shape)
    ends = {}
    for row in messages.message_rows():
        ends[row["way"]] = {key: row[key][1] for key in ("calls", "equal")}
    for recomputation, reduces in formulas.ALL_REDUCES.items():
        plain, split = ends[recomputation], ends[f"{recomputation}, SP"]
        assert plain == {"calls": reduces, "equal": reduces}
        again = Fraction(formulas.gathered_again_elements(**shape)) / one
        assert split == {"calls": 2 * reduces + 2, "equal": reduces + again}
    assert ends["none"]["equal"] * one == formulas.layer_elements(**shape)
    assert ends["full"]["equal"] * one == formulas.layer_elements_recomputed(**shape)
    carried = formulas.layer_elements_sequence_parallel(**shape) + formulas.gathered_again_elements(**shape)
    assert ends["none, SP"]["equal"] * one == carried


@pytest.mark.parametrize("key", ["calls", "equal"])
def test_the_parts_of_a_bar_of_messages_lie_end_to_end(key):
    bars = {}
    for row in messages.message_rows():
        bars.setdefault(row["way"], []).append(row[key])
    assert len(bars) == 6
    for pairs in bars.values():
        assert pairs[0][0] == 0
        assert all(one[1] == two[0] for one, two in itertools.pairwise(pairs))
        assert all(low < high for low, high in pairs)


def test_the_matrices_are_those_of_the_published_model():
    shape = published.model(slices.MODEL)
    count = moe.count_parameters(shape)
    sizes = {matrix: rows * columns for matrix, (rows, columns) in (
        (matrix, slices.shape_of(matrix)) for matrix in charts.MATRICES)}
    assert shape.layers * (sizes["QKV"] + sizes["output"]) == count.by_part["attention"].total
    feed_forward = shape.layers * (sizes["gate"] + sizes["up"] + sizes["down"])
    assert feed_forward == count.by_part["dense feed-forward"].total
    assert sizes["embedding"] == count.by_part["embedding"].total


@pytest.mark.parametrize("matrix", charts.MATRICES)
def test_the_segments_cover_the_axis_that_is_split_and_every_number_of_ranks_divides_it(matrix):
    rows, columns = slices.shape_of(matrix)
    found, end = slices.segments(matrix), 0
    for first, wide, heads in found:
        assert first == end
        end += wide
        for t in slices.RANKS:
            assert wide % t == 0
            assert not heads or heads % t == 0 or t % heads == 0
    assert end == (columns if charts.MATRICES[matrix] == slices.COLUMNS else rows)


@pytest.mark.parametrize("t", slices.RANKS)
def test_the_picture_cuts_queries_keys_and_values_as_the_library_does(t):
    shape = published.model(slices.MODEL)
    columns = torch.arange(slices.shape_of("QKV")[1])
    for rank in range(t):
        drawn = []
        for first, wide, G in slices.segments("QKV"):
            head = formulas.first_kv_head(G=G, t=t, r=rank) if G else 0
            start = first + (wide // G * head if G else formulas.slice_start(w=wide, t=t, r=rank))
            size = wide // G * formulas.kv_heads_per_rank(G=G, t=t) if G else formulas.slice_width(w=wide, t=t)
            drawn += range(start, start + size)
        assert shard_qkv(columns, shape.heads, shape.kv_heads, rank, t).tolist() == drawn


def test_a_matrix_by_rows_takes_its_input_by_columns_and_leaves_a_sum():
    kinds = {row["panel"]: row["kind"] for row in slices.panel_rows("down")}
    assert kinds == {"X": slices.COLUMNS, "W": slices.ROWS, "Y": slices.SUMS}
    kinds = {row["panel"]: row["kind"] for row in slices.panel_rows("QKV")}
    assert kinds == {"X": slices.WHOLE, "W": slices.COLUMNS, "Y": slices.COLUMNS}

"""GPTQ is not slower than the paper's algorithm and has its codes, and the bench would say so if it were otherwise."""

import statistics
import sys

import pytest
import torch

from tests.bench import contenders
from tests.bench import quantization as bench


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("group_size", [None, 128])
def test_gptq_is_not_slower_than_the_papers_algorithm_and_has_its_codes(group_size):
    """In time of the processor, so that other work on the machine hardly counts. Larger layers gain more."""
    row = bench.compare("the paper's algorithm 1", 192, 768, group_size, rounds=5)
    assert row["ratio"] < 1.15
    assert row["differ"] <= bench.MOST_DIFFERENT
    assert row["ours_error"] == pytest.approx(row["other_error"], rel=1e-3)
    assert row["ours_error"] < 0.9  # of rounding to nearest


def test_in_float64_every_code_is_that_of_the_papers_algorithm():
    assert bench.in_float64() == {None: True, 128: True}


def test_each_round_is_a_pair_and_every_other_one_is_turned():
    calls = []
    times, results = bench.take_turns((lambda x: calls.append("a") or x, lambda x: calls.append("b") or -x), (3,), 3)
    assert "".join(calls) == "ab" + "ab" + "ba" + "ab"  # the first pair warms up
    assert results == [3, -3]
    assert [len(pair) for pair in times] == [2, 2, 2]


def test_the_ratio_is_that_of_the_times():
    """A function that does the work three times over takes three times as long."""
    matrix = torch.randn(300, 300)

    def work(times):
        return [matrix @ matrix for _ in range(20 * times)]

    times, _ = bench.take_turns((lambda: work(3), lambda: work(1)), (), 9)
    assert statistics.median(one / other for one, other in times) == pytest.approx(3, rel=0.4)


ROW = {"layer": "2 x 128", "group": 128, "beside": "another", "version": "1.0", "ours_s": 1.0, "other_s": 2.0,
       "ratio": 0.5, "ours_error": 0.5, "other_error": 0.5, "differ": 0.0, "must_equal": True}


@pytest.mark.parametrize(("change", "exact", "message"), [
    ({"ratio": 1.2}, {}, "1.20 times as long as another at 2 x 128, group 128; the target is 1.0"),
    ({"differ": 0.02}, {}, "2.000% of the weights differ from another at 2 x 128, group 128"),
    ({}, {128: False}, "other codes than the paper's algorithm in float64, group 128"),
])
def test_what_misses_the_target_is_said(change, exact, message):
    assert bench.failures([ROW], {None: True}) == []
    assert bench.failures([ROW | {"differ": 0.9, "must_equal": False}], {}) == []
    [found] = bench.failures([ROW | change], exact)
    assert message in found


def test_packages_that_are_not_installed_are_left_out_and_the_table_says_how_to_get_them(monkeypatch, tmp_path):
    assert contenders.installed("neural-compressor-pt", tmp_path) is None
    monkeypatch.setattr(contenders, "installed", lambda package: None)
    rows = bench.measure(rounds=1, shapes=[(4, 128)], groups=[None])
    assert [row["beside"] for row in rows] == ["the paper's algorithm 1"]
    lines = list(bench.table(rows, {None: True}))
    left_out = [line for line in lines if line.startswith("Left out: ")]
    assert len(left_out) == 2
    assert all(line.endswith("python -m tests.bench.contenders") for line in left_out)
    pinned = [line.partition("==")[0] for line in contenders.PINS.read_text().splitlines() if not line.startswith("#")]
    assert {package for _, _, package in bench.CONTENDERS.values() if package} <= set(pinned)


def test_the_packages_are_found_in_a_with_block_only(tmp_path):
    (tmp_path / "scalebook_contender.py").write_text("VALUE = 7\n")
    with contenders.importable(tmp_path):
        import scalebook_contender
        assert str(tmp_path) == sys.path[-1]  # after all others
    assert scalebook_contender.VALUE == 7
    assert str(tmp_path) not in sys.path

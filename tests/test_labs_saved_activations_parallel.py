"""What a rank keeps of a layer is what the paper counts for tensor and sequence parallelism, to the byte."""

import doctest
import sys

import pytest
import torch

from scalebook import ranks
from scalebook import tensor_parallel as tp
from scalebook.formulas import tensor_parallel as formulas
from scalebook.labs import saved_activations_parallel as lab

SIZES = [(2, 16, 32, 8), (3, 8, 48, 8), (2, 20, 16, 16)]  # batch, positions, width, heads
TENSOR, KEPT, AGAIN = lab.WAYS


def measure_all(rank, world_size):
    """Every setting on the same processes."""
    return [lab.saved_by_rank(rank, world_size, sizes) for sizes in SIZES]


@pytest.fixture(scope="module", params=[1, 2, 4])
def told(request):
    """The number of ranks; for each setting its sizes, and by way what each rank keeps."""
    results = ranks.run(measure_all, request.param)
    return request.param, [
        (sizes, {way: [lab.name_all(way, request.param, sizes, result[place][way]) for result in results]
                 for way in lab.WAYS})
        for place, sizes in enumerate(SIZES)
    ]


def beyond_the_paper(t, batch, positions, way):
    """LayerNorm's statistics, whole or a rank's positions, and the causal mask of one byte a pair."""
    own = positions if way == TENSOR else positions // t
    return formulas.layer_norm_statistics(epsilon=2, s=own, b=batch) + positions**2


def test_the_examples_in_the_docstrings_hold():
    result = doctest.testmod(lab)
    assert result.attempted == 4
    assert result.failed == 0


def test_with_tensor_parallelism_it_is_equation_2(told):
    t, settings = told
    for (b, s, h, a), found in settings:
        expected = formulas.activations_tensor_parallel(s=s, b=b, h=h, a=a, t=t) + beyond_the_paper(t, b, s, TENSOR)
        assert [saved.total for saved in found[TENSOR]] == [expected] * t


def test_with_sequence_parallelism_and_inputs_gathered_again_it_is_equation_4(told):
    t, settings = told
    for (b, s, h, a), found in settings:
        expected = formulas.activations_sequence_parallel(s=s, b=b, h=h, a=a, t=t) + beyond_the_paper(t, b, s, AGAIN)
        assert [saved.total for saved in found[AGAIN]] == [expected] * t


def test_gathered_inputs_that_are_kept_stay_whole_on_every_rank(told):
    """The inputs of two products: 4sbh in place of 4sbh / t."""
    t, settings = told
    for (b, s, h, _), found in settings:
        for kept, again in zip(found[KEPT], found[AGAIN], strict=True):
            assert kept.total - again.total == 4 * s * b * h * (t - 1) // t
            differing = {item.operation for item in kept.items if item.counted not in (0, item.bytes)}
            assert differing == ({"attention.qkv", "mlp.up"} if t > 1 else set())


def test_each_tensor_has_the_bytes_that_the_paper_counts(told):
    t, settings = told
    for (b, s, h, a), found in settings:
        for way in (TENSOR, AGAIN):
            for saved in found[way]:
                assert all(item.bytes == item.counted for item in saved.items if item.counted)
                assert saved.statistics == beyond_the_paper(t, b, s, way)
                counted = {part: sum(item.counted for item in saved.items if item.part == part)
                           for part in ("inside", "outside")}
                assert counted["outside"] == formulas.activations_outside(s=s, b=b, h=h) / (1 if way == TENSOR else t)
                assert counted["inside"] * t == 24 * s * b * h + 5 * a * s**2 * b


def test_modules_are_left_without_hooks():
    block = tp.ParallelBlock(tp.Shape(hidden=8, heads=2), tp.Region())
    ledger = lab.Items(block.parameters())
    with lab.under_module_names(block, ledger):
        block(torch.ones(2, 2, 8, requires_grad=True))
    assert {name for name, _ in ledger.items} >= {"attention", "mlp.up"}
    before = len(ledger.items)
    block(torch.ones(2, 2, 8, requires_grad=True))
    assert len(ledger.items) == before


@pytest.mark.parametrize(("options", "message"), [
    ({"size": 0}, "size = 0 is not allowed"), ({"batch": 1}, "batch = 1, heads = 8 is not allowed"),
    ({"heads": 4}, "batch = 2, heads = 4 is not allowed; there must be at least 2 samples and, for 4 ranks, 8 heads"),
    ({"positions": 6}, "positions = 6 is not allowed; it must be a multiple of the 4 ranks"),
    ({"width": 65}, "width = 65 is not allowed"), ({"size": 3}, "heads = 8 is not allowed"),
])
def test_what_cannot_be_is_named_before_a_process_starts(options, message):
    with pytest.raises(ValueError, match=message):
        lab.saved_on_ranks(**options)


def test_the_lab_prints_its_table(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["lab", "--ranks", "2", "--positions", "8"])
    lab.main()
    printed = capsys.readouterr().out
    expected = formulas.activations_tensor_parallel(s=8, b=2, h=64, a=8, t=2)
    assert f"tensor parallel: {expected + 8 * 8 * 2 + 64} B a rank; the paper counts {expected} B" in printed
    assert printed.count("\n") == 3 * (1 + 20)


def test_bad_input_on_the_command_line_is_told_without_a_traceback(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["lab", "--ranks", "3"])
    with pytest.raises(SystemExit) as ended:
        lab.main()
    assert ended.value.code == 2
    assert "heads = 8 is not allowed; it must be a multiple of the 3 ranks" in capsys.readouterr().err

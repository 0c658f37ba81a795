"""PyTorch's own tensor parallelism on the chapter's block: the same values, and the counts of two counters."""

import doctest
import sys

import pytest

from scalebook.formulas import tensor_parallel as formulas
from scalebook.labs import tensor_parallel as ours
from scalebook.labs import tensor_parallel_torch as lab
from scalebook.labs.gaps import largest

R = 4
# The counts of both counters, forward and backward; and what adds up the gradients left in parts.
CALLS = {
    "each product by itself": ({"all_reduce": 2}, {"all_reduce": 4}, {}),  # backward one each for q, k, v and up
    "one entry for q, k, v": ({"all_reduce": 2}, {"all_reduce": 2}, {}),
    "sequence parallelism": ({"all_gather": 2, "reduce_scatter": 2}, {"all_gather": 2, "reduce_scatter": 2},
                             {"all_reduce": 4}),  # two norms, weight and bias
}
THEIR_NAMES = {"all_reduce": "all_reduce", "all_gather_into_tensor": "all_gather",
               "reduce_scatter_tensor": "reduce_scatter"}


@pytest.fixture(scope="module")
def found():
    return lab.run_plans(R)


def test_the_examples_in_the_docstrings_hold():
    result = doctest.testmod(lab)
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.parametrize("name", lab.PLANS)
def test_their_output_and_gradients_are_those_of_one_process(found, name):
    gaps = found[name].gaps
    assert len(gaps) == 2 + 12
    assert largest(gaps.values()) < 1e-10


@pytest.mark.parametrize("name", lab.PLANS)
def test_their_counter_and_ours_agree_on_the_calls(found, name):
    one = found[name]
    forward, backward, update = CALLS[name]
    for (theirs, counted), expected in ((one.forward, forward), (one.backward, backward)):
        assert {THEIR_NAMES[kind]: calls for kind, calls in theirs.items() if calls} == expected
        assert dict(counted.calls) == expected
    assert dict(one.update.calls) == update


def test_with_one_entry_their_bytes_are_those_of_the_formula_and_else_more(found):
    setting = lab.setting_for(R, sequence_parallel=False)
    sizes = {"b": setting.samples, "s": setting.positions, "h": setting.shape.hidden, "t": R}
    sent = {name: sum(sum(traffic.ring_bytes(R).values()) for _, traffic in (one.forward, one.backward))
            for name, one in found.items()}
    layer = 8 * formulas.layer_elements(**sizes)
    assert sent["one entry for q, k, v"] == sent["sequence parallelism"] == layer
    assert sent["each product by itself"] == layer * 3 / 2 == ours.predicted_bytes(setting, R) * 3 / 2


def test_the_table_has_both_counts(found):
    lines = lab.table(found)
    assert len(lines) == 4 * len(lab.PLANS)
    assert sum(line.endswith(": equal to one process") for line in lines) == len(lab.PLANS)
    assert "  forward: CommDebugMode 2 all_reduce; scalebook.ranks.count 2 all_reduce" in lines


def test_bad_input_is_named(monkeypatch, capsys):
    with pytest.raises(ValueError, match="size = 0 is not allowed"):
        lab.run_plans(0)
    with pytest.raises(ValueError, match="found = None is not allowed"):
        lab.table(None)
    monkeypatch.setattr(sys, "argv", ["torch", "--ranks", "-1"])
    with pytest.raises(SystemExit) as ended:
        lab.main()
    assert ended.value.code == 2
    assert "size = -1 is not allowed" in capsys.readouterr().err

"""Tensor parallelism done wrong: what comes out on real ranks is what was predicted, and it is wrong."""

import doctest
import sys

import pytest
import torch

from scalebook.formulas import tensor_parallel as formulas
from scalebook.labs import tensor_parallel_mistakes as mistakes
from scalebook.labs import tensor_parallel_wrong as lab

R = 4


@pytest.fixture(scope="module")
def found():
    return lab.run_mistakes(R)


def test_the_examples_in_the_docstrings_hold():
    result = doctest.testmod(lab)
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.parametrize("name", lab.MISTAKES)
def test_each_mistake_gives_what_was_predicted_on_every_rank(found, name):
    one = found[name]
    assert len(one.measured) == len(one.predicted) == len(one.right) == R
    assert one.gap < 1e-12
    if name == "row before column, with its messages":
        assert one.error < 1e-12
    else:
        assert one.error > 0.1


def test_the_bias_on_every_rank_is_off_by_t_minus_1_biases(found):
    one = found["bias on every rank"]
    bias = mistakes.setting_for(R).whole().down.bias
    for measured, right in zip(one.measured, one.right, strict=True):
        torch.testing.assert_close(measured - right, ((R - 1) * bias).expand_as(right))


@pytest.mark.parametrize("name", ["f left out", "norms' gradients not added up", "key heads' gradients not added up"])
def test_what_is_not_added_up_is_a_part_and_the_parts_add_up_to_what_is_right(found, name):
    one = found[name]
    torch.testing.assert_close(sum(one.measured), one.right[0])
    assert all(apart > 0.01 for apart in (
        (measured - one.measured[0]).abs().max() for measured in one.measured[1:]))


def test_with_f_left_out_the_forward_pass_and_the_calls_seem_right(found):
    assert dict(found["f left out"].traffic.calls) == {"all_reduce": 1}  # g's; backward none


def test_row_before_column_is_right_only_with_nine_times_half_the_bytes(found):
    setting = mistakes.setting_for(R)
    sizes = {"b": setting.samples, "s": setting.positions, "h": setting.shape.hidden, "t": R}
    right, wrong = found["row before column, with its messages"].traffic, found["bias on every rank"].traffic
    assert sum(right.ring_bytes(R).values()) == 8 * formulas.mlp_elements_row_first(**sizes)
    assert sum(wrong.ring_bytes(R).values()) == 8 * formulas.mlp_elements(**sizes)
    assert dict(right.calls) == {"all_reduce": 1, "all_gather": 1}


def test_one_stream_repeats_the_mask_and_streams_of_their_own_agree_by_chance_alone(found):
    one = found["one stream for the heads"]
    assert all(torch.equal(mask, one.measured[0]) for mask in one.measured)
    agree = [(mask == one.right[0]).double().mean() for mask in one.right[1:]]
    assert all(0.3 < share < 0.7 for share in agree)  # p^2 + (1 - p)^2 = 1/2 of 64 elements


def test_a_stream_of_its_own_outside_the_regions_makes_the_ranks_part(found):
    one = found["own stream outside"]
    assert all((measured - one.measured[0]).abs().max() > 0.5 for measured in one.measured[1:])


def test_on_one_rank_no_mistake_of_matrices_is_one():
    for name, (wrong, right) in lab.predict(1).items():
        if "stream" not in name:
            torch.testing.assert_close(wrong[0], right[0])


def test_the_table_says_how_far_off_and_whether_predicted(found):
    lines = lab.table(found)
    assert len(lines) == 1 + len(lab.MISTAKES)
    assert all(line.endswith("  yes") for line in lines[1:])
    off = lab.Wrong((torch.ones(1),), (torch.zeros(1),), (torch.zeros(1),), None)
    assert lab.table({"x": off})[1].split() == ["x", "1", "no:", "1"]
    assert lab.difference((torch.ones(1),), (torch.ones(2),)) == float("inf")


def test_bad_input_is_named(monkeypatch, capsys):
    for size in (0, 2.5, True):
        with pytest.raises(ValueError, match=f"size = {size} is not allowed"):
            lab.run_mistakes(size)
    with pytest.raises(ValueError, match=r"found = \[\] is not allowed"):
        lab.table([])
    monkeypatch.setattr(sys, "argv", ["wrong", "--ranks", "-1"])
    with pytest.raises(SystemExit) as ended:
        lab.main()
    assert ended.value.code == 2
    assert "size = -1 is not allowed" in capsys.readouterr().err

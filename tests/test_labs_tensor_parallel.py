"""The lab of tensor parallelism: ranks against one process, and what they send against the formulas."""

import doctest
import random
import subprocess
import sys
from fractions import Fraction

import pytest
import torch

from scalebook import tensor_parallel as tp
from scalebook.labs import tensor_parallel as lab
from scalebook.labs import tensor_parallel_settings as parts
from scalebook.labs.gaps import largest
from scalebook.labs.tensor_parallel_settings import Setting

BLOCK = {"attention_norm.weight", "attention_norm.bias", "attention.qkv.weight", "attention.qkv.bias",
         "attention.out.weight", "attention.out.bias", "mlp_norm.weight", "mlp_norm.bias", "mlp.up.weight",
         "mlp.up.bias", "mlp.down.weight", "mlp.down.bias"}
NAMES = list(lab.standard_settings(4))
CONDITIONS = lab.condition_settings(4)


def any_settings(size, count, seed):
    """Settings drawn at random among those that `size` ranks can run."""
    draw = random.Random(seed)
    found = {}
    for number in range(count):
        kv_heads = draw.choice([g for g in range(1, 9) if g % size == 0 or size % g == 0])
        heads = draw.choice([h for h in range(1, 25) if h % size == 0 and h % kv_heads == 0])
        shape = tp.Shape(heads * draw.randint(1, 4), heads, kv_heads, size * draw.randint(1, 9),
                         draw.choice(["gelu", "swiglu"]), size * draw.randint(1, 9), draw.randint(1, 3),
                         draw.choice([0.0, 0.3]))
        sequence_parallel, part = draw.random() < 0.6, draw.choice(parts.PARTS)
        found[number] = Setting(shape, part, sequence_parallel, sequence_parallel and draw.random() < 0.3,
                                part in ("block", "model") and draw.random() < 0.5, positions=size * draw.randint(1, 3),
                                samples=draw.randint(1, 3), seed=number)
    return found


@pytest.fixture(scope="module")
def four():
    return lab.compare(4, lab.standard_settings(4) | {name: setting for name, (setting, _) in CONDITIONS.items()})


@pytest.fixture(scope="module")
def two():
    return lab.compare(2)


@pytest.mark.parametrize("module", [lab, parts], ids=lambda module: module.__name__)
def test_the_examples_in_the_docstrings_hold(module):
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.parametrize("size", ["four", "two"])
@pytest.mark.parametrize("name", NAMES)
def test_the_output_and_every_gradient_equal_those_of_one_process(size, name, request):
    one = request.getfixturevalue(size)[name]
    gaps = one.gaps
    if one.setting.part == "block":
        assert set(gaps) == {"output", "input"} | BLOCK
    else:
        assert len(gaps) == 1 + 3 + 1 + 2 * len(BLOCK)  # the loss; embedding, last norm, head; two blocks
    assert largest(gaps.values()) < 1e-10
    assert one.copies_differ < 1e-10
    least = 1e-3 if one.setting.part == "block" else 1e-6  # so that the tolerance means something
    assert min(gradient.abs().max() for gradient in one.single.gradients.values()) > least


def test_it_holds_for_settings_drawn_at_random_on_three_ranks():
    found = lab.compare(3, any_settings(3, 16, seed=3))
    assert max(one.largest_gap for one in found.values()) < 1e-10
    assert {one.setting.part for one in found.values()} == set(parts.PARTS)
    for one in found.values():
        if one.predicted is not None and (one.setting.shape.dropout or not one.setting.recomputed):
            assert one.sent == one.predicted


def test_a_gradient_that_is_not_added_up_would_be_seen(four):
    one = four["GELU, SP"]
    name = "attention_norm.weight"
    wrong = {**one.ranks.gradients, name: one.ranks.gradients[name] / 2}
    gaps = parts.Pass(one.ranks.output, one.ranks.input_gradient, wrong).gaps(one.single)
    assert [name for name, gap in gaps.items() if gap > 1e-10] == ["attention_norm.weight"]


# What is sent


@pytest.mark.parametrize("name", NAMES)
def test_bytes_sent_are_those_of_the_formulas(four, two, name):
    for found in (four, two):
        one = found[name]
        assert one.sent == one.predicted
        assert len({str(traffic) for traffic in one.forward}) == 1  # every rank sends alike


def test_a_layer_sends_8bsh_times_t_minus_1_over_t_elements_and_recomputed_a_half_more(four):
    b, s, h, t = 2, 8, 64, 4
    layer = 8 * b * s * h * Fraction(t - 1, t) * 8  # float64
    assert {four[name].sent for name in ("GELU", "GELU, SP", "SwiGLU, 2 KV heads", "dropout")} == {layer}
    assert {four[name].sent for name in ("recomputed", "recomputed, SP")} == {layer * 3 / 2}
    assert four["SP, gathered again"].sent == layer * 5 / 4


def test_the_calls_are_two_and_two_and_recomputed_six_in_all(four):
    calls = {name: [dict(traffic[0].calls) for traffic in (one.forward, one.backward)] for name, one in four.items()}
    assert calls["GELU"] == [{"all_reduce": 2}, {"all_reduce": 2}]
    assert calls["recomputed"] == [{"all_reduce": 2}, {"all_reduce": 4}]
    assert calls["GELU, SP"] == [{"all_gather": 2, "reduce_scatter": 2}] * 2
    assert calls["recomputed, SP"] == [{"all_gather": 2, "reduce_scatter": 2}, {"all_gather": 4, "reduce_scatter": 4}]
    assert calls["SP, gathered again"][1] == {"all_gather": 4, "reduce_scatter": 2}
    # Two blocks; the embedding's g; the loss's two, small ones. Backward: two blocks, and f of the head.
    assert calls["model, 2 blocks"] == [{"all_reduce": 4 + 1 + 2}, {"all_reduce": 4 + 1}]


@pytest.mark.parametrize("name", CONDITIONS)
def test_under_other_conditions_the_count_is_the_one_predicted(four, name):
    one, predicted = four[name], CONDITIONS[name][1]
    for traffics, count in ((one.forward, predicted[0]), (one.backward, predicted[1])):
        assert all(dict(traffic.calls) == ({"all_reduce": count} if count else {}) for traffic in traffics)
    assert one.predicted in (None, one.sent)
    assert one.largest_gap < 1e-10


def test_only_copies_that_saw_a_part_are_added_up_in_one_all_reduce(four):
    norms_and_biases, numbers = 6 * 64, 8  # two norms of 2 h numbers, two biases of h; float64
    sent = {name: [(kind, size) for kind, size, _ in one.update[0].log] for name, one in four.items()}
    assert sent["GELU"] == []
    assert sent["GELU, SP"] == [("all_reduce", norms_and_biases * numbers)]
    heads = 2 * 2 * 8 * (64 + 1)  # keys and values, two heads, 8 wide, with biases
    assert sent["SwiGLU, 2 KV heads"] == [("all_reduce", heads * numbers)]
    assert sent["SwiGLU, 2 KV heads, SP"] == [("all_reduce", (heads + norms_and_biases) * numbers)]


# From a shell, and the edges


def test_one_rank_sends_nothing():
    found = lab.compare(1, dict(list(lab.standard_settings(1).items())[:2]))
    assert all(one.largest_gap < 1e-10 and one.sent == one.predicted == 0 for one in found.values())


def test_the_lab_prints_its_table_under_torchrun_as_by_itself(tmp_path, four):
    module = ["-m", "scalebook.labs.tensor_parallel"]
    # torchrun leaves a folder of logs behind, so it is told where; --standalone takes a free port.
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--log-dir", str(tmp_path), "--nproc-per-node", "4"]
    printed = subprocess.run([sys.executable, *torchrun, *module], capture_output=True, text=True, timeout=280,
                             check=True).stdout
    assert "\n".join(lab.table({name: four[name] for name in NAMES})) in printed
    assert printed.count("  equal   equal  ") == len(NAMES)
    for name, (_, (forward, backward)) in CONDITIONS.items():
        assert f"{name}: ({forward}, {backward}) ({forward}, {backward})\n" in printed


def test_bad_input_on_the_command_line_is_told_without_a_traceback(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["tensor_parallel", "--ranks", "0"])
    with pytest.raises(SystemExit) as ended:
        lab.main()
    assert ended.value.code == 2
    assert "size = 0 is not allowed" in capsys.readouterr().err


@pytest.mark.parametrize(("options", "size", "message"), [
    ({"part": "norm"}, 2, "part = 'norm' is not allowed"), ({"positions": 0}, 2, "positions = 0 is not allowed"),
    ({"samples": 1.5}, 2, "samples = 1.5 is not allowed"), ({"seed": -1}, 2, "seed = -1 is not allowed"),
    ({"part": "mlp", "recomputed": True}, 2, "recomputed = True is not allowed"), ({}, 0, "size = 0 is not allowed"),
    ({}, 3, "heads = 4 is not allowed; it must be a multiple of the 3 ranks"),
    ({"sequence_parallel": True, "positions": 6}, 4, "positions = 6 is not allowed; under sequence parallelism"),
    ({"shape": "big"}, 2, "shape = 'big' is not allowed"), ({"regather": True}, 2, "regather = True is not allowed"),
])
def test_what_cannot_be_is_named_before_a_process_starts(options, size, message):
    with pytest.raises(ValueError, match=message):
        lab.compare(size, {"setting": Setting(**{"shape": tp.Shape(), **options})})


def test_a_table_needs_something_to_show():
    with pytest.raises(ValueError, match=r"found = \{\} is not allowed"):
        lab.table({})


def test_running_the_oracle_leaves_the_random_state_alone():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    parts.single_process(Setting(tp.Shape(dropout=0.5)), 2)
    assert torch.equal(torch.get_rng_state(), before)

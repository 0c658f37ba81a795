"""What a layer keeps for its backward is what the paper counts, plus what the paper leaves out, to the byte."""

import contextlib
import doctest
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scalebook.formulas import tensor_parallel as formulas
from scalebook.labs import saved_activations as lab


@st.composite
def sizes(draw):
    heads = draw(st.integers(1, 5))
    return {"batch": draw(st.integers(1, 4)), "positions": draw(st.integers(1, 40)), "heads": heads,
            "width": heads * draw(st.integers(1, 9))}


def terms(batch, positions, width, heads):
    """sbh, as^2 b, sb and asb."""
    return positions * batch * width, heads * positions**2 * batch, positions * batch, heads * positions * batch


def test_the_examples_in_the_docstrings_hold():
    result = doctest.testmod(lab)
    assert result.attempted > 0
    assert result.failed == 0


# The three ways


@settings(deadline=None, max_examples=25)
@given(sizes())
def test_with_one_byte_masks_it_is_the_papers_formula_and_the_statistics(given_sizes):
    found = lab.saved_activations("one-byte masks", **given_sizes)
    b, s, h, a = (given_sizes[name] for name in ("batch", "positions", "width", "heads"))
    statistics = formulas.layer_norm_statistics(epsilon=2, s=s, b=b)
    assert found.total == formulas.activations(s=s, b=b, h=h, a=a) + statistics
    assert found.statistics == statistics == 8 * s * b
    assert all(item.bytes == item.counted for item in found.items if item.counted)
    assert sum(item.counted for item in found.items) == formulas.activations(s=s, b=b, h=h, a=a)


@settings(deadline=None, max_examples=25)
@given(sizes())
def test_attention_keeps_11_the_mlp_19_and_the_norms_4_bytes_for_each_element(given_sizes):
    found = lab.saved_activations("one-byte masks", **given_sizes)
    sbh, assb, sb, _ = terms(**given_sizes)
    assert found.by_part == {"attention": 11 * sbh + 5 * assb, "MLP": 19 * sbh, "LayerNorm": 4 * sbh + 8 * sb}
    assert sum(found.over_sbh(nbytes) for nbytes in found.by_part.values()) == found.over_sbh(found.total)


@settings(deadline=None, max_examples=25)
@given(sizes())
def test_pytorchs_dropout_keeps_each_mask_in_two_bytes(given_sizes):
    found = lab.saved_activations("F.dropout", **given_sizes)
    sbh, assb, sb, _ = terms(**given_sizes)
    assert found.total == 36 * sbh + 6 * assb + 8 * sb
    assert {item.operation for item in found.items if item.counted not in (0, item.bytes)} == {
        "dropout of the weights", "dropout after attention", "dropout after the MLP"}


@settings(deadline=None, max_examples=25)
@given(sizes())
def test_fused_attention_keeps_no_square_of_the_positions(given_sizes):
    found = lab.saved_activations("fused attention", **given_sizes)
    sbh, _, sb, asb = terms(**given_sizes)
    assert found.total == 34 * sbh + 4 * asb + 8 * sb  # one float32 for each row of weights
    assert all(item.bytes == item.counted for item in found.items if item.counted)


# Against what is not ours


def saved_in_the_graph(output, parameters):
    """The bytes of the storages that the nodes behind `output` hold, read from the nodes; parameters left out."""
    storages, seen, waiting = {}, set(), [output.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        for name in dir(node):
            tensor = getattr(node, name) if name.startswith("_saved_") else None
            if isinstance(tensor, torch.Tensor) and tensor.dim():  # no dimension: a number of the program, as sqrt(K)
                storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        waiting += [after for after, _ in node.next_functions]
    for parameter in parameters:
        storages.pop(parameter.untyped_storage().data_ptr(), None)
    return sum(storages.values())


@pytest.mark.parametrize("variant", lab.VARIANTS)
def test_the_hooks_see_what_the_nodes_of_the_graph_hold(variant):
    layer = lab.Layer(24, 3, variant).to(torch.bfloat16)
    x_BSD = torch.ones(2, 10, 24, dtype=torch.bfloat16, requires_grad=True)
    y_BSD = layer(x_BSD, lambda name: contextlib.nullcontext())
    expected = lab.saved_activations(variant, batch=2, positions=10, width=24, heads=3).total
    assert saved_in_the_graph(y_BSD, list(layer.parameters())) == expected


def test_fused_and_explicit_attention_compute_the_same():
    torch.manual_seed(0)
    explicit = lab.Attention(24, 3, drop=lambda x: x)
    fused = lab.FusedAttention(24, 3, drop=None)
    fused.load_state_dict(explicit.state_dict())
    x_BSD = torch.randn(2, 10, 24)
    outputs = [each(x_BSD, lambda name: contextlib.nullcontext()) for each in (explicit, fused)]
    torch.testing.assert_close(*outputs)


@pytest.mark.parametrize("drop", [lab.dropout_with_a_byte_mask, lab.dropout_of_pytorch])
def test_both_dropouts_drop_a_tenth_and_scale_the_rest(drop):
    torch.manual_seed(0)
    dropped = drop(torch.ones(100_000))
    assert torch.allclose(dropped.unique(), torch.tensor([0, 1 / 0.9]))
    assert (dropped == 0).float().mean().item() == pytest.approx(0.1, abs=0.005)


def test_the_backward_lets_go_of_all_of_it():
    layer = lab.Layer(16, 2, "one-byte masks").to(torch.bfloat16)
    ledger = lab.Items(layer.parameters())
    y_BSD = layer(torch.ones(1, 4, 16, dtype=torch.bfloat16, requires_grad=True), ledger.during)
    assert ledger.live_bytes == sum(nbytes for _, nbytes in ledger.items) > 0
    y_BSD.sum().backward()
    assert ledger.live_bytes == 0


# The edges


def test_an_operation_that_saves_something_else_is_told():
    with pytest.raises(RuntimeError, match=r"GELU saved 2 tensors of \[8, 4\] bytes, not the 1 known"):
        lab.name_items([("GELU", 8), ("GELU", 4)], lab.KEPT, lab.PARTS, 1, 1)


@pytest.mark.parametrize(("arguments", "message"), [
    ({"variant": "none"}, "variant = 'none' is not allowed"), ({"batch": 0}, "batch = 0 is not allowed"),
    ({"positions": True}, "positions = True is not allowed"), ({"width": 6.0}, "width = 6.0 is not allowed"),
    ({"heads": 3}, "width = 64 is not allowed; it must be a multiple of heads = 3"),
])
def test_what_cannot_be_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        lab.saved_activations(**arguments)


def test_measuring_leaves_the_random_state_alone():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    lab.saved_activations()
    assert torch.equal(torch.get_rng_state(), before)


def test_the_lab_prints_its_table(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["lab", "--positions", "8"])
    lab.main()
    printed = capsys.readouterr().out
    assert f"one-byte masks: {lab.saved_activations(positions=8).total} B" in printed
    assert printed.count("\n") == 3 + 19 + 19 + 15

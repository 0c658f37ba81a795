"""The small transformer with experts: its training step adds the loss and moves the biases as it says."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from scalebook import texts
from scalebook.labs import collapse
from scalebook.labs.moe_transformer import SHAPE, Balancing, build, move_biases, route_biased_softmax, train_step
from scalebook.labs.tiny_transformer import encode
from scalebook.moe import route_top_k


@pytest.fixture(scope="module")
def batch():
    return collapse.random_batch(encode("To be, or not to be " * 40), torch.Generator().manual_seed(1))


def weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_one_seed_starts_every_variant_from_the_same_weights():
    first = weights(build(Balancing(), 3)[0])
    for balancing in collapse.VARIANTS.values():
        assert torch.equal(weights(build(balancing, 3)[0]), first)
    assert not torch.equal(weights(build(Balancing(), 4)[0]), first)


def test_building_leaves_the_random_state_alone():
    state = torch.random.get_rng_state()
    build(Balancing(), 0)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_no_token_sees_the_future(batch):
    model, _ = build(Balancing(), 0)
    changed = batch[0].clone()
    changed[:, 40:] = 65
    with torch.no_grad():
        before, after = model(batch[0])[0], model(changed)[0]
    assert torch.allclose(before[:, :40], after[:, :40], atol=1e-5)
    assert not torch.allclose(before[:, 40:], after[:, 40:], atol=1e-2)


def test_the_routers_learn_at_their_own_rate():
    model, optimizer = build(Balancing(router_factor=10), 0)
    others, routers = optimizer.param_groups
    assert routers["lr"] == pytest.approx(10 * others["lr"])
    assert {id(router) for router in routers["params"]} == {id(block.moe.router_ED) for block in model.blocks}
    assert len(others["params"]) + len(routers["params"]) == len(list(model.parameters()))


@pytest.mark.parametrize("alpha", [0, 0.1])
def test_the_step_takes_the_gradient_of_the_task_loss_plus_the_balancing_loss(batch, alpha):
    """Against autograd on the loss written out from its definition: alpha E sum f P, one term a layer."""
    model, optimizer = build(Balancing(alpha=alpha), 0)
    logits, routings = model(batch[0])
    loss = cross_entropy(logits.flatten(0, 1), batch[1].flatten())
    task_loss = loss.item()
    for routing in routings:
        shares = torch.nn.functional.one_hot(routing.experts_TK[:, 0], 8).float().mean(0)
        loss = loss + alpha * 8 * (shares * routing.probabilities_TE.mean(0)).sum()
    parameters = list(model.parameters())
    expected = torch.autograd.grad(loss, parameters)
    assert train_step(model, optimizer, *batch, Balancing(alpha=alpha)) == pytest.approx(task_loss, abs=1e-5)
    for parameter, gradient in zip(parameters, expected, strict=True):
        assert torch.allclose(parameter.grad, gradient, atol=1e-6)


def test_the_bias_goes_down_where_the_load_was_above_the_mean_and_is_no_parameter(batch):
    balancing = Balancing(gate="sigmoid", gamma=0.25)
    model, optimizer = build(balancing, 0)
    with torch.no_grad():
        _, routings = model(batch[0])
    train_step(model, optimizer, *batch, balancing)
    for block, routing in zip(model.blocks, routings, strict=True):
        load = torch.bincount(routing.experts_TK.flatten(), minlength=8)
        assert block.moe.selection_bias_E.tolist() == [0.25 * ((count < 128).item() - (count > 128).item())
                                                       for count in load]
    assert not any("bias_E" in name for name, _ in model.named_parameters())


def test_with_the_weights_standing_still_the_biases_balance_and_a_large_step_overshoots():
    """On real text: in the training the router moves too, so this is the most that the rule can do."""
    text = encode(texts.split()[0])
    tokens, _ = collapse.random_batch(text, torch.Generator().manual_seed(1))
    last = {}
    for gamma in (0.003, 0.03):
        model, _ = build(Balancing(gate="sigmoid", gamma=gamma), 0)
        largest = []
        with torch.no_grad():
            for _ in range(70):
                _, routings = model(tokens)
                largest.append(max(torch.bincount(routing.experts_TK.flatten()).max().item() for routing in routings))
                move_biases(model, routings, gamma)
        assert largest[0] > 300
        last[gamma] = max(largest[-5:])
    assert last[0.003] < 170  # 128 is balance
    assert last[0.03] > 200


def test_the_biased_softmax_gate_without_a_bias_is_the_softmax_gate():
    logits = torch.randn(50, 8, generator=torch.Generator().manual_seed(0))
    for k, renormalise in ((1, False), (2, True)):
        ours = route_biased_softmax(logits, k, bias_E=torch.zeros(8), renormalise=renormalise)
        theirs = route_top_k(logits, k, order="softmax-before", renormalise=renormalise)
        assert torch.equal(ours.experts_TK, theirs.experts_TK)
        assert torch.allclose(ours.weights_TK, theirs.weights_TK)


def test_a_bias_moves_the_choice_and_not_the_weight():
    logits = torch.tensor([[1.0, 0.0]])
    routing = route_biased_softmax(logits, 1, bias_E=torch.tensor([0.0, 1.0]))
    assert routing.experts_TK.item() == 1
    assert routing.weights_TK.item() == pytest.approx(torch.softmax(logits, -1)[0, 1].item())


@pytest.mark.parametrize(("name", "value"), [("gate", "tanh"), ("top_k", 3), ("alpha", -1), ("gamma", float("nan")),
                                             ("router_factor", float("inf"))])
def test_a_way_to_balance_that_is_none_is_refused(name, value):
    with pytest.raises(ValueError, match=name):
        Balancing(**{name: value})


def test_the_text_fits_the_vocabulary():
    assert encode(texts.shakespeare()).max() < SHAPE.vocabulary

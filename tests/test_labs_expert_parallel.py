"""Experts on several processes compute what one layer computes, and send what the routing and the formula say."""

import doctest
import subprocess
import sys
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scalebook import moe, ranks
from scalebook.labs import expert_layer
from scalebook.labs import expert_parallel as lab
from scalebook.labs.gaps import largest

R = 4
ROW = 16 * 8  # bytes: width, float64
TOLERANCE = 1e-12  # of any output or gradient; the gradients of weights are up to about 100

SETTINGS = {
    "plain": {},
    "skewed": {"skew": 2.0},
    "uneven": {"tokens": (3, 40, 17, 1)},
    "a rank without tokens": {"tokens": (9, 0, 12, 5)},
    "no tokens at all": {"tokens": 0},
    "an expert nobody chose": {"tokens": (1, 0, 2, 1), "top_k": 1},
    "a rank nobody sends to": {"tokens": (5, 5, 5, 5), "skew": 30.0, "top_k": 1},
    "all experts for every token": {"tokens": 6, "top_k": 8},
    "one expert a rank": {"tokens": 20, "n_experts": 4},
    "capacity": {"skew": 1.0, "capacity_factor": 1.0},
    "capacity, uneven": {"tokens": (3, 40, 0, 17), "capacity_factor": 0.7},
    "shared experts": {"tokens": 10, "n_shared": 2},
    "even by force": {"gate": "even"},
}


WRONG = {mistake: {"mistake": mistake} for mistake in lab.MISTAKES[1:]}


def measure_all(rank, world_size, tasks):
    """What `expert_parallel` measures, for every task on the same processes."""
    return {name: lab.measure_rank(rank, world_size, task) for name, task in tasks.items()}


@pytest.fixture(scope="module")
def passes():
    """Each setting on processes and in one."""
    tasks = {name: lab.make_task(R, **options) for name, options in (SETTINGS | WRONG).items()}
    results = ranks.run(measure_all, R, tasks)
    return {name: (lab.gather(task, [result[name] for result in results]),
                   lab.single_process(R, **(SETTINGS | WRONG)[name])) for name, task in tasks.items()}


@pytest.mark.parametrize("module", [lab, expert_layer], ids=lambda module: module.__name__)
def test_the_examples_in_the_docstrings_hold(module):
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


# What is computed


@pytest.mark.parametrize("name", SETTINGS)
def test_outputs_and_every_gradient_equal_those_of_one_layer_with_all_experts(passes, name):
    run, oracle = passes[name]
    gaps = run.difference(oracle)
    shared = {"shared_gate_up_D", "shared_down_D"} if name == "shared experts" else set()
    assert set(gaps) == {"output", "input", "gate_up_ED", "down_ED", "router_ED"} | shared
    assert largest(gaps.values()) < TOLERANCE
    if name not in ("no tokens at all", "a rank nobody sends to", "an expert nobody chose"):
        assert all(max(part.abs().max() for part in parts if part.numel()) > 0.01 for parts in oracle.parts().values())


def test_the_settings_are_what_their_names_say(passes):
    assert max(passes["skewed"][1].load) > 2 * min(passes["skewed"][1].load)
    assert 0 in passes["a rank nobody sends to"][0].load
    idle_E = passes["an expert nobody chose"][0].gradients["down_ED"].abs().amax((1, 2)) == 0
    assert 0 < idle_E.sum() < 8
    for name in ("capacity", "capacity, uneven"):
        run = passes[name][0]
        assert sum(run.load) < sum(run.task.tokens) * run.task.top_k
    assert passes["even by force"][0].load == (128,) * R


@pytest.mark.parametrize("size", [1, 2, 8])
def test_any_number_of_ranks_that_divides_the_experts_gives_the_same(size):
    run, oracle = (each(size, tokens=6) for each in (lab.expert_parallel, lab.single_process))
    assert max(run.difference(oracle).values()) < TOLERANCE


def test_float32_agrees_to_its_rounding():
    run, oracle = (each(2, skew=1.0, dtype=torch.float32) for each in (lab.expert_parallel, lab.single_process))
    assert 0 < max(run.difference(oracle).values()) < 1e-3
    assert run.outputs[0].dtype == torch.float32


def test_the_oracle_is_the_layer_on_the_tokens_of_all_ranks(passes):
    run, oracle = passes["uneven"]
    layer, (x, gradients) = oracle.task.build(moe.MoELayer), oracle.task.data()
    x_TD = torch.cat(x).requires_grad_()
    y_TD, routing = layer(x_TD)
    (y_TD * torch.cat(gradients)).sum().backward()
    assert torch.equal(torch.cat(oracle.outputs), y_TD)
    torch.testing.assert_close(run.replicated["router_ED"][2], layer.router_ED.grad)
    torch.testing.assert_close(run.gradients["down_ED"], layer.down_ED.grad)
    assert sum(run.load) == routing.experts_TK.numel()


def test_a_capacity_of_each_rank_is_not_a_capacity_of_all(passes):
    """Ranks drop from their own tokens: whole and by parts the same layer drops different rows."""
    run, oracle = passes["capacity"]
    whole_TD, _ = oracle.task.build(moe.MoELayer)(torch.cat(oracle.task.data()[0]))
    assert (whole_TD - torch.cat(run.outputs)).abs().max() > 0.1


# The mistakes, and what they are predicted to give


@pytest.mark.parametrize("mistake", WRONG)
def test_a_mistake_gives_the_wrong_gradients_that_are_predicted(passes, mistake):
    run, predicted = passes[mistake]
    assert max(run.difference(predicted).values()) < TOLERANCE


def test_without_its_all_reduce_the_router_has_a_part_and_the_parts_add_up(passes):
    run, oracle = passes["no all-reduce"][0], passes["plain"][1]
    gaps = run.difference(oracle)
    assert gaps.pop("router_ED") > 1
    assert largest(gaps.values()) < TOLERANCE
    parts = run.replicated["router_ED"]
    torch.testing.assert_close(sum(parts), oracle.replicated["router_ED"][0])
    assert min((parts[r] - parts[0]).abs().max() for r in range(1, R)) > 1  # the copies part


def test_an_all_reduce_of_the_experts_adds_up_the_gradients_of_different_experts(passes):
    run, oracle = passes["all-reduce experts"][0], passes["plain"][1]
    gaps = run.difference(oracle)
    assert gaps["down_ED"] > 1
    assert max(gaps["router_ED"], gaps["input"]) < TOLERANCE
    right_ED = oracle.gradients["down_ED"]  # experts 0, 2, 4 and 6 are the first ones of their ranks
    torch.testing.assert_close(run.gradients["down_ED"][4], right_ED[0] + right_ED[2] + right_ED[4] + right_ED[6])


# What is sent


@pytest.mark.parametrize("name", SETTINGS)
def test_the_bytes_counted_are_those_of_the_routing(passes, name):
    run, oracle = passes[name]
    assert run.rows == oracle.rows
    assert run.forward_bytes == oracle.bytes_from_rows
    # Backward goes the same ways: what was combined goes back to the experts, what was dispatched to the tokens.
    assert run.backward_bytes == tuple((to, back) for _, to, back in oracle.bytes_from_rows)
    assert all(set(traffic.calls) == {"all_to_all"} for traffic in (*run.forward, *run.backward))


def test_under_even_routing_each_rank_sends_what_the_formula_says(passes):
    run = passes["even by force"][0]
    # 2 K T D (R-1)/R elements: 64 tokens, 2 choices, there and back, three quarters of the rows go elsewhere.
    assert run.formula_bytes == 2 * 2 * 64 * ROW * 3 // 4
    for _, dispatched, combined in run.forward_bytes:
        assert dispatched + combined == run.formula_bytes


def test_under_a_skewed_gate_the_ranks_differ_and_their_mean_is_near_the_formula(passes):
    run = passes["skewed"][0]
    sent = [dispatched + combined for _, dispatched, combined in run.forward_bytes]
    assert max(sent) > 1.3 * min(sent)
    assert sum(sent) / R == pytest.approx(run.formula_bytes, rel=0.1)


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 6), st.data())
def test_when_all_ranks_choose_alike_the_mean_is_the_formula_however_skewed(size, data):
    """Each rank keeps its own share; the shares of all ranks add up to all the rows of one."""
    to = data.draw(st.lists(st.integers(0, 30), min_size=size, max_size=size))
    tokens = Fraction(sum(to), 2)
    if tokens.denominator > 1:
        to[0], tokens = to[0] + 1, tokens + Fraction(1, 2)
    task = lab.make_task(size, tokens=int(tokens), n_experts=2 * size, d_model=3)
    run = lab.Pass(task, (), (), {}, {}, (tuple(to),) * size)
    sent = sum(dispatched + combined for _, dispatched, combined in run.bytes_from_rows)
    assert sent / size == pytest.approx(run.formula_bytes)


def test_the_update_sends_the_routers_gradient_alone(passes):
    router, experts = 8 * ROW, 2 * 3 * 24 * ROW  # 8 rows; two experts of three matrices
    assert {tuple(traffic.log) for traffic in passes["plain"][0].update} == {(("all_reduce", router, 0),)}
    assert [traffic.log for traffic in passes["no all-reduce"][0].update] == [[]] * R
    assert {traffic.bytes["all_reduce"] for traffic in passes["all-reduce experts"][0].update} == {router + experts}


# The all-to-all


def check_all_to_all(rank, world_size):
    """Rank s sends s + 2 d rows to rank d: where they arrive, and whether the gradient is that of differences."""
    send = [rank + 2 * d for d in range(world_size)]
    receive = [s + 2 * rank for s in range(world_size)]
    rows_ND = torch.tensor([[rank, d] for d in range(world_size) for _ in range(send[d])], dtype=torch.float64)
    rows_ND.requires_grad_()
    arrived_ND = expert_layer.AllToAll.apply(rows_ND, send, receive)
    # The gradient says who received: 10 x sender + receiver must come home as 10 x own rank + the row's target.
    arrived_ND.backward((10 * arrived_ND + rank).detach().T.contiguous().T)
    return arrived_ND.tolist(), rows_ND.grad.tolist(), receive, send


def test_rows_arrive_by_sender_and_their_gradients_come_home():
    for rank, (arrived, gradient, receive, send) in enumerate(ranks.run(check_all_to_all, 3)):
        assert arrived == [[s, rank] for s in range(3) for _ in range(receive[s])]
        assert gradient == [[10 * rank + d, 10 * d + d] for d in range(3) for _ in range(send[d])]


# Its edges


@pytest.mark.parametrize(("options", "message"), [
    ({"n_experts": 6}, "n_experts = 6 is not allowed; it must be a multiple of the 4 ranks"),
    ({"n_experts": 2, "top_k": 1}, "n_experts = 2 is not allowed; it must be a multiple"),
    ({"top_k": 9}, "top_k = 9 is not allowed"), ({"d_model": 0}, "d_model = 0 is not allowed"),
    ({"size": 0}, "size = 0 is not allowed"), ({"size": True}, "size = True is not allowed"),
    ({"tokens": -1}, "tokens = -1 is not allowed"), ({"tokens": 2.5}, "tokens = 2.5 is not allowed"),
    ({"tokens": (1, 2, 3)}, r"tokens = \(1, 2, 3\) is not allowed; it must be one number, or 4 of them"),
    ({"gate": "odd"}, "gate = 'odd' is not allowed"), ({"mistake": "typo"}, "mistake = 'typo' is not allowed"),
    ({"gate": "even", "tokens": 9}, "the even gate needs multiples of 8 tokens"),
    ({"dtype": torch.bfloat16}, "dtype = torch.bfloat16 is not allowed"), ({"seed": -1}, "seed = -1 is not allowed"),
    ({"skew": float("nan")}, "skew = nan is not allowed"), ({"capacity_factor": 0}, "factor = 0 is not allowed"),
])
def test_what_cannot_be_is_named_before_a_process_starts(options, message):
    for each in (lab.expert_parallel, lab.single_process):
        with pytest.raises(ValueError, match=message):
            each(**{"size": R, **options})


def test_building_a_task_leaves_the_random_state_alone():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    lab.single_process(2, tokens=3)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_lab_runs_by_itself_and_under_torchrun(tmp_path):
    arguments = ["-m", "scalebook.labs.expert_parallel", "--gate", "even", "--skew", "1"]
    # torchrun leaves a folder of logs behind, so it is told where; --standalone takes a free port.
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--log-dir", str(tmp_path), "--nproc-per-node", "4"]
    printed = [
        subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=100, check=True).stdout
        for command in (arguments, [*torchrun, *arguments])
    ]
    assert printed[0] == printed[1]
    assert printed[0].count("its experts compute 128 rows; sent 48 B of counts, 12288 B to dispatch, 12288 B") == R
    assert "sends 24576 B of rows on average; by the formula 24576 B" in printed[0]


def test_bad_input_on_the_command_line_is_told_without_a_traceback():
    command = [sys.executable, "-m", "scalebook.labs.expert_parallel", "--experts", "6"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "n_experts = 6 is not allowed" in done.stderr
    assert "Traceback" not in done.stderr

"""Our orders of operations against those of `torch.distributed.pipelining`, which lists them without any process."""

from unittest import mock

import pytest
from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops
from torch.distributed.pipelining.schedules import ScheduleInterleavedZeroBubble
from torch.distributed.pipelining.stage import PipelineStage

from scalebook.formulas import pipeline as formulas
from scalebook.pipeline import simulate, simulate_order

KIND = {"F": "F", "B": "B", "I": "B", "W": "W"}  # PyTorch writes a whole backward B, and a gradient of the input I
SHAPES = [(P, M) for P in range(1, 7) for M in range(1, 17)]
MULTIPLES = [(P, P * groups) for P in range(1, 7) for groups in range(1, 5)]


def computations(actions):
    """The computations among PyTorch's actions: waits and the final reduction of gradients are left out."""
    kinds = {*KIND, "OVERLAP_F_B"}
    return [action for action in actions if action is not None and action.computation_type.value in kinds]


def operations(actions, stages):
    """PyTorch's actions of a rank as our (kind, microbatch, chunk)."""
    return [(KIND[action.computation_type.value], action.microbatch_index, action.stage_index // stages)
            for action in computations(actions)]


def listed(schedule, stages, microbatches, chunks=None):
    return [operations(rank, stages) for rank in get_schedule_ops(schedule, stages, microbatches, chunks)]


def ours(timeline):
    return [list(timeline.order(stage)) for stage in range(timeline.pipeline.stages)]


def one_chunk_zero_bubble(stages, microbatches):
    """PyTorch's zero bubble with one chunk a rank, which its listing function refuses but the schedule allows."""
    stage = mock.create_autospec(PipelineStage, instance=True)
    stage.group_rank, stage.group_size, stage.num_stages, stage.submod = 0, stages, stages, None
    order = ScheduleInterleavedZeroBubble([stage], microbatches).pipeline_order
    return [operations(order[rank], stages) for rank in range(stages)]


def test_gpipe_is_torch_gpipe():
    for P, M in SHAPES:
        assert ours(simulate("gpipe", P, M)) == listed("GPipe", P, M)


def test_1f1b_is_torch_1f1b_once_its_last_rank_is_shifted():
    """PyTorch 2.13 lists the last rank's forwards one late: F1 to F(M), where F0 to F(M-1) run. The listing only."""
    for P, M in SHAPES:
        if M < P:  # with fewer micro-batches than the warm-up wants, the listing names micro-batches that don't exist
            continue
        torch_order = listed("1F1B", P, M)
        assert torch_order[-1][0] == ("F", 1, 0)
        torch_order[-1] = [(kind, m - 1 if kind == "F" else m, chunk) for kind, m, chunk in torch_order[-1]]
        assert ours(simulate("1f1b", P, M)) == torch_order


@pytest.mark.parametrize("chunks", [2, 3, 4])
def test_interleaved_is_torch_interleaved(chunks):
    for P, M in MULTIPLES:
        assert ours(simulate("interleaved", P, M, chunks=chunks)) == listed("Interleaved1F1B", P, M, chunks)


def test_zb_h1_is_torch_interleaved_zero_bubble_with_one_chunk():
    for P, M in MULTIPLES:
        if P > 1:
            assert ours(simulate("zb-h1", P, M)) == one_chunk_zero_bubble(P, M)


def test_torch_one_chunk_zero_bubble_has_the_bubble_of_zb_h1_while_weights_are_short():
    for P, M in MULTIPLES:
        if P == 1:
            continue
        for t_f, t_B, t_w in ((1, 1, 1), (3, 2, 1), (2, 3, 2)):
            timeline = simulate_order(one_chunk_zero_bubble(P, M), M, t_f, t_B + t_w, t_w).validate()
            idle = formulas.idle_time_zb_h1(P=P, M=M, t_f=t_f, t_b=t_B + t_w, t_w=t_w)
            assert timeline.makespan - timeline.ideal == idle


def test_torch_zero_bubble_with_two_chunks_halves_the_bubble_of_zb_h1_in_the_same_memory():
    for P, M in MULTIPLES:
        timeline = simulate_order(listed("InterleavedZeroBubble", P, M, 2), M, 1, 2, 1, chunks=2).validate()
        one_chunk = simulate("zb-h1", P, M, 1, 2, 1)
        assert 2 * (timeline.makespan - timeline.ideal) == one_chunk.makespan - one_chunk.ideal
        assert timeline.peak_in_flight == one_chunk.peak_in_flight


def test_zb_v_is_torch_zb_v_from_2p_minus_1_microbatches_on():
    for P, M in SHAPES:
        if M >= 2 * P - 1:
            assert ours(simulate("zb-v", P, M)) == listed("ZBVZeroBubble", P, M, 2)


def test_with_fewer_microbatches_zb_v_holds_what_torch_zb_v_holds_but_runs_at_other_times():
    """PyTorch orders 2P - 1 micro-batches and drops those that don't exist; we order the ones there are."""
    shorter = longer = 0
    for P, M in SHAPES:
        if M < 2 * P - 1:
            theirs = simulate_order(listed("ZBVZeroBubble", P, M, 2), M, 1, 2, 1, chunks=2, placement="v").validate()
            timeline = simulate("zb-v", P, M, 1, 2, 1)
            assert timeline.peak_in_flight == theirs.peak_in_flight
            assert max(timeline.device_span) <= max(theirs.device_span)
            shorter += timeline.makespan < theirs.makespan
            longer += timeline.makespan > theirs.makespan
    assert shorter > longer > 0


def dual_pipe_v(P, M, F, B, W, FB):
    """Run PyTorch's DualPipeV order: each device's idle time in the makespan, and its most chunks in flight.

    A second, smaller event simulation, because here two operations run as one that takes FB: it starts when the
    inputs of both are there, and ends for both at once. Times are those of a chunk; B includes W.
    """
    lanes = [computations(rank) for rank in get_schedule_ops("DualPipeV", P, M, 2)]
    ends, clocks, places, busy = {}, [0] * P, [0] * P, [0] * P
    held, peaks = [0] * P, [0] * P
    while any(place < len(lane) for place, lane in zip(places, lanes, strict=True)):
        ran = False
        for rank in range(P):
            while places[rank] < len(lanes[rank]):
                action = lanes[rank][places[rank]]
                parts = action.sub_actions or (action,)
                needs = [need for part in parts for need in inputs(part, 2 * P - 1)]
                if any(need not in ends for need in needs):
                    break
                alone = {"F": F, "B": B, "I": B - W, "W": W}
                duration = FB if action.sub_actions else alone[action.computation_type.value]
                clocks[rank] = max([clocks[rank], *(ends[need] for need in needs)]) + duration
                busy[rank] += duration
                for part in parts:
                    kind = part.computation_type.value
                    ends[KIND[kind], part.stage_index, part.microbatch_index] = clocks[rank]
                    held[rank] += {"F": 1, "I": 0}.get(kind, -1)
                    peaks[rank] = max(peaks[rank], held[rank])
                places[rank] += 1
                ran = True
        assert ran
    return [max(clocks) - time for time in busy], peaks


def inputs(action, last):
    kind, piece, m = KIND[action.computation_type.value], action.stage_index, action.microbatch_index
    if kind == "F":
        return [("F", piece - 1, m)] if piece else []
    if kind == "W":
        return [("B", piece, m)]
    return [("F", piece, m), *([("B", piece + 1, m)] if piece < last else [])]


@pytest.mark.parametrize(("F", "B", "W"), [(1, 2, 1), (2, 4, 2), (3, 5, 2), (4, 7, 3), (3, 4, 1)])
def test_torch_dual_pipe_v_has_the_bubble_of_deepseek_table_while_f_equals_b_less_w(F, B, W):
    for P in (2, 3, 4):
        for M in (2 * P, 3 * P, 5 * P):
            for FB in (F + B, F + B - 1, max(F, B)):
                idle, peaks = dual_pipe_v(P, M, F, B, W, FB)
                assert max(idle) == formulas.idle_time_dualpipe(P=2 * P, FB=FB, B=B, W=W)
                assert set(peaks) == {formulas.peak_in_flight_dualpipe(P=2 * P)}


def test_for_other_times_the_bubble_of_deepseek_table_is_an_estimate():
    shorter, _ = dual_pipe_v(2, 8, F=1, B=3, W=1, FB=4)
    longer, _ = dual_pipe_v(2, 8, F=2, B=2, W=1, FB=4)
    assert max(shorter) < formulas.idle_time_dualpipe(P=4, FB=4, B=3, W=1)
    assert max(longer) > formulas.idle_time_dualpipe(P=4, FB=4, B=2, W=1)

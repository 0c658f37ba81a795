"""The order in which each stage of a pipeline runs its operations, schedule by schedule.

A schedule is nothing but an order. Each function here returns the list of operations of one stage (one device), in
the order in which that device runs them; when they run is the simulation's affair (`simulation.py`). An operation
is a tuple (kind, microbatch, chunk): "F" is a forward, "B" a backward, "W" a weight gradient. Where a schedule has
W, its B computes the gradient of the input only; where it has none, B is the whole backward. Stages, micro-batches
and chunks are counted from 0.

Sources: GPipe, arXiv:1811.06965; 1F1B with a flush, arXiv:2006.09503 and arXiv:2104.04473; interleaving,
arXiv:2104.04473, section 2.2.2; ZB-H1 and ZB-H2, arXiv:2401.10241, section 2.3; ZB-V, the same paper, section 6.
"""


def gpipe(stage, stages, microbatches):
    """All forwards, then all backwards (arXiv:2104.04473, figure 3).

    GPipe's own figure (arXiv:1811.06965, figure 2c) runs the backwards from the last micro-batch to the first, in the
    same time.

    >>> gpipe(0, 4, 2)
    [('F', 0, 0), ('F', 1, 0), ('B', 0, 0), ('B', 1, 0)]
    """
    forwards = [("F", microbatch, 0) for microbatch in range(microbatches)]
    backwards = [("B", microbatch, 0) for microbatch in range(microbatches)]
    return forwards + backwards


def one_forward_one_backward(stage, stages, microbatches):
    """1F1B: just enough forwards to fill the stages behind this one, then one forward and one backward in turn.

    Source: PipeDream-Flush, arXiv:2006.09503; arXiv:2104.04473, figure 4, top.

    >>> one_forward_one_backward(2, 4, 3)
    [('F', 0, 0), ('F', 1, 0), ('B', 0, 0), ('F', 2, 0), ('B', 1, 0), ('B', 2, 0)]
    """
    return alternate(stages - stage - 1, microbatches)


def alternate(warm_up, microbatches):
    """`warm_up` forwards, then a forward and a backward in turn, then the backwards that are left."""
    warm_up = min(warm_up, microbatches)
    order = [("F", microbatch, 0) for microbatch in range(warm_up)]
    for microbatch in range(warm_up, microbatches):
        order.append(("F", microbatch, 0))
        order.append(("B", microbatch - warm_up, 0))
    order += [("B", microbatch, 0) for microbatch in range(microbatches - warm_up, microbatches)]
    return order


def interleaved(stage, stages, microbatches, chunks):
    """Interleaved 1F1B: a device holds `chunks` pieces of the model and takes micro-batches in groups of `stages`.

    A group goes through the device's first chunk, then through its second, and so on; then comes the next group.
    `microbatches` must be a multiple of `stages`. The order is that of arXiv:2104.04473, figure 4, bottom.

    >>> [f"{kind}{microbatch}.{chunk}" for kind, microbatch, chunk in interleaved(1, 2, 2, 2)]
    ['F0.0', 'F1.0', 'F0.1', 'B0.1', 'F1.1', 'B1.1', 'B0.0', 'B1.0']
    """
    total = microbatches * chunks
    # All chunks but the last are filled first. One forward for each stage behind would do if sending took no time;
    # the second gives every activation and gradient the time of a forward and a backward to travel in.
    warm_up = min(total, 2 * (stages - stage - 1) + (chunks - 1) * stages)

    def nth(kind, n):
        group, within = divmod(n, stages * chunks)
        chunk, member = divmod(within, stages)
        return kind, group * stages + member, chunk if kind == "F" else chunks - 1 - chunk

    order = [nth("F", n) for n in range(warm_up)]
    for n in range(warm_up, total):
        order.append(nth("F", n))
        order.append(nth("B", n - warm_up))
    order += [nth("B", n) for n in range(total - warm_up, total)]
    return order


def zero_bubble_h1(stage, stages, microbatches):
    """ZB-H1: 1F1B in which stage r puts each weight gradient off by r micro-batches.

    Every stage then holds as many micro-batches as the first one (arXiv:2401.10241, section 2.3). In that
    paper's letters and with M at least P, the bubble is (P - 1) max(T_F, T_B, T_F + T_B - T_W): the paper's, the last
    of the three, as long as T_W is at most T_F and at most T_B.

    >>> "".join(kind for kind, _, _ in zero_bubble_h1(1, 2, 3))
    'FBFBWFBWW'
    """
    return put_off_weights(alternate(stages - stage - 1, microbatches), stage, microbatches)


def zero_bubble_h2(stage, stages, microbatches):
    """ZB-H2: ZB-H1 with the warm-up doubled and the weight gradients put off twice as long.

    The first device then never waits for its first gradient (arXiv:2401.10241, section 2.3). With M at least
    2P - 1, the idle time in a span is (P - 1) max(0, T_B - T_F, T_F + T_B - 2 T_W); it is never negative.

    >>> "".join(kind for kind, _, _ in zero_bubble_h2(0, 2, 4))
    'FFFBWFBWBWBW'
    """
    return put_off_weights(alternate(2 * (stages - stage - 1), microbatches), 2 * stage, microbatches)


def put_off_weights(order, delay, microbatches):
    """Insert the weight gradients: that of micro-batch m - `delay` follows the backward of micro-batch m."""
    result = []
    for kind, microbatch, chunk in order:
        result.append((kind, microbatch, chunk))
        if kind == "B" and microbatch >= delay:
            result.append(("W", microbatch - delay, chunk))
    result += [("W", microbatch, 0) for microbatch in range(max(0, microbatches - delay), microbatches)]
    return result


def zero_bubble_v(stage, stages, microbatches):
    """ZB-V: two chunks a device, laid out as a V, so that a gradient starts on the device that forwards started on.

    Device r holds pieces r and 2P - 1 - r of the model. Every phase is written as if there were work without end;
    an operation whose micro-batches are used up is left out (arXiv:2401.10241, section 6, in its figure's order). No
    device waits within its span if T_F = T_B = T_W and M is at least 2P - 1; with other times it does.

    >>> " ".join(f"{kind}{chunk}" for kind, _, chunk in zero_bubble_v(0, 1, 2))
    'F0 F1 B1 W1 F0 B0 W0 F1 B1 W1 B0 W0'
    """
    behind = stages - stage
    F0, F1, B0, B1, W0, W1 = ((kind, chunk) for kind in "FBW" for chunk in (0, 1))
    fill = [F0] * (2 * behind - 1) + [F1, F0] * stage
    turn = [F1, B1, W1] * behind
    steady = [F0, B0, W0, F1, B1, W1] * max(0, microbatches - stages)
    drain = [B0, B1] * stage + [B0, W0] * behind
    rest = [W1] * microbatches + [W0] * microbatches
    done = dict.fromkeys((F0, F1, B0, B1, W0, W1), 0)
    order = []
    for operation in fill + turn + steady + drain + rest:
        microbatch = done[operation]
        if microbatch < microbatches:
            done[operation] += 1
            order.append((operation[0], microbatch, operation[1]))
    return order

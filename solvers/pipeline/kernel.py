"""The hot loops of stages, compiled: Pareto sets of (held, peak, time) of spans, and what fits.

A set is an array of shape (3, n): K, bytes that a microbatch holds between its forward and its
backward; W, its peak alone; the time of both. Times ascend, and no point is worse in all three
than another. Rows of costs and ways are those of `solvers.chain.exact.kernel`, of a chain with
one more layer behind, so that every span that is wanted may be the body of a checkpoint.

All of it is in one file because numba's cache watches no other file than a function's own; what
is used of the chain's kernel stands there as numbers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from solvers.chain.exact.compiled import compiled

INFINITE = 2**62
Ints = NDArray[np.int64]

FORWARD, ENDING, BACKWARD, OUTPUT, INPUT, DROP_TRANSIENT = 0, 1, 2, 3, 4, 5
INPUT_SAVED, RECOMPUTABLE, FIRST_WAY, LAST_WAY, FIRST_MORE = 7, 8, 9, 10, 11
SAVED, AGAIN, AHEAD, BEHIND, HOLDS_INPUT, HOLDS_OUTPUT = 0, 1, 2, 3, 4, 5
H_START, H_COUNT = 0, 1

# Planes of the table of sets, shape (4, N, L): where H and R of the span of n + 1 layers from s
# lie. H: somebody else holds the stage's input; R: it is counted, and let go as early as may be.
HELD, HELD_COUNT, REST, REST_COUNT = 0, 1, 2, 3


@compiled
def _grown(rows: Ints, used: int, wanted: int) -> Ints:
    """Room for `wanted` points at least, with the first `used` ones of `rows`."""
    if wanted <= rows.shape[1]:
        return rows
    grown = np.empty((3, max(2 * rows.shape[1], wanted)), np.int64)
    for row in range(3):
        for i in range(used):
            grown[row, i] = rows[row, i]
    return grown


@compiled
def _raised(found: Ints, n: int, points: Ints, more: int, floor: int, time: int, cap: int) -> int:
    """Write a set behind the first `n` of `found`, K and W raised, W at least `floor`."""
    for i in range(points.shape[1]):
        peak = max(points[1, i] + more, floor)
        if peak <= cap:
            found[0, n], found[1, n], found[2, n] = points[0, i] + more, peak, points[2, i] + time
            n += 1
    return n


@compiled
def _pareto(found: Ints, n: int, time_cap: int, stairs: Ints) -> Ints:
    """What of the first `n` points within a time is not as bad as another in all three.

    In order of time; `stairs` has room for K ascending and W descending of those that came before.
    """
    order = np.argsort(found[2, :n])
    out = np.empty((3, n), np.int64)
    kept = steps = 0
    for place in range(n):
        i = order[place]
        held, peak, time = found[0, i], found[1, i], found[2, i]
        if time > time_cap:
            break
        low, high = 0, steps
        while low < high:
            middle = (low + high) // 2
            if stairs[0, middle] <= held:
                low = middle + 1
            else:
                high = middle
        if low and stairs[1, low - 1] <= peak:
            continue
        first = low - 1 if low and stairs[0, low - 1] == held else low
        end = first
        while end < steps and stairs[1, end] >= peak:
            end += 1
        shift = 1 - (end - first)
        if shift > 0:
            for at in range(steps - 1, end - 1, -1):
                stairs[0, at + 1], stairs[1, at + 1] = stairs[0, at], stairs[1, at]
        elif shift < 0:
            for at in range(end, steps):
                stairs[0, at + shift], stairs[1, at + shift] = stairs[0, at], stairs[1, at]
        stairs[0, first], stairs[1, first] = held, peak
        steps += shift
        # Of the same time: those before may be worse.
        back = kept
        while back and out[2, back - 1] == time:
            back -= 1
        still = back
        for at in range(back, kept):
            if out[0, at] < held or out[1, at] < peak:
                out[0, still], out[1, still], out[2, still] = out[0, at], out[1, at], time
                still += 1
        out[0, still], out[1, still], out[2, still] = held, peak, time
        kept = still + 1
    return out[:, :kept]


@compiled
def _points(table: Ints, pool: Ints, plane: int, s: int, t: int) -> Ints:
    start = table[plane, t - s, s]
    return pool[:, start : start + table[plane + 1, t - s, s]]


@compiled
def stage_sets(
    a: Ints,
    ways: Ints,
    h_table: Ints,
    h_pool: Ints,
    same: Ints,
    held: bool,
    buffered: bool,
    cap: int,
    time_cap: int,
    limit: int,
    stop: NDArray[np.bool_],
) -> tuple[bool, Ints, Ints]:
    """The sets of all spans of up to N layers as stages, or as the last layers of one.

    Parameters
    ----------
    a, ways
        The chain: costs, shape (ROWS, L + 1), and ways to keep its layers.
    h_table, h_pool
        The chain's own sets: of bodies of checkpoints.
    same
        Shape (N, L + 1): the first layer whose span of n + 1 equals that of s.
    held, buffered
        The last output is held until the backward; its gradient's buffer is there in the forward.
    cap
        No more bytes than that are on any device.
    time_cap
        What takes a microbatch longer is left out.
    limit
        Give up before more points are stored.
    stop
        One flag, which somebody else may set: give up.

    Returns
    -------
    complete, table, pool
        See `HELD` above.
    """
    length = a.shape[1] - 1
    table = np.zeros((4, same.shape[0], length), np.int64)
    pool, used = np.empty((3, 1 << 12), np.int64), 0
    found, stairs = np.empty((3, 1 << 12), np.int64), np.empty((2, 1 << 12), np.int64)
    for n in range(same.shape[0]):
        for s in range(length - n):
            if stop[0]:
                return False, table, pool
            if same[n, s] != s:
                for plane in range(4):
                    table[plane, n, s] = table[plane, n, same[n, s]]
                continue
            t = s + n
            output = a[OUTPUT, t] if held else 0
            buffer = a[OUTPUT, t] if buffered else 0
            for rest in range(1 if a[INPUT_SAVED, s] else 2):
                hold = a[INPUT, s]
                count = 0
                if rest:
                    points = _points(table, pool, HELD, s, t)
                    found = _grown(found, 0, points.shape[1])
                    count = _raised(found, 0, points, hold, 0, 0, cap)
                for way in range(a[FIRST_WAY, s], a[LAST_WAY, s] + 1):
                    if rest and ways[HOLDS_INPUT, way]:
                        continue
                    ahead = buffer + ways[AHEAD, way] + a[FIRST_MORE, s]
                    ahead += hold if rest else 0
                    behind = ways[BEHIND, way]
                    time = a[FORWARD, s] + a[BACKWARD, s] + ways[AGAIN, way]
                    more = ways[SAVED, way]
                    if n == 0:
                        # What the runtime holds and what the layer saves are one tensor.
                        if held or ways[HOLDS_OUTPUT, way]:
                            more += a[OUTPUT, s]
                        if not ways[HOLDS_OUTPUT, way]:
                            behind += output
                        peak = max(ahead, behind)
                        found = _grown(found, count, count + 1)
                        if peak <= cap:
                            found[0, count], found[1, count], found[2, count] = more, peak, time
                            count += 1
                        continue
                    plane = REST
                    if ways[HOLDS_OUTPUT, way]:
                        more += a[OUTPUT, s]
                        plane = HELD
                    elif a[INPUT_SAVED, s + 1]:
                        more += a[INPUT, s + 1]
                        plane = HELD
                    points = _points(table, pool, plane, s + 1, t)
                    found = _grown(found, count, count + points.shape[1])
                    floor = max(ahead, behind + output)
                    count = _raised(found, count, points, more, floor, time, cap)
                if not rest:
                    sweep = forward = np.int64(0)
                    for j in range(s, t + 1):
                        if not a[RECOMPUTABLE, j]:
                            break
                        here = a[OUTPUT, j] + a[DROP_TRANSIENT, j] + a[FIRST_MORE, j]
                        sweep = max(sweep, here + (a[OUTPUT, j - 1] if j > s else 0))
                        forward += a[FORWARD, j]
                        start, size = h_table[H_START, s, j - s], h_table[H_COUNT, s, j - s]
                        if size == 0:
                            continue
                        bodies = h_pool[:, start : start + size]
                        if j == t:
                            found = _grown(found, count, count + size)
                            for i in range(size):
                                peak = max(output + bodies[0, i], buffer + sweep)
                                if peak <= cap:
                                    found[0, count], found[1, count] = output, peak
                                    found[2, count] = bodies[1, i] + forward
                                    count += 1
                            continue
                        shift = a[INPUT, j + 1] * a[INPUT_SAVED, j + 1]
                        plane = HELD if a[INPUT_SAVED, j + 1] else REST
                        points = _points(table, pool, plane, j + 1, t)
                        found = _grown(found, count, count + size * points.shape[1])
                        for k in range(points.shape[1]):
                            if points[2, k] + bodies[1, size - 1] + forward > time_cap:
                                break
                            floor = max(points[1, k] + shift, buffer + sweep)
                            # The fastest body that raises no peak, and all that are faster.
                            for i in range(size):
                                if i + 1 < size and bodies[0, i + 1] + output <= floor:
                                    continue
                                peak = max(floor, bodies[0, i] + output)
                                if peak > cap:
                                    break
                                found[0, count], found[1, count] = points[0, k] + shift, peak
                                found[2, count] = points[2, k] + bodies[1, i] + forward
                                count += 1
                if stairs.shape[1] <= count:
                    stairs = np.empty((2, 2 * count + 1), np.int64)
                points = _pareto(found, count, time_cap, stairs)
                size = points.shape[1]
                if used + size > limit:
                    return False, table, pool
                pool = _grown(pool, used, used + size)
                for row in range(3):
                    for i in range(size):
                        pool[row, used + i] = points[row, i]
                table[2 * rest, n, s], table[2 * rest + 1, n, s] = used, size
                used += size
    return True, table, pool


@compiled
def least_times(
    table: Ints, pool: Ints, fixed: Ints, in_flight: Ints, budgets: Ints, forward: Ints
) -> Ints:
    """Of each stage, first layer and length the least time of a backward that fits, or INFINITE.

    `fixed`, shape (P, N, L), has what is there all the time; `forward` prefix sums of forwards,
    shape (L + 1,). The result's shape is that of `fixed`.
    """
    out: Ints = np.full(fixed.shape, INFINITE, np.int64)
    for p in range(fixed.shape[0]):
        for n in range(fixed.shape[1]):
            for s in range(fixed.shape[2] - n):
                points = _points(table, pool, HELD, s, s + n)
                room = budgets[p] - fixed[p, n, s]
                for i in range(points.shape[1]):  # times ascend
                    if (in_flight[p] - 1) * points[0, i] + points[1, i] <= room:
                        out[p, n, s] = points[2, i] - (forward[s + n + 1] - forward[s])
                        break
    return out


@compiled
def least_bytes(table: Ints, pool: Ints, fixed: Ints, in_flight: Ints) -> Ints:
    """The same shape: the least bytes of any plan."""
    out: Ints = np.full(fixed.shape, INFINITE, np.int64)
    for p in range(fixed.shape[0]):
        for n in range(fixed.shape[1]):
            for s in range(fixed.shape[2] - n):
                points = _points(table, pool, HELD, s, s + n)
                for i in range(points.shape[1]):
                    needs = (in_flight[p] - 1) * points[0, i] + points[1, i] + fixed[p, n, s]
                    out[p, n, s] = min(out[p, n, s], needs)
    return out


@compiled
def makespan(orders: Ints, forward: Ints, backward: Ints, first: int, communication: int) -> int:
    """When stages from `first` on are done, which begin with their microbatches at 0.

    `orders`, shape (P, 2 M): of each stage the microbatches in order, m forward and ~m backward.
    Times of forwards and backwards are by stage. INFINITE where a stage waits for ever.
    """
    stages, actions = orders.shape
    count = actions // 2
    ready_f, ready_b = np.zeros((2, stages + 1, count), np.int64)
    ready_f[first + 1 :], ready_b[first:] = -1, -1
    clock, place = np.zeros(stages, np.int64), np.zeros(stages, np.int64)
    left = (stages - first) * actions
    while left:
        before = left
        for s in range(first, stages):
            while place[s] < actions:
                m = orders[s, place[s]]
                ready = ready_f[s, m] if m >= 0 else ready_b[s, ~m]
                if ready < 0:
                    break
                start = max(clock[s], ready)
                if m >= 0:
                    clock[s] = start + forward[s]
                    if s + 1 < stages:
                        ready_f[s + 1, m] = clock[s] + communication
                    else:
                        ready_b[s, m] = clock[s]
                else:
                    clock[s] = start + backward[s]
                    if s > first:
                        ready_b[s - 1, ~m] = clock[s] + communication
                place[s] += 1
                left -= 1
        if left == before:
            return INFINITE
    end: int = clock[first:].max()
    return end


@compiled
def _heads(times: Ints, forward: Ints) -> tuple[Ints, Ints]:
    """Of stages 0 .. p - 1 over layers 0 .. e - 1: least sum of stage times, least largest one."""
    stages, longest, length = times.shape
    low, tau = np.full((2, stages + 1, length + 1), INFINITE, np.int64)
    low[0, 0] = tau[0, 0] = 0
    for p in range(stages):
        for e in range(p + 1, length + 1):
            for i in range(max(p, e - longest), e):
                if low[p, i] == INFINITE or times[p, e - i - 1, i] == INFINITE:
                    continue
                takes = times[p, e - i - 1, i] + forward[e] - forward[i]
                low[p + 1, e] = min(low[p + 1, e], low[p, i] + takes)
                tau[p + 1, e] = min(tau[p + 1, e], max(tau[p, i], takes))
    return low, tau


@compiled
def best_cuts(
    times: Ints,
    forward: Ints,
    orders: Ints,
    communication: int,
    progress: Ints,
    stop: NDArray[np.bool_],
) -> Ints:
    """First layers of all stages for the least makespan, by branch and bound from the last stage.

    A bound of what is placed: it runs as if nothing waited for the stages before, and these add a
    forward and a backward of one microbatch; nor is any stage done before its own microbatches are.
    `progress` gets the best makespan so far (INFINITE: none) and what none is below.
    """
    stages, longest, length = times.shape
    low, tau = _heads(times, forward)
    microbatches = orders.shape[1] // 2
    best_cut: Ints = np.zeros(stages + 1, np.int64)
    cut = np.zeros(stages + 1, np.int64)
    cut[stages] = length
    ahead, behind = np.zeros((2, stages), np.int64)
    count, place = np.zeros((2, stages), np.int64)
    layer, bound = np.zeros((2, stages, longest), np.int64)
    best = INFINITE
    p, enter = stages - 1, True
    while p < stages:
        if stop[0]:
            lower = best
            for q in range(p + (1 if enter else 0), stages):
                if place[q] < count[q]:
                    lower = min(lower, bound[q, place[q]])
            if enter:  # the one that was just taken is open as well
                lower = min(lower, bound[p + 1, place[p + 1] - 1]) if p + 1 < stages else 0
            progress[0], progress[1] = best, lower
            return best_cut
        if enter:
            e = cut[p + 1]
            n = 0
            for i in range(max(p, e - longest), e):
                if (p == 0 and i) or times[p, e - i - 1, i] == INFINITE or low[p, i] == INFINITE:
                    continue
                ahead[p], behind[p] = forward[e] - forward[i], times[p, e - i - 1, i]
                tail = makespan(orders, ahead, behind, p, communication)
                least = max(low[p, i] + tail + 2 * p * communication, microbatches * tau[p, i])
                if least < best:
                    at = n
                    while at and bound[p, at - 1] > least:
                        bound[p, at], layer[p, at] = bound[p, at - 1], layer[p, at - 1]
                        at -= 1
                    bound[p, at], layer[p, at] = least, i
                    n += 1
            count[p], place[p], enter = n, 0, False
        if place[p] == count[p] or bound[p, place[p]] >= best:
            p += 1
            continue
        i, e = layer[p, place[p]], cut[p + 1]
        place[p] += 1
        cut[p] = i
        ahead[p], behind[p] = forward[e] - forward[i], times[p, e - i - 1, i]
        if p == 0:
            best = bound[p, place[p] - 1]  # of all stages: no bound, but what it takes
            for q in range(stages + 1):
                best_cut[q] = cut[q]
            progress[0] = best
        else:
            p, enter = p - 1, True
    progress[0] = progress[1] = best
    return best_cut

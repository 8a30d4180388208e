"""The hot loops of the frontier, compiled: Pareto sets of spans, and reading a plan back.

A set is a step function from peak bytes to the least time: an array of shape (2, n), peaks in row 0
strictly ascending, times in row 1 strictly descending. All sets live in one pool; H and R of a span
are an offset and a length in it. See `solvers.chain.exact.frontier` for the recurrence.

All of it is in one file because numba's cache watches no other file than a function's own.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from solvers.chain.exact.compiled import compiled

INFINITE = 2**62
"""Above every peak and every time; see `solvers.problem.LIMIT`."""

Ints = NDArray[np.int64]

# Rows of a chain's costs, shape (ROWS, L); names as in `problem.Layer`. Few and plain arrays: numba
# compiles a function in proportion to the fields of its arguments.
FORWARD = 0
ENDING = 1  # the forward that ends the span [i, i]: r in a body, f for the chain's last layer
BACKWARD = 2
OUTPUT = 3
INPUT = 4
DROP_TRANSIENT = 5
GRADIENT = 6
INPUT_SAVED = 7  # every way to keep the layer holds its input
RECOMPUTABLE = 8
FIRST_WAY = 9  # ways to keep layer i: columns FIRST_WAY .. LAST_WAY of `ways`, the full set first
LAST_WAY = 10
FIRST_MORE = 11  # working memory on top: of first forwards, of those that run again
AGAIN_MORE = 12
BESIDE = 13  # of it and those after it, see `Chain.beside`
ROWS = 14

# Rows of the ways to keep layers, shape (WAYS, n): what the forward leaves beside its output, time
# to make the rest again, what forward and backward need (the latter without gradients of
# parameters), whether what is left holds the layer's input, its output, and what a forward needs
# that ends a body.
SAVED, AGAIN, AHEAD, BEHIND, HOLDS_INPUT, HOLDS_OUTPUT, ENDS = 0, 1, 2, 3, 4, 5, 6
WAYS = 7

# Planes of the table of sets, shape (4, L, W + 2): where H(s, t) and R(s, t) lie in the pool. Where
# every way to keep s holds its input, R(s, t) is H(s, t) shifted by its size and is not stored.
# Spans in a body, of up to W layers, stand by their length less one. Column W has the spans to the
# end whose layers before hold what they are handed beside their inputs, column W + 1 those where
# nobody holds it yet (and all that begin with a layer that makes it): t is the chain's length.
H_START, H_COUNT, R_START, R_COUNT = 0, 1, 2, 3

# Planes of the rooms: of H and R of spans that end the chain, and of those in a body.
OWN, REST, BODY, REST_OF_BODY = 0, 1, 2, 3


@compiled
def _at(values: Ints, limit: int) -> int:
    """Index of the last of the ascending `values` that is <= limit, or -1."""
    low, high = 0, len(values)
    while low < high:
        middle = (low + high) // 2
        if values[middle] <= limit:
            low = middle + 1
        else:
            high = middle
    return low - 1


@compiled
def _seek(values: Ints, start: int, limit: int) -> int:
    """As `_at`, galloping from `start`, whose value is <= limit."""
    step, low, high = 1, start, start + 1
    while high < len(values) and values[high] <= limit:
        low = high
        step *= 2
        high = low + step
    high = min(high, len(values))
    while high - low > 1:
        middle = (low + high) // 2
        if values[middle] <= limit:
            low = middle
        else:
            high = middle
    return low


@compiled
def _shifted(p: Ints, shift: int, floor: int, add: int, cap: int, time_cap: int, out: Ints) -> int:
    """Write max(peak + shift, floor), time + add within the caps; return how many points."""
    n = 0
    for i in range(max(_at(p[0], floor - shift), 0), p.shape[1]):
        peak = max(p[0, i] + shift, floor)
        if peak > cap:
            break
        if p[1, i] + add <= time_cap:
            out[0, n], out[1, n] = peak, p[1, i] + add
            n += 1
    return n


@compiled
def _envelope(pm: Ints, pc: Ints, qm: Ints, qc: Ints, out_m: Ints, out_c: Ints) -> int:
    """The lower envelope of two step functions, given as rows; return how many points."""
    i = j = n = 0
    last = INFINITE
    while i < len(pm) or j < len(qm):
        if j >= len(qm) or (i < len(pm) and (pm[i] < qm[j] or (pm[i] == qm[j] and pc[i] <= qc[j]))):
            peak, time = pm[i], pc[i]
            i += 1
        else:
            peak, time = qm[j], qc[j]
            j += 1
        if time < last:
            out_m[n], out_c[n] = peak, time
            n += 1
            last = time
    return n


@compiled
def _improvements(
    pm: Ints,
    pc: Ints,
    p_shift: int,
    qm: Ints,
    qc: Ints,
    q_shift: int,
    floor: int,
    add: int,
    cap: int,
    time_cap: int,
    em: Ints,
    ec: Ints,
    out_m: Ints,
    out_c: Ints,
) -> int:
    """Points of the sum p + q + add, for peaks in floor .. cap, that lie below the envelope.

    The envelope is walked in chunks; a chunk where even the sum's last value is no better than
    the envelope's first is passed over unread. Most are: this is what makes the frontier fast.
    Sets come as rows here (m peaks, c times): contiguous ones are walked a third faster.
    """
    m = max(pm[0] + p_shift, qm[0] + q_shift, floor)
    if m > cap:
        return 0
    end = cap + 1
    i, j = _seek(pm, 0, m - p_shift), _seek(qm, 0, m - q_shift)
    k = _at(em, m)  # -1: before the envelope starts, where anything is better
    least = pc[-1] + qc[-1] + add
    n, previous = 0, time_cap + 1
    while True:
        bound = ec[k] if k >= 0 else INFINITE
        if bound <= least:
            return n
        ahead = k + 16 if k >= 0 else 0
        stop = min(em[ahead], end) if ahead < len(em) else end
        last_i, last_j = _seek(pm, i, stop - 1 - p_shift), _seek(qm, j, stop - 1 - q_shift)
        if pc[last_i] + qc[last_j] + add < bound:
            while True:
                time = pc[i] + qc[j] + add
                if time < bound and time < previous:
                    out_m[n], out_c[n] = m, time
                    n += 1
                    previous = time
                after = pm[i + 1] + p_shift if i < last_i else stop
                if j < last_j:
                    after = min(after, qm[j + 1] + q_shift)
                if after >= stop:
                    break
                m = after
                i += i < last_i and pm[i + 1] + p_shift == m
                j += j < last_j and qm[j + 1] + q_shift == m
                while k + 1 < len(em) and em[k + 1] <= m:
                    k += 1
                    bound = ec[k]
        if stop >= end:
            return n
        m, k = stop, ahead
        i, j = _seek(pm, last_i, m - p_shift), _seek(qm, last_j, m - q_shift)


@compiled
def _thin(p: Ints, most: int, down: bool, out: Ints) -> int:
    """Write `most` points of a set, or two more, evenly in time; return how many.

    Each group of points becomes one: its last peak with its last time, which is a point of the
    set (up), or its first peak with its last time, below the set everywhere (down). The point of
    the smallest peak always stays.
    """
    count = p.shape[1]
    step = (p[1, 0] - p[1, count - 1]) // most + 1
    out[0, 0], out[1, 0] = p[0, 0], p[1, 0]
    n, first = 1, 1
    for i in range(1, count):
        if i == count - 1 or p[1, first] - p[1, i + 1] >= step:
            out[0, n], out[1, n] = p[0, first if down else i], p[1, i]
            n, first = n + 1, i + 1
    return n


@compiled
def _column(table: Ints, s: int, t: int) -> int:
    """Where the span s .. t stands in its row of the table."""
    beyond = t - table.shape[1] + 1
    return t - s if beyond < 0 else table.shape[2] - 2 + beyond


@compiled
def _rest(a: Ints, table: Ints, pool: Ints, s: int, t: int) -> tuple[Ints, int]:
    """R(s, t): a set, and a shift of its peaks."""
    plane, column = H_START if a[INPUT_SAVED, s] else R_START, _column(table, s, t)
    start = table[plane, s, column]
    return pool[:, start : start + table[plane + 1, s, column]], a[INPUT, s] * a[INPUT_SAVED, s]


@compiled
def _held(table: Ints, pool: Ints, s: int, t: int) -> Ints:
    """H(s, t)."""
    column = _column(table, s, t)
    start = table[H_START, s, column]
    return pool[:, start : start + table[H_COUNT, s, column]]


@compiled
def _rows(table: Ints, pool: Ints, plane: int, s: int, t: int) -> tuple[Ints, Ints]:
    """Peaks and times of a set, each contiguous."""
    column = _column(table, s, t)
    start = table[plane, s, column]
    end = start + table[plane + 1, s, column]
    return pool[0, start:end], pool[1, start:end]


@compiled
def _next(
    a: Ints, ways: Ints, table: Ints, pool: Ints, s: int, t: int, way: int
) -> tuple[Ints, int]:
    """What follows a kept layer s: H(s+1, t) with its output, or R(s+1, t) that may let it go."""
    if ways[HOLDS_OUTPUT, way]:
        return _held(table, pool, s + 1, t), a[OUTPUT, s]
    return _rest(a, table, pool, s + 1, t)


@compiled
def _prefix(values: Ints) -> Ints:
    """Prefix sums: out[i] is the sum of the first i values."""
    out = np.zeros(len(values) + 1, np.int64)
    for i in range(len(values)):
        out[i + 1] = out[i] + values[i]
    return out


@compiled
def _more(a: Ints, s: int, t: int) -> int:
    """Working memory on top of a forward of s in s .. t: the first on the highest level alone."""
    more: int = a[FIRST_MORE if t >= a.shape[1] - 1 else AGAIN_MORE, s]
    return more


@compiled
def _ahead(a: Ints, ways: Ints, s: int, t: int, way: int) -> int:
    """What a forward needs that keeps s in s .. t, beside its input."""
    length = a.shape[1]
    needs: int = a[OUTPUT, min(t, length - 1)]
    if s == t < length - 1:
        needs += ways[ENDS, way]
    else:
        needs += ways[AHEAD, way] + _more(a, s, t) + (a[BESIDE, s] if t == length else 0)
    return needs


@compiled
def _copy(p: Ints, out: Ints, n: int, shift: int) -> None:
    """Copy `n` points, peaks raised by `shift`. Slice assignments compile for seconds."""
    for i in range(n):
        out[0, i] = p[0, i] + shift
        out[1, i] = p[1, i]


@compiled
def _room(best: Ints, n: int, size: int) -> tuple[Ints, Ints, Ints]:
    """Three blocks of scratch for twice `size` points, the first with the `n` points of `best`."""
    grown = np.empty((4, 2 * size), np.int64)
    _copy(best, grown, n, 0)
    return grown, np.empty((4, 2 * size), np.int64), np.empty((4, 2 * size), np.int64)


@compiled
def _keep(
    a: Ints,
    ways: Ints,
    table: Ints,
    pool: Ints,
    s: int,
    t: int,
    last_way: int,
    gradients: int,
    rest: bool,
    cap: int,
    time_cap: int,
    out: Ints,
    scratch: Ints,
) -> int:
    """Points of the ways up to `last_way` to keep s in s .. t, into `out`; return how many.

    `rest`: of the ways that let the input go, which is counted until the forward has run (R).
    """
    n = 0
    hold = a[INPUT, s] if rest else 0
    for way in range(a[FIRST_WAY, s], last_way + 1):
        if rest and ways[HOLDS_INPUT, way]:
            continue
        add = ways[AGAIN, way] + a[BACKWARD, s]
        floor = max(_ahead(a, ways, s, t, way) + hold, ways[BEHIND, way] + gradients)
        rows = out[:2] if n == 0 else scratch[:2]
        if s == min(t, a.shape[1] - 1):
            rows[0, 0], rows[1, 0] = floor, add + a[ENDING, s]
            count = int(floor <= cap and rows[1, 0] <= time_cap)
        else:
            following, shift = _next(a, ways, table, pool, s, t, way)
            if not following.shape[1]:
                continue
            add += a[FORWARD, s]
            shift += ways[SAVED, way]
            count = _shifted(following, shift, floor, add, cap, time_cap, rows)
        if n == 0:
            n = count
        elif count:
            n = _envelope(
                out[0, :n], out[1, :n], rows[0, :count], rows[1, :count], scratch[2], scratch[3]
            )
            _copy(scratch[2:], out, n, 0)
    return n


@compiled
def _round_length(n: int) -> bool:
    """Whether n is 1, 2, 3, 4, 6, 8, 12, ...: two lengths of bodies an octave."""
    low = n & -n
    return n == low or n == 3 * low


@compiled
def _checkpoints(
    a: Ints,
    table: Ints,
    pool: Ints,
    s: int,
    t: int,
    forward: Ints,
    gradient: Ints,
    cap: int,
    time_cap: int,
    smallest: bool,
    sparse: bool,
    longest: int,
    n: int,
    best: Ints,
    spare: Ints,
    extra: Ints,
) -> tuple[int, Ints, Ints, Ints]:
    """Improve the `n` points of `best` by every split s .. j | j+1 .. t.

    A body has at most `longest` layers, and where `sparse` some lengths are passed over. Returns
    the number of points and the three blocks of scratch, which may be swapped or larger.
    """
    sweep = np.int64(0)
    for j in range(s, min(t, s + longest)):
        if not a[RECOMPUTABLE, j]:
            break
        here = a[OUTPUT, j] + a[DROP_TRANSIENT, j] + _more(a, j, t)
        sweep = max(sweep, here + (a[OUTPUT, j - 1] if j > s else 0))
        if table[H_COUNT, s, j - s] == 0 or (sparse and not _round_length(j - s + 1)):
            continue
        p, p_shift = _rest(a, table, pool, j + 1, t)
        q, q_shift = _held(table, pool, s, j), gradient[t + 1] - gradient[j + 1]
        if p.shape[1] == 0:
            continue
        floor, add = a[OUTPUT, t] + sweep, forward[j + 1] - forward[s]
        if smallest:
            peak, time = max(p[0, 0] + p_shift, q[0, 0] + q_shift, floor), p[1, 0] + q[1, 0] + add
            least = best[0, 0] if n else INFINITE
            if peak <= cap and (peak < least or (peak == least and time < best[1, 0])):
                best[0, 0], best[1, 0], n = peak, time, 1
        elif p[1, -1] + q[1, -1] + add <= time_cap:
            if n + p.shape[1] + q.shape[1] > best.shape[1]:
                best, spare, extra = _room(best, n, n + p.shape[1] + q.shape[1])
            plane = H_START if a[INPUT_SAVED, j + 1] else R_START
            pm, pc = _rows(table, pool, plane, j + 1, t)
            qm, qc = _rows(table, pool, H_START, s, j)
            better = _improvements(
                pm,
                pc,
                p_shift,
                qm,
                qc,
                q_shift,
                floor,
                add,
                cap,
                time_cap,
                best[0, :n],
                best[1, :n],
                extra[0],
                extra[1],
            )
            if better:
                n = _envelope(
                    best[0, :n],
                    best[1, :n],
                    extra[0, :better],
                    extra[1, :better],
                    spare[0],
                    spare[1],
                )
                best, spare = spare, best
    return n, best, spare, extra


@compiled
def _stored(pool: Ints, used: int, p: Ints, most: int, down: bool, limit: int) -> tuple[Ints, int]:
    """Put a set at the end of the pool, thinned; return the pool, which may move, and its size.

    The size is negative where the set would take the pool beyond `limit`.
    """
    n = p.shape[1]
    if most == 1:
        n = min(n, 1)
    thins = most > 1 and n > most
    wanted = used + (most + 2 if thins else n)
    if wanted > limit:
        return pool, -1
    if wanted > pool.shape[1]:
        grown = np.empty((2, min(max(2 * pool.shape[1], wanted), limit)), np.int64)
        _copy(pool, grown, used, 0)
        pool = grown
    if thins:
        return pool, _thin(p, most, down, pool[:, used:])
    _copy(p, pool[:, used:], n, 0)
    return pool, n


@compiled
def _useful(p: Ints, n: int, room: Ints, time_cap: int, step: int) -> int:
    """Drop, in place, points too high for what the layers below can do in the time that is left."""
    left = 0
    for i in range(n):
        spare = (time_cap - p[1, i] + step - 1) // step
        if p[0, i] <= room[spare]:
            p[0, left], p[1, left] = p[0, i], p[1, i]
            left += 1
    return left


@compiled
def room(
    lost: NDArray[np.float64],
    prices: NDArray[np.float64],
    step: int,
    steps: int,
    cap: int,
    rounding: float,
) -> Ints:
    """Bytes of `cap` that what is below each layer can leave free, for each of its times lost.

    `lost` has, of each layer and price (ascending) of a byte, the least of its time and what its
    bytes cost; shape (L, P). The result, of 0 .. `steps` times `step` of time, never grows from a
    layer to the next.
    """
    length, count = lost.shape
    out = np.empty((length, steps + 1), np.int64)
    for i in range(length):
        s, n = length - 1 - i, 0
        for q in range(steps + 1):
            spent = float(q) * float(step)
            # The bytes are convex in the time: at more of it, a higher price bounds them best.
            least = (lost[s, n] - spent) / prices[n]
            while n + 1 < count and (lost[s, n + 1] - spent) / prices[n + 1] >= least:
                n += 1
                least = (lost[s, n] - spent) / prices[n]
            least = max(least, 0.0)
            free = max(cap - least + rounding * (least + cap) + 1, -1.0)
            out[s, q] = np.int64(np.floor(free))
            if i:
                out[s, q] = max(out[s, q], out[s + 1, q])
    return out


@compiled
def count_sets(a: Ints, same: Ints) -> int:
    """How many sets will be stored."""
    count = 0
    for s in range(a.shape[1]):
        count += 1 if a[INPUT_SAVED, s] else 2
        for n in range(min(same.shape[0], a.shape[1] - s - 1)):
            if same[n, s] == s:
                count += 1 if a[INPUT_SAVED, s] else 2
    for s in range(same.shape[1]):
        if a[BESIDE, s]:
            count += 1 if a[INPUT_SAVED, s] else 2
    return count


@compiled
def build(
    a: Ints,
    ways: Ints,
    same: Ints,
    nested: bool,
    cap: int,
    excess: int,
    slack: Ints,
    rooms: Ints,
    most: int,
    down: bool,
    sparse: bool,
    limit: int,
    stop: NDArray[np.bool_],
) -> tuple[bool, bool, Ints, Ints]:
    """All sets: of spans in a body in order of length, then of those that end the chain.

    Parameters
    ----------
    a, ways
        The chain: costs, shape (ROWS, L), and ways to keep its layers, shape (WAYS, n).
    same
        Shape (W, L): same[n - 1, s] is the first layer whose span of n equals that of s. Bodies
        are of at most W layers.
    nested
        False: the body of a checkpoint keeps everything.
    cap
        Points with a peak above it, in bytes without the chain's input, are not made.
    excess
        Points that no plan within this much of keep-all's time can use are not made.
    slack
        Shape (W, L): the time that the span of n from s may take in a body, beyond that of keeping
        everything there; below 0 it is in no body. Of equal spans the first one's counts for all.
    rooms
        Shape (4, L, Q): rooms[kind, s, q] is the highest peak that a span from s may have, in bytes
        without the chain's input, where the layers below it may lose q times
        ``excess // (Q - 1) + 1`` of time. Used where `excess` is finite.
    most
        A set larger than this is thinned; 0: never. 1: only smallest peaks are wanted.
        Negative: each set may have its share of what is left of the limit.
    down
        Thin towards a lower bound instead of towards valid plans.
    sparse
        Bodies of a few lengths alone are looked at.
    limit
        Give up before more points than this are stored, unless they are made to fit.
    stop
        One flag, which somebody else may set: give up.

    Returns
    -------
    complete, thinned, table, pool
        `complete` is False when the limit was reached, `thinned` True when any set was.
    """
    length, width = a.shape[1], same.shape[0]
    table = np.zeros((4, length, width + 2), np.int64)
    # Of what is not touched yet there is no memory: pools up to this never move.
    pool = np.empty((2, min(limit, 1 << 26)), np.int64)
    used, thinned, left = 0, False, count_sets(a, same)
    forward, backward, gradient = _prefix(a[FORWARD]), _prefix(a[BACKWARD]), _prefix(a[GRADIENT])
    best, spare, extra = _room(np.empty((4, 0), np.int64), 0, 1 << 11)
    longest = np.zeros(length, np.int64)  # of the bodies from each layer that have points
    step = excess // (rooms.shape[2] - 1) + 1
    for row in range(width + 1):
        ends = row == width
        for place in range(length if ends else length - 1 - row):
            s = length - 1 - place if ends else place
            t = length - 1 if ends else s + row
            if stop[0]:
                return False, thinned, table, pool
            if not ends and same[row, s] != s:
                for plane in range(4):
                    table[plane, s, row] = table[plane, same[row, s], row]
                if table[H_COUNT, s, row]:
                    longest[s] = row + 1
                continue
            share = max((limit - used) // left - 2, 14) if most < 0 else most
            left -= 1 if a[INPUT_SAVED, s] else 2
            if not ends and slack[row, s] < 0:
                continue
            held_cap = cap - a[INPUT, s] if s else cap  # somebody else holds the input
            span_time = backward[t + 1] - backward[s]
            lost_cap = INFINITE  # of time
            if excess < INFINITE:  # what runs in a body has run forward before
                lost_cap = span_time + excess + (forward[t + 1] - forward[s] if ends else 0)
                held_cap = min(held_cap, rooms[OWN if ends else BODY, s, -1])
            time_cap = lost_cap
            if not ends:
                least = span_time + forward[t] - forward[s] + a[ENDING, t]
                time_cap = min(lost_cap, least + slack[row, s])
            gradients = gradient[t + 1] - gradient[s]
            free = nested or ends
            last_way = a[LAST_WAY, s] if free else a[FIRST_WAY, s]
            # Points that keeping s can have; the scratch holds as many again for what is improved.
            kept_most = last_way - a[FIRST_WAY, s] + 1
            if s < t:
                kept_most = 0
                for way in range(a[FIRST_WAY, s], last_way + 1):
                    kept_most += _next(a, ways, table, pool, s, t, way)[0].shape[1]
            if kept_most > best.shape[1]:
                best, spare, extra = _room(best, 0, kept_most)
            n = _keep(
                a,
                ways,
                table,
                pool,
                s,
                t,
                last_way,
                gradients,
                False,
                held_cap,
                time_cap,
                best,
                spare,
            )
            if free:
                n, best, spare, extra = _checkpoints(
                    a,
                    table,
                    pool,
                    s,
                    t,
                    forward,
                    gradient,
                    held_cap,
                    time_cap,
                    most == 1,
                    sparse,
                    longest[s],
                    n,
                    best,
                    spare,
                    extra,
                )
            if excess < INFINITE:
                n = _useful(best, n, rooms[OWN if ends else BODY, s], lost_cap, step)
            pool, count = _stored(pool, used, best[:, :n], share, down, limit)
            if count < 0:
                return False, thinned, table, pool
            thinned |= count < n
            table[H_START, s, row], table[H_COUNT, s, row] = used, count
            used += count
            if count and not ends:
                longest[s] = row + 1
            if not a[INPUT_SAVED, s]:
                # H with the input counted, or the layer kept in a way that lets the input go.
                if n + kept_most > best.shape[1]:
                    best, spare, extra = _room(best, n, n + kept_most)
                hold = a[INPUT, s]
                _copy(best, extra, n, hold)
                kept = _keep(
                    a,
                    ways,
                    table,
                    pool,
                    s,
                    t,
                    last_way,
                    gradients,
                    True,
                    cap,
                    time_cap,
                    best,
                    spare,
                )
                n = _envelope(
                    extra[0, :n], extra[1, :n], best[0, :kept], best[1, :kept], spare[0], spare[1]
                )
                if excess < INFINITE:
                    n = _useful(spare, n, rooms[REST if ends else REST_OF_BODY, s], lost_cap, step)
                pool, count = _stored(pool, used, spare[:, :n], share, down, limit)
                if count < 0:
                    return False, thinned, table, pool
                thinned |= count < n
                table[R_START, s, row], table[R_COUNT, s, row] = used, count
                used += count
            if not ends:
                continue
            for plane in range(4):
                table[plane, s, row + 1] = table[plane, s, row]
            if not a[BESIDE, s]:
                continue
            # Where nobody holds yet what s and those after it are handed: s is kept whole and lets
            # it go, or what starts again holds it.
            own = a[FIRST_WAY, s]
            size = table[H_COUNT, s, row] + table[R_COUNT, s, row]
            if s < t:
                size += _next(a, ways, table, pool, s, length, own)[0].shape[1]
            best, spare, extra = _room(best, 0, size)
            for rest in range(1 if a[INPUT_SAVED, s] else 2):
                most_bytes = cap if rest else held_cap
                kept = _keep(
                    a,
                    ways,
                    table,
                    pool,
                    s,
                    length,
                    own,
                    gradients,
                    rest == 1,
                    most_bytes,
                    time_cap,
                    best,
                    spare,
                )
                plane = R_START if rest else H_START
                start = table[plane, s, row]
                holding = pool[:, start : start + table[plane + 1, s, row]]
                n = _shifted(holding, a[BESIDE, s], 0, 0, most_bytes, time_cap, extra)
                n = _envelope(
                    best[0, :kept], best[1, :kept], extra[0, :n], extra[1, :n], spare[0], spare[1]
                )
                if rest:  # or with the input counted
                    held = _held(table, pool, s, length)
                    kept = _shifted(held, a[INPUT, s], 0, 0, cap, time_cap, extra)
                    _copy(spare, best, n, 0)
                    n = _envelope(
                        best[0, :n],
                        best[1, :n],
                        extra[0, :kept],
                        extra[1, :kept],
                        spare[0],
                        spare[1],
                    )
                if excess < INFINITE:
                    n = _useful(spare, n, rooms[REST if rest else OWN, s], lost_cap, step)
                share = max((limit - used) // left - 2, 14) if most < 0 else most
                left -= 1
                pool, count = _stored(pool, used, spare[:, :n], share, down, limit)
                if count < 0:
                    return False, thinned, table, pool
                thinned |= count < n
                table[plane, s, row + 1], table[plane + 1, s, row + 1] = used, count
                used += count
            if not a[RECOMPUTABLE, s]:
                for plane in range(4):
                    table[plane, s, row] = table[plane, s, row + 1]
    return True, thinned, table, pool


@compiled
def _value(a: Ints, table: Ints, pool: Ints, s: int, t: int, limit: int, rest: int) -> int:
    """Time of H(s, t), or of R(s, t) where `rest`, within a peak of `limit`; INFINITE if none."""
    p, shift = _rest(a, table, pool, s, t) if rest else (_held(table, pool, s, t), 0)
    i = _at(p[0], limit - shift)
    return p[1, i] if i >= 0 else INFINITE


KEEP, OPEN, CLOSE = 0, 1, 2


@compiled
def _write(row: Ints, first: int, second: int, third: int, fourth: int) -> None:
    row[0], row[1], row[2], row[3] = first, second, third, fourth


@compiled
def read_back(
    a: Ints, ways: Ints, table: Ints, pool: Ints, first: int, last: int, limit: int
) -> NDArray[np.int64]:
    """The fastest plan of H(first, last) with a peak <= `limit`, by finding every split again.

    Returns
    -------
    NDArray
        Shape (n, 4): rows (KEEP, layer, way, 0), (OPEN, first, last, 0) of a checkpoint,
        (CLOSE, 0, 0, 0).
        Empty when no plan is within the limit.
    """
    length = a.shape[1]
    forward, gradient = _prefix(a[FORWARD]), _prefix(a[GRADIENT])
    out = np.empty((3 * length, 4), np.int64)
    n = 0
    if _value(a, table, pool, first, last, limit, 0) == INFINITE:
        return out[:0]
    # Spans to do: s, t, the limit on the peak, and whether the input is counted in it (R).
    stack = np.empty((3 * length, 4), np.int64)
    _write(stack[0], first, last, limit, 0)
    depth = 1
    while depth:
        depth -= 1
        s, t, limit, rest = stack[depth]
        if s < 0:
            _write(out[n], CLOSE, 0, 0, 0)
            n += 1
            continue
        if rest and a[INPUT_SAVED, s]:
            limit, rest = limit - a[INPUT, s], 0
        if t == length - 1 and not a[RECOMPUTABLE, s]:
            t = length
        goal = _value(a, table, pool, s, t, limit, rest)
        hold = a[INPUT, s] if rest else 0
        end = min(t, length - 1)
        gradients = gradient[end + 1] - gradient[s]
        beside = a[BESIDE, s] if t == length else 0  # held by what starts again
        found = False
        for way in range(a[FIRST_WAY, s], a[LAST_WAY, s] + 1):
            lets_go = rest and not ways[HOLDS_INPUT, way]
            whole = way == a[FIRST_WAY, s]
            column = t if whole else end
            most = limit - (0 if lets_go else hold) - (0 if whole else beside)
            ahead = _ahead(a, ways, s, column, way) + (hold if lets_go else 0)
            if max(ahead, ways[BEHIND, way] + gradients) > most:
                continue
            total = a[BACKWARD, s] + ways[AGAIN, way]
            after, counted = most - ways[SAVED, way], 1
            if s == end:
                total += a[ENDING, s]
            else:
                if ways[HOLDS_OUTPUT, way]:
                    after, counted = after - a[OUTPUT, s], 0
                total += a[FORWARD, s] + _value(a, table, pool, s + 1, column, after, counted)
            if total <= goal:
                _write(out[n], KEEP, s, way - a[FIRST_WAY, s], 0)
                n += 1
                if s < end:
                    _write(stack[depth], s + 1, column, after, counted)
                    depth += 1
                found = True
                break
        if found:
            continue
        limit, t = limit - hold - beside, end
        sweep = np.int64(0)
        for j in range(s, min(t, s + table.shape[2] - 2)):
            here = a[OUTPUT, j] + a[DROP_TRANSIENT, j] + _more(a, j, t)
            sweep = max(sweep, here + (a[OUTPUT, j - 1] if j > s else 0))
            if a[OUTPUT, t] + sweep > limit or not a[RECOMPUTABLE, j]:
                break
            inside = limit - gradient[t + 1] + gradient[j + 1]
            total = forward[j + 1] - forward[s] + _value(a, table, pool, j + 1, t, limit, 1)
            if total <= goal and total + _value(a, table, pool, s, j, inside, 0) <= goal:
                _write(out[n], OPEN, s, j, 0)
                n += 1
                _write(stack[depth], j + 1, t, limit, 1)
                _write(stack[depth + 1], -1, 0, 0, 0)
                _write(stack[depth + 2], s, j, inside, 0)
                depth += 3
                found = True
                break
        if not found:
            return out[:0]
    return out[:n]

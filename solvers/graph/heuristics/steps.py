"""Schedules of a compute graph that change step by step, with what is live at every place.

The places of a schedule are an array with holes, so that a step is put in by moving its neighbours
up to the nearest hole. All of it is compiled; sizes are scaled so that no sum leaves 64 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from solvers.chain.exact.compiled import compiled
from solvers.graph.problem import ComputeGraph

Ints = NDArray[np.int64]

MOST_COPIES = 16
"""Runs of one node that are looked at."""

SIZE, TIME, BACK, INPUTS, READERS, COUNT, COPIES = range(7)
"""Columns of `nodes`; from `COPIES` on stand the steps of a node."""

NODE, PLACE, SPARE = range(3)
"""Columns of `steps`."""

ORDER, DURING, AFTER = range(3)
"""Rows of `places`."""

OVER, COST, FREE, LOGGED, BUDGET = range(5)
"""What stands where in `tally`."""

LOG = 512
"""Entries of the log at most."""

EMPTY = -(2**61)
"""What a hole holds: too little to count as over the budget whatever is added."""


class Steps(NamedTuple):
    """A graph, a schedule of it, and its memory; few arrays, each costs time at every call.

    Attributes
    ----------
    nodes
        Of each its bytes, its time, whether it is of the backward part, where its inputs and its
        readers begin in `ends`, how many steps run it, and these in order: the first is its first
        run. A row more ends the last node's readers.
    ends
        The inputs of all nodes, then the readers of all.
    steps
        Of each its node and its place; and, as a column apart, a stack of those not in use.
    places
        The step at each, -1 for a hole; bytes live while it runs, and after it, at a hole as
        after the step before.
    log
        What was done since it was emptied: a step put in, and -1; or a node taken out, and the
        step that it stood before, as many as there are for the end.
    tally
        Bytes over the budget summed over the steps, time of what runs again, spare steps, entries
        of the log, the budget.
    """

    nodes: Ints
    ends: Ints
    steps: Ints
    places: Ints
    log: Ints
    tally: Ints


@compiled
def last_read(s: Steps, v: int, begin: int, end: int) -> int:
    """The last place between two where something reads `v`; -1: none."""
    last = -1
    for a in range(s.nodes[v, READERS], s.nodes[v + 1, READERS]):
        w = s.ends[a]
        for c in range(s.nodes[w, COUNT] - 1, -1, -1):
            at = s.steps[s.nodes[w, COPIES + c], PLACE]
            if at < end:
                if at > begin and at > last:
                    last = at
                break
    return last


@compiled
def serving(s: Steps, v: int, at: int) -> int:
    """Which copy of `v` is the newest before a place; -1: none."""
    for c in range(s.nodes[v, COUNT] - 1, -1, -1):
        if s.steps[s.nodes[v, COPIES + c], PLACE] < at:
            return c
    return -1


@compiled
def until(s: Steps, v: int, at: int) -> int:
    """The last place at which the newest copy of `v` before `at` is read, or its own."""
    c = serving(s, v, at)
    begin = s.steps[s.nodes[v, COPIES + c], PLACE]
    end = s.steps[s.nodes[v, COPIES + c + 1], PLACE] if c + 1 < s.nodes[v, COUNT] else len(s.steps)
    return int(max(begin, last_read(s, v, begin, end)))


@compiled
def _live(s: Steps, begin: int, end: int, size: int) -> None:
    """So many bytes more are live from after the step at `begin` to the one at `end`."""
    budget, change = s.tally[BUDGET], 0
    for k in range(begin + 1, end + 1):
        old = s.places[DURING, k]
        s.places[DURING, k] = old + size
        change += max(0, old + size - budget) - max(0, old - budget)
    for k in range(begin, end):
        s.places[AFTER, k] += size
    s.tally[OVER] += change


@compiled
def _room(s: Steps, before: int) -> int:
    """A hole just before the step at a place, made by moving those up to the nearest one."""
    left, right = before - 1, before
    while True:
        if left >= 0:
            if s.places[ORDER, left] < 0:
                break
            left -= 1
        if right < len(s.steps):
            if s.places[ORDER, right] < 0:
                left = -1
                break
            right += 1
    if left >= 0:
        hole = before - 1
        for k in range(left, hole):
            _move(s, k + 1, k)
    else:
        hole = before
        for k in range(right, hole, -1):
            _move(s, k - 1, k)
    _empty(s, hole)
    return hole


@compiled
def _move(s: Steps, at: int, to: int) -> None:
    s.places[ORDER, to] = s.places[ORDER, at]
    s.steps[s.places[ORDER, to], PLACE] = to
    s.places[DURING, to] = s.places[DURING, at]
    s.places[AFTER, to] = s.places[AFTER, at]


@compiled
def _empty(s: Steps, at: int) -> None:
    s.places[ORDER, at] = -1
    s.places[DURING, at] = EMPTY
    s.places[AFTER, at] = s.places[AFTER, at - 1] if at else 0


@compiled
def put(s: Steps, v: int, before: int) -> int:
    """Run `v` just before a step, `len(order)` for the end; return the new step."""
    at = _room(s, s.steps[before, PLACE] if before < len(s.steps) else len(s.steps))
    c = serving(s, v, at) + 1
    end = s.steps[s.nodes[v, COPIES + c], PLACE] if c < s.nodes[v, COUNT] else len(s.steps)
    last = last_read(s, v, at, end)
    live = s.places[AFTER, at - 1] if at else 0
    if c == 0 or last < 0:
        live += s.nodes[v, SIZE]
    if c and last >= 0:
        _live(s, read_before(s, v, c - 1, at), at, -s.nodes[v, SIZE])
    elif last >= 0:
        _live(s, at, last, s.nodes[v, SIZE])
    for a in range(s.nodes[v, INPUTS], s.nodes[v + 1, INPUTS]):
        u = s.ends[a]
        held = until(s, u, at)
        if held < at:
            live += s.nodes[u, SIZE]
            _live(s, held, at, s.nodes[u, SIZE])
    s.tally[FREE] -= 1
    step = s.steps[s.tally[FREE], SPARE]
    s.places[ORDER, at] = step
    s.steps[step, NODE], s.steps[step, PLACE] = v, at
    for k in range(s.nodes[v, COUNT], c, -1):
        s.nodes[v, COPIES + k] = s.nodes[v, COPIES + k - 1]
    s.nodes[v, COPIES + c] = step
    s.nodes[v, COUNT] += 1
    s.places[DURING, at] = live
    s.tally[OVER] += max(0, live - s.tally[BUDGET])
    s.tally[COST] += s.nodes[v, TIME]
    s.log[s.tally[LOGGED], 0], s.log[s.tally[LOGGED], 1] = step, -1
    s.tally[LOGGED] += 1
    return int(step)


@compiled
def read_before(s: Steps, v: int, c: int, at: int) -> int:
    """The last place before `at` at which copy `c` of `v` is read, or its own."""
    begin = s.steps[s.nodes[v, COPIES + c], PLACE]
    return int(max(begin, last_read(s, v, begin, at)))


@compiled
def take(s: Steps, step: int) -> None:
    """Run a step no more; what reads it reads the copy before it."""
    v, at = s.steps[step, NODE], s.steps[step, PLACE]
    c = serving(s, v, at) + 1
    for k in range(c, s.nodes[v, COUNT] - 1):
        s.nodes[v, COPIES + k] = s.nodes[v, COPIES + k + 1]
    s.nodes[v, COUNT] -= 1
    s.tally[OVER] -= max(0, s.places[DURING, at] - s.tally[BUDGET])
    s.tally[COST] -= s.nodes[v, TIME]
    s.places[DURING, at] = EMPTY
    end = s.steps[s.nodes[v, COPIES + c], PLACE] if c < s.nodes[v, COUNT] else len(s.steps)
    last = last_read(s, v, at, end)
    if c and last >= 0:
        _live(s, read_before(s, v, c - 1, at), at, s.nodes[v, SIZE])
    elif last >= 0:
        _live(s, at, last, -s.nodes[v, SIZE])
    for a in range(s.nodes[v, INPUTS], s.nodes[v + 1, INPUTS]):
        u = s.ends[a]
        held = until(s, u, at)
        if held < at:
            _live(s, held, at, -s.nodes[u, SIZE])
    _empty(s, at)
    s.steps[s.tally[FREE], SPARE] = step
    s.tally[FREE] += 1
    following = at + 1
    while following < len(s.steps) and s.places[ORDER, following] < 0:
        following += 1
    s.log[s.tally[LOGGED], 0] = v
    s.log[s.tally[LOGGED], 1] = (
        s.places[ORDER, following] if following < len(s.steps) else following
    )
    s.tally[LOGGED] += 1


@compiled
def undo(s: Steps) -> None:
    """Take back all that the log says, and empty it."""
    entries = s.tally[LOGGED]
    for k in range(entries - 1, -1, -1):
        what, before = s.log[k, 0], s.log[k, 1]
        s.tally[LOGGED] = k
        if before < 0:
            take(s, what)
        else:
            put(s, what, before)
    s.tally[LOGGED] = 0


def started(graph: ComputeGraph, budget: int, schedule: Sequence[int]) -> tuple[Steps, int]:
    """The state of a schedule, and the bytes of which its sizes are multiples, rounded up."""
    n = len(graph)
    unit = max(1, sum(node.bytes for node in graph.nodes) >> 40)
    places = 2 * max(n, len(schedule)) + 64
    nodes = np.zeros((n + 1, COPIES + MOST_COPIES + 1), np.int64)
    ends: list[int] = []
    for column, rows in ((INPUTS, graph.inputs), (READERS, graph.consumers)):
        nodes[:, column] = len(ends) + np.cumsum([0, *map(len, rows)])
        ends += [v for row in rows for v in row]
    for v, node in enumerate(graph.nodes):
        nodes[v, SIZE], nodes[v, TIME] = -(-node.bytes // unit), node.time
        nodes[v, BACK] = node.backward
    steps = np.zeros((places, 3), np.int64)
    steps[:, SPARE] = np.arange(places)
    s = Steps(
        nodes,
        np.array(ends, np.int64),
        steps,
        np.zeros((3, places), np.int64),
        np.zeros((LOG, 2), np.int64),
        np.array([0, -graph.least_time, places, 0, budget // unit], np.int64),
    )
    _fill(s, np.array(schedule, np.int64))
    return s, unit


@compiled
def _fill(s: Steps, schedule: Ints) -> None:
    s.places[ORDER] = -1
    for k in range(len(schedule)):
        v, at = schedule[k], k * len(s.steps) // len(schedule)
        s.tally[FREE] -= 1
        step = s.steps[s.tally[FREE], SPARE]
        s.places[ORDER, at] = step
        s.steps[step, NODE], s.steps[step, PLACE] = v, at
        s.nodes[v, COPIES + s.nodes[v, COUNT]] = step
        s.nodes[v, COUNT] += 1
        s.tally[COST] += s.nodes[v, TIME]
    live = 0
    for k in range(len(s.steps)):
        s.places[DURING, k] = EMPTY
        if s.places[ORDER, k] >= 0:
            v = s.steps[s.places[ORDER, k], NODE]
            live += s.nodes[v, SIZE]
            s.places[DURING, k] = live
            s.tally[OVER] += max(0, live - s.tally[BUDGET])
            if until(s, v, k + 1) == k:
                live -= s.nodes[v, SIZE]
            for a in range(s.nodes[v, INPUTS], s.nodes[v + 1, INPUTS]):
                if until(s, s.ends[a], k) == k:
                    live -= s.nodes[s.ends[a], SIZE]
        s.places[AFTER, k] = live

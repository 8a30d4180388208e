"""Annealing of what runs again, and where the order is free of the order too: compute graphs.

A move runs a node again before one of its readers, or no longer, or at another time, and with it,
by chance, the inputs that would stay longer for it. What is made small is the time of what runs
again, and the bytes over the budget at a price that rises until schedules fit and falls where they
do with ease.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from solvers.chain.exact.compiled import compiled
from solvers.graph.heuristics.steps import (
    BACK,
    BUDGET,
    COPIES,
    COST,
    COUNT,
    DURING,
    FREE,
    INPUTS,
    LOG,
    LOGGED,
    MOST_COPIES,
    NODE,
    ORDER,
    OVER,
    PLACE,
    READERS,
    Ints,
    Steps,
    put,
    read_before,
    serving,
    started,
    take,
    undo,
    until,
)
from solvers.graph.lowering import Run
from solvers.graph.problem import ComputeGraph
from solvers.graph.search import Search
from solvers.solution import PlanClass

_HOT, _COLD = 1.0, 0.02  # temperatures, in mean times of a node
_DEAREST = 1e4
"""The price at most, in what holding a byte costs in time when all is held."""

_CHUNK = 5_000
"""Moves between two questions whether to stop."""

FEWEST = 20
"""Nodes below which a program is solved before this is loaded."""

_NONE = 2**62
"""The time of no schedule."""

_MOST_AGAIN = 12
"""Runs that one move puts in, about."""

_AIMED = 0.5
"""How often a move looks where the budget is broken."""

_TRIES = 50
_FULL = 400  # entries of the log after which a move does not go on


def offer_annealed(search: Search, moves: int, seconds: float | None = None) -> None:
    """Offer a search what annealing finds from its best, or from everything once.

    Nothing for layers, nor for few nodes.
    """
    graph: Any = search.operations.graph
    if search.operations.layers or len(graph) < FEWEST:
        return
    search.stage = "annealing"
    annealed(
        graph,
        search.budget,
        [run.operation for run in search.runs] or range(len(graph)),
        lambda steps: search.offer([Run(i) for i in steps]),
        lambda: search.over,
        moves=moves,
        seconds=seconds,
        forward=search.plan_class is PlanClass.FORWARD,
    )


def annealed(
    graph: ComputeGraph,
    budget: int,
    start: Sequence[int],
    offer: Callable[[tuple[int, ...]], object],
    over: Callable[[], bool],
    *,
    moves: int,
    seconds: float | None = None,
    free: bool = False,
    forward: bool = False,
    seed: int = 0,
) -> tuple[int, ...] | None:
    """The fastest schedule within `budget` that is found from `start`; each better one is offered.

    In the order of `start`, each step of a stage run again in that order, unless `free`;
    `forward`: of a training graph only forward nodes, and in the backward part. It cools down once,
    in so many moves, sooner where `seconds` ask for it; `over` ends it at once. If nothing fits by
    then it starts anew, twice.
    """
    mean = max(1.0, graph.least_time / len(graph))
    found: tuple[int, ...] | None = None
    if max(Counter(start).values()) > MOST_COPIES:
        start = tuple(dict.fromkeys(start))
    for cycle in range(3):
        steps, unit = started(graph, budget, start)
        natural = max(1, graph.least_time) / max(1, _held(graph) // unit)
        best, cost, price = np.empty(len(steps.steps), np.int64), _NONE, natural
        begin = time.monotonic()
        for chunk in range(-(-moves // _CHUNK)):
            part = chunk * _CHUNK / moves
            if seconds is not None:
                part = max(part, (time.monotonic() - begin) / seconds)
            if part >= 1 or over():
                break
            heat = mean * _HOT * (_COLD / _HOT) ** part
            draws = (seed * 3 + cycle) * moves + chunk
            now, price = _anneal(
                steps, best, cost, _CHUNK, heat, price, natural * _DEAREST, draws, free, forward
            )
            if now < cost:
                cost, found = now, tuple(best[best >= 0].tolist())
                offer(found)
        if found is not None or over():
            break
    return found


def _held(graph: ComputeGraph) -> int:
    """Bytes times steps for which they are held when all is."""
    spans = (row[-1] - v if row else 0 for v, row in enumerate(graph.consumers))
    return sum(node.bytes * span for node, span in zip(graph.nodes, spans, strict=True))


@compiled
def _is_first(s: Steps, step: int) -> bool:
    return bool(s.nodes[s.steps[step, NODE], COPIES] == step)


@compiled
def _stage(s: Steps, at: int, last: int) -> int:
    """The first run that ends the stage of a place, or the step at `last` where that is earlier."""
    while at < last and (s.places[ORDER, at] < 0 or not _is_first(s, s.places[ORDER, at])):
        at += 1
    return int(s.places[ORDER, at])


@compiled
def _again(s: Steps, v: int, before: int, forward: bool) -> int:
    """Run `v` again in the stage of a step, before it, in order; -1: that cannot be."""
    if s.nodes[v, COUNT] >= MOST_COPIES or s.tally[FREE] == 0:
        return -1
    stage = _stage(s, s.steps[before, PLACE], len(s.steps) - 1)
    if forward and (s.nodes[v, BACK] or not s.nodes[s.steps[stage, NODE], BACK]):
        return -1
    rank = s.steps[s.nodes[v, COPIES], PLACE]
    for k in range(s.steps[before, PLACE] - 1, rank, -1):
        step = s.places[ORDER, k]
        if step >= 0:
            w = s.steps[step, NODE]
            if w == v:
                return -1
            if _is_first(s, step) or s.steps[s.nodes[w, COPIES], PLACE] < rank:
                break
            before = step
    return put(s, v, before)


@compiled
def _with_inputs(s: Steps, v: int, before: int, forward: bool, todo: Ints) -> bool:
    """Run `v` again before a step, and by chance those of its inputs that stay longer for it."""
    step = _again(s, v, before, forward)
    if step < 0:
        return False
    chance = np.random.random()
    todo[0], count = step, 1
    while count:
        count -= 1
        step = todo[count]
        v = s.steps[step, NODE]
        for a in range(s.nodes[v, INPUTS], s.nodes[v + 1, INPUTS]):
            u, at = s.ends[a], s.steps[step, PLACE]
            if s.tally[LOGGED] >= _MOST_AGAIN:
                return True
            longer = until(s, u, at) == at and read_before(s, u, serving(s, u, at), at) < at - 2
            if longer and np.random.random() < chance:
                again = _again(s, u, step, forward)
                if again >= 0:
                    todo[count] = again
                    count += 1
    return True


@compiled
def _prune(s: Steps, v: int, todo: Ints) -> None:
    """Take out the repeats of `v` that nothing reads, and what was there for them alone."""
    todo[0], count = v, 1
    while count:
        count -= 1
        v = todo[count]
        for c in range(s.nodes[v, COUNT] - 1, 0, -1):
            step = s.nodes[v, COPIES + c]
            at = s.steps[step, PLACE]
            if until(s, v, at + 1) == at and s.tally[LOGGED] < _FULL:
                take(s, step)
                for a in range(s.nodes[v, INPUTS], s.nodes[v + 1, INPUTS]):
                    if s.nodes[s.ends[a], COUNT] > 1 and count < len(todo):
                        todo[count] = s.ends[a]
                        count += 1


@compiled
def _random_step(s: Steps) -> int:
    while True:
        step = s.places[ORDER, np.random.randint(len(s.steps))]
        if step >= 0:
            return int(step)


@compiled
def _reorder(s: Steps) -> None:
    """Run a node at another time for the first time."""
    v = np.random.randint(len(s.nodes) - 1)
    step = s.nodes[v, COPIES]
    low, high = -1, len(s.steps)
    for a in range(s.nodes[v, INPUTS], s.nodes[v + 1, INPUTS]):
        low = max(low, s.steps[s.nodes[s.ends[a], COPIES], PLACE])
    for a in range(s.nodes[v, READERS], s.nodes[v + 1, READERS]):
        high = min(high, s.steps[s.nodes[s.ends[a], COPIES], PLACE])
    if s.nodes[v, COUNT] > 1:
        high = min(high, s.steps[s.nodes[v, COPIES + 1], PLACE])
    if high - low > 2:
        k = np.random.randint(low + 1, high)
        while k < len(s.steps) and s.places[ORDER, k] < 0:
            k += 1
        before = s.places[ORDER, k] if k < len(s.steps) else k
        if before != step:
            take(s, step)
            put(s, v, before)


@compiled
def _drop(s: Steps, forward: bool, todo: Ints) -> None:
    """Hold an input of some step no longer before it; run it again."""
    step, within = _random_step(s), len(s.steps)
    if s.tally[OVER] and np.random.random() < _AIMED:
        step, within = _over(s)
    at, v = s.steps[step, PLACE], s.steps[step, NODE]
    count = s.nodes[v + 1, INPUTS] - s.nodes[v, INPUTS]
    if count:
        u = s.ends[s.nodes[v, INPUTS] + np.random.randint(count)]
        gap = read_before(s, u, serving(s, u, at), at) < min(at - 2, within)
        if gap and _with_inputs(s, u, step, forward, todo):
            _prune(s, u, todo)


@compiled
def _over(s: Steps) -> tuple[int, int]:
    """A step some way behind a place that is over the budget, and that place."""
    places = len(s.steps)
    within = np.random.randint(places)
    for _ in range(_TRIES):
        if s.places[DURING, within] > s.tally[BUDGET]:
            break
        within = np.random.randint(places)
    room = places - within
    at = within + int(room ** np.random.random())
    while at < places and s.places[ORDER, at] < 0:
        at += 1
    return (int(s.places[ORDER, at]) if at < places else _random_step(s)), within


@compiled
def _hold(s: Steps, forward: bool, todo: Ints) -> None:
    """Run something no longer again, or at another time."""
    for _ in range(_TRIES):
        step = _random_step(s)
        if not _is_first(s, step):
            break
    else:
        return
    v, at = s.steps[step, NODE], s.steps[step, PLACE]
    high = len(s.steps)
    for a in range(s.nodes[v, READERS], s.nodes[v + 1, READERS]):
        w = s.ends[a]
        for c in range(serving(s, w, at) + 1, s.nodes[w, COUNT]):
            high = min(high, s.steps[s.nodes[w, COPIES + c], PLACE])
            break
    low = s.steps[s.nodes[v, COPIES + serving(s, v, at)], PLACE]
    take(s, step)
    if np.random.random() < 0.5 and high < len(s.steps):
        before = _stage(s, np.random.randint(low + 1, high + 1), high)
        _with_inputs(s, v, before, forward, todo)
    _prune(s, v, todo)
    for a in range(s.nodes[v, INPUTS], s.nodes[v + 1, INPUTS]):
        if s.nodes[s.ends[a], COUNT] > 1:
            _prune(s, s.ends[a], todo)


@compiled
def _anneal(
    s: Steps,
    best: Ints,
    cost: int,
    moves: int,
    heat: float,
    price: float,
    dearest: float,
    seed: int,
    free: bool,
    forward: bool,
) -> tuple[int, float]:
    """Make so many moves; keep in `best` what fits and takes less than `cost`.

    Returns the new cost, and the price of a byte over the budget.
    """
    np.random.seed(seed % 2**32)
    todo = np.empty(LOG, np.int64)
    fitting = 0
    for move in range(1, moves + 1):
        over, spent = s.tally[OVER], s.tally[COST]
        s.tally[LOGGED] = 0
        draw = np.random.random()
        if free and draw < 0.4:
            _reorder(s)
        elif draw < 0.75:
            _drop(s, forward, todo)
        else:
            _hold(s, forward, todo)
        worse = s.tally[COST] - spent + price * (s.tally[OVER] - over)
        if worse > 0 and np.random.random() >= math.exp(-worse / heat):
            undo(s)
        if s.tally[OVER] == 0:
            fitting += 1
            if s.tally[COST] < cost:
                cost = s.tally[COST]
                _copy(s, best)
        if move % 500 == 0:
            price = min(dearest, price * (1.05 if fitting < 100 else 0.95 if fitting > 250 else 1))
            fitting = 0
    return cost, price


@compiled
def _copy(s: Steps, schedule: Ints) -> None:
    count = 0
    for k in range(len(s.steps)):
        if s.places[ORDER, k] >= 0:
            schedule[count] = s.steps[s.places[ORDER, k], NODE]
            count += 1
    schedule[count:] = -1

"""What the methods of graphs do to a search: each offers schedules, and some raise its bound."""

from __future__ import annotations

import math
from typing import Any

from solvers.graph.heuristics.greedy import by_distance, evicting
from solvers.graph.schedule import Nodes
from solvers.graph.search import Search
from solvers.problem import InvalidProblem
from solvers.solution import Unsuitable

MOST_OPERATIONS = 1500
"""Beyond so many operations nothing is proven: the program grows with their square."""

_MOST_PAIRS = 200_000
"""Of operations, of which programs are built where time is short."""

_MOVES = 1_000_000
"""Of an annealing without a limit: ten seconds to a minute."""

_BOUND_SECONDS = 20.0

_MOST_BLOCKS = 400
"""Chains of more blocks are left to eviction: the chain solver keeps to no time limit."""


def greedy(search: Search) -> None:
    """Evictions by several weights, and where none fits a short annealing."""
    search.stage = "eviction"
    small = len(search.operations) <= MOST_OPERATIONS
    powers = (1.0, 0.5, 2.0, 0.0) if small else (1.0, 0.5)
    for power in powers:
        weight = by_distance(search.operations, power)
        # The first is quick on all but the largest graphs: some schedule, even out of time.
        stop = _never if small and power == powers[0] else (lambda: search.over)
        runs = evicting(search.operations, search.budget, search.plan_class, weight, stop)
        if runs is not None:
            search.offer(runs)
        if search.over:
            return
    if search.time is None:
        from solvers.graph.heuristics.rerun import offer_annealed

        offer_annealed(search, _MOVES // 10)


def _never() -> bool:
    return False


def blocks(search: Search) -> None:
    """Of layers: the fastest plan over the blocks between articulation points."""
    from solvers.graph.chains.blocks import cuts, solve_blocks

    graph: Any = search.operations.graph
    if not 2 <= len(cuts(graph)) <= _MOST_BLOCKS:
        return
    search.stage = "blocks"
    try:
        found = solve_blocks(graph, search.budget)
    except InvalidProblem:  # the sums of a block may pass 2**62 where those of its layers do not
        return
    if found is None:
        return
    search.offer_schedule(found.actions)
    if found.time <= found.lower_bound_time and found.time == search.time:
        search.note = (
            f"optimal among persistent plans over its {found.count} blocks, each kept by one of "
            "its options"
        )


def intervals(search: Search) -> None:
    """Of compute graphs: retention intervals."""
    from solvers.graph.heuristics.intervals import offer_intervals

    offer_intervals(search, search.remaining())


def order(search: Search) -> tuple[int, ...]:
    """Of compute graphs: an order of small peak, which it returns."""
    from solvers.graph.heuristics.order import reorder

    graph: Any = search.operations.graph
    search.stage = "order"
    found = reorder(graph, search.budget, interrupted=lambda: search.over)
    search.offer_schedule(Nodes(found))
    return found


def any_order(search: Search, start: tuple[int, ...]) -> tuple[int, ...] | None:
    """Of compute graphs: what annealing finds in any order, from `start` and the given one."""
    from solvers.graph.heuristics.rerun import FEWEST, annealed

    graph: Any = search.operations.graph
    if len(graph) < FEWEST:
        return None
    search.stage = "annealing of orders"
    left, best = search.remaining(), None
    given = range(len(graph))
    for seed, begin in enumerate((start, given, given)):  # one alone may end in a poor corner
        found = annealed(
            graph,
            search.budget,
            begin,
            lambda steps: search.offer_schedule(Nodes(steps)),
            lambda: search.over,
            moves=_MOVES // 2,
            seconds=None if left is None else left / 6,
            free=True,
            seed=seed,
        )
        times = [math.inf if s is None else _time(graph, s) for s in (best, found)]
        best = found if times[1] < times[0] else best
    return best


def _time(graph: Any, steps: tuple[int, ...]) -> int:
    return sum(graph.nodes[v].time for v in steps)


def rounding(search: Search) -> None:
    """Schedules rounded from the relaxation of the staged program."""
    _check_size(search, "rounding")
    from solvers.graph.exact.staged import relax

    relax(search)


def staged(search: Search) -> None:
    """Everything quick, then the staged program to its proof."""
    _check_size(search, "staged")
    find_best(search)


def find_best(search: Search) -> None:
    """All methods that suit the graph, one after the other."""
    greedy(search)
    best = "the best of several evictions"
    if not search.over and search.operations.layers:
        blocks(search)
        best = search.note or best
    search.note = ""
    if search.over:
        return
    if not search.operations.layers and _hopeless(search):
        _anneal_long(search)
        best = "the best of an annealing"
    if search.proven:
        return
    if len(search.operations) > MOST_OPERATIONS:
        search.note = (
            f"{len(search.operations):,} operations are more than the {MOST_OPERATIONS:,} about "
            f"which an optimum can be proven: this plan is {best}"
        )
    elif not search.over:
        from solvers.graph.exact.staged import prove

        prove(search)


def _hopeless(search: Search) -> bool:
    """Whether no program of the graph is solved within the limits."""
    n = len(search.operations)
    return n > MOST_OPERATIONS or (search.remaining() is not None and n * n > _MOST_PAIRS)


def _anneal_long(search: Search) -> None:
    """Of large compute graphs: a bound by gaps, and annealing for most of the time."""
    from solvers.graph.exact.gaps import bound_by_gaps
    from solvers.graph.heuristics.rerun import offer_annealed

    left = search.remaining()
    seconds = None if left is None else 0.8 * left
    # First the bound, at which the annealing may end.
    bound_by_gaps(search, _BOUND_SECONDS if left is None else 0.1 * left)
    if not search.over:
        offer_annealed(search, _MOVES if left is None else 100 * _MOVES, seconds)


def _check_size(search: Search, method: str) -> None:
    n = len(search.operations)
    if n > MOST_OPERATIONS:
        raise Unsuitable(
            f"method {method!r} takes at most {MOST_OPERATIONS:,} operations, these are {n:,}; "
            "method 'auto' then evicts, without a proof"
        )

"""What the methods of graphs do to a search: each offers schedules, and some raise its bound."""

from __future__ import annotations

from typing import Any

from solvers.graph.heuristics.greedy import by_distance, evicting
from solvers.graph.schedule import Nodes
from solvers.graph.search import Search
from solvers.problem import InvalidProblem
from solvers.solution import Unsuitable

MOST_OPERATIONS = 1500
"""Beyond so many operations nothing is proven: the program grows with their square."""

_MOST_BLOCKS = 400
"""Chains of more blocks are left to eviction: the chain solver keeps to no time limit."""


def greedy(search: Search) -> None:
    """Evictions by several weights, and for compute graphs their repair."""
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
    if not search.operations.layers:
        from solvers.graph.heuristics.repair import repaired

        for strict in (True, False):
            runs = repaired(
                search.operations,
                search.budget,
                search.plan_class,
                lambda: search.over,
                strict=strict,
            )
            if runs is not None:
                search.offer(runs)


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


def rounding(search: Search) -> None:
    """Schedules rounded from the relaxation of the staged program."""
    _check_size(search, "rounding")
    from solvers.graph.exact.staged import relax

    relax(search)


def staged(search: Search) -> None:
    """Everything quick, then the staged program to its proof."""
    _check_size(search, "staged")
    _prove(search)


def find_best(search: Search) -> None:
    """All methods that suit the graph, one after the other."""
    if len(search.operations) > MOST_OPERATIONS:
        greedy(search)
        best = "the best of several evictions"
        if not search.over and search.operations.layers:
            blocks(search)
            best = search.note or best
        search.note = (
            f"{len(search.operations):,} operations are more than the {MOST_OPERATIONS:,} about "
            f"which something can be proven: this plan is {best}"
        )
        return
    _prove(search)


def _prove(search: Search) -> None:
    from solvers.graph.exact.staged import prove

    greedy(search)
    if not search.over and search.operations.layers:
        blocks(search)
        search.note = ""  # of the program's result more is known
    if not search.over:
        prove(search)


def _check_size(search: Search, method: str) -> None:
    n = len(search.operations)
    if n > MOST_OPERATIONS:
        raise Unsuitable(
            f"method {method!r} takes at most {MOST_OPERATIONS:,} operations, these are {n:,}; "
            "method 'auto' then evicts, without a proof"
        )

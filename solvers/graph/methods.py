"""The methods of graphs by name: what they accept and promise, and what they do to a search."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType

from solvers.graph.heuristics.greedy import by_distance, evicting
from solvers.graph.problem import ComputeGraph, LayerGraph
from solvers.graph.search import Search
from solvers.problem import InvalidProblem
from solvers.solution import Unsuitable

__all__ = ["METHODS", "MOST_OPERATIONS", "WORK", "GraphMethod", "find_best"]

MOST_OPERATIONS = 1500
"""Beyond so many operations nothing is proven: the program grows with their square."""


@dataclass(frozen=True, slots=True)
class GraphMethod:
    """One way to make a schedule; see `solvers.chain.methods.Method`."""

    name: str
    accepts: str
    promises: str


_MOST_BLOCKS = 400
"""Chains of more blocks are left to eviction: the chain solver keeps to no time limit."""

_ANY = "Any graph."

METHODS = MappingProxyType(
    {
        method.name: method
        for method in (
            GraphMethod(
                "keep-all",
                _ANY,
                "Runs nothing again: no schedule is faster, and in this order none needs more.",
            ),
            GraphMethod(
                "greedy",
                _ANY,
                "Frees what is cheapest to do without when, and where, memory is short; no proof.",
            ),
            GraphMethod(
                "rounding",
                f"Graphs of at most {MOST_OPERATIONS:,} operations.",
                "The best schedule rounded from the relaxation of the staged program, with its "
                "bound.",
            ),
            GraphMethod(
                "blocks",
                "Layers with edges that are a chain of blocks at their articulation points.",
                "The fastest persistent plan over the blocks, each kept by one of its options; of "
                "class forward, where others may be faster.",
            ),
            GraphMethod(
                "intervals",
                "Compute graphs.",
                "The best schedule in which a node is retained at most twice, by constraint "
                "programming; no bound.",
            ),
            GraphMethod(
                "order",
                "Compute graphs.",
                "Runs nothing again, in an order of small peak; no proof where it does not fit.",
            ),
            GraphMethod(
                "staged",
                f"Graphs of at most {MOST_OPERATIONS:,} operations.",
                "The fastest schedule of its class, by the staged program, proven or with a "
                "certified gap.",
            ),
            GraphMethod(
                "exhaustive",
                "Graphs of a dozen operations or so.",
                "The fastest of all schedules, by searching all.",
            ),
            GraphMethod(
                "auto",
                _ANY,
                "The fastest schedule that the methods find together, with the best bound.",
            ),
        )
    }
)
"""Methods by name, baselines first."""


def _greedy(search: Search) -> None:
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
    if isinstance(search.operations.graph, ComputeGraph):
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


def _blocks(search: Search) -> None:
    from solvers.graph.chains.blocks import cuts, solve_blocks

    graph = search.operations.graph
    assert isinstance(graph, LayerGraph)
    blocks = len(cuts(graph))
    if not 2 <= blocks <= _MOST_BLOCKS:
        return
    search.stage = "blocks"
    try:
        found = solve_blocks(graph, search.budget)
    except InvalidProblem:  # the sums of a block may pass 2**62 where those of its layers do not
        return
    if found is None:
        return
    search.offer_steps(found.actions)
    if found.time <= found.lower_bound_time and found.time == search.time:
        search.note = (
            f"optimal among persistent plans over its {found.count} blocks, each kept by one of "
            "its options"
        )


def _intervals(search: Search) -> None:
    from solvers.graph.heuristics.intervals import offer_intervals

    offer_intervals(search, search.remaining())


def _order(search: Search) -> None:
    from solvers.graph.heuristics.order import reorder

    graph = search.operations.graph
    assert isinstance(graph, ComputeGraph)
    search.stage = "order"
    search.offer_steps(reorder(graph, search.budget, interrupted=lambda: search.over))


def _rounding(search: Search) -> None:
    _check_size(search, "rounding")
    from solvers.graph.exact.staged import relax

    relax(search)


def _staged(search: Search) -> None:
    _check_size(search, "staged")
    _prove(search)


def find_best(search: Search) -> None:
    """All methods that suit the graph, one after the other."""
    if len(search.operations) > MOST_OPERATIONS:
        _greedy(search)
        best = "the best of several evictions"
        if not search.over and isinstance(search.operations.graph, LayerGraph):
            _blocks(search)
            best = search.note or best
        search.note = (
            f"{len(search.operations):,} operations are more than the {MOST_OPERATIONS:,} about "
            f"which something can be proven: this plan is {best}"
        )
        return
    _prove(search)


def _prove(search: Search) -> None:
    from solvers.graph.exact.staged import prove

    _greedy(search)
    if not search.over and isinstance(search.operations.graph, LayerGraph):
        _blocks(search)
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


WORK: dict[str, Callable[[Search], None]] = {
    "greedy": _greedy,
    "rounding": _rounding,
    "blocks": _blocks,
    "intervals": _intervals,
    "order": _order,
    "staged": _staged,
    "auto": find_best,
}

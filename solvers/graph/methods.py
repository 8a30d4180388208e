"""The methods of graphs by name: what they accept and promise, and how each is run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from solvers.graph import work
from solvers.graph.lowering import lower
from solvers.graph.problem import ComputeGraph, Graph, LayerGraph
from solvers.graph.schedule import GraphSchedule, Nodes
from solvers.graph.search import Search
from solvers.methods import Limits, Method
from solvers.solution import Infeasible, PlanClass, Solution, Unsuitable

_MOST_STATES = 50_000
"""Of the search over all orders where it is not asked for: seconds."""

_Solved = Solution[GraphSchedule]
_Run = Callable[[Any, int, Limits], _Solved]


def default_class(graph: Graph) -> PlanClass:
    """The class that is solved in where none is asked for."""
    return PlanClass.FORWARD if graph.is_training else PlanClass.STAGED


def solve(graph: Graph, budget: int, *, method: str = "auto", **limits: Any) -> _Solved:
    """The fastest schedule of a method within `budget` bytes.

    `method` is one of `METHODS`, `KeyError` where it is none; `limits` are fields of `Limits`. It
    raises what `Method.solve` does.
    """
    return METHODS[method].solve(graph, budget, Limits(**limits))


def _in_class(name: str, do: Callable[[Search], object] | None) -> _Run:
    """How a method is run that looks in one class and in the given order; None: nothing is done."""

    def run(graph: Graph, budget: int, limits: Limits) -> _Solved:
        if limits.optimal_in is PlanClass.ANY:
            raise Unsuitable(
                f"method {name!r} proves nothing in class 'any'; methods 'auto' and 'exhaustive' do"
            )
        plan_class = limits.optimal_in or default_class(graph)
        search = Search(lower(graph), budget, plan_class, limits)
        _check_floor(search)
        _begin(search, limits.start)
        if do is not None and not search.proven:
            search.run(do)
        return search.solution()

    return run


def _auto(graph: Graph, budget: int, limits: Limits) -> _Solved:
    """All methods together; the order is the solver's where it matters and nothing was asked."""
    if limits.optimal_in is PlanClass.ANY:
        return _any(graph, budget, limits)
    if limits.optimal_in is None and not graph.is_training:
        return _in_free_order(graph, budget, limits)
    return _find_best(graph, budget, limits)


_find_best = _in_class("auto", work.find_best)


def _check_floor(search: Search) -> None:
    operations = search.operations
    floor, operation = operations.floor
    if search.budget < floor:
        set_by = operations.action(operation)
        raise Infeasible(floor, set_by, None, operations.graph.floor_class)


def _begin(search: Search, start: GraphSchedule | None) -> None:
    """Offer what is known beforehand: nothing run again, and the caller's schedule."""
    operations = search.operations
    search.offer(operations.everything())
    if start is not None and operations.follows(operations.runs(start), search.plan_class):
        search.offer_schedule(start)


def _any(graph: Graph, budget: int, limits: Limits) -> _Solved:
    """The optimum over all schedules: of a small graph, or where nothing need run again."""
    from solvers.graph.exact.exhaustive import solve_any

    search = Search(lower(graph), budget, PlanClass.STAGED, limits)
    _begin(search, None)
    if search.time == search.least:
        return search.solution()
    return solve_any(graph, budget, interrupted=lambda: search.over)


def _in_free_order(graph: Any, budget: int, limits: Limits) -> _Solved:
    """Graphs without a backward part: the order matters more than what is run again.

    First an order of small peak; where that is not enough, an annealing of order and runs together,
    and what can be done in its order; where it finds nothing, in that of small peak and in the
    given one. Each claims what it proves for its own order only, so a small graph goes on to the
    search over all schedules.
    """
    from solvers.graph.heuristics.order import original_schedule, reordered

    search = Search(lower(graph), budget, PlanClass.STAGED, limits)
    _check_floor(search)
    _begin(search, limits.start)
    if search.over:
        return search.solution()
    order = work.order(search)
    steps: tuple[int, ...] | None = None

    def anneal(search: Search) -> None:
        nonlocal steps
        steps = work.any_order(search, order)

    if not search.over:
        search.run(anneal)
    if search.over:
        return search.solution()
    if steps is not None:
        order = tuple(dict.fromkeys(steps))
    left = search.remaining()
    if steps is None and left is not None:
        left /= 2
    inner = Search(
        lower(reordered(graph, order)),
        budget,
        PlanClass.STAGED,
        replace(limits, time_limit=left),
    )
    place = {v: k for k, v in enumerate(order)}
    _begin(inner, Nodes(tuple(place[v] for v in steps)) if steps else None)
    inner.run(work.find_best)
    search.stopped = search.stopped or inner.stopped
    if steps is None and not search.over:
        search.run(work.find_best)
    found: _Solved | None = None
    if inner.time is not None and (search.time is None or inner.time <= search.time):
        result: Solution[Any] = inner.solution()
        found = replace(result, schedule=Nodes(original_schedule(order, result.schedule.steps)))
    elif search.time is not None:
        found = search.solution()
    if found is None or found.plan_class is not PlanClass.ANY:
        found = _of_all_orders(search, found) or found
    return found or search.solution()


def _of_all_orders(search: Search, found: _Solved | None) -> _Solved | None:
    """The optimum over all schedules where the graph is small: `found` if that is one.

    Raises
    ------
    Infeasible
        No schedule fits.
    """
    from solvers.graph.exact.exhaustive import solve_any

    graph, answer = search.operations.graph, []

    def look(search: Search) -> None:
        answer.append(
            solve_any(
                graph,
                search.budget,
                most_states=_MOST_STATES,
                interrupted=search.out_of_time,
            )
        )

    search.stage = "all orders"
    try:
        search.run(look)
    except Unsuitable:  # too large
        return None
    except Infeasible as error:
        if error.plan_class is None:
            return None  # interrupted
        raise
    if not answer:
        return None
    (best,) = answer
    if found is not None and found.time == best.time:
        return replace(found, lower_bound_time=best.time, plan_class=PlanClass.ANY)
    return best


def _method(
    name: str,
    accepts: str,
    promises: str,
    run: _Run,
    problems: tuple[type[Graph], ...] = (ComputeGraph, LayerGraph),
) -> Method:
    return Method(name, run, accepts, promises, problems, _TAKES)


_TAKES = frozenset({"time_limit", "optimal_in", "threads"})

_ANY = "Any graph."

METHODS = MappingProxyType(
    {
        method.name: method
        for method in (
            _method(
                "keep-all",
                _ANY,
                "Runs nothing again: no schedule is faster, and in this order none needs more.",
                _in_class("keep-all", None),
            ),
            _method(
                "greedy",
                _ANY,
                "Frees what is cheapest to do without when, and where, memory is short; no proof.",
                _in_class("greedy", work.greedy),
            ),
            _method(
                "rounding",
                f"Graphs of at most {work.MOST_OPERATIONS:,} operations.",
                "The best schedule rounded from the relaxation of the staged program, with its "
                "bound.",
                _in_class("rounding", work.rounding),
            ),
            _method(
                "blocks",
                "Layers with edges that are a chain of blocks at their articulation points.",
                "The fastest persistent plan over the blocks, each kept by one of its options; of "
                "class forward, where others may be faster.",
                _in_class("blocks", work.blocks),
                (LayerGraph,),
            ),
            _method(
                "intervals",
                "Compute graphs.",
                "The best schedule in which a node is retained at most twice, by constraint "
                "programming; no bound.",
                _in_class("intervals", work.intervals),
                (ComputeGraph,),
            ),
            _method(
                "order",
                "Compute graphs.",
                "Runs nothing again, in an order of small peak; no proof where it does not fit.",
                _in_class("order", work.order),
                (ComputeGraph,),
            ),
            _method(
                "staged",
                f"Graphs of at most {work.MOST_OPERATIONS:,} operations.",
                "The fastest schedule of its class, by the staged program, proven or with a "
                "certified gap.",
                _in_class("staged", work.staged),
            ),
            _method(
                "exhaustive",
                "Graphs of a dozen operations or so.",
                "The fastest of all schedules, by searching all.",
                _any,
            ),
            _method(
                "auto",
                _ANY,
                "The fastest schedule that the methods find together, with the best bound.",
                _auto,
            ),
        )
    }
)
"""Methods by name, baselines first."""

"""What a compiled step keeps within a budget: the search's answer, or the best of what is known."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from scheduler.common.errors import InfeasibleBudget, NoPlanFound
from scheduler.common.text import format_bytes
from scheduler.pytorch.compile.choice import Answer, StepChoice, StepGraph, front, ladder, play
from scheduler.pytorch.compile.exact import quickest, smallest

__all__ = ["choose"]


def choose(
    graph: StepGraph,
    budget: int,
    effort: float,
    others: Callable[[], Iterable[StepChoice]] = tuple,
) -> Answer:
    """The choice of least time within `budget` bytes.

    What is not proven is the best of `ladder` and of `others`, even where the search found better:
    so that it does not depend on the budget, and a larger one never makes it slower.

    Parameters
    ----------
    graph, budget
        The step, and the bytes it may take.
    effort
        CP-SAT's deterministic seconds for each of at most two searches.
    others
        More choices, whatever the budget; asked where the search ends without a proof.

    Raises
    ------
    InfeasibleBudget
        Nothing fits, which is proven.
    NoPlanFound
        Nothing was found.
    """
    everything = play(graph, graph.free)
    if everything.peak_bytes <= budget:
        return Answer(everything, True, everything.again_time)
    rungs = ladder(graph)
    start = _fitting(rungs, budget)
    if start is not None and start.again_time == everything.again_time:
        return Answer(start, True, start.again_time)  # nothing runs again that need not
    found, proven, bound = quickest(graph, budget, start, effort)
    if found is not None and proven:
        return Answer(found, True, found.again_time)
    if not proven:
        pool = front([*rungs, *others()])
        best = _fitting(pool, budget) or found
        if best is not None:
            # Where the bound meets what another method found, that is the proof.
            return Answer(best, best.again_time <= bound, min(bound, best.again_time))
        rungs = pool
    least, sure = smallest(graph, rungs[0], effort)
    if least.peak_bytes <= budget:
        return Answer(least, False, min(bound, least.again_time))
    if sure:
        raise InfeasibleBudget(budget, least.peak_bytes, least.set_by)
    raise NoPlanFound(
        f"found no choice of what to keep within {format_bytes(budget)}: the smallest peak found "
        f"is {least.peak_bytes} bytes ({format_bytes(least.peak_bytes)}), set by {least.set_by}; "
        "give that much, or a larger effort"
    )


def _fitting(choices: list[StepChoice], budget: int) -> StepChoice | None:
    """The quickest that fits, of a `front`."""
    return next((choice for choice in reversed(choices) if choice.peak_bytes <= budget), None)

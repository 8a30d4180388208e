"""What a compiled step keeps within a budget: the search's answer, or the best of what is known."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from scheduler.common.errors import InfeasibleBudget, NoPlanFound
from scheduler.common.text import format_bytes, format_smallest
from scheduler.pytorch.compile.choice import StepChoice, StepGraph, front, ladder, play
from scheduler.pytorch.compile.exact import quickest, smallest
from scheduler.pytorch.compile.layered import Layered
from scheduler.report.tables import format_percent

_SEARCHED = 120  # free operations of a graph of layers that is still searched as a whole


@dataclass(frozen=True)
class Answer:
    """What was chosen, and what is known of it.

    Attributes
    ----------
    choice
        It fits the budget.
    proven
        No choice within the budget runs less again.
    least_time
        Femtoseconds that every choice within the budget runs again, proven; `choice.again_time`
        where that is proven the best.
    """

    choice: StepChoice
    proven: bool
    least_time: int


@dataclass(frozen=True)
class CompiledPlan:
    """What was chosen for one joint graph.

    Attributes
    ----------
    budget_bytes
        As given.
    peak_bytes
        Predicted: most bytes live at once of everything but parameters, buffers and optimizer
        state, while the compiled forward and backward run.
    keep_all_bytes
        The same when everything that the backward reads is kept.
    kept, recomputed
        Operations of the joint graph, by name.
    recomputed_share
        Time that runs again, as a share of the forward's.
    least_share
        Proven: every choice within the budget runs at least this share again.
    status
        "optimal": no choice within the budget runs less again, which is proven; both shares are
        the same. "feasible": fits; what runs again is between `least_share` and
        `recomputed_share` at best.
    set_by
        What runs at the peak, as part of a sentence.
    """

    budget_bytes: int
    peak_bytes: int
    keep_all_bytes: int
    kept: tuple[str, ...]
    recomputed: tuple[str, ...]
    recomputed_share: float
    least_share: float
    status: str
    set_by: str

    @classmethod
    def of(cls, step: StepGraph, answer: Answer, budget: int) -> CompiledPlan:
        """What an answer says of a step."""
        choice = answer.choice
        return cls(
            budget,
            choice.peak_bytes,
            play(step, step.free).peak_bytes,
            tuple(step.early[i].name for i in choice.kept),
            tuple(step.early[i].name for i in choice.again),
            choice.again_time / max(step.forward_time, 1),
            answer.least_time / max(step.forward_time, 1),
            "optimal" if answer.proven else "feasible",
            choice.set_by,
        )

    def __str__(self) -> str:
        """One line."""
        proven = self.status == "optimal"
        least = "" if proven else f" (at least {format_percent(self.least_share)})"
        return (
            f"peak {format_bytes(self.peak_bytes)} of {format_bytes(self.budget_bytes)} (keep all: "
            f"{format_bytes(self.keep_all_bytes)}), {len(self.recomputed)} operations run again: "
            f"+{format_percent(self.recomputed_share)} of the forward, {self.status}{least}"
        )


def choose(
    graph: StepGraph,
    budget: int,
    effort: float,
    others: Callable[[], Iterable[StepChoice]] = tuple,
) -> Answer:
    """The choice of least time within `budget` bytes.

    A graph of layers is solved by them (`Layered`), and searched as a whole only where that leaves
    a gap and the graph is small. What is not proven is the best of the layers' choices, of `ladder`
    and, but for large graphs of layers, of `others`, even where the search found better: so that it
    does not depend on the budget, and a larger one never makes it slower.

    `effort` is CP-SAT's deterministic seconds for each of at most two searches. `others`: more
    choices, whatever the budget, asked for where the search ends without a proof.

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
    layered = Layered.of(graph)
    pool: list[StepChoice] = []
    bound = 0
    if layered is not None:
        bound = layered.least_time(budget) or 0
        if choice := layered.choice(budget):
            pool.append(choice)
            if choice.again_time <= bound:
                return Answer(choice, True, bound)
    pool = front([*pool, *ladder(graph)])
    start = _fitting(pool, budget)
    if start is not None and start.again_time == everything.again_time:
        return Answer(start, True, start.again_time)  # nothing runs again that need not
    if layered is not None and len(graph.free) > _SEARCHED:
        return _of_layers(layered, pool, budget, bound)
    found, proven, searched = quickest(graph, budget, start, effort)
    bound = max(bound, searched)
    if found is not None and proven:
        return Answer(found, True, found.again_time)
    if not proven:
        pool = front([*pool, *others()])
        best = _fitting(pool, budget) or found
        if best is not None:
            # Where the bound meets what another method found, that is the proof.
            return Answer(best, best.again_time <= bound, min(bound, best.again_time))
    least, sure = smallest(graph, pool[0], effort)
    if least.peak_bytes <= budget:
        return Answer(least, False, min(bound, least.again_time))
    if sure:
        raise InfeasibleBudget(budget, least.peak_bytes, least.set_by)
    raise _not_found(budget, least)


def _of_layers(layered: Layered, pool: list[StepChoice], budget: int, bound: int) -> Answer:
    """The best of what is known of a graph that is too large to be searched as a whole."""
    best = _fitting(pool, budget)
    if best is not None:
        return Answer(best, best.again_time <= bound, min(bound, best.again_time))
    least = min([pool[0], layered.smallest() or pool[0]], key=lambda choice: choice.peak_bytes)
    if least.peak_bytes <= layered.least_peak():
        raise InfeasibleBudget(budget, least.peak_bytes, least.set_by)
    raise _not_found(budget, least)


def _not_found(budget: int, least: StepChoice) -> NoPlanFound:
    return NoPlanFound(
        f"found no choice of what to keep within {format_bytes(budget)}: the smallest peak found "
        f"is {format_smallest(least.peak_bytes)}, set by {least.set_by}; "
        "give that much, or a larger effort"
    )


def _fitting(choices: list[StepChoice], budget: int) -> StepChoice | None:
    """The quickest that fits, of a `front`."""
    return next((choice for choice in reversed(choices) if choice.peak_bytes <= budget), None)

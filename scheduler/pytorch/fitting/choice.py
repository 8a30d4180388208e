"""What was chosen for a training step within a budget, and the words for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from scheduler.api import solve
from scheduler.common.errors import InfeasibleBudget, NoPlanFound
from scheduler.common.text import counted, format_both, format_bytes, format_smallest
from scheduler.costs.costgraph import CostGraph
from scheduler.memory.fitting.facts import FRAGMENTATION
from scheduler.memory.state.state import State
from scheduler.planning.request import Budget
from scheduler.plans.plan import Plan
from scheduler.pytorch.verification.measure import Measurement
from scheduler.pytorch.verification.verdict import Verification
from scheduler.report.tables import format_percent

UPDATE = "the optimizer's step"


@dataclass(frozen=True)
class Request:
    """What is planned for; all sizes in bytes.

    Attributes
    ----------
    costs
        Of one step.
    state
        What is held from step to step.
    buckets_bytes
        What DistributedDataParallel holds beside gradients.
    margin_bytes
        What is set aside for memory that is no tensor's.
    margin_grows
        Whether `FRAGMENTATION` of the budget is a part of it, which grows with the budget.
    update_bytes
        What is live in the optimizer's step beside what is reserved, whatever the plan.
    smaller_moments_bytes
        What the optimizer would hold in 8 bits; None where it has no such form.
    time_limit
        Seconds that the plan of a graph may take.
    """

    budget_bytes: int
    costs: CostGraph
    state: State
    buckets_bytes: int
    margin_bytes: int
    update_bytes: int
    smaller_moments_bytes: int | None
    time_limit: float
    margin_grows: bool = False

    @property
    def reserved_bytes(self) -> int:
        """What comes off the budget before solving."""
        return self.state.total_bytes + self.buckets_bytes + self.margin_bytes

    @property
    def reserved_for(self) -> str:
        """What that is for, as part of a sentence."""
        rows = [*self.state.rows(), ("buckets", self.buckets_bytes), ("margin", self.margin_bytes)]
        parts = [f"{name} {format_bytes(size)}" for name, size in rows if size]
        return f"state {format_bytes(self.state.total_bytes)}: {', '.join(parts)}"

    def solve(self, less: int = 0) -> Plan:
        """The fastest plan, with so much `less` reserved.

        Raises
        ------
        InfeasibleBudget
            None fits, the optimizer's step included.
        """
        size = self._size(less)
        of_update = size.smallest(self.update_bytes)
        limit = None if self.costs.edges is None else self.time_limit
        try:
            plan = solve(self.costs, budget=size, time_limit=limit)
        except InfeasibleBudget as error:
            said: dict[str, object] = {}
            if of_update >= error.smallest_budget_bytes:
                said = {"smallest_budget_bytes": of_update, "set_by": UPDATE}
            raise error.reserving(self.reserved_for, **said) from None
        if of_update > size.asked:
            raise InfeasibleBudget(
                size.asked, of_update, UPDATE, size.reserved, reserved_for=self.reserved_for
            )
        return plan

    def _size(self, less: int = 0) -> Budget:
        """The budget, with so much `less` reserved."""
        percent = FRAGMENTATION if self.margin_grows else 0
        return Budget(self.budget_bytes, self.reserved_bytes - less, percent)

    def smallest_text(self, needed: int, less: int = 0) -> str:
        """The smallest budget that leaves `needed` bytes for a step, with so much less reserved."""
        return format_smallest(self._size(less).smallest(needed), self.budget_bytes)

    def best(self) -> Plan:
        """The fastest plan; where none fits, the error says what would lower the budget, too."""
        try:
            return self.solve()
        except InfeasibleBudget as error:
            said = "; ".join(self._lowers(error))
            raise error.reserving(error.reserved_for, lowered_by=said) from None

    def _lowers(self, error: InfeasibleBudget) -> Iterator[str]:
        if less := self.less_in_8_bits:
            # What a step needs does not depend on what is reserved.
            needed = self._size().at(error.smallest_budget_bytes).available
            yield f"an 8-bit optimizer would need {self.smallest_text(needed, less)}"
        last = self.costs.layers[-1].name
        if error.set_by == UPDATE:
            yield "an optimizer made with fused=True, or foreach=False, needs less in its step"
        elif repr(last) in error.set_by:
            yield "a loss that is computed in chunks needs less"
        yield "a smaller batch, with its gradients accumulated, needs less for activations"

    @property
    def less_in_8_bits(self) -> int:
        """By how much an optimizer of 8 bits would hold less."""
        if self.smaller_moments_bytes is None:
            return 0
        return max(self.state.moments_bytes - self.smaller_moments_bytes, 0)


@dataclass(frozen=True)
class Choice:
    """A plan for a request, with what was found of its step.

    Attributes
    ----------
    found
        The step as it was measured under the plan, or compared with one without; None: it was not.
    notes
        What else was done or left out, in sentences without their full stop.
    """

    request: Request
    plan: Plan
    estimated: bool
    found: Measurement | Verification | None = None
    notes: tuple[str, ...] = ()

    @property
    def peak_bytes(self) -> int:
        """The most that is ever in memory, all that is reserved included."""
        return max(self.plan.peak_bytes, self.request.update_bytes) + self.request.reserved_bytes

    @property
    def set_by(self) -> str:
        """What needs that much."""
        if self.request.update_bytes > self.plan.peak_bytes:
            return UPDATE
        return self.plan.replay().set_by

    def line(self) -> str:
        """The choice in one line."""
        plan, asked = self.plan, self.request
        again = sum(count > 1 for count in plan.forwards.values())
        least = "loses" if plan.status == "optimal" else "(not proven to be the least) loses"
        return (
            f"checkpointing of {asked.costs.name}: {again} of {counted(len(plan.layers), 'layer')} "
            f"run again, {least} {format_percent(plan.overhead)} of a step's time; peak "
            f"{format_bytes(self.peak_bytes)} within {format_both(asked.budget_bytes)}"
        )

    def paragraph(self) -> str:
        """What was chosen, its peak and its time, what sets the peak, and what would help most."""
        plan, asked = self.plan, self.request
        options = len(plan.schedule.options())
        kept = f", {counted(options, 'block')} kept in part" if options else ""
        times = "estimated" if self.estimated else "measured"
        sentences = [
            f"{self.line()}.",
            f"It is the plan of a {plan.kind} ({plan.standing}{kept}; times {times}).",
            f"Of the budget {format_bytes(asked.reserved_bytes)} are set aside "
            f"({asked.reserved_for}; {asked.state.recipe}); the peak is set by {self.set_by}.",
        ]
        if self.found is not None:
            compared = "" if isinstance(self.found, Measurement) else "compared with one without, "
            what = f"The step was {compared}measured at {format_bytes(self.found.peak_bytes)}"
            sentences.append(f"{what}, where the plan has {format_bytes(plan.peak_bytes)}.")
        sentences.append(f"{self._help()}.")
        sentences += [f"{note[0].upper()}{note[1:]}." for note in self.notes]
        return " ".join(sentences)

    def _help(self) -> str:
        """What would make the step lose less."""
        plan, asked = self.plan, self.request
        if not plan.overhead:
            return "Nothing is lost, so nothing would help"
        whole = asked.smallest_text(max(plan.keep_all_peak_bytes, asked.update_bytes))
        all_kept = f"with {whole} nothing would be lost"
        if less := asked.less_in_8_bits:
            try:
                other = asked.solve(less)
            except (InfeasibleBudget, NoPlanFound):
                other = plan
            if other.overhead < plan.overhead:
                return (
                    f"What would help most: an 8-bit optimizer ({format_bytes(less)} less), with "
                    f"which {format_percent(other.overhead)} are lost; {all_kept}"
                )
        if repr(plan.layers[-1]) in self.set_by:
            return f"What would help most: a loss computed in chunks; {all_kept}"
        return f"What would help most: a smaller batch, gradients accumulated; {all_kept}"

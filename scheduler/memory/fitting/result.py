"""The face of what `fit` finds: the figures, and what a person reads of them."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.common.errors import InfeasibleBudget
from scheduler.memory.fitting.facts import FitFacts
from scheduler.memory.fitting.text import conclusion, fit_lines, smallest_text

__all__ = ["Fit"]


@dataclass(frozen=True, repr=False)
class Fit(FitFacts):
    """What a training step needs on one GPU, and what it has; made by `fit`.

    Printed, it is one screen; `FitFacts` lists its figures, `to_dict` gives them as JSON values.
    """

    def conclusion(self) -> str:
        """Fits or not, in a sentence without its full stop."""
        return conclusion(self)

    def smallest_text(self) -> str:
        """The smallest feasible budget, apart from the budget where both read the same."""
        return smallest_text(self)

    def infeasible(self) -> InfeasibleBudget:
        """The error that says what a fit without a plan says."""
        return InfeasibleBudget(
            self.budget_bytes, self.smallest_budget_bytes, self.set_by, self.reserved_bytes
        )

    def __repr__(self) -> str:
        return (
            f"<Fit: {self.shape.name}, batch {self.batch} × {self.sequence} on "
            f"{self.training.gpu.name}, {self.conclusion()}>"
        )

    def __str__(self) -> str:
        return "\n".join(fit_lines(self))

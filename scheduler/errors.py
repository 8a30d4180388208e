"""What can go wrong, each said in one sentence: what is wrong, where, and what to do."""

from __future__ import annotations

from scheduler.text import format_both, format_bytes

__all__ = [
    "InfeasibleBudget",
    "InvalidBudget",
    "InvalidCosts",
    "InvalidPlan",
    "SchedulerError",
    "UnknownMethod",
    "UnsuitableMethod",
    "UnsupportedModel",
]


class SchedulerError(Exception):
    """Base of every error that this package raises on purpose."""


class InvalidCosts(SchedulerError, ValueError):
    """Costs that have no meaning; the message names the layer and the field."""


class InvalidBudget(SchedulerError, ValueError):
    """A budget, or another size, that is missing, ambiguous or not a positive size."""


class InvalidPlan(SchedulerError, ValueError):
    """A plan that cannot be executed on its costs."""


class UnknownMethod(SchedulerError, ValueError):
    """No method has this name."""


class UnsuitableMethod(SchedulerError, ValueError):
    """The method exists but does not accept these costs."""


class UnsupportedModel(SchedulerError, ValueError):
    """A model whose blocks cannot be found, measured or checkpointed as asked."""


class InfeasibleBudget(SchedulerError):
    """No plan of the method fits the budget.

    Parameters
    ----------
    budget_bytes
        The budget that was asked for.
    smallest_budget_bytes
        The smallest budget for which the method has a plan, `reserved_bytes` included.
    set_by
        What needs that much, as part of a sentence: ``the backward of 'head'``.
    reserved_bytes
        Bytes of both budgets that were set aside before solving.
    method
        The method that was asked.
    """

    def __init__(
        self,
        budget_bytes: int,
        smallest_budget_bytes: int,
        set_by: str,
        reserved_bytes: int = 0,
        method: str = "optimal",
    ) -> None:
        self.budget_bytes = budget_bytes
        self.smallest_budget_bytes = smallest_budget_bytes
        self.set_by = set_by
        self.reserved_bytes = reserved_bytes
        self.method = method
        super().__init__(self._sentence())

    def _sentence(self) -> str:
        best = self.method == "optimal"
        plan = "plan" if best else f"plan of method {self.method!r}"
        reserved = (
            f" ({format_bytes(self.reserved_bytes)} of it reserved)" if self.reserved_bytes else ""
        )
        advice = "" if best else "; method 'optimal' may need less"
        return (
            f"no {plan} fits a budget of {format_both(self.budget_bytes)}{reserved}: "
            f"the smallest feasible budget is {self.smallest_budget_bytes} bytes "
            f"({format_bytes(self.smallest_budget_bytes)}), set by {self.set_by}{advice}"
        )

    def __reduce__(self) -> tuple[type[InfeasibleBudget], tuple[int, int, str, int, str]]:
        # The default passes the finished sentence back as the first argument.
        arguments = (
            self.budget_bytes,
            self.smallest_budget_bytes,
            self.set_by,
            self.reserved_bytes,
            self.method,
        )
        return (type(self), arguments)

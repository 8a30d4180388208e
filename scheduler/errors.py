"""What can go wrong, each said in one sentence: what is wrong, where, and what to do."""

from __future__ import annotations

from scheduler.text import format_both, format_bytes

__all__ = [
    "InfeasibleBudget",
    "InfeasibleGraph",
    "InvalidBudget",
    "InvalidCosts",
    "InvalidPlan",
    "NoPlanFound",
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
        advice = "" if best else "; method 'optimal' may need less"
        return (
            f"no {plan} fits a budget of {_budget_text(self.budget_bytes, self.reserved_bytes)}: "
            f"the smallest feasible budget is {self.smallest_budget_bytes} bytes "
            f"({format_bytes(self.smallest_budget_bytes)}), set by {self.set_by}{advice}"
        )

    def __reduce__(self) -> tuple[type[InfeasibleBudget], tuple[object, ...]]:
        # The default passes the finished sentence back as the first argument.
        arguments = (
            self.budget_bytes,
            self.smallest_budget_bytes,
            self.set_by,
            self.reserved_bytes,
            self.method,
        )
        return (type(self), arguments)


class InfeasibleGraph(InfeasibleBudget):
    """No plan of a graph fits the budget, which is proven: of one class of plans, or of all.

    What the smallest feasible budget is, is not known of a graph: `smallest_budget_bytes` is the
    floor, below which no plan of any class exists.

    Parameters
    ----------
    budget_bytes
        The budget that was asked for.
    smallest_budget_bytes
        What the one operation that needs the most takes, `reserved_bytes` included.
    set_by
        That operation, as part of a sentence: ``the computation of 'conv1'``.
    reserved_bytes
        Bytes of both budgets that were set aside before solving.
    method
        The method that was asked.
    plan_class
        The class in which nothing fits; None: the budget is below the floor of all classes.
    """

    def __init__(
        self,
        budget_bytes: int,
        smallest_budget_bytes: int,
        set_by: str,
        reserved_bytes: int = 0,
        method: str = "auto",
        plan_class: str | None = None,
    ) -> None:
        self.plan_class = plan_class
        super().__init__(budget_bytes, smallest_budget_bytes, set_by, reserved_bytes, method)

    def _sentence(self) -> str:
        budget = _budget_text(self.budget_bytes, self.reserved_bytes)
        floor = f"{self.smallest_budget_bytes} bytes ({format_bytes(self.smallest_budget_bytes)})"
        if self.plan_class is None:
            reserve = ", the reserve included" if self.reserved_bytes else ""
            return (
                f"no plan fits a budget of {budget}: {self.set_by} alone needs {floor}{reserve}; "
                "give at least that much"
            )
        wider = "" if self.plan_class == "any" else " or a wider class of plans (optimal_in)"
        return (
            f"no plan of class {self.plan_class!r} fits a budget of {budget}, which is proven: "
            f"the floor of all plans is {floor}, set by {self.set_by}, but this class needs more; "
            f"try a larger budget{wider}"
        )

    def __reduce__(self) -> tuple[type[InfeasibleGraph], tuple[object, ...]]:
        arguments = (
            self.budget_bytes,
            self.smallest_budget_bytes,
            self.set_by,
            self.reserved_bytes,
            self.method,
            self.plan_class,
        )
        return (type(self), arguments)


class NoPlanFound(SchedulerError):
    """The search ended without a plan, and without a proof that there is none."""


def _budget_text(budget_bytes: int, reserved_bytes: int) -> str:
    reserved = f" ({format_bytes(reserved_bytes)} of it reserved)" if reserved_bytes else ""
    return f"{format_both(budget_bytes)}{reserved}"

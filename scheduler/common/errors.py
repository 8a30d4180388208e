"""What can go wrong, each said in one sentence: what is wrong, where, and what to do."""

from __future__ import annotations

from typing import Any

from scheduler.common.text import format_both, format_bytes, format_smallest

__all__ = [
    "BUG",
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

BUG = "this is a bug of checkpoint-scheduler, please report it with the costs"


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
    reserved_for
        What is reserved, as part of a sentence: ``state 104.7 GiB, margin 2 GiB``.
    lowered_by
        What would lower the smallest budget, as the end of the sentence.
    """

    def __init__(
        self,
        budget_bytes: int,
        smallest_budget_bytes: int,
        set_by: str,
        reserved_bytes: int = 0,
        method: str = "optimal",
        reserved_for: str = "",
        lowered_by: str = "",
    ) -> None:
        self.budget_bytes = budget_bytes
        self.smallest_budget_bytes = smallest_budget_bytes
        self.set_by = set_by
        self.reserved_bytes = reserved_bytes
        self.method = method
        self.reserved_for = reserved_for
        self.lowered_by = lowered_by
        lowered = f"; {lowered_by}" if lowered_by else ""
        super().__init__(f"{self._sentence()}{lowered}")

    def reserving(self, reserved_for: str, **others: object) -> InfeasibleBudget:
        """The same error, which says what is reserved; `others` are parameters as well."""
        return type(self)(**{**self._said(), **others, "reserved_for": reserved_for})

    def _said(self) -> dict[str, Any]:
        from inspect import signature

        return {name: getattr(self, name) for name in signature(type(self)).parameters}

    def _sentence(self) -> str:
        best = self.method == "optimal"
        plan = "plan" if best else f"plan of method {self.method!r}"
        advice = "" if best else "; method 'optimal' may need less"
        budget = _budget_text(self.budget_bytes, self.reserved_bytes, self.reserved_for)
        return (
            f"no {plan} fits a budget of {budget}: "
            f"the smallest feasible budget is {self._smallest()}, set by {self.set_by}{advice}"
        )

    def _smallest(self) -> str:
        return format_smallest(self.smallest_budget_bytes, self.budget_bytes)

    def __reduce__(self) -> tuple[type[InfeasibleBudget], tuple[object, ...]]:
        # The default passes the finished sentence back as the first argument.
        return type(self), tuple(self._said().values())


class InfeasibleGraph(InfeasibleBudget):
    """No plan of a graph fits the budget, which is proven: of one class of plans, or of all.

    What the smallest feasible budget is, is not known of a graph: `smallest_budget_bytes` is the
    floor, below which there is no plan.

    Parameters
    ----------
    budget_bytes, reserved_bytes, method, reserved_for, lowered_by
        As of `InfeasibleBudget`.
    smallest_budget_bytes
        What the one operation that needs the most takes, `reserved_bytes` included; of method
        "keep-all" what keeping everything takes.
    set_by
        That operation, as part of a sentence: ``the computation of 'conv1'``.
    plan_class
        The class in which nothing fits; None: the budget is below the floor of all classes, or
        the method is "keep-all", which has one plan.
    in_order
        The floor is that of plans that run the layers' backwards in the given order; in another
        order an operation may need less.
    """

    def __init__(
        self,
        budget_bytes: int,
        smallest_budget_bytes: int,
        set_by: str,
        reserved_bytes: int = 0,
        method: str = "auto",
        plan_class: str | None = None,
        in_order: bool = False,
        reserved_for: str = "",
        lowered_by: str = "",
    ) -> None:
        self.plan_class = plan_class
        self.in_order = in_order
        asked = budget_bytes, smallest_budget_bytes, set_by, reserved_bytes, method
        super().__init__(*asked, reserved_for, lowered_by)

    def _sentence(self) -> str:
        budget = _budget_text(self.budget_bytes, self.reserved_bytes, self.reserved_for)
        floor = self._smallest()
        reserve = ", the reserve included" if self.reserved_bytes else ""
        if self.method == "keep-all" and self.plan_class is None:
            return (
                f"keeping everything does not fit a budget of {budget}: it needs {floor}{reserve}, "
                f"set by {self.set_by}; method 'auto' may need less"
            )
        of_class = f" of class {self.plan_class!r}" if self.plan_class else ""
        if self.is_below_floor:
            order, advice = "", ""
            if self.in_order:
                order = "in this order of layers "
                advice = ", or try other orders of a small graph with optimal_in 'any'"
            return (
                f"no plan{of_class} fits a budget of {budget}: {order}{self.set_by} alone needs "
                f"{floor}{reserve}; give at least that much{advice}"
            )
        wider = "" if self.plan_class == "any" else " or a wider class of plans (optimal_in)"
        which = "in this order of layers" if self.in_order else "of all plans"
        return (
            f"no plan{of_class} fits a budget of {budget}{self.order}, which is proven: "
            f"the floor {which} is {floor}, set by {self.set_by}, but this class needs more; "
            f"try a larger budget{wider}"
        )

    @property
    def order(self) -> str:
        """What limits the proof to one order of a compute graph's nodes, as part of a sentence."""
        free = self.in_order or self.is_below_floor or self.plan_class == "any"
        return "" if free else " in the given order of nodes"

    @property
    def is_below_floor(self) -> bool:
        """Whether one operation alone needs more than the budget."""
        return self.plan_class is None or self.budget_bytes < self.smallest_budget_bytes


class NoPlanFound(SchedulerError):
    """The search ended without a plan, and without a proof that there is none.

    Parameters
    ----------
    message
        The sentence.
    out_of_time
        The time limit ended it, so that more time may help.
    """

    def __init__(self, message: str, *, out_of_time: bool = False) -> None:
        super().__init__(message)
        self.out_of_time = out_of_time


def _budget_text(budget_bytes: int, reserved_bytes: int, reserved_for: str = "") -> str:
    budget = format_both(budget_bytes)
    if not reserved_bytes:
        return budget
    size = format_bytes(reserved_bytes)
    if reserved_bytes >= budget_bytes:
        what = f" ({reserved_for})" if reserved_for else ""
        return f"{budget}, less than the {size} that are reserved{what}"
    what = f": {reserved_for}" if reserved_for else ""
    return f"{budget} ({size} of it reserved{what})"

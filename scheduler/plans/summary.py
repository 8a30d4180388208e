"""What is known of a plan, in words."""

from __future__ import annotations

from scheduler.common.text import format_both, format_bytes, format_time
from scheduler.plans.facts import PlanFacts
from scheduler.plans.text import labelled
from scheduler.report.table import format_percent

__all__ = ["summary_lines"]


def summary_lines(plan: PlanFacts, set_by: str | None = None) -> list[str]:
    """What is known of a plan, each figure beside its label; `set_by` is what sets its peak."""
    unit = plan.time_unit
    lines = [
        (
            "time",
            f"{format_time(plan.time, unit)} a step, {format_percent(plan.overhead)} over the "
            f"{format_time(plan.keep_all_time, unit)} for keeping everything",
        ),
        (
            "peak",
            f"{format_bytes(plan.peak_bytes)}; keeping everything needs "
            f"{format_bytes(plan.keep_all_peak_bytes)}",
        ),
    ]
    if set_by is not None:
        lines.append(("", f"set by {set_by}"))
    if plan.budget_bytes is not None:
        reserved = (
            f", {format_both(plan.reserved_bytes)} of it reserved" if plan.reserved_bytes else ""
        )
        lines.append(("budget", f"{format_both(plan.budget_bytes)}{reserved}"))
    lines += [
        (
            "status",
            f"{plan.standing}; {plan.bound_words} within the budget takes less than "
            f"{format_time(plan.lower_bound_time, unit)} (gap {format_percent(plan.gap)})",
        ),
        ("method", f"{plan.method}, {plan.size}"),
    ]
    if plan.solve_seconds is not None:
        lines.append(("solved", f"in {plan.solve_seconds:.3f} s"))
    if plan.note:
        lines.append(("note", plan.note))
    return labelled(lines)

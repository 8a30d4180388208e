"""A graph's plan in words: what is proven, what is recomputed and how often, and its steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from scheduler.common.text import format_time
from scheduler.plans.text import cost_lines, labelled
from scheduler.report.tables import aligned, format_percent
from solvers.graph.replay import LayerAction, LayerForward

if TYPE_CHECKING:
    from scheduler.plans.graphplan import GraphPlan

__all__ = ["graph_step_text", "graph_summary_lines", "operation_text", "recomputed_lines"]

MOST_ROWS = 20
"""Rows shown of what is recomputed; what follows is counted."""


def graph_summary_lines(plan: GraphPlan, set_by: str | None) -> list[str]:
    """What is known of a plan, each figure beside its label; `set_by` is what sets its peak."""
    lines = cost_lines(plan)
    if set_by is not None:
        lines.insert(2, ("", f"set by {set_by}"))
    order = " in this order of first runs" if plan.has_own_order else ""
    which = f"no plan of class {plan.plan_class}{order if plan.plan_class != 'any' else ''}"
    lines.append(
        (
            "status",
            f"{plan.standing}; {which} within the budget takes less than "
            f"{format_time(plan.lower_bound_time, plan.time_unit)} "
            f"(gap {format_percent(plan.gap)})",
        )
    )
    lines.append(("method", f"{plan.method}, {_count(len(plan.layers), plan.noun)}"))
    if plan.solve_seconds is not None:
        lines.append(("solved", f"in {plan.solve_seconds:.3f} s"))
    if plan.note:
        lines.append(("note", plan.note))
    return labelled(lines)


def recomputed_lines(plan: GraphPlan, most: int = MOST_ROWS) -> list[str]:
    """What runs more than once and how often, neighbours in one row, at most `most` rows."""
    counts = list(plan.forwards.values())
    again = [i for i, count in enumerate(counts) if count > 1]
    if not again:
        return ["Nothing is recomputed."]
    verb = "run" if plan.noun == "layer" else "computed"
    head = (
        f"{len(again)} of {_count(len(counts), plan.noun)} {verb} more than once, "
        f"{_count(sum(counts[i] - 1 for i in again), 'extra run')} in all:"
    )
    starts = [i for i in again if not i or counts[i] != counts[i - 1]]
    rows = []
    for start in starts[:most]:
        end = start
        while end + 1 < len(counts) and counts[end + 1] == counts[start]:
            end += 1
        first, last = plan.layers[start], plan.layers[end]
        rows.append((first if start == end else f"{first}–{last}", f"{counts[start]} times"))
    lines = [head, *(f"  {line}" for line in aligned(rows, left=2))]
    hidden = len(starts) - most
    return [*lines, f"  … {_count(hidden, 'more row')}"] if hidden > 0 else lines


def operation_text(step: int | LayerAction, names: Sequence[str]) -> str:
    """What a step runs, as part of a sentence: ``the backward of 'head'``."""
    if isinstance(step, int):
        return f"the computation of {names[step]!r}"
    kind = "forward" if isinstance(step, LayerForward) else "backward"
    return f"the {kind} of {names[step.layer]!r}"


def graph_step_text(step: int | LayerAction, names: Sequence[str]) -> str:
    """A step of a plan: ``compute 'conv1'``, ``forward 'enc.0', keeping``."""
    if isinstance(step, int):
        return f"compute {names[step]!r}"
    if isinstance(step, LayerForward):
        return f"forward {names[step.layer]!r}{', keeping' if step.keep else ''}"
    return f"backward {names[step.layer]!r}"


def _count(number: int, what: str) -> str:
    return f"1 {what}" if number == 1 else f"{number} {what}s"

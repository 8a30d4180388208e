"""A plan in words: its items as rows, runs of equal ones folded, and its actions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from typing import TYPE_CHECKING, NamedTuple

from scheduler.common.text import format_both, format_bytes, format_time
from scheduler.report.tables import aligned, format_percent
from solvers.schedule import (
    Action,
    Backward,
    Checkpoint,
    Forward,
    Hold,
    Item,
    Keep,
    first_of,
    last_of,
)

if TYPE_CHECKING:
    from scheduler.plans.plan import Plan

__all__ = ["FoldedRow", "cost_lines", "folded_rows", "indented", "item_lines", "labelled"]
__all__ += ["peak_text", "step_text", "summary_lines"]

MOST_ROWS = 30
"""Rows shown of a plan; what follows is counted."""

_DEEPEST_INDENT = 12


class FoldedRow(NamedTuple):
    """Equal items of one level: how deep, their first and last layer, and what is done."""

    depth: int
    first: int
    last: int
    what: str


def item_lines(items: Sequence[Item], layers: Sequence[str], most: int = MOST_ROWS) -> list[str]:
    """One line a run of equal items, recomputed bodies indented, at most `most` and a count."""
    rows = folded_rows(items)
    shown = list(islice(rows, most))
    hidden = sum(1 for _ in rows)
    lines = aligned([(indented(row.depth) + _span(row, layers), row.what) for row in shown], left=2)
    if hidden:
        lines.append(f"… {hidden} more row{'s' if hidden > 1 else ''}")
    return lines


def labelled(lines: Sequence[tuple[str, str]]) -> list[str]:
    """Texts beside their labels, the labels aligned right."""
    return [f"{label:>8}  {text}" for label, text in lines]


def cost_lines(plan: Plan) -> list[tuple[str, str]]:
    """Time, peak and budget of a plan of any kind, each with its label."""
    time = f"{format_time(plan.time, plan.time_unit)} a step"
    most = f"{format_time(plan.keep_all_time, plan.time_unit)} for keeping everything"
    lines = [
        ("time", f"{time}, {format_percent(plan.overhead)} over the {most}"),
        (
            "peak",
            f"{format_bytes(plan.peak_bytes)}; keeping everything needs "
            f"{format_bytes(plan.keep_all_peak_bytes)}",
        ),
    ]
    if plan.budget_bytes is not None:
        reserved = (
            f", {format_both(plan.reserved_bytes)} of it reserved" if plan.reserved_bytes else ""
        )
        lines.append(("budget", f"{format_both(plan.budget_bytes)}{reserved}"))
    return lines


def summary_lines(plan: Plan) -> list[str]:
    """What is known of a plan, each figure beside its label."""
    lines = cost_lines(plan)
    lines.append(
        (
            "status",
            f"{plan.status}; no persistent plan within the budget takes less than "
            f"{format_time(plan.lower_bound_time, plan.time_unit)} "
            f"(gap {format_percent(plan.gap)})",
        )
    )
    layers = "1 layer" if len(plan.layers) == 1 else f"{len(plan.layers)} layers"
    nested = f", checkpoints nest {plan.depth} deep" if plan.depth > 1 else ""
    lines.append(("method", f"{plan.method}, {layers}{nested}"))
    if plan.solve_seconds is not None:
        lines.append(("solved", f"in {plan.solve_seconds:.3f} s"))
    return labelled(lines)


def step_text(action: Action, layers: Sequence[str]) -> str:
    """An action of a plan: ``forward 'h.3', keeping``."""
    if isinstance(action, Forward):
        keeping = ", keeping" if action.keep else ""
        option = f" with option {action.option!r}" if action.option is not None else ""
        return f"forward {layers[action.layer]!r}{keeping}{option}"
    if isinstance(action, Backward):
        return f"backward {layers[action.layer]!r}"
    return f"{'hold' if isinstance(action, Hold) else 'drop'} {_activation(action.layer, layers)}"


def peak_text(action: Action, layers: Sequence[str]) -> str:
    """What sets a peak, as part of a sentence: ``the backward of 'head'``."""
    if isinstance(action, Forward):
        return f"the forward of {layers[action.layer]!r}"
    if isinstance(action, Backward):
        return f"the backward of {layers[action.layer]!r}"
    # Holding and dropping take no memory: the peak is what is live before the first forward.
    return f"the input and the gradient of the output of {layers[-1]!r}"


def _activation(i: int, layers: Sequence[str]) -> str:
    return "the input" if i < 0 else f"the output of {layers[i]!r}"


def indented(depth: int) -> str:
    """What stands before a row of an item that is `depth` segments deep."""
    # A plan may nest a thousand deep; the depth is then said, not drawn.
    if depth <= _DEEPEST_INDENT:
        return "  " * depth
    return f"{'  ' * (_DEEPEST_INDENT - 1)}({depth} deep) "


def _span(row: FoldedRow, layers: Sequence[str]) -> str:
    first, last = layers[row.first], layers[row.last]
    return first if row.first == row.last else f"{first}–{last}"


def folded_rows(items: Sequence[Item]) -> Iterator[FoldedRow]:
    """A plan row by row: runs of equal items in one, and recomputed bodies after their item."""
    levels = [groupby(items, key=_kind)]
    while levels:
        run = next(levels[-1], None)
        if run is None:
            levels.pop()
            continue
        what, members = run
        group = list(members)
        first, last = first_of(group[0]), last_of(group[-1])
        item = group[0]
        yield FoldedRow(len(levels) - 1, first, last, _words(what, len(group)))
        if isinstance(item, Checkpoint) and what[0] == "nested":
            levels.append(groupby(item.body, key=_kind))


def _kind(item: Item) -> tuple[str, object]:
    """What makes items of a run equal: items of one kind stand in one row."""
    if isinstance(item, Keep):
        return ("keep", item.option)
    if all(isinstance(inner, Keep) and inner.option is None for inner in item.body):
        return ("checkpoint", item.last - item.first + 1)
    return ("nested", (item.first, item.last))  # its body follows, so it stands alone


def _words(kind: tuple[str, object], count: int) -> str:
    what, detail = kind
    if what == "keep":
        return "keep" if detail is None else f"keep with option {detail!r}"
    if what == "nested":
        return "checkpoint as one, recomputed as"
    if count == 1:
        return "checkpoint" if detail == 1 else "checkpoint as one"
    return "checkpoint each" if detail == 1 else f"checkpoint every {detail}"

"""A plan as a table: its items, what each holds in memory, and where the peak is."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from scheduler.common.text import format_bytes, format_time
from scheduler.costs.keeps import Keeps
from scheduler.plans.kinds import kind_of
from scheduler.plans.plan import Plan, summary_lines
from scheduler.plans.text import indented, more_rows
from scheduler.report.tables import fitted, span_text

MOST_ROWS = 30
"""Rows shown of a plan; what follows is counted."""


class PlanRow(NamedTuple):
    """Equal items that follow one another, or the nodes of a graph that run equally often.

    Attributes
    ----------
    first, last
        Names of the first and the last layer.
    depth
        0; inside a recomputed segment 1, and so on.
    what
        What is done with them, in words.
    runs
        How often each of their forwards is entered in one step: once more under an option, whose
        backward runs a part of it again.
    held_bytes
        What they add to the memory in use by their forward: what is live after it, less what was
        before. In a recomputed segment, when it is run for its backward. None for a graph.
    highest_bytes
        The most that is live at any moment in which one of them runs.
    again_time
        Time of running them again, whole or in part, in the unit of the plan.
    sets_peak
        Whether the peak is reached while one of them runs.
    """

    first: str
    last: str
    depth: int
    what: str
    runs: int
    held_bytes: int | None
    highest_bytes: int
    again_time: float
    sets_peak: bool


def plan_rows(plan: Plan, costs: object = None) -> list[PlanRow]:
    """The rows of a plan, from its replay.

    Raises
    ------
    InvalidPlan
        As `Plan.replay`.
    """
    own = plan.own_costs(costs)
    moments = plan.moments(own)
    peak_at = next(m.action.layer for m in moments if m.during_bytes == plan.peak_bytes)
    counts = list(plan.forwards.values())
    highest, again = [0] * len(counts), [0] * len(counts)
    for moment in moments:
        layer = moment.action.layer
        if layer >= 0:
            highest[layer] = max(highest[layer], moment.during_bytes)
            again[layer] += moment.ticks if moment.role == "again" else moment.again_ticks
    kind = kind_of(plan.schedule)
    held = kind.held(plan, moments, own)
    made = []
    for row in kind.rows(plan):
        inside = range(row.first, row.last + 1)
        made.append(
            PlanRow(
                plan.layers[row.first],
                plan.layers[row.last],
                row.depth,
                row.what,
                max(counts[i] for i in inside),
                None if held is None else sum(held.get((row.depth, i), 0) for i in inside),
                max(highest[i] for i in inside),
                sum(again[i] for i in inside) / own.ticks_per_unit,
                peak_at in inside,
            )
        )
    return made


def plan_summary(plan: Plan, width: int) -> list[str]:
    """What is known of a plan, each figure beside its label, in lines of at most `width`."""
    lines = summary_lines(plan)
    indent = " " * (10 if width >= 60 else 4)
    return [part for each in lines for part in _continued(each, width, indent)]


def _continued(words: str, width: int, indent: str) -> list[str]:
    return textwrap.wrap(words, width, subsequent_indent=indent) if len(words) > width else [words]


def rows_table(rows: Sequence[PlanRow]) -> list[list[object]]:
    """The rows as plain values under a header of their field names."""
    table: list[list[object]] = [list(PlanRow._fields)]
    table += [list(row) for row in rows]
    return table


def rows_cells(plan: Plan, rows: Sequence[PlanRow]) -> list[tuple[str, ...]]:
    """The rows as they are read, under a header."""
    with_held = any(row.held_bytes is not None for row in rows)
    header = ("layers", "what", *(["held"] if with_held else []), "highest", "recomputing", "")
    cells = [header]
    for row in rows:
        name = span_text(row.first, row.last)
        held = [] if row.held_bytes is None else [_signed(row.held_bytes)]
        time = format_time(row.again_time, plan.time_unit) if row.again_time else "–"
        mark = "peak" if row.sets_peak else ""
        figures = (*held, format_bytes(row.highest_bytes), time, mark)
        cells.append((f"{indented(row.depth)}{name}", row.what, *figures))
    return cells


def rows_text(plan: Plan, rows: Sequence[PlanRow], width: int, most: int = MOST_ROWS) -> str:
    """A table of at most `most` rows, in lines of at most `width` characters."""
    header, *cells = rows_cells(plan, rows)
    hidden = len(cells) - most
    lines = fitted(header, cells[:most], width, left=2)
    for line in more_rows(hidden):
        peak = next((row for row in rows[most:] if row.sets_peak), None)
        at = "" if peak is None else f", {peak.first!r} with the peak among them"
        lines += textwrap.wrap(f"{line}{at}", width)
    notes = "Highest: the most that is live while one of these layers runs."
    if any(row.held_bytes is not None for row in rows):
        notes = f"Held: what their forward adds to the memory in use. {notes}"
    return "\n".join(
        [
            *lines,
            "",
            *(part for each in (notes, *policy_sentences(plan)) for part in _wrapped(each, width)),
        ]
    )


def policy_sentences(plan: Plan) -> list[str]:
    """What each option of the plan keeps inside a layer, where the plan says it, and its tiles.

    Results are named as in a compute graph: ``aten.mm.default#3`` is that of the fourth call.
    """
    options = plan.schedule.options()
    said: dict[tuple[str, Keeps], list[str]] = {}
    for layer, option in options.items():
        name = plan.layers[layer]
        if name in plan.policies:
            said.setdefault((option, plan.policies[name]), []).append(name)
    names = Counter(option for option, _ in said)
    sentences = []
    for (option, keeps), layers in said.items():
        # One name may stand for different results in different layers.
        where = f" in {span_text(layers[0], layers[-1])}" if names[option] > 1 else ""
        results = ", ".join(f"{operation}#{call}" for operation, call, *_ in keeps)
        sentences.append(f"Option {option!r} keeps{where}: {results}.")
    if plan.tiles:
        pieces = "; ".join(_pieces(plan))
        sentences.append(
            f"Run in tiles along the tokens: {pieces}. Gradients are the model's to rounding, not "
            "bit by bit."
        )
    return sentences


def _pieces(plan: Plan) -> Iterator[str]:
    """In how many tiles which layers run; neighbours that run alike are put together."""
    said = {name: (count, plan.tiled.get(name, ())) for name, count in plan.tiles.items()}
    for how, run in groupby(plan.layers, said.get):
        if how is not None:
            names, (count, parts) = list(run), how
            of = f"{', '.join(parts)} of " if parts else ""
            yield f"{of}{span_text(names[0], names[-1])} in {count}"


def _wrapped(words: str, width: int) -> list[str]:
    return textwrap.wrap(words, width, break_on_hyphens=False)


def _signed(n: int) -> str:
    return f"-{format_bytes(-n)}" if n < 0 else format_bytes(n)

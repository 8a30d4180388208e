"""Plans of chains: items that cover the layers in order, each kept or in a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from typing import Any

from scheduler.common.errors import InvalidPlan
from scheduler.costs.readers import Costs, as_costs
from scheduler.plans.file.items import items_to_json, parse_items
from scheduler.plans.kind import FoldedRow, PlanLike
from scheduler.plans.text import indented, more_rows, span
from scheduler.report.tables import aligned
from solvers.chain.problem import Chain
from solvers.replay import Moment
from solvers.schedule import (
    Checkpoint,
    IllegalPlan,
    Item,
    Items,
    Keep,
    check_cover,
    first_of,
    last_of,
)
from solvers.solution import PlanClass

MOST_ROWS = 30
"""Rows shown of a plan; what follows is counted."""


class _Chain:
    """See `scheduler.plans.kind.Kind`."""

    name = "chain"
    noun = "layer"
    key = "items"
    classes: tuple[PlanClass, ...] = (PlanClass.PERSISTENT,)
    absent = "the plan of a chain has no {}, which are for graphs; read its items"

    def costs(self, given: object) -> Costs:
        return as_costs(given)

    def problem(self, costs: Any) -> Chain:
        if not costs.is_chain:
            raise InvalidPlan("the plan is one of a chain, and these costs are a graph")
        return costs.to_chain()  # type: ignore[no-any-return]

    def check(self, schedule: Items, layers: Sequence[str]) -> None:
        try:
            check_cover(schedule.items, 0, len(layers) - 1)
        except IllegalPlan as error:
            raise InvalidPlan(str(error)) from error

    def to_json(self, schedule: Items, names: Sequence[str]) -> list[Any]:
        return items_to_json(schedule.items)

    def parse(self, values: object, names: Sequence[str]) -> Items:
        return Items(parse_items(values, names))

    def remarks(self, plan: PlanLike) -> str:
        depth: int = plan.schedule.depth
        return f", checkpoints nest {depth} deep" if depth > 1 else ""

    def bound_words(self, plan: PlanLike) -> str:
        return "no persistent plan"

    def order_words(self, plan: PlanLike) -> str:
        return ""

    def lines(self, plan: PlanLike) -> list[str]:
        return item_lines(plan.schedule.items, plan.layers)

    def rows(self, plan: PlanLike) -> list[FoldedRow]:
        return list(folded_rows(plan.schedule.items))

    def held(
        self, plan: PlanLike, moments: Sequence[Moment], costs: Costs
    ) -> dict[tuple[int, int], int]:
        chain = self.problem(costs)
        start = chain.input_bytes + chain.layers[-1].output_bytes
        return _held(plan.schedule.items, moments, start)

    def treatments(self, plan: PlanLike) -> list[str]:
        runs = list(plan.forwards.values())
        options = {i: f" with option {name!r}" for i, name in plan.schedule.options().items()}
        words = []
        for item in plan.schedule.items:
            if isinstance(item, Keep):
                words.append(f"keep{options.get(item.layer, '')}")
                continue
            segment = "alone" if item.first == item.last else f"{item.first}–{item.last}"
            for i in range(item.first, item.last + 1):
                often = f", run {runs[i]} times" if runs[i] > 2 else ""
                words.append(f"checkpoint {segment}{often}{options.get(i, '')}")
        return words

    def spans(self, schedule: Items) -> list[tuple[int, int, int]]:
        found: list[tuple[int, int, int]] = []
        todo: list[tuple[Item, int]] = [(item, 0) for item in reversed(schedule.items)]
        while todo:
            item, depth = todo.pop()
            if isinstance(item, Checkpoint):
                found.append((item.first, item.last, depth))
                todo += [(inner, depth + 1) for inner in reversed(item.body)]
        return found


CHAIN = _Chain()


def item_lines(items: Sequence[Item], layers: Sequence[str], most: int = MOST_ROWS) -> list[str]:
    """One line a run of equal items, recomputed bodies indented, at most `most` and a count."""
    rows = folded_rows(items)
    shown = list(islice(rows, most))
    names = [indented(row.depth) + span(layers, row.first, row.last) for row in shown]
    lines = aligned([*zip(names, (row.what for row in shown), strict=True)], left=2)
    return [*lines, *more_rows(sum(1 for _ in rows))]


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


def _held(
    items: Sequence[Item], moments: Sequence[Moment], start_bytes: int
) -> dict[tuple[int, int], int]:
    """For each item, by its depth and first layer, what its forward adds to what is live.

    It follows `solvers.schedule.actions`: one item is swept forward once, inside the sweep of its
    level, where a kept layer is a forward and a segment a hold and its forwards; every forward but
    the first of a level is followed by letting go of its input.
    """
    after = [start_bytes, *(moment.after_bytes for moment in moments)]
    held: dict[tuple[int, int], int] = {}
    done = 0
    todo: list[tuple[Sequence[Item], int] | int] = [(items, 0)]
    while todo:
        work = todo.pop()
        if isinstance(work, int):
            done += work
            continue
        level, depth = work
        start = first_of(level[0])
        for item in level:
            before, first = done, first_of(item)
            done += 2 * (last_of(item) - first + 1) - (first == start)
            done += isinstance(item, Checkpoint)
            held[(depth, first)] = after[done] - after[before]
        done += 1  # the last output of the level
        for item in level:
            if isinstance(item, Checkpoint):
                todo += [1, (item.body, depth + 1)]  # popped from the end: the hold goes last
            else:
                todo.append(1)
    assert done == len(moments)
    return held

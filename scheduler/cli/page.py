"""A plan as one HTML file: its pictures, its tables, and how to make it again."""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources
from typing import NamedTuple

from scheduler.common.text import format_both, format_bytes, format_time
from scheduler.planning.comparison import Comparison
from scheduler.planning.frontier import Frontier
from scheduler.plans.lengths import PlansByLength
from scheduler.plans.pictures import WIDTH, strip_picture, timeline_picture
from scheduler.plans.plan import Plan
from scheduler.plans.rows import plan_rows, policy_sentences, rows_cells
from scheduler.report.figure import require
from scheduler.report.labels import clean
from scheduler.report.tables import format_percent

__all__ = ["Files", "lengths_report", "plan_report"]

NARROW = 360
"""Pixels of the pictures for a narrow window."""

MOST_ROWS = 200
"""Rows of a plan that the report has."""

_METHODS_WITH_A_CLASS = ("auto", "staged")

_METHOD_COLUMNS = 5
"""Columns of the methods that the report has, beside their names."""


class Files(NamedTuple):
    """What the commands of a report call its files: the plan, its costs as arguments, itself."""

    plan: str
    costs: str
    report: str


def plan_report(
    plan: Plan,
    costs: object,
    others: tuple[Frontier, Comparison] | None,
    files: Files,
    left_out: str = "",
) -> str:
    """The text of the file.

    Parameters
    ----------
    plan, costs
        A plan, and any form of the costs it was made for.
    others
        The frontier of the same costs, and a comparison within the plan's budget; None leaves out
        the curve and the methods.
    files
        How to call what the commands name.
    left_out
        Why there are no others, as a sentence, where that was not asked for.

    Raises
    ------
    InvalidPlan
        As `Plan.replay`.
    SchedulerError
        jinja2 or matplotlib is not installed.
    """
    require("jinja2", "a report")
    own = plan.own_costs(costs)
    name = own.name or "Plan"
    rows = plan_rows(plan, own)
    hidden = len(rows) - MOST_ROWS
    notes = [f"{hidden} more rows: show --csv prints them all."] if hidden > 0 else []
    notes += [*policy_sentences(plan), *filter(None, [left_out, own.note, own.noise])]
    budget = "" if plan.budget_bytes is None else "budget "
    return _filled(
        title=f"{name}: a checkpointing plan",
        lead=f"{own.size}; {budget}{_budget(plan)}; {plan.standing}.",
        facts=_facts(plan, plan.replay(own).set_by),
        timeline=_both(lambda width: timeline_picture(plan, own, width)),
        strip=_both(lambda width: strip_picture(plan, name, width)),
        others=None if others is None else _others(plan, *others),
        rows=rows_cells(plan, rows)[: MOST_ROWS + 1],
        peak=[i for i, row in enumerate(rows[:MOST_ROWS]) if row.sets_peak],
        rows_notes=notes,
        commands=_commands(plan, files),
        sha256=plan.costs_sha256,
        lengths=None,
    )


def lengths_report(plans: PlansByLength) -> str:
    """The text of the file for plans by length."""
    return _filled(
        title=f"{plans.name or 'Plans'}: plans by length",
        lead=plans.lead(),
        facts=[],
        lengths={
            "drawn": _both(plans.picture),
            "rows": plans.cells(),
            "notes": [plans.rule()],
        },
    )


def _filled(**values: object) -> str:
    """The page with these values, all of which but the pictures are escaped."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    def allowed(value: object) -> object:
        return clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    environment = Environment(
        autoescape=True, finalize=allowed, undefined=StrictUndefined, keep_trailing_newline=True
    )
    text = resources.files("scheduler.cli").joinpath("page.html.j2").read_text(encoding="utf-8")
    return environment.from_string(text).render(values)


def _both(draw: Callable[[float], str]) -> dict[str, object]:
    """A picture for wide windows, and the same for narrow ones."""
    from markupsafe import Markup

    return {"wide": Markup(draw(WIDTH)), "narrow": Markup(draw(NARROW))}


def _others(plan: Plan, frontier: Frontier, comparison: Comparison) -> dict[str, object]:
    """The plan between all others of its costs."""
    return {
        "curve": _both(lambda width: frontier.picture(plan, comparison, width)),
        "known": frontier.remarks,
        "rows": comparison.cells(_METHOD_COLUMNS),
        "chosen": [comparison.rows.index(comparison.optimal)],
        "notes": [comparison.conclusion(), *comparison.notes()],
    }


def _facts(plan: Plan, set_by: str) -> list[tuple[str, str, str]]:
    unit = plan.time_unit
    everything = format_bytes(plan.keep_all_peak_bytes)
    reserved = f"{format_bytes(plan.reserved_bytes)} of it reserved" if plan.reserved_bytes else ""
    return [
        ("peak", format_bytes(plan.peak_bytes), f"{set_by}; keeping everything: {everything}"),
        ("budget", _budget(plan), reserved),
        (
            "time of a step",
            format_time(plan.time, unit),
            f"keeping everything: {format_time(plan.keep_all_time, unit)}",
        ),
        ("lost to recomputation", format_percent(plan.overhead), ""),
        (
            "lower bound",
            format_time(plan.lower_bound_time, unit),
            f"gap {format_percent(plan.gap)}",
        ),
        ("status", plan.standing, f"method {plan.method}"),
    ]


def _budget(plan: Plan) -> str:
    if plan.budget_bytes is None:
        return "no budget"
    return format_both(plan.budget_bytes)


def _commands(plan: Plan, files: Files) -> list[str]:
    budget = plan.peak_bytes if plan.budget_bytes is None else plan.budget_bytes
    options = f" --method {plan.method}"
    options += f" --reserved {plan.reserved_bytes}B" if plan.reserved_bytes else ""
    if plan.method in _METHODS_WITH_A_CLASS:
        options += f" --optimal-in {plan.plan_class}"
    costs = files.costs.removeprefix(" --costs")
    solve = f"checkpoint-scheduler solve{costs} --budget {budget}B{options} -o {files.plan}"
    # Show replays a plan on a cost file, or on those in its own.
    of_example = files.costs == costs and costs
    return [
        *([solve] if costs else []),
        *([] if of_example else [f"checkpoint-scheduler show {files.plan}{files.costs}"]),
        f"checkpoint-scheduler report {files.plan}{files.costs} -o {files.report}",
    ]

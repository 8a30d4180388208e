"""A plan as one HTML file: its pictures, its tables, and how to make it again."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from scheduler.common.text import format_both, format_bytes, format_time
from scheduler.planning.chain.sweep import ChainFrontier
from scheduler.planning.comparison import Comparison
from scheduler.planning.frontier import Frontier
from scheduler.planning.graph.compare import GraphComparison
from scheduler.planning.graph.frontier import GraphFrontier
from scheduler.plans.graphplan import GraphPlan
from scheduler.plans.moments import costs_of
from scheduler.plans.pictures import WIDTH, curve_picture, strip_picture, timeline_picture
from scheduler.plans.plan import Plan
from scheduler.plans.rows import plan_rows, policy_sentences, rows_cells
from scheduler.report import html
from scheduler.report.tables import format_percent

__all__ = ["Files", "plan_report"]

NARROW = 360
"""Pixels of the pictures for a narrow window."""

MOST_ROWS = 200
"""Rows of a plan that the report has."""

_METHODS_WITH_A_CLASS = ("auto", "staged")


class Files(NamedTuple):
    """What the commands of a report call its files: the plan, its costs as arguments, itself."""

    plan: str
    costs: str
    report: str


def plan_report(
    plan: Plan,
    costs: object,
    others: tuple[Frontier, Plan, Comparison] | None,
    files: Files,
    left_out: str = "",
) -> str:
    """The text of the file.

    Parameters
    ----------
    plan, costs
        A plan, and any form of the costs it was made for.
    others
        The frontier of the same costs, the plan, and a comparison within its budget; None leaves
        out the curve and the methods.
    files
        How to call what the commands name.
    left_out
        Why there are no others, as a sentence, where that was not asked for.

    Raises
    ------
    InvalidPlan
        As `Plan.replay`.
    """
    own = costs_of(plan, costs)
    name = own.name or "Plan"
    rows = plan_rows(plan, own)
    cells = rows_cells(plan, rows)
    peak = [i for i, row in enumerate(rows[:MOST_ROWS]) if row.sets_peak]
    set_by = plan.replay(own).set_by

    def both(draw: Callable[[float], str]) -> str:
        return html.picture(draw(WIDTH), draw(NARROW))

    hidden = len(rows) - MOST_ROWS
    notes = [f"{hidden} more rows: show --csv prints them all."] if hidden > 0 else []
    notes += [*policy_sentences(plan), *([left_out] if left_out else [])]
    sections = [
        html.facts(_facts(plan, set_by)),
        html.section("Memory of one training step", both(lambda w: timeline_picture(plan, own, w))),
        html.section("What happens to each layer", both(lambda w: strip_picture(plan, name, w))),
        html.section(
            "The plan",
            html.table("plan", cells[: MOST_ROWS + 1], left=2, chosen=peak),
            *map(html.paragraph, notes),
        ),
        html.section("How to make it again", *_commands(plan, files)),
    ]
    if others is not None:
        curve = both(lambda width: curve_picture(*others, width))
        known = [html.paragraph(words) for words in _known(others[0])]
        sections.insert(2, html.section("Time against memory", curve, *known))
        sections.insert(4, _methods(others[2]))
    budget = "" if plan.budget_bytes is None else "budget "
    lead = f"{own.size}; {budget}{_budget(plan)}; {_standing(plan)}."
    return html.page(f"{name}: a checkpointing plan", lead, sections)


def _known(frontier: Frontier) -> list[str]:
    """How far the points of a curve can be trusted, where they are not all optimal plans."""
    if isinstance(frontier, ChainFrontier):
        words = "Each point was solved for its own budget; between two there are more."
        if frontier.missing:
            words += (
                f" {frontier.missing} smaller budgets were left out for lack of time; a larger "
                "time limit has more of them."
            )
        return [words]
    if isinstance(frontier, GraphFrontier) or frontier.exact:
        return []
    return [
        "The points are thinned: each is a plan, but faster ones may exist. How far the optimum at "
        "a peak is known is said below."
    ]


def _methods(comparison: Comparison) -> str:
    cells, chosen = _method_cells(comparison)
    notes = [f"{row.method}: {row.note}" for row in comparison.rows if row.note]
    return html.section(
        "The methods within this budget",
        html.table("methods", cells, chosen=chosen),
        *map(html.paragraph, [comparison.conclusion(), *notes]),
    )


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
        ("status", _standing(plan), f"method {plan.method}"),
    ]


def _budget(plan: Plan) -> str:
    if plan.budget_bytes is None:
        return "no budget"
    return format_both(plan.budget_bytes)


def _standing(plan: Plan) -> str:
    return plan.standing if isinstance(plan, GraphPlan) else plan.status


def _method_cells(comparison: Comparison) -> tuple[list[tuple[str, ...]], list[int]]:
    """The comparison as it is read, without how long it took; and the best row."""
    of_graph = isinstance(comparison, GraphComparison)
    header = ("method", "peak", "fits", "time", "overhead")
    last_label = "gap" if of_graph else "optimum at that peak"
    cells: list[tuple[str, ...]] = [(*header, last_label)]
    for row in comparison.rows:
        name = getattr(row, "label", row.method)
        if row.peak_bytes is None or row.time is None or row.overhead is None:
            cells.append((name, "–", "–", "–", "–", "–"))
            continue
        last = getattr(row, "gap", None) if of_graph else row.optimal_overhead_at_peak
        cells.append(
            (
                name,
                format_bytes(row.peak_bytes),
                "yes" if row.fits else "no",
                format_time(row.time, comparison.time_unit),
                format_percent(row.overhead),
                "–" if last is None else format_percent(last),
            )
        )
    return cells, [comparison.rows.index(comparison.optimal)]


def _commands(plan: Plan, files: Files) -> list[str]:
    budget = plan.peak_bytes if plan.budget_bytes is None else plan.budget_bytes
    options = f" --method {plan.method}"
    options += f" --reserved {plan.reserved_bytes}" if plan.reserved_bytes else ""
    if isinstance(plan, GraphPlan) and plan.method in _METHODS_WITH_A_CLASS:
        options += f" --optimal-in {plan.plan_class}"
    costs = files.costs.removeprefix("--costs ")
    of_file = costs != files.costs  # show replays a plan on a cost file only
    lines = [
        f"checkpoint-scheduler solve {costs} --budget {budget}{options} -o {files.plan}",
        *([f"checkpoint-scheduler show {files.plan} {files.costs}"] if of_file else []),
        f"checkpoint-scheduler report {files.plan} {files.costs} -o {files.report}",
    ]
    return [
        html.code("\n".join(lines)),
        html.paragraph(f"SHA-256 of the costs: {plan.costs_sha256}"),
    ]

"""Pictures of plans and frontiers: what their replays say, drawn."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.costs.readers import Costs
from scheduler.planning.comparison import Comparison
from scheduler.planning.frontier import Frontier
from scheduler.plans.kinds import kind_of
from scheduler.plans.plan import Plan
from scheduler.report.svg.curve import Curve, Mark, draw_curve
from scheduler.report.svg.strip import Cell, Span, Strip, draw_strip
from scheduler.report.svg.timeline import Bar, Timeline, draw_timeline
from solvers.replay import Moment

__all__ = ["WIDTH", "curve_picture", "plan_picture", "strip_picture", "timeline_picture"]

WIDTH = 880
"""Pixels of a picture where nothing else is said."""


def timeline_picture(plan: Plan, costs: object = None, width: float = WIDTH) -> str:
    """The memory of one step of the plan, as SVG.

    Parameters
    ----------
    plan, costs
        A plan, and any form of the costs it was made for; one that was just solved carries them.
    width
        In pixels.

    Raises
    ------
    InvalidPlan
        As `Plan.replay`.
    """
    own = plan.own_costs(costs)
    problem = plan.problem(own)
    everything = problem.replay(problem.keep_all()).moments
    shown = Timeline(
        name=own.name,
        bars=_bars(plan.moments(own), own),
        keep_all=_bars(everything, own),
        time_unit=plan.time_unit,
        peak_bytes=plan.peak_bytes,
        set_by=plan.replay(own).set_by,
        budget_bytes=plan.budget_bytes,
        reserved_bytes=plan.reserved_bytes,
    )
    return draw_timeline(shown, width, 420 if width > 600 else 340)


def curve_picture(
    frontier: Frontier,
    plan: Plan | None = None,
    comparison: Comparison | None = None,
    width: float = WIDTH,
) -> str:
    """Time against memory, as SVG.

    Parameters
    ----------
    frontier
        All optimal pairs, or a sweep over the budgets of a graph.
    plan
        The plan to mark, with its lower bound and its budget.
    comparison
        Other methods to mark.
    width
        In pixels.
    """
    shown = Curve(
        name=frontier.costs.name,
        points=frontier.points,
        points_are=frontier.points_are,
        is_exact=frontier.exact,
        bounds=frontier.bounds,
        others=[] if comparison is None else _marks(comparison),
        plan=None if plan is None else Mark(plan.method, plan.peak_bytes, plan.time),
        bound_time=None if plan is None else plan.lower_bound_time,
        keep_all_time=frontier.keep_all_time,
        time_unit=frontier.time_unit,
        budget_bytes=None if plan is None else plan.budget_bytes,
        reserved_bytes=0 if plan is None else plan.reserved_bytes,
    )
    return draw_curve(shown, width, 460 if width > 600 else 400)


def strip_picture(plan: Plan, name: str = "", width: float = WIDTH) -> str:
    """What happens to each layer of the plan, as SVG; `name` is the model's."""
    runs = list(plan.forwards.values())
    options = plan.schedule.options()
    spans = [Span(*span) for span in kind_of(plan.schedule).spans(plan.schedule)]
    cells = [
        Cell(
            layer,
            # An option's forward runs once more in part, at its backward.
            "option" if i in options and runs[i] == 2 else _state(runs[i] - (i in options)),
            runs[i],
            options.get(i),
        )
        for i, layer in enumerate(plan.layers)
    ]
    return draw_strip(Strip(name, plan.noun, cells, spans), width)


def plan_picture(plan: Plan) -> str:
    """The picture that a notebook shows of a plan: its timeline, or without costs its strip."""
    return strip_picture(plan) if plan._costs is None else timeline_picture(plan)


def _bars(moments: Sequence[Moment], costs: Costs) -> list[Bar]:
    ticks = costs.ticks_per_unit
    bars: list[Bar] = []
    for moment in moments:
        again, during = moment.again_ticks, moment.during_bytes
        if again:  # the backward of an option begins by making again what it left out
            bars.append(Bar("again", again / ticks, during))
        if moment.role:
            bars.append(Bar(moment.role, (moment.ticks - again) / ticks, during))
    return bars


def _marks(comparison: Comparison) -> list[Mark]:
    marks = []
    for row in comparison.rows:
        if row.peak_bytes is not None and row.time is not None:
            marks.append(Mark(row.label, row.peak_bytes, row.time))
    return marks


def _state(runs: int) -> str:
    return "first" if runs == 1 else "again" if runs == 2 else "nested"

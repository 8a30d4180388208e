"""Pictures of plans: what their replays say, drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from scheduler.plans.facts import PlanFacts
from scheduler.plans.kinds import kind_of
from scheduler.plans.text import peak_text
from scheduler.report.figure import can_draw, plot
from scheduler.report.strip import Cell, Span, Strip
from scheduler.report.svg import svg
from scheduler.report.timeline import Bar, Timeline
from solvers.replay import Moment

if TYPE_CHECKING:
    from matplotlib.axes import Axes


WIDTH = 880
"""Pixels of a picture where nothing else is said."""


def timeline_picture(plan: PlanFacts, costs: object = None, width: float = WIDTH) -> str:
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
    return svg(_timeline(plan, costs), width)


def strip_picture(plan: PlanFacts, name: str = "", width: float = WIDTH) -> str:
    """What happens to each layer of the plan, as SVG; `name` is the model's."""
    return svg(_strip(plan, name), width)


def plan_picture(plan: PlanFacts) -> str | None:
    """The picture that a notebook shows of a plan; None where nothing can be drawn."""
    return svg(_most_telling(plan), WIDTH) if can_draw() else None


def plot_plan(plan: PlanFacts, axes: Axes | None) -> Axes:
    """The same picture on axes of matplotlib."""
    return plot(_most_telling(plan), axes)


def _most_telling(plan: PlanFacts) -> Timeline | Strip:
    """The timeline, or without costs the strip."""
    return _timeline(plan) if plan._costs is not None else _strip(plan)


def _timeline(plan: PlanFacts, costs: object = None) -> Timeline:
    own = plan.own_costs(costs)
    problem = plan.problem(own)
    done, everything = problem.replay(plan.schedule), problem.replay(problem.keep_all())
    return Timeline(
        name=own.name,
        bars=_bars(done.moments, own.ticks_per_unit),
        keep_all=_bars(everything.moments, own.ticks_per_unit),
        time_unit=plan.time_unit,
        peak_bytes=plan.peak_bytes,
        set_by=peak_text(done.peak_action, plan.layers),
        budget_bytes=plan.budget_bytes,
        reserved_bytes=plan.reserved_bytes,
    )


def _bars(moments: Sequence[Moment], ticks: int) -> list[Bar]:
    bars: list[Bar] = []
    for moment in moments:
        again = moment.again_ticks
        if again:  # the backward of an option begins by making again what it left out
            bars.append(Bar("again", again / ticks, moment.during_bytes))
        if moment.role:
            bars.append(Bar(moment.role, (moment.ticks - again) / ticks, moment.during_bytes))
    return bars


def _strip(plan: PlanFacts, name: str = "") -> Strip:
    options = plan.schedule.options()
    cells = []
    for i, (layer, runs) in enumerate(plan.forwards.items()):
        # An option's forward runs once more in part, at its backward.
        is_option = i in options and runs == 2
        state = "option" if is_option else _state(runs - (i in options))
        cells.append(Cell(layer, state, runs, options.get(i)))
    spans = [Span(*span) for span in kind_of(plan.schedule).spans(plan.schedule)]
    return Strip(name, plan.noun, cells, spans)


def _state(runs: int) -> str:
    return "first" if runs == 1 else "again" if runs == 2 else "nested"

"""Pictures of plans and frontiers: what their replays say, drawn."""

from __future__ import annotations

from scheduler.costs.readers import Costs, as_costs
from scheduler.planning.chain.sweep import ChainFrontier
from scheduler.planning.comparison import Comparison
from scheduler.planning.frontier import Frontier
from scheduler.planning.graph.frontier import GraphFrontier
from scheduler.plans.graphplan import GraphPlan, keep_all_steps, problem_of
from scheduler.plans.moments import Moment, chain_moments, costs_of, graph_moments, moments_of
from scheduler.plans.plan import Plan
from scheduler.report.svg.curve import Curve, Mark, draw_curve
from scheduler.report.svg.strip import Cell, Span, Strip, draw_strip
from scheduler.report.svg.timeline import Bar, Timeline, draw_timeline
from solvers.schedule import Checkpoint, Item, keep_all, options_of

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
    own = costs_of(plan, costs)
    if isinstance(plan, GraphPlan):
        graph = problem_of(own)
        everything, _ = graph_moments(graph, keep_all_steps(graph))
    else:
        chain = as_costs(own).to_chain()
        everything, _ = chain_moments(chain, keep_all(len(chain)))
    shown = Timeline(
        name=own.name,
        bars=_bars(moments_of(plan, own), own),
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
    bounds: list[tuple[int, float]] = []
    if isinstance(frontier, GraphFrontier):
        bounds = [
            (each.budget_bytes or each.peak_bytes, each.lower_bound_time) for each in frontier.plans
        ]
        points_are = "plans of a sweep"
    elif isinstance(frontier, ChainFrontier):
        bounds = frontier.bounds
        points_are = "optimal plans of a sweep" if frontier.proven else "plans of a sweep"
    else:
        points_are = "optimal plans" if frontier.exact else "near-optimal plans"
    shown = Curve(
        name=frontier.costs.name,
        points=frontier.points,
        points_are=points_are,
        is_exact=frontier.exact,
        bounds=bounds,
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
    if isinstance(plan, GraphPlan):
        cells = [
            Cell(layer, _state(count), count)
            for layer, count in zip(plan.layers, runs, strict=True)
        ]
        return draw_strip(Strip(name, plan.noun, cells, ()), width)
    options = options_of(plan.items)
    spans: list[Span] = []
    todo: list[tuple[Item, int]] = [(item, 0) for item in reversed(plan.items)]
    while todo:
        item, depth = todo.pop()
        if isinstance(item, Checkpoint):
            spans.append(Span(item.first, item.last, depth))
            todo += [(inner, depth + 1) for inner in reversed(item.body)]
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
    return draw_strip(Strip(name, "layer", cells, spans), width)


def plan_picture(plan: Plan) -> str:
    """The picture that a notebook shows of a plan: its timeline, or without costs its strip."""
    return strip_picture(plan) if plan._costs is None else timeline_picture(plan)


def _bars(moments: list[Moment], costs: Costs) -> list[Bar]:
    ticks = costs.ticks_per_unit
    bars: list[Bar] = []
    for kind, _, length, during, _, again in moments:
        if again:  # the backward of an option begins by making again what it left out
            bars.append(Bar("again", again / ticks, during))
        if kind:
            bars.append(Bar(kind, (length - again) / ticks, during))
    return bars


def _marks(comparison: Comparison) -> list[Mark]:
    marks = []
    for row in comparison.rows:
        if row.peak_bytes is not None and row.time is not None:
            name = getattr(row, "label", row.method)
            marks.append(Mark(name, row.peak_bytes, row.time))
    return marks


def _state(runs: int) -> str:
    return "first" if runs == 1 else "again" if runs == 2 else "nested"

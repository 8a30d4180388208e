"""``report``: a plan as a file to look at."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from scheduler.cli.io import check_output, read_plan, refuse_two_inputs, write
from scheduler.cli.options import limits_of, named_costs, option
from scheduler.common.errors import NoPlanFound, SchedulerError

if TYPE_CHECKING:
    from scheduler.cli.page import Files
    from scheduler.cli.progress import Watching
    from scheduler.costs.costgraph import CostGraph
    from scheduler.costs.readers import Costs
    from scheduler.planning.comparison import Comparison
    from scheduler.planning.frontier import Frontier
    from scheduler.plans.plan import Plan

    _Others = tuple[Frontier, Plan, Comparison]

__all__ = ["HELP", "PICTURES", "add_arguments", "run"]

HELP = "a plan as one HTML file, or one of its pictures as SVG"
PICTURES = ("timeline", "curve", "strip")

_POINTS = 8
_SECONDS = 10.0
"""Where nothing else is said: for each budget and each method of a graph, or for all of a chain."""

_EXACT_LAYERS = 120
"""Chains up to this long get their whole exact frontier; of longer ones some budgets are solved."""


def add_arguments(parser: ArgumentParser) -> None:
    """The options of the command."""
    parser.description = f"Write {HELP}."
    parser.add_argument("plan", metavar="PLAN", help="a plan file, or - for standard input")
    option(parser, "--costs COSTS", "the cost file it was made for")
    option(parser, "--example NAME", "or costs that come with the package")
    option(parser, "-o --output FILE", "default: standard output")
    what = (
        "only this one: timeline (memory of a step), curve (time against memory) or strip (what "
        "happens to each layer)"
    )
    option(parser, "--picture NAME", what)
    what = "leave out time against memory and the other methods, which take solving"
    option(parser, "--no-solve", what)
    what = (
        "of a chain: the whole frontier, sets of more points thinned (default: exact up to "
        f"{_EXACT_LAYERS} layers, exact at some budgets beyond)"
    )
    option(parser, "--max-points N", what, type=int)
    what = f"of a graph: budgets of the sweep (default: {_POINTS})"
    option(parser, "--points N", what, type=int)
    what = (
        f"of a graph: for each budget and each method (default: {_SECONDS:g}); of a chain of more "
        f"than {_EXACT_LAYERS} layers: for all budgets together (default: {_SECONDS:g})"
    )
    option(parser, "--time-limit SECONDS", what, type=float)
    option(parser, "--threads N", "of a graph: default 1", type=int)
    option(parser, "--quiet", "show no progress on a terminal")


def run(arguments: Namespace) -> int:
    """Write one HTML file, or one picture; status 2 when the costs do not belong."""
    from scheduler.cli.page import plan_report
    from scheduler.plans.moments import costs_of
    from scheduler.plans.pictures import curve_picture, strip_picture, timeline_picture

    if arguments.picture is not None and arguments.picture not in PICTURES:
        raise SchedulerError(
            f"there is no picture {arguments.picture!r}; choose {', '.join(PICTURES)}"
        )
    refuse_two_inputs("the plan and the costs", arguments.plan, arguments.costs)
    check_output(arguments.output)
    plan = read_plan(arguments.plan)
    if (arguments.costs is None) == (arguments.example is None):
        raise SchedulerError(
            "a report executes the plan on the costs that it was made for: add --costs COSTS, "
            "or --example NAME, and not both"
        )
    costs = costs_of(plan, named_costs(arguments))
    if arguments.picture == "strip":
        text = strip_picture(plan, costs.name)
    elif arguments.picture == "timeline":
        text = timeline_picture(plan, costs)
    elif arguments.picture == "curve":
        text = curve_picture(*_solved(plan, costs, arguments))
    else:
        others, left_out = None, ""
        try:
            others = None if arguments.no_solve else _solved(plan, costs, arguments)
        except NoPlanFound as error:
            left_out = f"Time against memory and the other methods are left out: {error}."
        text = plan_report(plan, costs, others, _files(arguments), left_out)
    write(text, arguments.output)
    return 0


def _solved(plan: Plan, costs: Costs, arguments: Namespace) -> _Others:
    """The plan between all the others of its costs."""
    from scheduler.api import compare, frontier
    from scheduler.cli.progress import Watching
    from scheduler.costs.costgraph import CostGraph

    budget = plan.budget_bytes or max(plan.peak_bytes + plan.reserved_bytes, 1)
    points = arguments.points
    limits = limits_of(arguments)
    with Watching(costs, quiet=arguments.quiet) as watching:
        if not watching.is_chain:
            points = points or _POINTS
            limits["time_limit"] = limits["time_limit"] or _SECONDS
        elif len(costs) > _EXACT_LAYERS and limits["max_points"] is None:
            assert isinstance(costs, CostGraph)
            return _swept(plan, costs, budget, arguments, watching)
        # What does not apply to these costs is refused by the functions that are called.
        limits["watch"] = watching.watch
        curve = watching.run("the frontier", lambda: frontier(costs, points=points, **limits))
        comparison = watching.run(
            "all methods",
            lambda: compare(costs, budget=budget, reserved=plan.reserved_bytes, **limits),
        )
    return curve, plan, comparison


def _swept(
    plan: Plan, costs: CostGraph, budget: int, arguments: Namespace, watching: Watching
) -> _Others:
    """The same of a long chain, as far as it is solved within a time limit.

    Raises
    ------
    NoPlanFound
        Not even for the plan's own budget.
    """
    from functools import partial

    from scheduler.planning.budget import read_budget
    from scheduler.planning.chain.compare import compare_chain
    from scheduler.planning.chain.sweep import ChainSweep
    from scheduler.planning.search import read_search, refuse_graph_options

    refuse_graph_options(points=arguments.points, threads=arguments.threads)
    seconds = read_search("auto", arguments.time_limit, None, None).time_limit or _SECONDS
    size = read_budget(None, budget, plan.reserved_bytes)
    sweep = ChainSweep(costs, partial(watching.run, "some budgets"), seconds)
    sweep.know_plan(plan, size.available)
    try:
        comparison = compare_chain(costs, size, optima=sweep.optima)
    except TimeoutError:
        raise NoPlanFound(
            f"the optimum of {len(costs)} layers within the plan's budget was not found in "
            f"{seconds:g} s; give a larger --time-limit",
            out_of_time=True,
        ) from None
    return sweep.frontier(), plan, comparison


def _files(arguments: Namespace) -> Files:
    import shlex

    from scheduler.cli.page import Files

    option = "costs" if arguments.example is None else "example"
    source = f"--{option} {shlex.quote(getattr(arguments, option))}"
    return Files(shlex.quote(arguments.plan), source, shlex.quote(arguments.output or "-"))

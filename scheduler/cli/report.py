"""``report`` and ``diff``: a plan as a file to look at, and two plans side by side."""

from __future__ import annotations

import csv
import json
import shlex
import sys
from argparse import Namespace
from functools import partial
from typing import Any

from scheduler import api
from scheduler.cli.page import Files, plan_report
from scheduler.cli.progress import Watching, watched
from scheduler.common.errors import InvalidPlan, NoPlanFound, SchedulerError
from scheduler.common.files import check_writable, read_text, write_atomically
from scheduler.costs.costgraph import CostGraph
from scheduler.costs.readers import Costs, read_costs_text
from scheduler.planning.budget import Budget, read_budget
from scheduler.planning.chain.compare import compare_chain
from scheduler.planning.chain.sweep import ChainSweep
from scheduler.planning.comparison import Comparison
from scheduler.planning.curve import curve_picture
from scheduler.planning.frontier import Frontier
from scheduler.planning.search import read_search, refuse_graph_options
from scheduler.plans.diff import diff_plans
from scheduler.plans.pictures import strip_picture, timeline_picture
from scheduler.plans.plan import Plan
from scheduler.report.figure import require
from scheduler.report.tables import print_width

__all__ = ["PICTURES", "diff", "report"]

PICTURES = ("timeline", "curve", "strip")

_POINTS = 8
_SECONDS = 10.0
"""Where nothing else is said: for each budget and each method of a graph, or for all of a chain."""

_EXACT_LAYERS = 120
"""Chains up to this long get their whole exact frontier; of longer ones some budgets are solved."""

_Others = tuple[Frontier, Plan, Comparison]


def report(arguments: Namespace) -> int:
    """``report``: write one HTML file, or one picture; status 2 when the costs do not belong."""
    if arguments.picture is not None and arguments.picture not in PICTURES:
        raise SchedulerError(
            f"there is no picture {arguments.picture!r}; choose {', '.join(PICTURES)}"
        )
    for package in ("matplotlib", *(["jinja2"] if arguments.picture is None else [])):
        require(package, "a report")  # before anything is solved
    if arguments.output is not None and arguments.output != "-":
        check_writable(arguments.output)
    plan = _read_plan(arguments.plan)
    costs = plan.own_costs(_read_costs(arguments))
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
    if arguments.output is None or arguments.output == "-":
        sys.stdout.write(text)
    else:
        write_atomically(arguments.output, text)
        _say(f"wrote {arguments.output}")
    return 0


def diff(arguments: Namespace) -> int:
    """``diff``: which layers two plans treat differently, and what each of them costs."""
    found = diff_plans(_read_plan(arguments.before), _read_plan(arguments.after))
    if arguments.json:
        print(json.dumps(found.to_dict(), indent=1))
    elif arguments.csv:
        csv.writer(sys.stdout, lineterminator="\n").writerows(found.table())
    else:
        print(found.text(("before", "after"), print_width()))
    return 0


def _solved(plan: Plan, costs: Costs, arguments: Namespace) -> _Others:
    """The plan between all the others of its costs."""
    budget = plan.budget_bytes or max(plan.peak_bytes + plan.reserved_bytes, 1)
    most, seconds, points = arguments.max_points, arguments.time_limit, arguments.points
    with watched(costs, arguments.stop_waiting, quiet=arguments.quiet) as watching:
        if not (isinstance(costs, CostGraph) and costs.is_chain):
            seconds, points = seconds or _SECONDS, points or _POINTS
        elif len(costs) > _EXACT_LAYERS and most is None:
            refuse_graph_options(points=points, threads=arguments.threads)
            limit = read_search("auto", seconds, None, None).time_limit or _SECONDS
            return _swept(
                plan, costs, read_budget(None, budget, plan.reserved_bytes), limit, watching
            )
        # What does not apply to these costs is refused by the functions that are called.
        limits: dict[str, Any] = {
            "max_points": most,
            "time_limit": seconds,
            "threads": arguments.threads,
            "watch": watching.watch,
        }
        frontier = watching.run(
            "the frontier", lambda: api.frontier(costs, points=points, **limits)
        )
        comparison = watching.run(
            "all methods",
            lambda: api.compare(costs, budget=budget, reserved=plan.reserved_bytes, **limits),
        )
    return frontier, plan, comparison


def _swept(
    plan: Plan, costs: CostGraph, size: Budget, seconds: float, watching: Watching
) -> _Others:
    """The same of a long chain, as far as it is solved within so many seconds.

    Raises
    ------
    NoPlanFound
        Not even for the plan's own budget.
    """
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
    source = (
        f"--example {shlex.quote(arguments.example)}"
        if arguments.example is not None
        else f"--costs {shlex.quote(arguments.costs)}"
    )
    return Files(shlex.quote(arguments.plan), source, shlex.quote(arguments.output or "-"))


def _read_plan(path: str) -> Plan:
    if path != "-":
        return Plan.from_json(read_text(path, "plan file", InvalidPlan), path)
    return Plan.from_json(sys.stdin.read(), "standard input")


def _read_costs(arguments: Namespace) -> Costs:
    if (arguments.costs is None) == (arguments.example is None):
        raise SchedulerError(
            "a report executes the plan on the costs that it was made for: add --costs COSTS, "
            "or --example NAME, and not both"
        )
    if arguments.example is not None:
        return CostGraph.example(arguments.example)
    return read_costs_text(read_text(arguments.costs, "cost file"), arguments.costs)


def _say(message: str) -> None:
    print(f"checkpoint-scheduler: {message}", file=sys.stderr)

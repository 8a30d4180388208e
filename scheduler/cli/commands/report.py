"""``report``: a plan as a file to look at."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from scheduler.cli.io import check_output, read_plans, refuse_two_inputs, write
from scheduler.cli.options import limits_of, named_costs, option, others
from scheduler.common.errors import NoPlanFound, SchedulerError

if TYPE_CHECKING:
    from scheduler.cli.page import Files
    from scheduler.costs.readers import Costs
    from scheduler.pipeline.plan import PipelinePlan
    from scheduler.planning.comparison import Comparison
    from scheduler.planning.frontier import Frontier
    from scheduler.plans.lengths import PlansByLength
    from scheduler.plans.plan import Plan

    _Others = tuple[Frontier, Comparison]

HELP = "a plan as one HTML file, or one of its pictures as SVG"
USAGE = "PLAN --costs COSTS"
PICTURES = ("timeline", "curve", "strip", "lengths", "gantt", "memory")
_OF_PIPELINES = PICTURES[-2:]


def add_arguments(parser: ArgumentParser) -> None:
    """The options of the command."""
    parser.description = f"Write {HELP}."
    parser.add_argument("plan", metavar="PLAN", help="a plan file, or - for standard input")
    option(parser, "--costs COSTS", "the cost file it was made for")
    option(parser, "--example NAME", "or costs that come with the package")
    option(parser, "-o --output FILE", "default: standard output")
    what = (
        "only this one: timeline (memory of a step), curve (time against memory), strip (what "
        "happens to each layer), of plans by length lengths, or of a pipeline gantt or memory"
    )
    option(parser, "--picture NAME", what)
    what = "leave out time against memory and the other methods, which take solving"
    option(parser, "--no-solve", what)
    more = others(parser)
    what = (
        "of a chain: the whole frontier, sets of more points thinned (default: exact up to "
        "120 layers, exact at some budgets beyond)"
    )
    option(more, "--max-points N", what, type=int)
    what = "of a graph: budgets of the sweep (default: 8)"
    option(more, "--points N", what, type=int)
    what = (
        "of a graph: for each budget and each method (default: 10); of a chain of more than 120 "
        "layers: for all budgets together (default: 10)"
    )
    option(more, "--time-limit SECONDS", what, type=float)
    option(more, "--threads N", "of a graph: default 1", type=int)
    option(more, "--quiet", "show no progress on a terminal")


def run(arguments: Namespace) -> int:
    """Write one HTML file, or one picture; status 2 when the costs do not belong."""
    from scheduler.cli.page import plan_report
    from scheduler.pipeline.plan import PipelinePlan
    from scheduler.plans.pictures import strip_picture, timeline_picture
    from scheduler.plans.plan import Plan
    from scheduler.report.figure import require

    if arguments.picture is not None and arguments.picture not in PICTURES:
        raise SchedulerError(
            f"there is no picture {arguments.picture!r}; choose {', '.join(PICTURES)}"
        )
    for package in ("matplotlib", *(["jinja2"] if arguments.picture is None else [])):
        require(package, "a report")  # before anything is solved
    refuse_two_inputs("the plan and the costs", arguments.plan, arguments.costs)
    check_output(arguments.output, arguments.plan, arguments.costs)
    plan = read_plans(arguments.plan)
    if isinstance(plan, PipelinePlan):
        write(_of_pipeline(plan, arguments), arguments.output)
        return 0
    if arguments.picture in _OF_PIPELINES:
        raise SchedulerError(
            f"picture {arguments.picture!r} is of a pipeline, and this file has none"
        )
    if not isinstance(plan, Plan):
        write(_by_length(plan, arguments), arguments.output)
        return 0
    if arguments.picture == "lengths":
        raise SchedulerError("picture 'lengths' is of plans by length, and this file has one plan")
    named = [each for each in (arguments.costs, arguments.example) if each is not None]
    if len(named) != 1 and (named or not plan.carries_costs):
        raise SchedulerError(
            "a report executes the plan on the costs that it was made for: add --costs COSTS, "
            "or --example NAME, and not both"
        )
    costs = plan.own_costs(named_costs(arguments) if named else None)
    if arguments.picture == "strip":
        text = strip_picture(plan, costs.name)
    elif arguments.picture == "timeline":
        text = timeline_picture(plan, costs)
    elif arguments.picture == "curve":
        curve, comparison = _solved(plan, costs, arguments)
        text = curve.picture(plan, comparison)
    else:
        others, left_out = None, ""
        try:
            others = None if arguments.no_solve else _solved(plan, costs, arguments)
        except NoPlanFound as error:
            left_out = f"Time against memory and the other methods are left out: {error}."
        text = plan_report(plan, costs, others, _files(arguments), left_out)
    write(text, arguments.output)
    return 0


def _of_pipeline(plan: PipelinePlan, arguments: Namespace) -> str:
    """A picture of a pipeline's plan."""
    from scheduler.pipeline.pictures import gantt_picture, memory_picture

    if arguments.picture not in _OF_PIPELINES:
        raise SchedulerError(
            "this is the plan of a pipeline, which has two pictures and no page: add --picture "
            "gantt or --picture memory"
        )
    if (arguments.costs is None) == (arguments.example is None):
        raise SchedulerError("a picture executes the plan on its costs: add --costs COSTS")
    draw = gantt_picture if arguments.picture == "gantt" else memory_picture
    return draw(plan, named_costs(arguments))


def _by_length(plans: PlansByLength, arguments: Namespace) -> str:
    """One HTML file, or its picture, of plans by length, which needs no costs."""
    from scheduler.cli.page import lengths_report

    if arguments.costs is not None or arguments.example is not None:
        raise SchedulerError(
            "these are plans by length, of several costs: a report of them needs none; leave out "
            "--costs and --example"
        )
    if arguments.picture not in (None, "lengths"):
        raise SchedulerError(
            f"plans by length have no picture {arguments.picture!r}; choose lengths, or take one "
            "plan out: checkpoint-scheduler export FILE --to json --length N"
        )
    return plans.picture() if arguments.picture else lengths_report(plans)


def _solved(plan: Plan, costs: Costs, arguments: Namespace) -> _Others:
    """The plan between all the others of its costs."""
    from scheduler.cli.progress import Watching

    limits = limits_of(arguments)
    with Watching(costs, quiet=arguments.quiet) as watching:
        run, watch = watching.run, watching.watch
        return watching.engine.around(plan, costs, run, watch, arguments.points, limits)


def _files(arguments: Namespace) -> Files:
    import shlex

    from scheduler.cli.page import Files

    options = {"costs": arguments.costs, "example": arguments.example}
    named = [f" --{key} {shlex.quote(each)}" for key, each in options.items() if each is not None]
    source = "".join(named)
    return Files(shlex.quote(arguments.plan), source, shlex.quote(arguments.output or "-"))

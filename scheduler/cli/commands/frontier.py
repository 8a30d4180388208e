"""``frontier``: every optimal pair of peak and time."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from scheduler.cli import options
from scheduler.cli.io import print_csv, print_json, say
from scheduler.cli.modelargs import add_model_options
from scheduler.common.errors import InvalidBudget

if TYPE_CHECKING:
    from scheduler.planning.frontier import Frontier
    from scheduler.planning.request import Budget

HELP = "every optimal trade of memory against time"
USAGE = "COSTS"


def add_arguments(parser: ArgumentParser) -> None:
    """The options of the command."""
    options.add_costs(parser)
    what = (
        "show at most N, evenly chosen (default: 20, all in JSON and CSV); of a graph: solve for N "
        "budgets (default: 8)"
    )
    options.option(parser, "--points N", what, type=int)
    options.add_budget(parser)
    options.add_formats(parser)
    options.add_limits(options.others(parser))
    options.add_graph_options(parser)
    add_model_options(parser)


def run(arguments: Namespace) -> int:
    """Print the points."""
    from scheduler.api import frontier
    from scheduler.cli.progress import Watching
    from scheduler.planning.frontier import ROWS
    from scheduler.planning.request import read_budget
    from scheduler.report.tables import print_width, spread, wrapped

    if arguments.points is not None and arguments.points < 1:
        raise InvalidBudget(f"--points must be at least 1, got {arguments.points}")
    asked = (options.costs_of if arguments.budget is None else options.costs_within)(arguments)
    size = None
    if asked.budget is not None:
        size = read_budget(None, asked.budget, asked.reserved, problem=asked.costs.to_problem())
    elif arguments.reserved != "0":
        raise InvalidBudget("--reserved comes off a budget; add one, as in --budget 40GB")
    with Watching(asked.costs, quiet=arguments.quiet) as watching:
        result = watching.run(
            "the frontier",
            lambda: frontier(
                asked.costs,
                # Where all points are there at once, some of them are shown.
                points=arguments.points if watching.engine.sweeps else None,
                watch=watching.watch,
                **options.limits_of(arguments),
            ),
        )
    if watching.interrupted:
        say("interrupted: these are the budgets solved so far")
    points = spread(result.points, arguments.points or len(result))
    asked.say(arguments)
    if arguments.json:
        record = result.to_dict(points)
        if size is not None:
            record |= {"budget_bytes": size.asked, "reserved_bytes": size.reserved}
        print_json(record)
    elif arguments.csv:
        print_csv(result.values(points))
    else:
        left = None if size is None else size.available
        print(result.table(arguments.points or ROWS, print_width(), left))
        if size is not None:
            print(wrapped(_fitting(result, size), print_width()))
    return 0


def _fitting(result: Frontier, size: Budget) -> str:
    """How many plans fit a budget, and what the fastest of them loses."""
    from scheduler.common.text import counted, format_both, format_bytes, format_smallest
    from scheduler.report.tables import format_percent

    fitting = [time for peak, time in result.points if peak <= size.available]
    kept = f", of which {format_bytes(size.reserved)} are reserved" if size.reserved else ""
    said = f"Of these {counted(len(result), 'plan')} {len(fitting)} fit"
    said += f" {format_both(size.asked)}{kept}; "
    if fitting:
        return f"{said}the fastest loses {format_percent(result.overhead(min(fitting)))}."
    least = size.smallest(result.points[0][0])
    return f"{said}the tightest needs a budget of {format_smallest(least, size.asked)}."

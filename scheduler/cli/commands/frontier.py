"""``frontier``: every optimal pair of peak and time."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from scheduler.cli import options
from scheduler.cli.io import print_csv, print_json, say
from scheduler.cli.modelargs import add_model_options
from scheduler.common.errors import InvalidBudget

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
    options.add_formats(parser)
    options.add_limits(options.others(parser))
    options.add_graph_options(parser)
    add_model_options(parser)


def run(arguments: Namespace) -> int:
    """Print the points."""
    from scheduler.api import frontier
    from scheduler.cli.progress import Watching
    from scheduler.common.text import counted
    from scheduler.planning.frontier import ROWS
    from scheduler.planning.request import Budget
    from scheduler.report.tables import print_width, spread

    if arguments.points is not None and arguments.points < 1:
        raise InvalidBudget(f"--points must be at least 1, got {arguments.points}")
    asked = options.costs_of(arguments)
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
        if isinstance(asked.budget, Budget):
            record["budget_bytes"] = asked.budget.asked
            record["reserved_bytes"] = asked.budget.reserved
        print_json(record)
    elif arguments.csv:
        print_csv(result.values(points))
    else:
        left = asked.budget.available if isinstance(asked.budget, Budget) else None
        print(result.table(arguments.points or ROWS, print_width(), left))
        if left is not None:
            fitting = sum(peak <= left for peak, _ in result.points)
            print(f"Of these {counted(len(result), 'plan')} {fitting} fit what is left.")
    return 0

"""``solve``: one plan, printed, and written where that is asked."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace

from scheduler.cli import options
from scheduler.cli.io import check_output, say, write
from scheduler.cli.modelargs import add_model_options
from scheduler.common.errors import InfeasibleBudget, NoPlanFound

HELP = "the plan that loses the least time within a budget"
USAGE = "COSTS --budget SIZE"


def add_arguments(parser: ArgumentParser) -> None:
    """The options of the command."""
    options.add_costs(parser)
    options.add_budget(parser)
    options.option(parser, "-o --output FILE", "write the plan file here")
    others = options.others(parser)
    options.option(others, "--method M", "default: optimal", default="optimal")
    options.add_limits(others)
    options.option(others, "--json", "print the plan file")
    options.add_graph_options(parser)
    add_model_options(parser)


def run(arguments: Namespace) -> int:
    """Print the plan; status 130 where Ctrl-C came before there was one."""
    from scheduler.api import solve
    from scheduler.cli.progress import Watching
    from scheduler.report.tables import narrowed, print_width

    check_output(arguments.output)
    asked = options.costs_within(arguments)
    with Watching(asked.costs, quiet=arguments.quiet, listens=True) as watching:
        try:
            plan = watching.run(
                "the best plan",
                lambda: solve(
                    asked.costs,
                    budget=asked.budget,
                    reserved=asked.reserved,
                    method=arguments.method,
                    watch=watching.watch,
                    **options.limits_of(arguments),
                ),
            )
        except InfeasibleBudget as error:
            raise error.reserving(asked.reserved_for) if asked.reserved_for else error from None
        except NoPlanFound as error:
            if not watching.interrupted:
                raise
            say(str(error))
            return 130
    if watching.interrupted:
        say("interrupted: this is the best plan so far")
    asked.say(arguments)
    if arguments.output is not None:
        write(plan.to_json(), arguments.output)
    if arguments.output != "-":
        text = plan.to_json() if arguments.json else f"{narrowed(str(plan), print_width())}\n"
        sys.stdout.write(text)
    return 0

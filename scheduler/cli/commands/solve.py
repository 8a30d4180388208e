"""``solve``: one plan, printed, and written where that is asked."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace

from scheduler.cli import options
from scheduler.cli.io import check_output, numbers, say, write
from scheduler.cli.modelargs import add_model_options
from scheduler.cli.pipeline import add_pipeline_options, is_asked, solve_stages
from scheduler.common.errors import InfeasibleBudget, NoPlanFound, SchedulerError

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
    what = "with --model: a plan for each length of sequences, such as 1024,2048,4096"
    options.option(others, "--lengths LIST", what)
    options.add_graph_options(parser)
    add_pipeline_options(parser)
    add_model_options(parser)


def run(arguments: Namespace) -> int:
    """Print the plan; status 130 where Ctrl-C came before there was one."""
    from scheduler.api import solve
    from scheduler.cli.progress import Watching
    from scheduler.report.tables import narrowed, print_width

    check_output(arguments.output, arguments.costs, arguments.model)
    if is_asked(arguments):
        cut, interrupted = solve_stages(arguments)
        if interrupted:
            say("interrupted: this is the best plan so far")
        _print(cut.to_json(), cut.text(print_width()), arguments)
        return 0
    if arguments.lengths is not None:
        return _by_length(arguments)
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
    # Costs of no file go with the plan, for whatever needs them later.
    _print(
        plan.to_json(costs=arguments.costs is None), narrowed(str(plan), print_width()), arguments
    )
    return 0


def _by_length(arguments: Namespace) -> int:
    """Print plans by length, each of the model's costs at that length."""
    from scheduler.api import solve_by_length
    from scheduler.costs.bylength import check_lengths
    from scheduler.report.tables import print_width

    if arguments.model is None:
        raise SchedulerError(
            "--lengths needs costs at each length: name a model, as in --model llama-3-8b; of "
            "other costs scheduler.solve_by_length makes plans by length"
        )
    if arguments.sequence is not None:
        raise SchedulerError("--lengths and --sequence both say how long sequences are; give one")
    asked: dict[int, options.Asked] = {}
    for length in check_lengths(numbers(arguments.lengths, "lengths")):
        arguments.sequence = length
        asked[length] = options.costs_within(arguments)
    first = next(iter(asked.values()))
    try:
        plans = solve_by_length(
            {length: each.costs for length, each in asked.items()},
            budget=first.budget,
            reserved=first.reserved,
            batch=arguments.batch or 1,
            method=arguments.method,
        )
    except InfeasibleBudget as error:
        raise error.reserving(first.reserved_for) from None
    first.say(arguments)
    _print(plans.to_json(costs=True), plans.text(print_width()), arguments)
    return 0


def _print(file: str, text: str, arguments: Namespace) -> None:
    if arguments.output is not None:
        write(file, arguments.output)
    if arguments.output != "-":
        sys.stdout.write(file if arguments.json else f"{text}\n")

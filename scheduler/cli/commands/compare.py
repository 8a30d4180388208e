"""``compare``: what each method makes of a budget."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from scheduler.cli import options
from scheduler.cli.io import print_csv, print_json, say
from scheduler.cli.modelargs import add_model_options
from scheduler.cli.pipeline import add_pipeline_options, compare_stages, is_asked

HELP = "all methods within a budget, one row each"
USAGE = "COSTS --budget SIZE"


def add_arguments(parser: ArgumentParser) -> None:
    """The options of the command."""
    options.add_costs(parser)
    options.add_budget(parser)
    what = (
        "add a row for what a framework is set to, as in 'megatron: full block 12', 'every 4' or "
        "'layers: 0,3,7-9'; may be given again"
    )
    options.option(parser, "--against SETTING", what, action="append", default=[])
    others = options.others(parser)
    options.add_limits(others)
    options.add_formats(others)
    options.add_graph_options(parser, classes=False)
    add_pipeline_options(parser)
    add_model_options(parser)


def run(arguments: Namespace) -> int:
    """Print one row a method; status 3 when nothing fits, 4 when nothing was found."""
    from scheduler.api import compare
    from scheduler.cli.progress import Watching
    from scheduler.report.tables import print_width

    asked = None
    if is_asked(arguments):
        comparison, interrupted = compare_stages(arguments)
    else:
        asked = options.costs_within(arguments)
        with Watching(asked.costs, quiet=arguments.quiet) as watching:
            comparison = watching.run(
                "all methods",
                lambda: compare(
                    asked.costs,
                    budget=asked.budget,
                    reserved=asked.reserved,
                    watch=watching.watch,
                    against=arguments.against,
                    **options.limits_of(arguments),
                ),
            )
        interrupted = watching.interrupted
    if interrupted:
        say("interrupted: this is what was found so far")
    if asked is not None:
        asked.say(arguments)
    if arguments.json:
        print_json(comparison.to_dict())
    elif arguments.csv:
        print_csv(comparison.table())
    else:
        print(comparison.text(print_width()))
    if comparison.optimal.fits:
        return 0
    sentence = comparison.conclusion().rstrip(".")
    say(f"error: {sentence[0].lower()}{sentence[1:]}")
    if interrupted:
        return 130
    return 3 if comparison.set_by else 4

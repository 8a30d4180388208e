"""``diff``: two plans side by side."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from scheduler.cli.io import print_csv, print_json, read_plan, refuse_two_inputs
from scheduler.cli.options import add_formats

HELP = "which layers two plans treat differently, and what each of them costs"
USAGE = "PLAN PLAN"


def add_arguments(parser: ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("before", metavar="PLAN", help="a plan file, or - for standard input")
    parser.add_argument("after", metavar="PLAN", help="another one, of the same layers")
    add_formats(parser, csv="print the layers that differ as CSV")


def run(arguments: Namespace) -> int:
    """Print the layers that differ, and the figures of both plans."""
    from scheduler.plans.diff import diff_plans
    from scheduler.report.tables import print_width

    refuse_two_inputs("the two plans", arguments.before, arguments.after)
    found = diff_plans(read_plan(arguments.before), read_plan(arguments.after))
    if arguments.json:
        print_json(found.to_dict())
    elif arguments.csv:
        print_csv(found.table())
    else:
        print(found.text(("before", "after"), print_width()))
    return 0

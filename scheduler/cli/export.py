"""The ``export`` command: a plan file as a file for a training framework."""

from __future__ import annotations

import sys
from argparse import Namespace

from scheduler.cli.solve import _read
from scheduler.common.errors import InvalidPlan, SchedulerError
from scheduler.common.files import check_writable, write_atomically
from scheduler.costs.readers import read_costs_text
from scheduler.export import TARGETS, export
from scheduler.plans.plan import Plan

__all__ = ["run_export"]


def run_export(arguments: Namespace) -> int:
    """Print the file, or write it where asked; the sentences beside it go to standard error."""
    if arguments.target is None:
        raise SchedulerError(f"no target given; add --to with one of {', '.join(TARGETS)}")
    if arguments.plan == "-" and arguments.costs == "-":
        raise SchedulerError("the plan and the costs cannot both come from standard input")
    to_file = arguments.output not in (None, "-")
    if to_file:
        check_writable(arguments.output)
    plan = Plan.from_json(*_read(arguments.plan, "plan file", InvalidPlan))
    costs = (
        None if arguments.costs is None else read_costs_text(*_read(arguments.costs, "cost file"))
    )
    done = export(plan, arguments.target, costs, stages=arguments.stages)
    for note in done.notes:
        print(f"checkpoint-scheduler: {note}", file=sys.stderr)
    if not to_file:
        sys.stdout.write(done.text)
        return 0
    write_atomically(arguments.output, done.text)
    print(f"checkpoint-scheduler: wrote {arguments.output}", file=sys.stderr)
    return 0

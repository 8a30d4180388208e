"""``export``: a plan file as a file for a training framework."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from scheduler.cli.io import check_output, read_costs, read_plans, refuse_two_inputs, say, write
from scheduler.cli.options import option
from scheduler.common.errors import SchedulerError

if TYPE_CHECKING:
    from scheduler.plans.lengths import PlansByLength
    from scheduler.plans.plan import Plan

HELP = "a plan as a file for another framework"
USAGE = "PLAN --to TARGET"


def add_arguments(parser: ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("plan", metavar="PLAN", help="a plan file, or - for standard input")
    what = (
        "torch, transformers, lightning, accelerate, fsdp, torchtitan, megatron, deepspeed, "
        "axolotl, jax, json or json-schema"
    )
    option(parser, "--to TARGET", what, dest="target")
    option(parser, "--costs COSTS", "the plan's cost file, to choose flags and say their cost")
    option(parser, "-o --output FILE", "write the file here")
    option(parser, "--length N", "of plans by length: the plan of this one", type=int)
    option(parser, "--stages P", "pipeline stages, for megatron", type=int, default=1)


def run(arguments: Namespace) -> int:
    """Print the file, or write it where asked; the sentences beside it go to standard error."""
    from scheduler.export import TARGETS, export
    from scheduler.pipeline.plan import PipelinePlan

    if arguments.target is None:
        raise SchedulerError(f"no target given; add --to with one of {', '.join(TARGETS)}")
    refuse_two_inputs("the plan and the costs", arguments.plan, arguments.costs)
    check_output(arguments.output, arguments.plan, arguments.costs)
    plans = read_plans(arguments.plan)
    if isinstance(plans, PipelinePlan) and arguments.stages != 1:
        raise SchedulerError("the plan of a pipeline says its stages; leave out --stages")
    plan = plans if isinstance(plans, PipelinePlan) else _one(plans, arguments.length)
    costs = None if arguments.costs is None else read_costs(arguments.costs)
    done = export(plan, arguments.target, costs, stages=arguments.stages)
    for note in done.notes:
        say(note)
    write(done.text, arguments.output)
    return 0


def _one(plans: Plan | PlansByLength, length: int | None) -> Plan:
    """The plan to export: of plans by length the one that was asked for."""
    from scheduler.plans.plan import Plan

    if isinstance(plans, Plan):
        if length is not None:
            raise SchedulerError("--length is for a file of plans by length; this holds one plan")
        return plans
    if length is None or length not in plans:
        which = "none was named" if length is None else f"there is none for {length}"
        raise SchedulerError(
            f"an export is of one plan, and of these by length {which}; add --length with one of "
            f"{', '.join(map(str, plans))}"
        )
    return plans[length]

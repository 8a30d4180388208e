"""``show``: a cost file as a table, or a plan, replayed where its costs are given."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from scheduler.cli import options
from scheduler.cli.io import (
    numbers,
    plans_in,
    print_csv,
    print_json,
    read,
    read_costs,
    refuse_two_inputs,
)
from scheduler.cli.modelargs import add_model_options
from scheduler.common.errors import InvalidCosts, InvalidPlan

if TYPE_CHECKING:
    from scheduler.cli.io import AnyPlan
    from scheduler.costs.readers import Costs
    from scheduler.costs.recorded.snapshots import Snapshot
    from scheduler.costs.recorded.traces import Trace
    from scheduler.pipeline.plan import PipelinePlan
    from scheduler.plans.lengths import PlansByLength
    from scheduler.plans.plan import Plan

HELP = "a cost file as a table, a plan file, or what torch recorded of a run"
USAGE = "COSTS"


def add_arguments(parser: ArgumentParser) -> None:
    """The options of the command."""
    options.add_costs(parser, "cost or plan")
    options.option(
        parser, "--costs COSTS", "replay the plan on them, not its own", dest="plan_costs"
    )
    what = "of plans by length: the run's lengths, a list or a file of them, for what it loses"
    options.option(parser, "--steps LENGTHS", what)
    options.add_formats(
        parser,
        "print the costs as a cost file, or the plan's rows",
        "print the rows of a plan, which needs its costs",
    )
    add_model_options(parser)


def run(arguments: Namespace) -> int:
    """Print the table, the plan, or its rows."""
    from scheduler.costs.recorded.snapshots import Snapshot
    from scheduler.costs.recorded.traces import Trace
    from scheduler.pipeline.plan import PipelinePlan
    from scheduler.plans.lengths import PlansByLength
    from scheduler.plans.plan import Plan
    from scheduler.report.tables import print_width

    refuse_two_inputs("the plan and the costs", arguments.costs, arguments.plan_costs)
    if arguments.example == "list":
        return _list_examples()
    shown = _named(arguments)
    if isinstance(shown, PlansByLength):
        return _show_by_length(shown, arguments)
    if arguments.steps is not None:
        raise InvalidPlan("--steps is for a file of plans by length, and this is none")
    if isinstance(shown, PipelinePlan):
        _show_pipeline(shown, arguments)
    elif isinstance(shown, Plan):
        _show_plan(shown, arguments)
    elif isinstance(shown, Trace | Snapshot):
        if arguments.json or arguments.csv or arguments.plan_costs is not None:
            raise InvalidCosts(f"{arguments.costs} is what torch recorded, shown as text alone")
        print(shown.text(print_width()))
    elif arguments.plan_costs is not None:
        raise InvalidPlan("--costs replays a plan, but what is shown is a cost file")
    elif arguments.csv:
        raise InvalidPlan("--csv prints the rows of a plan, but what is shown is a cost file")
    else:
        # write, since a cost file ends its last line itself
        sys.stdout.write(shown.to_json() if arguments.json else f"{shown.text(print_width())}\n")
    return 0


def _list_examples() -> int:
    from scheduler.costs.costgraph import CostGraph
    from scheduler.report.tables import narrowed, print_width

    for name in CostGraph.example_names():
        print(narrowed(f"{name:<12}  {CostGraph.example(name).note}", print_width()))
    return 0


def _named(arguments: Namespace) -> AnyPlan | Costs | Trace | Snapshot:
    from scheduler.costs.csvtext import is_csv
    from scheduler.costs.readers import read_costs_text
    from scheduler.costs.recorded.read import read_recorded
    from scheduler.pipeline.file import KIND as PIPELINE
    from scheduler.plans.file.fields import KIND
    from scheduler.plans.file.items import parse_plan
    from scheduler.plans.lengths import KIND as BY_LENGTH

    if arguments.example is not None or arguments.model is not None or arguments.costs is None:
        asked = options.costs_of(arguments)
        if arguments.csv or arguments.plan_costs is not None:
            return asked.costs
        asked.say(arguments)
        return asked.costs
    options.refuse_model_options(arguments)
    recorded = read_recorded(arguments.costs)
    if recorded is not None:
        return recorded
    text, source = read(arguments.costs, "cost or plan file")
    value = None if is_csv(text, source) else parse_plan(text, source)
    if any(kind.is_said_by(value) for kind in (KIND, BY_LENGTH, PIPELINE)):
        options.refuse_around(arguments, "this is a plan")
        return plans_in(text, source)
    return read_costs_text(text, source, options.around_layers(arguments))


def _show_pipeline(plan: PipelinePlan, arguments: Namespace) -> None:
    from scheduler.report.tables import print_width

    if arguments.json or arguments.csv:
        raise InvalidPlan("the plan of a pipeline is shown as text alone; its file is JSON")
    if arguments.plan_costs is not None:
        plan.replay(read_costs(arguments.plan_costs))
        said = "Replayed: every stage's peak and the time of a step are as the plan says."
    else:
        said = "Not replayed: --costs COSTS executes it on the costs that it was made for."
    print(f"{plan.text(print_width())}\n\n{said}")


def _show_by_length(plans: PlansByLength, arguments: Namespace) -> int:
    from scheduler.report.tables import format_percent, print_width, wrapped

    if arguments.plan_costs is not None or arguments.csv:
        raise InvalidPlan(
            "these are plans by length, of several costs; take one out to replay it: "
            "checkpoint-scheduler export FILE --to json --length N"
        )
    lost = None if arguments.steps is None else plans.run_overhead(_run_lengths(arguments.steps))
    if arguments.json:
        print_json(plans.to_dict() | ({} if lost is None else {"run": lost._asdict()}))
        return 0
    print(plans.text(print_width()))
    if lost is not None:
        said = (
            f"The run loses {format_percent(lost.by_length)} of its time, and "
            f"{format_percent(lost.longest)} with the plan of the longest for all its steps."
        )
        print(wrapped(said, print_width()))
    return 0


def _run_lengths(given: str) -> list[int]:
    """Lengths that an option holds, or the file that it names."""
    import os

    if os.path.exists(given) or given == "-":
        given = ",".join(read(given, "file of lengths")[0].replace(",", " ").split())
    return numbers(given, "steps")


def _show_plan(plan: Plan, arguments: Namespace) -> None:
    from scheduler.common.text import format_bytes, format_time
    from scheduler.plans.rows import plan_rows, plan_summary, rows_table, rows_text
    from scheduler.report.tables import narrowed, print_width, wrapped

    if arguments.plan_costs is None and not plan.carries_costs:
        if arguments.json or arguments.csv:
            raise InvalidPlan(
                "--json and --csv print the costs of a model, an example or a cost file, not a "
                "plan, whose rows need its costs: add --costs COSTS"
            )
        said = "Not replayed: --costs COSTS executes it on the costs that it was made for."
        print(narrowed(f"{plan}\n\n{said}", print_width()))
        return
    given = None if arguments.plan_costs is None else read_costs(arguments.plan_costs)
    # What the plan says is shown only once its replay says the same.
    done = plan.replay(given)
    rows = plan_rows(plan, given)
    if arguments.csv:
        print_csv(rows_table(rows))
    elif arguments.json:
        record = {"peak_bytes": done.peak_bytes, "time": done.time, "set_by": done.set_by}
        print_json({**record, "rows": [row._asdict() for row in rows]})
    else:
        print("\n".join(plan_summary(plan, print_width())), end="\n\n")
        print(rows_text(plan, rows, print_width()), end="\n\n")
        said = (
            f"Replayed: the peak of {format_bytes(done.peak_bytes)} is set by {done.set_by}; "
            f"a step takes {format_time(done.time, plan.time_unit)}."
        )
        print(wrapped(said, print_width()))

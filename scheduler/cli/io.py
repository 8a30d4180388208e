"""What the commands read, and how they print: data on standard output, messages beside it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from scheduler.common.errors import InvalidCosts, InvalidPlan, SchedulerError

if TYPE_CHECKING:
    from scheduler.costs.readers import Costs
    from scheduler.pipeline.plan import PipelinePlan
    from scheduler.plans.lengths import PlansByLength
    from scheduler.plans.plan import Plan

    AnyPlan = Plan | PlansByLength | PipelinePlan

PROGRAM = "checkpoint-scheduler"


def say(message: str) -> None:
    """Print a message on standard error."""
    print(f"{PROGRAM}: {message}", file=sys.stderr)


def read(path: str, what: str, error: type[SchedulerError] = InvalidCosts) -> tuple[str, str]:
    """The text of a file or, for ``-``, of standard input, and what a message calls it."""
    from scheduler.common.files import decoded, read_text

    if path != "-":
        if error is InvalidCosts:
            _refuse_a_name(path, what)
        return read_text(path, what, error), path
    try:
        return decoded(sys.stdin.buffer.read(), "standard input", what, error), "standard input"
    except OSError as cause:
        raise error(f"cannot read standard input: {cause.strerror or cause}") from cause


def _refuse_a_name(path: str, what: str) -> None:
    """Raise where no file but an example or a model is called so."""
    from os.path import exists

    from scheduler.costs.costgraph import CostGraph
    from scheduler.memory.shape.load import shape_names

    if exists(path):
        return
    for option, names in (("example", CostGraph.example_names()), ("model", shape_names())):
        if path.lower() in names:
            raise InvalidCosts(f"there is no {what} {path!r}; did you mean --{option} {path}?")


def read_costs(path: str, **around: Any) -> Costs:
    """The costs in a file or on standard input, with what is said `around` a list of layers."""
    from scheduler.costs.readers import read_costs_text

    return read_costs_text(*read(path, "cost file"), around)


def read_plan(path: str) -> Plan:
    """The plan in a file or on standard input."""
    from scheduler.plans.plan import Plan

    return Plan.from_json(*read(path, "plan file", InvalidPlan))


def read_plans(path: str) -> AnyPlan:
    """The plan in a file or on standard input, or plans by length, or a pipeline's."""
    return plans_in(*read(path, "plan file", InvalidPlan))


def plans_in(text: str, source: str) -> AnyPlan:
    """The plan in a text, or plans by length, or a pipeline's."""
    from scheduler.pipeline.file import KIND as PIPELINE
    from scheduler.pipeline.plan import PipelinePlan
    from scheduler.plans.file.items import parse_plan
    from scheduler.plans.lengths import KIND, PlansByLength
    from scheduler.plans.plan import Plan

    value = parse_plan(text, source)
    if PIPELINE.is_said_by(value):
        return PipelinePlan.from_json(text, source)
    return (PlansByLength if KIND.is_said_by(value) else Plan).from_json(text, source)


def numbers(text: str, option: str) -> list[int]:
    """Whole numbers joined by commas, as an option holds them."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise SchedulerError(
            f"--{option} {text!r} is no list of whole numbers; write it as 1024,2048,4096"
        ) from None


def refuse_two_inputs(what: str, *paths: str | None) -> None:
    """Raise where more than one of the files is standard input."""
    if paths.count("-") > 1:
        raise SchedulerError(
            f"{what} cannot both come from standard input; name a file for one of them"
        )


def check_output(path: str | None, *inputs: str | None) -> None:
    """Raise what `write` would, before the work whose result is to be written.

    And where the file is one of the `inputs`, which would be lost.
    """
    if path is None or path == "-":
        return
    from os.path import exists, samefile

    from scheduler.common.files import check_writable

    for each in inputs:
        if each and exists(each) and exists(path) and samefile(each, path):
            raise SchedulerError(
                f"the output {path!r} is also what is read, and would replace it; name another "
                "file with -o"
            )
    check_writable(path)


def write(text: str, path: str | None) -> None:
    """Write a file, whole or not at all; None and ``-`` are standard output."""
    if path in (None, "-"):
        sys.stdout.write(text)
        return
    from scheduler.common.files import write_atomically

    write_atomically(path, text)
    say(f"wrote {path}")


def print_csv(rows: Iterable[Sequence[object]]) -> None:
    """Print rows as comma-separated values."""
    import csv

    csv.writer(sys.stdout, lineterminator="\n").writerows(rows)


def print_json(record: object) -> None:
    """Print a record as JSON."""
    import json

    print(json.dumps(record, indent=1))

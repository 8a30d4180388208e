"""What each command does, once its arguments are read."""

from __future__ import annotations

import csv
import json
import sys
import textwrap
from argparse import Namespace
from collections.abc import Iterable, Sequence

from scheduler import api
from scheduler.cli.modelargs import MODEL_OPTIONS
from scheduler.cli.progress import watched
from scheduler.common.errors import (
    InvalidBudget,
    InvalidCosts,
    InvalidPlan,
    NoPlanFound,
    SchedulerError,
)
from scheduler.common.files import check_writable, read_text
from scheduler.common.text import format_both, format_bytes, format_time
from scheduler.common.units import parse_bytes
from scheduler.costs.costgraph import CostGraph
from scheduler.costs.readers import Costs, read_costs_text
from scheduler.planning.frontier import ROWS
from scheduler.planning.graph.compare import GraphComparison
from scheduler.planning.graph.frontier import ROW_FIELDS, GraphFrontier
from scheduler.plans.file.items import is_plan, parse_plan
from scheduler.plans.plan import Plan
from scheduler.plans.rows import plan_rows, plan_summary, rows_table, rows_text
from scheduler.report.tables import narrowed, print_width, spread

__all__ = ["compare", "frontier", "show", "solve"]

_DATA = (
    "name a cost file, - for standard input, or an example: --example gpt2-small; "
    "or a model: --model llama-3-8b"
)


def solve(arguments: Namespace) -> int:
    """``solve``: print the plan, and write it where asked; ``-`` is standard output."""
    if arguments.output == "-":
        arguments.json, arguments.output = True, None
    if arguments.output is not None:
        check_writable(arguments.output)
    costs, reserved = _read_reserving(arguments)
    with watched(costs, arguments.stop_waiting, quiet=arguments.quiet) as watching:
        try:
            plan = watching.run(
                "the best plan",
                lambda: api.solve(
                    costs,
                    budget=_budget(arguments),
                    reserved=reserved,
                    method=arguments.method,
                    max_points=arguments.max_points,
                    memory_limit=arguments.memory_limit,
                    time_limit=arguments.time_limit,
                    optimal_in=arguments.optimal_in,
                    threads=arguments.threads,
                    watch=watching.watch,
                ),
            )
        except NoPlanFound as error:
            if not watching.interrupted:
                raise
            _say(str(error))
            return 130
    if watching.interrupted:
        _say("interrupted: this is the best plan so far")
    if arguments.output is not None:
        plan.save(arguments.output)
        _say(f"wrote {arguments.output}")
    text = plan.to_json() if arguments.json else f"{narrowed(str(plan), print_width())}\n"
    sys.stdout.write(text)
    return 0


def compare(arguments: Namespace) -> int:
    """``compare``: one row a method; status 3 when nothing fits, 4 when nothing was found."""
    costs, reserved = _read_reserving(arguments)
    with watched(costs, arguments.stop_waiting, quiet=arguments.quiet) as watching:
        comparison = watching.run(
            "all methods",
            lambda: api.compare(
                costs,
                budget=_budget(arguments),
                reserved=reserved,
                max_points=arguments.max_points,
                memory_limit=arguments.memory_limit,
                time_limit=arguments.time_limit,
                threads=arguments.threads,
                watch=watching.watch,
                against=arguments.against,
            ),
        )
    if watching.interrupted:
        _say("interrupted: this is what was found so far")
    if arguments.json:
        print(json.dumps(comparison.to_dict(), indent=1))
    elif arguments.csv:
        _print_csv(comparison.table())
    else:
        print(comparison.text(print_width()))
    if comparison.optimal.fits:
        return 0
    sentence = comparison.conclusion().rstrip(".")
    _say(f"error: {sentence[0].lower()}{sentence[1:]}")
    if watching.interrupted:
        return 130
    return 4 if isinstance(comparison, GraphComparison) and not comparison.set_by else 3


def frontier(arguments: Namespace) -> int:
    """``frontier``: every optimal pair of peak and time."""
    if arguments.points is not None and arguments.points < 1:
        raise InvalidBudget(f"--points must be at least 1, got {arguments.points}")
    costs = _read_costs(arguments)
    of_graph = not (isinstance(costs, CostGraph) and costs.is_chain)
    with watched(costs, arguments.stop_waiting, quiet=arguments.quiet) as watching:
        result = watching.run(
            "the frontier",
            lambda: api.frontier(
                costs,
                max_points=arguments.max_points,
                memory_limit=arguments.memory_limit,
                # Of a chain all points are there, and some of them are shown.
                points=arguments.points if of_graph else None,
                time_limit=arguments.time_limit,
                optimal_in=arguments.optimal_in,
                threads=arguments.threads,
                watch=watching.watch,
            ),
        )
    if watching.interrupted:
        _say("interrupted: these are the budgets solved so far")
    points = spread(result.points, arguments.points or len(result))
    if arguments.json:
        print(json.dumps(result.to_dict(points), indent=1))
    elif arguments.csv and isinstance(result, GraphFrontier):
        _print_csv([ROW_FIELDS, *result.rows()])
    elif arguments.csv:
        rows = [(peak, time, result.overhead(time)) for peak, time in points]
        _print_csv([("peak_bytes", "time", "overhead"), *rows])
    else:
        print(result.table(arguments.points or ROWS, print_width()))
    return 0


def show(arguments: Namespace) -> int:
    """``show``: a cost file as a table, or a plan, replayed where its costs are given."""
    if arguments.example is not None or arguments.model is not None or arguments.costs is None:
        shown: Plan | Costs = _read_costs(arguments)
    else:
        _refuse_model_options(arguments)
        text, source = _read(arguments.costs, "cost or plan file")
        of_plan = is_plan(parse_plan(text, source))
        shown = Plan.from_json(text, source) if of_plan else read_costs_text(text, source)
    if not isinstance(shown, Plan):
        if arguments.plan_costs is not None:
            raise InvalidPlan("--costs replays a plan, but what is shown is a cost file")
        if arguments.csv:
            raise InvalidPlan("--csv prints the rows of a plan, but what is shown is a cost file")
        # write, since a cost file ends its last line itself
        text = shown.to_json() if arguments.json else f"{shown.text(print_width())}\n"
        sys.stdout.write(text)
        return 0
    if (arguments.json or arguments.csv) and arguments.plan_costs is None:
        raise InvalidPlan(
            "--json and --csv print the costs of a model, an example or a cost file, not a plan, "
            "whose rows need its costs: add --costs COSTS"
        )
    _show_plan(shown, arguments)
    return 0


def _show_plan(plan: Plan, arguments: Namespace) -> None:
    if arguments.plan_costs is None:
        said = "Not replayed: --costs COSTS executes it on the costs that it was made for."
        print(narrowed(f"{plan}\n\n{said}", print_width()))
        return
    costs = read_costs_text(*_read(arguments.plan_costs, "cost file"))
    # What the plan says is shown only once its replay says the same.
    done = plan.replay(costs)
    rows = plan_rows(plan, costs)
    if arguments.csv:
        _print_csv(rows_table(rows))
    elif arguments.json:
        record = {"peak_bytes": done.peak_bytes, "time": done.time, "set_by": done.set_by}
        print(json.dumps({**record, "rows": [row._asdict() for row in rows]}, indent=1))
    else:
        print("\n".join(plan_summary(plan, print_width())), end="\n\n")
        print(rows_text(plan, rows, print_width()), end="\n\n")
        said = (
            f"Replayed: the peak of {format_bytes(done.peak_bytes)} is set by {done.set_by}; "
            f"a step takes {format_time(done.time, plan.time_unit)}."
        )
        print(textwrap.fill(said, print_width(), break_long_words=False, break_on_hyphens=False))


def _budget(arguments: Namespace) -> str:
    if arguments.budget is None:
        raise InvalidBudget("no budget given; add one, as in --budget 40GB or --budget 40GiB")
    budget: str = arguments.budget
    return budget


def _read_reserving(arguments: Namespace) -> tuple[Costs, object]:
    """The costs, and what comes off the budget: as asked, and a model's state on top."""
    costs, state = _read_costs_and_state(arguments)
    if not state:
        return costs, arguments.reserved
    from scheduler.cli.fit import check_room

    assert isinstance(costs, CostGraph)  # only a model has a state, and it is a chain
    reserved = state + parse_bytes(arguments.reserved, what="reserved", allow_zero=True)
    check_room(costs, parse_bytes(_budget(arguments)), reserved)
    _say_state(state, "comes off the budget")
    return costs, reserved


def _read_costs(arguments: Namespace) -> Costs:
    costs, state = _read_costs_and_state(arguments)
    if state:
        _say_state(state, "comes on top of these figures")
    return costs


def _read_costs_and_state(arguments: Namespace) -> tuple[Costs, int]:
    """The costs that are named, and the persistent state of a model with --optimizer."""
    sources = [
        *([repr(arguments.costs)] if arguments.costs is not None else []),
        *([f"--example {arguments.example}"] if arguments.example is not None else []),
        *([f"--model {arguments.model}"] if arguments.model is not None else []),
    ]
    if not sources:
        raise InvalidCosts(f"no costs given; {_DATA}")
    if len(sources) > 1:
        raise InvalidCosts(f"both {sources[0]} and {sources[1]} are given; name one")
    if arguments.model is not None:
        from scheduler.cli.fit import model_costs

        return model_costs(arguments)
    _refuse_model_options(arguments)
    if arguments.example is not None:
        return CostGraph.example(arguments.example), 0
    return read_costs_text(*_read(arguments.costs, "cost file")), 0


def _refuse_model_options(arguments: Namespace) -> None:
    for name in MODEL_OPTIONS:
        if getattr(arguments, name) is not None:
            raise SchedulerError(f"--{name} describes a model; name it, as in --model llama-3-8b")


def _say_state(state_bytes: int, what: str) -> None:
    # The gradients of a step are in its costs, so a plan has them already.
    _say(f"the persistent state without gradients, {format_both(state_bytes)}, {what}")


def _say(message: str) -> None:
    print(f"checkpoint-scheduler: {message}", file=sys.stderr)


def _read(path: str, what: str, error: type[SchedulerError] = InvalidCosts) -> tuple[str, str]:
    """The text of a file or of standard input, and what a message calls it."""
    if path != "-":
        return read_text(path, what, error), path
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig"), "standard input"
    except UnicodeDecodeError as error:
        raise SchedulerError(
            f"standard input is not UTF-8 text (byte {error.start}); a {what} is JSON text"
        ) from error


def _print_csv(rows: Iterable[Sequence[object]]) -> None:
    csv.writer(sys.stdout, lineterminator="\n").writerows(rows)

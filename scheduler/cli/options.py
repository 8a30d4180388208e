"""Options that several commands share, and the costs and limits that they name."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any, NamedTuple

from scheduler.cli.io import read_costs, say
from scheduler.cli.modelargs import MODEL_OPTIONS, add_model
from scheduler.common.errors import InvalidBudget, InvalidCosts, SchedulerError

if TYPE_CHECKING:
    from argparse import _ActionsContainer

    from scheduler.costs.readers import Costs
    from scheduler.planning.request import Budget
    from solvers.problem import Problem

SIZE = "as in 40GB (40·10⁹ bytes), 40GiB (40·2³⁰) or a number of bytes"

_DATA = (
    "name a cost file, - for standard input, or an example: --example gpt2-small; "
    "or a model: --model llama-3-8b"
)
_NEXT_TO_NOTHING = 10**4
"""A budget of so many times what a model needs is of another unit than its costs, mostly."""
_AROUND = ("input_bytes", "time_unit")
_LIMITS = ("max_points", "memory_limit", "time_limit", "optimal_in", "threads")


def option(parser: _ActionsContainer, shown: str, text: str, **how: Any) -> None:
    """Add an option as its help shows it: ``-o --output FILE``, or ``--json``, which is a flag."""
    *names, last = shown.split()
    if last.startswith("-"):
        parser.add_argument(*names, last, action="store_true", help=text, **how)
    else:
        parser.add_argument(*names, metavar=last, help=text, **how)


def others(parser: ArgumentParser) -> _ActionsContainer:
    """A group for what is not among the main options, which stand first in the help."""
    return parser.add_argument_group("more options")


def add_costs(parser: ArgumentParser, kind: str = "cost") -> None:
    """Add COSTS, --example and --model; the others of a model are of `scheduler.cli.modelargs`."""
    what = f"a {kind} file, a list of layers (CSV or JSON), or - for standard input"
    parser.add_argument("costs", nargs="?", metavar="COSTS", help=what)
    option(
        parser,
        "--example NAME",
        "costs that come with the package, such as gpt2-small (show --example list: all)",
    )
    add_model(parser)
    group = parser.add_argument_group("beside a list of layers (CSV or JSON)")
    option(group, "--input-bytes SIZE", "of the first layer's input (default: 0)")
    option(group, "--time-unit UNIT", "of its times: s, ms (default), us or ns")


def add_budget(parser: ArgumentParser) -> None:
    """Add --budget and --reserved."""
    option(
        parser,
        "--budget SIZE",
        f"memory of a training step, {SIZE}; with --model default: the GPU's",
    )
    what = (
        "comes off the budget first: weights, optimizer state, margin; with --model on top of the "
        "state and the margin, which are counted"
    )
    option(parser, "--reserved SIZE", what, default="0")


def add_limits(parser: _ActionsContainer) -> None:
    """Add what limits the solver of chains."""
    what = "thin sets of more points: faster, with a certified gap"
    option(parser, "--max-points N", what, type=int)
    option(parser, "--memory-limit SIZE", "thin sets that would take more (default: 1GiB)")


def add_graph_options(parser: ArgumentParser, *, classes: bool = True) -> None:
    """Add what limits the solvers of graphs."""
    group = parser.add_argument_group("graphs")
    what = (
        "then the best plan so far, with its gap (solve, of chains too: no limit; compare: 30 for "
        "each method; frontier: 30 for each budget)"
    )
    option(group, "--time-limit SECONDS", what, type=float)
    if classes:
        what = "plans among which to prove it: forward, staged, or any for small graphs"
        option(group, "--optimal-in CLASS", what)
    option(group, "--threads N", "of the solvers (default: 1)", type=int)
    option(group, "--quiet", "show no progress on a terminal")


def add_formats(
    parser: _ActionsContainer, json: str = "print JSON", csv: str = "print comma-separated values"
) -> None:
    """Add --json and --csv, of which one may be given."""
    formats = parser.add_mutually_exclusive_group()
    option(formats, "--json", json)
    option(formats, "--csv", csv)


def limits_of(arguments: Namespace) -> dict[str, Any]:
    """What limits the solvers, as `scheduler.api` takes it; only what the command has."""
    given = vars(arguments)
    return {name: given[name] for name in _LIMITS if name in given}


def named_costs(arguments: Namespace) -> Costs:
    """The costs of --example, or else of COSTS."""
    if arguments.example is None:
        return read_costs(arguments.costs, **around_layers(arguments))
    from scheduler.costs.costgraph import CostGraph
    from scheduler.costs.readers import as_any_costs

    return as_any_costs(CostGraph.example(arguments.example), **around_layers(arguments))


def around_layers(arguments: Namespace) -> dict[str, Any]:
    """What is said beside a list of layers; only what is given."""
    given = vars(arguments)
    around = {name: given[name] for name in _AROUND if given.get(name) is not None}
    if "input_bytes" in around:
        from scheduler.common.units import parse_bytes

        size = parse_bytes(around["input_bytes"], what="--input-bytes", allow_zero=True)
        around["input_bytes"] = size
    if "time_unit" in around:
        from scheduler.common.text import shown
        from scheduler.costs.base import NANOSECONDS

        if (unit := around["time_unit"]) not in NANOSECONDS:
            raise InvalidCosts(f"--time-unit {shown(unit)} is none of {', '.join(NANOSECONDS)}")
    return around


class Asked(NamedTuple):
    """Costs, a budget, and what comes off it; sizes as `scheduler.solve` takes them.

    Of a model also what its reserve is for, and a line that says it.
    """

    costs: Costs
    budget: str | Budget | None = None
    reserved: str = "0"
    reserved_for: str = ""
    line: str = ""

    def say(self, arguments: Namespace) -> None:
        """Print the line: with the text of the command, or beside its data."""
        from scheduler.report.tables import print_width, wrapped

        given = vars(arguments)
        if self.line and (given["json"] or given.get("csv") or given.get("output") == "-"):
            say(self.line)
        elif self.line:
            print(wrapped(self.line, print_width()))


def costs_of(arguments: Namespace, *, within: bool = False) -> Asked:
    """The costs that are named; where they are a model's, also what is set aside of its GPU.

    `within`: of which something must be left.
    """
    _refuse_two_costs(arguments)
    if arguments.model is not None:
        refuse_around(arguments, "a model's costs say it")
        return _of_model(arguments, within)
    refuse_model_options(arguments)
    return Asked(named_costs(arguments))


def costs_within(arguments: Namespace) -> Asked:
    """The costs that are named, the budget, which may be left out for a model's, and the reserve.

    A model's state and margin come off the budget first, and what is reserved on top.
    """
    asked = costs_of(arguments, within=True)
    if asked.budget is not None:
        return asked
    if arguments.budget is None:
        raise InvalidBudget("no budget given; add one, as in --budget 40GB or --budget 40GiB")
    _note_units(asked.costs, arguments.budget)
    return Asked(asked.costs, arguments.budget, arguments.reserved)


def _note_units(costs: Costs, budget: str) -> None:
    """Say it where the whole model is next to nothing of a budget of megabytes or more."""
    from scheduler.common.text import format_bytes
    from scheduler.common.units import parse_bytes

    problem: Problem[Any] = costs.to_problem()
    whole = problem.replay(problem.keep_all()).peak_bytes
    if parse_bytes(budget) > max(_NEXT_TO_NOTHING * whole, 10**6):
        say(
            f"note: keeping everything takes {format_bytes(whole)}, next to nothing of the budget "
            f"of {budget}; sizes in costs are bytes: are these MB?"
        )


def _of_model(arguments: Namespace, within: bool) -> Asked:
    """What ``fit`` says of the model."""
    from scheduler.cli.fit import aside_line, fitted, set_aside
    from scheduler.common.errors import InfeasibleBudget
    from scheduler.common.units import check_unit, parse_bytes

    found, state = fitted(arguments), arguments.state != "none"
    asked = getattr(arguments, "reserved", "0")
    more = parse_bytes(asked, what="reserved", allow_zero=True)
    check_unit("reserved", None, asked, more, lambda: found.peak_bytes)
    size, what = set_aside(found, more, state=state)
    if within and size.available <= 0:
        least, reserved = size.smallest(found.least_bytes), size.reserved
        raise InfeasibleBudget(size.asked, least, found.set_by, reserved, reserved_for=what)
    line = aside_line(found, size, what, state=state)
    return Asked(found.costs, size, reserved_for=what, line=line)


def refuse_around(arguments: Namespace, why: str) -> None:
    """Raise where something is said beside costs that are no list of layers."""
    for name in around_layers(arguments):
        raise SchedulerError(
            f"--{name.replace('_', '-')} describes a list of layers, and {why}; leave it out"
        )


def refuse_model_options(arguments: Namespace) -> None:
    """Raise where a model is described and none is named."""
    for name in MODEL_OPTIONS:
        if getattr(arguments, name) is not None:
            raise SchedulerError(f"--{name} describes a model; name it, as in --model llama-3-8b")


def _refuse_two_costs(arguments: Namespace) -> None:
    """Raise where costs are named twice, or not at all."""
    sources = [
        *([repr(arguments.costs)] if arguments.costs is not None else []),
        *([f"--example {arguments.example}"] if arguments.example is not None else []),
        *([f"--model {arguments.model}"] if arguments.model is not None else []),
    ]
    if not sources:
        raise InvalidCosts(f"no costs given; {_DATA}")
    if len(sources) > 1:
        raise InvalidCosts(f"both {sources[0]} and {sources[1]} are given; name one")

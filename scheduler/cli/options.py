"""Options that several commands share, and the costs and limits that they name."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from scheduler.cli.io import read_costs, say
from scheduler.cli.modelargs import MODEL_OPTIONS
from scheduler.common.errors import InvalidBudget, InvalidCosts, SchedulerError

if TYPE_CHECKING:
    from argparse import _ActionsContainer

    from scheduler.costs.readers import Costs

__all__ = ["SIZE", "add_budget", "add_costs", "add_formats", "add_graph_options", "add_limits"]
__all__ += ["budget_of", "costs_of", "costs_within", "limits_of", "named_costs"]
__all__ += ["option", "refuse_model_options"]

SIZE = "as in 40GB (40·10⁹ bytes), 40GiB (40·2³⁰) or a number of bytes"

_DATA = (
    "name a cost file, - for standard input, or an example: --example gpt2-small; "
    "or a model: --model llama-3-8b"
)
_LIMITS = ("max_points", "memory_limit", "time_limit", "optimal_in", "threads")


def option(parser: _ActionsContainer, shown: str, text: str, **how: Any) -> None:
    """Add an option as its help shows it: ``-o --output FILE``, or ``--json``, which is a flag."""
    *names, last = shown.split()
    if last.startswith("-"):
        parser.add_argument(*names, last, action="store_true", help=text, **how)
    else:
        parser.add_argument(*names, metavar=last, help=text, **how)


def add_costs(parser: ArgumentParser, kind: str = "cost") -> None:
    """Add COSTS and --example; --model is of `scheduler.cli.modelargs`."""
    what = f"a {kind} file, or - for standard input"
    parser.add_argument("costs", nargs="?", metavar="COSTS", help=what)
    option(parser, "--example NAME", "costs that come with the package")


def add_budget(parser: ArgumentParser) -> None:
    """Add --budget and --reserved."""
    option(parser, "--budget SIZE", f"memory of a training step, {SIZE}")
    what = "comes off the budget first: weights, optimizer state, margin"
    option(parser, "--reserved SIZE", what, default=0)


def add_limits(parser: ArgumentParser) -> None:
    """Add what limits the solver of chains."""
    what = "thin sets of more points: faster, with a certified gap"
    option(parser, "--max-points N", what, type=int)
    option(parser, "--memory-limit SIZE", "thin sets that would take more (default: 1GiB)")


def add_graph_options(parser: ArgumentParser, *, classes: bool = True) -> None:
    """Add what limits the solvers of graphs."""
    group = parser.add_argument_group("graphs")
    what = (
        "then the best plan so far, with its gap (solve: no limit; compare: 30 for each method; "
        "frontier: 30 for each budget)"
    )
    option(group, "--time-limit SECONDS", what, type=float)
    if classes:
        what = "plans among which to prove it: forward, staged, or any for small graphs"
        option(group, "--optimal-in CLASS", what)
    option(group, "--threads N", "of the solvers (default: 1)", type=int)
    option(group, "--quiet", "show no progress on a terminal")


def add_formats(
    parser: ArgumentParser, json: str = "print JSON", csv: str = "print comma-separated values"
) -> None:
    """Add --json and --csv, of which one may be given."""
    formats = parser.add_mutually_exclusive_group()
    option(formats, "--json", json)
    option(formats, "--csv", csv)


def limits_of(arguments: Namespace) -> dict[str, Any]:
    """What limits the solvers, as `scheduler.api` takes it; only what the command has."""
    given = vars(arguments)
    return {name: given[name] for name in _LIMITS if name in given}


def budget_of(arguments: Namespace) -> str:
    """The budget, which must be given."""
    if arguments.budget is None:
        raise InvalidBudget("no budget given; add one, as in --budget 40GB or --budget 40GiB")
    budget: str = arguments.budget
    return budget


def named_costs(arguments: Namespace) -> Costs:
    """The costs of --example, or else of COSTS."""
    if arguments.example is None:
        return read_costs(arguments.costs)
    from scheduler.costs.costgraph import CostGraph

    return CostGraph.example(arguments.example)


def costs_of(arguments: Namespace) -> Costs:
    """The costs that are named, a model's among them."""
    costs, state = _costs_and_state(arguments)
    if state:
        _say_state(state, "comes on top of these figures")
    return costs


def costs_within(arguments: Namespace) -> tuple[Costs, object]:
    """The costs, and what comes off the budget: as asked, and a model's state on top."""
    costs, state = _costs_and_state(arguments)
    if not state:
        return costs, arguments.reserved
    from scheduler.cli.fit import check_room
    from scheduler.common.units import parse_bytes
    from scheduler.costs.costgraph import CostGraph

    assert isinstance(costs, CostGraph)  # only a model has a state, and it is a chain
    reserved = state + parse_bytes(arguments.reserved, what="reserved", allow_zero=True)
    check_room(costs, parse_bytes(budget_of(arguments)), reserved)
    _say_state(state, "comes off the budget")
    return costs, reserved


def refuse_model_options(arguments: Namespace) -> None:
    """Raise where a model is described and none is named."""
    for name in MODEL_OPTIONS:
        if getattr(arguments, name) is not None:
            raise SchedulerError(f"--{name} describes a model; name it, as in --model llama-3-8b")


def _costs_and_state(arguments: Namespace) -> tuple[Costs, int]:
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
    refuse_model_options(arguments)
    return named_costs(arguments), 0


def _say_state(state_bytes: int, what: str) -> None:
    from scheduler.common.text import format_both

    # The gradients of a step are in its costs, so a plan has them already.
    say(f"the persistent state without gradients, {format_both(state_bytes)}, {what}")

"""Pipelines on the command line: what `solve` and `compare` do with --stages."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from scheduler.cli import options
from scheduler.common.errors import SchedulerError

if TYPE_CHECKING:
    from scheduler.pipeline.plan import PipelinePlan
    from scheduler.planning.comparison import Comparison

_T = TypeVar("_T")

_FIELDS = ("microbatches", "schedule", "communication_time")


def add_pipeline_options(parser: ArgumentParser) -> None:
    """Add --stages, and what goes with it."""
    group = parser.add_argument_group("a pipeline, of costs of one microbatch with state_bytes")
    option = options.option
    what = "cut the chain into so many stages, one device each; --runtime says what runs them"
    option(group, "--stages P", what, type=int)
    option(group, "--microbatches M", "of one step", type=int)
    option(group, "--schedule NAME", "1f1b (default) or gpipe")
    what = "from a stage to the next, in the costs' unit of time (default: 0)"
    option(group, "--communication-time T", what, type=float)


def is_asked(arguments: Namespace) -> bool:
    """Whether a pipeline is meant; raises where only some of it is said."""
    given = [name for name in _FIELDS if getattr(arguments, name) is not None]
    if arguments.stages is None:
        arguments.stages = arguments.pp
    if arguments.stages is not None:
        return True
    if given:
        flag = given[0].replace("_", "-")
        raise SchedulerError(f"--{flag} is of a pipeline; say its stages too, as in --stages 4")
    return False


def solve_stages(arguments: Namespace) -> tuple[PipelinePlan, bool]:
    """The plan of a pipeline, and whether Ctrl-C ended the search."""
    from scheduler.pipeline import solve_pipeline

    if arguments.lengths is not None or arguments.method != "optimal":
        raise SchedulerError(
            "a pipeline is solved by one method, at one length; leave out --stages"
        )
    return _solved(arguments, solve_pipeline, "the best cuts and plans")


def compare_stages(arguments: Namespace) -> tuple[Comparison, bool]:
    """A row for each way to set a pipeline, and whether Ctrl-C ended the search."""
    from scheduler.pipeline import compare_pipeline

    if arguments.against:
        raise SchedulerError("--against is of one device; a pipeline's rows are chosen already")
    return _solved(arguments, compare_pipeline, "all ways")


def _solved(arguments: Namespace, solve: Callable[..., _T], what: str) -> tuple[_T, bool]:
    from scheduler.cli.progress import Watching

    # Of a model it is part of the recipe as well.
    given = {name: getattr(arguments, name) for name in ("stages", *_FIELDS, "runtime")}
    asked = _asked(arguments)
    limits = {
        name: value
        for name, value in options.limits_of(arguments).items()
        if name in ("memory_limit", "time_limit")
    }
    with Watching(asked.costs, quiet=arguments.quiet, listens=True) as watching:
        found = watching.run(
            what,
            lambda: solve(
                asked.costs,
                budget=asked.budget,
                reserved=asked.reserved,
                watch=watching.watch,
                **{name: value for name, value in (given | limits).items() if value is not None},
            ),
        )
    return found, watching.interrupted


def _asked(arguments: Namespace) -> options.Asked:
    """Costs and budgets of each stage."""
    if arguments.model is None:
        arguments.runtime = arguments.pp = None
        return options.costs_within(arguments)
    from scheduler.cli.fit import staged
    from scheduler.common.units import parse_bytes

    if arguments.example is not None or arguments.costs is not None:
        return options.costs_within(arguments)  # which refuses two costs
    if arguments.state is not None:
        raise SchedulerError("stages are solved with their state; leave out --state")
    more = parse_bytes(arguments.reserved, what="reserved", allow_zero=True)
    return options.Asked(*staged(arguments, more))

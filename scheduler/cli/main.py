"""The command line: data on standard output, messages on standard error.

Nothing heavy is imported before a command needs it, so that ``--help`` is immediate.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn

from scheduler.cli.modelargs import add_model_options
from scheduler.cli.reportargs import add_diff, add_report
from scheduler.common.errors import InfeasibleBudget, NoPlanFound, SchedulerError

__all__ = ["main"]

PROGRAM = "checkpoint-scheduler"
OK, BAD_INPUT, INFEASIBLE, NO_PLAN, INTERRUPTED, BROKEN_PIPE = 0, 2, 3, 4, 130, 141

_SIZE = "as in 40GB (40·10⁹ bytes), 40GiB (40·2³⁰) or a number of bytes"
_EXAMPLES = f"""\
examples:
  {PROGRAM} compare --example gpt2-small --budget 5GB
  {PROGRAM} solve costs.json --budget 40GB --reserved 2GB -o plan.json
  {PROGRAM} frontier costs.json --csv > frontier.csv
  {PROGRAM} solve graph.json --budget 12GB --optimal-in staged --time-limit 60
  {PROGRAM} show plan.json --costs costs.json
  {PROGRAM} report plan.json --costs costs.json -o report.html
  {PROGRAM} diff plan.json other.json
  {PROGRAM} export plan.json --costs costs.json --to torch -o apply_plan.py
  {PROGRAM} fit --model llama-3-8b --gpu h100 --sequence 8192 --zero 3 --gpus 8

exit status: 0 done, 2 bad input or usage, 3 no plan fits the budget, 4 no plan found in the time
limit, 130 interrupted before there was a plan
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit status.

    0 done, 2 bad input, 3 infeasible, 4 no plan found in time, 130 interrupted.

    Parameters
    ----------
    argv
        Arguments without the program's name; default: those of the process.
    """
    _open_streams()
    _print_anything()
    status = _main(argv)
    if argv is None and threading.active_count() > 1:
        _leave(status)
    return status


def _main(argv: Sequence[str] | None) -> int:
    try:
        arguments = _parser().parse_args(argv)
        run: Callable[[argparse.Namespace], int] = arguments.run
        status = run(arguments)
        sys.stdout.flush()
    except InfeasibleBudget as error:
        return _fail(str(error), INFEASIBLE)
    except NoPlanFound as error:
        return _fail(str(error), NO_PLAN)
    except SchedulerError as error:
        return _fail(str(error), BAD_INPUT)
    except KeyboardInterrupt:
        _say("interrupted")
        return INTERRUPTED
    except MemoryError:
        return _fail("there is not enough memory; give a smaller --memory-limit", BAD_INPUT)
    except BrokenPipeError:
        _silence_output()
        return BROKEN_PIPE
    except OSError as error:
        _silence_output()
        return _fail(f"cannot write the output: {error.strerror or error}", BAD_INPUT)
    return status


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(BAD_INPUT, f"{PROGRAM}: error: {message} (see '{self.prog} --help')\n")


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        # Reading the version of the installed package takes longer than all of --help.
        from importlib.metadata import PackageNotFoundError, version

        try:
            text = version(PROGRAM)
        except PackageNotFoundError:
            text = "(not installed)"
        print(f"{PROGRAM} {text}")
        parser.exit()


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog=PROGRAM,
        description="Which activations of a model to keep and which to recompute, so that a "
        "training step fits a memory budget and loses the least time: exactly.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    solve = _command(commands, "solve", "the plan that loses the least time within a budget")
    _add_budget(solve)
    solve.add_argument("--method", default="optimal", metavar="M", help="default: optimal")
    _add_limits(solve)
    _add_graph_options(solve)
    solve.add_argument("-o", "--output", metavar="FILE", help="write the plan file here")
    solve.add_argument("--json", action="store_true", help="print the plan file")

    compare = _command(commands, "compare", "all methods within a budget, one row each")
    _add_budget(compare)
    _add_limits(compare)
    compare.add_argument(
        "--against",
        action="append",
        default=[],
        metavar="SETTING",
        help="add a row for what a framework is set to, as in 'megatron: full block 12', "
        "'every 4' or 'layers: 0,3,7-9'; may be given again",
    )
    _add_graph_options(compare, classes=False)
    _add_formats(compare)

    frontier = _command(commands, "frontier", "every optimal trade of memory against time")
    frontier.add_argument(
        "--points",
        type=int,
        metavar="N",
        help="show at most N, evenly chosen (default: 20, all in JSON and CSV); of a graph: solve "
        "for N budgets (default: 8)",
    )
    _add_limits(frontier)
    _add_graph_options(frontier)
    _add_formats(frontier)

    show = _command(commands, "show", "a cost file as a table, or a plan file", "cost or plan")
    show.add_argument("--costs", dest="plan_costs", metavar="COSTS", help="replay the plan on them")
    show_formats = show.add_mutually_exclusive_group()
    show_formats.add_argument(
        "--json", action="store_true", help="print the costs as a cost file, or the plan's rows"
    )
    show_formats.add_argument(
        "--csv", action="store_true", help="print the rows of a plan, which needs --costs"
    )

    for command in (solve, compare, frontier, show):
        add_model_options(command)
    _add_fit(commands)
    _add_export(commands)
    add_report(commands, _run)
    add_diff(commands, _run)
    return parser


def _add_export(commands: argparse._SubParsersAction[_Parser]) -> None:
    what = "a plan as a file for another framework"
    export = commands.add_parser(
        "export", help=what, description=f"Print {what}.", allow_abbrev=False
    )
    export.add_argument("plan", metavar="PLAN", help="a plan file, or - for standard input")
    export.add_argument(
        "--to",
        dest="target",
        metavar="TARGET",
        help="torch, transformers, lightning, accelerate, fsdp, torchtitan, megatron, deepspeed, "
        "jax, json or json-schema",
    )
    export.add_argument(
        "--costs", metavar="COSTS", help="the plan's cost file, to choose flags and say their cost"
    )
    export.add_argument(
        "--stages", type=int, default=1, metavar="P", help="pipeline stages, for megatron"
    )
    export.add_argument("-o", "--output", metavar="FILE", help="write the file here")
    export.set_defaults(run=lambda arguments: _run("export", arguments))


def _add_fit(commands: argparse._SubParsersAction[_Parser]) -> None:
    what = "whether a training run fits a GPU, and what checkpointing makes of it"
    fit = commands.add_parser("fit", help=what, description=f"Print {what}.", allow_abbrev=False)
    fit.add_argument("--budget", metavar="SIZE", help=f"default: the GPU's memory; {_SIZE}")
    fit.add_argument(
        "--margin",
        metavar="SIZE",
        help="for CUDA context, fragmentation, communication (default: 1GiB, 3%% of the budget "
        "and, on several GPUs, 1GiB)",
    )
    fit.add_argument("--explain", action="store_true", help="add what the √L rule says of it")
    fit.add_argument("--no-search", action="store_true", help="no largest batch and sequence")
    fit.add_argument("--json", action="store_true", help="print JSON")
    add_model_options(fit)
    fit.set_defaults(run=lambda arguments: _run("fit", arguments))


def _command(
    commands: argparse._SubParsersAction[_Parser],
    name: str,
    what: str,
    kind: str = "cost",
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=what, description=f"Print {what}.", allow_abbrev=False)
    help_text = f"a {kind} file, or - for standard input"
    parser.add_argument("costs", nargs="?", metavar="COSTS", help=help_text)
    parser.add_argument("--example", metavar="NAME", help="costs that come with the package")
    parser.set_defaults(run=lambda arguments: _run(name, arguments))
    return parser


def _run(name: str, arguments: argparse.Namespace) -> int:
    if name == "fit":
        from scheduler.cli import fit as fitcommand

        with _patience():
            return fitcommand.fit(arguments)
    if name == "export":
        from scheduler.cli.export import run_export

        return run_export(arguments)
    if name in ("report", "diff"):
        from scheduler.cli import report as reportcommand

        with _patience() as arguments.stop_waiting:
            return (
                reportcommand.report(arguments)
                if name == "report"
                else reportcommand.diff(arguments)
            )
    from scheduler.cli import solve as commands

    run: Callable[[argparse.Namespace], int] = getattr(commands, name)
    with _patience() as arguments.stop_waiting:
        return run(arguments)


@contextlib.contextmanager
def _patience() -> Iterator[Callable[[], None]]:
    """Tell a person who waits why; the first run on a machine compiles for some seconds.

    What it gives ends the wait, for those who tell more themselves.
    """
    if not sys.stderr.isatty():
        yield lambda: None
        return
    message = "working ... (the first run on a machine compiles the solver, once)"
    timer = threading.Timer(2.0, _say, [message])
    timer.daemon = True
    timer.start()
    try:
        yield timer.cancel
    finally:
        timer.cancel()


def _add_budget(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--budget", metavar="SIZE", help=f"memory of a training step, {_SIZE}")
    parser.add_argument(
        "--reserved",
        default=0,
        metavar="SIZE",
        help="comes off the budget first: weights, optimizer state, margin",
    )


def _add_limits(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--max-points",
        type=int,
        metavar="N",
        help="thin sets of more points: faster, with a certified gap",
    )
    parser.add_argument(
        "--memory-limit", metavar="SIZE", help="thin sets that would take more (default: 1GiB)"
    )


def _add_graph_options(parser: argparse.ArgumentParser, *, classes: bool = True) -> None:
    group = parser.add_argument_group("graphs")
    group.add_argument(
        "--time-limit",
        type=float,
        metavar="SECONDS",
        help="then the best plan so far, with its gap (solve: no limit; compare: 30 for each "
        "method; frontier: 30 for each budget)",
    )
    if classes:
        group.add_argument(
            "--optimal-in",
            metavar="CLASS",
            help="plans among which to prove it: forward, staged, or any for small graphs",
        )
    group.add_argument("--threads", type=int, metavar="N", help="of the solvers (default: 1)")
    group.add_argument("--quiet", action="store_true", help="show no progress on a terminal")


def _add_formats(parser: argparse.ArgumentParser) -> None:
    formats = parser.add_mutually_exclusive_group()
    formats.add_argument("--json", action="store_true", help="print JSON")
    formats.add_argument("--csv", action="store_true", help="print comma-separated values")


def _say(message: str) -> None:
    print(f"{PROGRAM}: {message}", file=sys.stderr)


def _fail(sentence: str, status: int) -> int:
    _say(f"error: {sentence}")
    return status


def _open_streams() -> None:
    # Started with a stream closed (`>&-`), Python has None in its place.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def _print_anything() -> None:
    # A layer's name must not fail to print where the terminal knows only ASCII.
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")


def _leave(status: int) -> NoReturn:
    # A solver that was interrupted may still run in a thread of its own, in code that cannot be
    # told to stop; it would abort the process when Python takes itself apart around it.
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def _silence_output() -> None:
    # Python flushes standard output once more at its end, and would complain again.
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

"""The command line: data on standard output, messages on standard error.

Nothing heavy is imported before a command needs it, so that ``--help`` is immediate.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from scheduler.cli.commands import compare, diff, export, fit, frontier, report, show, solve
from scheduler.cli.io import PROGRAM, say
from scheduler.common.errors import InfeasibleBudget, NoPlanFound, SchedulerError
from scheduler.common.text import did_you_mean, shown

COMMANDS = (solve, compare, frontier, show, fit, export, report, diff)
BAD_INPUT, INFEASIBLE, NO_PLAN, INTERRUPTED, BROKEN_PIPE = 2, 3, 4, 130, 141

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
    """Run one command; its exit status, as the help has them.

    `argv` are arguments without the program's name; default: those of the process.
    """
    _open_streams()
    _print_anything()
    with _interruptible():
        status = _main(argv)
    import threading

    if argv is None and threading.active_count() > 1:
        _leave(status)
    return status


def _main(argv: Sequence[str] | None) -> int:
    try:
        arguments = _arguments(sys.argv[1:] if argv is None else argv)
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
        say("interrupted")
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


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser, commands = _parser()
    if argv and not argv[0].startswith("-") and argv[0] not in commands:
        hint = did_you_mean(argv[0], commands)
        parser.error(f"there is no command {shown(argv[0])}{hint}; there are {', '.join(commands)}")
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:
        command = commands[arguments.command]
        flag = next((each.partition("=")[0] for each in unknown if each.startswith("-")), "")
        hint = did_you_mean(flag, command.flags) if flag else ""
        others = [name for name, other in commands.items() if flag in other.flags]
        if others:
            hint = f"; {flag} is an option of {', '.join(others)}"
        command.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    return arguments


class _Parser(argparse.ArgumentParser):
    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        # Else -5GB is an option that does not exist, and not the value that a message can name.
        self._negative_number_matcher = re.compile(r"-\.?\d")

    @property
    def flags(self) -> list[str]:
        return [*self._option_string_actions]

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


def _parser() -> tuple[_Parser, dict[str, _Parser]]:
    """The parser, and of each command its own."""
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
    for command in COMMANDS:
        name, what = command.__name__.rpartition(".")[2], command.HELP
        options = commands.add_parser(
            name,
            help=what,
            description=f"Print {what}.",
            usage=f"{PROGRAM} {name} {command.USAGE} [OPTION ...]",
            allow_abbrev=False,
            add_help=False,
        )
        command.add_arguments(options)
        # After the main options, which are what people look for.
        options.add_argument("-h", "--help", action="help", help="show this help and exit")
        options.set_defaults(run=command.run)
    return parser, commands.choices


def _fail(sentence: str, status: int) -> int:
    say(f"error: {sentence}")
    return status


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    # A shell without job control starts `command &` with SIGINT ignored, and Python leaves it so.
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        yield
        return
    with contextlib.suppress(ValueError):  # only the main thread may set a handler
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            signal.signal(signal.SIGINT, signal.SIG_IGN)


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

"""``fit``: whether a training run fits; `scheduler.cli.fit` does it."""

from __future__ import annotations

import contextlib
import sys
from argparse import SUPPRESS, ArgumentParser, Namespace
from collections.abc import Iterator

from scheduler.cli.io import say
from scheduler.cli.modelargs import add_model, add_model_options
from scheduler.cli.options import SIZE, option, others
from scheduler.common.errors import SchedulerError

HELP = "whether a training run fits a GPU, and what checkpointing makes of it"
USAGE = "--model NAME"

_PATIENCE = 2.0
"""Seconds after which a person is told that there is something to wait for."""


def add_arguments(parser: ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("name", nargs="?", help=SUPPRESS)
    add_model(parser)
    option(parser, "--budget SIZE", f"default: the GPU's memory; {SIZE}")
    more = others(parser)
    option(more, "--explain", "add what the √L rule says of it")
    option(more, "--no-search", "no largest batch and sequence, and nothing of what would help")
    option(more, "--json", "print JSON")
    add_model_options(parser, state=False, main=("gpu", "batch", "sequence"))


def run(arguments: Namespace) -> int:
    """Print one screen; status 3 when no plan fits."""
    from scheduler.cli.fit import fit

    if arguments.name is not None:
        raise SchedulerError(f"fit takes its model by an option: --model {arguments.name}")
    with _patience():
        return fit(arguments)


@contextlib.contextmanager
def _patience() -> Iterator[None]:
    """Tell who waits at a terminal why; the first run on a machine compiles for some seconds."""
    import threading

    message = "working ... (the first run on a machine compiles the solver, once)"
    timer = threading.Timer(_PATIENCE, say, [message])
    timer.daemon = True
    if sys.stderr.isatty():
        timer.start()
    try:
        yield
    finally:
        timer.cancel()

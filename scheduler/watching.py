"""Looking on while a graph is solved: progress on a terminal, and Ctrl-C for the best so far."""

from __future__ import annotations

import contextlib
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any

from scheduler.costs import CostGraph
from scheduler.graphlimits import Watch
from scheduler.plan import excess
from scheduler.readers import Costs
from scheduler.report.table import format_percent
from scheduler.text import format_time
from solvers.graph.solution import Progress

__all__ = ["Watching", "watched"]

_CLEAR = "\r\x1b[K"
_LONG = 100
"""Layers from which on a chain is announced: it is solved in one go, which nothing can watch."""

_PAUSE = 0.1
"""Seconds between two lines of progress."""


class Watching:
    """While it is entered, Ctrl-C asks for the best plan so far; a second one interrupts.

    Parameters
    ----------
    costs
        What is solved: its times tell what a step takes.
    quiet
        Show no progress. Where standard error is no terminal, none is shown either.

    Attributes
    ----------
    interrupted
        Has Ctrl-C been pressed?
    """

    def __init__(self, costs: Costs, *, quiet: bool = False) -> None:
        self.interrupted = False
        self._costs = costs
        self._ticks = costs.ticks_per_unit
        self._shows = not quiet and sys.stderr.isatty()
        self._stage = ""
        self._last = 0.0
        self._before: Any = None

    @contextlib.contextmanager
    def announcing(self, words: str) -> Iterator[None]:
        """Show a line on a terminal until it is done."""
        if not self._shows:
            yield
            return
        width = shutil.get_terminal_size().columns
        sys.stderr.write(f"{_CLEAR}{words[: width - 1]}")
        sys.stderr.flush()
        try:
            yield
        finally:
            sys.stderr.write(_CLEAR)
            sys.stderr.flush()

    @property
    def watch(self) -> Watch:
        """For the solvers."""
        return Watch(self._report if self._shows else None, lambda: self.interrupted)

    def __enter__(self) -> Watching:
        # Only the main thread may set a handler; elsewhere Ctrl-C stays what it is.
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._stop)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
        if self._shows and self._stage:
            sys.stderr.write(_CLEAR)
            sys.stderr.flush()

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True

    def _report(self, progress: Progress) -> None:
        now = time.monotonic()
        if progress.stage == self._stage and now - self._last < _PAUSE:
            return
        self._stage, self._last = progress.stage, now
        # A line that wraps could not be cleared.
        width = shutil.get_terminal_size().columns
        sys.stderr.write(f"{_CLEAR}{self._line(progress)[: width - 1]}")
        sys.stderr.flush()

    def _line(self, progress: Progress) -> str:
        bound = progress.lower_bound_time
        said = [f"{progress.stage or 'solving'}, {progress.seconds:.0f} s"]
        if progress.time is None:
            said.append("no plan yet")
        else:
            said.append(f"best {self._time(progress.time)}")
        said.append(f"bound {self._time(bound)}")
        if progress.time is not None:
            said.append(f"gap {format_percent(excess(progress.time, bound))}")
        return "; ".join([*said, "Ctrl-C takes the best so far"])

    def _time(self, ticks: int) -> str:
        return format_time(ticks / self._ticks, self._costs.time_unit)


@contextlib.contextmanager
def watched(costs: Costs, stop_waiting: Callable[[], None], *, quiet: bool) -> Iterator[Watching]:
    """Progress and Ctrl-C of a graph's solvers; a chain's know neither, so a long one is announced.

    Parameters
    ----------
    costs
        What is solved.
    stop_waiting
        Ends what a person who waits is told where nothing else is said.
    quiet
        Show nothing.
    """
    watching = Watching(costs, quiet=quiet)
    if not (isinstance(costs, CostGraph) and costs.is_chain):
        stop_waiting()
        with watching:
            yield watching
    elif len(costs) < _LONG:
        yield watching
    else:
        stop_waiting()
        words = f"solving {len(costs)} layers; the first run on a machine compiles the solver too"
        with watching.announcing(words):
            yield watching

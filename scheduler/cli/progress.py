"""Looking on while costs are solved: progress on a terminal, and what Ctrl-C does.

What solves for one budget tells how far it is, and Ctrl-C takes the best plan so far; so does all
that is done for graphs. What makes the sets of a whole chain knows neither, so it works in a thread
of its own: another one shows the seconds, and Ctrl-C ends the command at once.
"""

from __future__ import annotations

import math
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, TypeVar

from scheduler.common.text import format_time
from scheduler.costs.readers import Costs
from scheduler.planning.engines import engine_for
from scheduler.planning.request import Watch
from scheduler.report.tables import excess, format_percent
from solvers.solution import Progress

_CLEAR = "\r\x1b[K"
_CHAIN = "; Ctrl-C ends it (a first run compiles too)"

_PAUSE = 0.1
"""Seconds between two lines of progress."""

_PATIENCE = 1.0
"""Seconds after which a chain that is being solved is spoken of."""

_T = TypeVar("_T")


class Watching:
    """While it is entered, Ctrl-C asks what `listens` for the best so far; a second one interrupts.

    By default what is done for graphs does. No progress is shown where it is to be `quiet`, or
    standard error is no terminal. `interrupted` is whether Ctrl-C has been pressed, `engine` what
    solves the costs.
    """

    def __init__(self, costs: Costs, *, quiet: bool = False, listens: bool | None = None) -> None:
        self.interrupted = False
        self._costs = costs
        self._ticks = costs.ticks_per_unit
        self._shows = not quiet and sys.stderr.isatty()
        self.engine, _ = engine_for(costs)
        self._listens = self.engine.listens if listens is None else listens
        self._stage = ""
        self._written = ""
        self._last = 0.0
        self._before: Any = None

    def run(self, what: str, work: Callable[[], _T], seconds: float = math.inf) -> _T:
        """What `work` returns; that of a chain is done in a thread of its own.

        Progress says `what` is solved: "the frontier". The work of a chain is given up after
        `seconds`, a TimeoutError, and goes on until the process ends.
        """
        if self._listens:
            return work()
        if seconds <= 0:
            raise TimeoutError
        ended: list[tuple[_T | None, BaseException | None]] = []

        def working() -> None:
            try:
                ended.append((work(), None))
            except BaseException as error:
                ended.append((None, error))

        start = time.monotonic()
        thread = threading.Thread(target=working, daemon=True)
        thread.start()
        try:
            while thread.is_alive():
                now = time.monotonic() - start
                if now >= seconds:
                    raise TimeoutError
                thread.join(min(_PAUSE, seconds - now))
                if now > _PATIENCE:
                    self._write(f"{what} of {len(self._costs)} layers: {now:.0f} s{_CHAIN}")
        finally:
            self._clear()
        (answer, error), *_ = ended
        if error is not None:
            raise error
        return answer  # type: ignore[return-value]  # there was no error

    @property
    def watch(self) -> Watch:
        """For the solvers."""
        return Watch(self._report if self._shows else None, lambda: self.interrupted)

    def __enter__(self) -> Watching:
        # Only the main thread may set a handler; elsewhere Ctrl-C stays what it is.
        if self._listens and threading.current_thread() is threading.main_thread():
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
        self._clear()

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True

    def _report(self, progress: Progress) -> None:
        now = time.monotonic()
        if progress.stage == self._stage and now - self._last < _PAUSE:
            return
        self._stage, self._last = progress.stage, now
        self._write(self._line(progress))

    def _write(self, words: str) -> None:
        if self._shows and words != self._written:
            # A line that wraps could not be cleared.
            width = shutil.get_terminal_size().columns
            sys.stderr.write(f"{_CLEAR}{words[: width - 1]}")
            sys.stderr.flush()
            self._written = words

    def _clear(self) -> None:
        if self._written:
            sys.stderr.write(_CLEAR)
            sys.stderr.flush()
            self._written = ""

    def _line(self, progress: Progress) -> str:
        bound = progress.lower_bound_time
        said = [f"{progress.stage or 'solving'}, {progress.seconds:.0f} s"]
        if progress.time is None:
            said += ["no plan yet", f"bound {self._time(bound)}"]
        else:
            said += [f"best {self._time(progress.time)}", f"bound {self._time(bound)}"]
            said += [f"gap {format_percent(excess(progress.time, bound))}"]
        return "; ".join([*said, "Ctrl-C takes the best so far"])

    def _time(self, ticks: int) -> str:
        return format_time(ticks / self._ticks, self._costs.time_unit)

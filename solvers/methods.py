"""What a method is: one way to make a schedule, of chains or of graphs alike."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, TypeVar

from solvers.solution import PlanClass, Report, Solution, Unsuitable

PAUSE = 0.05
"""Seconds between two looks at the clock."""

_T = TypeVar("_T")


def _nobody() -> None:
    """Nobody is told."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a caller may say of how to solve; which of it a method takes is in `Method.takes`.

    Attributes
    ----------
    max_points
        Points that a set of a chain may have, about; None: no limit but memory.
    memory_limit
        Bytes that these sets and their tables may take; None: the solver's own.
    time_limit
        Seconds, after which the best schedule so far is returned with its gap; None: until it is
        proven.
    optimal_in
        The class to look in and to prove in; None: what the method thinks best.
    threads
        Of HiGHS and CP-SAT.
    start
        A schedule that is known.
    report
        Is told of every improvement.
    interrupted
        Asked now and then; True ends the search as a time limit does.
    """

    max_points: int | None = None
    memory_limit: int | None = None
    time_limit: float | None = None
    optimal_in: PlanClass | None = None
    threads: int = 1
    start: Any = None
    report: Report | None = None
    interrupted: Callable[[], bool] | None = None

    def left(self, start: float) -> float | None:
        """Seconds that are left of the time limit, of what began at `start`."""
        limit = self.time_limit
        return None if limit is None else max(0.0, start + limit - time.monotonic())

    def run(
        self, work: Callable[[], _T], stop: Any, start: float, tell: Callable[[], None] = _nobody
    ) -> _T:
        """What `work` returns, in a thread of its own that is told to stop when a limit comes.

        Parameters
        ----------
        work
            Looks at `stop` now and then, and returns soon when it is set.
        stop
            An array of one flag.
        start
            When it all began, by the monotonic clock.
        tell
            Called now and then.

        Raises
        ------
        KeyboardInterrupt
            As Ctrl-C comes; the work has come to an end then.
        """
        with ThreadPoolExecutor(1) as pool:
            working = pool.submit(work)
            try:
                while True:
                    if self.left(start) == 0 or (self.interrupted and self.interrupted()):
                        stop[0] = True
                    tell()
                    if wait([working], PAUSE).done:
                        return working.result()
            except BaseException:
                stop[0] = True
                raise


@dataclass(frozen=True, slots=True)
class Method:
    """One way to make a schedule.

    Attributes
    ----------
    name
        What a caller asks for.
    run
        The solver: a problem, a budget in bytes and limits in, a schedule within it out.
    accepts
        Which problems, as a sentence.
    promises
        What is known of its schedules, as a sentence.
    problems
        The classes of problems that it takes.
    takes
        The fields of `Limits` that it heeds.
    """

    name: str
    run: Callable[[Any, int, Limits], Solution[Any]]
    accepts: str
    promises: str
    problems: tuple[Any, ...]
    takes: frozenset[str] = frozenset()

    def solve(self, problem: Any, budget: int, limits: Limits | None = None) -> Solution[Any]:
        """The schedule of this method within `budget` bytes.

        Raises
        ------
        Infeasible
            Nothing fits, or nothing was found; it says which.
        Unsuitable
            The method does not accept the problem.
        """
        if type(problem) not in self.problems:
            kinds = " and ".join(kind.what for kind in self.problems)
            raise Unsuitable(f"method {self.name!r} takes {kinds}, not {type(problem).what}")
        return self.run(problem, budget, limits or Limits())

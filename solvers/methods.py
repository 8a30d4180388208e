"""What a method is: one way to make a schedule, of chains or of graphs alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from solvers.solution import PlanClass, Report, Solution, Unsuitable


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

"""The state of a search: the best schedule, the bound, the limits, and who is told."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

from solvers.graph.lowering import Operations, Run
from solvers.graph.schedule import Actions, GraphSchedule
from solvers.methods import Limits
from solvers.problem import Problem
from solvers.replay import Replay
from solvers.schedule import IllegalPlan
from solvers.solution import Infeasible, PlanClass, Progress, Solution

if TYPE_CHECKING:
    from solvers.graph.milp import Answer, Program, Watch


class OutOfTime(Exception):
    """A limit came while something was under way that is of no use half done."""


class Search:
    """One problem, solved in one class.

    In `plan_class` schedules are looked for, and there the bound holds.

    Attributes
    ----------
    stage
        What is being done, for the reports.
    runs
        The best schedule so far; empty: there is none.
    unit
        All that is spent on running again is a multiple of it.
    lower_bound
        No schedule of the class takes less.
    infeasible
        It is proven that no schedule of the class fits.
    note
        What else there is to say of the result, as a sentence.
    out_of_time
        Out of time, or interrupted.
    over
        That, or proven.
    """

    def __init__(
        self,
        operations: Operations,
        budget: int,
        plan_class: PlanClass,
        limits: Limits | None = None,
    ) -> None:
        self.operations = operations
        self.budget = budget
        self.plan_class = plan_class
        self.limits = limits or Limits()
        self.least = operations.graph.least_time
        self.lower_bound = self.least
        self.infeasible = False
        self.stopped = False
        self.unit = reduce(math.gcd, operations.times) or 1
        self._problem: Problem[Any] = operations.graph
        self._schedule: GraphSchedule | None = None
        self._replay: Replay | None = None
        self.runs: tuple[Run, ...] = ()
        self._start = time.monotonic()
        time_limit = self.limits.time_limit
        self._deadline = None if time_limit is None else self._start + time_limit
        self._stage = "start"
        self.note = ""

    # ---- what is known

    @property
    def stage(self) -> str:  # noqa: D102
        return self._stage

    @stage.setter
    def stage(self, name: str) -> None:
        self._stage = name
        self._tell()

    @property
    def time(self) -> int | None:
        """Time of the best schedule so far."""
        return None if self._replay is None else self._replay.time

    @property
    def proven(self) -> bool:
        """Whether the best schedule is optimal, or there is none."""
        optimal = self._replay is not None and self._replay.time <= self.lower_bound
        return optimal or self.infeasible

    @property
    def over(self) -> bool:  # noqa: D102
        return self.proven or self.out_of_time()

    def offer(self, runs: Sequence[Run]) -> bool:
        """Take a schedule of the class if it is the best so far; True: it fits the budget."""
        return self.offer_schedule(self.operations.schedule(self.operations.useful_runs(runs)))

    def offer_schedule(self, schedule: GraphSchedule) -> bool:
        """The same of a schedule of the graph, of which an illegal one is no schedule."""
        try:
            replay = self._problem.replay(schedule)
        except IllegalPlan:
            return False
        if replay.peak_bytes > self.budget:
            return False
        best = self._replay
        if best is None or (replay.time, replay.peak_bytes) < (best.time, best.peak_bytes):
            self._schedule, self._replay = schedule, replay
            self.runs = tuple(self.operations.runs(schedule))
            self._tell()
        return True

    def raise_bound(self, recompute: float) -> None:
        """No schedule spends less than `recompute` on running again, by a floating-point proof.

        What is spent is a sum of the operations' times, so a multiple of their greatest common
        divisor.
        """
        if not math.isfinite(recompute):
            return
        spent = recompute * (1 - 1e-9) - 1e-6
        bound = self.least + self.unit * max(0, math.ceil(spent / self.unit))
        if self._replay is not None:
            bound = min(bound, self._replay.time)
        if bound > self.lower_bound:
            self.lower_bound = bound
            self._tell()

    def close(self) -> None:
        """The best schedule is proven optimal."""
        assert self._replay is not None
        self.lower_bound = self._replay.time
        self._tell()

    # ---- limits

    def remaining(self) -> float | None:
        """Seconds left; None: no limit."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def go_on(self) -> None:
        """Raise `OutOfTime` once a limit has come."""
        if self.out_of_time():
            raise OutOfTime

    def out_of_time(self) -> bool:  # noqa: D102
        if self.limits.interrupted is not None and not self.stopped:
            self.stopped = self.limits.interrupted()
        return self.stopped or self.remaining() == 0.0

    def solved(
        self,
        program: Program,
        *,
        hint: Mapping[int, float] | None = None,
        watch: Watch | None = None,
        seconds: float | None = None,
    ) -> Answer | None:
        """What HiGHS says of a program, in so many seconds; None when a limit comes first."""
        if self.over:
            return None
        limits = [limit for limit in (seconds, self.remaining()) if limit is not None]
        # numpy and HiGHS are for those who have a program.
        from solvers.graph.milp import solve as solve_program

        return solve_program(
            program,
            time_limit=min(limits, default=None),
            threads=self.limits.threads,
            hint=hint,
            watch=watch,
            stop=self.out_of_time,
        )

    # ---- the end

    def run(self, work: Callable[[Search], object]) -> None:
        """Do some work on this search; Ctrl-C ends it as a time limit does."""
        try:
            work(self)
        except OutOfTime:
            pass  # the best so far stands
        except KeyboardInterrupt:
            self.stopped = True

    def solution(self) -> Solution[GraphSchedule]:
        """The best schedule with its certificate.

        Raises
        ------
        Infeasible
            There is none.
        """
        if self._replay is None or self._schedule is None:
            floor, operation = self.operations.floor
            proven = self.plan_class if self.infeasible else None
            late = self.remaining() == 0.0
            set_by = self.operations.action(operation)
            raise Infeasible(floor, set_by, None, proven, out_of_time=late)
        self._turn_at_once(self._schedule, self._replay)
        time_ = self._replay.time
        return Solution(
            schedule=self._schedule,
            peak_bytes=self._replay.peak_bytes,
            time=time_,
            lower_bound_time=min(time_, self.lower_bound),
            plan_class=PlanClass.ANY if time_ == self.least else self.plan_class,
            note=self.note,
        )

    def _turn_at_once(self, schedule: GraphSchedule, replay: Replay) -> None:
        """Run nothing between the forward and the backward of the last layer, where that fits.

        It may be a loss outside of what runs the schedule.
        """
        if not isinstance(schedule, Actions):
            return
        for other in schedule.turned_at_once(len(self._problem)):
            try:
                found = self._problem.replay(other)
            except IllegalPlan:
                continue
            if found.peak_bytes <= self.budget and found.time == replay.time:
                self._schedule, self._replay = other, found
                return

    def _tell(self) -> None:
        if self.limits.report is not None:
            seconds = time.monotonic() - self._start
            self.limits.report(Progress(self._stage, self.time, self.lower_bound, seconds))

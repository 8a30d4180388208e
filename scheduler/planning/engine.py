"""What is done for one kind of problem: its methods, refusals, frontiers and comparisons."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from scheduler.common.errors import SchedulerError, UnsuitableMethod
from scheduler.costs.readers import Costs
from scheduler.planning.certify import certified
from scheduler.planning.comparison import Comparison
from scheduler.planning.frontier import Frontier
from scheduler.planning.request import READERS, Budget, Request, Watch, read_budget
from scheduler.plans.plan import Plan
from solvers.methods import Limits, Method
from solvers.problem import Problem
from solvers.solution import Infeasible, Solution, Unsuitable


class Run(Protocol):
    """Does some work while somebody waits; see `scheduler.cli.progress.Watching.run`."""

    def __call__(self, what: str, work: Callable[[], Any], seconds: float = ...) -> Any:
        """The answer of `work`, of which `what` is shown; `TimeoutError` after `seconds`."""


class Engine(Protocol):
    """One kind of problem.

    Attributes
    ----------
    methods
        By name.
    foreign
        What to say, with its name, of a limit that none of them takes.
    listens
        Do its frontiers and comparisons tell how far they are and end when asked? Those that do
        not are waited for.
    sweeps
        Is each point of its frontier a budget to solve for? Else all points are there at once.
    """

    methods: Mapping[str, Method]
    foreign: str
    listens: bool
    sweeps: bool

    def method(self, name: object) -> Method:
        """The method of this name.

        Raises
        ------
        UnknownMethod, UnsuitableMethod
            There is none, or it is for another kind of problem.
        """

    def refusal(
        self, problem: Any, error: Infeasible, size: Budget, request: Request
    ) -> SchedulerError:
        """The error for a budget within which a method has no plan, with the way out."""

    def frontier(self, costs: Any, problem: Any, request: Request, points: object) -> Frontier:
        """The trade of memory against time, from `points` budgets where it is a sweep."""

    def compare(
        self,
        costs: Any,
        problem: Any,
        size: Budget,
        request: Request,
        against: str | Iterable[str],
    ) -> Comparison:
        """Every method within one budget."""

    def around(
        self,
        plan: Plan,
        costs: Any,
        run: Run,
        watch: Watch,
        points: object,
        limits: Mapping[str, Any],
    ) -> tuple[Frontier, Comparison]:
        """What a report shows beside a plan: the frontier and the methods, in little time.

        Parameters
        ----------
        plan, costs
            The plan and its costs.
        run, watch
            Who waits, and who looks on.
        points, limits
            Budgets of a sweep, and limits by name; None: not given.

        Raises
        ------
        NoPlanFound
            There was not enough time.
        """


def read_request(
    engine: Engine, method: object, layers: int, watch: Watch | None, **limits: object
) -> Request:
    """A method of the engine and its limits, for a problem of so many layers.

    Raises
    ------
    UnknownMethod, UnsuitableMethod, InvalidBudget
        There is no such method, or a limit is none that it takes, or has no meaning.
    """
    chosen = engine.method(method)
    known = frozenset().union(*(each.takes for each in engine.methods.values()))
    read: dict[str, Any] = {}
    for name, value in limits.items():
        if value is None:
            continue
        if name not in known:
            raise UnsuitableMethod(engine.foreign.format(name))
        if name not in chosen.takes:
            raise UnsuitableMethod(
                f"method {chosen.name!r} takes no {name}; it limits the sets of method 'optimal'"
            )
        read[name] = READERS[name](value, layers)
    if watch is not None:
        read |= {"report": watch.report, "interrupted": watch.interrupted}
    return Request(chosen, Limits(**read))


def budget_of(plan: Plan) -> Budget:
    """The budget of a plan, or where there was none what it needs."""
    least = max(plan.peak_bytes + plan.reserved_bytes, 1)
    return read_budget(None, plan.budget_bytes or least, plan.reserved_bytes)


def solve(
    engine: Engine, costs: Costs, problem: Problem[Any], size: Budget, request: Request
) -> Plan:
    """The plan of a method within a budget.

    Raises
    ------
    InfeasibleBudget, NoPlanFound
        There is none, or none was found.
    UnsuitableMethod
        The method does not accept the problem.
    """
    start = time.perf_counter()
    solution = solution_of(engine, problem, size, request)
    seconds = time.perf_counter() - start
    return certified(
        costs, problem, solution, method=request.method.name, size=size, seconds=seconds
    )


def solution_of(
    engine: Engine, problem: Problem[Any], size: Budget, request: Request
) -> Solution[Any]:
    """The solver's answer, or its refusal in words; errors as of `solve`."""
    try:
        with suited():
            return request.method.solve(problem, size.available, request.limits)
    except Infeasible as error:
        raise engine.refusal(problem, error, size, request) from None


@contextmanager
def suited() -> Iterator[None]:
    """What a solver does not accept, or has no memory for, is no method for these costs."""
    try:
        yield
    except Unsuitable as error:
        raise UnsuitableMethod(str(error)) from None
    except MemoryError:
        raise UnsuitableMethod(
            "solving takes more memory than there is; make fewer and larger layers of these, or "
            "ask for method 'greedy', which needs little"
        ) from None

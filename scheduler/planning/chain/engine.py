"""The engine of chains: exact, whole frontiers at once, single budgets where they are long."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from scheduler.common.errors import (
    BUG,
    InfeasibleBudget,
    NoPlanFound,
    SchedulerError,
    UnknownMethod,
    UnsuitableMethod,
)
from scheduler.common.text import did_you_mean, format_both, shown
from scheduler.costs.costgraph import CostGraph
from scheduler.planning.certify import replayed
from scheduler.planning.chain.compare import compare_chain
from scheduler.planning.chain.sweep import ChainSweep, WholeFrontier
from scheduler.planning.comparison import Comparison
from scheduler.planning.engine import Run, budget_of, read_request, suited
from scheduler.planning.frontier import Frontier
from scheduler.planning.request import Budget, Request, Watch, read_seconds
from scheduler.plans.plan import Plan
from scheduler.plans.text import peak_text
from solvers.chain.methods import METHODS
from solvers.chain.problem import Chain
from solvers.methods import Method
from solvers.solution import Infeasible

_EXACT_LAYERS = 120
"""A report has the whole exact frontier of chains up to this long, and some budgets of longer."""

_SECONDS = 10.0
"""For those budgets together, where nothing else is said."""


class _ChainEngine:
    """See `scheduler.planning.engine.Engine`."""

    methods: Mapping[str, Method] = METHODS
    foreign = (
        "{} is for graphs, and these layers are a chain, which is solved exactly without it; leave "
        "it out (max_points and memory_limit make a chain faster)"
    )
    listens = False
    sweeps = False

    def method(self, name: object) -> Method:
        if isinstance(name, str) and name in METHODS:
            return METHODS[name]
        raise UnknownMethod(
            f"there is no method {shown(name)}{did_you_mean(name, METHODS)} (the methods are "
            f"{', '.join(METHODS)})"
        )

    def refusal(
        self, problem: Chain, error: Infeasible, size: Budget, request: Request
    ) -> SchedulerError:
        method = request.method.name
        if error.schedule is None:
            return _not_found(error, size, request)
        done = replayed(problem, error.schedule, method)
        if done.peak_bytes != error.needs_bytes:
            raise RuntimeError(
                f"method {method!r} says a smallest peak of {error.needs_bytes} bytes, the replay "
                f"gives {done.peak_bytes}: {BUG}"
            )
        set_by = peak_text(done.peak_action, problem.names)
        needs = size.smallest(done.peak_bytes)
        return InfeasibleBudget(size.asked, needs, set_by, size.reserved, method)

    def frontier(
        self, costs: CostGraph, problem: Chain, request: Request, points: object
    ) -> Frontier:
        if points is not None:
            raise UnsuitableMethod(self.foreign.format("points"))
        if request.method.name != "optimal":
            raise UnsuitableMethod("the frontier of a chain is that of method 'optimal'")
        _check_untimed(request)
        with suited():
            trades = WholeFrontier(
                problem,
                request.limits,
                lambda error, size: self.refusal(problem, error, size, request),
            )
        return Frontier(costs, problem, trades)

    def compare(
        self,
        costs: CostGraph,
        problem: Chain,
        size: Budget,
        request: Request,
        against: str | Iterable[str],
    ) -> Comparison:
        _check_untimed(request)
        with suited():
            return compare_chain(costs, problem, size, request.limits, against)

    def around(
        self,
        plan: Plan,
        costs: CostGraph,
        run: Run,
        watch: Watch,
        points: object,
        limits: Mapping[str, Any],
    ) -> tuple[Frontier, Comparison]:
        size, problem = budget_of(plan), costs.to_chain()
        if len(costs) > _EXACT_LAYERS and limits["max_points"] is None:
            return self._swept(plan, costs, problem, size, run, points, limits)
        request = read_request(self, "optimal", len(costs), watch, **limits)
        frontier = run("the frontier", lambda: self.frontier(costs, problem, request, points))
        compared = run("all methods", lambda: self.compare(costs, problem, size, request, ()))
        return frontier, compared

    def _swept(
        self,
        plan: Plan,
        costs: CostGraph,
        problem: Chain,
        size: Budget,
        run: Run,
        points: object,
        limits: Mapping[str, Any],
    ) -> tuple[Frontier, Comparison]:
        """The same of a long chain, as far as it is solved within a time limit."""
        for name, value in (("points", points), ("threads", limits["threads"])):
            if value is not None:
                raise UnsuitableMethod(self.foreign.format(name))
        asked = limits["time_limit"]
        seconds = _SECONDS if asked is None else read_seconds(asked)
        sweep = ChainSweep(problem, lambda work, left: run("some budgets", work, left), seconds)
        sweep.know_plan(plan, size.available)
        try:
            with suited():
                compared = compare_chain(costs, problem, size, optima=sweep.optima)
        except TimeoutError:
            raise NoPlanFound(
                f"the optimum of {len(costs)} layers within the plan's budget was not found in "
                f"{seconds:g} s; give a larger --time-limit",
                out_of_time=True,
            ) from None
        return Frontier(costs, problem, sweep.trades()), compared


def _check_untimed(request: Request) -> None:
    if request.limits.time_limit is not None:
        raise UnsuitableMethod(
            "time_limit of a chain is for solve alone; leave it out (max_points and memory_limit "
            "make the frontier of a chain faster)"
        )


def _not_found(error: Infeasible, size: Budget, request: Request) -> NoPlanFound:
    """The error for a search that ended with neither a plan nor a proof that there is none."""
    budget = f"a budget of {format_both(size.asked)}"
    if request.is_interrupted:
        return NoPlanFound(f"interrupted before a plan was found within {budget}")
    if error.out_of_time:
        seconds = f"{request.limits.time_limit:g} s" if request.limits.time_limit else "time"
        return NoPlanFound(
            f"no plan was found within {budget} in {seconds}; give more time or a larger budget",
            out_of_time=True,
        )
    return NoPlanFound(
        f"no plan was found within {budget} and the memory for tables; give a larger memory_limit "
        "or a larger budget"
    )


CHAIN = _ChainEngine()

"""What a caller asks of the solvers of graphs: method, class, time and threads."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass

from scheduler.common.checks import plain
from scheduler.common.errors import InvalidBudget, UnknownMethod, UnsuitableMethod
from scheduler.common.text import did_you_mean, shown
from solvers.chain import methods as registry
from solvers.graph.solution import PlanClass, Report

__all__ = ["Search", "Watch", "read_search", "refuse_chain_options", "refuse_graph_options"]


@dataclass(frozen=True, slots=True)
class Search:
    """How a graph is to be solved.

    Attributes
    ----------
    method
        A method of `solvers.graph.solve`.
    time_limit
        In seconds; None: until it is proven.
    optimal_in
        The class of plans to prove it in; None: what the method thinks best.
    threads
        Threads of the solvers.
    """

    method: str = "auto"
    time_limit: float | None = None
    optimal_in: PlanClass | None = None
    threads: int = 1


@dataclass(frozen=True, slots=True)
class Watch:
    """Who looks on while a graph is solved.

    Attributes
    ----------
    report
        Is told of every step forward.
    interrupted
        Is asked now and then; True: the best plan so far is enough.
    """

    report: Report | None = None
    interrupted: Callable[[], bool] | None = None

    @property
    def is_interrupted(self) -> bool:
        """Whether the best plan so far is enough."""
        return self.interrupted is not None and self.interrupted()


def read_search(method: object, time_limit: object, optimal_in: object, threads: object) -> Search:
    """How to solve a graph, as the solvers take it; method "optimal" is "auto".

    Raises
    ------
    UnknownMethod, UnsuitableMethod
        There is no such method, or it is one for chains.
    InvalidBudget
        The time limit, the class or the number of threads is none.
    """
    return Search(
        _read_method(method),
        _read_time_limit(time_limit),
        _read_class(optimal_in),
        _read_threads(threads),
    )


def refuse_graph_options(**given: object) -> None:
    """Raise `UnsuitableMethod` when a chain gets an option that only graphs know."""
    for name, value in given.items():
        if value is not None:
            raise UnsuitableMethod(
                f"{name} is for graphs, and these layers are a chain, which is solved exactly "
                "without it; leave it out (max_points and memory_limit make a chain faster)"
            )


def refuse_chain_options(**given: object) -> None:
    """Raise `UnsuitableMethod` when a graph gets an option that only chains know."""
    for name, value in given.items():
        if value is not None:
            raise UnsuitableMethod(
                f"{name} limits the sets of the solver of chains, and this is a graph; "
                "give a time_limit instead"
            )


def _read_method(name: object) -> str:
    # Importing it is for those who have a graph.
    from solvers.graph.methods import METHODS

    if name == "optimal":
        return "auto"
    if isinstance(name, str) and name in METHODS:
        return name
    names = ", ".join(METHODS)
    if isinstance(name, str) and name in registry.METHODS:
        raise UnsuitableMethod(
            f"method {name!r} is for chains, and this is a graph (its methods are {names})"
        )
    raise UnknownMethod(
        f"there is no method {shown(name)}{did_you_mean(name, METHODS)} "
        f"(the methods for graphs are {names})"
    )


def _read_time_limit(time_limit: object) -> float | None:
    value = plain(time_limit)
    if value is None:
        return None
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not 0 < value < math.inf  # false for NaN too
    ):
        raise InvalidBudget(
            f"time_limit must be a positive number of seconds, got {shown(value)}; "
            "leave it out to solve until it is proven"
        )
    return float(value)


def _read_class(name: object) -> PlanClass | None:
    if name is None:
        return None
    try:
        return PlanClass(name)
    except ValueError:
        names = [each.value for each in PlanClass]
        raise InvalidBudget(
            f"optimal_in must be 'forward', 'staged' or 'any', got {shown(name)}"
            f"{did_you_mean(name, names)}"
        ) from None


def _read_threads(threads: object) -> int:
    value = plain(threads)
    if value is None:
        return 1
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidBudget(
            f"threads must be a whole number of at least 1, got {shown(value)}; "
            f"this machine has {os.cpu_count()}"
        )
    return value

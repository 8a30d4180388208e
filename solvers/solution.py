"""What a solver returns, and what it raises when it cannot."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from solvers.problem import Chain
from solvers.replay import replay
from solvers.schedule import Item


class Status(str, Enum):
    """How much is known about a plan."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"


@dataclass(frozen=True, slots=True)
class Solution:
    """A plan with its certificate.

    Attributes
    ----------
    items
        The plan.
    peak_bytes, time
        What its replay gives; time in the chain's integer unit.
    lower_bound_time
        No persistent plan within the budget takes less.
    """

    items: tuple[Item, ...]
    peak_bytes: int
    time: int
    lower_bound_time: int

    @property
    def status(self) -> Status:
        """`OPTIMAL` only when the bound proves it (in the class of persistent plans)."""
        return Status.OPTIMAL if self.time <= self.lower_bound_time else Status.FEASIBLE


class Infeasible(Exception):
    """No plan of this method fits the budget.

    Attributes
    ----------
    items
        The plan of this method with the smallest peak.
    peak_bytes
        That peak: the smallest budget this method can meet.
    """

    def __init__(self, items: tuple[Item, ...], peak_bytes: int) -> None:
        super().__init__(f"the smallest peak is {peak_bytes} bytes")
        self.items = items
        self.peak_bytes = peak_bytes


class Unsuitable(ValueError):
    """The method does not accept this problem; the message says why."""


def keep_all_time(chain: Chain) -> int:
    """Time of the plan that recomputes nothing: no plan of any kind takes less.

    Every layer runs once as a plain forward before anything ends a recomputed body, and once
    backward.
    """
    return sum(layer.forward_time + layer.backward_time for layer in chain.layers)


def best_fitting(chain: Chain, candidates: list[tuple[Item, ...]], budget: int) -> Solution:
    """The fastest of `candidates` whose replay fits `budget` bytes, ties to the smaller peak.

    Raises
    ------
    Infeasible
        None fits; carries the candidate with the smallest peak.
    """
    results = [(replay(chain, items), items) for items in candidates]
    fitting = [
        (r.time, r.peak_bytes, n) for n, (r, _) in enumerate(results) if r.peak_bytes <= budget
    ]
    if not fitting:
        peak, _, n = min((r.peak_bytes, r.time, n) for n, (r, _) in enumerate(results))
        raise Infeasible(results[n][1], peak)
    time, peak, n = min(fitting)
    return Solution(results[n][1], peak, time, keep_all_time(chain))

"""Every legal schedule of a small graph: the true optimum, in class "any".

A* over what is live and what is done. A step may be preceded by any drops, at no cost, so of two
states that differ in their live values alone the one with more of them is never worse: it is
enough to drop right before a step that needs the room, and no more than that step needs. A search
path may hold a value longer than the replay does, never shorter, so what fits here fits there.

The bound of a state is the time of the operations that must still run: those never run, and those
whose output is gone and is read by an operation that must still run. A step takes at most itself
off that set, so the bound is consistent and the first end that is reached is optimal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from heapq import heappop, heappush
from typing import Any

from solvers.graph.exact.moves import RULES, Move, Rules, Step
from solvers.graph.lowering import lower
from solvers.graph.problem import Graph
from solvers.graph.schedule import GraphSchedule
from solvers.solution import Infeasible, PlanClass, Solution, Unsuitable

MOST_OPERATIONS = 40
"""Graphs with more operations are refused at once; a layer is two."""

MOST_STATES = 1_000_000
"""The search gives up when it has met more states: minutes, and half a gigabyte."""

_CHECK_EVERY = 512  # states between two looks at `interrupted`


def solve_any(
    graph: Graph,
    budget: int,
    *,
    most_states: int = MOST_STATES,
    interrupted: Callable[[], bool] | None = None,
) -> Solution[GraphSchedule]:
    """The fastest of all legal schedules that fit `budget` bytes.

    Nodes are computed in any order that the edges allow, and as often as it takes; the backwards of
    a layer graph may run in any order, too. So it is optimal in class "any", and its bound is its
    own time. The search gives up beyond `most_states`.

    Raises
    ------
    Infeasible
        No schedule fits, proven in class "any"; or, with nothing proven, the search was
        interrupted.
    Unsuitable
        The graph is too large for this search.
    """
    lowered = lower(graph)
    operations = len(lowered)
    floor, needs = graph.floor
    set_by = lowered.action(needs)
    if budget < floor:
        raise Infeasible(floor, set_by, None, PlanClass.ANY)
    if operations > MOST_OPERATIONS:
        raise Unsuitable(
            f"exhaustive search takes graphs of up to {MOST_OPERATIONS} operations, and this one "
            f"has {operations}; ask for an optimum in class staged or forward"
        )
    rules = RULES[type(graph)](graph)
    search = _Search(rules, budget, most_states, interrupted or (lambda: False))
    found = search.run()
    if found is None:
        proven = None if search.stopped else PlanClass.ANY
        raise Infeasible(floor, set_by, None, proven)
    steps, time = found
    problem: Any = graph  # whose rules give schedules of its own kind
    solution: Solution[GraphSchedule] = Solution.of(
        problem, rules.schedule(steps), plan_class=PlanClass.ANY
    )
    assert solution.time == time
    assert solution.peak_bytes <= budget
    return solution


class _Totals(dict[int, int]):
    """Bytes of any set of values."""

    def __init__(self, sizes: list[int]) -> None:
        super().__init__({0: 0})
        self.sizes = sizes

    def __missing__(self, values: int) -> int:
        low = values & -values
        self[values] = total = self[values ^ low] + self.sizes[low.bit_length() - 1]
        return total


class _Search:
    """A* from nothing done to all done; a state is ``done << n | live``."""

    def __init__(
        self, rules: Rules, budget: int, most_states: int, interrupted: Callable[[], bool]
    ) -> None:
        self.rules, self.budget, self.most_states = rules, budget, most_states
        self.interrupted = interrupted
        self.stopped = False
        self.total = _Totals(rules.sizes)
        self.order = sorted(range(len(rules.sizes)), key=lambda v: -rules.sizes[v])
        self.stand = cache(rules.stand)
        self.came: dict[int, tuple[int, int, Step]] = {}  # state -> time, state before, step

    def run(self) -> tuple[tuple[Step, ...], int] | None:
        """Steps and time of the optimum; None: there is none, or the search was stopped."""
        n = len(self.rules.sizes)
        came, bound = self.came, self.rules.bound
        met = expanded = 0
        heap = [(0, 0, met, 0, 0)]  # among equal estimates, the least still to do first
        while heap:
            *_, time, state = heappop(heap)
            done, live = state >> n, state & (1 << n) - 1
            if done == self.rules.end:
                return self._steps(state), time
            if state and time > came[state][0]:
                continue  # a faster way here came up later
            expanded += 1
            if expanded % _CHECK_EVERY == 0 and self.interrupted():
                self.stopped = True
                return None
            for move, kept in self._moves(live, done):
                new, after = time + move.time, move.after << n | kept
                old = came.get(after)
                if old is not None and old[0] <= new:
                    continue
                rest_after = bound(kept, move.after)
                if rest_after is None:
                    continue
                came[after] = new, state, move.step
                met += 1
                heappush(heap, (new + rest_after, rest_after, met, new, after))
            if len(came) > self.most_states:
                raise Unsuitable(
                    f"exhaustive search gave up after {self.most_states:,} states; ask for an "
                    "optimum in class staged or forward"
                )
        return None

    def _moves(self, live: int, done: int) -> Iterator[tuple[Move, int]]:
        """Steps from a state, each with every largest set of values that may be live after it."""
        stand, total = self.stand(done), self.total
        for move in stand.moves:
            if move.reads & ~live or (move.makes & live and move.after == done):
                continue
            room = self.budget - stand.base - move.on_top - total[move.reads]
            if room < 0:
                continue
            useful = self.stand(move.after).useful
            fixed = (move.reads | move.makes) & useful
            spare = live & useful & ~(move.reads | move.makes)
            if total[spare] <= room:
                yield move, fixed | spare
            else:
                for kept in self._largest(spare, room):
                    yield move, fixed | kept

    def _largest(self, values: int, room: int) -> Iterator[int]:
        """The subsets that fit in `room` bytes and to which no other of `values` can be added."""
        sizes, total = self.rules.sizes, self.total
        order = [v for v in self.order if values >> v & 1]
        # Large values first: whether one that was left out would fit after all is then a bound on
        # the room that the rest may leave.
        stack = [(0, values, 0, room, room + 1)]  # next, undecided, kept, room left, below this
        while stack:
            place, undecided, kept, left, below = stack.pop()
            spare = left - total[undecided]
            if spare >= below:
                continue
            if spare >= 0:
                yield kept | undecided
                continue
            v = order[place]
            undecided ^= 1 << v
            stack.append((place + 1, undecided, kept, left, min(below, sizes[v])))
            if sizes[v] <= left:
                stack.append((place + 1, undecided, kept | 1 << v, left - sizes[v], below))

    def _steps(self, state: int) -> tuple[Step, ...]:
        steps: list[Step] = []
        while state:
            _, state, step = self.came[state]
            steps.append(step)
        return tuple(reversed(steps))

"""A bound for compute graphs of any size: what has to run again between two reads, at least.

Nodes 0..n-1 in the order of their first run. A gap of a value lies between two first runs in
turn that read it, or make and read it. Whoever does not hold the value throughout a gap runs
its maker again in it. While a node between runs for the first time, what is beyond the budget is
not held: so the gaps over it that are not kept cover that. This holds of every schedule with this
order of first runs, whatever else it does; what the runs again need themselves is left out.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from solvers.graph.milp import Floats, Ints, Program, Rows
from solvers.graph.problem import ComputeGraph
from solvers.graph.search import Search

_LARGEST_COST = 1e5
_DOUBT = 1e-4  # how far a scaled bound may be too high: see `solvers.graph.exact.staged`
_ROWS = 100  # added at a time, those most broken


def bound_by_gaps(search: Search, seconds: float | None) -> None:
    """Raise the bound of a search of a compute graph, by the relaxation."""
    graph: Any = search.operations.graph
    if search.operations.layers or search.over:
        return
    search.stage = "gaps"
    _Gaps(search, graph, seconds).run()


class _Gaps:
    def __init__(self, search: Search, graph: ComputeGraph, seconds: float | None) -> None:
        self.search, self.seconds = search, seconds
        operations, n = search.operations, len(graph)
        gaps: list[tuple[int, int, int]] = []
        held = np.zeros(n + 1, np.int64)  # what is held without choice while a node runs
        for v, readers in enumerate(graph.consumers):
            size = graph.nodes[v].bytes
            for begin, end in zip((v, *readers), readers, strict=False):
                held[begin] += size
                held[begin + 1] -= size
                if end - begin < 2:
                    continue
                if operations.may_run_again(v, end, search.plan_class):
                    gaps.append((v, begin, end))
                else:
                    held[begin + 1] += size
                    held[end] -= size
            last = readers[-1] if readers else v
            held[last] += size
            held[last + 1] -= size
        table = np.array(gaps, np.int64).reshape(-1, 3)
        self.begins, self.ends = table[:, 1], table[:, 2]
        self.sizes = np.array([graph.nodes[v].bytes for v in table[:, 0]], np.int64)
        self.costs = np.array([graph.nodes[v].time for v in table[:, 0]], np.int64)
        self.scale = max(float(search.unit), float(self.costs.max(initial=1)) / _LARGEST_COST)
        all_held = np.cumsum(held)[:n]
        np.add.at(held, self.begins + 1, self.sizes)
        np.subtract.at(held, self.ends, self.sizes)
        self.excess = np.cumsum(held)[:n] - search.budget
        if np.any(all_held > search.budget):
            search.infeasible = True

    def run(self) -> None:
        rows: dict[int, Rows] = {}
        solution: Floats = np.zeros(len(self.sizes))
        while not self.search.over:
            broken = [t for t in self._broken(solution) if t not in rows][:_ROWS]
            if not broken:
                break
            rows |= {t: self._row(t) for t in broken}
            answer = self._solve(rows)
            if answer is None:
                return
            solution = answer

    def _broken(self, solution: Floats) -> list[int]:
        """Nodes that run with more than the budget by a solution, the worst first."""
        change = np.zeros(len(self.excess) + 1)
        np.add.at(change, self.begins + 1, self.sizes * solution)
        np.subtract.at(change, self.ends, self.sizes * solution)
        over = (self.excess - np.cumsum(change)[:-1]) / np.maximum(1, self.excess)
        worst = np.argsort(-over, kind="stable")
        broken: list[int] = worst[over[worst] > 1e-6].tolist()
        return broken

    def _row(self, t: int) -> Rows:
        from scipy.sparse import csr_array

        columns: Ints = np.flatnonzero((self.begins < t) & (t < self.ends))
        # No gap need count for more than all that is missing: that is tighter.
        shares = np.minimum(self.sizes[columns], self.excess[t]) / self.excess[t]
        matrix = csr_array((shares, columns, [0, len(columns)]), (1, len(self.sizes)))
        return Rows(matrix, np.array([1.0]), np.array([np.inf]))

    def _solve(self, rows: dict[int, Rows]) -> Floats | None:
        width = len(self.sizes)
        program = Program(
            self.costs / self.scale,
            np.zeros(width),
            np.ones(width),
            np.zeros(width, np.bool_),
            list(rows.values()),
        )
        answer = self.search.solved(program, seconds=self.seconds)
        if answer is None:
            return None
        self._raise(answer.bound)
        return answer.solution if answer.finished else None

    def _raise(self, bound: float) -> None:
        self.search.raise_bound((bound - _DOUBT) * self.scale)

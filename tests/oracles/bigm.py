"""The formulation usually quoted for rematerialisation (Jain et al., "Checkmate", 2020, §4).

R[t,i]: node i is computed in stage t; S[t,i]: its output is held entering stage t; U[t,k]: bytes
live while node k of stage t is computed; FREE[t,i,k]: the output of i is let go after k. FREE is a
product of binaries, made linear with a constant ("big M") as in the paper's equations 6 to 8.

Its memory is DESIGN §7's at the optimum: U[t,k] counts what is live and k's own output, and what
the last reader of a stage leaves behind is let go right after it. A value held into a stage that
neither reads nor passes it on stays until that stage's end, but there is no need to hold it.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import LinearConstraint, milp

from solvers.graph.problem import ComputeGraph


class _Model:
    """Columns and rows of a mixed-integer program."""

    def __init__(self) -> None:
        self.columns: dict[tuple[object, ...], int] = {}
        self.upper: list[float] = []
        self.integral: list[int] = []
        self.rows: list[dict[int, float]] = []
        self.bounds: list[tuple[float, float]] = []

    def add(self, *key: object, upper: float = 1, integral: bool = True) -> None:
        self.columns[key] = len(self.columns)
        self.upper.append(upper)
        self.integral.append(int(integral))

    def row(self, low: float, terms: list[tuple[float, tuple[object, ...]]], high: float) -> None:
        """``low <= Σ factor · column <= high``; a column that does not exist is 0."""
        row: dict[int, float] = {}
        for factor, key in terms:
            if key in self.columns:
                column = self.columns[key]
                row[column] = row.get(column, 0.0) + factor
        self.rows.append(row)
        self.bounds.append((low, high))

    def least(self, objective: list[tuple[float, tuple[object, ...]]]) -> int | None:
        matrix = np.zeros((len(self.rows), len(self.columns)))
        for r, row in enumerate(self.rows):
            for column, factor in row.items():
                matrix[r, column] = factor
        costs = np.zeros(len(self.columns))
        for factor, key in objective:
            costs[self.columns[key]] += factor
        low, high = zip(*self.bounds, strict=True)
        result = milp(
            costs,
            integrality=np.array(self.integral),
            bounds=(0, np.array(self.upper)),
            constraints=LinearConstraint(matrix, low, high),
            options={"mip_rel_gap": 0},
        )
        assert result.status in (0, 2), result.message  # optimal, infeasible
        return None if result.x is None else round(result.fun)


def best_staged_by_big_m(graph: ComputeGraph, budget: int) -> int | None:
    """Least time in class staged; None: nothing fits. Small numbers only: the solver's are floats.

    Parameters
    ----------
    graph
        Up to about 8 nodes; sizes and times of at most a few thousand.
    budget
        In bytes.
    """
    n, nodes, inf = len(graph), graph.nodes, np.inf
    model = _Model()
    for t in range(n):
        for i in range(t + 1):
            model.add("R", t, i)
            model.add("U", t, i, upper=budget, integral=False)
            for k in {i, *graph.consumers[i]} & set(range(t + 1)):
                model.add("FREE", t, i, k)
        for i in range(t):
            model.add("S", t, i)
    for t in range(n):
        model.row(1, [(1, ("R", t, t))], 1)
        for u, v in graph.edges:
            if v <= t:
                model.row(-inf, [(1, ("R", t, v)), (-1, ("R", t, u)), (-1, ("S", t, u))], 0)
        for i in range(t):
            before = [(-1.0, ("R", t - 1, i)), (-1.0, ("S", t - 1, i))]
            model.row(-inf, [(1, ("S", t, i)), *before], 0)
        for k in range(t + 1):
            live: list[tuple[float, tuple[object, ...]]] = [
                (1, ("U", t, k)),
                (-nodes[k].bytes, ("R", t, k)),
            ]
            if k == 0:
                live += [(-nodes[i].bytes, ("S", t, i)) for i in range(t)]
            else:
                live.append((-1, ("U", t, k - 1)))
                freed = (k - 1, *graph.inputs[k - 1])
                live += [(nodes[i].bytes, ("FREE", t, i, k - 1)) for i in freed]
            model.row(0, live, 0)
            for i in (k, *graph.inputs[k]):
                _free(model, graph, t, i, k)
    times = [(nodes[i].time, ("R", t, i)) for t in range(n) for i in range(t + 1)]
    return model.least(times)  # type: ignore[arg-type]


def _free(model: _Model, graph: ComputeGraph, t: int, i: int, k: int) -> None:
    """FREE[t,i,k] is 1 just when k runs, i is not held on, and no later reader of i runs."""
    later = [j for j in graph.consumers[i] if k < j <= t]
    # Reasons against it: 1 - R[t,k] + S[t+1,i] + Σ R[t,later].
    reasons: list[tuple[float, tuple[object, ...]]] = [(-1, ("R", t, k)), (1, ("S", t + 1, i))]
    reasons += [(1, ("R", t, j)) for j in later]
    most = 2 + len(later)
    model.row(0, [*reasons, (1, ("FREE", t, i, k))], np.inf)
    model.row(-np.inf, [*reasons, (most, ("FREE", t, i, k))], most - 1)

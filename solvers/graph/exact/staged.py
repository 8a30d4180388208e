"""The staged mixed-integer program: the exact solver of general graphs (DESIGN §7).

The relaxation with memory rows added where they are broken gives a bound; eviction, rounding and
annealing give schedules; what costs more than the difference is fixed; HiGHS does the
rest. Whatever it returns is replayed: a schedule over the budget by a rounding error is cut off
exactly, and the search goes on.
"""

from __future__ import annotations

import numpy as np

from solvers.graph.exact.formulation import ONE, Formulation
from solvers.graph.exact.rounding import roundings
from solvers.graph.heuristics.rerun import offer_annealed
from solvers.graph.milp import Answer, Floats, Ints, Program, Rows
from solvers.graph.search import Search

_LARGEST_COST = 1e5
"""Costs are scaled to this at most: HiGHS takes differences below 1e-6 for none."""

_DOUBT = 1e-4
"""How far a scaled bound may be too high: HiGHS's dual tolerance, 1e-7, over many columns."""

_MOVES, _MOVES_EACH = 300_000, 2_000
"""Of the annealing at most, and for each operation: a second."""

_SLACK = 1e-6
"""Share of the budget by which HiGHS may break a row: replay decides what is within it."""


def prove(search: Search) -> None:
    """Narrow `search` down: better schedules and a higher bound, both recorded in it."""
    _Proof(search).run()


def relax(search: Search) -> None:
    """The same without branch and bound: the relaxation's bound, and schedules rounded from it."""
    _Proof(search).relax()


class _Proof:
    """One run of the solver on one class."""

    def __init__(self, search: Search) -> None:
        self.search = search
        search.stage = "formulating"
        self.formulation = Formulation(search.operations, search.plan_class, search.go_on)
        self.memory_rows: dict[tuple[int, int], Rows] = {}
        self.cuts: list[Rows] = []
        self.upper = np.ones(len(self.formulation))
        n = len(search.operations)
        self.steps = np.zeros((n, n), np.bool_)  # which steps a stage may have
        for stage, again in enumerate(self.formulation.stages):
            self.steps[stage, [*again, stage]] = True
        self._fix_by_cost()
        self.scale = self._finest_scale()

    def run(self) -> None:
        answer = self.relax()
        if answer is None or self.search.over:
            return
        # A good schedule prunes the most.
        offer_annealed(self.search, min(_MOVES, _MOVES_EACH * len(self.search.operations)))
        self._fix_by_cost()
        self._fix_by_reduced_cost(answer)
        if not self.search.over:
            self._integers()

    def relax(self) -> Answer | None:
        """The solved relaxation; None: a limit came first, or nothing fits."""
        fits = [self._add_memory_row(stage, stage) for stage in range(len(self.steps))]
        if not all(fits):
            self._nothing_more()
            return None
        answer = self._relaxation()
        if answer is None:
            return None
        if answer.solution is None:
            self._nothing_more()
            return None
        self._round(answer.solution)
        return answer

    def _finest_scale(self) -> float:
        largest = float(self.formulation.cost[self.upper > 0].max())
        return max(float(self.search.unit), largest / _LARGEST_COST)

    def _raise_bound(self, bound: float) -> None:
        self.search.raise_bound((bound - _DOUBT) * self.scale)

    def _nothing_more(self) -> None:
        """The program, without what is fixed as worse than the best schedule, has no solution."""
        if self.search.time is None:
            self.search.infeasible = True
        else:
            self.search.close()

    # ---- the relaxation

    def _relaxation(self) -> Answer | None:
        """Solved with every memory row that it breaks; None: a limit came first."""
        self.search.stage = "relaxation"
        while True:
            answer = self._solve(integer=False)
            if answer is None or not answer.finished:
                return None
            if answer.solution is None:
                return answer
            self._raise_bound(answer.objective)
            broken = self._broken(answer.solution, self.search.budget * (1 + _SLACK))
            if not broken:
                return answer
            for stage, step in broken:
                self._add_memory_row(stage, step)

    def _broken(self, solution: Floats, limit: float) -> list[tuple[int, int]]:
        """Steps without a memory row where a solution holds more than `limit`.

        The worst three of each stage: its others are mostly broken by the same values.
        """
        memory = np.where(self.steps, self.formulation.memory(solution), 0.0)
        broken = []
        for stage in np.flatnonzero(memory.max(axis=1) > limit).tolist():
            steps = np.argsort(-memory[stage], kind="stable").tolist()
            over = [step for step in steps if memory[stage, step] > limit]
            broken += [(stage, step) for step in over if (stage, step) not in self.memory_rows][:3]
        return broken

    def _add_memory_row(self, stage: int, step: int) -> bool:
        """False: what is held there without choice is over the budget."""
        columns, sizes = self.formulation.memory_row(stage, step)
        chosen = columns != ONE
        room = self.search.budget - self.search.operations.resident[stage]
        room -= int(sizes[~chosen].sum())
        if room < int(np.minimum(sizes[chosen], 0).sum()):
            return False
        # HiGHS's tolerances are absolute, and it takes factors below 1e-9 for none.
        share = float(np.abs(sizes[chosen]).max(initial=1))
        self.memory_rows[stage, step] = self._row(
            columns[chosen], sizes[chosen] / share, room / share
        )
        return True

    # ---- what need not be looked at

    def _fix_by_cost(self) -> None:
        """Fix each run that costs more than all that the best schedule runs again."""
        if self.search.time is not None:
            self.upper[self.formulation.cost > self.search.time - self.search.least] = 0.0

    def _fix_by_reduced_cost(self, answer: Answer) -> None:
        if self.search.time is None or answer.reduced_costs is None:
            return
        assert answer.solution is not None
        best = self.search.time - self.search.least
        # A little is left for rounding errors, and so that the best schedule stays possible.
        room = best * (1 + 1e-6) + 0.5 - answer.objective * self.scale
        out = (answer.reduced_costs * self.scale > room) & (answer.solution < 0.5)
        self.upper[out & self.formulation.integer] = 0.0

    def _round(self, solution: Floats) -> None:
        self.search.stage = "rounding"
        for runs in roundings(self.formulation, solution, self.search.budget):
            self.search.offer(runs)
            if self.search.over:
                return

    # ---- branch and bound

    def _integers(self) -> None:
        self.search.stage = "branch and bound"
        while not self.search.over:
            answer = self._solve(integer=True)
            if answer is None:
                return
            if answer.solution is None:
                if answer.finished:
                    self._nothing_more()
                return
            fits = self.search.offer(self.formulation.runs(answer.solution))
            self._raise_bound(answer.bound)
            if not answer.finished:
                return
            if not fits:
                self._cut_off(np.round(answer.solution))
                continue
            # The best schedule rules out what is dearer: are differences finer to tell now?
            self._fix_by_cost()
            before, self.scale = self.scale, self._finest_scale()
            if self.scale > before / 100:
                self.search.close()

    def _cut_off(self, solution: Floats) -> None:
        """Add the memory rows that an integer solution breaks; where they are there, a cover.

        A row is broken within HiGHS's tolerance when its own columns say so: not all of what is
        held there can be held at once, exactly.
        """
        broken = self._broken(solution, self.search.budget)
        if broken:
            for stage, step in broken:
                self._add_memory_row(stage, step)
            return
        memory = np.where(self.steps, self.formulation.memory(solution), 0.0)
        over = np.argwhere(memory > self.search.budget).tolist()
        assert over, "the replay of an integer solution holds no more than its memory rows"
        for stage, step in over:
            columns, sizes = self.formulation.memory_row(stage, step)
            chosen = columns != ONE
            columns, sizes = columns[chosen], sizes[chosen]
            held = (sizes > 0) & (solution[columns] > 0.5)
            saving = (sizes < 0) & (solution[columns] < 0.5)
            taken, signs = held | saving, np.where(held, 1.0, -1.0)
            limit = np.count_nonzero(held) - 1.0
            self.cuts.append(self._row(columns[taken], signs[taken], limit))

    def _row(self, columns: Ints, factors: Floats, upper: float) -> Rows:
        """The one row ``factors x ≤ upper``."""
        from scipy.sparse import csr_array

        shape = 1, len(self.formulation)
        matrix = csr_array((factors, columns, [0, len(columns)]), shape)
        return Rows(matrix, np.array([-np.inf]), np.array([upper]))

    def _solve(self, *, integer: bool) -> Answer | None:
        formulation, search = self.formulation, self.search
        nothing = np.zeros(len(formulation), np.bool_)
        program = Program(
            formulation.cost / self.scale,
            formulation.lower,
            self.upper,
            formulation.integer if integer else nothing,
            [formulation.rows, *self.memory_rows.values(), *self.cuts],
        )
        hint = formulation.point(search.runs) if integer and search.runs else None
        return search.solved(program, hint=hint, watch=self._raise_bound)

"""The staged formulation of DESIGN §7 as arrays: columns, rows, and memory rows on demand.

Operations 0..n-1 in the order of their first run. Stage t ends with the first run of t; before it
some earlier operations run again, in the same order. R[t,i]: i runs in stage t (1 for i = t).
K[t,i] ≤ R[t,i]: that run makes the optional value too. S[t,v]: value v is held entering stage t.

Of a value v made by i let s_0 < … < s_{p-1} be the operations of stage t that read it. D_q is "v is
held until s_q" (q < p), D_p = S[t+1,v]:

    D_0 = R[t,i] + S[t,v] ≤ 1       (K in place of R for an optional value)
    D_q ≥ D_{q+1},  D_q ≥ R[t,s_q]
    D_q ≤ Σ_{r≥q} R[t,s_r] + S[t+1,v]   for 1 ≤ q < p

Where t itself reads v, all D_q with q < p are 1. The memory row of step k of stage t says that all
that is held across k, with what k makes and needs, is within the budget.

A saved set that is made stays until it is read, so there D_0 = D_p.

Held without choice, and so no variable of its own: a value that can no longer be made again and is
still to be read; and S[t+1,v] = S[t,v] where stage t can neither read nor make v.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from solvers.graph.lowering import Operations, Run, Value
from solvers.graph.milp import Floats, Ints, Rows
from solvers.solution import PlanClass

__all__ = ["Formulation"]

ONE = 0
"""The column that is always 1."""
NONE = -1
"""No column: always 0."""


class _RowList:
    """Rows under construction."""

    def __init__(self) -> None:
        self.starts = [0]
        self.columns: list[int] = []
        self.factors: list[float] = []
        self.lower: list[float] = []
        self.upper: list[float] = []

    def at_least(
        self, bigger: list[int], smaller: list[int], lower: float = 0, upper: float = np.inf
    ) -> None:
        """Σ bigger − Σ smaller ≥ 0; columns that are always 0 may be among them."""
        terms: dict[int, float] = {}
        for columns, sign in ((bigger, 1.0), (smaller, -1.0)):
            for column in columns:
                if column != NONE:
                    terms[column] = terms.get(column, 0.0) + sign
        terms = {column: factor for column, factor in terms.items() if factor}
        if not terms and lower <= 0 <= upper:
            return
        self.columns += terms.keys()
        self.factors += terms.values()
        self.starts.append(len(self.columns))
        self.lower.append(lower)
        self.upper.append(upper)

    def done(self, width: int) -> Rows:
        from scipy.sparse import csr_array

        shape = len(self.lower), width
        matrix = csr_array((self.factors, self.columns, self.starts), shape)
        return Rows(matrix, np.array(self.lower), np.array(self.upper))


class Formulation:
    """The staged model of some operations in a class, without a budget.

    Attributes
    ----------
    stages
        For each stage the operations that may run again before its own.
    run, keep, hold
        Columns of R[t,i], K[t,i] and S[t,v] by pairs; a missing pair is always 0.
    cost
        Time of each column, an integer.
    integer
        Must a column be integer? The D columns need not.
    lower, upper
        Bounds of the columns.
    rows
        All rows but those of memory.
    """

    def __init__(
        self,
        operations: Operations,
        plan_class: PlanClass,
        go_on: Callable[[], None] = lambda: None,
    ) -> None:
        """`go_on` is called now and then; what it raises ends this."""
        self._go_on = go_on
        self.operations = operations
        self.plan_class = plan_class
        self.stages = operations.useful(plan_class)
        self.run: dict[tuple[int, int], int] = {}
        self.keep: dict[tuple[int, int], int] = {}
        self.hold: dict[tuple[int, int], int] = {}
        self._cost: list[int] = [0]
        self._integer: list[bool] = [False]
        self._segments: list[tuple[int, int, int, int, int]] = []  # stage, from, to, column, bytes
        self._build()
        columns = len(self._cost)
        self.cost = np.array(self._cost, np.int64)
        self.integer = np.array(self._integer, np.bool_)
        self.lower = np.zeros(columns)
        self.lower[ONE] = 1.0
        self.upper = np.ones(columns)
        self._index_segments()

    def __len__(self) -> int:
        return len(self.cost)

    # ---- columns

    def _column(self, cost: int = 0, *, integer: bool = True) -> int:
        self._cost.append(cost)
        self._integer.append(integer)
        return len(self._cost) - 1

    def _build(self) -> None:
        operations, n = self.operations, len(self.operations)
        for stage, again in enumerate(self.stages):
            for i in again:
                self.run[stage, i] = self._column(operations.times[i])
            self.run[stage, stage] = ONE
            for i in (*again, stage):
                saved = operations.saved[i]
                if saved is not None and operations.values[saved].uses[-1] >= stage:
                    once = i == stage and not operations.repeatable[i]
                    self.keep[stage, i] = ONE if once else self._column()
        rows = _RowList()
        members = [{*again, stage} for stage, again in enumerate(self.stages)]
        for index, value in enumerate(operations.values):
            self._go_on()
            self._hold_columns(index, value, members)
            for stage in range(value.maker, n):
                self._value_in_stage(index, value, stage, members[stage], rows)
        for pair, column in self.keep.items():
            if pair[0] != pair[1]:
                rows.at_least([self.run[pair]], [column])
        self.rows = rows.done(len(self._cost))

    def _made(self, value: Value, stage: int) -> int:
        """The column that says that `stage` makes the value."""
        made = self.keep if value.optional else self.run
        return made.get((stage, value.maker), NONE)

    def _hold_columns(self, index: int, value: Value, members: list[set[int]]) -> None:
        n = len(self.operations)
        in_stage = [
            any(use in members[stage] for use in value.uses) for stage in range(value.maker + 1, n)
        ]
        if not any(in_stage):
            return
        last = value.maker + 1 + max(i for i, used in enumerate(in_stage) if used)
        forced = self._forced(value, last)
        for stage in range(value.maker + 1, last + 1):
            before = stage - 1
            if stage in forced:
                column = ONE
            elif (
                before > value.maker
                and not in_stage[before - value.maker - 1]
                and self._made(value, before) == NONE
            ):
                column = self.hold[before, index]
            else:
                column = self._column()
            self.hold[stage, index] = column

    def _forced(self, value: Value, last: int) -> set[int]:
        """Stages that the value must enter live: read before it can be made again."""
        forced = set()
        begin = value.maker + 1
        for use in value.uses:
            makes = [t for t in range(begin, use + 1) if self._made(value, t) != NONE]
            forced |= set(range(makes[-1] + 1 if makes else begin, use + 1))
            begin = max(begin, use + 1)
        return forced & set(range(value.maker + 1, last + 1))

    # ---- rows

    def _value_in_stage(
        self, index: int, value: Value, stage: int, members: set[int], rows: _RowList
    ) -> None:
        after = self.hold.get((stage + 1, index), NONE)
        made = self._made(value, stage)
        if stage == value.maker:
            self._segment(stage, stage, stage + 1, made, value.bytes)
            if after != NONE and (made != ONE or value.optional):
                rows.at_least([made], [after], 0, 0 if value.optional else np.inf)
            return
        held = self.hold.get((stage, index), NONE)
        if held == NONE and made == NONE:
            return
        self._segment(stage, 0, value.maker, held, value.bytes)
        uses = [use for use in value.uses if use in members]
        start = [made, held]
        if made != NONE and held != NONE:
            rows.at_least([ONE], start)
        if not uses:
            if value.optional:
                rows.at_least(start, [after], 0, 0)
            elif not (made == NONE and after in (held, NONE)):
                rows.at_least(start, [after])
            self._segment(stage, value.maker, value.maker + 1, made, value.bytes)
            self._segment(stage, value.maker, value.maker + 1, held, value.bytes)
            self._segment(stage, value.maker + 1, stage + 1, after, value.bytes)
            return
        now = uses[-1] == stage
        if now:
            rows.at_least(start, [ONE], 0, 0)
            ends: list[list[int]] = [[ONE]] * len(uses)
        else:
            ends = [start] + [[self._column(integer=False)] for _ in uses[1:]]
            for q, use in enumerate(uses):
                later = ends[q + 1] if q + 1 < len(uses) else [after]
                rows.at_least(ends[q], later)
                rows.at_least(ends[q], [self.run[stage, use]])
                if q:
                    readers = [self.run[stage, other] for other in uses[q:]]
                    rows.at_least([*readers, after], ends[q])
        begin = value.maker
        for end, use in zip(ends, uses, strict=True):
            for column in end:
                self._segment(stage, begin, use + 1, column, value.bytes)
            begin = use + 1
        self._segment(stage, begin, stage + 1, after, value.bytes)

    # ---- memory

    def _segment(self, stage: int, first: int, end: int, column: int, size: int) -> None:
        if column != NONE and size and first < end:
            self._segments.append((stage, first, end, column, size))

    def _index_segments(self) -> None:
        operations = self.operations
        for (stage, i), column in self.run.items():
            self._segment(stage, i, i + 1, column, operations.extra[i])
        for (stage, i), column in self.keep.items():
            more = operations.keep_extra[i] - operations.extra[i]
            self._segment(stage, i, i + 1, column, more)
        table = np.array(self._segments, np.int64).reshape(-1, 5)
        self._segments = []
        self.segments = table[np.argsort(table[:, 0], kind="stable")]
        n = len(operations)
        self.stage_starts = np.searchsorted(self.segments[:, 0], np.arange(n + 1))

    def memory(self, solution: Floats) -> Floats:
        """Bytes held across each step of each stage, shape (stages, steps)."""
        n = len(self.operations)
        stage, first, end, column, size = self.segments.T
        weights = size * solution[column]
        change = np.zeros((n, n + 1))
        np.add.at(change, (stage, first), weights)
        np.subtract.at(change, (stage, end), weights)
        held: Floats = np.cumsum(change, axis=1)[:, :n]
        return held + np.array(self.operations.resident, np.float64)[:, None]

    def memory_row(self, stage: int, step: int) -> tuple[Ints, Ints]:
        """Columns and their bytes held across a step; what is always held is in `ONE`."""
        table = self.segments[self.stage_starts[stage] : self.stage_starts[stage + 1]]
        across = table[(table[:, 1] <= step) & (step < table[:, 2])]
        columns, where = np.unique(across[:, 3], return_inverse=True)
        sizes = np.zeros(len(columns), np.int64)
        np.add.at(sizes, where, across[:, 4])
        return columns, sizes

    def point(self, runs: Sequence[Run]) -> dict[int, float]:
        """The values of the integer columns for runs of the class."""
        operations = self.operations
        values = dict.fromkeys(np.flatnonzero(self.integer).tolist(), 0.0)
        needed: set[int | None] = (
            set()
        )  # values whose live copy is read later, from the end backward
        stage = len(operations)
        for run in reversed(runs):
            i = run.operation
            if i == stage - 1:
                for value in needed:
                    assert value is not None
                    self._set(values, self.hold.get((stage, value), NONE))
                stage -= 1
            self._set(values, self.run.get((stage, i), NONE))
            made = {operations.outputs[i]}
            if run.keep:
                self._set(values, self.keep.get((stage, i), NONE))
                made.add(operations.saved[i])
            needed -= made
            needed.update(operations.reads[i])
        return values

    @staticmethod
    def _set(values: dict[int, float], column: int) -> None:
        if column in values:
            values[column] = 1.0

    def runs(self, solution: Floats) -> list[Run]:
        """What an integer solution runs, in order."""
        result = []
        for stage, again in enumerate(self.stages):
            for i in (*again, stage):
                if solution[self.run[stage, i]] > 0.5:
                    keep = self.keep.get((stage, i), NONE)
                    result.append(Run(i, keep != NONE and bool(solution[keep] > 0.5)))
        return result

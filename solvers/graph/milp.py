"""Linear and mixed-integer programs by HiGHS, which can be watched and ended on its way.

HiGHS computes in a thread of its own while the caller's waits for it, so Ctrl-C, `stop` and
`watch` are dealt with where they belong. One thread of computation and a fixed seed, unless asked
otherwise: the same program gives the same answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import highspy
    from scipy.sparse import csr_array


Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

Watch = Callable[[float], None]
"""Called with the bound so far."""

_POLL = 0.05
"""Seconds between two looks at whether to stop, and at the bound."""

_GRACE = 3.0
"""Seconds that HiGHS may be late."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows ``lower ≤ matrix x ≤ upper``."""

    matrix: csr_array
    lower: Floats
    upper: Floats


@dataclass(frozen=True, slots=True)
class Program:
    """Minimise ``cost x`` within bounds and rows, some columns integer."""

    cost: Floats
    lower: Floats
    upper: Floats
    integer: Bools
    rows: Sequence[Rows]

    @property
    def mixed(self) -> bool:
        """Whether any column has to be integer."""
        return bool(self.integer.any())


@dataclass(frozen=True, slots=True)
class Answer:
    """What is known of a program.

    Attributes
    ----------
    solution
        The best found; None: none was found.
    objective, bound
        Of that solution, and what no solution can be below; infinite bound: there is none at all.
    finished
        The solution is optimal, or it is proven that there is none; False: a limit came first.
    reduced_costs
        Of a linear program.
    """

    solution: Floats | None
    objective: float
    bound: float
    finished: bool
    reduced_costs: Floats | None = None


def solve(
    program: Program,
    *,
    time_limit: float | None = None,
    threads: int = 1,
    hint: Mapping[int, float] | None = None,
    watch: Watch | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Answer:
    """Solve a program.

    Parameters
    ----------
    time_limit
        Seconds; None: until it is solved.
    hint
        Values of the integer columns of a known solution, to start from.
    watch
        Is told how far the tree search is.
    stop
        Asked now and then; True ends HiGHS as a time limit does.
    """
    highs = _loaded(program, hint)
    highs.setOptionValue("threads", threads)
    highs.setOptionValue("parallel", "on" if threads > 1 else "off")
    if time_limit is not None:
        highs.setOptionValue("time_limit", time_limit)
    bounds: list[float] = []
    ended = False

    def look(event: highspy.HighsCallbackEvent) -> None:  # in HiGHS's thread
        bounds.append(event.data_out.mip_dual_bound)
        if ended:
            event.interrupt()

    highs.cbMipInterrupt.subscribe(look)
    pool = ThreadPoolExecutor(1)
    run = pool.submit(highs.run)
    try:
        while not run.done() and not stop():
            wait([run], _POLL)
            if watch is not None and bounds:
                watch(bounds[-1])
                bounds.clear()
    finally:
        # On Ctrl-C too. HiGHS asks back in its tree search only; at the time it looks in nearly
        # all phases, presolve included. In the rest of large programs it is left to itself.
        ended = True
        highs.setOptionValue("time_limit", 0.0)
        wait([run], _GRACE)
        pool.shutdown(wait=run.done())
    if not run.done():
        return Answer(None, np.inf, -np.inf, finished=False)
    run.result()
    highs.disableCallbacks()  # they refer to `highs`, which would never be freed
    return _answer(program, highs)


def _loaded(program: Program, hint: Mapping[int, float] | None) -> highspy.Highs:
    import highspy
    from scipy.sparse import vstack

    matrix = vstack([rows.matrix for rows in program.rows], format="csr")
    matrix.sort_indices()
    count, width = matrix.shape
    highs = highspy.Highs()
    highs.setOptionValue("output_flag", False)
    highs.setOptionValue("random_seed", 0)
    # Costs are integers, scaled: the default gap would call near misses optimal.
    highs.setOptionValue("mip_rel_gap", 0.0)
    highs.setOptionValue("mip_abs_gap", 1e-9)
    highs.passModel(
        width,
        count,
        matrix.nnz,
        int(highspy.MatrixFormat.kRowwise),
        int(highspy.ObjSense.kMinimize),
        0.0,
        program.cost,
        program.lower,
        program.upper,
        np.concatenate([rows.lower for rows in program.rows]),
        np.concatenate([rows.upper for rows in program.rows]),
        matrix.indptr,
        matrix.indices,
        matrix.data,
        program.integer.astype(np.int32),
    )
    # After a start 1.16.0 returns wrong optima; 1.12, which all but the newest Pythons have, not.
    if hint is not None and highs.versionMinor() == 12:
        columns, values = np.array(list(hint), np.int32), np.array(list(hint.values()))
        highs.setSolution(len(hint), columns, values)
    return highs


def _answer(program: Program, highs: highspy.Highs) -> Answer:
    from highspy import HighsModelStatus, SolutionStatus

    status, info = highs.getModelStatus(), highs.getInfo()
    if status in (HighsModelStatus.kInfeasible, HighsModelStatus.kUnboundedOrInfeasible):
        # Nothing here is unbounded: every column has bounds.
        return Answer(None, np.inf, np.inf, finished=True)
    finished = status == HighsModelStatus.kOptimal
    if info.primal_solution_status != SolutionStatus.kSolutionStatusFeasible:
        return Answer(None, np.inf, info.mip_dual_bound if program.mixed else -np.inf, False)
    found = highs.getSolution()
    solution = np.array(found.col_value)
    objective = float(program.cost @ solution)
    if program.mixed:
        return Answer(solution, objective, info.mip_dual_bound, finished)
    bound = objective if finished else -np.inf
    return Answer(solution, objective, bound, finished, np.array(found.col_dual))

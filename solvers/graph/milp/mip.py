"""Linear and mixed-integer programs by HiGHS: through OR-tools' MathOpt, or else through scipy.

MathOpt takes a known solution as a hint and reports on its way; scipy does neither and gives the
same optimum. Both run on one thread with a fixed seed unless asked otherwise, so that the same
program gives the same answer.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Answer", "Program", "Rows", "solve"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

Watch = Callable[[float, float], None]
"""Called with the best objective and the bound so far; infinite where there is none."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows ``lower ≤ A x ≤ upper`` in compressed form: row r has entries starts[r]:starts[r+1]."""

    starts: Ints
    columns: Ints
    factors: Floats
    lower: Floats
    upper: Floats

    def __len__(self) -> int:
        return len(self.lower)

    @staticmethod
    def stacked(parts: Sequence[Rows]) -> Rows:
        """All rows of the parts."""
        counts = [np.diff(part.starts) for part in parts]
        return Rows(
            np.concatenate(([0], np.cumsum(np.concatenate(counts)))).astype(np.int64),
            np.concatenate([part.columns for part in parts]),
            np.concatenate([part.factors for part in parts]),
            np.concatenate([part.lower for part in parts]),
            np.concatenate([part.upper for part in parts]),
        )


@dataclass(frozen=True, slots=True)
class Program:
    """Minimise ``cost x`` within bounds and rows, some columns integer."""

    cost: Floats
    lower: Floats
    upper: Floats
    integer: Bools
    rows: Rows

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
) -> Answer:
    """Solve a program.

    Parameters
    ----------
    program
        What to minimise.
    time_limit
        Seconds; None: until it is solved.
    threads
        Of HiGHS's tree search.
    hint
        Values of the integer columns of a known solution; MathOpt starts from it.
    watch
        Is told how far the solver is, where MathOpt is there.
    """
    try:
        import ortools.math_opt.python.mathopt  # noqa: F401
    except ImportError:
        return _solve_scipy(program, time_limit)
    return _solve_mathopt(program, time_limit, threads, hint, watch)


def _solve_mathopt(
    program: Program,
    time_limit: float | None,
    threads: int,
    hint: Mapping[int, float] | None,
    watch: Watch | None,
) -> Answer:
    from ortools.math_opt.python import mathopt

    model = mathopt.Model.from_model_proto(_as_proto(program))
    columns = list(model.variables())
    parameters = mathopt.SolveParameters(random_seed=0)
    if time_limit is not None:
        parameters.time_limit = datetime.timedelta(seconds=max(time_limit, 0.01))
    if program.mixed:
        # Costs are integers, scaled: the default gap would call near misses optimal.
        parameters.relative_gap_tolerance = 0.0
        parameters.absolute_gap_tolerance = 1e-9
    parameters.highs.int_options["threads"] = threads
    parameters.highs.string_options["parallel"] = "on" if threads > 1 else "off"
    hints = mathopt.ModelSolveParameters()
    if hint is not None:
        values = {columns[column]: value for column, value in hint.items()}
        hints.solution_hints = [mathopt.SolutionHint(variable_values=values)]
    try:
        result = mathopt.solve(
            model,
            mathopt.SolverType.HIGHS,
            params=parameters,
            model_params=hints,
            msg_cb=None if watch is None else _reader_of(watch),
        )
    except (AttributeError, RuntimeError):
        # HiGHS gave up with an error, seldom and for numerical reasons; for some of them this
        # MathOpt fails to make the exception it means to raise. The other build may do better.
        return _solve_scipy(program, time_limit)
    reason = result.termination.reason
    if reason in (
        mathopt.TerminationReason.INFEASIBLE,
        mathopt.TerminationReason.INFEASIBLE_OR_UNBOUNDED,
    ):  # nothing here is unbounded: every column has bounds
        return Answer(None, np.inf, np.inf, finished=True)
    found = result.has_primal_feasible_solution()
    solution = np.array(result.variable_values(columns)) if found else None
    reduced = None
    if not program.mixed and result.has_dual_feasible_solution():
        reduced = np.array(result.reduced_costs(columns))
    finished = reason is mathopt.TerminationReason.OPTIMAL
    bounds = result.termination.objective_bounds
    objective = float(program.cost @ solution) if solution is not None else np.inf
    return Answer(solution, objective, bounds.dual_bound, finished, reduced)


def _as_proto(program: Program):  # type: ignore[no-untyped-def]
    from ortools.math_opt import model_pb2

    # Entry by entry through the modelling objects takes longer than solving.
    proto = model_pb2.ModelProto()
    proto.variables.ids.extend(range(len(program.cost)))
    proto.variables.lower_bounds.extend(program.lower.tolist())
    proto.variables.upper_bounds.extend(program.upper.tolist())
    proto.variables.integers.extend(program.integer.tolist())
    costly = np.flatnonzero(program.cost)
    proto.objective.linear_coefficients.ids.extend(costly.tolist())
    proto.objective.linear_coefficients.values.extend(program.cost[costly].tolist())
    rows = program.rows
    proto.linear_constraints.ids.extend(range(len(rows)))
    proto.linear_constraints.lower_bounds.extend(rows.lower.tolist())
    proto.linear_constraints.upper_bounds.extend(rows.upper.tolist())
    row_of = np.repeat(np.arange(len(rows)), np.diff(rows.starts))
    order = np.lexsort((rows.columns, row_of))
    matrix = proto.linear_constraint_matrix
    matrix.row_ids.extend(row_of[order].tolist())
    matrix.column_ids.extend(rows.columns[order].tolist())
    matrix.coefficients.extend(rows.factors[order].tolist())
    return proto


_PROGRESS = re.compile(
    r"^\s*[A-Zlpuz]?\s+\d+\s+\d+\s+\d+\s+[\d.]+%\s+(?P<bound>\S+)\s+(?P<best>\S+)\s"
)


def _reader_of(watch: Watch) -> Callable[[Sequence[str]], None]:
    """Reads HiGHS's table: source, nodes, bound, best solution, gap."""

    def read(lines: Sequence[str]) -> None:
        for line in lines:
            match = _PROGRESS.match(line)
            if match:
                watch(float(match["best"]), float(match["bound"]))

    return read


def _solve_scipy(program: Program, time_limit: float | None) -> Answer:
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    rows = program.rows
    matrix = csr_array(
        (rows.factors, rows.columns, rows.starts), shape=(len(rows), len(program.cost))
    )
    limit = {} if time_limit is None else {"time_limit": time_limit}
    result = milp(
        program.cost,
        integrality=program.integer.astype(np.int64),
        bounds=Bounds(program.lower, program.upper),
        constraints=LinearConstraint(matrix, rows.lower, rows.upper),
        options={"mip_rel_gap": 0.0, **limit},
    )
    if result.status == 2:
        return Answer(None, np.inf, np.inf, finished=True)
    solution = None if result.x is None else np.asarray(result.x, np.float64)
    objective = np.inf if solution is None else float(program.cost @ solution)
    finished = result.status == 0
    bound = result.mip_dual_bound if program.mixed else objective if finished else None
    return Answer(solution, objective, -np.inf if bound is None else float(bound), finished)

"""What the graph solvers prove on compute graphs and layer graphs, against published results.

For every graph and budget: each method's overhead, bound, gap, class and seconds. Every bound is
held against the times of all methods: one above a time that its class reaches would be false.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from scheduler.costs.computegraph import ComputeCosts
from scheduler.costs.costgraph import CostGraph
from solvers.graph.lowering import lower
from solvers.graph.methods import solve
from solvers.graph.problem import ComputeGraph, Graph
from solvers.graph.work import MOST_OPERATIONS
from solvers.solution import Infeasible, PlanClass, Solution, Unsuitable

PUBLISHED = {
    "moc_rl100": {90: (".8 (18.5)", ".8 (9.3)", "0"), 80: ("2.3 (22.7)", "2.3 (9.5)", ".3 (11.5)")},
    "moc_rl250": {90: (".9 (685)", ".9 (55)", "0"), 80: ("–", "4.9 (640)", "0 (15)")},
    "fcn8": {
        90: ("0 (6.3)", "0", ".1"),
        80: (".1 (5.6)", ".1 (3.1)", ".1"),
        70: ("–", "–", "3.0 (9.7)"),
    },
    "resnet50": {
        90: (".1 (434)", ".2 (65)", ".2"),
        80: (".3 (485)", ".3 (69)", ".4"),
        70: ("–", "–", ".8 (11)"),
    },
}
"""Overhead in % (seconds): exact (2020, Gurobi), intervals (2023, 16 cores), annealing (2024)."""


@dataclass(frozen=True)
class Row:
    """One method on one graph and budget; no time: nothing was found, and why."""

    graph: str
    share: int
    method: str
    plan_class: str
    time: int | None
    bound: int | None
    least: int
    seconds: float
    note: str


def read(path: Path) -> Graph | None:
    """A graph, or None for a file that holds something else."""
    content = json.loads(path.read_text(encoding="utf-8"))
    schema = content.get("schema", "") if isinstance(content, dict) else ""
    if schema.startswith("checkpoint-scheduler/graph/"):
        return ComputeCosts.load(path).to_compute_graph()
    if schema.startswith("checkpoint-scheduler/costs/") and "edges" in content:
        return CostGraph.load(path).to_layer_graph()
    return None


def runs(graph: Graph, chosen: Sequence[str]) -> Iterator[tuple[str, str, PlanClass | None]]:
    """What to run: label, method, class."""
    if "free" in chosen and isinstance(graph, ComputeGraph) and not graph.is_training:
        yield "free order", "auto", None
    small = len(lower(graph)) <= MOST_OPERATIONS
    for name in ("greedy", "rounding", "intervals"):
        if name in chosen and (small or name == "greedy"):
            yield name, name, None
    if "forward" in chosen and graph.is_training and small:
        yield "forward", "staged", PlanClass.FORWARD
    if "staged" in chosen and small:
        yield "staged", "staged", PlanClass.STAGED


def measure(
    graph: Graph,
    budget: int,
    method: str,
    plan_class: PlanClass | None,
    limit: float,
    threads: int,
) -> tuple[Solution[Any] | None, float, str]:
    """The solution or why there is none, and the seconds it took."""
    start = time.perf_counter()
    try:
        solution = solve(
            graph, budget, method=method, optimal_in=plan_class, time_limit=limit, threads=threads
        )
    except Infeasible as error:
        seconds = time.perf_counter() - start
        if error.plan_class is None:
            return None, seconds, "none found"
        if budget < error.needs_bytes:
            return None, seconds, "below the floor"
        return None, seconds, f"none in class {error.plan_class.value}"
    except Unsuitable:
        return None, 0.0, "–"
    return solution, time.perf_counter() - start, solution.status.value


def percent(time_: int | None, least: int) -> str:
    return "–" if time_ is None else f"{100 * (time_ / least - 1):.3f}" if least else "0.000"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    lines = [" | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in rows]
    head = " | ".join(c.ljust(w) for c, w in zip(header, widths, strict=True))
    return "\n".join([f"| {head} |", f"| {' | '.join('-' * w for w in widths)} |"]) + "".join(
        f"\n| {line} |" for line in lines
    )


def false_bounds(rows: Sequence[Row]) -> list[str]:
    """Bounds above a time that is reached within their class.

    All methods but the free order keep the given one, so what they reach is staged; what method
    "forward" reaches is of class forward.
    """
    found = []
    for row in rows:
        for other in rows:
            same = (row.graph, row.share) == (other.graph, other.share)
            free = "free order" in (row.method, other.method)
            if row.bound is None or other.time is None or not same or free:
                continue
            within = row.plan_class == "staged" or other.method == "forward"
            if within and row.bound > other.time:
                found.append(
                    f"{row.graph} at {row.share} %: the bound {row.bound} of {row.method} "
                    f"is above the time {other.time} of {other.method}"
                )
    return found


def environment() -> str:
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("ortools", "scipy"))
    return f"{os.cpu_count()} cores, Python {platform.python_version()}, {versions}"


def report(rows: Sequence[Row]) -> str:
    header = ["graph", "budget %", "method", "overhead %", "bound %", "gap %", "class", "s", ""]
    header += ["exact 2020", "intervals 2023", "annealing 2024"]
    lines, last = [], None
    for row in rows:
        gap = "–"
        if row.time is not None and row.bound is not None:
            gap = f"{100 * (row.time / row.bound - 1):.3f}" if row.bound else "0.000"
        first = (row.graph, row.share) != last
        last = (row.graph, row.share)
        published = (
            PUBLISHED.get(row.graph, {}).get(row.share, ("", "", "")) if first else ("",) * 3
        )
        lines.append(
            [
                row.graph if first else "",
                str(row.share) if first else "",
                row.method,
                percent(row.time, row.least),
                percent(row.bound, row.least),
                gap,
                row.plan_class,
                f"{row.seconds:.1f}",
                row.note,
                *published,
            ]
        )
    return table(header, lines)


def graph_files(paths: Sequence[str]) -> list[Path]:
    found: list[Path] = []
    for name in paths:
        path = Path(name)
        found += sorted(path.glob("*.json")) if path.is_dir() else [path]
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("paths", nargs="+", metavar="PATH", help="graph files, or folders of them")
    parser.add_argument(
        "--budgets",
        default="90,80,60,50",
        metavar="LIST",
        help="percent of the keep-all peak (default: %(default)s)",
    )
    parser.add_argument(
        "--methods",
        default="free,greedy,rounding,intervals,forward,staged",
        metavar="LIST",
        help="which of these (default: all)",
    )
    parser.add_argument(
        "--limit",
        type=float,
        default=120,
        metavar="SECONDS",
        help="for each method and budget (default: %(default)s)",
    )
    parser.add_argument("--threads", type=int, default=1, metavar="N")
    parser.add_argument("--json", metavar="FILE", help="write every figure to FILE")
    options = parser.parse_args(arguments)
    rows: list[Row] = []
    for path in graph_files(options.paths):
        graph = read(path)
        if graph is None:
            continue
        problem: Any = graph
        peak, least = problem.replay(problem.keep_all()).peak_bytes, graph.least_time
        for share in map(int, options.budgets.split(",")):
            for label, method, plan_class in runs(graph, options.methods.split(",")):
                solution, seconds, note = measure(
                    graph, peak * share // 100, method, plan_class, options.limit, options.threads
                )
                rows.append(
                    Row(
                        path.stem,
                        share,
                        label,
                        "" if solution is None else solution.plan_class.value,
                        None if solution is None else solution.time,
                        None if solution is None else solution.lower_bound_time,
                        least,
                        seconds,
                        note,
                    )
                )
                print(f"{path.stem} {share} % {label}: {note}, {seconds:.1f} s", file=sys.stderr)
    print(f"{environment()}; {options.threads} thread(s), {options.limit:g} s each\n")
    print(report(rows))
    wrong = false_bounds(rows)
    print(
        f"\nBounds held against the times of all methods: {len(wrong)} are false.", *wrong, sep="\n"
    )
    if options.json:
        text = json.dumps([asdict(row) for row in rows], indent=1)
        Path(options.json).write_text(f"{text}\n", encoding="utf-8")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())

"""How long chains and graphs take as they grow: until they are near the optimum, and memory.

Each case runs in a process of its own, after a warm-up on a small chain. Nothing here is asserted.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from chains import (
    MIB,
    blocks,
    peak_rss,
    percent,
    random_costs,
    share_of_keep_all,
    table,
    warm_up,
)

from solvers.chain.exact import optimum
from solvers.graph.heuristics.rerun import annealed
from solvers.graph.methods import solve
from solvers.graph.problem import ComputeGraph, Node
from solvers.solution import Infeasible, PlanClass, Progress, Status

CASES = (
    *((f"rand_{layers}", share) for layers in (340, 1000, 5000) for share in (0.5, 0.2)),
    *((f"blocks_{count}", share) for count in (1000, 5000, 20_000) for share in (0.5, 0.2)),
)
GRAPHS = (
    *((f"layered_{nodes}", share) for nodes in (250, 1000) for share in (0.9, 0.8, 0.7)),
    ("layered_5000", 0.9),
    ("layered_5000", 0.8),
)
GAPS = (0.01, 0.001)


def solve_here(name: str, share: float, limit: float) -> dict[str, Any]:
    """Solve one case, and note when each gap was first certified."""
    kind, _, count = name.partition("_")
    costs = blocks(int(count)) if kind == "blocks" else random_costs(int(count), int(count))
    chain = costs.to_chain()
    warm_up()
    reached: dict[str, float] = {}

    def note(progress: Progress) -> None:
        if progress.time is not None:
            gap = progress.time / progress.lower_bound_time - 1
            for least in GAPS:
                if gap <= least:
                    reached.setdefault(str(least), progress.seconds)

    start = time.perf_counter()
    found = optimum.solve(chain, share_of_keep_all(chain, share), time_limit=limit, report=note)
    return {
        "layers": len(chain),
        "seconds": time.perf_counter() - start,
        "reached": reached,
        "proven": found.status is Status.OPTIMAL,
        "gap": found.time / found.lower_bound_time - 1,
        "overhead": found.time / chain.least_time - 1,
        "rss_bytes": peak_rss(),
    }


def row(name: str, share: float, result: dict[str, Any]) -> list[str]:
    """One line of the table."""
    reached = [result["reached"].get(str(gap)) for gap in GAPS]
    proven = f"{result['seconds']:.1f}" if result["proven"] else "–"
    return [
        name,
        f"{result['layers']:,}",
        percent(share),
        *("–" if at is None else f"{at:.1f}" for at in reached),
        proven,
        "0" if result["proven"] else f"{100 * result['gap']:.3f}%",
        percent(result["overhead"]),
        f"{result['rss_bytes'] / MIB:,.0f}",
    ]


def layered(nodes: int, seed: int) -> ComputeGraph:
    """Layers of random widths; a node reads about a third of the layer before, some one further."""
    draw = random.Random(seed)
    widest, layers, count = round(1.3 * nodes**0.5), [[0]], 1
    while count < nodes - 1:
        width = min(nodes - 1 - count, draw.randint(1, widest))
        layers.append(list(range(count, count + width)))
        count += width
    layers.append([nodes - 1])
    edges: set[tuple[int, int]] = set()
    for k, layer in enumerate(layers[1:], 1):
        for v in layer:
            read = [u for u in layers[k - 1] if draw.random() < 0.3]
            read = read or [draw.choice(layers[k - 1])]
            if k > 1 and draw.random() < 0.14:
                read.append(draw.choice(draw.choice(layers[max(0, k - 12) : k - 1])))
            edges.update((u, v) for u in read)
    unread = set(range(nodes - 1)).difference(u for u, _ in edges)
    edges.update(
        (u, draw.choice(layers[k + 1]))
        for k, layer in enumerate(layers)
        for u in layer
        if u in unread
    )
    rows = (Node(f"n{v}", draw.randint(0, 1000), 10 * draw.randint(1, 400)) for v in range(nodes))
    return ComputeGraph(tuple(rows), tuple(sorted(edges)))


def solve_graph(name: str, share: float, limit: float, order: str) -> dict[str, Any]:
    """Solve a layered graph, and note when the first plan was there."""
    graph = layered(*(2 * [int(name.partition("_")[2])]))
    budget = int(graph.replay(graph.keep_all()).peak_bytes * share)
    small = layered(30, 0)  # compiles
    annealed(small, 0, range(len(small)), len, lambda: False, moves=5000)
    first: list[Progress] = []

    def note(progress: Progress) -> None:
        if progress.time is not None and not first:
            first.append(progress)

    start, plan_class = time.perf_counter(), None if order == "free" else PlanClass.STAGED
    result: dict[str, Any] = {"nodes": len(graph), "edges": len(graph.edges)}
    try:
        found = solve(graph, budget, time_limit=limit, optimal_in=plan_class, report=note)
    except Infeasible:
        found = None
    result["seconds"] = time.perf_counter() - start
    if found is not None:
        result["first"] = first[0].seconds
        result["overhead"] = found.time / graph.least_time - 1
        result["bound"] = found.lower_bound_time / graph.least_time - 1
        result["gap"] = found.time / found.lower_bound_time - 1
    return result


def graph_row(name: str, share: float, order: str, result: dict[str, Any]) -> list[str]:
    """One line of the graphs' table."""
    cells = [percent(result[key]) if key in result else "–" for key in ("overhead", "bound", "gap")]
    first = f"{result['first']:.1f}" if "first" in result else "–"
    seconds = f"{result['seconds']:.1f}"
    return [name, f"{result['edges']:,}", percent(share), order, first, *cells, seconds]


def case(name: str, share: float, limit: float, order: str) -> dict[str, Any]:
    """What one case gives, in a process of its own."""
    command = [sys.executable, __file__, "--limit", str(limit)]
    done = subprocess.run(
        [*command, "--case", name, str(share), order], stdout=subprocess.PIPE, text=True, check=True
    )
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table; with --case solve one and print it as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "names", nargs="*", help="rand_N, blocks_N, layered_N (default: a choice of all)"
    )
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for each")
    parser.add_argument(
        "--case", nargs=3, metavar=("NAME", "SHARE", "ORDER"), help=argparse.SUPPRESS
    )
    args = parser.parse_args(arguments)
    if args.case:
        name, share, order = args.case
        if name.startswith("layered"):
            print(json.dumps(solve_graph(name, float(share), args.limit, order)))
        else:
            print(json.dumps(solve_here(name, float(share), args.limit)))
        return
    rows = []
    for name, share in CASES:
        if not args.names or name in args.names:
            print(f"{name} at {percent(share)} …", file=sys.stderr)
            rows.append(row(name, share, case(name, share, args.limit, "")))
    if rows:
        gaps = [f"gap {percent(gap)}: s" for gap in GAPS]
        head = ["chain", "layers", "budget", *gaps, "proven: s", "gap", "time lost", "MiB"]
        print(table(head, rows))
    rows = []
    for name, share in GRAPHS:
        for order in ("free", "given"):
            if not args.names or name in args.names:
                print(f"{name} at {percent(share)}, order {order} …", file=sys.stderr)
                result = case(name, share, args.limit, order)
                rows.append(graph_row(name, share, order, result))
    if rows:
        head = ["graph", "edges", "budget", "order", "first: s", "time lost", "bound", "gap", "s"]
        print(table(head, rows))


if __name__ == "__main__":
    main()

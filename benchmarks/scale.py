"""How long chains take as they grow: until a gap of 1 %, of 0.1 %, until it is proven, and memory.

Each case runs in a process of its own, after a warm-up on a small chain. Nothing here is asserted.
"""

from __future__ import annotations

import argparse
import json
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
from solvers.solution import Progress, Status

CASES = (
    *((f"rand_{layers}", share) for layers in (340, 1000, 5000) for share in (0.5, 0.2)),
    *((f"blocks_{count}", share) for count in (1000, 5000, 20_000) for share in (0.5, 0.2)),
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


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table; with --case solve one and print it as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help="rand_N, blocks_N (default: a choice of both)")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for each")
    parser.add_argument("--case", nargs=2, metavar=("NAME", "SHARE"), help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.case:
        print(json.dumps(solve_here(args.case[0], float(args.case[1]), args.limit)))
        return
    rows = []
    for name, share in CASES:
        if args.names and name not in args.names:
            continue
        print(f"{name} at {percent(share)} …", file=sys.stderr)
        command = [sys.executable, __file__, "--limit", str(args.limit)]
        done = subprocess.run(
            [*command, "--case", name, str(share)], stdout=subprocess.PIPE, text=True, check=True
        )
        rows.append(row(name, share, json.loads(done.stdout)))
    gaps = [f"gap {percent(gap)}: s" for gap in GAPS]
    print(
        table(
            ["chain", "layers", "budget", *gaps, "proven: s", "gap", "time lost", "MiB"],
            rows,
        )
    )


if __name__ == "__main__":
    main()

"""How long and how much memory the exact solver takes on chains, and what the other methods lose.

Every measurement runs in a process of its own, after a warm-up on a small chain: its peak memory
is its own, and neither imports nor compilation are in its time. Nothing here is asserted.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import scheduler
from scheduler.costs import CostGraph, LayerCost
from solvers.chain.exact import frontier, optimum
from solvers.chain.methods import METHODS
from solvers.chain.problem import Chain
from solvers.schedule import Items, keep_all
from solvers.solution import Infeasible, Solution, Status, Unsuitable

COMPARED = tuple(name for name in METHODS if name not in ("keep-all", "brute"))
RATIOS = ("uniform", "every-layer", "single-level")
MIB = 2**20
CHAINS = Path(__file__).parent.parent / "tests" / "data" / "chains"


# Cost files


def random_costs(layers: int, seed: int) -> CostGraph:
    """Independent layers by the recipe of the rand_* cost files, and a loss that costs nothing."""
    import numpy as np

    draw = np.random.default_rng(seed)

    def size(low: float, high: float, of: Any) -> list[int]:
        return [int(b) // 512 * 512 for b in of * draw.uniform(low, high, layers)]

    made = 2 ** draw.uniform(20, 26, layers + 1)
    inside, outputs = made[1:], [int(b) // 512 * 512 for b in made]
    forward = np.round(0.5 * 42 ** draw.uniform(0, 1, layers), 3)
    columns = {
        "output_bytes": outputs[1:],
        "saved_bytes": size(0, 4, inside),
        "forward_transient_bytes": size(0, 1, inside),
        "backward_transient_bytes": size(0, 2, inside),
        "forward_time": forward.tolist(),
        "backward_time": np.round(forward * draw.uniform(1.5, 2.5, layers), 3).tolist(),
    }
    rows: list[dict[str, Any]] = [
        dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
    ]
    loss = LayerCost(
        "loss",
        forward_time=0,
        backward_time=0,
        output_bytes=0,
        saved_bytes=0,
        output_saved=False,
    )
    return CostGraph((*(LayerCost(**row) for row in rows), loss), outputs[0], f"rand_{layers}")


def blocks(count: int) -> CostGraph:
    """The measured gpt2_small_12 with `count` equal blocks."""
    small = CostGraph.load(CHAINS / "gpt2_small_12.json")
    embedding, block, *rest = small.layers
    head = rest[11:]  # 12 blocks, whose times differ only by how they were measured
    repeated = (replace(block, name=f"block {i}") for i in range(count))
    return CostGraph((embedding, *repeated, *head), small.input_bytes, f"blocks_{count}")


GENERATED: dict[str, Callable[[], CostGraph]] = {
    "rand_200": lambda: random_costs(200, 200),
    "blocks_1000": lambda: blocks(1000),
}


def load(source: str) -> Chain:
    """The chain of a generated name or of a cost file."""
    costs = GENERATED[source]() if source in GENERATED else CostGraph.load(source)
    return costs.to_chain()


def cost_files(paths: Iterable[str]) -> list[str]:
    """`paths`, with folders replaced by the cost files in them."""
    found: list[str] = []
    for path in map(Path, paths):
        found.extend(str(p) for p in (sorted(path.glob("*.json")) if path.is_dir() else [path]))
    return found


# Measurements: each runs in a process of its own


def share_of_keep_all(chain: Chain, share: float) -> int:
    return int(share * chain.replay(Items(keep_all(len(chain)))).peak_bytes)


def try_to_solve(name: str, chain: Chain, budget: int) -> Solution[Items] | None:
    try:
        return METHODS[name].solve(chain, budget)
    except (Infeasible, Unsuitable):
        return None


def warm_up() -> None:
    """Import and compile, or read from the cache, what the measurements use."""
    chain = random_costs(12, 0).to_chain()
    frontier.Frontier(chain).plan(chain.input_bytes * 1000)
    for name in COMPARED:
        try_to_solve(name, chain, share_of_keep_all(chain, 0.5))


def nothing(chain: Chain, budget: int) -> dict[str, Any]:
    """What the process itself takes."""
    return {"rss_bytes": peak_rss()}


def whole_frontier(chain: Chain, budget: int) -> dict[str, Any]:
    """The frontier of nested plans; and the memory that single-level plans need for equal time."""
    start = time.perf_counter()
    found = frontier.Frontier(chain)
    result = {
        "seconds": time.perf_counter() - start,
        "rss_bytes": peak_rss(),
        "points": len(found.points),
        "exact": found.exact,
    }
    flat = try_to_solve("single-level", chain, budget)
    if flat and found.exact:
        needed = next(peak for peak, cost in found.points if cost <= flat.time)
        result["single_level_peak_ratio"] = flat.peak_bytes / needed
    return result


def one_budget(chain: Chain, budget: int) -> dict[str, Any]:
    """The optimum at one budget, or the proof that nothing fits."""
    start = time.perf_counter()
    found = try_to_solve("optimal", chain, budget)
    return {
        "seconds": time.perf_counter() - start,
        "rss_bytes": peak_rss(),
        "status": found.status.value if found else "infeasible",
        "gap": found.time / found.lower_bound_time - 1 if found else None,
    }


def all_methods(chain: Chain, budget: int) -> dict[str, Any]:
    """Overheads at one budget, time over the optimum at the same peak, and smallest peaks.

    A baseline that does not fit takes part in the ratios with its smallest plan.
    """
    base = chain.least_time
    overheads: dict[str, float | None] = {}
    ratios: dict[str, float] = {}
    for name in COMPARED:
        found = try_to_solve(name, chain, budget)
        overheads[name] = found.time / base - 1 if found else None
    for name in RATIOS:
        plan = own_plan(name, chain, budget)
        best = optimum.solve(chain, plan.peak_bytes)
        if best.status is Status.OPTIMAL:
            ratios[name] = plan.time / best.time
    smallest = {name: own_plan(name, chain, 0).peak_bytes for name in ("single-level", "optimal")}
    return {"overheads": overheads, "ratios": ratios, "smallest_peak_bytes": smallest}


def own_plan(name: str, chain: Chain, budget: int) -> Solution[Items]:
    """The method's plan within `budget`, or else its smallest."""
    try:
        return METHODS[name].solve(chain, budget)
    except Infeasible as error:
        return Solution.of(chain, error.schedule, chain.least_time)


MEASUREMENTS = {work.__name__: work for work in (nothing, whole_frontier, one_budget, all_methods)}


def peak_rss() -> int:
    """Bytes; on Linux the kernel counts in KiB."""
    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale


def measure_here(work: str, source: str, share: float, limit: int) -> None:
    chain = load(source)
    budget = share_of_keep_all(chain, share)
    warm_up()
    signal.alarm(limit)  # its default is to end the process, also within compiled code
    result = MEASUREMENTS[work](chain, budget)
    signal.alarm(0)
    print(json.dumps({"layers": len(chain), **result}))


def measure(work: str, source: str, share: float, limit: int) -> dict[str, Any]:
    """Run one measurement in a new process; ``{"late": True}`` when it takes too long."""
    options = ["--measure", work, "--share", str(share), "--limit", str(limit)]
    print(f"{Path(source).stem}: {work} …", file=sys.stderr)
    done = subprocess.run(
        [sys.executable, __file__, source, *options], stdout=subprocess.PIPE, text=True
    )
    if done.returncode == -signal.SIGALRM:
        return {"late": True}
    if done.returncode:
        raise SystemExit(f"{work} of {source} ended with {done.returncode}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


# Report


def environment() -> dict[str, Any]:
    measure("nothing", "rand_200", 1, 0)  # fills the cache of compiled code, if it is empty
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in ("numpy", "numba")},
        "rss_bytes_of_the_process": measure("nothing", "rand_200", 1, 0)["rss_bytes"],
    }


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def header(around: dict[str, Any]) -> str:
    return (
        f"{around['processor']}, {around['cores']} cores (one is used), "
        f"Python {around['python']}, numpy {around['numpy']}, numba {around['numba']}.\n"
        "Each measurement in its own process, after a warm-up: import and compilation are not "
        "in the seconds.\nPeak memory is that of the process, of which "
        f"{around['rss_bytes_of_the_process'] / MIB:.0f} MiB are Python, numpy and numba."
    )


def seconds(result: dict[str, Any], limit: int) -> str:
    if "late" in result:
        return f"> {limit}"
    return f"{result['seconds']:.{2 if result['seconds'] < 10 else 0}f}"


def mib(result: dict[str, Any]) -> str:
    return "–" if "late" in result else f"{result['rss_bytes'] / MIB:.0f}"


def percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.2f}%"


def ratio(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, aligned to be read as it stands; all but the first column to the right."""
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    lines = [
        [columns[0].ljust(widths[0]), *map(str.rjust, columns[1:], widths[1:])],
        ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])],
        *([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])] for row in rows),
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def report(results: Sequence[dict[str, Any]], share: float, limit: int) -> str:
    solving, overheads, ratios = [], [], []
    for result in results:
        name, whole, one = result["name"], result["whole_frontier"], result["one_budget"]
        methods = result["all_methods"]
        points = whole.get("points", "–")
        if not whole.get("exact", True):
            points = f"{points} (thinned)"
        proof = one.get("status", "–")
        if proof == Status.FEASIBLE.value:
            proof = f"gap {percent(one['gap'])}"
        layers = str(max(part.get("layers", 0) for part in (whole, one, methods)) or "–")
        work = [seconds(whole, limit), mib(whole), seconds(one, limit), mib(one), proof]
        solving.append([name, layers, str(points), *work])
        lost = methods.get("overheads", {})
        overheads.append([name, *(percent(lost.get(method)) for method in reversed(COMPARED))])
        over = methods.get("ratios", {})
        least = methods.get("smallest_peak_bytes")
        peaks = (
            whole.get("single_level_peak_ratio"),
            least["single-level"] / least["optimal"] if least else None,
        )
        ratios.append([name, *map(ratio, (*map(over.get, RATIOS), *peaks))])
    first = ["chain", "layers", "points", "frontier s", "MiB", "budget s", "MiB", "found"]
    over_optimum = [f"{method}: time" for method in RATIOS]
    over_optimum += ["single-level: peak", "smallest peak"]
    return "\n\n".join(
        (
            f"The exact solver: the whole frontier, and one budget, {share:g} of keep-all's peak",
            table(first, solving),
            "Time lost against keep-all at that budget (– does not fit, or not for this chain)",
            table(["chain", *reversed(COMPARED)], overheads),
            "Over the optimum: time at the peak of the method's own plan; single-level's peak for "
            "its time at that budget, and its smallest peak",
            table(["chain", *over_optimum], ratios),
        )
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "paths",
        nargs="*",
        metavar="PATH",
        help="cost files, or folders of them (default: the examples and what is generated)",
    )
    parser.add_argument(
        "--generated", action="store_true", help=f"also {' and '.join(GENERATED)}, made here"
    )
    parser.add_argument(
        "--share",
        type=float,
        default=0.5,
        help="the one budget, as a share of keep-all's peak (default: %(default)s)",
    )
    parser.add_argument(
        "--limit",
        type=int,
        default=120,
        metavar="SECONDS",
        help="end a measurement that takes longer (default: %(default)s)",
    )
    parser.add_argument("--json", metavar="FILE", help="write every figure to FILE")
    parser.add_argument("--measure", choices=MEASUREMENTS, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.measure:
        measure_here(options.measure, options.paths[0], options.share, options.limit)
        return
    examples = Path(scheduler.__file__).parent / "examples"
    sources = cost_files(options.paths or [str(examples)])
    if options.generated or not options.paths:
        sources += GENERATED
    around = environment()
    results = [
        {"name": Path(source).stem}
        | {
            work: measure(work, source, options.share, options.limit)
            for work in ("whole_frontier", "one_budget", "all_methods")
        }
        for source in sources
    ]
    print(header(around), report(results, options.share, options.limit), sep="\n\n")
    if options.json:
        content = {
            "environment": around,
            "budget_share": options.share,
            "limit_seconds": options.limit,
            "chains": results,
        }
        Path(options.json).write_text(
            json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()

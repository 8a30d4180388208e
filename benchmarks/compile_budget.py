"""What torch.compile's own budget does to the peak, against a budget in bytes of peak.

For each share that torch is given and each of its solvers: the peak that torch's allocator measures
on the CPU; the time that runs again as a share of the forward's (by the roofline of `profile`, from
the backward graph that torch made); the same of FLOPs; the same of those that torch counts, which
are all that its solvers minimise (none for attention on the CPU: they run that again for free); and
the seconds to choose, torch's min cuts included. Then the project's choices with what dp peaked at
as their budget, each the least of one of the three columns; "at least" is the lower bound that is
proven of that column. One small transformer, random weights, fp32, torch's graphs run as they are
(backend aot_eager_decomp_partition).

    PYTHONPATH=. python benchmarks/compile_budget.py [--layers N] [--effort SECONDS] [--shares S S]
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch._dynamo.exc import BackendCompilerFailed
from torch._functorch import config, partitioners

from scheduler.common.text import format_bytes
from scheduler.pytorch import CompileBudget, Roofline, compile_budget
from scheduler.pytorch.compile.joint import read_joint
from scheduler.report.tables import aligned, format_percent
from tests.pytorch.compile.test_compile_budget import BACKEND, Decoder, stepped

SHARES = (1.0, 0.5, 0.3, 0.2, 0.1, 0.05, 0.0)
SOLVERS = ("dp", "greedy", "ilp")
# The second counts products only: what it runs again of the rest is taken for free. The third is
# what torch's own solvers minimise.
COSTS: dict[str, dict[str, Any]] = {
    "ours, time": {},
    "ours, FLOPs": {"roofline": Roofline(bytes_per_second=math.inf)},
    "ours, torch's": {"runtime": partitioners.estimate_runtime},
}


@dataclass
class Seen:
    """What one compilation did.

    Attributes
    ----------
    seconds
        Spent in choosing what is saved.
    share
        Time that runs again, of the forward's.
    flops
        The same of FLOPs.
    counted
        The same of the FLOPs that torch counts: what its solvers minimise.
    peak_bytes
        Measured.
    """

    seconds: float = 0.0
    share: float = 0.0
    flops: float = 0.0
    counted: float = 0.0
    peak_bytes: int = 0

    def cells(self, note: str = "") -> list[str]:
        """Of a table."""
        again = [format_percent(part) for part in (self.share, self.flops, self.counted)]
        return [format_bytes(self.peak_bytes), *again, f"{self.seconds:.2f}", note]


@contextmanager
def watching(seen: Seen) -> Iterator[None]:
    """Time torch's choice, and read from the backward graph what runs again."""
    choose = partitioners.choose_saved_values_set
    reorder = partitioners.reordering_to_mimic_autograd_engine
    costs: dict[str, dict[str, float]] = {"share": {}, "flops": {}, "counted": {}}
    products = Roofline(bytes_per_second=math.inf)

    def choosing(joint_graph: Any, node_info: Any, memory_budget: float = 1) -> Any:
        machines: dict[str, Any] = {
            "share": Roofline(),
            "flops": products,
            "counted": partitioners.estimate_runtime,
        }
        for column, machine in machines.items():
            joint = read_joint(joint_graph, node_info, machine, outputs_held=True)
            costs[column] = {op.name: op.time for op in joint.step.early if op.forward}
        start = time.perf_counter()
        saved = choose(joint_graph, node_info, memory_budget)
        seen.seconds = time.perf_counter() - start
        return saved

    def reordering(gm: Any) -> Any:
        made = [node.name for node in gm.graph.nodes if node.op == "call_function"]
        for column, cost in costs.items():
            again = sum(cost.get(name, 0) for name in made) / sum(cost.values())
            setattr(seen, column, again)
        return reorder(gm)

    partitioners.choose_saved_values_set = choosing
    partitioners.reordering_to_mimic_autograd_engine = reordering
    try:
        yield
    finally:
        partitioners.choose_saved_values_set = choose
        partitioners.reordering_to_mimic_autograd_engine = reorder


def measured(model: Decoder, tokens: torch.Tensor, budget: AbstractContextManager[Any]) -> Seen:
    """Compile the model anew under a budget, and run it."""
    seen = Seen()
    torch._dynamo.reset()
    with budget, watching(seen):
        seen.peak_bytes = stepped(model, torch.compile(model, backend=BACKEND), tokens)[0]
    return seen


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--effort", type=float, default=2.0)
    parser.add_argument("--shares", type=float, nargs="+", default=SHARES)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Decoder(options.layers, width=64, words=256)
    tokens = torch.randint(0, 256, (8, 128))
    rows = [["share", "solver", "peak", "time again", "FLOPs again", "torch's", "seconds", ""]]
    for share in options.shares:
        peaks = []
        for solver in SOLVERS if 0 < share < 1 else SOLVERS[:1]:
            own = config.patch(
                activation_memory_budget=share, activation_memory_budget_solver=solver
            )
            seen = measured(model, tokens, own)
            peaks.append(seen.peak_bytes)
            rows.append([f"{share:g}", solver, *seen.cells()])
        for name, cost in COSTS.items():
            budget = compile_budget(peaks[0] + 16, effort=options.effort, **cost)
            rows.append(["", name, *_ours(model, tokens, budget)])
    everything = compile_budget("1TiB")
    rows.append(["", "keep all", *measured(model, tokens, everything).cells()])
    print("\n".join(aligned(rows, left=2)))


def _ours(model: Decoder, tokens: torch.Tensor, budget: CompileBudget) -> list[str]:
    try:
        seen = measured(model, tokens, budget)
    except BackendCompilerFailed as error:
        return ["none", "", "", "", "", type(error.inner_exception).__name__]
    assert seen.peak_bytes <= budget.budget_bytes
    plan = budget.plans[0]
    proven = plan.status == "optimal"
    return seen.cells("optimal" if proven else f"at least {format_percent(plan.least_share)}")


if __name__ == "__main__":
    main()

"""Check the torch adapter on a real GPU, in under three minutes: memory as promised, time as saved.

Trains a Llama shape of 1 to 3 billion parameters in bf16 with flash attention, random weights, one
step at a time: keep-all, every layer, uniform segments of sqrt(L), and the best single-level and
optimal plans at three budgets. For each: the peak that the plan promises, the peak that the
allocator saw (allocated and reserved), and the time of a step. Nothing is downloaded.

    python benchmarks/gpu_check.py --json gpu.json

Without CUDA it says so and ends well; --cpu runs the same with a tiny model.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from gpu_report import Report, Row, Setup, record, table
from torch.nn.attention import SDPBackend, sdpa_kernel

from scheduler import CostGraph, InfeasibleBudget, Plan, solve
from scheduler.common.text import format_bytes
from scheduler.pytorch import apply, measure, profile

ANY = 10**15
LIMIT = 150.0
"""Seconds after which no further plan is run."""
SHARE_OF_FREE = 0.8
"""Of the free memory, what keep-all may take: the allocator's rounding comes on top."""


SETUPS = {
    "3b": Setup("Llama-3.2-3B", 28, 3072, 8192, 24, 8, rows=8, length=2048),
    "1b": Setup("TinyLlama-1.1B", 22, 2048, 5632, 32, 4, rows=8, length=2048),
    "tiny": Setup("tiny", 8, 64, 176, 4, 2, rows=2, length=64, vocabulary=256),
}


def plans(costs: CostGraph) -> Iterator[tuple[Row, Plan | None]]:
    """The plans to run; a row with a note in place of one where there is none."""
    for method in ("keep-all", "every-layer", "uniform-sqrt"):
        yield from _plan(costs, Row(method, "any"), method, ANY)
    everything = solve(costs, budget=ANY).keep_all_peak_bytes
    smallest = least(costs)
    budgets = {
        "keep-all - 10%": everything * 9 // 10,
        "middle": (everything + smallest) // 2,
        "smallest + 2%": smallest * 102 // 100,
    }
    for label, budget in budgets.items():
        for method in ("single-level", "optimal"):
            yield from _plan(costs, Row(method, label, budget), method, budget)


def _plan(
    costs: CostGraph, row: Row, method: str, budget: int
) -> Iterator[tuple[Row, Plan | None]]:
    try:
        plan = solve(costs, budget=budget, method=method)
    except InfeasibleBudget as error:
        least_bytes = format_bytes(error.smallest_budget_bytes)
        yield replace(row, note=f"no plan: it needs {least_bytes}"), None
        return
    yield (
        replace(
            row,
            predicted_bytes=plan.peak_bytes,
            predicted_overhead=plan.time / plan.keep_all_time - 1,
        ),
        plan,
    )


def least(costs: CostGraph) -> int:
    """The smallest budget in bytes for which there is a plan."""
    try:
        solve(costs, budget="1B")
    except InfeasibleBudget as error:
        return error.smallest_budget_bytes
    return 1


def check(
    setup: Setup,
    device: str,
    *,
    steps: int = 3,
    limit: float = LIMIT,
    say: Callable[[str], None] = lambda _: None,
) -> Report:
    """Profile the model, run every plan, and report; plans after `limit` seconds are left out."""
    begin = time.perf_counter()
    with _flash(device):
        say(f"building {setup.name}: {setup.rows} rows of {setup.length} tokens")
        model, inputs = setup.build(device), setup.batch(device)
        say("profiling")
        costs = profile(model, inputs)
        differs = _differences(costs, profile(model, inputs, fake=True))
        rows = []
        for row, plan in plans(costs):
            say(f"{row.method}, budget {row.budget}")
            if plan is not None and time.perf_counter() - begin > limit:
                row, plan = replace(row, note=f"left out: {limit:.0f} s are over"), None
            rows.append(row if plan is None else _run(row, plan, model, inputs, device, steps))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    seconds = time.perf_counter() - begin
    return Report(_hardware(device), setup, parameters, differs, rows, seconds)


def _flash(device: str) -> AbstractContextManager[Any]:
    """Flash attention and nothing else: where it cannot be had, the run fails and says so."""
    return sdpa_kernel(SDPBackend.FLASH_ATTENTION) if device == "cuda" else nullcontext()


def _differences(real: CostGraph, fake: CostGraph) -> list[str]:
    def sizes(graph: CostGraph) -> dict[str, dict[str, Any]]:
        found = {
            layer.name: {k: v for k, v in asdict(layer).items() if "time" not in k}
            for layer in graph.layers
        }
        return {**found, "inputs": {"bytes": graph.input_bytes}}

    others = sizes(fake)
    return [name for name, layer in sizes(real).items() if layer != others.get(name)]


def _run(
    row: Row, plan: Plan, model: Any, inputs: dict[str, torch.Tensor], device: str, steps: int
) -> Row:
    cuda = device == "cuda"
    if cuda:
        torch.cuda.empty_cache()
    reserved = torch.cuda.memory_reserved() if cuda else 0
    try:
        with apply(plan, model):
            measured = measure(model, inputs)
            if cuda:
                reserved = torch.cuda.max_memory_reserved() - reserved
            seconds, norm = _time(model, inputs, device, steps)
    except torch.cuda.OutOfMemoryError:
        model.zero_grad(set_to_none=True)
        return replace(row, note="out of memory")
    return replace(
        row,
        allocated_bytes=measured.peak_bytes,
        reserved_bytes=reserved if cuda else None,
        left_bytes=measured.left_bytes,
        seconds=seconds,
        gradient_norm=norm,
        forwards_as_planned=all(
            plan.forwards[name] == count for name, count in measured.forwards.items()
        ),
    )


def _time(
    model: Any, inputs: dict[str, torch.Tensor], device: str, steps: int
) -> tuple[float, float]:
    """Median seconds of a step, and the norm of its gradients."""
    found = []
    for _ in range(steps):
        model.zero_grad(set_to_none=True)
        start = time.perf_counter()
        model(**inputs).loss.backward()
        if device == "cuda":
            torch.cuda.synchronize()
        found.append(time.perf_counter() - start)
    norms = [p.grad.float().norm() for p in model.parameters() if p.grad is not None]
    norm = float(torch.stack(norms).norm())
    model.zero_grad(set_to_none=True)
    return median(found), norm


def _hardware(device: str) -> str:
    if device != "cuda":
        return f"{platform.machine()} CPU"
    found = torch.cuda.get_device_properties(0)
    return f"{found.name}, {format_bytes(found.total_memory)}, CUDA {torch.version.cuda}"


def fitted(setup: Setup, free_bytes: int) -> Setup:
    """Halve the batch until keep-all fits into the free memory, weights included."""
    while True:
        model = setup.build("meta")
        costs = profile(model, setup.batch("meta"))
        weights = sum(parameter.nbytes for parameter in model.parameters())
        needed = weights + solve(costs, budget=ANY).keep_all_peak_bytes
        if needed <= SHARE_OF_FREE * free_bytes or setup.rows == 1:
            return setup
        setup = replace(setup, rows=setup.rows // 2)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the check where there is a GPU."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--size", choices=["auto", *SETUPS], default="auto")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")
    parser.add_argument("--cpu", action="store_true", help="run the tiny model on the CPU")
    options = parser.parse_args(arguments)
    if options.cpu:
        setup, device = SETUPS["tiny"], "cpu"
    elif not torch.cuda.is_available():
        print(
            "There is no CUDA device here: nothing was measured. "
            "--cpu runs the same check with a tiny model."
        )
        return 0
    else:
        free, device = torch.cuda.mem_get_info()[0], "cuda"
        size = options.size
        if size == "auto":
            size = "3b" if free > 60 * 2**30 else "1b"
        setup = fitted(SETUPS[size], free)
    report = check(setup, device, say=lambda text: print(text, file=sys.stderr, flush=True))
    print(table(report))
    if options.json:
        options.json.write_text(json.dumps(record(report), indent=1) + "\n", encoding="utf-8")
    return 0 if report.sound else 1


if __name__ == "__main__":
    sys.exit(main())

"""What options are worth at full size: Llama-3-8B and 70B, from their shapes alone."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

import torch
import transformers

from scheduler import CostGraph, InfeasibleBudget, frontier, solve
from scheduler.common.text import format_bytes
from scheduler.costs.options.policies import POLICIES
from scheduler.memory import Recipe, costs_from_shape, load_shape
from scheduler.memory.fitting.training import Training
from scheduler.memory.gpus import load_gpu
from scheduler.pytorch import profile
from scheduler.report.tables import aligned, format_percent
from tests.pytorch.profiling.option_rows import everywhere, whole

SEQUENCE = 8192
SHARES = (0.1, 0.2, 0.3, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9)
QUICK_SHARES = (0.2, 0.45, 0.7, 0.9)
METHODS = ("single-level", "uniform", "uniform-sqrt", "every-layer")
"""What whole blocks are placed by, beside the optimum."""


def tables(quick: bool) -> Iterator[str]:
    """One text a shape."""
    shares = QUICK_SHARES if quick else SHARES
    for name in ("llama-3-8b", "llama-3-70b"):
        start = time.perf_counter()
        costs = costs_from_shape(name, 1, SEQUENCE, options=True)
        seconds = time.perf_counter() - start
        yield _shape(f"{name}, one GPU", costs, shares)
        yield f"Its costs with options, the search inside the block among them: {seconds:.2f} s."
    yield _traced()
    shape = load_shape("llama-3-70b")
    sharded = Training(shape, load_gpu("h100"), Recipe(zero=3, gpus=64))
    costs = sharded.costs(1, SEQUENCE, options=True)
    yield _shape("llama-3-70b, ZeRO-3 on 64 GPUs", costs, shares)


def _traced() -> str:
    """Seconds of the same search in torch, where every operation is a real one on fake tensors."""
    config = transformers.LlamaConfig(
        hidden_size=8192,
        intermediate_size=28672,
        num_hidden_layers=3,
        num_attention_heads=64,
        num_key_value_heads=8,
        vocab_size=128256,
        max_position_embeddings=SEQUENCE,
    )
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).train()
        ids = torch.zeros(1, SEQUENCE, dtype=torch.long)
    seconds = []
    for options in (False, True):
        start = time.perf_counter()
        profile(model, {"input_ids": ids, "labels": ids}, options=options, gpu="h100")
        seconds.append(time.perf_counter() - start)
    return (
        f"The same block in torch, on fake tensors: a profile takes {seconds[0]:.2f} s, with "
        f"options {seconds[1]:.2f} s."
    )


def _shape(title: str, costs: CostGraph, shares: Iterable[float]) -> str:
    lines = [f"{title}: B=1, S={SEQUENCE}, bf16, {costs.time_unit} by the roofline of an H100", ""]
    rows, seconds = _budgets(costs, shares)
    lines += aligned(rows)
    gradients = format_bytes(sum(layer.gradient_bytes for layer in costs.layers))
    lines.append(f"Below the smallest nothing fits; parameters' gradients take {gradients} of it.")
    lines.append(f"Slowest solve with options: {seconds:.2f} s.")
    hand = _by_hand(costs)
    lines += ["", *aligned(hand)]
    missing = [name for name in POLICIES if name not in {row[0] for row in hand}]
    if missing:
        names = " and ".join(missing)
        lines.append(f"{names}: no option, since it would keep more than the whole block saves.")
    return "\n".join(lines)


def _budgets(costs: CostGraph, shares: Iterable[float]) -> tuple[list[list[str]], float]:
    """A row a budget, and the seconds of the slowest solve with options."""
    bare = whole(costs)
    least = frontier(costs)[0][0]
    everything = solve(costs, budget=10**15).keep_all_peak_bytes
    held = sum(x.saved_bytes + x.output_bytes for x in costs.layers if x.recomputable)
    named = [("smallest", least)]
    named += [(f"{share:.0%}", everything - round((1 - share) * held)) for share in shares]
    rows = [["activations", "budget", "with options", "whole blocks", *METHODS]]
    slowest = 0.0
    for label, budget in [*named, ("keep-all", everything)]:
        if budget < least:
            continue
        start = time.perf_counter()
        best = solve(costs, budget=budget)
        slowest = max(slowest, time.perf_counter() - start)
        cells = [_overhead(bare, budget, method) for method in ("optimal", *METHODS)]
        rows.append([label, format_bytes(budget), format_percent(best.overhead), *cells])
    return rows, slowest


def _overhead(costs: CostGraph, budget: int, method: str) -> str:
    try:
        return format_percent(solve(costs, budget=budget, method=method).overhead)
    except InfeasibleBudget:
        return "–"


def _by_hand(costs: CostGraph) -> list[list[str]]:
    rows = [["on every block", "peak", "overhead", "optimum at that peak", "whole blocks there"]]
    bare = whole(costs)
    for one in everywhere(costs, by_hand=True):
        figures = [one.plan.overhead, one.best.overhead]
        there = _overhead(bare, one.plan.peak_bytes, "optimal")
        peak = format_bytes(one.plan.peak_bytes)
        rows.append([one.option, peak, *map(format_percent, figures), there])
    return rows

"""Options beside torch's own two planners, on one small transformer, at the same measured peak."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from compile_budget import measured
from torch._dynamo.exc import BackendCompilerFailed
from torch._functorch import config

from scheduler import InfeasibleBudget, solve
from scheduler.common.text import format_bytes
from scheduler.pytorch import Roofline, apply, compile_budget, profile
from scheduler.pytorch.observe.clock import RooflineClock
from scheduler.report.tables import aligned, format_percent, wrapped
from tests.pytorch.compile.test_compile_budget import Decoder, stepped
from tests.pytorch.profiling.option_rows import whole

STATES_BYTES = 2 * 5056
"""What a selective checkpoint keeps of the CPU's random state: of its start, and of attention's.

The allocator sees them, a plan does not count them.
"""

NEEDED = "needs pulp and pwlf: pip install 'checkpoint-scheduler[bench]'"

NOTES = (
    "sac_ilp: torch.distributed._tools.sac_ilp with SACEstimator on fake tensors; its budget is "
    "that share of the peak that it expects without checkpoints. Its own times come from CUDA "
    "only, so the same roofline stands in for them.",
    "compile: activation_memory_budget with its solver dp, which minimises FLOPs alone, backend "
    "aot_eager_decomp_partition; its time again is of its own graph's forward, whose operations "
    "are finer than eager ones.",
)


class Bench:
    """The model, how its steps are measured, and a row for each."""

    def __init__(self, layers: int) -> None:
        self.layers = layers
        self.model, self.tokens = self.make()
        self.costs = profile(
            self.model, self.tokens, lambda loss: loss, "auto", options=True, fake=True
        )
        self._forward, self._step = self._seconds()
        self.peak, self._gradients = stepped(self.model, self.model, self.tokens)

    def make(self) -> tuple[Decoder, Any]:
        """The model and a batch, the same each time."""
        torch.manual_seed(0)
        return Decoder(self.layers, width=128, words=256), torch.randint(0, 256, (8, 256))

    def _seconds(self) -> tuple[float, float]:
        """Roofline time of a forward and of a step, from the operations that really run."""
        clock = RooflineClock(Roofline())
        with clock.running():
            start = clock.mark()
            loss = self.model(self.tokens)
            turn = clock.mark()
            loss.backward()
            end = clock.mark()
        self.model.zero_grad(set_to_none=True)
        return clock.between(start, turn), clock.between(start, end)

    def eager(self, name: str, under: AbstractContextManager[Any]) -> tuple[int, list[str]]:
        """Peak of a step under something, and its row."""
        with under:
            peak, gradients = stepped(self.model, self.model, self.tokens)
            again = (self._seconds()[1] - self._step) / self._forward
        equal = all(map(torch.equal, gradients, self._gradients))
        note = "" if equal else "gradients DIFFERENT"
        return peak, [name, format_bytes(peak), format_percent(max(again, 0)), note]

    def ours(self, peak: int) -> Iterator[list[str]]:
        """Plans with that peak as their budget."""
        for name, costs in (("with options", self.costs), ("whole blocks", whole(self.costs))):
            try:
                plan = solve(costs, budget=peak, reserved=STATES_BYTES * self.layers)
            except InfeasibleBudget as error:
                least = format_bytes(error.smallest_budget_bytes)
                yield [f"  ours, {name}", "", "", f"not run: needs {least} at least"]
                continue
            seen, row = self.eager(f"  ours, {name}", apply(plan, self.model))
            assert seen <= peak, f"{name}: measured {seen} above the budget of {peak}"
            yield row

    def compiled(self, name: str, budget: AbstractContextManager[Any]) -> tuple[int, list[str]]:
        """Peak of a compiled step, and its row."""
        seen = measured(self.model, self.tokens, budget)
        share = format_percent(seen.share)
        return seen.peak_bytes, [name, format_bytes(seen.peak_bytes), share, ""]


def table(quick: bool) -> str:
    """Each of torch's settings, and what the project does with its peak as the budget."""
    layers = 2 if quick else 4
    bench = Bench(layers)
    rows = [["", "peak", "time again", ""], bench.eager("keep all", nullcontext())[1]]
    rows += _sac_ilp(bench, (0.7,) if quick else (0.9, 0.7, 0.6, 0.5, 0.4, 0.3))
    rows += _compile(bench, (0.5,) if quick else (0.5, 0.1))
    head = (
        f"A transformer of {layers} blocks, width 128, 8 x 256 tokens, fp32. peak: as torch's CPU "
        "allocator sees it, gradients and inputs included. time again: operations that run again, "
        "by one roofline, of the forward's. Ours have the peak of the torch row above as budget."
    )
    return "\n\n".join([wrapped(head), "\n".join(aligned(rows)), *map(wrapped, NOTES)])


def _sac_ilp(bench: Bench, shares: tuple[float, ...]) -> Iterator[list[str]]:
    try:
        from options_sac import Planner, applied

        planner = Planner(bench.make)
        for share in shares:
            name = f"torch sac_ilp, {share:.0%}"
            decisions = planner.decide(share)
            if decisions is None:
                yield [name, "", "", "not run: its MILP finds no plan"]
                continue
            peak, row = bench.eager(name, applied(bench.model, decisions))
            yield row
            yield from bench.ours(peak)
    except ImportError:
        yield ["torch sac_ilp", "", "", f"not run: {NEEDED}"]


def _compile(bench: Bench, shares: tuple[float, ...]) -> Iterator[list[str]]:
    for share in shares:
        own = config.patch(activation_memory_budget=share)
        peak, row = bench.compiled(f"torch compile, {share:.0%}", own)
        yield row
        budget = compile_budget(peak + 16, effort=0.5)
        try:
            yield bench.compiled("  ours, compile_budget", budget)[1]
        except BackendCompilerFailed as error:
            why = type(error.inner_exception).__name__
            yield ["  ours, compile_budget", "", "", f"not run: {why}"]
        yield from bench.ours(peak)

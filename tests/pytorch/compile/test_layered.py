"""Steps of layers: every choice at once against `play`, and layers against every choice."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from scheduler.pytorch.compile import layered as layered_module
from scheduler.pytorch.compile.choice import JointOperation, StepGraph, play
from scheduler.pytorch.compile.every import every
from scheduler.pytorch.compile.layered import Layered
from scheduler.pytorch.compile.parts import Parts
from tests.pytorch.compile.test_compile_budget import random_step


class _Stack:
    """A toy step of layers that each read the cut below and a table of all."""

    def __init__(self, draw: random.Random, layers: int, inner: int, kinds: int) -> None:
        self.sizes: list[int] = []
        self.early: list[JointOperation] = []
        self.cuts: list[int] = []
        late: list[JointOperation] = []
        held = draw.random() < 0.5
        seeds = [draw.random() for _ in range(kinds)]
        table = self._op(1, ()) if draw.random() < 0.3 else None
        cut = self._op(draw.randint(1, 9), ())
        insides = []
        for layer in range(layers):
            local = random.Random(seeds[layer % kinds])
            made = [cut]
            for _ in range(inner):
                reads = {cut if local.random() < 0.6 else made[-1], local.choice(made)}
                made.append(self._op(local.randint(1, 9), reads, local, table))
            insides.append((cut, made[1:]))
            cut = self._op(local.randint(1, 9), {insides[-1][0], made[-1]})
            self.cuts.append(len(self.early) - 1)
        outputs = {self._op(1, {cut}), self._op(2, {cut})} if draw.random() < 0.5 else {cut}
        gradients: list[int] = []
        handed = draw.choice([[], [self._late(late, 2, set())]])
        for (below, made), layer in zip(reversed(insides), reversed(range(layers)), strict=True):
            local = random.Random(seeds[layer % kinds] + 1)
            for _ in range(3):
                reads = {local.choice(made), *handed[-1:]} | (
                    {below} if local.random() < 0.3 else set()
                )
                handed.append(self._late(late, local.randint(0, 6), reads))
                if local.random() < 0.4:
                    gradients.append(handed[-1])
        self.step = StepGraph(
            tuple(self.early),
            tuple(late),
            tuple(self.sizes),
            frozenset(outputs),
            frozenset(gradients),
            2,
            draw.randint(0, 3),
            held,
        )

    def _op(
        self,
        size: int,
        reads: Any,
        draw: random.Random | None = None,
        table: int | None = None,
    ) -> int:
        fixed: Any = None
        time = 3
        if draw is not None:
            fixed = draw.choice((None,) * 9 + ("keep",))
            time = draw.randint(1, 20)
            if table is not None and draw.random() < 0.5:
                reads = {*reads, table}
        self.sizes.append(size)
        op = JointOperation("", time, tuple(sorted(reads)), (len(self.sizes) - 1,), fixed)
        self.early.append(op)
        return len(self.sizes) - 1

    def _late(self, late: list[JointOperation], size: int, reads: set[int]) -> int:
        self.sizes.append(size)
        late.append(JointOperation("", 1, tuple(sorted(reads)), (len(self.sizes) - 1,)))
        return len(self.sizes) - 1


@pytest.mark.parametrize("seed", range(20))
def test_every_choice_costs_what_its_play_says(seed: int) -> None:
    graph = random_step(random.Random(seed), (3, 9))
    costs = every(graph)
    for n, bits in enumerate(itertools.product((False, True), repeat=len(graph.free))):
        choice = play(graph, itertools.compress(graph.free, reversed(bits)))
        assert choice.again_time == costs.again_time[n]
        assert choice.peak_bytes == max(costs.forward_bytes[n], costs.backward_bytes[n])


def test_layers_are_found_and_equal_ones_are_one_problem() -> None:
    parts = Parts(_Stack(random.Random(1), 12, 3, kinds=2).step, 3).parts
    assert len(parts) == 13
    assert len({part.key for part in parts[2:-2]}) == 2


@pytest.mark.parametrize("grid", [1 << 17, 12])
def test_no_choice_of_all_is_below_the_bound_and_none_found_is_wrong(
    grid: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Toys of two and three layers whose cuts are no better to keep than anything else."""
    monkeypatch.setattr(layered_module, "_GRID", grid)
    met = seen = apart = 0
    for seed in range(40):
        draw = random.Random(seed)
        layers = draw.choice((2, 3))
        graph = _Stack(draw, layers, 9 // layers, kinds=draw.choice((1, layers))).step
        parts = Parts(graph, 3)
        if len(parts.parts) == 1:
            continue
        apart += 1
        costs = every(graph)
        peaks = costs.backward_bytes.clip(costs.forward_bytes)
        layered = Layered(parts, int(peaks.max()) + 9)
        before = None
        for budget in range(int(peaks.min()) - 2, layered.most + 1):
            fits = costs.again_time[peaks <= budget]
            found, bound = layered.choice(budget), layered.least_time(budget)
            if found is not None:
                assert found.peak_bytes <= budget
                assert before is None or found.again_time <= before
                before = found.again_time
            if len(fits):
                best = int(fits.min())
                assert bound is not None
                assert bound <= best
                assert found is None or best <= found.again_time
                seen += 1
                met += found is not None and found.again_time == best
            else:
                assert found is None
        least = layered.smallest()
        assert layered.least_peak() <= peaks.min()
        assert least is None or least.peak_bytes >= peaks.min()
    assert apart > 15
    assert met > seen / (10 if grid > 12 else 100)

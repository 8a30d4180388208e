"""Does a plan change what a step does? A witness that knows the public interface alone.

`python -m tests.pytorch.witness 2000 [FIRST]` tries that many drawn models and prints a table;
`python -m tests.pytorch.witness =SEED` one, made smaller as long as it fails in the same way.
"""

from __future__ import annotations

import random
import re
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from scheduler import InfeasibleBudget, Plan, SchedulerError, frontier, solve
from scheduler.pytorch import apply, measure, profile, verify
from tests.pytorch.facts import Facts, around, facts, parted
from tests.pytorch.grammar import Draw, build, draw, loss_of

torch.set_num_threads(1)


def seeded(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


@dataclass
class Trial:
    """What came of a draw: everything that failed, everything that was refused, plans that held."""

    draw: Draw
    failed: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    held: int = 0

    @property
    def outcome(self) -> str:
        return "failed" if self.failed else "held" if self.held else "refused"

    def attempt(self, what: str, call: Callable[[], Any], watched: Any = None) -> Any:
        """The result of a call, or None where it is refused or fails; `watched` must not change."""
        before = None if watched is None else (facts(watched, same=True), around())
        result = None
        try:
            result = call()
        except SchedulerError as error:
            self.refused.append(f"{what}: {error}")
            if re.search(r"\n|[.!?] +[A-Z]|^\s*$", str(error)):
                self.failed.append(f"{what}: a refusal that is not one sentence: {error}")
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{where.filename.rpartition('/')[2]}:{where.lineno}"
            self.failed.append(f"{what}: {type(error).__name__} at {place}: {str(error)[:200]}")
        if before is not None:
            left = parted(facts(watched, same=True), before[0]) + parted(around(), before[1])
            if result is None:  # An iterator cannot run back: what has one is refused, after a run.
                left = [line for line in left if not line.endswith(": count for count")]
            self.failed += [f"{what} leaves {line}" for line in left[:4]]
        return result


def cast(draw: Draw) -> Any:
    on = draw.has("with=autocast")
    return torch.autocast("cpu", torch.bfloat16) if on else nullcontext()


def step(draw: Draw, model: nn.Module, batch: Any, number: int) -> Facts:
    """What a training step gives; gradients are added to what is there every second time."""
    seeded(number)
    if number % 2:
        model.zero_grad()
    with cast(draw):
        output = model(**batch) if isinstance(batch, dict) else model(batch)
        loss = output.loss if draw.has("with=loss") else loss_of(output)
    loss.backward()
    found = around() | facts({"loss": loss, "batch": batch})
    with torch.no_grad():
        for p in model.parameters():
            if p.grad is not None:
                p.sub_(p.grad, alpha=0.05)
    return found


def steps(draw: Draw, model: nn.Module, batch: Any, numbers: range) -> list[Facts]:
    found = [step(draw, model, batch, number) for number in numbers]
    return [*found, facts(model)]


def made(draw: Draw) -> tuple[nn.Module, Any]:
    """The model and its batch, after a step of their own where the draw has one."""
    model, batch = build(draw)
    if draw.has("with=warm"):
        step(draw, model, batch, 9)
    return model, batch


def trains(draw: Draw) -> bool:
    """Whether two models of a draw train alike without any plan."""
    try:
        first, second = (steps(draw, *made(draw), range(3)) for _ in range(2))
    except (RuntimeError, Warning):  # such as of hooks that torch cannot call
        return False
    return first == second


def drawn(seed: int) -> Draw:
    """The first model of a seed that trains."""
    return next(d for d in (draw(seed, attempt) for attempt in range(99)) if trains(d))


def timed(costs: Any, r: random.Random) -> Any:
    """The same bytes with times of chance: a clock's give other plans each time."""
    layers = []
    for layer in costs.layers:
        forward = r.uniform(1, 9)
        again = {"recompute_time": forward * r.uniform(0.5, 1)}
        options = [replace(o, recompute_time=forward * r.random() / 2) for o in layer.options]
        times = {"forward_time": forward, "backward_time": forward * r.uniform(1, 3), **again}
        layers.append(replace(layer, options=tuple(options), **times))
    return replace(costs, layers=tuple(layers))


def planned(costs: Any, r: random.Random) -> Iterator[Plan]:
    """The optimum at the smallest budget, and a plan of any method at any of the optimum's."""
    costs = timed(costs, r)
    if costs.edges is not None:
        budgets = [point[0] for point in frontier(costs, points=2, time_limit=1)]
        yield solve(costs, budget=r.choice(budgets), time_limit=1)
        return
    budgets = [point[0] for point in frontier(costs)]
    other = r.choice(["optimal", "every-layer", "single-level"])
    for method, budget in [("optimal", budgets[0]), (other, r.choice(budgets))]:
        try:
            yield solve(costs, budget=budget, method=method)
        except InfeasibleBudget as error:
            yield solve(costs, budget=error.smallest_budget_bytes, method=method)


def trial(draw: Draw) -> Trial:
    """Profile a drawn model, and hold random plans to a model that has none."""
    this, r = Trial(draw), random.Random(draw.seed)
    expected = steps(draw, *made(draw), range(3))
    loss_fn = None if draw.has("with=loss") else loss_of
    chain = draw.has("shell=sequential") or len(set(draw.stack)) == 1
    blocks = "auto" if chain and r.random() < 0.7 else "blocks.*"
    blocks = "auto" if draw.has("shell=sequential") else blocks

    def within(call: Callable[..., Any], *args: Any, **settings: Any) -> Callable[[], Any]:
        def run() -> Any:
            with cast(draw):
                return call(*args, blocks=blocks, **settings)

        return run

    for options in [False, True] if r.random() < 0.5 else [False]:
        what = "options" if options else "blocks"
        watched = made(draw)
        asked = within(profile, *watched, loss_fn, options=options)
        costs = this.attempt(f"profile ({what})", asked, watched)
        if costs is None:
            continue
        plans = this.attempt(f"solve ({what})", partial(list, planned(costs, r)))
        for plan in plans or ():
            hold(this, f"{what}, {plan.method}", plan, within, blocks, loss_fn, expected)
    if any(" differs " in line for line in this.failed):
        again = steps(draw, *made(draw), range(3))
        this.failed += ["steps without a plan part as well"] if again != expected else []
    return this


def hold(
    this: Trial,
    what: str,
    plan: Any,
    within: Callable[..., Callable[[], Any]],
    blocks: str,
    loss_fn: Any,
    expected: list[Facts],
) -> None:
    """Hold a plan to the steps without it."""
    start = len(this.failed), len(this.refused)
    watched = made(this.draw)
    verdict = this.attempt(f"verify ({what})", within(verify, plan, *watched, loss_fn), watched)
    if verdict is not None and not verdict.ok:
        this.failed.append(f"verify ({what}) says: {' '.join(str(verdict).split())}")
    watched = made(this.draw)
    if this.attempt(f"apply ({what})", within(apply, plan, watched[0])) is None:
        return
    measured = this.attempt(f"measure ({what})", within(measure, *watched, loss_fn), watched)
    if measured is not None and measured.peak_bytes > plan.peak_bytes:
        over = measured.peak_bytes - plan.peak_bytes
        this.failed.append(f"peak ({what}): {over} bytes above {plan.peak_bytes}")
    if plan.budget_bytes is not None and plan.peak_bytes > plan.budget_bytes:
        this.failed.append(f"budget ({what}): planned above it")
    model, batch = made(this.draw)
    before = facts(model, same=True)
    handle = apply(plan, model, blocks)
    if len(this.refused) > start[1]:
        handle.remove()
        left = parted(facts(model, same=True), before)
        this.failed += [f"apply, remove ({what}) leave {line}" for line in left[:4]]
        return
    found = this.attempt(f"steps ({what})", lambda: steps(this.draw, model, batch, range(3)))
    handle.remove()
    if found is None:
        return
    for i, (got, wanted) in enumerate(zip([*found[:-1], facts(model)], expected, strict=True)):
        name = f"step {i}" if i < 3 else "state"
        this.failed += [f"{name} ({what}) differs {line}" for line in parted(got, wanted)[:4]]
    this.held += len(this.failed) == start[0]


def kind(line: str) -> str:
    """A failure or refusal without what is of its model and its plan alone."""
    line = re.sub(r" \((\w+)(, [-\w]+)?\)", "", line, count=1)
    line = re.sub(r"(leaves?|differs) \S*?([^.\s]+?)( is)?: .*", r"\1 \2\3", line)
    return re.sub(r"\d+(\.\d+)*", "#", re.sub(r"'[^']*'|\"[^\"]*\"", "…", line))[:150]


def smaller(draw: Draw) -> Iterator[Draw]:
    """Draws with one word less."""
    for i in range(len(draw.stack)):
        if len(draw.stack) > 2:
            yield replace(draw, stack=draw.stack[:i] + draw.stack[i + 1 :])
    for i in range(len(draw.extras)):
        if not draw.extras[i].startswith("shell"):
            yield replace(draw, extras=draw.extras[:i] + draw.extras[i + 1 :])
    for k, parts in enumerate(draw.kinds):
        for i in range(len(parts)):
            less = (*parts[:i], *parts[i + 1 :])
            yield replace(draw, kinds=(*draw.kinds[:k], less, *draw.kinds[k + 1 :]))
    if len(set(draw.stack)) > 1:
        yield replace(draw, stack=(draw.stack[0],) * len(draw.stack))


def minimal(draw: Draw) -> Trial:
    """The smallest draw that fails in a way the first one did first."""
    best = trial(draw)
    if not best.failed:
        return best
    wanted, found = kind(best.failed[0]), True
    while found:
        found = False
        for less in smaller(best.draw):
            if trains(less) and wanted in map(kind, (less_trial := trial(less)).failed):
                best, found = less_trial, True
                break
    return best


def main(arguments: list[str]) -> None:
    if arguments[0].startswith("="):
        first = trial(drawn(int(arguments[0][1:])))
        print(first.draw, *first.failed, *first.refused, sep="\n  ")
        best = minimal(first.draw)
        print(best.draw, *best.failed, *best.refused, sep="\n  ")
        return
    first_seed = int(arguments[1]) if len(arguments) > 1 else 0
    table: Counter[tuple[str, str]] = Counter()
    words: Counter[tuple[str, str]] = Counter()
    seeds: dict[tuple[str, str], int] = {}
    for seed in range(first_seed, first_seed + int(arguments[0])):
        done = trial(drawn(seed))
        rows = {("failed", kind(line)) for line in done.failed}
        rows |= {("refused", kind(line)) for line in done.refused}
        for row in rows:
            seeds.setdefault(row, seed)
        table.update({*rows, (done.outcome, "")})
        parts = {
            part.partition("@")[0] for k in set(done.draw.stack) for part in done.draw.kinds[k]
        }
        words.update((word, done.outcome) for word in {*parts, *done.draw.extras})
        if done.failed:
            print(seed, done.draw, *done.failed[:6], sep="\n    ", flush=True)
    for row, count in sorted(table.items(), key=lambda item: (item[0][1] > "", -item[1])):
        print(f"{count:5}  {row[0]:8}{row[1]}  {f'(seed {seeds[row]})' if row in seeds else ''}")
    print("\nword                   held  refused  failed")
    for word in sorted({word for word, _ in words}):
        counts = [words[word, outcome] for outcome in ("held", "refused", "failed")]
        print(f"{word:22}{counts[0]:5}{counts[1]:9}{counts[2]:8}")


if __name__ == "__main__":
    warnings.simplefilter("error")
    main(sys.argv[1:])

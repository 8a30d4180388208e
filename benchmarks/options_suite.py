"""What options are worth on the small models of the suite: by their profiles, and measured."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.utils._pytree import tree_leaves

from scheduler import CostGraph, Plan, solve
from scheduler.common.text import format_bytes
from scheduler.pytorch import apply, measure, profile
from scheduler.pytorch.model.step import call_model, loss_of
from scheduler.pytorch.observe.tracker import MemoryTracker
from scheduler.report.tables import aligned, format_percent, wrapped
from tests.pytorch.compile.test_compile_budget import Decoder
from tests.pytorch.models import Case, gradients
from tests.pytorch.profiling.option_rows import Options, option_rows, profiled, whole
from tests.pytorch.suite import SUITE, budgets

QUICK = ("gpt2", "llama", "qwen3_moe")
REPEATS = 7
MEASURED = ("gpt2", "llama", "qwen3_moe")
NOT_CHAINS = {name: "a graph; options are of chains" for name, one in SUITE.items() if one.leaves}


@dataclass
class Suite:
    """The profiles of what was looked at, by name, and what is wrong with them, if anything is."""

    cases: dict[str, tuple[Case, Options]]
    wrong: list[str]


def look(quick: bool) -> Suite:
    """Profile and solve."""
    suite = Suite({}, [])
    for name in QUICK if quick else SUITE:
        if name in NOT_CHAINS:
            continue
        case, costs = profiled(name)
        found = option_rows(costs)
        suite.cases[name] = case, found
        suite.wrong += [f"{name}, {wrong}" for wrong in _slower(found)]
    return suite


def _slower(found: Options) -> Iterator[str]:
    for row in found.rows:
        if row.best.time > row.whole.time:
            yield f"{row.label}: whole blocks are faster"
        for other in found.everywhere:
            if other.plan.peak_bytes <= row.budget_bytes and other.plan.time < row.best.time:
                yield f"{row.label}: {other.option} is faster"
    for other in found.everywhere:
        if other.plan.time < other.best.time:
            yield f"at its own peak {other.option} is faster"


def predicted(suite: Suite) -> str:
    """Overheads at the suite's three budgets, and of what people choose by hand."""
    rows = [["architecture", "budget", "peak", "with options", "whole blocks", "best by hand"]]
    hand = [["architecture", "on every block", "peak", "overhead", "optimum there"]]
    for name, (_, found) in suite.cases.items():
        for i, row in enumerate(found.rows):
            fitting = [
                one
                for one in found.everywhere
                if one.by_hand and one.plan.peak_bytes <= row.budget_bytes
            ]
            hands = "none fits"
            if fitting:
                best = min(fitting, key=lambda one: one.plan.time)
                hands = f"{best.option} {format_percent(best.plan.overhead)}"
            shares = [row.best.overhead, row.whole.overhead]
            size = format_bytes(row.budget_bytes)
            first = name if i == 0 else ""
            rows.append([first, row.label, size, *map(format_percent, shares), hands])
        for i, one in enumerate(one for one in found.everywhere if one.by_hand):
            shares = [one.plan.overhead, one.best.overhead]
            size = format_bytes(one.plan.peak_bytes)
            first = name if i == 0 else ""
            hand.append([first, one.option, size, *map(format_percent, shares)])
    lines = [*aligned(rows, left=2), "", *aligned(hand, left=2), ""]
    lines += [f"{name}: not run, {why}." for name, why in NOT_CHAINS.items()]
    lines.append(f"Where options lose: {'; '.join(suite.wrong) or 'nowhere'}.")
    return "\n".join(lines)


def measured(suite: Suite) -> str:
    """Real steps under the plans with options, on the CPU."""
    rows = [["model", "budget", "predicted", "measured", "error", "kept, planned", "measured"]]
    rows[0] += ["gradients", "overhead", "time"]
    for name in MEASURED:
        case, found = suite.cases[name]
        rows += _steps(name, case, found.costs, suite.wrong)
    torch.manual_seed(0)
    larger = Case(
        Decoder(4, width=128, words=256), torch.randint(0, 256, (8, 256)), lambda loss: loss
    )
    costs = profile(larger.model, larger.inputs, larger.loss_fn, options=True, fake=True)
    rows += _steps("decoder, width 128", larger, costs, suite.wrong)
    said = (
        "kept: bytes live between forward and backward. overhead: of the plan, by the roofline of "
        f"a GPU; time: of the fastest of {REPEATS} steps on this CPU, of keep-all's. The models of "
        "the suite are so small that the Python of torch's selective checkpoints takes most of a "
        "step; the decoder is the largest here."
    )
    return "\n".join([*aligned(rows, left=2), "", wrapped(said)])


def _steps(name: str, case: Case, costs: CostGraph, wrong: list[str]) -> Iterator[list[str]]:
    reference = gradients(case.model, case.inputs, case.loss_fn)
    for i, (label, budget) in enumerate(budgets(whole(costs)).items()):
        plan = solve(costs, budget=budget)
        planned = _planned(plan, costs)
        seconds = _fastest(case)
        with apply(plan, case.model):
            found = gradients(case.model, case.inputs, case.loss_fn)
            peak = measure(case.model, case.inputs, case.loss_fn).peak_bytes
            kept = _kept(case)
            again = _fastest(case)
        equal = all(torch.equal(found[key], reference[key]) for key in reference)
        if not equal or kept != planned or peak > budget:
            wrong.append(f"{name}, {label}: a real step does something else")
        yield [
            name if i == 0 else "",
            label,
            format_bytes(plan.peak_bytes),
            format_bytes(peak),
            f"{plan.peak_bytes / peak - 1:.2%}",
            f"{planned} B",
            f"{kept} B",
            "equal" if equal else "DIFFERENT",
            format_percent(plan.overhead),
            f"{again / seconds:.2f}",
        ]


def _fastest(case: Case) -> float:
    """Seconds of a step, the least of some: others use the machine too."""
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        gradients(case.model, case.inputs, case.loss_fn)
        times.append(time.perf_counter() - start)
    return min(times)


def _planned(plan: Plan, costs: CostGraph) -> int:
    """Bytes live when the forward is over, without the loss's gradient, which is not made yet."""
    moments = plan.moments(costs)
    turn = next(i for i, moment in enumerate(moments) if moment.role == "back")
    return moments[turn - 1].after_bytes - costs.layers[-1].output_bytes


def _kept(case: Case) -> int:
    """The same of a real step."""
    tracker = MemoryTracker()
    with tracker:
        for leaf in tree_leaves(case.inputs):
            tracker.count(leaf)
        loss = loss_of(call_model(case.model, case.inputs), case.loss_fn)
        live = tracker.live_bytes
        loss.backward()
    case.model.zero_grad()
    return live

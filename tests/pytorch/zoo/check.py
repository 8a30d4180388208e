"""One model of the zoo put through a profile, its plans, and real steps under them."""

from __future__ import annotations

import pickle
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._pytree import tree_flatten

from scheduler import InfeasibleBudget, Plan, frontier
from scheduler.common.errors import UnsupportedModel
from scheduler.pytorch import apply, auto_checkpoint, measure, profile
from scheduler.pytorch.model.settings import no_skips
from scheduler.pytorch.model.step import call_model, loss_of
from scheduler.pytorch.observe.dispatch import tensors_of
from scheduler.pytorch.observe.tracker import MemoryTracker
from tests.pytorch.zoo.models import Entry, Made, seed

PLANS = 6
"""Plans of one frontier that are run, spread over its points."""
SECONDS = 2.0
"""What the search for each plan of a graph may take."""

WORKS, REFUSED, CRASHED, ABOVE = "works", "refused", "crashed", "peak above prediction"
GRADIENTS, STATE, LATE = "gradients differ", "state differs", "timed out"
LEFT = "not put back"
UNTRAINED = "does not train"  # not counted
OUTCOMES = (WORKS, REFUSED, CRASHED, LATE, GRADIENTS, STATE, ABOVE, LEFT)


class DoesNotTrain(Exception):
    """No way to make a model trains one step."""


@dataclass
class Row:
    """One plan: what was predicted, what a real step took."""

    budget: int
    predicted: int
    measured: int

    @property
    def error(self) -> float:
        """Predicted above measured, as a share of measured."""
        return self.predicted / self.measured - 1


@dataclass
class Result:
    """What became of a model; `rows`: its plans, the half-way one first."""

    outcome: str
    detail: str = ""
    plan: str = ""  # its kind: a chain, a layer graph
    rows: list[Row] = field(default_factory=list)


def trained(entry: Entry) -> Callable[[], Made]:
    """A maker of the first variant of an entry that trains a step, checked by a step."""
    reasons: list[str] = []
    for make in entry.makes:
        try:
            for number, made in enumerate(make()):
                try:
                    if Step.run(made).gradients:
                        return partial(_nth, make, number)
                    reasons.append("no parameter has a gradient")
                except Exception as error:
                    reasons.append(said(error))
        except Exception as error:
            reasons.append(said(error))
    raise DoesNotTrain(" | ".join(dict.fromkeys(reasons)))


def _nth(make: Callable[[], Iterator[Made]], number: int) -> Made:
    return next(islice(make(), number, None))


@dataclass
class Step:
    """What one step leaves: gradients, everything that a module holds, random states."""

    gradients: dict[str, torch.Tensor]
    state: dict[str, Any]

    @classmethod
    def run(cls, made: Made, plan: Plan | None = None) -> Step:
        """A step, with a plan or without, from the same random state."""
        seed()
        if plan is None:
            _differentiate(made)
        else:
            with apply(plan, made.model):
                _differentiate(made)
        parameters = made.model.named_parameters()
        return cls({n: p.grad for n, p in parameters if p.grad is not None}, state_of(made.model))

    def differs(self, other: Step) -> tuple[str, str] | None:
        """The outcome and the name of what is not the same."""
        for outcome, mine, theirs in (
            (GRADIENTS, self.gradients, other.gradients),
            (STATE, self.state, other.state),
        ):
            for name in {**mine, **theirs}:
                if name not in mine or name not in theirs or not same(mine[name], theirs[name]):
                    return outcome, name
        return None


def _differentiate(made: Made) -> None:
    made.model.zero_grad(set_to_none=True)
    loss_of(call_model(made.model, made.batch), made.loss_fn).backward()


def state_of(model: nn.Module) -> dict[str, Any]:
    """Buffers and plain attributes of every module, and the random states."""
    numpy = pickle.dumps(np.random.get_state())
    found: dict[str, Any] = {"random state": (torch.get_rng_state(), random.getstate(), numpy)}
    for name, module in model.named_modules():
        for key, value in {**vars(module), **module._buffers}.items():
            if key not in _OF_TORCH and not key.endswith("_hooks"):
                found[f"{name}.{key}"] = value
    return found


_OF_TORCH = {*vars(nn.Module()), "config", "generation_config", "forward"}


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal to the bit; of objects that hold others, of one class."""
    mine, form = tree_flatten(one)
    theirs, their_form = tree_flatten(other)
    return form == their_form and all(map(_same, mine, theirs))


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        alike = one.dtype == other.dtype and one.shape == other.shape
        return alike and torch.equal(one.nan_to_num(7.0), other.nan_to_num(7.0))
    if isinstance(one, bool | int | float | str | bytes | type(None) | np.generic):
        return type(one) is type(other) and (one == other or one != one)
    return type(one) is type(other)


def check(make: Callable[[], Made], *, options: bool = False, plans: int = PLANS) -> Result:
    """Profile a model, solve, and hold steps under plans of the whole frontier to a plain one."""
    plain = Step.run(make())
    made = make()
    try:
        costs = profile(made.model, made.batch, made.loss_fn, options=options)
    except UnsupportedModel as error:
        return Result(REFUSED, str(error))
    if costs.edges is None:
        trades = frontier(costs)
    else:
        trades = frontier(costs, points=plans, time_limit=SECONDS)
    smallest, largest = trades.points[0][0], trades.keep_all_peak_bytes
    half = trades.plan(budget=(smallest + largest) // 2)
    result = Result(WORKS, plan=half.kind)
    for plan in _distinct([half, *_spread(trades, plans)])[:plans]:
        try:
            differs = Step.run(made, plan).differs(plain)
        except UnsupportedModel as error:
            return Result(REFUSED, str(error), half.kind)
        if differs is not None:
            outcome, where = differs
            if Step.run(make()).differs(plain):
                return Result(UNTRAINED, f"two plain steps differ in {where}")
            result.outcome, result.detail = outcome, f"{where}, peak {plan.peak_bytes}"
            return result
        with apply(plan, made.model):
            peak = measure(made.model, made.batch, made.loss_fn, _blocks(plan, made)).peak_bytes
        budget = plan.budget_bytes or plan.peak_bytes
        result.rows.append(Row(budget, plan.peak_bytes, peak))
        made = make()
    above = [row for row in result.rows if row.measured > min(row.predicted, row.budget)]
    if above:
        worst = min(above, key=lambda row: row.error)
        result.outcome, result.detail = ABOVE, f"{worst.measured} of {worst.predicted} bytes"
    return result


def check_auto(make: Callable[[], Made]) -> Result:
    """Have `auto_checkpoint` do it all within a half-way budget, and train two steps with AdamW.

    The budget is half-way between the smallest without options and what loses nothing, with what it
    sets aside as its margin on top. Everything in memory counts: weights, moments, gradients.
    """
    first, made = make(), make()
    plain = Step.run(first)
    before = _attached(first.model)  # with the hooks that a model puts on itself in a step
    optimizer = torch.optim.AdamW(made.model.parameters())
    asked: dict[str, Any] = {"optimizer": optimizer, "time_limit": SECONDS, "quiet": True}
    given: tuple[Any, ...] = made.model, made.batch, made.loss_fn
    try:
        bounds: dict[str, Any] = {"margin": 0, "options": False, "verify": False}
        with auto_checkpoint(*given, budget_gb=1000, **(asked | bounds)) as handle:
            request, most = handle.choice.request, handle.choice.peak_bytes
        try:
            replace(request, budget_bytes=1).solve()
        except InfeasibleBudget as error:
            half = (error.smallest_budget_bytes + most) // 2
        budget = half * 100 // 97 + 1
        with auto_checkpoint(*given, budget=f"{budget}B", **asked) as handle:
            result = Result(WORKS, plan=handle.plan.kind)
            differs = Step.run(made).differs(plain)
            peak = _trained(made, optimizer)
    except UnsupportedModel as error:
        return Result(REFUSED, str(error))
    predicted = handle.choice.peak_bytes - handle.choice.request.margin_bytes
    result.rows.append(Row(budget, predicted, peak))
    if differs is not None:
        outcome, result.detail = differs
        untrained = Step.run(make()).differs(plain)
        result.outcome = UNTRAINED if untrained else outcome
    elif peak > budget:
        result.outcome, result.detail = ABOVE, f"{peak} of {budget} bytes"
    elif left := [name for name, own in _attached(made.model).items() if own != before.get(name)]:
        result.outcome, result.detail = LEFT, left[0]
    return result


def _trained(made: Made, optimizer: torch.optim.Optimizer) -> int:
    """The peak of two steps of training, of everything in memory, with every block in them."""
    made.model.zero_grad(set_to_none=True)
    tracker = MemoryTracker()
    with no_skips(made.model), tracker:
        held = [*made.model.parameters(), *made.model.buffers(), *tensors_of(made.batch)]
        for tensor in held:
            tracker.count(tensor)
        del held, tensor
        for _ in range(2):
            _differentiate(made)
            optimizer.step()
    return tracker.peak_bytes


def _attached(model: nn.Module) -> dict[str, list[object]]:
    """What a plan may put on a module: a class, a forward of its own, hooks."""
    return {
        name: [
            type(module).__qualname__,  # that of a parametrized one is its own
            "forward" in vars(module),
            *(len(hooks) for key, hooks in vars(module).items() if key.endswith("_hooks")),
        ]
        for name, module in model.named_modules()
    }


def _spread(trades: Any, plans: int) -> list[Plan]:
    points = trades.points
    chosen = sorted({round(i * (len(points) - 1) / max(plans - 2, 1)) for i in range(plans - 1)})
    return [trades.plan(budget=points[i][0]) for i in chosen]


def _distinct(plans: list[Plan]) -> list[Plan]:
    return list({repr(plan.schedule): plan for plan in reversed(plans)}.values())[::-1]


def _blocks(plan: Plan, made: Made) -> list[str]:
    """The plan's layers that are modules; `measure` wants at least one."""
    names = [name for name, _ in made.model.named_modules() if name]
    return [name for name in plan.layers if name in names] or names[-1:]


def said(error: BaseException) -> str:
    """An exception in one line, with the place that it came from."""
    places = []
    trace = error.__traceback__
    while trace is not None:
        places.append(f"{trace.tb_frame.f_code.co_filename.rpartition('/')[2]}:{trace.tb_lineno}")
        trace = trace.tb_next
    text = re.sub(r"\s+", " ", str(error))[:300]
    return f"{type(error).__name__}: {text} ({places[-1]})"

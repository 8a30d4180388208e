"""What an export is made from, what it gives, and the sentences beside it."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from functools import cached_property

from scheduler.common.errors import InvalidPlan
from scheduler.common.text import format_bytes, format_time
from scheduler.costs.costgraph import CostGraph
from scheduler.costs.keeps import Keeps
from scheduler.plans.plan import Plan
from scheduler.plans.settings import Outcome, blocks_of
from scheduler.report.tables import WIDTH, excess, format_percent
from solvers.chain.problem import Chain


@dataclass(frozen=True)
class Exported:
    """A file for another framework.

    Attributes
    ----------
    target
        What it is for.
    text
        The whole file.
    notes
        Sentences: what the framework does in place of the plan, and what that costs.
    outcome
        The setting that stands in for the plan, replayed; None where the plan itself is in the
        file.
    """

    target: str
    text: str
    notes: tuple[str, ...] = ()
    outcome: Outcome | None = None


@dataclass(frozen=True)
class Source:
    """A plan of a chain, and where they are at hand its costs, whose digest is checked before.

    `stages` are pipeline stages that the blocks are divided into.
    """

    plan: Plan
    costs: CostGraph | None
    stages: int = 1

    @cached_property
    def chain(self) -> Chain:
        """The costs in integers, without which no flags can be chosen."""
        if self.costs is None:
            raise InvalidPlan(
                "flags can only be chosen with the costs that the plan was made for; give them "
                "(--costs COSTS), or save the plan with them: plan.save(FILE, costs=True), which "
                "'solve --model' does"
            )
        return self.costs.to_chain()

    @property
    def room(self) -> int:
        """Bytes that a setting in place of the plan may need: the budget, or else the peak."""
        if self.plan.budget_bytes is None:
            return self.plan.peak_bytes
        return self.plan.budget_bytes - self.plan.reserved_bytes

    def policies(self, target: str) -> dict[int, tuple[str, Keeps]]:
        """The option of each layer that is kept under one, and what it keeps for `target`."""
        found: dict[int, tuple[str, Keeps]] = {}
        for layer, option in self.plan.schedule.options().items():
            name = self.plan.layers[layer]
            if name in self.plan.tiles:
                raise InvalidPlan(
                    f"the plan runs {name!r} in {self.plan.tiles[name]} tiles, which a file for "
                    f"{target} does not do; apply the plan with scheduler.pytorch.apply, or solve "
                    "costs without tiles"
                )
            if name not in self.plan.policies:
                raise InvalidPlan(
                    f"the plan keeps {name!r} with option {option!r}, and does not say which "
                    f"operations' results that keeps, so that a file for {target} cannot do it; "
                    "solve costs from profile(..., options=True) or without options, or export it "
                    "to jax, whose policies go by name"
                )
            found[layer] = (option, self.plan.policies[name])
        return found

    def summary(self) -> list[str]:
        """The plan in a few lines, for the head of a file."""
        plan = self.plan
        return [
            f"Plan of {len(plan.layers)} layers, method {plan.method}, {plan.status}: peak "
            f"{format_bytes(plan.peak_bytes)}, {self._time(plan.time)} a step,",
            f"{format_percent(plan.overhead)} over keeping everything; costs "
            f"{plan.costs_sha256[:12]}.",
        ]

    def loss(self, outcome: Outcome) -> str:
        """What a setting does to time and peak against the plan, as a sentence's end."""
        assert self.costs is not None  # there is an outcome, so it was replayed on them
        time = outcome.ticks / self.costs.ticks_per_unit
        more = outcome.peak_bytes - self.plan.peak_bytes
        memory = (
            "at the same peak"
            if not more
            else f"at a peak of {format_bytes(outcome.peak_bytes)} against "
            f"{format_bytes(self.plan.peak_bytes)}"
        )
        if time == self.plan.time:
            return f"it takes as long as the plan ({self._time(time)} a step), {memory}"
        word, share = "longer", excess(time, self.plan.time)
        if share < 0:
            word, share = "less", -share
        return (
            f"it takes {self._time(time)} a step against the plan's {self._time(self.plan.time)} "
            f"({format_percent(share)} {word}), {memory}"
        )

    def stack(self) -> str:
        """Which layers a framework's flags count."""
        names = [self.chain.layers[i].name for i in blocks_of(self.chain)]
        if len(names) == 1:
            return f"1 block, {names[0]!r}"
        return f"{len(names)} blocks, {names[0]!r} to {names[-1]!r}"

    def _time(self, time: float) -> str:
        return format_time(time, self.plan.time_unit)


def as_comment(sentences: list[str]) -> str:
    """Lines that begin with ``# ``."""
    lines = [line for each in sentences for line in textwrap.wrap(each, WIDTH - 2) or [""]]
    return "\n".join(f"# {line}".rstrip() for line in lines)

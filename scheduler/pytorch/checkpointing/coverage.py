"""What an applied plan wants of each layer, beside what the model does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from scheduler.plans.plan import Plan
from scheduler.pytorch.checkpointing.segment import PlannedBlock
from scheduler.pytorch.model.settings import checkpoints_itself
from scheduler.report.tables import aligned
from solvers.schedule import Item, Keep, first_of, last_of


@dataclass(frozen=True, eq=False)
class Coverage(Mapping[str, str]):
    """Each layer by name: what the plan wants of it.

    Attributes
    ----------
    planned
        ``keep``, ``keep OPTION``, ``checkpoint``, or ``checkpoint A to B``.
    found
        What the model does with it: the same words where it does what is planned, else what is
        in the way.
    calls
        How often each checkpointed layer has been called since with gradients on; a recomputation
        is no call.
    heading
        What is printed above the table.
    """

    planned: dict[str, str]
    found: dict[str, str]
    calls: dict[str, int]
    heading: str = ""

    @classmethod
    def of(cls, plan: Plan, model: nn.Module, placed: Sequence[Any]) -> Coverage:
        """Look at a model, in which blocks were placed, and modules in tiles inside them."""
        planned = {
            plan.layers[i]: _describe(item, plan.layers)
            for item in plan.items
            for i in range(first_of(item), last_of(item) + 1)
        }
        modules = dict(model.named_modules())
        of_layer = {
            name: [each for each in placed if f"{each.name}.".startswith(f"{name}.")]
            for name in planned
        }
        found = {
            name: _obstacle(what, name, modules, of_layer[name]) or what
            for name, what in planned.items()
        }
        calls = {each.name: each.calls for each in placed if isinstance(each, PlannedBlock)}
        return cls(planned, found, calls)

    @property
    def ok(self) -> bool:
        """Whether every layer does what is planned."""
        return self.planned == self.found

    def __getitem__(self, layer: str) -> str:
        return self.planned[layer]

    def __iter__(self) -> Iterator[str]:
        return iter(self.planned)

    def __len__(self) -> int:
        return len(self.planned)

    def __str__(self) -> str:
        rows = [("layer", "planned", "found", "calls")]
        for name, what in self.planned.items():
            same = self.found[name] == what
            called = str(self.calls[name]) if name in self.calls else "–"
            rows.append((name, what, "as planned" if same else self.found[name], called))
        above = [self.heading, ""] if self.heading else []
        return "\n".join([*above, *aligned(rows, left=3)])


def _describe(item: Item, layers: Sequence[str]) -> str:
    if isinstance(item, Keep):
        return "keep" if item.option is None else f"keep {item.option}"
    if item.first == item.last:
        return "checkpoint"
    return f"checkpoint {layers[item.first]} to {layers[item.last]}"


def _obstacle(
    planned: str, name: str, modules: Mapping[str, nn.Module], placed: Sequence[Any]
) -> str | None:
    """What keeps a layer from doing what is planned."""
    module = modules.get(name)
    if module is None:  # an end of the chain, which no module stands for
        return None
    if checkpoints_itself(module):
        return "its own gradient checkpointing is on"
    if planned == "keep":
        return None
    if not placed:
        return "the plan was removed"
    if any(each.module is not modules.get(each.name) for each in placed):
        return "another module has taken its place"
    if not all(each.is_put for each in placed):
        return "its forward was replaced since"
    if getattr(module, "_compiled_call_impl", None) is not None:
        return "compiled from outside since: it runs uncompiled"
    return None

"""One layer of a graph, run forward and backward: what it saves without pinning what it reads.

A kept forward runs on fresh inputs. Whatever autograd saves that lies in the storage of an input or
of the output is packed as a place in it; its backward looks the place up in the copy that is live
by then. Profiling and execution both run layers through here, so that what is measured is what is
executed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge, saved_tensors_hooks

from scheduler.common.errors import UnsupportedModel
from scheduler.pytorch.graph.tensors import Gradients, Key, Table
from scheduler.pytorch.observe.autograd import Sink, Source, gate, saving_nothing


@dataclass(frozen=True)
class Task:
    """A layer, ready to run.

    Attributes
    ----------
    name
        For messages.
    run
        Makes the output from the tensors under `inputs`.
    output
        Key of the output.
    inputs
        Keys of what it reads that may need a gradient.
    parameters
        Those that it reads and that need a gradient.
    several
        Keys among both that more than one edge of the layer's own autograd graph leads to.
    """

    name: str
    run: Callable[[Mapping[Key, torch.Tensor]], torch.Tensor]
    output: int
    inputs: tuple[Key, ...]
    parameters: Mapping[str, nn.Parameter]
    several: frozenset[Key] = frozenset()


class _Place:
    """A saved tensor: itself, or where it lies in a tensor of the table."""

    def __init__(self, tensor: torch.Tensor) -> None:
        # As it is, an output that is saved would hold its own graph, which holds it: a cycle.
        self.tensor: torch.Tensor | None = tensor.detach()
        self.key: Key = 0
        self.geometry: tuple[Any, ...] = ()

    def refer(self, key: Key, base: torch.Tensor) -> bool:
        """Become a place in `base`, if it can be looked up there."""
        mine = self.tensor
        assert mine is not None
        if mine.untyped_storage() is not base.untyped_storage():
            return False
        plain = not (mine.is_conj() or mine.is_neg()) and mine.dtype == base.dtype
        if not plain or mine.layout is not torch.strided:
            return False  # it pins the storage, which the profile counts as saved
        offset = mine.storage_offset() - base.storage_offset()
        self.key, self.geometry = key, (mine.size(), mine.stride(), offset)
        self.tensor = None
        return True

    def look_up(self, table: Table) -> torch.Tensor:
        """The saved tensor."""
        if self.tensor is not None:
            return self.tensor
        base = table.get(self.key)
        size, stride, offset = self.geometry
        return torch.as_strided(base, size, stride, base.storage_offset() + offset)


@dataclass
class Target:
    """Something that a backward makes a gradient of.

    `box` and `root`, where there are several edges to it: a gradient put in the box is the first
    addend, as it would be if the whole model were one autograd graph.
    """

    key: Key
    edge: Any
    box: list[torch.Tensor] = field(default_factory=list)
    root: torch.Tensor | None = None


@dataclass
class Kept:
    """A layer's saved set: its autograd graph, from a root without memory to the targets."""

    root: torch.Tensor
    box: list[torch.Tensor]
    targets: list[Target]
    parameters: Mapping[str, nn.Parameter]
    input_read: bool
    output_read: bool


def keep(task: Task, table: Table) -> tuple[torch.Tensor, Kept]:
    """Run a layer forward and keep what its backward needs beside its inputs and its output."""
    places: list[_Place] = []
    read: set[Key] = set()

    def pack(tensor: torch.Tensor) -> _Place:
        place = _Place(tensor)
        for key in task.inputs:
            if place.refer(key, table.get(key)):
                read.add(key)
                return place
        places.append(place)
        return place

    with torch.enable_grad():
        with saved_tensors_hooks(pack, lambda place: place.look_up(table)):
            handed = _hand_out(task, table)
            made = task.run(handed)
        if not made.requires_grad:
            raise UnsupportedModel(
                f"layer {task.name!r} gives no gradient now, but did when it was traced; trace the "
                "model again"
            )
        output = made.detach()
        box: list[torch.Tensor] = []
        root = Sink.apply(made, box)
        targets = [
            _target(key, handed[key], task) for key in task.inputs if handed[key].requires_grad
        ]
        targets += [_target(name, tensor, task) for name, tensor in task.parameters.items()]
    output_read = False
    for place in places:
        output_read |= place.refer(task.output, output)
    kept = Kept(root, box, targets, task.parameters, any(_is_layer(k) for k in read), output_read)
    return output, kept


def drop(task: Task, table: Table) -> torch.Tensor:
    """Run a layer forward and keep nothing but its output."""
    with torch.enable_grad(), saving_nothing():
        return task.run(_hand_out(task, table)).detach()


def back(kept: Kept, output: Key, gradients: Gradients, table: Table) -> None:
    """Run a layer backward; `gradients` lose that of its output and gain those of its targets.

    Where no gradient has come to the output there is nothing to do.
    """
    gradient = gradients.take(output)
    if gradient is None:
        return
    kept.box.append(gradient)
    del gradient
    roots = [kept.root]
    for target in kept.targets:
        if target.root is not None and (earlier := gradients.take(target.key)) is not None:
            target.box.append(earlier)
            del earlier
            roots.append(target.root)
    with _without_hooks(kept.parameters.values()):
        # By edges: tensors would have to be alive to be differentiated for.
        found = list(torch.autograd.grad(roots, [t.edge for t in kept.targets], allow_unused=True))
    for target in reversed(kept.targets):
        new = found.pop()
        if new is not None:
            gradients.add(target.key, new, table)


def _target(key: Key, tensor: torch.Tensor, task: Task) -> Target:
    target = Target(key, get_gradient_edge(tensor))
    if key in task.several:
        target.root = Sink.apply(tensor, target.box)
    return target


def _hand_out(task: Task, table: Table) -> dict[Key, torch.Tensor]:
    values = {key: table.get(key) for key in task.inputs}
    if not values:
        return values
    # Autograd would hold on to a leaf; the output of a function it does not.
    door = gate(next(iter(values.values())).device)
    return {key: Source.apply(door, [value], None) for key, value in values.items()}


def _is_layer(key: Key) -> bool:
    return isinstance(key, int) and key >= 0


@contextmanager
def _without_hooks(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Keep the parameters' hooks for the whole gradient, which autograd shows them at the end."""
    silenced = [
        (p._backward_hooks, dict(p._backward_hooks)) for p in parameters if p._backward_hooks
    ]
    try:
        for hooks, _ in silenced:
            hooks.clear()
        yield
    finally:
        for hooks, entries in silenced:
            hooks.update(entries)

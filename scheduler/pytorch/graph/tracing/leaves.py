"""Which modules of a model are layers: record its call with these."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
)

from scheduler.common.errors import UnsupportedModel
from scheduler.pytorch.graph.tracing.fx import Arguments, FxTrace
from scheduler.pytorch.graph.tracing.record import CallRecorder
from scheduler.pytorch.model.find import find_blocks, is_pattern
from scheduler.pytorch.model.replace import check_unplanned


def record(model: nn.Module, arguments: Arguments, leaves: Iterable[str] | None) -> FxTrace:
    """Record a model's call; modules in `leaves`, and those of torch.nn, are not looked into.

    A leaf that hands over several tensors is looked into after all. The model runs with gradients
    and saves nothing.

    Raises
    ------
    UnsupportedModel
        A leaf is no module of the model or is not called, or the code does what a plan cannot do
        again.
    """
    names = _leaves(model, leaves)
    opened: frozenset[str] = frozenset()
    while True:
        recorder = CallRecorder(model, frozenset(names), opened)
        try:
            found = recorder.run(arguments)
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            raise UnsupportedModel(
                f"{type(model).__name__} reads values of tensors ({error}), which fake tensors do "
                "not have; trace and profile it with real ones, or name a block that does so in "
                "leaves"
            ) from error
        if not recorder.several:
            break
        opened |= recorder.several
    for name in names:
        if name not in recorder.called:
            raise UnsupportedModel(
                f"leaf {name!r} is never called by the model; name modules whose forward runs"
            )
    return found


def _leaves(model: nn.Module, leaves: Iterable[str] | None) -> list[str]:
    names: list[str] = []
    for name in leaves or ():
        names += find_blocks(model, name if is_pattern(name) else [name])
    for name, module in model.named_modules():
        check_unplanned(module, repr(name or type(model).__name__))
    return names

"""Buffers that a forward changes: those of batch norms, and others, which stop a recomputation."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


def norms_of(modules: Iterable[nn.Module]) -> list[_BatchNorm]:
    """The batch norms among some modules and their parts."""
    parts = [part for module in modules for part in module.modules()]
    return [part for part in parts if isinstance(part, _BatchNorm)]


class Buffers:
    """The buffers that a forward must not change to be run again.

    All but those of batch norms, which `Recomputation` sees to.
    """

    def __init__(self, *modules: nn.Module) -> None:
        # The dicts, not what is in them: a forward may put another tensor in a buffer's place.
        self._of = [
            part._buffers
            for module in modules
            for part in module.modules()
            if not isinstance(part, _BatchNorm)
        ]

    def versions(self) -> list[tuple[int, int]]:
        """Identity and version of each: equal as long as none is changed."""
        return [
            (id(buffer), buffer._version)
            for buffers in self._of
            for buffer in buffers.values()
            if buffer is not None
        ]

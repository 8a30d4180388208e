"""Which modules are layers: the natural blocks of a model, mended where a trace fails."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import nn

from scheduler.pytorch.graph.tracing.fx import Untraceable

_LISTS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
_PARTS = 3
"""A module with parameters in fewer parts than this is no block: a convolution and its norm."""


class Leaves:
    """Names of the modules that become a layer each.

    Every module is one that has no stack of blocks in it, and is in none. Where that cannot be
    traced, those of one class are opened, or taken together, once.

    Parameters
    ----------
    model
        The model.
    wanted
        Names that are to be among them.
    """

    def __init__(self, model: nn.Module, wanted: Iterable[str] = ()) -> None:
        self._modules = dict(model.named_modules())
        self.names = set(_below(model, ""))
        self._tried: set[type] = set()
        for name in wanted:
            for above in [n for n in self.names if name.startswith(f"{n}.")]:
                self._open(above)
            self._close(name)

    def mend(self, error: Untraceable) -> bool:
        """Choose others where a trace failed; whether there are."""
        if error.leaf in self.names and self._once(kind := type(self._modules[error.leaf])):
            for name in [n for n in self.names if type(self._modules[n]) is kind]:
                self._open(name)
            return True
        before = self.names
        for closed in reversed(error.inside):
            kind = type(self._modules[closed])
            self._tried.add(kind)  # it is not opened again
            for name, module in self._modules.items():
                if name and type(module) is kind:
                    self._close(name)
            if self.names != before:
                return True
        return False

    def may_open(self, name: str) -> bool:
        """Whether the leaves of this one's class have not been opened or taken together yet."""
        return name in self.names and type(self._modules[name]) not in self._tried

    def _once(self, kind: type) -> bool:
        if kind in self._tried:
            return False
        self._tried.add(kind)
        return True

    def _open(self, name: str) -> None:
        self.names.discard(name)
        self.names |= set(_below(self._modules[name], f"{name}."))

    def _close(self, name: str) -> None:
        if not any(name.startswith(f"{above}.") for above in self.names):
            self.names = {n for n in self.names if not n.startswith(f"{name}.")} | {name}


def _below(module: nn.Module, prefix: str) -> Iterator[str]:
    for name, child in module.named_children():
        if isinstance(child, (nn.ModuleList, nn.ModuleDict)) or _holds_stack(child):
            yield from _below(child, f"{prefix}{name}.")
        else:
            yield prefix + name


def _holds_stack(module: nn.Module) -> bool:
    return any(isinstance(part, _LISTS) and _is_stack(part) for part in module.modules())


def _is_stack(module: nn.Module) -> bool:
    """Whether its children are blocks, and two of them of one class, or there is one."""
    kinds = [type(child) for child in module.children() if _is_block(child)]
    return len(kinds) == len(list(module.children())) == 1 or len(set(kinds)) < len(kinds)


def _is_block(module: nn.Module) -> bool:
    return sum(bool(part._parameters) for part in module.modules()) >= _PARTS

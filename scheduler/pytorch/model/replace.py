"""The forward of a module: replaced for a while, or by a plan until its handle puts it back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MethodType
from typing import Any, TypeVar

from torch import nn

from scheduler.common.errors import UnsupportedModel

AnyHandle = TypeVar("AnyHandle", bound="RemovableHandle")


class Replaced:
    """What a plan puts in the place of a module's forward; `original` is what it replaced.

    It is copied and pickled with the module.
    """

    original: Callable[..., Any]

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        # Where the forward is not the class's (compiled, say) it lies in the module itself.
        self._own = module.__dict__.get("forward")
        self.original = module.forward

    def __getstate__(self) -> dict[str, Any]:
        # A bound method is copied and pickled by its name, which leads back here.
        return {key: value for key, value in self.__dict__.items() if key != "original"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.original = self._own or MethodType(type(self.module).forward, self.module)

    def put(self) -> None:
        """Take the place of the module's forward."""
        self.module.forward = self

    @property
    def is_put(self) -> bool:
        """Whether it is still the module's forward."""
        return self.module.__dict__.get("forward") is self

    def take_away(self) -> None:
        """Put the module's own forward back."""
        if self.is_put:
            put_back(self.module, self._own)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run in the place of the forward."""
        raise NotImplementedError


@dataclass
class RemovableHandle:
    """What a plan has replaced in a model; a ``with`` block removes it at its end."""

    _placed: list[Any] = field(repr=False)  # of `Replaced`
    _hooks: list[Any] = field(repr=False)  # by which no block is handed a generation cache

    def remove(self) -> None:
        """Put every forward back; harmless when done twice."""
        for forward in self._placed:
            forward.take_away()
        self._placed.clear()
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def __enter__(self: AnyHandle) -> AnyHandle:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()


@contextmanager
def replaced(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Inside, `forward` is the forward of a module."""
    own = module.__dict__.get("forward")
    module.forward = forward
    try:
        yield
    finally:
        put_back(module, own)


def put_back(module: nn.Module, own: Callable[..., Any] | None) -> None:
    """Make a forward a module's again; None: that of its class."""
    if own is None:
        del module.forward
    else:
        module.forward = own


def check_unplanned(module: nn.Module, said: str) -> None:
    """Raise `UnsupportedModel` where a plan is applied to a module, `said` in the message."""
    if isinstance(module.__dict__.get("forward"), Replaced):
        raise UnsupportedModel(
            f"a plan is already applied to {said}; call remove() on its handle first"
        )

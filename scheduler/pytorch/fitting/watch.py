"""What a plan was made for, and one sentence where a step is another."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Collection
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from scheduler.pytorch.model.step import arguments_of
from scheduler.pytorch.observe.dispatch import tensors_of


def watched(model: nn.Module, inputs: Any, idle: Collection[str]) -> list[RemovableHandle]:
    """Warn of steps that are not as planned, in which `idle` parameters have no gradient."""
    told: list[str] = []

    def given(name: str, parameter: torch.Tensor) -> None:
        if not told:
            told.append(name)
            warnings.warn(
                f"{name!r} of {type(model).__name__} has a gradient, which it has not in the step "
                "that was planned, so that what the optimizer holds of it may be above the "
                "budget; call auto_checkpoint with a batch that trains every parameter",
                stacklevel=2,
            )

    named = dict(model.named_parameters())
    return [
        model.register_forward_pre_hook(Watch(model, inputs), with_kwargs=True),
        # Between steps gradients are None, so that a forward sees none.
        *(named[n].register_post_accumulate_grad_hook(partial(given, n)) for n in sorted(idle)),
    ]


class Watch:
    """Warns, once each, of steps in another mode or with a larger batch than was planned for.

    A hook before the model's forward; it is copied and pickled with the model.
    """

    def __init__(self, model: nn.Module, inputs: Any) -> None:
        self._modes = _modes(model)
        self._sizes = _sizes(model, *arguments_of(inputs))

    def __call__(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """See what a step is."""
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return
        if said := self._other_mode(model):
            self._modes = {}
            warnings.warn(said, stacklevel=2)
        if said := self._larger(model, args, kwargs):
            self._sizes = {}
            warnings.warn(said, stacklevel=2)

    def _other_mode(self, model: nn.Module) -> str | None:
        for name, mode in _modes(model).items() if self._modes else ():
            if mode != self._modes.get(name, mode):
                now, then = ("train", "eval") if mode else ("eval", "train")
                return (
                    f"{name or type(model).__name__!r} runs in {now} mode with gradients, and its "
                    f"plan was made in {then} mode, so that the step may need other memory than "
                    "planned; call auto_checkpoint anew in the mode of training, and evaluate "
                    "under torch.no_grad()"
                )
        return None

    def _larger(
        self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> str | None:
        for name, size in _sizes(model, args, kwargs).items() if self._sizes else ():
            if size > (planned := self._sizes.get(name, 0)):
                return (
                    f"{name!r} of this step has {size:,} elements, and the plan of "
                    f"{type(model).__name__} was made for {planned:,}, so that the step may need "
                    "more memory than the budget; call auto_checkpoint with the largest batch"
                )
        return None


def _modes(model: nn.Module) -> dict[str, bool]:
    return {name: module.training for name, module in model.named_modules()}


def _sizes(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, int]:
    """How many elements the tensors of each argument have."""
    given = inspect.signature(type(model).forward).bind_partial(model, *args, **kwargs).arguments
    named = [*given.items()][1:]  # the first is the model itself
    named = [pair for name, value in named for pair in _opened(name, value)]
    return {name: sum(tensor.numel() for tensor in tensors_of(value)) for name, value in named}


def _opened(name: str, value: Any) -> list[tuple[str, Any]]:
    """Keyword arguments that a model takes as they come, each by itself."""
    return [*value.items()] if isinstance(value, dict) else [(name, value)]

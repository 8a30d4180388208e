"""Settings of a model that a plan must know of: checkpoints of its own, blocks left out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from scheduler.common.errors import UnsupportedModel

# Of transformers, which calls the second deprecated; of diffusers; of timm.
_OFF = {
    "activation_checkpointing_disable": "()",
    "gradient_checkpointing_disable": "()",
    "disable_gradient_checkpointing": "()",
    "set_grad_checkpointing": "(False)",
}
_FLAGS = ("gradient_checkpointing", "grad_checkpointing")
_RATES = ("layerdrop", "speech_encoder_layerdrop")


def checkpoints_itself(module: nn.Module) -> bool:
    """Whether a library's own checkpointing is on in a module."""
    return bool(_on(module))


def _on(module: nn.Module) -> list[str]:
    return [flag for flag in _FLAGS if getattr(module, flag, False) is True]


def switch_off_checkpointing(model: nn.Module) -> list[tuple[nn.Module, str]]:
    """Switch a library's own checkpointing off; the modules and flags that were on."""
    on = [(module, flag) for module in model.modules() for flag in _on(module)]
    for module, flag in on:
        setattr(module, flag, False)
    return on


def switch_to_training(model: nn.Module) -> list[tuple[nn.Module, bool]]:
    """Put a model that is in eval mode in train mode; its modules, and the modes they were in."""
    before = [(module, module.training) for module in model.modules()]
    if not model.training:
        model.train()
    return before


def check_own_checkpointing(model: nn.Module) -> None:
    """Raise `UnsupportedModel` where a library's own checkpointing is on in a model."""
    for name, module in model.named_modules():
        if checkpoints_itself(module):
            raise UnsupportedModel(
                f"{name or type(model).__name__!r} has its own gradient checkpointing on; "
                f"{_way_out(model, name)} first"
            )


def _way_out(model: nn.Module, name: str) -> str:
    """How the checkpointing of the module `name` is switched off, by what the model offers."""
    above = ["", *(name[:i] for i, each in enumerate(name) if each == "."), name]
    for each in above:
        for method, arguments in _OFF.items():
            if callable(getattr(model.get_submodule(each), method, None)):
                return f"call {_said(each)}.{method}{arguments}"
    flag = _on(model.get_submodule(name))[0]
    return f"set {_said(name)}.{flag} = False"


def check_skips(model: nn.Module) -> None:
    """Raise `UnsupportedModel` where a model leaves out blocks at random in training: LayerDrop."""
    for said, holder, rate in _rates(model):
        raise UnsupportedModel(
            f"{type(model).__name__} leaves out blocks at random while it trains (LayerDrop, "
            f"{said}.{rate} is {getattr(holder, rate)}), and a plan of a graph runs all of them in "
            f"every step; set {said}.{rate} = 0"
        )


def skips_blocks(model: nn.Module) -> bool:
    """Whether a model leaves out blocks at random in training: LayerDrop."""
    return bool(_rates(model))


@contextmanager
def no_skips(model: nn.Module) -> Iterator[None]:
    """Inside, every block runs."""
    rates = [(holder, rate, getattr(holder, rate)) for _, holder, rate in _rates(model)]
    for holder, rate, _ in rates:
        setattr(holder, rate, 0.0)
    try:
        yield
    finally:
        for holder, rate, value in rates:
            setattr(holder, rate, value)


def _rates(model: nn.Module) -> list[tuple[str, Any, str]]:
    """The rates above 0: of what, as its user writes it, that itself, and the attribute."""
    training = [(name, module) for name, module in model.named_modules() if module.training]
    held: list[tuple[str, Any, str]] = [
        (_said(name), module, "layerdrop")
        for name, module in training
        if isinstance(getattr(module, "layerdrop", None), float | int)
    ]
    # A module that holds the rate does not read it in the configuration, which it comes from.
    for name, module in training if not held else ():
        if (config := getattr(module, "config", None)) is not None:
            held += [(f"{_said(name)}.config", config, rate) for rate in _RATES]
    named = {(id(holder), rate): (said, holder, rate) for said, holder, rate in reversed(held)}
    return [each for each in reversed(named.values()) if getattr(each[1], each[2], None)]


def _said(name: str) -> str:
    """A module as its user writes it."""
    return f"model.{name}" if name else "model"

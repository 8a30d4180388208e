"""Settings of a model that leave no room for a plan: checkpoints of its own, blocks left out."""

from __future__ import annotations

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
    return any(getattr(module, flag, False) is True for flag in _FLAGS)


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
    flag = next(f for f in _FLAGS if getattr(model.get_submodule(name), f, False) is True)
    return f"set {_said(name)}.{flag} = False"


def check_skips(model: nn.Module) -> None:
    """Raise `UnsupportedModel` where a model leaves out blocks at random in training: LayerDrop."""
    training = [(name, module) for name, module in model.named_modules() if module.training]
    held = {
        f"{_said(name)}.layerdrop": module.layerdrop
        for name, module in training
        if isinstance(getattr(module, "layerdrop", None), float | int)
    }
    # A module that holds the rate does not read it in the configuration, which it comes from.
    for name, module in training if not held else ():
        config = getattr(module, "config", None)
        for rate in _RATES:
            held.setdefault(f"{_said(name)}.config.{rate}", getattr(config, rate, None))
    for said, value in held.items():
        if value:
            raise UnsupportedModel(
                f"{type(model).__name__} leaves out blocks at random while it trains (LayerDrop, "
                f"{said} is {value}), and a plan runs all of them in every step; set {said} = 0"
            )


def _said(name: str) -> str:
    """A module as its user writes it."""
    return f"model.{name}" if name else "model"

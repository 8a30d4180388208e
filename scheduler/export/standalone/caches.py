"""Generation caches, which a model makes in training too: no block is handed one.

A cache would keep what a plan drops, and a recomputation would add to it again. The model still has
it, so that whatever it decides by it (masks, positions) stays as it is; it stays empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import copy, deepcopy
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle


def hand_no_caches(
    model: nn.Module,
    blocks: Mapping[str, nn.Module],
    refuse: Callable[[str], Exception],
    *,
    always: bool = False,
) -> list[RemovableHandle]:
    """Let no block be handed a cache while gradients are on, or `always`; handles that undo it.

    A call whose caller hands the model a cache is refused: it would be looked into afterwards.
    """
    if not any(hasattr(module, "config") for module in model.modules()):
        return []  # a model of torch alone makes none
    hooks = [model.register_forward_pre_hook(partial(_refused, refuse), with_kwargs=True)]
    for name, block in blocks.items():
        hook = partial(_without, name, refuse, always)
        hooks.append(block.register_forward_pre_hook(hook, with_kwargs=True))
    return hooks


def check_no_cache(
    args: Iterable[Any], kwargs: Mapping[str, Any], refuse: Callable[[str], Exception]
) -> None:
    """Raise an error where a model is handed a cache."""
    named = {f"argument {place}": value for place, value in enumerate(args, 1)}
    for which, value in {**named, **kwargs}.items():
        if is_cache(value):
            raise refuse(
                f"the model is handed a generation cache ({type(value).__name__}, as {which}), "
                "which a plan would leave empty; leave it out"
            )


def is_cache(value: Any) -> bool:
    """Whether something is a generation cache."""
    return hasattr(value, "get_seq_length") and not isinstance(value, nn.Module)


def _refused(
    refuse: Callable[[str], Exception],
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    if torch.is_grad_enabled():
        check_no_cache(args, kwargs, refuse)


def _without(
    name: str,
    refuse: Callable[[str], Exception],
    always: bool,
    block: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    if always or torch.is_grad_enabled():
        return left_out(name, refuse, block, args, kwargs)
    return None


def left_out(
    name: str,
    refuse: Callable[[str], Exception],
    block: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """The arguments of a block's call without caches; None where nothing is to be changed.

    A recurrent block, whose code goes another way without one, is handed an empty copy.
    """
    caches = [value for value in (*args, *kwargs.values()) if is_cache(value)]
    if not caches and kwargs.get("use_cache") is not True:
        return None
    for cache in caches:
        if _is_filled(cache, block):
            raise refuse(
                f"block {name!r} is handed a generation cache that holds something "
                f"({type(cache).__name__}, as prefix tuning makes it), which a recomputation would "
                "extend again; train without it"
            )
    args, kwargs = for_one_run(block, args, kwargs)
    if "use_cache" in kwargs:
        kwargs["use_cache"] = any(map(is_cache, (*args, *kwargs.values())))
    return args, kwargs


def for_one_run(
    block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with caches that nobody else has, where a block is to be handed any."""
    if not any(map(is_cache, (*args, *kwargs.values()))):
        return args, kwargs
    args = tuple(_in_place_of(value, block) for value in args)
    return args, {key: _in_place_of(value, block) for key, value in kwargs.items()}


def _in_place_of(value: Any, block: nn.Module) -> Any:
    """What a block is handed in the place of a cache, and of anything else itself."""
    if not is_cache(value):
        return value
    index, layers = _index(block), getattr(value, "layers", ())
    if index >= len(layers) or not hasattr(layers[index], "update_recurrent_state"):
        return None
    mine = copy(value)
    mine.layers = [*layers]
    mine.layers[index] = deepcopy(layers[index])
    return mine


def _index(block: nn.Module) -> int:
    """Which layer of a cache is a block's."""
    found = (getattr(part, "layer_idx", None) for part in block.modules())
    return next((number for number in found if isinstance(number, int)), 0)


def _is_filled(cache: Any, block: nn.Module) -> bool:
    """Whether a cache holds something for a block."""
    index = _index(block)
    parts = [getattr(cache, f"{kind}_attention_cache", None) for kind in ("self", "cross")]
    for part in parts if parts[0] is not None else [cache]:
        layers = getattr(part, "layers", None)
        if layers is None:
            if part is not None and (part.get_seq_length() or 0) > 0:
                return True
        elif index < len(layers):
            if hasattr(layer := layers[index], "get_seq_length"):
                if (layer.get_seq_length() or 0) > 0:
                    return True
            elif any(isinstance(v, torch.Tensor) and v.numel() for v in vars(layer).values()):
                return True  # of a recurrent layer
    return False

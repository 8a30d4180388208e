"""Find a model's blocks, and handle their calls: which argument is the activation, which is not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from scheduler.errors import UnsupportedModel
from scheduler.text import did_you_mean, ordinal


def find_blocks(model: nn.Module, blocks: str | Iterable[str] = "auto") -> list[str]:
    """Names of the blocks that a plan may checkpoint, in the order in which they run.

    Parameters
    ----------
    model
        An `nn.Sequential` (its children), or a model with one stack of equal blocks.
    blocks
        "auto", or the names themselves, as `model.named_modules()` gives them.

    Raises
    ------
    UnsupportedModel
        No stack, several equally large ones, or a name that is not a module of the model.
    """
    if not isinstance(blocks, str):
        names = list(blocks)
        modules = dict(model.named_modules())
        for name in names:
            if name not in modules or not name:
                raise UnsupportedModel(
                    f"{type(model).__name__} has no module {name!r}{did_you_mean(name, modules)}"
                )
            if names.count(name) > 1:
                raise UnsupportedModel(f"block {name!r} is named twice; each runs once in a chain")
        if not names:
            raise UnsupportedModel("the list of blocks is empty; name at least one module")
        return names
    if blocks != "auto":
        raise UnsupportedModel(
            f"blocks must be 'auto' or a list of module names, got {blocks!r}; "
            f"for one block write blocks=[{blocks!r}]"
        )
    if isinstance(model, nn.Sequential) and len(model):
        return [name for name, _ in model.named_children()]
    stacks = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, (nn.ModuleList, nn.Sequential)) and _is_stack(module)
    ]
    # A stack inside another stack's block is that block's business.
    outer = [(n, m) for n, m in stacks if not any(n.startswith(f"{o}.") for o, _ in stacks)]
    if not outer:
        raise UnsupportedModel(
            f"no stack of equal blocks was found in {type(model).__name__}; "
            "name the blocks: blocks=['encoder.0', 'encoder.1', ...]"
        )
    sizes = {name: sum(p.numel() for p in module.parameters()) for name, module in outer}
    largest = max(sizes, key=lambda name: sizes[name])
    rivals = [name for name in sizes if name != largest and 2 * sizes[name] > sizes[largest]]
    if rivals:
        raise UnsupportedModel(
            f"{type(model).__name__} has several stacks of blocks ({largest!r}, {rivals[0]!r}); "
            "name the blocks of one: blocks=[...]"
        )
    stack = dict(outer)[largest]
    return [f"{largest}.{name}" for name, _ in stack.named_children()]


def _is_stack(module: nn.ModuleList | nn.Sequential) -> bool:
    """At least two children of one class that have children of their own."""
    kinds = {type(child) for child in module}
    return len(module) > 1 and len(kinds) == 1 and all(list(c.children()) for c in module)


class Replaced:
    """What `apply` puts in the place of a block's forward; `original` is what it replaced."""

    original: Callable[..., Any]


@dataclass(frozen=True)
class Call:
    """The arguments of a block's call, taken apart.

    Attributes
    ----------
    args, kwargs
        As they were given.
    place
        Where among them the activation is: a position or a keyword.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    place: int | str

    @classmethod
    def of(cls, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """Take apart a call: the activation is the first argument that is a tensor.

        Positional arguments come first; a keyword called ``hidden_states`` before other keywords.
        """
        for i, value in enumerate(args):
            if isinstance(value, torch.Tensor):
                return cls(args, kwargs, i)
        for key in sorted(kwargs, key=lambda key: key != "hidden_states"):
            if isinstance(kwargs[key], torch.Tensor):
                return cls(args, kwargs, key)
        raise UnsupportedModel(f"block {name!r} was called without a tensor")

    @property
    def activation(self) -> torch.Tensor:
        """The tensor that the layer before handed over."""
        value = self.args[self.place] if isinstance(self.place, int) else self.kwargs[self.place]
        assert isinstance(value, torch.Tensor)
        return value

    def run(self, forward: Callable[..., Any], activation: torch.Tensor) -> Any:
        """Call `forward` with another activation and everything else as it was."""
        args, kwargs = self.arguments(activation)
        return forward(*args, **kwargs)

    def arguments(self, activation: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments with something else as the activation."""
        if isinstance(self.place, int):
            args = (*self.args[: self.place], activation, *self.args[self.place + 1 :])
            return args, self.kwargs
        return self.args, {**self.kwargs, self.place: activation}

    @property
    def others(self) -> list[Any]:
        """Every leaf of the other arguments, in a fixed order."""
        rest: dict[Any, Any] = {**dict(enumerate(self.args)), **self.kwargs}
        del rest[self.place]
        return tree_leaves(rest)

    def without_activation(self) -> Call:
        """Return the same call without its activation, so that holding it holds nothing large."""
        return Call(*self.arguments(None), self.place)


def same_leaves(mine: list[Any], theirs: list[Any]) -> bool:
    """Are two lists of arguments the same? Tensors must be the same objects."""
    return len(mine) == len(theirs) and all(
        a is b or (not isinstance(a, torch.Tensor) and type(a) is type(b) and a == b)
        for a, b in zip(mine, theirs, strict=True)
    )


def split_output(name: str, output: Any) -> tuple[torch.Tensor, Callable[[torch.Tensor], Any]]:
    """The activation in a block's output, and a function that puts another in its place.

    Raises
    ------
    UnsupportedModel
        The output holds no tensor, or more than one: a plan moves one activation.
    """
    if isinstance(output, torch.Tensor):
        return output, lambda tensor: tensor
    others = [leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor)]
    if isinstance(output, (tuple, list)) and output and output[0] is not None and len(others) == 1:
        kind, rest = type(output), list(output[1:])
        if isinstance(output[0], torch.Tensor):
            return output[0], lambda tensor: kind([tensor, *rest])
    raise UnsupportedModel(
        f"block {name!r} returns {type(output).__name__} with {len(others)} tensors; a block must "
        "hand over exactly one tensor (switch off outputs such as attentions or a cache)"
    )


@contextmanager
def without_cache(model: nn.Module) -> Iterator[None]:
    """A generation cache keeps every layer's keys and values, and is no use in training."""
    changed = switch_off_cache(model)
    try:
        yield
    finally:
        for config in changed:
            config.use_cache = True


def switch_off_cache(model: nn.Module) -> list[Any]:
    """Set ``use_cache = False`` in every configuration that has it on; return those changed."""
    changed: list[Any] = []
    for module in model.modules():
        config = getattr(module, "config", None)
        if getattr(config, "use_cache", False) is True:
            assert config is not None
            config.use_cache = False
            changed.append(config)
    return changed


def clear_gradients(model: nn.Module, inputs: Any) -> None:
    """Set the gradients of the parameters, and of inputs that have one, to None."""
    for tensor in gradient_holders(model, inputs):
        tensor.grad = None


def gradient_holders(model: nn.Module, inputs: Any) -> list[torch.Tensor]:
    """Parameters, and inputs that require a gradient."""
    given = [t for t in tree_leaves(inputs) if isinstance(t, torch.Tensor)]
    return [*model.parameters(), *(t for t in given if t.is_leaf and t.requires_grad)]


def call_model(model: nn.Module, inputs: Any) -> Any:
    """Call a model with a tensor, a tuple of arguments, or a dict of keyword arguments."""
    if isinstance(inputs, torch.Tensor):
        return model(inputs)
    if isinstance(inputs, (tuple, list)):
        return model(*inputs)
    if hasattr(inputs, "keys"):  # a dict, or a tokenizer's batch
        return model(**inputs)
    raise UnsupportedModel(
        "inputs must be a tensor, a tuple of arguments or a dict of keyword arguments, "
        f"got {type(inputs).__name__}"
    )


def loss_of(output: Any, loss_fn: Callable[[Any], Any] | None) -> torch.Tensor:
    """The scalar to differentiate: ``loss_fn(output)``, or the output's own ``loss``."""
    if loss_fn is not None:
        loss = loss_fn(output)
    elif isinstance(output, dict) and "loss" in output:
        loss = output["loss"]
    else:
        loss = getattr(output, "loss", None)
    if not isinstance(loss, torch.Tensor):
        raise UnsupportedModel(
            "no loss: give loss_fn=..., or inputs (such as labels) for which the model's output "
            "has a .loss"
        )
    if loss.numel() != 1:
        raise UnsupportedModel(f"the loss must be a scalar, got shape {tuple(loss.shape)}")
    return loss


def check_unwrapped(model: nn.Module, names: Sequence[str]) -> None:
    """Raise `UnsupportedModel` where something checkpoints the blocks already."""
    for name, module in model.named_modules():
        if getattr(module, "gradient_checkpointing", False) is True:
            raise UnsupportedModel(
                f"{name or type(model).__name__!r} has its own gradient checkpointing on; call "
                "model.gradient_checkpointing_disable() first"
            )
    for position, name in enumerate(names, 1):
        if isinstance(model.get_submodule(name).__dict__.get("forward"), Replaced):
            raise UnsupportedModel(
                f"a plan is already applied to the {ordinal(position)} block, {name!r}; "
                "call remove() on its handle first"
            )

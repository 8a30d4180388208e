"""What people wrap a model in: taken off where a plan runs on what is inside, else refused."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from scheduler.common.errors import UnsupportedModel
from scheduler.pytorch.model.fsdp import is_unit

_BY_FORWARD = (
    "compile its blocks instead, before the plan is applied: "
    "block.forward = torch.compile(block.forward)"
)


def bare(model: nn.Module, *, sharded: bool = True) -> nn.Module:
    """The model inside its wrapper: names are its own, and its steps wait for no other process.

    `sharded`: it may be sharded with fully_shard, whose hooks gather the parameters of whatever is
    called as a module.

    Raises `UnsupportedModel` where it is no model, or wrapped in something that leaves no room for
    what a plan does.
    """
    if not isinstance(model, nn.Module):
        raise UnsupportedModel(
            f"got {type(model).__name__} in the place of the model, which must be a "
            "torch.nn.Module; the model comes before its inputs, and a plan before the model"
        )
    if isinstance(model, nn.parallel.DistributedDataParallel):
        return bare(model.module, sharded=sharded)
    if isinstance(model, nn.DataParallel):
        raise UnsupportedModel(
            "DataParallel copies the model in every step, and the copies would run the plan on the "
            "first device's weights; use DistributedDataParallel"
        )
    if is_compiled(model):
        raise UnsupportedModel(
            "the model is compiled as a whole, which takes checkpoints apart; pass the model "
            f"that is not compiled, and {_BY_FORWARD}"
        )
    for name, module in model.named_modules():
        said = repr(name) if name else "the model"
        if any(each.__name__ == "FullyShardedDataParallel" for each in type(module).__mro__):
            raise UnsupportedModel(
                f"{said} is wrapped in FullyShardedDataParallel, which renames "
                "the blocks and takes their parameters away; pass the model before it is wrapped, "
                "and shard it with fully_shard"
            )
        if is_unit(module) and not sharded:
            raise UnsupportedModel(
                f"{said} is sharded with fully_shard, so its layers cannot be run "
                "one by one; pass the model before it is sharded (fake=True takes no memory for "
                "it), and apply the plan to the sharded one"
            )
    return model


def is_compiled(module: nn.Module) -> bool:
    """Whether a module runs compiled: by its forward, by .compile(), or as a wrapper."""
    return (
        hasattr(module.forward, "_torchdynamo_orig_callable")
        or _is_compiled_in_place(module)
        or hasattr(module, "_orig_mod")
    )


def _is_compiled_in_place(module: nn.Module) -> bool:
    return getattr(module, "_compiled_call_impl", None) is not None


def check_compiled(model: nn.Module, names: Sequence[str]) -> None:
    """Raise `UnsupportedModel` where compiled code leaves no room for checkpoints around blocks."""
    above = {name[:i]: None for name in names for i, each in enumerate(name) if each == "."}
    for name in above:
        if is_compiled(model.get_submodule(name)):
            raise UnsupportedModel(
                f"{name!r}, which has the blocks in it, is compiled as a whole, which takes "
                f"checkpoints apart; {_BY_FORWARD}"
            )
    for name in names:
        if _is_compiled_in_place(model.get_submodule(name)):
            raise UnsupportedModel(
                f"block {name!r} was compiled with its hooks by .compile(), which leaves no room "
                "for a checkpoint around it; compile its forward instead, before the "
                "plan is applied: block.forward = torch.compile(block.forward)"
            )


def check_opened(model: nn.Module, names: Sequence[str]) -> None:
    """Raise `UnsupportedModel` where options would choose among the results of compiled code."""
    for name in names:
        if any(map(is_compiled, model.get_submodule(name).modules())):
            raise UnsupportedModel(
                f"block {name!r} is compiled, or a part of it is, and compiled code does not hand "
                "out the results inside it one by one; profile and solve without options for it"
            )

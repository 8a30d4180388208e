"""Python files that apply a plan with torch alone, or where a framework calls for it."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.common.errors import InvalidPlan
from scheduler.export.exported import Exported, Source
from scheduler.export.python import plan_literals, policy_literals, python_file

__all__ = ["to_accelerate", "to_fsdp", "to_lightning", "to_torch", "torch_file"]


def to_torch(source: Source) -> Exported:
    """`apply_plan(model)`, nested checkpoints included.

    Raises
    ------
    InvalidPlan
        The plan does not say what its options keep.
    """
    title = "The plan below for torch: apply_plan(model), before training."
    return Exported("torch", torch_file("torch", title, source))


def to_accelerate(source: Source) -> Exported:
    """`prepare_with_plan`, in place of ``accelerator.prepare``."""
    title = "The plan below for accelerate: prepare_with_plan(accelerator, model, ...)."
    return Exported("accelerate", torch_file("accelerate", title, source))


def to_lightning(source: Source) -> Exported:
    """A callback that applies the plan when fitting begins."""
    title = "The plan below for Lightning: ApplyPlan is a callback for its Trainer."
    return Exported("lightning", torch_file("lightning", title, source))


def to_fsdp(source: Source) -> Exported:
    """`shard_with_plan`, in place of the calls of ``fully_shard``.

    Raises
    ------
    InvalidPlan
        The plan uses options.
    """
    for layer, option in source.options().items():
        raise InvalidPlan(
            f"the plan keeps {source.plan.layers[layer]!r} with option {option!r}, and fully_shard "
            "gathers a block's parameters by operations of its own among those that the option "
            "counts; solve costs without options"
        )
    title = "The plan below for FSDP2: shard_with_plan(model, mesh=...)."
    return Exported("fsdp", torch_file("fsdp", title, source))


def torch_file(
    target: str, title: str, source: Source, *, notes: Sequence[str] = (), extra: str = ""
) -> str:
    """A file with `apply_plan`, and what the target's own `standalone` module has around it.

    `extra` are further literals.

    Raises
    ------
    InvalidPlan
        The plan does not say what its options keep.
    """
    own = [] if target == "torch" else [target]
    data = f"{plan_literals(source)}{policy_literals(source, target)}{extra}"
    return python_file(title, source, data, ["apply", "plan", "segment", "kept", *own], notes)

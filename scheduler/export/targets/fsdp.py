"""FSDP: every block of the plan one unit of fully_shard, and the plan applied first."""

from __future__ import annotations

from scheduler.common.errors import InvalidPlan
from scheduler.export.exported import Exported, Source
from scheduler.export.targets.torch import python_file

__all__ = ["to_fsdp"]

_TAIL = '''\
def shard_with_plan(model, **options):
    """Apply the plan, then ``fully_shard`` each block of it, and the model.

    `options` are those of fully_shard (mesh, mp_policy, ...). A block that runs again is gathered
    again. The result is that of apply_plan.
    """
    applied = apply_plan(model)
    modules = dict(model.named_modules())
    for unit in [modules[name] for name in LAYERS if name in modules]:
        if any(True for _ in unit.parameters()):
            fully_shard(unit, **options)
    fully_shard(model, **options)
    return applied
'''


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
    text = python_file(
        "fsdp",
        title,
        source,
        imports=("from torch.distributed.fsdp import fully_shard",),
        tail=_TAIL,
    )
    return Exported("fsdp", text)

"""FSDP: every segment of the plan one unit of fully_shard, and the plan applied first."""

from __future__ import annotations

from scheduler.export.exported import Exported, Source
from scheduler.export.torchfile import python_file

__all__ = ["to_fsdp"]

_TAIL = '''\
def shard_with_plan(model, **options):
    """Apply the plan, then ``fully_shard`` each segment, each kept block, and the model.

    A segment runs from its first block, so that its parameters must be gathered together: its
    blocks are one unit. `options` are those of fully_shard (mesh, mp_policy, ...). The result is
    that of apply_plan.
    """
    applied = apply_plan(model)
    modules = dict(model.named_modules())
    segments = list(dict.fromkeys(block.segment for block in applied.blocks))
    inside = {block.name for block in applied.blocks}
    units = [[block.module for block in segment.blocks] for segment in segments]
    units += [[modules[n]] for n in LAYERS if n in modules and n not in inside]
    for unit in units:
        if any(True for module in unit for _ in module.parameters()):
            fully_shard(unit if len(unit) > 1 else unit[0], **options)
    fully_shard(model, **options)
    return applied
'''


def to_fsdp(source: Source) -> Exported:
    """`shard_with_plan`, in place of the calls of ``fully_shard``."""
    title = "The plan below for FSDP2: shard_with_plan(model, mesh=...)."
    note = (
        "A segment of several blocks is gathered as one unit, so that its parameters are whole "
        "at the same time: that is memory the plan does not count; reserve it.",
    )
    wide = any(segment.last > segment.first for segment in source.segments)
    text = python_file(
        "fsdp",
        title,
        source,
        notes=note if wide else (),
        imports=("from torch.distributed.fsdp import fully_shard",),
        tail=_TAIL,
    )
    return Exported("fsdp", text, note if wide else ())

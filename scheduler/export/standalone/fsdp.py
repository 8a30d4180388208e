"""For FSDP2: the plan, then each of its blocks a unit of fully_shard."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.distributed.fsdp import fully_shard

from scheduler.export.standalone.apply import Applied, apply_plan
from scheduler.export.standalone.plan import LAYERS


def shard_with_plan(model: nn.Module, **options: Any) -> Applied:
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

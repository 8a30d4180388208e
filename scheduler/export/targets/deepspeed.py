"""DeepSpeed: a complete activation_checkpointing section.

The section switches features of ``deepspeed.checkpointing.checkpoint``; which layers call it is
the model's business. What stands for the plan is a number of checkpoints, the stack cut evenly.
"""

from __future__ import annotations

import json

from scheduler.export.exported import Exported, Source
from scheduler.plans.settings import Setting, best, blocks_of, cut_settings, even


def to_deepspeed(source: Source) -> Exported:
    """The section with the best number of equal checkpoints, and what it loses."""
    blocks = blocks_of(source.chain)
    cut = cut_settings("deepspeed: number_checkpoints", even, blocks, len(blocks))
    settings = [Setting("no checkpoints", ()), *cut]
    reserved = source.plan.reserved_bytes
    outcome = best(source.chain, settings, source.room, family="deepspeed", reserved=reserved)
    number = outcome.setting.number
    section = {
        "activation_checkpointing": {
            "partition_activations": False,
            "cpu_checkpointing": False,
            "contiguous_memory_optimization": False,
            "number_checkpoints": number,
            "synchronize_checkpoint_boundary": False,
            "profile": False,
        }
    }
    done = f"cut into {number} equal checkpoints" if number else "not checkpointed"
    notes: tuple[str, ...] = (
        "The section alone changes nothing: DeepSpeed checkpoints what the model's code passes to "
        "deepspeed.checkpointing.checkpoint, and models of transformers pass nothing; "
        "number_checkpoints is how many such calls the code makes.",
        f"DeepSpeed's section does not choose layers. With {source.stack()}, {done}, "
        f"{source.loss(outcome)}.",
        "For the plan itself use the torch export, and no deepspeed.checkpointing in the model.",
    )
    if source.plan.tiles:
        notes += (
            "Tiles are no setting of DeepSpeed's: a model's code calls its TiledMLP and "
            "TiledFusedLogitsLoss (deepspeed.runtime.sequence_parallel.ulysses_sp). The loss here "
            "is of a model without them.",
        )
    return Exported("deepspeed", json.dumps(section, indent=2) + "\n", notes, outcome)

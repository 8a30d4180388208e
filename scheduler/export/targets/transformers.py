"""transformers: a Trainer callback with the plan, and the nearest setting of its own flag."""

from __future__ import annotations

from scheduler.common.errors import InfeasibleBudget
from scheduler.common.text import format_bytes
from scheduler.export.exported import Exported, Source
from scheduler.export.python import literal
from scheduler.export.targets.torch import torch_file
from scheduler.plans.settings import Outcome, best, blocks_of, checkpointed, every_settings

__all__ = ["to_transformers"]


def to_transformers(source: Source) -> Exported:
    """A callback that applies the plan, a flag for each layer, and the nearest every_n_layers."""
    outcome, notes = nearest_frequency(
        source, "transformers: every_n_layers", "every_n_layers", start=0
    )
    inside = set(checkpointed(source.plan.items))
    layers = enumerate(source.plan.layers)
    flags = literal({name: str(i in inside) for i, name in layers})
    extra = f"# Is the layer inside a checkpoint?\nIS_CHECKPOINTED = {flags}\n"
    if outcome is not None:
        kwargs = f'{{"every_n_layers": {outcome.setting.number}}}'
        extra += (
            "# Not the plan: the nearest that TrainingArguments can say (transformers 5.24).\n"
            "NEAREST = {\n"
            '    "activation_checkpointing": True,\n'
            f'    "activation_checkpointing_kwargs": {kwargs},\n'
            "}\n"
        )
    title = "The plan below for transformers: ApplyPlan is a callback for its Trainer."
    text = torch_file("transformers", title, source, notes=notes, extra=extra)
    return Exported("transformers", text, notes, outcome)


def nearest_frequency(
    source: Source, text: str, flag: str, *, start: int
) -> tuple[Outcome | None, tuple[str, ...]]:
    """The best one-block-in-n setting, and what it loses; None where none fits or without costs."""
    if source.costs is None:
        return None, (f"Without the plan's costs the nearest {flag} is not known.",)
    blocks = blocks_of(source.chain)
    every = every_settings(text, blocks, range(1, len(blocks) + 1), start=start)
    try:
        outcome = best(source.chain, every, source.room, family=flag)
    except InfeasibleBudget as error:
        return None, (
            f"No {flag} fits the {format_bytes(source.room)} of the plan: it counts "
            f"{source.stack()}, and the least that it can reach is "
            f"{format_bytes(error.smallest_budget_bytes)}, set by {error.set_by}.",
        )
    return outcome, (
        f"The nearest that {flag} can express is {outcome.setting.number} (it counts "
        f"{source.stack()}): {source.loss(outcome)}.",
    )

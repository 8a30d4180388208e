"""How each kind of plan is applied to a model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import overload

from torch import nn

from scheduler.plans.lengths import PlansByLength, check_plan
from scheduler.plans.plan import Plan
from scheduler.pytorch.checkpointing.apply import Handle, apply_chain
from scheduler.pytorch.checkpointing.followed import ByLength, FollowedModel
from scheduler.pytorch.checkpointing.kind import within
from scheduler.pytorch.graph.apply import apply_layers
from scheduler.pytorch.graph.trace import is_traced
from scheduler.pytorch.model.wrappers import bare

_ENDS = ("embedding", "head", "loss")
"""What a chain of blocks calls what runs before and after them; in brackets where a module is."""


@overload
def apply(plan: Plan, model: nn.Module, blocks: str | Iterable[str] = "auto") -> Handle: ...


@overload
def apply(
    plan: PlansByLength, model: nn.Module, blocks: str | Iterable[str] = "auto"
) -> FollowedModel[Handle]: ...


def apply(
    plan: Plan | PlansByLength, model: nn.Module, blocks: str | Iterable[str] = "auto"
) -> Handle | FollowedModel[Handle]:
    """Train a model as `plan` says.

    Of a chain each segment runs through `torch.utils.checkpoint` (non-reentrant, nested where the
    plan nests), by the replaced forwards of its blocks: the model calls each in its place, with
    arguments of its own, and hooks on it run then, not when it is recomputed. Between two blocks
    of a segment the model may do what it likes but change the activation. Of a graph the model's
    forward is replaced, and runs layer by layer: its code is traced in the first step, and again
    for a batch of another form, and not run otherwise. Parameter names, hooks and the state dict
    stay as they were. Without gradients everything runs as before. A generation cache that the
    model makes stays empty. The model can be copied, pickled and saved whole with the plan on it.

    Of plans by length each call with gradients runs under that of the next longer point, by the
    token ids, labels and masks that the model is handed (see `PlansByLength.length_for`); a longer
    one is refused before it runs.

    Parameters
    ----------
    plan
        A plan for costs whose layers carry the blocks' module names, as `profile` gives them, and
        `scheduler.memory.costs_from_shape` for transformers' models; or plans by length.
    model
        The model that was profiled, or one with the same blocks; before or after `fully_shard`,
        also inside DistributedDataParallel or PEFT's model. Compile its blocks before, by their
        forwards.
    blocks
        What `profile` was given: "auto", where the plan must have every block of a stack, or a
        pattern or names, which must be those of the plan's blocks. A graph's plan needs none.

    Returns
    -------
    Handle
        ``handle.remove()`` undoes everything; also a context manager. Of plans by length a
        `FollowedModel`, whose ``handle`` is that of the last step.

    Raises
    ------
    InvalidPlan
        The plan's layers are not the model's blocks, it nests deeper than Python goes, is one of
        a compute graph, or does not say what its options keep. Of a graph's plan some of this can
        only be seen in the first step.
    UnsupportedModel
        The model checkpoints already, or is wrapped in something that the plan does not survive;
        or a pattern of blocks matches nothing.
    """
    check_plan(plan, "apply(plan, model)")
    model = bare(model)
    if isinstance(plan, PlansByLength):
        return _by_length(plan, model, blocks if isinstance(blocks, str) else list(blocks))
    plan = within(plan, model)
    if plan.kind == "layer graph" or (plan.kind == "chain" and _is_of_a_trace(plan, model)):
        return apply_layers(plan, model)
    return apply_chain(plan, model, blocks)


def _by_length(
    plans: PlansByLength, model: nn.Module, blocks: str | list[str]
) -> FollowedModel[Handle]:
    for plan in plans.values():
        apply(plan, model, blocks).remove()  # what is refused is refused before anything runs
    return FollowedModel(model, ByLength(plans, model, blocks, apply))


def _is_of_a_trace(plan: Plan, model: nn.Module) -> bool:
    """Whether a chain is a graph without branches: some of its layers are neither blocks nor ends.

    They are operations, the second call of a module, several of these together, or its own loss.
    """
    modules = dict(model.named_modules())
    ends = {f"({name})" if name in modules else name for name in _ENDS}
    others = [name for name in plan.layers if name not in modules and name not in ends]
    return bool(others) and all(is_traced(name, modules) for name in others)

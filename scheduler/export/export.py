"""The targets that a plan can be exported to, and the one way to each of them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from scheduler.common.errors import InvalidPlan, SchedulerError
from scheduler.common.text import did_you_mean, shown
from scheduler.costs.costgraph import CostGraph
from scheduler.costs.readers import as_any_costs
from scheduler.export.exported import Exported, Source
from scheduler.plans.lengths import check_plan
from scheduler.plans.plan import Plan

TARGETS = {
    "torch": "a Python file that needs torch alone: apply_plan(model)",
    "transformers": "a Python file with a Trainer callback, and the nearest every_n_layers",
    "lightning": "a Python file with a Lightning callback",
    "accelerate": "a Python file: apply the plan, then accelerator.prepare",
    "fsdp": "a Python file: each block a unit of fully_shard, and the plan on them",
    "torchtitan": "a Python file with a policy object, and the nearest selective_ac_option",
    "megatron": "the best recompute flags within the budget",
    "deepspeed": "an activation_checkpointing section",
    "axolotl": "the best flags within the budget, checkpoints and tiles (ALST)",
    "jax": "a Python file: jax.checkpoint and flax nn.remat, and the nearest MaxText remat_policy",
    "json": "the plan file",
    "json-schema": "what a plan file may say, as a JSON Schema",
}
"""What each target gives."""

_GRAPH_TARGETS = ("json", "json-schema")


@runtime_checkable
class Exports(Protocol):
    """A plan that knows targets of its own: a pipeline's."""

    def export(self, target: str, costs: object = None) -> Exported:
        """The plan as a file for a target."""


def export(plan: Plan | Exports, target: str, costs: object = None, *, stages: int = 1) -> Exported:
    """A plan as a file for another framework.

    Parameters
    ----------
    plan
        Of a chain; a graph's can only be written as ``json``. A pipeline's
        (`scheduler.pipeline.PipelinePlan`) goes to ``megatron``, ``torchtitan`` and ``json``.
    target
        One of `TARGETS`.
    costs
        Any form of the costs that the plan was made for; a plan that was just solved carries its
        own. Needed by targets that choose flags.
    stages
        For ``megatron``: pipeline stages that the blocks are divided into.

    Returns
    -------
    Exported
        ``.text`` is the file; ``.notes`` say what the framework does in place of the plan where
        it cannot express it, and what that costs in time and peak.

    Raises
    ------
    SchedulerError
        There is no such target, or `stages` is no number of stages.
    InvalidPlan
        The plan does not belong to the costs, is one of a graph, or needs what the target has not.
    InfeasibleBudget
        Nothing that the target can express fits the plan's budget.
    """
    if isinstance(plan, Exports):
        return plan.export(target, costs)
    check_plan(plan, "export(plan, target)", Plan)
    if not isinstance(target, str) or target not in TARGETS:
        hint = did_you_mean(target, TARGETS)
        *names, last = TARGETS
        raise SchedulerError(
            f"unknown target {shown(target)}; choose {', '.join(names)} or {last}{hint}"
        )
    if not isinstance(stages, int) or isinstance(stages, bool) or stages < 1:
        raise SchedulerError(f"stages must be a number of pipeline stages, got {shown(stages)}")
    if stages > 1 and target != "megatron":
        raise SchedulerError(f"pipeline stages are for target 'megatron', not {target!r}")
    if plan.kind != "chain" and target not in _GRAPH_TARGETS:
        raise InvalidPlan(
            f"this is the plan of a graph, whose steps {target!r} has no words for; export it to "
            "json or json-schema, or run it with scheduler.pytorch.apply_graph"
        )
    at_hand = _costs(plan, costs)
    # The modules load where they are used.
    module = importlib.import_module(f"scheduler.export.targets.{_MODULES.get(target, 'torch')}")
    make: Callable[[Source], Exported] = getattr(module, f"to_{target.replace('-', '_')}")
    return make(Source(plan, at_hand, stages))


_MODULES = {"json-schema": "json"} | {
    target: target for target in ("megatron", "deepspeed", "axolotl", "jax", "json")
}
"""In which a target is, where that is not ``torch``."""


def _costs(plan: Plan, given: object) -> CostGraph | None:
    """The costs of the plan, on which it was replayed; None where there are none."""
    costs = plan._costs if given is None else given
    if costs is None:
        return None
    read = as_any_costs(costs)
    plan.replay(read)
    return read if isinstance(read, CostGraph) else None

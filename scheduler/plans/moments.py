"""What a plan does, one action after another, as pictures and tables need it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from scheduler.costs.readers import Costs, as_any_costs, as_costs
from scheduler.planning.certify import BUG
from scheduler.plans.graphplan import GraphPlan, problem_of
from scheduler.plans.plan import Plan
from solvers.graph.problem import ComputeGraph
from solvers.graph.replay import LayerBackward
from solvers.graph.solution import Graph, Steps, replay_steps
from solvers.problem import Chain
from solvers.replay import replay
from solvers.schedule import Backward, Forward, Item

__all__ = ["Moment", "chain_moments", "costs_of", "graph_moments", "moments_of"]


class Moment(NamedTuple):
    """One action of a step, from its replay.

    Attributes
    ----------
    kind
        "first" (a first run), "again" (recomputation), "back" (backward), or "" for what takes
        neither time nor memory.
    layer
        Index of the layer or node; -1: the input of the chain.
    ticks
        How long it takes, in the integer unit of the costs.
    during_bytes, after_bytes
        Live at its worst moment, and after it.
    again_ticks
        Of its ticks, those that make again what an option left out.
    """

    kind: str
    layer: int
    ticks: int
    during_bytes: int
    after_bytes: int
    again_ticks: int = 0


def costs_of(plan: Plan, costs: object = None) -> Costs:
    """The costs that a plan was made for, as given or as it carries them.

    Raises
    ------
    InvalidPlan
        As `Plan.replay`: the plan is executed, and its figures are compared with the replay's.
    """
    plan.replay(costs)
    return as_any_costs(plan._costs if costs is None else costs)


def moments_of(plan: Plan, costs: Costs) -> list[Moment]:
    """Every action of one step of the plan on its costs; `costs` are those of `costs_of`."""
    if isinstance(plan, GraphPlan):
        moments, ticks = graph_moments(problem_of(costs), plan.steps)
    else:
        moments, ticks = chain_moments(as_costs(costs).to_chain(), plan.items)
    if sum(moment.ticks for moment in moments) != ticks:
        raise RuntimeError(f"the actions of a plan do not add up to its replay: {BUG}")
    return moments


def chain_moments(chain: Chain, items: Sequence[Item]) -> tuple[list[Moment], int]:
    """Every action of the plan `items`, and the time of its replay in ticks."""
    done = replay(chain, items, keep_steps=True)
    options: dict[int, str | None] = {}  # of the layers that have run, the last way to keep them
    moments = []
    for step in done.steps:
        action, kind, ticks, again = step.action, "", 0, 0
        if isinstance(action, Forward):
            layer = chain.layers[action.layer]
            kind = "again" if action.layer in options else "first"
            options[action.layer] = action.option
            ticks = layer.recompute_time if action.ends_body else layer.forward_time
        elif isinstance(action, Backward):
            layer = chain.layers[action.layer]
            kind = "back"
            again = layer.way(options[action.layer]).recompute_time
            ticks = layer.backward_time + again
        moments.append(
            Moment(kind, action.layer, ticks, step.during_bytes, step.after_bytes, again)
        )
    return moments, done.time


def graph_moments(graph: Graph, steps: Steps) -> tuple[list[Moment], int]:
    """Every step of a plan of a graph, and the time of its replay in ticks."""
    done = replay_steps(graph, steps)
    seen: set[int] = set()
    moments = []
    for step, moment in zip(steps, done.moments, strict=True):
        layer = step if isinstance(step, int) else step.layer
        if isinstance(graph, ComputeGraph):
            node = graph.nodes[layer]
            is_back, ticks = node.backward, node.time
        else:
            is_back = isinstance(step, LayerBackward)
            one = graph.layers[layer]
            ticks = one.backward_time if is_back else one.forward_time
        # A node of a backward part may be computed again too; a layer's backward runs once.
        is_again = layer in seen and not isinstance(step, LayerBackward)
        kind = "again" if is_again else "back" if is_back else "first"
        seen.add(layer)
        moments.append(Moment(kind, layer, ticks, moment.during_bytes, moment.after_bytes))
    return moments, done.time

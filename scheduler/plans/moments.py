"""What a plan does, one action after another, as pictures and tables need it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from scheduler.common.errors import BUG
from solvers.graph.problem import ComputeGraph
from solvers.graph.replay import LayerBackward
from solvers.graph.solution import Graph, Steps, replay_steps
from solvers.problem import Chain
from solvers.replay import replay
from solvers.schedule import Backward, Forward, Item

__all__ = ["Moment", "chain_moments", "graph_moments"]


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


def chain_moments(chain: Chain, items: Sequence[Item]) -> list[Moment]:
    """Every action of the plan `items`."""
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
    return _complete(moments, done.time)


def graph_moments(graph: Graph, steps: Steps) -> list[Moment]:
    """Every step of a plan of a graph."""
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
    return _complete(moments, done.time)


def _complete(moments: list[Moment], ticks: int) -> list[Moment]:
    if sum(moment.ticks for moment in moments) != ticks:
        raise RuntimeError(f"the actions of a plan do not add up to its replay: {BUG}")
    return moments

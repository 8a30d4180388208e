"""A graph's plan as torch executes it: checked, with what to free after each step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from scheduler.common.errors import InvalidPlan
from scheduler.plans.plan import Plan
from scheduler.pytorch.graph.traced import TracedGraph
from scheduler.pytorch.model.kind import check_kind
from solvers.graph.problem import LayerGraph
from solvers.graph.schedule import Actions, LayerAction
from solvers.problem import Layer
from solvers.schedule import Backward, Forward, IllegalPlan


@dataclass(frozen=True)
class Script:
    """A plan as it is executed.

    Attributes
    ----------
    actions
        Without those of a loss outside the model.
    turn
        How many of them belong to the forward.
    freed
        For each, the layers whose output has its last use there.
    again
        Layers that run forward more than once.
    """

    actions: tuple[LayerAction, ...]
    turn: int
    freed: tuple[tuple[int, ...], ...]
    again: frozenset[int]

    @classmethod
    def of(cls, plan: Plan | Sequence[LayerAction], graph: TracedGraph) -> Script:
        """Check a plan.

        Raises
        ------
        InvalidPlan
            It cannot be executed, or it is not of class "forward".
        """
        n, actions = len(graph), _actions(plan, graph)
        outside = [a for a in actions if a.layer == n]
        if outside and actions[n : n + 2] != [Forward(n, True), Backward(n)]:
            raise InvalidPlan(
                f"layer {n} is the loss outside the model, which must run forward after all others "
                "and backward before them, kept"
            )
        actions = [a for a in actions if a.layer != n]
        try:
            _costless(graph).replay(Actions(tuple(actions)))
        except IllegalPlan as error:
            raise InvalidPlan(f"the plan is not one for this {graph.kind}: {error}") from error
        first = [a.layer for a in actions[:n] if isinstance(a, Forward)]
        backwards = [a.layer for a in actions if isinstance(a, Backward)]
        if first != list(range(n)) or backwards != list(reversed(range(n))):
            raise InvalidPlan(
                "the plan is not of class 'forward' (each forward once in order, then each "
                "backward in reverse order with forwards between them), which is what torch can "
                "run; solve with optimal_in='forward'"
            )
        later = [a.layer for a in actions[n:] if isinstance(a, Forward)]
        return cls(tuple(actions), n, _freed(graph, actions), frozenset(later))


def _actions(plan: Plan | Sequence[LayerAction], graph: TracedGraph) -> list[LayerAction]:
    """The plan's actions in the trace's numbering; a loss outside the model comes last."""
    if not isinstance(plan, Plan):
        return list(plan)
    check_kind(plan, "layer graph")
    position = {name: i for i, name in enumerate(graph.names)}
    others = [name for name in plan.layers if name not in position]
    if len(plan.layers) - len(others) < len(graph) or len(others) > 1:
        name = (others or [next(n for n in graph.names if n not in plan.layers)])[0]
        raise InvalidPlan(
            f"the plan's layers are not those of the trace of {graph.kind} ({name!r} is only in "
            "one of them); it was made for another model, or for other leaves"
        )
    return [
        replace(step, layer=position.get(plan.layers[step.layer], len(graph)))
        for step in plan.steps
    ]


def _freed(graph: TracedGraph, actions: list[LayerAction]) -> tuple[tuple[int, ...], ...]:
    end = list(range(len(actions)))  # of the copy that each forward makes
    copy: dict[int, int] = {}
    for step, action in enumerate(actions):
        node = graph.nodes[action.layer]
        forward = isinstance(action, Forward)
        read = list(node.inputs) if forward or node.input_saved else []
        if not forward and node.output_saved:
            read.append(action.layer)
        for u in read:
            end[copy[u]] = step
        if forward:
            copy[action.layer] = step
    freed: list[list[int]] = [[] for _ in actions]
    for made, step in enumerate(end):
        if isinstance(actions[made], Forward):
            freed[step].append(actions[made].layer)
    return tuple(tuple(layers) for layers in freed)


def _costless(graph: TracedGraph) -> LayerGraph:
    """Only what decides whether a plan is legal."""
    layers = tuple(
        Layer(
            *(node.name, 0, 0, 0, 0, 0),
            input_saved=node.input_saved,
            output_saved=node.output_saved,
            recomputable=node.recomputable,
        )
        for node in graph.nodes
    )
    return LayerGraph(layers, graph.edges)

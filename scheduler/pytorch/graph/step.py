"""A graph's plan as torch executes it, and one training step under it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import nn

from scheduler.common.errors import InvalidPlan, UnsupportedModel
from scheduler.export.standalone.state import BlockState, Snapshot
from scheduler.plans.plan import Plan
from scheduler.pytorch.checkpointing.kind import check_kind
from scheduler.pytorch.checkpointing.recompute import Recomputation
from scheduler.pytorch.graph.layer import Kept, back, drop, keep
from scheduler.pytorch.graph.tensors import Gradients, Key
from scheduler.pytorch.graph.traced import GraphNode, Session, TracedGraph
from scheduler.pytorch.graph.tracing.fx import Arguments, cast, casting
from scheduler.pytorch.model.rng import GENERATORS, torch_generators
from solvers.graph.problem import LayerGraph
from solvers.graph.schedule import Actions, LayerAction
from solvers.problem import Layer
from solvers.schedule import Backward, Forward, IllegalPlan


@dataclass(frozen=True)
class Script:
    """A plan as it is executed on a graph, without a loss outside the model.

    The first `turn` actions are the forward; `freed` has, for each action, the layers whose output
    has its last use there; layers in `again` run forward more than once.
    """

    graph: TracedGraph
    actions: tuple[LayerAction, ...]
    turn: int
    freed: tuple[tuple[int, ...], ...]
    again: frozenset[int]

    @classmethod
    def of(cls, plan: Plan | Sequence[LayerAction], graph: TracedGraph) -> Script:
        """Check a plan; `InvalidPlan` where it is not one, or not of class "forward"."""
        n, actions = len(graph), _actions(plan, graph)
        outside = [a for a in actions if a.layer == n]
        if outside and actions[n : n + 2] != [Forward(n, True), Backward(n)]:
            raise InvalidPlan(
                f"layer {n} is the loss outside the model, which must run forward after all others "
                "and backward before them, kept; solve for another budget"
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
        return cls(graph, tuple(actions), n, _freed(graph, actions), frozenset(later))


def _actions(plan: Plan | Sequence[LayerAction], graph: TracedGraph) -> list[LayerAction]:
    """The plan's actions in the trace's numbering; a loss outside the model comes last.

    Where a graph has no branches its costs are a chain, and so is their plan.
    """
    if not isinstance(plan, Plan):
        return list(plan)
    check_kind(plan, "layer graph", "chain")
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
        for step in plan.schedule.actions(len(plan.layers))
        if isinstance(step, (Forward, Backward))
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


class PlannedStep:
    """One training step under a plan."""

    def __init__(
        self,
        script: Script,
        model: nn.Module,
        arguments: Arguments,
        counts: Counter[str],
    ) -> None:
        self.script = script
        self.graph = script.graph
        self.counts = counts
        self.session = Session(script.graph, model, arguments)
        self.gradients = Gradients()
        self.kept: dict[int, Kept] = {}
        self.done = False
        wanted = [-1 - k for k, t in enumerate(arguments.tensors) if t.requires_grad]
        names = [n for n, p in model.named_parameters() if p.requires_grad]
        self.leaves: list[Key] = [*wanted, *names]
        tensors = [*arguments.tensors, *model.parameters()]
        self.generators = [*GENERATORS, *torch_generators({t.device for t in tensors})]
        self.casting = casting(arguments.tensors)
        self.repetitions: dict[int, tuple[Recomputation, BlockState, Snapshot | None]] = {}

    def forward(self) -> torch.Tensor:
        """Run the forward part; the last output."""
        last = self.script.turn - 1
        for step in range(last):
            self._forward(step)
            self._free(step)
        output = self._forward(last)
        self._free(last)
        return output

    def receive(self, gradient: torch.Tensor) -> None:
        """Take the gradient of the model's output."""
        self.gradients.receive(len(self.graph) - 1, gradient)

    def backward(self) -> list[torch.Tensor | None]:
        """Run the rest; the gradients of the leaves."""
        if self.done:
            raise UnsupportedModel(
                "a second backward through one forward: a plan frees what it saves as it goes, so "
                "retain_graph=True is of no use; run the model again"
            )
        self.done = True
        for step in range(self.script.turn, len(self.script.actions)):
            action = self.script.actions[step]
            if isinstance(action, Forward):
                self._forward(step)
            else:
                i = action.layer
                back(self.kept.pop(i), i, self.gradients, self.session.table)
            self._free(step)
        self.session.close()
        return [self.gradients.take(key) for key in self.leaves]

    def _free(self, step: int) -> None:
        for u in self.script.freed[step]:
            self.session.table.drop(u)

    def _forward(self, step: int) -> torch.Tensor:
        action = self.script.actions[step]
        assert isinstance(action, Forward)
        i = action.layer
        self.session.advance(i)
        with self._repeating(i), cast(self.casting):
            task = self.session.task(i)
            self.counts[task.name] += 1
            if action.keep:
                output, kept = keep(task, self.session.table)
                self._check(self.graph.nodes[i], kept)
                self.kept[i] = kept
            else:
                output = drop(task, self.session.table)
        self.session.put(i, output)
        return output

    def _check(self, node: GraphNode, kept: Kept) -> None:
        if kept.input_read > node.input_saved or kept.output_read > node.output_saved:
            raise UnsupportedModel(
                f"layer {node.name!r} saves more of its inputs or of its output than when the "
                "model was traced; trace it again"
            )

    @contextmanager
    def _repeating(self, i: int) -> Iterator[None]:
        """Let a layer draw what it drew the first time."""
        if i not in self.script.again:
            yield
            return
        if i not in self.repetitions:
            name = self.graph.nodes[i].name
            modules = [self.session.model.get_submodule(n) for n in self.graph.nodes[i].modules]
            state = BlockState(modules, lambda what: UnsupportedModel(f"layer {name!r} {what}"))
            before = state.before()
            repetition = Recomputation(self.generators)
            with repetition.forward():
                yield
            self.repetitions[i] = repetition, state, state.after(before)
            return
        repetition, state, changed = self.repetitions[i]
        with repetition, state.repeated(changed):
            yield

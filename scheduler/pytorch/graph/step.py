"""One training step under the plan of a graph."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from scheduler.common.errors import UnsupportedModel
from scheduler.pytorch.checkpointing.recompute import Recomputation
from scheduler.pytorch.graph.layer import Kept, back, drop, keep
from scheduler.pytorch.graph.program import Script
from scheduler.pytorch.graph.tensors import Gradients, Key
from scheduler.pytorch.graph.traced import GraphNode, Session, TracedGraph
from scheduler.pytorch.graph.tracing.fx import Arguments, cast, casting
from scheduler.pytorch.model.rng import GENERATORS, torch_generators
from scheduler.pytorch.observe.buffers import Buffers, norms_of
from solvers.schedule import Forward


class PlannedStep:
    """One training step under a plan."""

    def __init__(
        self,
        script: Script,
        graph: TracedGraph,
        model: nn.Module,
        arguments: Arguments,
        counts: list[int],
    ) -> None:
        self.script = script
        self.graph = graph
        self.counts = counts
        self.session = Session(graph, model, arguments)
        self.gradients = Gradients()
        self.kept: dict[int, Kept] = {}
        self.done = False
        wanted = [-1 - k for k, t in enumerate(arguments.tensors) if t.requires_grad]
        names = [n for n, p in model.named_parameters() if p.requires_grad]
        self.leaves: list[Key] = [*wanted, *names]
        tensors = [*arguments.tensors, *model.parameters()]
        self.generators = [*GENERATORS, *torch_generators({t.device for t in tensors})]
        self.casting = casting(arguments.tensors)
        self.repetitions: dict[int, Recomputation] = {}

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
            self.counts[i] += 1
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
        modules = self._modules(i)
        if i not in self.repetitions:
            repetition = Recomputation(norms_of(modules), generators=self.generators)
            self.repetitions[i] = repetition
            with repetition.forward():
                yield
            return
        buffers = Buffers(*modules)
        before = buffers.versions()
        with self.repetitions[i]:
            yield
        if before != buffers.versions():
            raise UnsupportedModel(
                f"layer {self.graph.nodes[i].name!r} changes a buffer of its own in its forward, "
                "which a recomputation does again; a plan must keep it"
            )

    def _modules(self, i: int) -> list[nn.Module]:
        names = self.graph.nodes[i].modules
        return [self.session.model.get_submodule(name) for name in names]

"""A model that trains as a plan of a graph says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from scheduler.common.errors import UnsupportedModel
from scheduler.export.standalone.caches import check_no_cache
from scheduler.plans.plan import Plan
from scheduler.pytorch.graph.step import PlannedStep, Script
from scheduler.pytorch.graph.trace import state_of
from scheduler.pytorch.graph.traced import TracedGraph
from scheduler.pytorch.graph.tracing.fx import Arguments
from scheduler.pytorch.model.replace import RemovableHandle, Replaced, check_unplanned
from scheduler.pytorch.observe.autograd import Source
from solvers.graph.schedule import LayerAction

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def apply_graph(
    plan: Plan | Sequence[LayerAction], graph: TracedGraph, model: nn.Module
) -> GraphHandle:
    """Run a model's training steps as a plan says, layer by layer.

    The model's forward is replaced by one that runs the plan's forward part; its backward, one
    autograd function, runs the rest: it drops, recomputes and differentiates layer by layer.
    Parameters, their hooks, the state dict and the hooks of modules that are layers stay as they
    were; gradients of parameters are handed to autograd when the last backward is done. Without
    gradients the model runs as before. A generation cache that it makes stays empty.

    Parameters
    ----------
    plan
        A plan that `solve` gave for costs from `profile_graph`, or its steps. It must be of class
        "forward": each forward once in the layers' order, then backwards from last to first with
        recomputations between them. Its last layer may be a loss outside the model.
    graph
        What `trace` gave for this model, or for one that is equal to it.
    model
        The model.

    Returns
    -------
    GraphHandle
        ``handle.remove()`` undoes everything; also a context manager.

    Raises
    ------
    InvalidPlan
        The plan is not one of class "forward" for this graph.
    UnsupportedModel
        The model is not as it was traced, or a plan is applied to it already.
    """
    check_unplanned(model, repr(type(model).__name__))
    script = Script.of(plan, graph)
    _check_state(model, graph)
    forward = PlannedModel(model, graph, script)
    forward.put()
    return GraphHandle([forward], [], graph, forward.counts)


@dataclass
class GraphHandle(RemovableHandle):
    """An applied plan.

    Attributes
    ----------
    graph
        What it was applied to.
    """

    graph: TracedGraph
    _counts: list[int] = field(repr=False)

    @property
    def forwards(self) -> dict[str, int]:
        """How often each layer's forward has run since the plan was applied."""
        return dict(zip(self.graph.names, self._counts, strict=True))


class PlannedModel(Replaced):
    """The replaced forward of a model."""

    def __init__(self, model: nn.Module, graph: TracedGraph, script: Script) -> None:
        super().__init__(model)
        self.graph = graph
        self.script = script
        self.counts = [0] * len(graph)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the plan's forward part; autograd runs the rest."""
        if not torch.is_grad_enabled():
            return self.original(*args, **kwargs)
        check_no_cache(args, kwargs, UnsupportedModel)
        arguments = Arguments.bound(self.module, args, kwargs)
        self._check(arguments)
        step = PlannedStep(self.script, self.graph, self.module, arguments, self.counts)
        last = step.forward()
        leaves = [t for t in arguments.tensors if t.requires_grad]
        leaves += [p for p in self.module.parameters() if p.requires_grad]
        # Autograd hands gradients on to what a function was given: so parameters keep their hooks,
        # and DistributedDataParallel sees each of them.
        token = _Rest.apply(step, *leaves)
        result = step.session.result(Source.apply(token, [last], step.receive), token)
        step.session.end_forward()
        return result

    def _check(self, arguments: Arguments) -> None:
        kind = type(self.module).__name__
        if arguments.form != self.graph.form:
            raise UnsupportedModel(
                f"this {kind} is called with other arguments (shapes, strides, types, devices or "
                "values) than those it was traced with; trace it for each form of batch"
            )
        _check_state(self.module, self.graph)
        for name in self.graph.through:
            part = self.module.get_submodule(name)
            if any(getattr(part, kind) for kind in _HOOKS):
                raise UnsupportedModel(
                    f"module {name!r} has a hook, and the plan runs its parts without it; name it "
                    "in leaves, or put the hook on its parts"
                )


def _check_state(model: nn.Module, graph: TracedGraph) -> None:
    if state_of(model) != graph.state:
        raise UnsupportedModel(
            f"this {type(model).__name__} is not as it was traced: its modules, their mode or what "
            "requires a gradient has changed; trace it again"
        )


class _Rest(torch.autograd.Function):
    """The plan's backward part."""

    @staticmethod
    def forward(ctx: Any, step: PlannedStep, *leaves: torch.Tensor) -> torch.Tensor:
        """A scalar for the model's output to hang on."""
        ctx.step = step
        return torch.zeros((), device=leaves[0].device)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        """Run what is left of the plan."""
        # Autograd runs a backward with gradients on only under create_graph=True.
        if torch.is_grad_enabled():
            raise UnsupportedModel(
                "a plan's backward cannot be differentiated again (create_graph=True); remove the "
                "plan for such a step"
            )
        return (None, *ctx.step.backward())

"""A model that trains as a plan of a graph says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from scheduler.common.errors import InvalidPlan, UnsupportedModel
from scheduler.export.standalone.caches import check_no_cache
from scheduler.plans.plan import Plan
from scheduler.pytorch.checkpointing.apply import Handle
from scheduler.pytorch.checkpointing.coverage import Coverage
from scheduler.pytorch.graph.step import PlannedStep, Script
from scheduler.pytorch.graph.trace import parts_of, trace_for
from scheduler.pytorch.graph.traced import TracedGraph, state_of
from scheduler.pytorch.graph.tracing.fx import Arguments
from scheduler.pytorch.model.replace import RemovableHandle, Replaced, check_unplanned
from scheduler.pytorch.model.wrappers import bare
from scheduler.pytorch.observe.autograd import Source
from solvers.graph.schedule import LayerAction

_RECORDED = ("transformers.utils.output_capturing",)
"""Hooks of these modules collect outputs, if at all, and are a part of the trace."""

_MOST_TRACES = 16
"""Forms of arguments that a trace is kept for."""

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
    model = bare(model, sharded=False)
    check_unplanned(model, repr(type(model).__name__))
    script = Script.of(plan, graph)
    _check_state(model, graph)
    forward = PlannedModel(model, script)
    forward.put()
    return GraphHandle([forward], [], graph, forward.counts)


def apply_layers(plan: Plan, model: nn.Module) -> PlannedLayers:
    """`scheduler.pytorch.apply` for a plan of a graph of layers.

    The model is traced in its first step with gradients, and again whenever the form of its
    arguments, or a value that it branches on, is new.
    """
    check_unplanned(model, repr(type(model).__name__))
    modules = dict(model.named_modules())
    if not any(part in modules for name in plan.layers for part in parts_of(name)):
        raise InvalidPlan(
            f"none of the plan's layers ({plan.layers[0]!r}, ...) is a module of this "
            f"{type(model).__name__}; it was made for another model"
        )
    forward = TracingModel(model, plan)
    forward.put()
    return PlannedLayers([forward], [], plan, model)


@dataclass
class GraphHandle(RemovableHandle):
    """An applied plan.

    Attributes
    ----------
    graph
        What it was applied to.
    """

    graph: TracedGraph
    _counts: Counter[str] = field(repr=False)

    @property
    def forwards(self) -> dict[str, int]:
        """How often each layer's forward has run since the plan was applied."""
        return {name: self._counts[name] for name in self.graph.names}


class PlannedLayers(Handle):
    """An applied plan of a graph of layers."""

    @property
    def forwards(self) -> dict[str, int]:
        """How often each layer of the model ran forward in the latest step with gradients."""
        return dict(self._placed[0].counts) if self._placed else {}

    def report(self) -> Coverage:
        """For each layer what the plan wants, and whether the model's forward is the plan's."""
        forward = next(iter(self._placed), None)
        planned = {
            name: "keep" if count == 1 else f"run {count} times"
            for name, count in self.plan.forwards.items()
        }
        if forward is None:
            return Coverage(planned, dict.fromkeys(planned, "the plan was removed"), {})
        put = forward.is_put
        found = planned if put else dict.fromkeys(planned, "the model's forward was replaced since")
        return Coverage(planned, found, dict.fromkeys(planned, forward.calls))


class PlannedModel(Replaced):
    """The replaced forward of a model; `counts` of its layers' forwards."""

    def __init__(self, model: nn.Module, *scripts: Script) -> None:
        super().__init__(model)
        self.scripts = list(scripts)
        self.counts: Counter[str] = Counter()
        self.calls = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the plan's forward part; autograd runs the rest."""
        if not torch.is_grad_enabled():
            return self.original(*args, **kwargs)
        check_no_cache(args, kwargs, UnsupportedModel)
        arguments = Arguments.bound(self.module, args, kwargs)
        script = self._script(arguments)
        self.calls += 1
        self._check(script.graph)
        step = PlannedStep(script, self.module, arguments, self.counts)
        last = step.forward()
        leaves = [t for t in arguments.tensors if t.requires_grad]
        leaves += [p for p in self.module.parameters() if p.requires_grad]
        # Autograd hands gradients on to what a function was given: so parameters keep their hooks,
        # and DistributedDataParallel sees each of them.
        token = _Rest.apply(step, *leaves)
        result = step.session.result(Source.apply(token, [last], step.receive), token)
        step.session.end_forward()
        return result

    def _script(self, arguments: Arguments) -> Script:
        """The plan, for a call with these arguments."""
        (script,) = self.scripts
        if arguments.form != script.graph.form:
            raise UnsupportedModel(
                f"this {type(self.module).__name__} is called with other arguments (shapes, "
                "strides, types, devices or values) than those it was traced with; trace it for "
                "each form of batch"
            )
        _check_state(self.module, script.graph)
        return script

    def _check(self, graph: TracedGraph) -> None:
        for name in graph.through:
            part = self.module.get_submodule(name)
            hooks = [hook for kind in _HOOKS for hook in getattr(part, kind).values()]
            if any(hook.__module__ not in _RECORDED for hook in hooks):
                raise UnsupportedModel(
                    f"module {name!r} has a hook, and the plan runs its parts without it; name it "
                    "in leaves, or put the hook on its parts"
                )


class TracingModel(PlannedModel):
    """The replaced forward of a model that is traced when it is called."""

    def __init__(self, model: nn.Module, plan: Plan) -> None:
        super().__init__(model)
        self.plan = plan

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "scripts": []}  # it is traced anew

    def _script(self, arguments: Arguments) -> Script:
        self.counts = Counter()  # of this step
        form, state = arguments.form, state_of(self.module)
        for script in self.scripts:
            graph = script.graph
            if graph.form == form and graph.state == state and graph.holds(self.module, arguments):
                return script
        self.take_away()
        try:
            graph = trace_for(self.module, arguments, self.plan.layers)
        finally:
            self.put()
        self.scripts = [*self.scripts[1 - _MOST_TRACES :], Script.of(self.plan, graph)]
        return self.scripts[-1]


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

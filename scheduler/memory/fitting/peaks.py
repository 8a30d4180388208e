"""The highest moments of a training step, and the least that any plan can make of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from scheduler.costs.costgraph import CostGraph
from scheduler.costs.layer import LayerCost, OptionCost
from scheduler.plans.text import peak_text
from solvers.chain.methods import METHODS
from solvers.chain.problem import Chain
from solvers.replay import Moment as Action
from solvers.schedule import Backward
from solvers.solution import Infeasible


@dataclass(frozen=True, slots=True)
class Moment:
    """One of the moments at which a step's memory may be highest.

    Attributes
    ----------
    name
        "loss" (all up to and with its backward, forwards too), "layer" or "optimizer".
    bytes
        Activations, gradients and working memory at its worst; nothing that is always there.
    set_by
        What needs them: ``the backward of 'model.layers.0'``.
    """

    name: str
    bytes: int
    set_by: str


def moments(costs: CostGraph, temporaries: int = 0) -> tuple[Moment, ...]:
    """The three highest moments of a step that keeps everything, on top of the persistent state.

    Every action of the step belongs to one: up to and with the backward of the last layer, which
    is the head with its loss, to "loss"; the other backwards to "layer". So the larger of these
    two is the peak of the replay. "optimizer" is what comes after: all gradients, the input that
    the user still holds, and the optimizer's temporaries, in bytes.
    """
    chain = costs.to_chain()
    steps, first = _keep_all_steps(chain)
    turn = first + 1

    def highest(name: str, some: tuple[Action, ...]) -> Moment:
        # A model of one layer has no backward but the loss's.
        if not some:
            return Moment(name, 0, "no other layer")
        worst = max(some, key=lambda each: each.during_bytes)
        return Moment(name, worst.during_bytes, peak_text(worst.action, chain.names))

    gradients = sum(layer.gradient_bytes for layer in chain.layers)
    return (
        highest("loss", steps[:turn]),
        highest("layer", steps[turn:]),
        Moment("optimizer", chain.input_bytes + gradients + temporaries, "the optimizer's step"),
    )


def kept_bytes(costs: CostGraph) -> int:
    """Live between forward and backward when everything is kept."""
    steps, first = _keep_all_steps(costs.to_chain())
    return steps[first - 1].after_bytes


def _keep_all_steps(chain: Chain) -> tuple[tuple[Action, ...], int]:
    """The steps of a replay that keeps everything, and the place of the first backward."""
    steps = chain.replay(chain.keep_all()).moments
    return steps, next(i for i, step in enumerate(steps) if isinstance(step.action, Backward))


def smallest_peak(costs: CostGraph) -> tuple[int, str]:
    """The smallest peak of any plan, and what sets it; exact, by the solver that `solve` uses."""
    chain = costs.to_chain()
    try:
        schedule = METHODS["optimal"].solve(chain, 0).schedule
    except Infeasible as error:
        schedule = error.schedule
        if error.out_of_time:  # Ctrl-C, which the solver takes as the end of its time
            raise KeyboardInterrupt from None
    done = chain.replay(schedule)
    return done.peak_bytes, peak_text(done.peak_action, chain.names)


def with_optimizer(costs: CostGraph, temporaries: int) -> CostGraph:
    """The costs, with the optimizer's step in them, which needs so many bytes beside gradients.

    Every plan ends with the backward of the first layer, and nothing else is live then: it takes
    what the step after it takes, where that is more.
    """
    if not temporaries:
        return costs
    steps, _ = _keep_all_steps(costs.to_chain())
    more = moments(costs, temporaries)[-1].bytes - steps[-1].during_bytes
    first, *others = costs.layers
    first = _with_more(first, backward_transient_bytes=max(more, 0))
    return replace(costs, layers=(first, *others))


def with_gradient(layer: LayerCost, stays: int, passes: int) -> LayerCost:
    """The layer whose backward leaves `stays` bytes of gradients, and meanwhile has `passes`."""
    return _with_more(replace(layer, gradient_bytes=stays), backward_transient_bytes=passes)


def with_working(layer: LayerCost, size: int) -> LayerCost:
    """The layer with `size` bytes more of working memory in all it does."""
    fields = ("forward_transient_bytes", "drop_transient_bytes", "backward_transient_bytes")
    return _with_more(layer, **dict.fromkeys(fields, size))


def _with_more(layer: LayerCost, **more: int) -> LayerCost:
    """The layer with more of each of these fields, and its options too, where they have them."""

    def add(cost: LayerCost | OptionCost) -> dict[str, Any]:
        have = {field: getattr(cost, field, None) for field in more}
        return {field: size + more[field] for field, size in have.items() if size is not None}

    options = tuple(replace(option, **add(option)) for option in layer.options)
    return replace(layer, **add(layer), options=options)

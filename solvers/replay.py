"""The one definition of a plan's peak and time: execute its actions, tensor by tensor."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from solvers.problem import Chain, Way
from solvers.schedule import (
    Action,
    Backward,
    Forward,
    Hold,
    IllegalPlan,
    Item,
    actions,
)


@dataclass(frozen=True, slots=True)
class Step:
    """One action, the bytes live at its worst moment, and the bytes live after it."""

    action: Action
    during_bytes: int
    after_bytes: int


@dataclass(frozen=True, slots=True)
class Replay:
    """What a plan does on a chain.

    Attributes
    ----------
    peak_bytes
        The largest number of bytes live at any moment.
    peak_action
        The action during which the peak is first reached.
    time
        Sum over the actions, in the chain's integer unit.
    steps
        Every action with its bytes; empty unless asked for.
    """

    peak_bytes: int
    peak_action: Action
    time: int
    steps: tuple[Step, ...] = ()


def replay(chain: Chain, items: Sequence[Item], *, keep_steps: bool = False) -> Replay:
    """Execute the plan `items` on `chain`.

    Parameters
    ----------
    chain
        The costs.
    items
        A plan that covers every layer in order.
    keep_steps
        Also return each action with its bytes.

    Raises
    ------
    IllegalPlan
        The items do not cover the chain, name an unknown option, recompute a layer that cannot
        be recomputed, or an action lacks what it needs.
    """
    return replay_actions(chain, actions(items, len(chain)), keep_steps=keep_steps)


def replay_actions(chain: Chain, stream: Iterable[Action], *, keep_steps: bool = False) -> Replay:
    """Execute a stream of actions on `chain`; see `replay`."""
    machine = _Machine(chain)
    peak, peak_action, time = -1, None, 0
    steps: list[Step] = []
    for action in stream:
        during, cost = machine.run(action)
        time += cost
        if during > peak:
            peak, peak_action = during, action
        if keep_steps:
            steps.append(Step(action, during, machine.live))
    machine.check_end()
    assert peak_action is not None  # a chain has at least one layer, whose backward has run
    return Replay(peak, peak_action, time, tuple(steps))


@dataclass(slots=True)
class _Machine:
    """The tensors that are live, and who holds them."""

    chain: Chain
    live: int = 0
    holds: dict[int, int] = field(default_factory=dict)  # activation -> number of holders
    saved: dict[int, Way] = field(default_factory=dict)  # layer -> how it was kept
    gradient: int = 0  # index of the activation whose gradient is live
    forwarded: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        last = len(self.chain) - 1
        self.gradient = last
        self.holds[-1] = 1  # the user's
        self.live = self.chain.input_bytes + self.chain.layers[last].output_bytes

    def run(self, action: Action) -> tuple[int, int]:
        """Execute one action: bytes at its worst moment, and its time."""
        if action.layer >= len(self.chain):
            raise IllegalPlan(f"{action} is beyond the chain's {len(self.chain)} layers")
        if isinstance(action, Forward):
            return self._forward(action)
        if isinstance(action, Backward):
            return self._backward(action.layer)
        if isinstance(action, Hold):
            self._hold(action.layer)
        else:
            self._let_go(action.layer, action)
        return self.live, 0

    def check_end(self) -> None:
        left = [self._name(i) for i, count in self.holds.items() if count > (i == -1)]
        if self.saved or left:
            left += [f"the saved set of {self.chain.layers[i].name!r}" for i in self.saved]
            raise IllegalPlan(f"the plan ends with {left[0]} still held")
        if self.gradient != -1:
            raise IllegalPlan(f"the plan ends before the backward of {self._name(self.gradient)}")

    def _forward(self, action: Forward) -> tuple[int, int]:
        i, layer = action.layer, self.chain.layers[action.layer]
        if not self.holds.get(i - 1):
            raise IllegalPlan(f"the forward of {layer.name!r} runs while its input is not live")
        if self.gradient < i:
            raise IllegalPlan(f"the forward of {layer.name!r} runs after its backward")
        if i in self.forwarded and not layer.recomputable:
            raise IllegalPlan(f"the plan recomputes {layer.name!r}, which must be kept")
        self.forwarded.add(i)
        time = layer.recompute_time if action.ends_body else layer.forward_time
        if not action.keep:
            during = self.live + layer.output_bytes + layer.drop_transient_bytes
            self._make(i)
            return during, time
        if i in self.saved:
            raise IllegalPlan(f"the forward of {layer.name!r} keeps what is already kept")
        way = self._way(i, action.option)
        during = self.live + layer.output_bytes + way.saved_bytes + way.forward_transient_bytes
        self._make(i)
        self.saved[i] = way
        self.live += way.saved_bytes
        if way.input_saved:
            self._hold(i - 1)
        if way.output_saved:
            self._hold(i)
        return during, time

    def _backward(self, i: int) -> tuple[int, int]:
        layer = self.chain.layers[i]
        if i not in self.saved:
            raise IllegalPlan(
                f"the backward of {layer.name!r} runs while its saved set is not live"
            )
        if self.gradient != i:
            raise IllegalPlan(f"the backward of {layer.name!r} runs out of order")
        way = self.saved.pop(i)
        input_bytes = self.chain.input_of(i)
        # What an option left out is live again here, with an output of its own if it holds one.
        again = layer.saved_bytes - way.saved_bytes
        if layer.output_saved and not way.output_saved:
            again += layer.output_bytes
        during = (
            self.live
            + again
            + input_bytes
            + layer.gradient_bytes
            + way.backward_transient_bytes
            - way.backward_overlap_bytes
        )
        self.gradient = i - 1
        self.live += input_bytes + layer.gradient_bytes - way.saved_bytes - layer.output_bytes
        if way.input_saved:
            self._let_go(i - 1, Backward(i))
        if way.output_saved:
            self._let_go(i, Backward(i))
        return during, layer.backward_time + way.recompute_time

    def _way(self, i: int, option: str | None) -> Way:
        layer = self.chain.layers[i]
        try:
            return layer.way(option)
        except KeyError:
            known = ", ".join(repr(o.name) for o in layer.options) or "none"
            raise IllegalPlan(
                f"layer {layer.name!r} has no option {option!r} (it has: {known})"
            ) from None

    def _make(self, i: int) -> None:
        if self.holds.get(i):
            raise IllegalPlan(f"the forward of {self._name(i)} runs while its output is live")
        self.holds[i] = 1  # the sweep's
        self.live += self.chain.layers[i].output_bytes

    def _hold(self, i: int) -> None:
        if not self.holds.get(i):
            raise IllegalPlan(f"a hold on {self._name(i)}, which is not live")
        self.holds[i] += 1

    def _let_go(self, i: int, action: Action) -> None:
        if self.holds.get(i, 0) <= (i == -1):
            raise IllegalPlan(f"{type(action).__name__} lets go of {self._name(i)}, not held")
        self.holds[i] -= 1
        if not self.holds[i]:
            del self.holds[i]
            self.live -= self.chain.input_of(i + 1)

    def _name(self, i: int) -> str:
        return "the input" if i < 0 else f"the output of {self.chain.layers[i].name!r}"

"""Chains: their costs, and the one definition of a chain plan's peak and time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from solvers.problem import (
    MAY_BE_NONE,
    OF_OPTION,
    QUANTITIES,
    InvalidProblem,
    Layer,
    Layered,
    Option,
    Way,
    check_quantity,
    check_sum,
    most_overlap,
    where,
)
from solvers.replay import Moment, Replay, Role
from solvers.schedule import (
    Action,
    Backward,
    Drop,
    Forward,
    Hold,
    IllegalPlan,
    Items,
    keep_all,
)


@dataclass(frozen=True)
class Chain(Layered):
    """Layers in order, each reading the output of the one before.

    Attributes
    ----------
    layers
        At least one.
    input_bytes
        Size of the chain's input, which its user holds throughout.

    Raises
    ------
    InvalidProblem
        A cost is negative or not an integer, sums would overflow, or a field contradicts another.
    """

    layers: tuple[Layer, ...]
    input_bytes: int = 0

    def __post_init__(self) -> None:
        if not self.layers:
            raise InvalidProblem("a chain needs at least one layer")
        check_quantity("the chain", "input_bytes", self.input_bytes)
        for i, layer in enumerate(self.layers):
            for field in QUANTITIES:
                check_quantity(f"layer {layer.name!r}", field, getattr(layer, field))
            for option in layer.options:
                self._check_option(layer, option)
            if len({option.name for option in layer.options}) < len(layer.options):
                raise InvalidProblem(f"layer {layer.name!r}: two options share a name")
            for way in self.ways[i]:
                place = where(layer, way.option)
                check_quantity(place, "ending_transient_bytes", way.ending_transient_bytes)
                self._check_overlap(i, way)
        self._check_forwards()
        self._check_sums()

    def _check_option(self, layer: Layer, option: Option) -> None:
        place = where(layer, option.name)
        for field in OF_OPTION:
            value = getattr(option, field)
            if value is not None or field not in MAY_BE_NONE:
                check_quantity(place, field, value)
        if option.saved_bytes > layer.saved_bytes:
            raise InvalidProblem(
                f"{place}: saved_bytes {option.saved_bytes} is more than the layer's own "
                f"{layer.saved_bytes}; an option saves less"
            )

    def _check_overlap(self, i: int, way: Way) -> None:
        # The backward's peak is at least what is live before it and what is live after it.
        layer = self.layers[i]
        most = most_overlap(layer, way, self.input_of(i), first=i == 0)
        if way.backward_overlap_bytes > most:
            raise InvalidProblem(
                f"{where(layer, way.option)}: backward_overlap_bytes "
                f"{way.backward_overlap_bytes} is more than the {most} bytes that can overlap in "
                "its backward"
            )

    def _check_forwards(self) -> None:
        # Nothing is to be gained by dropping what runs again at once.
        last = self.layers[-1]
        if not last.recomputable:
            return
        for layer in self.layers:
            more = layer.again_transient_bytes
            ending = min(
                way.ending_transient_bytes - way.forward_transient_bytes for way in layer.ways
            )
            if layer.first_transient_bytes > (min(more, ending) if layer is last else more):
                raise InvalidProblem(
                    f"layer {layer.name!r} needs more in its first forward than in others; then "
                    f"the last layer, {last.name!r}, must not be recomputable"
                )

    def _check_sums(self) -> None:
        n = len(self.layers)
        # A nested plan runs a layer's forward at most once per depth, and depth is at most n.
        time = sum(
            (n + 1) * max(la.forward_time, la.recompute_time)
            + la.backward_time
            + max(way.recompute_time for way in ways)
            for la, ways in zip(self.layers, self.ways, strict=True)
        )
        size = self.input_bytes + sum(
            4 * la.output_bytes
            + la.saved_bytes
            + max(max(way.forward_transient_bytes, way.ending_transient_bytes) for way in ways)
            + la.drop_transient_bytes
            + la.first_transient_bytes
            + la.again_transient_bytes
            + la.beside_bytes
            + max(way.backward_transient_bytes for way in ways)
            + la.gradient_bytes
            for la, ways in zip(self.layers, self.ways, strict=True)
        )
        check_sum("the times", time)
        check_sum("the sizes", size)

    what: ClassVar[str] = "chains"
    """What a message calls such problems."""

    def keep_all(self) -> Items:
        """The plan that recomputes nothing."""
        return Items(keep_all(len(self)))

    def replay(self, schedule: Items) -> Replay:
        """Execute a plan, tensor by tensor.

        Raises
        ------
        IllegalPlan
            The items do not cover the chain, name an unknown option, recompute a layer that cannot
            be recomputed, or an action lacks what it needs.
        """
        return replay_actions(self, schedule.actions(len(self)))

    @cached_property
    def ways(self) -> tuple[tuple[Way, ...], ...]:
        """Of each layer every way to keep it, the whole saved set first."""
        return tuple(layer.ways for layer in self.layers)

    @cached_property
    def beside(self) -> tuple[int, ...]:
        """Of each layer: bytes that it and those after it are handed beside their inputs.

        Up to the next layer that must be kept, which makes others for those after it. They are made
        with the first forward of the layer that must be kept, or of the first; each is let go after
        the first forward of the last layer that is handed it, but once a layer runs that will start
        again: that holds what it and those after it are handed until its backward is over.
        """
        found = [0]
        for layer, after in zip(self.layers[::-1], [None, *self.layers[:0:-1]], strict=True):
            more = found[-1] if after is not None and after.recomputable else 0
            found.append(layer.beside_bytes + more)
        return tuple(found[:0:-1])

    def input_of(self, i: int) -> int:
        """Bytes of the activation that layer `i` reads."""
        return self.layers[i - 1].output_bytes if i else self.input_bytes


def replay_actions(chain: Chain, stream: Iterable[Action]) -> Replay:
    """Execute a stream of actions on `chain`; see `Chain.replay`."""
    machine = _Machine(chain)
    moments = [machine.run(action) for action in stream]
    machine.check_end()
    return Replay.of(moments)


class _Machine:
    """The tensors that are live, and who holds them."""

    def __init__(self, chain: Chain) -> None:
        self.chain, self.layers, self.ways = chain, chain.layers, chain.ways
        self.holds = {-1: 1}  # activation -> number of holders; the input's is the user
        self.saved: dict[int, Way] = {}  # layer -> how it was kept
        self.gradient = len(chain) - 1  # index of the activation whose gradient is live
        self.forwarded: set[int] = set()
        self.live = chain.input_bytes + chain.layers[-1].output_bytes
        self.again: dict[int, int] = {}  # what is held beside by the first that starts again
        self.is_held = False  # whether that is of the part of the chain that runs forward at first

    def run(self, action: Action) -> Moment:
        """Execute one action."""
        if action.layer >= len(self.layers):
            raise IllegalPlan(f"{action} is beyond the chain's {len(self.layers)} layers")
        if isinstance(action, Forward):
            return self._forward(action)
        if isinstance(action, Backward):
            return self._backward(action)
        if isinstance(action, Drop):
            self._let_go(action.layer, action)
        elif isinstance(action, Hold):
            self._hold(action.layer)
        else:
            raise IllegalPlan(f"{action} is no action of a chain")
        return Moment(action, "", 0, self.live, self.live)

    def check_end(self) -> None:
        left = [self._name(i) for i, count in self.holds.items() if count > (i == -1)]
        if self.saved or left:
            left += [f"the saved set of {self.layers[i].name!r}" for i in self.saved]
            raise IllegalPlan(f"the plan ends with {left[0]} still held")
        if self.gradient != -1:
            raise IllegalPlan(f"the plan ends before the backward of {self._name(self.gradient)}")

    def _forward(self, action: Forward) -> Moment:
        i, layer = action.layer, self.layers[action.layer]
        if not self.holds.get(i - 1):
            raise IllegalPlan(f"the forward of {layer.name!r} runs while its input is not live")
        if self.gradient < i:
            raise IllegalPlan(f"the forward of {layer.name!r} runs after its backward")
        if i in self.forwarded and not layer.recomputable:
            raise IllegalPlan(f"the plan recomputes {layer.name!r}, which must be kept")
        role: Role = "again" if i in self.forwarded else "first"
        if role == "first" and (i == 0 or not layer.recomputable):
            self.live += self.chain.beside[i]
            self.is_held = False
        self.forwarded.add(i)
        ticks = layer.recompute_time if action.ends_body else layer.forward_time
        on_top = layer.first_transient_bytes if role == "first" else layer.again_transient_bytes
        if not action.keep:
            during = self.live + layer.output_bytes + layer.drop_transient_bytes + on_top
            self._make(i)
            self._handed(i, role, starts_again=True)
            return Moment(action, role, ticks, during, self.live)
        if i in self.saved:
            raise IllegalPlan(f"the forward of {layer.name!r} keeps what is already kept")
        way = self._way(i, action.option)
        on_top += way.forward_transient_bytes
        if action.ends_body:
            on_top = way.ending_transient_bytes
        during = self.live + layer.output_bytes + way.saved_bytes + on_top
        self._make(i)
        self.saved[i] = way
        self.live += way.saved_bytes
        if way.input_saved:
            self._hold(i - 1)
        if way.output_saved:
            self._hold(i)
        self._handed(i, role, starts_again=action.option is not None)
        return Moment(action, role, ticks, during, self.live)

    def _handed(self, i: int, role: Role, *, starts_again: bool) -> None:
        """What is handed to layer `i` beside its input, once it has run forward."""
        if role == "again" or self.is_held:
            return
        if starts_again:
            self.again[i], self.is_held = self.chain.beside[i], True
        else:
            self.live -= self.layers[i].beside_bytes

    def _backward(self, action: Backward) -> Moment:
        i, layer = action.layer, self.layers[action.layer]
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
            self._let_go(i - 1, action)
        if way.output_saved:
            self._let_go(i, action)
        self.live -= self.again.pop(i, 0)
        again_ticks = way.recompute_time
        ticks = layer.backward_time + again_ticks
        return Moment(action, "back", ticks, during, self.live, again_ticks)

    def _way(self, i: int, option: str | None) -> Way:
        for way in self.ways[i]:
            if way.option == option:
                return way
        layer = self.layers[i]
        known = ", ".join(repr(o.name) for o in layer.options) or "none"
        raise IllegalPlan(f"layer {layer.name!r} has no option {option!r} (it has: {known})")

    def _make(self, i: int) -> None:
        if self.holds.get(i):
            raise IllegalPlan(f"the forward of {self._name(i)} runs while its output is live")
        self.holds[i] = 1  # the sweep's
        self.live += self.layers[i].output_bytes

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
        return "the input" if i < 0 else f"the output of {self.layers[i].name!r}"

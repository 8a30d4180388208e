"""Pipelines: a chain in stages on several devices, and the orders in which they run microbatches.

A stage runs each microbatch forward and, later, backward. What a microbatch holds in between (K)
is there once for each microbatch in flight; what its forward and backward need at most (W), once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import TypeAlias

from solvers.chain.problem import Chain
from solvers.problem import InvalidProblem, Layer, check_quantity

Order: TypeAlias = tuple[tuple[str, int], ...]
"""What one stage does: pairs ("F", m) and ("B", m), the microbatch's forward and its backward."""

BUFFERS = ("all", "flight")

BEHIND = Layer("behind", 0, 0, 0, 0, 0, input_saved=False, output_saved=False, recomputable=False)
"""With it behind the last layer, every span of layers may be the body of a checkpoint."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """What the library that runs a pipeline holds beside the chain's own tensors.

    Attributes
    ----------
    output_held
        A stage holds what it handed on until that microbatch's backward.
    gradient_buffer_in_forward
        What the gradient of a stage's output is received in is there in its forwards too.
    input_buffers
        What stages receive lies in buffers, made once for "all" microbatches, or for each that is
        in "flight".
    output_buffers
        Buffers of an output's size are kept for all microbatches: for what comes back to a stage,
        and of what the last stage gave.
    sends_held
        What was sent last is held on: the output of the last forward before the first backward, and
        the gradient that went back before; where all microbatches are in flight (GPipe), all
        gradients that went back.
    """

    output_held: bool = False
    gradient_buffer_in_forward: bool = False
    input_buffers: str = "flight"
    output_buffers: bool = False
    sends_held: bool = False

    def __post_init__(self) -> None:
        if self.input_buffers not in BUFFERS:
            known = " or ".join(map(repr, BUFFERS))
            raise InvalidProblem(f"input_buffers is {known}, not {self.input_buffers!r}")


def one_forward_one_backward(stages: int, microbatches: int) -> tuple[Order, ...]:
    """1F1B: stage s begins with as many forwards as there are stages from it on."""
    return tuple(_warmed(min(stages - s, microbatches), microbatches) for s in range(stages))


def gpipe(stages: int, microbatches: int) -> tuple[Order, ...]:
    """All forwards, then all backwards, in the same order."""
    return (_warmed(microbatches, microbatches),) * stages


def _warmed(ahead: int, microbatches: int) -> Order:
    """So many forwards, then a backward and a forward in turn, then what is left."""
    order = [("F", m) for m in range(ahead)]
    for m in range(microbatches):
        order.append(("B", m))
        if m + ahead < microbatches:
            order.append(("F", m + ahead))
    return tuple(order)


def in_flight(order: Order) -> int:
    """Most microbatches that are between their forward and their backward."""
    return max(accumulate(1 if kind == "F" else -1 for kind, _ in order))


SCHEDULES = {"1f1b": one_forward_one_backward, "gpipe": gpipe}


@dataclass(frozen=True)
class Pipeline:
    """A chain, and what its stages are to run on.

    Attributes
    ----------
    chain
        Its last layer may be recomputed like any other: that is of use with several in flight.
    state_bytes
        Of each layer: what is resident of it on the device of its stage.
    budgets
        Bytes of each stage's device.
    orders
        Of each stage what it does, in order.
    communication_time
        From a stage to the next, and back.
    runtime
        What else is held.
    """

    chain: Chain
    state_bytes: tuple[int, ...]
    budgets: tuple[int, ...]
    orders: tuple[Order, ...]
    communication_time: int = 0
    runtime: Runtime = Runtime()

    def __post_init__(self) -> None:
        length, stages = len(self.chain), len(self.budgets)
        if not 0 < stages <= length:
            raise InvalidProblem(
                f"{length} layers are no {stages} stages: each stage takes one layer at least; ask "
                f"for 1 to {length} stages"
            )
        if len(self.orders) != stages:
            raise InvalidProblem(f"{len(self.orders)} orders for {stages} stages; each has one")
        if len(self.state_bytes) != length:
            raise InvalidProblem(f"{len(self.state_bytes)} state_bytes for {length} layers")
        for layer, state in zip(self.chain.layers, self.state_bytes, strict=True):
            check_quantity(f"layer {layer.name!r}", "state_bytes", state)
        for s, order in enumerate(self.orders):
            self._check_order(s, order)

    def _check_order(self, s: int, order: Order) -> None:
        """Every microbatch forward once, then backward once, as on every stage."""
        done: set[tuple[str, int]] = set()
        for action in order:
            kind, m = action
            if kind not in "FB" or action in done or (kind == "B" and ("F", m) not in done):
                raise InvalidProblem(
                    f"stage {s}: {kind}{m} is no forward (F) that is new, and no backward (B) of a "
                    "microbatch that has run forward; schedules that split backwards are not known"
                )
            done.add(action)
        wanted = {(kind, m) for kind in "FB" for m in range(self.microbatches)}
        if done != wanted:
            raise InvalidProblem(
                f"stage {s} does not run each of {self.microbatches} microbatches forward and "
                "backward once"
            )

    @property
    def stages(self) -> int:
        """How many there are."""
        return len(self.budgets)

    @cached_property
    def microbatches(self) -> int:
        """How many there are, in one step."""
        return len(self.orders[0]) // 2

    @cached_property
    def in_flight(self) -> tuple[int, ...]:
        """Of each stage: most microbatches that are between their forward and their backward."""
        return tuple(map(in_flight, self.orders))

    @cached_property
    def accumulating(self) -> Chain:
        """The chain when all gradients of parameters are there: fresh ones are added and let go.

        Without what layers are handed beside their inputs: see `outside`.
        """
        layers = []
        for layer in self.chain.layers:
            fresh = layer.gradient_bytes
            options = tuple(
                option
                if option.backward_transient_bytes is None
                else replace(
                    option, backward_transient_bytes=option.backward_transient_bytes + fresh
                )
                for option in layer.options
            )
            transient = layer.backward_transient_bytes + fresh
            layers.append(
                replace(
                    layer,
                    gradient_bytes=0,
                    beside_bytes=0,
                    backward_transient_bytes=transient,
                    options=options,
                )
            )
        return Chain(tuple(layers), self.chain.input_bytes)

    def stage_chain(self, first: int, last: int) -> Chain:
        """Layers `first` .. `last`, and behind them what hands on their output and takes it back.

        Parameters' gradients are there.
        """
        chain = self.accumulating
        return Chain((*chain.layers[first : last + 1], BEHIND), chain.input_of(first))

    def outside(self, s: int, first: int, last: int) -> int:
        """Bytes on stage `s` of layers `first` .. `last` that are there all the time.

        With them, as if every microbatch in flight held it, what layers are handed beside their
        inputs: mostly little, and held at most.
        """
        layers = self.chain.layers[first : last + 1]
        buffers = self.microbatches if self.runtime.input_buffers == "all" else self.in_flight[s]
        output, source = layers[-1].output_bytes, self.chain.input_of(first)
        # With all in flight each gradient that went back is held to the end of the step. So is each
        # output, which is no more than what its microbatch held.
        back = max(self.microbatches - 1, 1) if self.in_flight[s] == self.microbatches else 1
        sent = (output if s < self.stages - 1 else 0) + (back * source if s else 0)
        return (
            sum(self.state_bytes[first : last + 1])
            + self.in_flight[s] * sum(layer.beside_bytes for layer in layers)
            + buffers * source
            + self.microbatches * output * self.runtime.output_buffers
            + sent * self.runtime.sends_held
        )

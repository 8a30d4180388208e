"""What every problem is, and the layers that chains and layer graphs are made of.

Times are integers in one unit (nanoseconds when they come from a cost file in ms or s):
float sums make equal plans look different and grow a frontier by noise. Bytes are integers.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple, Protocol, TypeVar

from solvers.replay import Replay
from solvers.schedule import Schedule

S = TypeVar("S", bound=Schedule)

LIMIT = 2**62
"""No sum of costs a solver forms may reach this: the kernels add in int64."""


class InvalidProblem(ValueError):
    """A problem that has no meaning; the message names the layer and the field."""


class Problem(Protocol[S]):
    """Costs in integers: a chain, a compute graph or a layer graph, and what comes to be one.

    Solvers take the class that they know; everything around them takes this.
    """

    @property
    def names(self) -> tuple[str, ...]:
        """Of its layers or nodes."""

    @property
    def least_time(self) -> int:
        """Time of everything once: no schedule takes less."""

    def __len__(self) -> int: ...

    def keep_all(self) -> S:
        """The schedule that runs nothing again."""

    def replay(self, schedule: S) -> Replay:
        """Execute a schedule, tensor by tensor.

        Raises
        ------
        IllegalPlan
            It cannot be executed.
        """


@dataclass(frozen=True, slots=True)
class Option:
    """A cheaper way to keep a layer: save part of its saved set, make the rest again.

    A field that is None is as for the layer itself. In torch an option is a selective checkpoint
    of one block: it holds the block's input, from which it starts again, whatever the layer does.

    Attributes
    ----------
    name
        What a plan calls it.
    saved_bytes
        Bytes of the saved set that stay (at most the layer's own ``saved_bytes``).
    recompute_time
        Time to make the rest again, once, at the layer's own backward.
    forward_transient_bytes
        Working memory of the forward under this option, above ``output`` and what stays.
    ending_transient_bytes
        The same where that forward ends a recomputed segment; None beside a forward's own: that.
    backward_transient_bytes, backward_overlap_bytes
        Of the backward with the recomputation that begins it: bytes above all that the replay
        counts with the whole saved set live, bytes below that.
    input_saved, output_saved
        Does what stays hold the layer's input, its output?
    """

    name: str
    saved_bytes: int
    recompute_time: int
    forward_transient_bytes: int | None = None
    backward_transient_bytes: int | None = None
    backward_overlap_bytes: int | None = None
    input_saved: bool | None = None
    output_saved: bool | None = None
    ending_transient_bytes: int | None = None


class Way(NamedTuple):
    """A way to keep a layer with nothing left open; fields as in `Option`.

    ``option`` is the option's name, or None where the whole saved set is kept.
    """

    option: str | None
    saved_bytes: int
    recompute_time: int
    forward_transient_bytes: int
    backward_transient_bytes: int
    backward_overlap_bytes: int
    input_saved: bool
    output_saved: bool
    ending_transient_bytes: int


@dataclass(frozen=True, slots=True)
class Layer:
    """Costs of one layer; all sizes in bytes, all times in one integer unit.

    Attributes
    ----------
    forward_time, backward_time
        f and b.
    output_bytes
        x, the activation handed to the next layer.
    saved_bytes
        w, what autograd keeps inside the layer, without its input and its output.
    recompute_time
        r, the forward when it ends a recomputed segment (torch stops early there).
    forward_transient_bytes
        tf, working memory of a forward that keeps, above ``output + saved``.
    drop_transient_bytes
        td, working memory of a forward that keeps nothing, above ``output``. What the saved set
        would have held is a temporary there, so it is often larger than tf.
    backward_transient_bytes
        tb, working memory of the backward above all that the replay counts.
    backward_overlap_bytes
        o, bytes by which the backward stays *below* that count, because parts of the saved set
        are freed before the gradients are allocated.
    gradient_bytes
        g, parameter gradients that this backward allocates and that stay.
    ending_transient_bytes
        te, in place of tf and tr in a forward that keeps and ends a recomputed segment; None: tf.
    first_transient_bytes, again_transient_bytes
        ta, tr, working memory on top of tf or td: of the first forward, of one that runs again.
    beside_bytes
        e, what the layer is handed beside its input and no later one is, made by the last layer
        before it that must be kept, or before the first: see `solvers.chain.problem.Chain.beside`.
    input_saved, output_saved
        Does the saved set also hold the layer's input, its output?
    recomputable
        False: this layer must be kept (a model's own code that no module wraps).
    options
        Cheaper ways to keep the layer.
    """

    name: str
    forward_time: int
    backward_time: int
    output_bytes: int
    saved_bytes: int
    recompute_time: int
    forward_transient_bytes: int = 0
    drop_transient_bytes: int = 0
    backward_transient_bytes: int = 0
    backward_overlap_bytes: int = 0
    gradient_bytes: int = 0
    ending_transient_bytes: int | None = None
    first_transient_bytes: int = 0
    again_transient_bytes: int = 0
    beside_bytes: int = 0
    input_saved: bool = True
    output_saved: bool = True
    recomputable: bool = True
    options: tuple[Option, ...] = ()

    @property
    def facts(self) -> tuple[object, ...]:
        """Everything but the names: layers with equal facts are interchangeable."""
        quantities = tuple(getattr(self, field) for field in QUANTITIES)
        ways = tuple(way[1:] for way in self.ways)
        return (*quantities, self.recomputable, ways)

    @property
    def ways(self) -> tuple[Way, ...]:
        """Every way to keep the layer, the whole saved set first."""
        own = [getattr(self, field) for field in Way._fields[3:]]
        if own[-1] is None:
            own[-1] = self.forward_transient_bytes
        ways = [Way(None, self.saved_bytes, 0, *own)]
        for option in self.options:
            given = [getattr(option, field) for field in Way._fields[3:]]
            if given[-1] is None:
                given[-1] = option.forward_transient_bytes
            filled = [b if a is None else a for a, b in zip(given, own, strict=True)]
            ways.append(Way(option.name, option.saved_bytes, option.recompute_time, *filled))
        return tuple(ways)


class Layered:
    """A problem that is made of layers: a chain, a layer graph."""

    layers: tuple[Layer, ...]

    def __len__(self) -> int:
        return len(self.layers)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the layers."""
        return tuple(layer.name for layer in self.layers)

    @property
    def least_time(self) -> int:
        """Time of the plan that recomputes nothing: no plan of any kind takes less.

        Every layer runs once as a plain forward before anything ends a recomputed body, and once
        backward.
        """
        return sum(layer.forward_time + layer.backward_time for layer in self.layers)


QUANTITIES = tuple(field.name for field in fields(Layer) if field.type == "int")
OF_OPTION = tuple(field.name for field in fields(Option) if field.type in ("int", "int | None"))
OF_FORWARDS = ("first_transient_bytes", "again_transient_bytes")
"""What tells one forward of a layer from another."""
OF_CHAINS = (*OF_FORWARDS, "beside_bytes")
"""What graphs do not know."""
MAY_BE_NONE = tuple(field.name for field in fields(Option) if field.type == "int | None")


def most_overlap(layer: Layer, way: Way, input_bytes: int, *, first: bool = False) -> int:
    """Bytes by which a backward can stay below its count, for a layer kept that way.

    What is live before it and what is live after it are there at some moment. What an option left
    out, and is counted as made again, need not be there at once: it may be made tile by tile.
    `input_bytes` is the size of what the layer reads. Of what a `first` layer reads there need be
    no gradient; where it may run again, something follows its backward that counts one.
    """
    outputs = 2 if layer.output_saved or way.output_saved else 1
    held = layer.saved_bytes + outputs * layer.output_bytes
    again = layer.saved_bytes - way.saved_bytes
    if layer.output_saved and not way.output_saved:
        again += layer.output_bytes
    if first and not layer.recomputable:
        held += input_bytes
    least = min(held, again + input_bytes + layer.gradient_bytes)
    return least + way.backward_transient_bytes


def where(layer: Layer, option: str | None) -> str:
    """What a message calls a layer, or an option of it."""
    return f"layer {layer.name!r}" + ("" if option is None else f", option {option!r}")


def check_quantity(where: str, field: str, value: object) -> None:
    """A cost is an integer of at least zero; `InvalidProblem` names where it is not."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidProblem(f"{where}: {field} must be an integer, got {value!r}")
    if value < 0:
        raise InvalidProblem(f"{where}: {field} must not be negative, got {value}")


def check_sum(what: str, total: int) -> None:
    """Refuse a total that int64 arithmetic cannot hold."""
    if total >= LIMIT:
        raise InvalidProblem(f"{what} add up to {total}, beyond 2**62; use a larger unit")

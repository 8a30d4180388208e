"""The problem: a chain of layers with integer costs.

Times are integers in one unit (nanoseconds when they come from a cost file in ms or s):
float sums make equal plans look different and grow a frontier by noise. Bytes are integers.
"""

from __future__ import annotations

from dataclasses import dataclass

LIMIT = 2**62
"""No sum of costs a solver forms may reach this: the kernels add in int64."""


class InvalidProblem(ValueError):
    """A problem that has no meaning; the message names the layer and the field."""


@dataclass(frozen=True, slots=True)
class Option:
    """A cheaper way to keep a layer.

    Attributes
    ----------
    name
        What a plan calls it.
    saved_bytes
        Bytes of the saved set that stay (at most the layer's own ``saved_bytes``).
    recompute_time
        Time to make the rest again, once, at the layer's own backward.
    """

    name: str
    saved_bytes: int
    recompute_time: int


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
    input_saved: bool = True
    output_saved: bool = True
    recomputable: bool = True
    options: tuple[Option, ...] = ()

    @property
    def facts(self) -> tuple[object, ...]:
        """Everything but the names: layers with equal facts are interchangeable."""
        options = tuple((o.saved_bytes, o.recompute_time) for o in self.options)
        quantities = tuple(getattr(self, field) for field in _QUANTITIES)
        return (*quantities, self.input_saved, self.output_saved, self.recomputable, options)

    def option(self, name: str) -> Option:
        """The option called `name`; `KeyError` when there is none."""
        for option in self.options:
            if option.name == name:
                return option
        raise KeyError(name)


_QUANTITIES = (
    "forward_time",
    "backward_time",
    "output_bytes",
    "saved_bytes",
    "recompute_time",
    "forward_transient_bytes",
    "drop_transient_bytes",
    "backward_transient_bytes",
    "backward_overlap_bytes",
    "gradient_bytes",
)


@dataclass(frozen=True, slots=True)
class Chain:
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
            for field in _QUANTITIES:
                check_quantity(f"layer {layer.name!r}", field, getattr(layer, field))
            self._check_overlap(i)
            for option in layer.options:
                where = f"layer {layer.name!r}, option {option.name!r}"
                check_quantity(where, "saved_bytes", option.saved_bytes)
                check_quantity(where, "recompute_time", option.recompute_time)
                if option.saved_bytes > layer.saved_bytes:
                    raise InvalidProblem(
                        f"{where}: saved_bytes {option.saved_bytes} is more than the layer's own "
                        f"{layer.saved_bytes}; an option saves less"
                    )
            if len({option.name for option in layer.options}) < len(layer.options):
                raise InvalidProblem(f"layer {layer.name!r}: two options share a name")
        self._check_sums()

    def _check_overlap(self, i: int) -> None:
        # The backward's peak is at least what is live before it and what is live after it.
        layer = self.layers[i]
        held = layer.saved_bytes + layer.output_bytes * (2 if layer.output_saved else 1)
        made = self.input_of(i) + layer.gradient_bytes
        most = min(held, made) + layer.backward_transient_bytes
        if layer.backward_overlap_bytes > most:
            raise InvalidProblem(
                f"layer {layer.name!r}: backward_overlap_bytes {layer.backward_overlap_bytes} is "
                f"more than the {most} bytes that can overlap in its backward"
            )

    def _check_sums(self) -> None:
        n = len(self.layers)
        # A nested plan runs a layer's forward at most once per depth, and depth is at most n.
        time = sum(
            (n + 1) * max(la.forward_time, la.recompute_time)
            + la.backward_time
            + max((o.recompute_time for o in la.options), default=0)
            for la in self.layers
        )
        size = self.input_bytes + sum(
            4 * la.output_bytes
            + la.saved_bytes
            + la.forward_transient_bytes
            + la.drop_transient_bytes
            + la.backward_transient_bytes
            + la.gradient_bytes
            for la in self.layers
        )
        for what, total in (("times", time), ("sizes", size)):
            if total >= LIMIT:
                raise InvalidProblem(
                    f"the {what} add up to {total}, beyond 2**62; use a larger unit"
                )

    def __len__(self) -> int:
        return len(self.layers)

    def input_of(self, i: int) -> int:
        """Bytes of the activation that layer `i` reads."""
        return self.layers[i - 1].output_bytes if i else self.input_bytes


def check_quantity(where: str, field: str, value: object) -> None:
    """A cost is an integer of at least zero; `InvalidProblem` names where it is not."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidProblem(f"{where}: {field} must be an integer, got {value!r}")
    if value < 0:
        raise InvalidProblem(f"{where}: {field} must not be negative, got {value}")

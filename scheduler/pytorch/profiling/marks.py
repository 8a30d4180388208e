"""What is noted of a step at each of its moments, and what that adds up to."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from scheduler.costs.peaks import Peaks
from scheduler.pytorch.observe.autograd import Sink
from scheduler.pytorch.observe.layer import Layout, layout_of
from scheduler.pytorch.observe.tracker import MemoryTracker, storage_bytes


class Side:
    """A tensor beside the activation that takes a gradient from the blocks.

    `part`: the number of what made it; `size`: its bytes.
    """

    def __init__(self, tensor: torch.Tensor, part: int) -> None:
        self.there = weakref.ref(tensor)  # that it is held is for those who do
        self._form = tensor.shape, tensor.dtype, tensor.device
        self.part, self.size = part, storage_bytes(tensor)
        self.box: list[Any] = []
        self.scalar = Sink.apply(tensor, self.box)

    def let_go(self) -> int:
        """Put a gradient of the tensor into the box; its bytes."""
        shape, dtype, device = self._form
        self.box.append(torch.ones(shape, dtype=dtype, device=device))
        self.size = storage_bytes(self.box[0])
        return self.size


class Beside:
    """A tensor that a part made for the blocks of the run after it, which do not hold it kept.

    `last`: the number of the last block that is handed it.
    """

    def __init__(self, tensor: torch.Tensor, last: int) -> None:
        self.there = weakref.ref(tensor.untyped_storage())
        self.size, self.last = storage_bytes(tensor), last


class Start:
    """What is seen when the first block of a run is reached.

    `first`: the number of the first run that has the same input.
    """

    def __init__(
        self, activation: torch.Tensor, mark: Any, tracker: MemoryTracker, first: int | None
    ) -> None:
        self.mark, self.first = mark, first
        self.shape, self.dtype = activation.shape, activation.dtype
        self.device = activation.device
        self.needs_grad = activation.requires_grad
        self.storage = weakref.ref(activation.untyped_storage())
        self.tag = tracker.tag_of(activation)  # "": it was there before
        self.output_bytes = storage_bytes(activation)
        self.box: list[Any] = []
        with tracker.tag("sink"):
            self.scalar = Sink.apply(activation, self.box)

    @property
    def is_counted(self) -> bool:
        """Whether the activation is counted, and as the input of no earlier run."""
        return self.tag != "" and self.first is None

    def is_kept(self) -> bool:
        """Whether the activation is still there."""
        return self.storage() is not None


class Turn:
    """What is seen of a run between the backward of what comes after it and of what comes before.

    `base` is what is live then and not made by the part before the run, `link` its input among
    that; `sides` the gradients that the run makes of tensors
    beside its activation, by the number of the part that made them; `made` what is left by then of
    what the backwards of later parts have made, by their numbers; `below` what is left of the
    forwards of the parts before.
    """

    base = link = below = 0

    def __init__(self, mark: Any, gradient: torch.Tensor | None) -> None:
        self.mark = mark
        self.graded = gradient is not None
        self.layout: Layout | None = None if gradient is None else layout_of(gradient)
        self.sides: dict[int, int] = {}
        self.made: dict[int, int] = {}

    def begin(self, shared: Iterable[torch.Tensor], part: Part, tracker: MemoryTracker) -> None:
        """Let the backward of the part before begin, as the run's own would have left it."""
        with tracker.tag("sink"):
            for parameter in shared:
                parameter.grad = torch.zeros_like(parameter)
        self.base = tracker.live_bytes - tracker.live(part.tag)
        self.link = tracker.live(part.link)
        start = part.start
        assert start is not None
        if start.needs_grad:
            # What the part before hands on of it, where it has not made it, it has made itself.
            start.box.append(torch.ones(start.shape, dtype=start.dtype, device=start.device))
        with tracker.tag("gradients"):
            for side in part.sides:
                self.sides[side.part] = self.sides.get(side.part, 0) + side.let_go()
        tracker.reset_peak()


@dataclass
class Part:
    """What a model does before a run of blocks, or after the last; what is seen of that.

    Attributes
    ----------
    begins
        The mark at its beginning.
    start
        What is seen at its end; None for the last part.
    sides
        Tensors that first the run after it passes a gradient to.
    held
        Tensors that it made and that the blocks after it hold.
    together
        The most bytes that were live during its forward, but for the inputs of runs.
    inputs
        Numbers of the runs whose input was there then.
    kept, link_kept, output_kept
        What is left of what it made, of its input and its output when the loss is there.
    entry
        The node that lets a gradient into the run before it.
    wanted
        Whether the run after it would hand on the gradient of what it hands over.
    given
        Parameters to which what comes after the run after it gives a gradient.
    turn
        Of the run after it.
    backward_peak, gradient_bytes
        Of its backward.
    freed
        Bytes that its backward frees of what those of later parts have made, by their numbers.
    """

    number: int
    begins: Any
    input_bytes: int = 0
    start: Start | None = None
    sides: list[Side] = field(default_factory=list)
    held: list[torch.Tensor] = field(default_factory=list)
    own_peak: int = 0
    together: int = 0
    inputs: set[int] = field(default_factory=set)
    kept: int = 0
    link_kept: int = 0
    output_kept: bool = False
    entry: Any = None
    wanted: bool = False
    given: set[int] = field(default_factory=set)
    turn: Turn | None = None
    backward_peak: int = 0
    gradient_bytes: int = 0
    freed: dict[int, int] = field(default_factory=dict)

    @property
    def tag(self) -> str:
        """What its tensors are booked under."""
        return f"part {self.number}"

    @property
    def link(self) -> str:
        """What its input is booked under."""
        return f"link {self.number}"

    @property
    def backward(self) -> str:
        """What its backward's tensors are booked under, but for the last."""
        return f"backward {self.number}"


class Local(NamedTuple):
    """What the model's own code still refers to while a block runs forward at first.

    It lets that go before the backward: `nbytes` of what no block holds, and the inputs of runs,
    by the number of the run with their bytes, which the first block of the run may hold as well.
    """

    nbytes: int
    inputs: list[tuple[int, int]]


@dataclass(frozen=True)
class Run:
    """What the profile of a run's blocks must know of the model around them.

    `needs_grad`: of its input. `given` are parameters to which what comes after it gives a
    gradient, `layout` the strides of the one that it is handed, see `IsolatedLayer`. `cut_off`: it
    has no backward, as nothing in it is trained, or no gradient comes to what it hands over.
    """

    needs_grad: bool
    given: set[int]
    layout: Layout | None
    cut_off: bool


@dataclass(frozen=True)
class Parts:
    """What a model does around its blocks.

    Attributes
    ----------
    peaks
        Of what comes before the first run of blocks (None: nothing), between each two, and after
        the last.
    runs
        What is between them.
    held_bytes
        What is there from beginning to end: the inputs, the loss, and what was made before the
        blocks and is not in `beside`, such as position embeddings: `side_bytes` of it,
        `loss_bytes`.
    local
        Of each block: what the model's own code still refers to while it runs.
    beside
        Of each block: bytes that no later one is handed beside its activation, made for its run;
        of blocks that are kept nobody holds them.
    inputs
        Of each part: the number of each run whose input is there while the part runs forward, and
        its bytes, which are not counted: the first block of the run may hold it.
    freed
        Gradients that wait: the number of the part that makes them, of the one that uses them up,
        their bytes.
    sides
        Of each tensor that blocks pass a gradient to beside their activation: the number of the
        part that made it, its bytes.
    again
        Of parts that hand a run what is there already: their number, and of the run whose input it
        is, too; None: a part holds it, or the model's user.
    passed
        Numbers of the parts that hand on their input.
    """

    peaks: list[Peaks | None]
    runs: list[Run]
    held_bytes: int
    side_bytes: int
    loss_bytes: int
    local: list[Local]
    beside: list[int]
    inputs: list[list[tuple[int, int]]]
    freed: list[tuple[int, int, int]]
    sides: list[tuple[int, int]]
    again: dict[int, int | None]
    passed: set[int]

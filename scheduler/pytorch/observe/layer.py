"""Run one layer by itself, forward and backward, and see what it keeps and needs.

Everything is read off from what is alive, not from what autograd says it saves: after the forward,
whatever storages are alive and were made by the layer are its saved set, whoever holds them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import mul
from statistics import median
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointError, checkpoint

from scheduler.common.errors import UnsupportedModel
from scheduler.costs.peaks import Peaks
from scheduler.export.standalone.state import Snapshot, is_expanded
from scheduler.pytorch.observe.autograd import Aside, Sink, Source, gate, saving_nothing
from scheduler.pytorch.observe.clock import Clock, spread
from scheduler.pytorch.observe.dispatch import statistics_written, tensors_of, written
from scheduler.pytorch.observe.tracker import MemoryTracker, storage_bytes, unique_bytes

Layout = tuple[int, ...]


@dataclass(frozen=True)
class IsolatedLayer:
    """A layer to be run by itself.

    Attributes
    ----------
    run
        Runs it on an activation and on `sides`: a tensor comes out.
    template
        A tensor like its activation, which requires a gradient if `needs_grad`; not changed.
    sides
        Tensors beside the activation that require one.
    waiting
        For each of these: have later layers made its gradient already?
    trained
        All to whose ``.grad`` the layer adds.
    earlier
        Those of them to which later layers have given a gradient already.
    layout
        Strides of the gradient that the next layer's backward hands it; None: like its output.
    state
        What a forward changes on the layer's module and its arguments; each run starts from it.
    """

    run: Callable[[torch.Tensor, list[torch.Tensor]], torch.Tensor]
    template: torch.Tensor
    needs_grad: bool
    sides: Sequence[torch.Tensor]
    waiting: Sequence[bool]
    trained: Sequence[torch.Tensor]
    earlier: Sequence[torch.Tensor]
    layout: Layout | None
    state: Snapshot

    def clear(self) -> None:
        """Forget an earlier run: its gradients, and what it has changed."""
        self.state.put()
        for tensor in self.trained:
            tensor.grad = None

    def gradient(self, output: torch.Tensor) -> torch.Tensor:
        """A gradient for the layer's output, laid out as the next layer lays it out."""
        if self.layout is None:
            return torch.ones_like(output)
        # As a view of whole rows, as it mostly is where it is one of something larger.
        size = max(map(mul, output.size(), self.layout), default=1)
        rows = torch.empty(size, dtype=output.dtype, device=output.device)
        return rows.as_strided(output.size(), self.layout).fill_(1)

    def forward(
        self, door: torch.Tensor, box: list[torch.Tensor], gradients: _Gradients | None = None
    ) -> torch.Tensor:
        """Run on the activation in the box, which is let go as the layer lets it go."""
        gradients = gradients or _Gradients()
        sides = [Aside.apply(door, [side], gradients.of_sides.append) for side in self.sides]
        gradients.entries = sides
        if self.needs_grad:
            return self.run(Source.apply(door, box, gradients.of_input.append), sides)
        return self.run(box.pop().detach(), sides)


class _Gradients:
    """What comes out of a layer's backward, and where more goes into that of its sides."""

    def __init__(self) -> None:
        self.of_input: list[Any] = []
        self.of_sides: list[Any] = []
        self.entries: list[torch.Tensor] = []


def see_layer(layer: IsolatedLayer, clock: Clock) -> tuple[Peaks, Layout | None]:
    """Profile one layer; also the layout of the gradient it hands on, where that is a copy.

    Raises `UnsupportedModel` where the layer changes its input in place: what is recomputed from
    it would be wrong.
    """
    template = layer.template
    version = template._version
    forward, recompute, backward, share = _times(layer, gate(template.device), clock)
    if template._version != version:
        raise UnsupportedModel("it changes its input in place; use the version that does not")
    if (lost := layer.state.lost) is not None:
        raise UnsupportedModel(
            f"it changes {lost} in place, which a recomputation would do again and which is not "
            "put back; make a small buffer of it, or a new tensor each time"
        )
    peaks, layout = see_bytes(layer)
    again = _again(layer, peaks.left_bytes)
    again_peak, early = again or (0, 0)
    return replace(
        peaks,
        forward_time=forward,
        recompute_time=recompute,
        backward_time=backward,
        time_spread=share,
        repeatable=again is not None,
        again_peak=again_peak + peaks.state_bytes if again_peak else 0,
        early_bytes=early,
        copied_bytes=layer.state.copied_bytes,
    ), layout


def _again(layer: IsolatedLayer, left: int) -> tuple[int, int] | None:
    """`Peaks.again_peak` and `early_bytes`; None where a recomputation goes another way.

    `left`: bytes that the first forward leaves, which are counted throughout.
    """
    found: list[int] = []
    live: list[int] = []

    def run(activation: torch.Tensor, sides: list[torch.Tensor]) -> Any:
        def body(given: torch.Tensor) -> torch.Tensor:
            layer.state.put()
            live.append(tracker.live("layer"))
            tracker.reset_peak()
            try:
                return layer.run(given, sides)
            finally:  # torch ends it by an error
                found.append(tracker.peak("layer"))

        return checkpoint(body, activation, use_reentrant=False)

    layer.clear()
    box: list[Any] = []
    tracker, door = MemoryTracker(), gate(layer.template.device)
    door.grad = torch.zeros_like(door)  # as in `see_bytes`
    with tracker, tracker.tag("layer"):
        out = replace(layer, run=run).forward(door, [layer.template])
        if not out.requires_grad:
            return 0, 0
        box.append(layer.gradient(out))
        # The cost model counts a gradient like the output; a view of something larger is more.
        given = min(storage_bytes(box[0]), storage_bytes(out))
        with tracker.tag("sink"):
            scalar = Sink.apply(out, box)
        del out
        given += min(tracker.live("layer") - storage_bytes(box[0]), left)
        try:
            scalar.backward()  # what it starts from stays to its end, in a step as here
        except CheckpointError:
            return None
    layer.clear()
    if len(live) < 2:
        return 0, 0
    given += storage_bytes(scalar)
    return max(found[1] - given, 0), max(live[1] - given, 0)


def see_bytes(layer: IsolatedLayer, *, plain: bool = True) -> tuple[Peaks, Layout | None]:
    """As `see_layer`, without the clock: every time is 0.

    `plain`: what a forward that saves nothing leaves is left to others; else it is kept to be
    handed back.
    """
    template = layer.template
    door = gate(template.device)
    door.grad = torch.zeros_like(door)  # there before the layer runs, and so not counted as its own
    layer.clear()
    writes = Writes(layer.state)
    tracker = MemoryTracker(writes)
    box: list[Any] = []
    with tracker:
        with tracker.tag("input"):
            source = [template.clone()]
        with tracker.tag("drop"), saving_nothing():
            out = layer.forward(door, source)
        drop_peak, output_bytes = tracker.peak("drop"), storage_bytes(out)
        own = tracker.disown(out) > 0  # not a view of the input
        with tracker.tag("sink"):
            graph = Sink.apply(out, box)  # what follows holds it, with leaves that were made here
        del out
        # A kept run counts what it leaves as saved, and it is there once: not what is on modules,
        # where the attributes of a forward and of its recomputation may be there side by side.
        parts = [vars(part) for root in layer.state.roots for part in root.modules()]
        on_modules = sum(tracker.disown(tensor) for tensor in tensors_of(parts))
        left = tracker.live("drop") if plain else 0
        on_others = tracker.live("input")  # of what it was handed
        del graph
        # Before it is put back, which is a write, too.
        state_bytes = writes.copied_bytes + _replaced_bytes(layer.state)
        layer.state.put()
        gradients = _Gradients()
        with tracker.tag("input"):
            # A copy that nobody else holds: it is live afterwards only if the layer saves it.
            source = [template.clone()]
        with tracker.tag("layer"):
            out = layer.forward(door, source, gradients)
            forward_peak = tracker.peak("layer")
            if out.requires_grad:
                box.append(layer.gradient(out))
            with tracker.tag("sink"):
                scalar = Sink.apply(out, box)
            with_output = tracker.live("layer")
            del out
            saved = tracker.live("layer") - sum(storage_bytes(d) for d in box)
            input_saved = tracker.live("input") > 0
            if own:
                output_saved = with_output == tracker.live("layer") and saved >= output_bytes
            else:
                output_saved = input_saved
            if output_saved and own:
                saved -= output_bytes
            before = tracker.live("layer")
            roots = _earlier_gradients(layer, gradients, tracker)
            before = tracker.live("layer") - before
            with tracker.tag("sink"):
                starts = [torch.ones_like(root) for root in roots]
            tracker.reset_peak()
            if scalar.requires_grad:
                torch.autograd.backward([scalar, *roots], [None, *starts])
            backward_peak = tracker.peak("layer") - before
            stays = tracker.live("layer") - before
            # Not one that lies in a storage with a side's, as those of a concatenation do.
            beside = [d.untyped_storage() for d in gradients.of_sides if d is not None]
            made = sum(
                tracker.disown(d)
                for d in gradients.of_input
                if d is not None and all(d.untyped_storage() is not s for s in beside)
            )
            layout = layout_of(gradients.of_input[0]) if gradients.of_input else None
    layer.clear()
    peaks = Peaks(
        input_bytes=storage_bytes(template),
        output_bytes=output_bytes,
        saved_bytes=max(saved - left, 0),
        input_saved=input_saved,
        output_saved=output_saved,
        forward_peak=forward_peak,
        drop_peak=drop_peak,
        backward_peak=backward_peak,
        gradient_bytes=max(stays - made - left, 0) if scalar.requires_grad else 0,
        state_bytes=state_bytes,
        left_bytes=on_modules + left + on_others,
    )
    return peaks, layout


class Writes:
    """What operations write to of a state; an observer of a `MemoryTracker`."""

    def __init__(self, state: Snapshot) -> None:
        self._copies = {
            id(tensor.untyped_storage()): copy
            for tensor, _, copy in state.tensors
            if copy is not None
        }
        self._written: set[int] = set()

    def __call__(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        """Look at an operation."""
        for tensor in tensors_of([*written(func, args, kwargs), *statistics_written(func, args)]):
            self._written.add(id(tensor.untyped_storage()))

    @property
    def copied_bytes(self) -> int:
        """Bytes of it that a forward must copy to be run again."""
        return sum(copy.nbytes for key, copy in self._copies.items() if key in self._written)


def _replaced_bytes(state: Snapshot) -> int:
    """Bytes of tensors that are no longer where they were, which the snapshot alone still holds."""
    changed = [each for each in state.cells if not each[0].same(each[1], each[2])]
    before = Snapshot((), handed=[saved for _, _, saved in changed])
    now = Snapshot((), handed=[value for _, value, _ in changed])
    there = {id(tensor.untyped_storage()) for tensor, _, _ in now.tensors}
    gone = [t for t, _, _ in before.tensors if id(t.untyped_storage()) not in there]
    gone += [state.places[id(t)] for t, _, _ in state.tensors if state.is_elsewhere(t)]
    return unique_bytes(gone)


def keeps_output(layer: IsolatedLayer) -> bool:
    """Whether a forward leaves its output where its module has it."""
    layer.clear()
    storage = layer.forward(gate(layer.template.device), [layer.template]).untyped_storage()
    changed = [value for kind, value, saved in layer.state.cells if not kind.same(value, saved)]
    there = Snapshot((), handed=changed).tensors
    found = any(tensor.untyped_storage() is storage for tensor, _, _ in there)
    layer.clear()
    return found


def layout_of(gradient: torch.Tensor) -> Layout | None:
    """Strides of a gradient; None where it is expanded, and takes less memory than it shows."""
    return None if is_expanded(gradient) else gradient.stride()


def _earlier_gradients(
    layer: IsolatedLayer, gradients: _Gradients, tracker: MemoryTracker
) -> list[torch.Tensor]:
    """Put there what later layers have made; roots that hand it to the sides' graph."""
    roots = []
    for tensor in layer.earlier:
        tensor.grad = torch.zeros_like(tensor)
    for entry, waiting in zip(gradients.entries, layer.waiting, strict=True):
        if waiting:
            box = [torch.ones_like(entry)]
            with tracker.tag("sink"):
                roots.append(Sink.apply(entry, box))
    gradients.entries = []
    return roots


def _times(
    layer: IsolatedLayer, door: torch.Tensor, clock: Clock
) -> tuple[float, float, float, float]:
    """Medians of the forward, the forward up to the last tensor it saves, the backward, in ms.

    Then their spread.
    """

    def run() -> tuple[float, float, float]:
        layer.clear()
        start = clock.mark()
        out = layer.forward(door, [layer.template])
        end = clock.mark()
        box = [layer.gradient(out)]
        scalar = Sink.apply(out, box)
        del out
        begin = clock.mark()
        if scalar.requires_grad:
            scalar.backward()
        finish = clock.mark()
        # Where torch's recomputation stops: when the last tensor to be saved is packed.
        marks = _saving_marks(layer, door, clock)
        whole = clock.between(marks[0], marks[-1])
        share = clock.between(marks[0], marks[-2]) / whole if whole else 0.0
        return clock.between(start, end), share, clock.between(begin, finish)

    forwards, shares, backwards = zip(*clock.repeated(run), strict=True)
    time, apart = median(forwards), spread(forwards, backwards)
    return time, time * min(median(shares), 1.0), median(backwards), apart


def _saving_marks(layer: IsolatedLayer, door: torch.Tensor, clock: Clock) -> list[Any]:
    """Marks at the start of a forward, at each tensor it saves, and at its end."""
    layer.state.put()
    marks = [clock.mark()]
    with saving_nothing(lambda tensor: marks.append(clock.mark())):
        layer.forward(door, [layer.template])
    marks.append(clock.mark())
    return marks

"""Profile what a model does around its runs of blocks, with the blocks left out.

Autograd runs backward in the reverse order of the forward, so whatever leads from where to where,
the parts and the runs between them are layers of one chain.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from itertools import islice, pairwise
from statistics import median
from typing import Any

import torch
from torch import nn

from scheduler.common.errors import UnsupportedModel
from scheduler.costs.peaks import Peaks
from scheduler.export.standalone.state import Snapshot
from scheduler.pytorch.model.autocast import Ambient
from scheduler.pytorch.model.call import Call, NoChain
from scheduler.pytorch.model.calls import (
    CalledBlock,
    call_around,
    instead,
    own_parameters,
    used_outside,
)
from scheduler.pytorch.model.replace import replaced
from scheduler.pytorch.model.step import clear_gradients, loss_of
from scheduler.pytorch.observe.autograd import Aside, Join, Source, gate, leaves_above
from scheduler.pytorch.observe.clock import Clock, spread
from scheduler.pytorch.observe.dispatch import tensors_of
from scheduler.pytorch.observe.tracker import MemoryTracker, storage_bytes, unique_bytes
from scheduler.pytorch.profiling.blocks import see_holds
from scheduler.pytorch.profiling.marks import Beside, Local, Part, Parts, Run, Side, Start, Turn

Loss = Callable[[Any], Any] | None


def see_parts(
    model: nn.Module,
    inputs: Any,
    loss_fn: Loss,
    blocks: list[CalledBlock],
    clock: Clock,
    ambient: Ambient,
) -> Parts:
    """Profile what runs before, between and after the runs of blocks, these themselves left out.

    Also notes in each block which of its other arguments it passes a gradient to (its `sides`) and
    which it holds, and which of the tensors that it makes beside the activation are given a
    gradient (`graded`).

    Raises `UnsupportedModel` where a block is handed what another makes beside its activation, or
    the loss has no gradient.
    """

    def step(tracked: bool) -> _Step:
        return _Step(model, inputs, loss_fn, blocks, clock, tracked=tracked)

    timed = clock.repeated(lambda: step(tracked=False).times())
    see_holds(blocks, ambient)
    return step(tracked=True).parts(list(zip(*timed, strict=True)))


class _Step:
    """One step of the model in which the blocks pass on stand-ins, and the last of a run a copy."""

    def __init__(
        self,
        model: nn.Module,
        inputs: Any,
        loss_fn: Loss,
        blocks: list[CalledBlock],
        clock: Clock,
        *,
        tracked: bool,
    ) -> None:
        self.model, self.inputs = model, inputs
        self.blocks = blocks
        self.clock = clock
        self.tracker = MemoryTracker(self._see)
        self.all: list[Part] = []
        # Of the blocks' other arguments: what is held throughout, what of it only by kept blocks.
        self.side_bytes = 0
        self._of_kept: list[tuple[weakref.ref[Any], int]] = []
        self._beside: list[Beside] = []
        self._in_forward, self._in_block = True, False
        # Of each block: what was live when it was called, and the inputs of which runs.
        self._reached: list[int] = []
        self._inputs: list[set[int]] = []
        self._stand_ins: list[tuple[weakref.ref[Any], int, int]] = []  # storage, bytes, block
        self._waiting: list[torch.Tensor] = []  # gradients of what blocks make beside
        self._passed: tuple[weakref.ref[Any], Any] | None = None  # into a run: storage, node
        clear_gradients(model, inputs)
        state = Snapshot([block.module for block in blocks if block.left], lambda tensor: False)
        with self.tracker if tracked else nullcontext(), ExitStack() as self._tags:
            self._run(loss_fn)
        clear_gradients(model, inputs)
        state.put()

    def _run(self, loss_fn: Loss) -> None:
        tracker, clock = self.tracker, self.clock
        self._begin(0)
        with instead(self.blocks, self._called):
            loss = loss_of(call_around(self.model, self.inputs), loss_fn)
        self._in_forward = False
        if len(self._reached) < len(self.blocks):
            raise UnsupportedModel(
                f"block {self.blocks[len(self._reached)].name!r} is not called in every step: "
                "the model skips blocks at random; switch that off"
            )
        self._loss_is_there(loss)
        if not loss.requires_grad:
            raise UnsupportedModel("the loss does not depend on any parameter that requires grad")
        for part, after in pairwise(self.all):
            part.given = {id(leaf) for leaf in leaves_above(loss.grad_fn, after.entry)}
        with tracker.tag("sink"):
            root = torch.ones_like(loss)  # held, or it would be freed between the two backwards
        tracker.reset_peak()
        self._backward = clock.mark()
        loss.backward(root)
        self._finish = clock.mark()
        self._turn_all_after(-1, self._finish)
        self._end_backward(self.all[0])
        del loss, root

    def _begin(self, input_bytes: int) -> None:
        """Begin a part."""
        self._tags.close()
        part = Part(len(self.all), self.clock.mark(), input_bytes)
        self.all.append(part)
        self._tags.enter_context(self.tracker.tag(part.tag))

    def _see(self, *operation: Any) -> None:
        # What the model's own code still refers to is there while a part runs forward, too.
        if self._in_block:
            return  # a block's own forward is seen where it is profiled
        if self._in_forward:
            part = self.all[-1]
            there = self._inputs_there()
            part.inputs |= there
            part.together = max(part.together, self._live() - self._input_bytes(there))
        elif self._passed and self._passed[1] is not torch._C._current_autograd_node():
            self._see_shared()

    def _inputs_there(self) -> set[int]:
        """Numbers of the runs whose input is there."""
        return {
            part.number
            for part in self.all
            if part.start and part.start.first is None and part.start.is_kept()
        }

    def _input_bytes(self, runs: Iterable[int]) -> int:
        """Bytes of the inputs of runs that the tracker counts."""
        starts = (self.all[run].start for run in runs)
        return sum(start.output_bytes for start in starts if start and start.is_counted)

    def _live(self, but: int | None = None) -> int:
        """Bytes live, with those that stand-ins stand for; `but` without one block's activation."""
        self._stand_ins = [each for each in self._stand_ins if each[0]() is not None]
        more = sum(size for _, size, number in self._stand_ins if number != but)
        return self.tracker.live_bytes - self.tracker.live("sink") + more

    def _loss_is_there(self, loss: torch.Tensor) -> None:
        tracker = self.tracker
        self._forward_end = self.clock.mark()
        self.loss_bytes = storage_bytes(loss)
        self.all[-1].own_peak = tracker.peak(self.all[-1].tag)
        for part in self.all:
            part.kept, part.link_kept = tracker.live(part.tag), tracker.live(part.link)
            part.output_kept = part.start is not None and part.start.is_kept()
        # What is left of these somebody else holds.
        self._beside = [beside for beside in self._beside if beside.there() is None]
        self._freed = sum(size for there, size in self._of_kept if there() is None)
        self._live()
        self.extra_bytes = sum(size for _, size, _ in self._stand_ins)

    # Runs of blocks

    def _called(self, block: CalledBlock, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._in_block = True
        try:
            return self._block(block, args, kwargs)
        finally:
            self._in_block = False

    def _block(self, block: CalledBlock, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tracker = self.tracker
        number, part = len(self._reached), self.all[-1]
        if number == len(self.blocks) or self.blocks[number] is not block:
            raise UnsupportedModel(
                f"block {block.name!r} is called in another place than in a step before: the model "
                "skips or repeats blocks at random; switch that off"
            )
        call = Call.of(block.name, args, kwargs)
        others = call.others
        block.no_grad = not torch.is_grad_enabled()
        self._check_not_beside(block, call.activation, number - 1)
        if part.start is None:
            part.own_peak = tracker.peak(part.tag)
            storage = call.activation.untyped_storage()
            same = (p.number for p in self.all if p.start and p.start.storage() is storage)
            part.start = Start(call.activation, self.clock.mark(), tracker, next(same, None))
            if part.start.needs_grad:
                self._turn_before(part.start.scalar, part)
        block.sides = self._aside(block, others)
        self._reached.append(self._live(but=number - 1))
        self._inputs.append(self._inputs_there())
        with tracker.tag("sink"):
            passed = block.form.stand_in()
        extras = iter(self._extras(block, part))
        mine = list(islice(extras, len(block.packing.extras)))
        of_leaks = [list(islice(extras, len(leak.packing.extras))) for leak in block.leaks]
        for left in block.left:
            left.put(list(islice(extras, len(left.packing.extras))))
        for leak in block.leaks:
            made = of_leaks.pop(0)
            with replaced(leak.module, partial(_handed, leak.packing.pack(None, (), made))):
                leak.module()  # for its hooks
            del made
        is_last = block is self.blocks[-1] or self.blocks[number + 1].run > block.run
        if is_last:
            passed = self._link(block, part)
        else:
            self._stands_for(passed, block.form.nbytes, number)
        del call, args, kwargs  # or this would be what still refers to the activation
        return block.packing.pack(passed, others, mine)

    def _stands_for(self, tensor: torch.Tensor, size: int, number: int) -> None:
        self._stand_ins.append((weakref.ref(tensor.untyped_storage()), size, number))

    def _extras(self, block: CalledBlock, part: Part) -> list[torch.Tensor]:
        """Stand-ins for what a block makes beside its activation."""
        made = []
        first_left = len(block.extras) - sum(len(each.packing.extras) for each in block.left)
        for place, form in enumerate(block.extras):
            with self.tracker.tag("sink"):
                tensor = form.stand_in()
                if tensor.is_floating_point():

                    def seen(gradient: torch.Tensor, place: int = place) -> None:
                        block.graded.add(place)
                        self._waiting.append(gradient)

                    tensor = self._way_in(part, tensor, seen)
            if place < first_left:  # what is left is counted where the block is profiled
                self._stands_for(tensor, form.nbytes, -1)
            made.append(tensor)
        return made

    def _link(self, block: CalledBlock, part: Part) -> torch.Tensor:
        """Begin the part after a run, with a copy of what its last block handed over."""
        tracker = self.tracker
        assert block.output is not None
        run = [each for each in self.blocks if each.run == block.run]
        following = len(self.all)
        input_bytes = storage_bytes(block.output)
        self._begin(input_bytes)
        with tracker.tag(self.all[-1].link):
            # A copy, so that nothing but the model's own code can keep it alive.
            link = block.output.clone()
        trained = any(each.sides or own_parameters(each.module) for each in run)
        part.wanted = self._upstream(part) or trained
        if part.wanted:
            link = self._way_in(part, link, lambda d: self._turn_around(following - 1, d))
            self.all[-1].entry = link.grad_fn
        return link

    def _way_in(
        self, part: Part, tensor: torch.Tensor, seen: Callable[[torch.Tensor], Any]
    ) -> torch.Tensor:
        """A tensor that the run after a part hands over, whose gradient is seen and goes below."""
        with self.tracker.tag("sink"):
            door = self._door(part, tensor.device)
        # A gate of our own would keep a gradient, which would count as one of the model's.
        source = Source if self._upstream(part) else Aside
        made: torch.Tensor = source.apply(door, [tensor], seen)
        return made

    @staticmethod
    def _upstream(part: Part) -> bool:
        """Whether a gradient goes from the run after a part into what comes before."""
        return bool(part.sides) or (part.start is not None and part.start.needs_grad)

    def _door(self, part: Part, device: torch.device) -> torch.Tensor:
        """A scalar whose backward goes on into all that comes before the run after a part."""
        start = part.start
        scalars = [start.scalar] if start is not None and start.needs_grad else []
        scalars += [side.scalar for side in part.sides]
        if not scalars:
            return gate(device)
        door: torch.Tensor = scalars[0] if len(scalars) == 1 else Join.apply(*scalars)
        return door

    def _aside(self, block: CalledBlock, others: Sequence[Any]) -> dict[int, int]:
        """Take note of a block's other arguments; the places of those that take a gradient."""
        known = self._sides()
        starts = [part.start.storage() for part in self.all if part.start is not None]
        places = {}
        for place, leaf in enumerate(others):
            if not isinstance(leaf, torch.Tensor):
                continue
            storage = leaf.untyped_storage()
            self._check_not_beside(block, leaf)
            tag = self.tracker.tag_of(leaf)
            is_input = any(storage is start for start in starts)
            of_run = tag == self.all[block.run].tag and not is_input
            known_beside = next((b for b in self._beside if b.there() is storage), None)
            if of_run and place not in block.holds:
                if known_beside is None:
                    self._beside.append(Beside(leaf, 0))
                    known_beside = self._beside[-1]
                known_beside.last = len(self._reached)
            else:
                if known_beside is not None:
                    self._beside.remove(known_beside)
                if is_input or tag not in ("", self.all[0].tag):
                    self._hold(leaf, tag)
                elif size := self.tracker.disown(leaf):
                    self.side_bytes += size
                    if place not in block.stays:
                        self._of_kept.append((weakref.ref(storage), size))
                    # It has been there since before the first run, and is held throughout.
                    self._reached = [live - size for live in self._reached]
                    for part in self.all[1:]:
                        part.together -= size
            if not leaf.requires_grad or leaf.is_leaf:
                continue
            number = next((i for i, side in enumerate(known) if side.there() is leaf), len(known))
            if number == len(known):
                with self.tracker.tag("sink"):
                    known.append(Side(leaf, self._made_by(tag)))
                self._turn_before(known[-1].scalar, self.all[-1])
                self.all[-1].sides.append(known[-1])
            places[place] = number
        return places

    def _check_not_beside(
        self, block: CalledBlock, tensor: torch.Tensor, but: int | None = None
    ) -> None:
        """Raise `NoChain` for a tensor that a block hands over; `but` the activation of one."""
        storage = tensor.untyped_storage()
        if any(there() is storage and number != but for there, _, number in self._stand_ins):
            raise NoChain(
                f"block {block.name!r} is handed what a block before it makes beside its "
                "activation; leave the one that makes it out of the blocks"
            )

    def _sides(self) -> list[Side]:
        return [side for part in self.all for side in part.sides]

    def _made_by(self, tag: str) -> int:
        return int(tag.rpartition(" ")[2] or 0)

    def _hold(self, leaf: torch.Tensor, tag: str) -> None:
        """Keep a tensor, as the blocks do that are handed it, until their backward is over."""
        held = self.all[self._made_by(tag)].held
        if all(leaf is not tensor for tensor in held):
            held.append(leaf)

    # The backward

    def _turn_around(self, run: int, gradient: torch.Tensor | None) -> None:
        mark = self.clock.mark()
        self._turn_all_after(run, mark)
        self._turn(run, mark, gradient)

    def _turn_before(self, scalar: torch.Tensor, part: Part) -> None:
        """Turn before a gradient goes on below a run, if it has not come by the activation.

        What a run hands over may have none, and what it makes beside that one.
        """

        def turn(_: Any) -> None:
            if part.turn is None:
                self._turn_around(part.number, None)

        scalar.register_hook(turn)

    def _turn_all_after(self, run: int, mark: Any) -> None:
        """Between two backwards there may be runs whose output has no gradient."""
        for later in range(len(self.all) - 2, run, -1):
            if self.all[later].turn is None:
                self._turn(later, mark, None)

    def _turn(self, run: int, mark: Any, gradient: torch.Tensor | None) -> None:
        """End the backward of what comes after a run, and begin that of what comes before."""
        tracker, part = self.tracker, self.all[run]
        self._see_shared()
        self._end_backward(self.all[run + 1], gradient)
        self._tags.close()
        self._tags.enter_context(tracker.tag(part.backward))
        blocks = [block for block in self.blocks if block.run == run]
        shared = [p for p in used_outside(self.model, blocks) if id(p) not in part.given]
        part.turn = Turn(mark, gradient)
        part.held.clear()
        part.turn.begin(shared, part, tracker)
        part.turn.made = {after.number: self._made_in(after) for after in self.all[run + 1 :]}
        part.turn.below = self._kept_below(part)

    def _made_in(self, part: Part) -> int:
        """Bytes left of what was made in the backward of a part."""
        return self.tracker.live(part.backward if part.start is not None else part.tag)

    def _kept_below(self, part: Part) -> int:
        """Bytes of what the parts before a part have made, and of the inputs of those."""
        tags = (tag for below in self.all[: part.number] for tag in (below.tag, below.link))
        return sum(map(self.tracker.live, tags))

    def _see_shared(self) -> None:
        """Count the gradient that went into a run again where it waits for a part below, too."""
        passed, self._passed = self._passed, None
        if passed is None or (storage := passed[0]()) is None:
            return
        part = next(part for part in self.all if part.turn is not None)
        assert part.turn is not None
        size, tag = self.tracker.own_again(storage)
        self.all[part.number + 1].gradient_bytes += size
        part.turn.base += size
        for after in self.all[part.number + 1 :]:
            if tag in (after.tag, after.backward):
                part.turn.made[after.number] += size

    def _end_backward(self, part: Part, gradient: torch.Tensor | None = None) -> None:
        tracker, turn = self.tracker, part.turn
        peak = tracker.peak(part.tag) if turn is None else tracker.peak_bytes
        if gradient is not None:
            tracker.disown(gradient)  # it goes on into the blocks
            node = torch._C._current_autograd_node()
            self._passed = weakref.ref(gradient.untyped_storage()), node
        if turn is None:  # the last: what is freed of others meanwhile counts as there
            live = tracker.live(part.tag) - self.loss_bytes
        else:
            # With the root of the backward, which a block that is run by itself has, too.
            peak += self.loss_bytes - turn.base - sum(turn.sides.values())
            # Its input, which it may free, is no gradient.
            live = tracker.live_bytes - tracker.live(part.link) - (turn.base - turn.link)
            live -= sum(size for made_by, size in turn.sides.items() if made_by < part.number)
            # What it frees of the parts before counts as freed by theirs, as they have saved it.
            live += turn.below - self._kept_below(part)
            if part.number:
                # What waits for this backward counts as saved, not as a gradient that stays.
                part.freed = {
                    number: max(size - self._made_in(self.all[number]), 0)
                    for number, size in turn.made.items()
                }
                freed = sum(part.freed.values())
                sides = sum(side.size for side in self._sides() if side.part == part.number)
                # Whoever made it counts it as live, and the peak is above what is live.
                live += freed + sides - turn.sides.get(part.number, 0)
            # Of the first: a weight that two parts share has one gradient, made anew from the two,
            # and what is freed of the later one's is taken off here.
            if not self._upstream(part):
                live -= tracker.live(part.tag)
        part.backward_peak, part.gradient_bytes = peak, max(live, 0)

    # What it adds up to

    def times(self) -> list[float]:
        """Of each part the forward, then of each the backward."""
        between, parts = self.clock.between, self.all
        ends = [part.start.mark for part in parts if part.start is not None]
        turns = [part.turn.mark for part in parts if part.turn is not None]
        return [
            *(between(a.begins, b) for a, b in zip(parts, [*ends, self._forward_end], strict=True)),
            *(
                between(a, b)
                for a, b in zip([*turns, self._backward], [self._finish, *turns], strict=True)
            ),
        ]

    def parts(self, times: list[tuple[float, ...]]) -> Parts:
        """What the tracked run has seen, with times from others: of each the repeated ones."""
        count = len(self.all)
        side = self.side_bytes
        held = unique_bytes(self.inputs) + side + self.loss_bytes + self.extra_bytes
        first, start = self.all[0], self.all[0].start
        assert start is not None
        given = {id(tensor.untyped_storage()) for tensor in tensors_of(self.inputs)}
        nothing_before = id(start.storage()) in given and not first.sides
        if nothing_before:
            # Nothing is computed before the blocks, but the model may have made masks and such.
            held += first.kept
        peaks: list[Peaks | None] = []
        before = 0  # what is kept of the parts before, but for the inputs of runs
        for part, forward, backward in zip(self.all, times[:count], times[count:], strict=True):
            if part.number == 0:
                part.input_bytes, forward_peak = held, part.own_peak - side
                # The blocks have let go of what they held beside their activation.
                part.backward_peak -= self._freed
            else:
                forward_peak = max(part.own_peak, part.together - before - part.input_bytes)
            forward_peak -= self._beside_bytes(part.number, 0)
            before += part.kept + part.link_kept
            before -= self._input_bytes([part.number] if part.output_kept else [])
            peaks.append(self._peaks(part, forward_peak, forward, backward))
        if nothing_before:
            peaks[0] = None
        freed = [
            (number, part.number, size) for part in self.all for number, size in part.freed.items()
        ]
        sides = [(side.part, side.size) for side in self._sides()]
        runs, local = list(self._runs()), list(self._local())
        # The own peak of the first part has its output.
        inputs = [[], *(self._sizes(part.inputs - self._kept_inputs()) for part in self.all[1:])]
        beside = [
            sum(each.size for each in self._beside if each.last == number)
            for number in range(len(self.blocks))
        ]
        again = dict(self._again())
        passed = {p.number for p in self.all[:-1] if p.start and p.start.tag == p.link}
        return Parts(
            peaks,
            runs,
            held,
            side,
            self.loss_bytes,
            local,
            beside,
            inputs,
            freed,
            sides,
            again,
            passed,
        )

    def _again(self) -> Iterable[tuple[int, int | None]]:
        """The parts that hand a run what is there already, see `Parts.again`."""
        for part in self.all[:-1]:
            start = part.start
            assert start is not None
            if start.tag == "" or (part.output_kept and start.tag not in (part.tag, part.link)):
                yield part.number, None
            elif start.first is not None:
                yield part.number, start.first

    def _beside_bytes(self, run: int, number: int) -> int:
        """Bytes of what blocks of a run from one of that number on are handed beside."""
        return sum(
            each.size
            for each in self._beside
            if each.last >= number and self.blocks[each.last].run == run
        )

    def _peaks(
        self, part: Part, forward_peak: int, forward: Sequence[float], backward: Sequence[float]
    ) -> Peaks:
        start = part.start
        made = 0 if start is None or start.tag != part.tag else start.output_bytes
        output_bytes = self.loss_bytes if start is None else start.output_bytes
        kept = self.loss_bytes if start is None else made if part.output_kept else 0
        passes_on = start is not None and start.tag == part.link
        return Peaks(
            input_bytes=part.input_bytes,
            output_bytes=output_bytes,
            saved_bytes=max(part.kept - kept, 0),
            input_saved=part.number == 0 or (part.link_kept > 0 and not passes_on),
            output_saved=start is not None and part.output_kept and start.tag != "",
            forward_peak=forward_peak,
            drop_peak=None,
            backward_peak=part.backward_peak,
            gradient_bytes=part.gradient_bytes,
            forward_time=median(forward),
            recompute_time=median(forward),
            backward_time=median(backward),
            time_spread=spread(forward, backward),
        )

    def _runs(self) -> Iterable[Run]:
        for part in self.all[:-1]:
            assert part.start is not None
            assert part.turn is not None
            extras = any(block.graded for block in self.blocks if block.run == part.number)
            cut_off = not part.wanted or not (part.turn.graded or extras)
            yield Run(part.start.needs_grad, part.given, part.turn.layout, cut_off)

    def _local(self) -> Iterable[Local]:
        kept, run = 0, -1
        kept_inputs = self._kept_inputs()
        for number, block in enumerate(self.blocks):
            live, there = self._reached[number], self._inputs[number]
            live -= self._beside_bytes(block.run, number)
            others = there - kept_inputs
            live -= self._input_bytes(others)
            if block.run > run:  # whose input that is
                run = block.run
                kept += self.all[run].kept + self.all[run].link_kept
                others.discard(run)
            yield Local(max(live - kept - self.extra_bytes, 0), self._sizes(others))

    def _kept_inputs(self) -> set[int]:
        """Numbers of the runs whose input the part before them holds for its backward."""
        return {part.number for part in self.all if part.output_kept}

    def _sizes(self, runs: Iterable[int]) -> list[tuple[int, int]]:
        return [(run, self._input_bytes([run])) for run in sorted(runs)]


def _handed(output: Any, *args: Any, **kwargs: Any) -> Any:
    return output

"""What a plan costs, written a second time from the design alone.

Nothing here may use `solvers.replay` or `solvers.schedule.actions`: agreement with them counts
only because the two were written apart. Slow and plain on purpose.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from solvers.chain.problem import Chain
from solvers.schedule import Checkpoint, Item, Keep

Tensor = tuple[str, int]
"""Kind ("a" activation, "W" saved set, "d" gradient of an activation, "g" of parameters), layer."""


class Step:
    """One training step under way: which tensors live, who holds them, peak and time so far."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.bytes: dict[Tensor, int] = {}
        self.live = 0  # their sum
        self.holders: dict[Tensor, set[object]] = {}
        self.options: dict[int, str | None] = {}
        self.peak = 0
        self.time = 0
        self.forwards = [0] * len(chain)
        self.backwards = [0] * len(chain)

    def x(self, i: int) -> int:
        return self.chain.layers[i].output_bytes if i >= 0 else self.chain.input_bytes

    def make(self, tensor: Tensor, size: int, holder: object) -> None:
        assert tensor not in self.bytes, f"{tensor} is made while it is live"
        self.bytes[tensor] = size
        self.live += size
        self.holders[tensor] = {holder}

    def let_go(self, tensor: Tensor, holder: object) -> None:
        """`holder` no longer needs `tensor`, if it ever held it."""
        holders = self.holders.get(tensor)
        if holders is not None:
            holders.discard(holder)
            if not holders:
                self.live -= self.bytes.pop(tensor)
                del self.holders[tensor]

    def on_top(self, size: int) -> None:
        if self.live + size > self.peak:
            self.peak = self.live + size

    def forward(self, i: int, sweep: object, keep: Keep | None, time: int, ends: bool) -> None:
        layer = self.chain.layers[i]
        if not self.forwards[i] and i == self.group(i).start:
            for j in self.group(i):
                self.make(("e", j), self.chain.layers[j].beside_bytes, "model")
        more = layer.again_transient_bytes if self.forwards[i] else layer.first_transient_bytes
        assert ("a", i - 1) in self.bytes, f"forward {i} has no input"
        if keep is None:
            self.on_top(layer.output_bytes + layer.drop_transient_bytes + more)
            self.make(("a", i), layer.output_bytes, sweep)
        else:
            w, transient = layer.saved_bytes, layer.forward_transient_bytes
            ending = layer.ending_transient_bytes
            holds = [layer.input_saved, layer.output_saved]
            if keep.option is not None:
                option = next(each for each in layer.options if each.name == keep.option)
                w = option.saved_bytes
                if option.forward_transient_bytes is not None:
                    transient = ending = option.forward_transient_bytes
                if option.ending_transient_bytes is not None:
                    ending = option.ending_transient_bytes
                given = [option.input_saved, option.output_saved]
                holds = [a if b is None else b for a, b in zip(holds, given, strict=True)]
            if ends:
                transient, more = transient if ending is None else ending, 0
            self.on_top(layer.output_bytes + w + transient + more)
            self.make(("a", i), layer.output_bytes, sweep)
            self.make(("W", i), w, "autograd")
            self.options[i] = keep.option
            if holds[0]:
                self.holders["a", i - 1].add(("W", i))
            if holds[1]:
                self.holders["a", i].add(("W", i))
        self.let_go(("a", i - 1), sweep)
        if not self.forwards[i]:
            self.beside(i, keep is None or keep.option is not None)
        self.time += time
        self.forwards[i] += 1

    def group(self, i: int) -> range:
        """Layers that are handed what the one that must be kept, or the first, makes for them."""
        starts = [j for j, layer in enumerate(self.chain.layers) if not (j and layer.recomputable)]
        start = max(j for j in starts if j <= i)
        return range(start, min([j for j in starts if j > i], default=len(self.chain)))

    def beside(self, i: int, starts_again: bool) -> None:
        if starts_again:
            for j in range(i, self.group(i).stop):
                if ("e", j) in self.bytes:
                    self.holders["e", j].add(("again", i))
        self.let_go(("e", i), "model")

    def backward(self, i: int) -> None:
        layer = self.chain.layers[i]
        assert ("W", i) in self.bytes, f"backward {i} has no saved set"
        assert ("d", i) in self.bytes, f"backward {i} has no gradient"
        name = self.options.pop(i)
        working, overlap = layer.backward_transient_bytes, layer.backward_overlap_bytes
        if name is not None:
            # What the option dropped is made again: the full saved set is live.
            option = next(each for each in layer.options if each.name == name)
            self.time += option.recompute_time
            self.forwards[i] += 1
            saved = layer.saved_bytes
            if layer.output_saved and ("W", i) not in self.holders.get(("a", i), ()):
                saved += layer.output_bytes
            self.live += saved - self.bytes["W", i]
            self.bytes["W", i] = saved
            if option.backward_transient_bytes is not None:
                working = option.backward_transient_bytes
            if option.backward_overlap_bytes is not None:
                overlap = option.backward_overlap_bytes
        self.on_top(self.x(i - 1) + layer.gradient_bytes + working - overlap)
        self.make(("d", i - 1), self.x(i - 1), "autograd")
        self.make(("g", i), layer.gradient_bytes, "optimizer")
        self.let_go(("W", i), "autograd")
        self.let_go(("a", i - 1), ("W", i))
        self.let_go(("a", i), ("W", i))
        self.let_go(("d", i), "autograd")
        for j in range(len(self.chain)):
            self.let_go(("e", j), ("again", i))
        self.time += layer.backward_time
        self.backwards[i] += 1

    def run(self, level: Sequence[Item], is_body: bool) -> None:
        """Forward over the items of one level, then backward over them."""
        sweep = object()
        end = -1
        for item in level:
            if isinstance(item, Keep):
                end = item.layer
                layer = self.chain.layers[end]
                early = is_body and item is level[-1]
                time = layer.recompute_time if early else layer.forward_time
                self.forward(end, sweep, item, time, early)
            else:
                self.holders["a", item.first - 1].add(id(item))
                for end in range(item.first, item.last + 1):
                    self.forward(end, sweep, None, self.chain.layers[end].forward_time, False)
        self.let_go(("a", end), sweep)
        for item in reversed(level):
            if isinstance(item, Checkpoint):
                self.run(item.body, True)
                self.let_go(("a", item.first - 1), id(item))
            else:
                self.backward(item.layer)


def simulate(chain: Chain, items: Sequence[Item]) -> tuple[int, int, list[int], list[int]]:
    """Peak, time, and how often each layer's forward and backward run."""
    step = Step(chain)
    last = len(chain) - 1
    step.make(("a", -1), chain.input_bytes, "user")
    step.make(("d", last), step.x(last), "autograd")
    step.run(items, False)
    # Left over: what the user, the optimizer and the caller of the last backward hold.
    assert set(step.bytes) == {("a", -1), ("d", -1), *(("g", i) for i in range(last + 1))}
    return step.peak, step.time, step.forwards, step.backwards


def pareto(pairs: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The pairs that no other pair beats or equals in both, ascending in the first."""
    best: list[tuple[int, int]] = []
    for first, second in sorted(set(pairs)):
        if not best or second < best[-1][1]:
            best.append((first, second))
    return best

"""A tiny autograd without numbers: tensors have sizes, operations have times.

A forward is written as the model's own code is, with variables that hold tensors and let them go.
Storages are counted from the operation that makes them until nobody holds them: by Python's own
reference counts, exactly as torch's are. So the working memory of a forward and of a backward is
not a formula of its own: it follows from the operations.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from scheduler.memory.gpus import Gpu

Gradients = Sequence["Value | None"]
_SOURCE = -1  # the order of a graph's input; a parameter's is 0
_SHARED = -2  # of a parameter that has a gradient already


@dataclass(slots=True)
class Ledger:
    """Live bytes, the most there were, and by storage what made it, with its bytes."""

    live: int = 0
    peak: int = 0
    made: dict[int, tuple[str, int]] = field(default_factory=dict)

    def reset_peak(self) -> None:
        """Measure the peak from now on."""
        self.peak = self.live


class Storage:
    """Bytes that are live as long as this object is."""

    __slots__ = ("__weakref__", "_ledger", "bytes")

    def __init__(self, ledger: Ledger, size: int, op: str) -> None:
        self._ledger, self.bytes = ledger, size
        ledger.live += size
        ledger.peak = max(ledger.peak, ledger.live)
        self.name(op)

    def name(self, op: str) -> None:
        """Call it by the operation that made it, or changed it last."""
        self._ledger.made[id(self)] = op, self.bytes

    def __del__(self) -> None:
        self._ledger.live -= self.bytes
        del self._ledger.made[id(self)]


@dataclass(eq=False, slots=True)
class Node:
    """An operation of the graph: what it saved, and how gradients pass through it.

    ``backward(grads, saved)`` takes the gradient of each output and gives that of each parent.
    A node without `backward` is a parameter, or the input of the graph: it collects, or hands what
    comes to its `hook`.
    """

    order: int
    parents: tuple[tuple[Node, int] | None, ...] = ()
    saved: tuple[Saved, ...] = ()
    backward: Callable[[list[Any], list[Value]], Gradients] | None = None
    collected: list[Value] = field(default_factory=list)
    hook: Callable[[Value], None] | None = None


@dataclass(eq=False, slots=True)
class Value:
    """A tensor: elements of `size` bytes, in a storage (None: not counted, as parameters are).

    Where it has a `part`, that is saved in its place, and the whole made `again` of it.
    """

    elements: int
    size: int
    storage: Storage | None = None
    node: Node | None = None
    slot: int = 0
    part: Value | None = None
    again: Callable[[Value], Value] | None = None

    @property
    def bytes(self) -> int:
        """Bytes of the elements."""
        return self.elements * self.size

    def view(self, elements: int | None = None) -> Value:
        """Some or all of the elements, in the same storage; no gradient flows through."""
        return Value(self.elements if elements is None else elements, self.size, self.storage)


class Saved:
    """Tensors that a node holds for its backward, which takes them once."""

    __slots__ = ("__weakref__", "_again", "_values")

    def __init__(self, values: Sequence[Value]) -> None:
        self._values = tuple((v.part or v).view() for v in values)
        self._again = [v.again for v in values]

    def take(self) -> tuple[Value, ...]:
        """Give the tensors."""
        pairs = zip(self._values, self._again, strict=True)
        return tuple(v if again is None else again(v) for v, again in pairs)


class Paper:
    """Where operations run.

    The GPU's roofline gives the times: an operation takes the longer of its arithmetic, at the
    `flops_share` of bf16's FLOP/s that the precision has, and of the traffic of all it reads and
    writes. Without `keep` nothing is saved for a backward.

    Attributes
    ----------
    seconds, saved_at
        Of all operations so far, and up to the last tensor saved: where torch's recomputation
        stops.
    ledger, outside
        Of all storages but the input's, and of that alone.
    leaves
        Nodes of parameters and of the input, which collect gradients.
    """

    def __init__(self, gpu: Gpu, *, keep: bool = True, flops_share: float = 1.0) -> None:
        self.ledger, self.outside = Ledger(), Ledger()
        self.gpu = gpu
        self._flops = gpu.sustained_flops * flops_share
        self._bandwidth = gpu.sustained_bandwidth
        self._sending = 0.0
        self._keep = keep
        self._made = 0
        self._handed: list[Value] = []
        self._noted: list[tuple[int, int]] | None = None
        self.seconds = self.saved_at = self._late = 0.0
        self.leaves: list[Node] = []

    def tensors(self, but: Value | None = None) -> tuple[tuple[str, int], ...]:
        """Storages that are live, `but` for one: the operation that made each, and its bytes."""
        one = None if but is None else id(but.storage)
        inside = (each for key, each in self.ledger.made.items() if key != one)
        return *self.outside.made.values(), *inside

    def leaf(
        self, elements: int, size: int, *, trained: bool = True, shared: bool = False
    ) -> Value:
        """A parameter: not counted; `trained` gives it a place for its gradient.

        Of a `shared` one a later layer has made a gradient, which is counted there.
        """
        if trained and self._noted is not None:
            self._noted.append((elements, size))
        if not trained or self._noted is not None:
            return Value(elements, size)
        self.leaves.append(Node(_SHARED if shared else 0))
        return Value(elements, size, None, self.leaves[-1])

    def source(self, elements: int, size: int) -> Value:
        """The graph's input, whose gradient is wanted; not counted."""
        self.leaves.append(Node(_SOURCE))
        storage = Storage(self.outside, elements * size, "input")
        return Value(elements, size, storage, self.leaves[-1])

    def side(self, elements: int, size: int, *, shared: bool) -> Value:
        """What a block is handed beside its input, not counted; `shared` as in `leaf`."""
        leaf = self.leaf(elements, size, shared=shared)
        if shared:
            return leaf
        # What its uses in the block give is added up before it is handed on.
        made = leaf.view()
        self.record(made, (leaf,), lambda g, saved: g)
        return made

    def hand_on(self, value: Value) -> None:
        """Hold a tensor that later layers are handed, until `backward`."""
        self._handed.append(value)

    def handed_back(self) -> dict[Node, Value]:
        """Let go of what was handed on; gradients that later layers have made of that."""
        waiting = [(v.node, v.elements, v.size) for v in self._handed if v.node is not None]
        self._handed.clear()
        return {node: self.compute((), n, size) for node, n, size in waiting}

    def compute(
        self, reads: Sequence[Value], elements: int, size: int, flops: float = 0, *, op: str = ""
    ) -> Value:
        """Run a kernel that makes a tensor; `op` as in `run`."""
        return self.run(op, reads, [(elements, size)], flops)[0]

    def run(
        self, op: str, reads: Sequence[Value], makes: Sequence[tuple[int, int]], flops: float = 0
    ) -> list[Value]:
        """Run a kernel that makes tensors, given as (elements, bytes of each).

        `op` is torch's name of the operation, where a forward runs it.
        """
        made = [Value(n, size, Storage(self.ledger, n * size, op)) for n, size in makes]
        self.spend(sum(value.bytes for value in (*reads, *made)), flops)
        return made

    def send(
        self,
        op: str,
        reads: Sequence[Value],
        makes: Sequence[tuple[int, int]],
        sent: float,
        flops: float = 0,
        *,
        far: bool,
    ) -> list[Value]:
        """Run a kernel while this GPU sends so many bytes to others, `far` outside its machine."""
        self._sending = sent / self.gpu.sustained_link(far=far)
        try:
            return self.run(op, reads, makes, flops)
        finally:
            self._sending = 0.0

    def change(self, op: str, value: Value, *reads: Value) -> None:
        """Run a kernel that changes a tensor in place: it is read and written."""
        if value.storage is not None:
            value.storage.name(op)
        self.spend(2 * value.bytes + sum(each.bytes for each in reads))

    def spend(self, moved: int, flops: float = 0) -> None:
        """Take the time of a kernel that makes nothing new."""
        seconds = max(flops / self._flops, moved / self._bandwidth, self._sending)
        self.seconds += seconds
        self._late += seconds if flops else 0.0

    def skip_late_products(self) -> None:
        """Take back the time of products since a tensor was last saved: they are left out."""
        self.seconds -= self._late
        self._late = 0.0

    @contextmanager
    def without_graph(self) -> Iterator[list[tuple[int, int]]]:
        """Run forwards that no gradient will pass; elements and bytes of trained leaves in them."""
        self._noted = []
        try:
            yield self._noted
        finally:
            self._noted = None

    def save(self, *values: Value) -> Saved:
        """Save tensors for the backward, from now on."""
        if self._noted is not None:
            return Saved(())
        self.saved_at, self._late = self.seconds, 0.0
        return Saved(values if self._keep else ())

    def record(
        self,
        made: Value | list[Value],
        parents: Sequence[Value],
        backward: Callable[[list[Any], list[Value]], Gradients],
        *saved: Saved,
    ) -> None:
        """Make the node of an operation, unless no parent needs a gradient.

        `backward` is given what was saved as one list.
        """
        if all(parent.node is None for parent in parents):
            return
        self._made += 1
        links = tuple((p.node, p.slot) if p.node is not None else None for p in parents)
        node = Node(self._made, links, saved, backward)
        for slot, value in enumerate(made if isinstance(made, list) else [made]):
            value.node, value.slot = node, slot

    def record_simple(self, made: Value, x: Value, *saved: Saved) -> None:
        """Make the node of an operation whose backward is one kernel: to x's gradient."""
        n, size = x.elements, x.size
        self.record(made, (x,), lambda g, saved: [self.compute((*g, *saved), n, size)], *saved)

    def backward(
        self, root: Node, gradient: Value, others: dict[Node, Value] | None = None
    ) -> None:
        """Run the nodes from `root` on, the last made first, as torch's engine does.

        `others` are gradients that nodes below have got already, from elsewhere; it is emptied.
        """
        waiting = {root.order: root}
        queue = [-root.order]
        buffers: dict[int, dict[int, Value]] = {root.order: {0: gradient}}
        for node in list(others or {}):
            buffers[node.order] = {0: (others or {}).pop(node)}
        del gradient
        while queue:
            node = waiting.pop(-heapq.heappop(queue))
            slots = buffers.pop(node.order)
            grads = [slots.pop(i, None) for i in range(max(slots) + 1)]
            assert node.backward is not None
            values = [value for part in node.saved for value in part.take()]
            given = list(node.backward(grads, values))
            node.saved, node.backward = (), None
            del grads, slots, values
            for link in node.parents:
                parent = self._deliver(link, given.pop(0), buffers)
                if parent is not None and parent.order not in waiting:
                    waiting[parent.order] = parent
                    heapq.heappush(queue, -parent.order)

    def _deliver(
        self,
        link: tuple[Node, int] | None,
        value: Value | None,
        buffers: dict[int, dict[int, Value]],
    ) -> Node | None:
        """Hand a gradient to a parent; return the parent if it has a backward to run."""
        if link is None or value is None:
            return None
        parent, slot = link
        if parent.backward is None:
            self._collect(parent, value)
            return None
        arrived = buffers.setdefault(parent.order, {})
        if slot in arrived:
            # Not in place: torch adds in place only where nobody else can see the tensor.
            value = self.compute((arrived[slot], value), value.elements, value.size)
        arrived[slot] = value
        return parent

    def _collect(self, node: Node, value: Value) -> None:
        if node.hook is not None:
            node.hook(value)
            return
        if node.order == _SHARED:
            # The engine adds up what the two uses give before the parameter gets it.
            self.compute((value, value), value.elements, value.size)
            return
        if not node.collected:
            node.collected.append(value)
            return
        if node.order == _SOURCE:
            # The graph's input: summed like any other gradient.
            total = self.compute((node.collected[0], value), value.elements, value.size)
            node.collected[0] = total
        else:
            # A parameter that is used twice: added in place.
            self.spend(3 * value.bytes)

"""The joint graph that `torch.compile` is about to split, as a `StepGraph`.

A buffer is a storage, found by the identity of the fake tensors' storages, so that a view costs
nothing and keeps what it looks into alive. Operations whose results are all views are folded away.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.utils.checkpoint as of_torch
from torch.fx import Graph, Node, map_arg

from scheduler.common.errors import UnsupportedModel
from scheduler.pytorch.compile.choice import JointOperation, StepGraph
from scheduler.pytorch.observe.clock import Roofline
from scheduler.pytorch.observe.dispatch import is_mutable, is_random, tensors_of
from scheduler.pytorch.observe.tracker import storage_bytes

# A kernel turns a number among its arguments into a tensor: 8 bytes, and 4 in another type.
_NUMBERS = 16

_MOST_TIME = 2**52


@dataclass(frozen=True)
class Joint:
    """A joint graph and what it became.

    Attributes
    ----------
    step
        The problem.
    nodes
        The fx node of each early operation of `step`.
    backward
        Nodes that only the backward needs, though no gradient flows into them; they stay there.
    """

    step: StepGraph
    nodes: tuple[Node, ...]
    backward: tuple[Node, ...]
    _ids: dict[int, int]  # buffers by the storages that the graph was traced with

    def keeping(self, saved: Iterable[Node]) -> set[int]:
        """Early operations to keep so that the backward has what `saved` would give it.

        torch's partitioner also saves what only the backward computes, where that needs no
        gradient; here the operations that it is made of are kept instead.
        """
        late = {buffer: op for op in self.step.late for buffer in op.makes}
        stack = [self._ids.get(_key(tensor), -1) for node in saved for tensor in _tensors(node)]
        seen: set[int] = set()
        while stack:
            buffer = stack.pop()
            i = self.step.maker.get(buffer, -1)
            op = self.step.early[i] if i >= 0 else late.get(buffer)
            if buffer in seen or op is None:
                continue
            seen.add(buffer)
            if i < 0 or op.fixed == "again":
                stack.extend(op.reads)
        makers = {self.step.maker[buffer] for buffer in seen if buffer in self.step.maker}
        return makers.intersection(self.step.free)


def read_joint(
    graph: Graph, info: Any, cost: Roofline | Callable[[Node], float], outputs_held: bool
) -> Joint:
    """The joint graph, of which `info` is torch's ``NodeInfo``.

    `cost` gives times: by a roofline, or as a function of the node, in any one unit. Sizes must not
    be symbolic, nor may the graph have tags of `torch.utils.checkpoint`.
    """
    return _Reader(graph, info, cost).joint(outputs_held)


class _Reader:
    def __init__(self, graph: Graph, info: Any, cost: Roofline | Callable[[Node], float]) -> None:
        self.graph = graph
        self.info = info
        self.forward = frozenset(info.required_fw_nodes)  # torch hands out a list
        self.cost = cost
        self.ids: dict[int, int] = {}
        self.sizes: list[int] = []
        self.held = _NUMBERS
        self.held_backward = 0

    def joint(self, outputs_held: bool) -> Joint:
        nodes = list(self.graph.nodes)
        border = self._border(nodes)
        needed = self._needed(nodes)
        early: list[tuple[JointOperation, Node]] = []
        late: list[JointOperation] = []
        backward: list[Node] = []
        for at, node in enumerate(nodes):
            if node.op == "placeholder":
                self._input(node)
            elif node in needed and node.op != "output":
                op = self._operation(node, at < border)
                if op is None:
                    continue
                if at < border:
                    early.append((op, node))
                else:
                    late.append(op)
                if not op.forward and node not in self.info.tangents_closure:
                    backward.append(node)
        first = _in_range([op for op, _ in early])
        step = StepGraph(
            first,
            tuple(late),
            tuple(self.sizes),
            self._returned(self.forward),
            self._returned(self.info.required_bw_nodes),
            self.held,
            self.held_backward,
            outputs_held,
        )
        return Joint(step, tuple(node for _, node in early), tuple(backward), self.ids)

    def _border(self, nodes: list[Node]) -> int:
        """Position of the first reader of a gradient; all of the forward stands before it."""
        readers = {
            user
            for node in nodes
            if node.op == "placeholder" and node in self.info.tangents_closure
            for user in node.users
        }
        border = next((at for at, node in enumerate(nodes) if node in readers), len(nodes) - 1)
        for node in nodes[border:]:
            if node in self.forward:
                raise UnsupportedModel(
                    f"operation {node.name!r} of the forward stands behind the first of the "
                    "backward, which torch.compile's graphs do not do otherwise; compile without "
                    "a budget, or use scheduler.pytorch.apply"
                )
        return border

    def _needed(self, nodes: list[Node]) -> set[Node]:
        """Nodes that something returned depends on, or that change a tensor."""
        needed: set[Node] = set()
        for node in reversed(nodes):
            if node in needed or node.op == "output" or node.is_impure():
                needed.add(node)
                needed.update(node.all_input_nodes)
        return needed

    def _input(self, node: Node) -> None:
        for tensor in _tensors(node):
            key = _key(tensor)
            if key in self.ids:
                continue
            self.ids[key] = len(self.sizes)
            self.sizes.append(0)
            if node in self.info.tangents_closure:
                self.held_backward += _bytes(tensor, node)
            elif node not in self.info.static_lifetime_input_nodes:
                self.held += _bytes(tensor, node)

    def _returned(self, part: Container[Node]) -> frozenset[int]:
        """Buffers that the forward, or the backward, returns."""
        returned = self.graph.output_node().all_input_nodes
        return frozenset(b for node in returned if node in part for b in self._buffers(node))

    def _operation(self, node: Node, early: bool) -> JointOperation | None:
        reads = sorted({b for read in node.all_input_nodes for b in self._buffers(read)})
        makes: list[int] = []
        for tensor in _tensors(node):
            key = _key(tensor)
            if key not in self.ids:
                self.ids[key] = len(self.sizes)
                self.sizes.append(_bytes(tensor, node))
                makes.append(self.ids[key])
        if not makes and not is_mutable(node.target):
            return None
        forward = node in self.forward
        fixed: Any = None
        if early and forward:
            if _recompute_tag(node):
                raise UnsupportedModel(
                    f"operation {node.name!r} is tagged by torch.utils.checkpoint; remove the "
                    "checkpoint from what is compiled, the budget chooses for it"
                )
            fixed = "keep" if once(node) else None
        elif early:
            fixed = "again"
        return JointOperation(
            node.name, self._time(node), tuple(reads), tuple(makes), fixed, forward
        )

    def _buffers(self, node: Node) -> list[int]:
        keys = (_key(tensor) for tensor in _tensors(node))
        return [self.ids[key] for key in keys if key in self.ids]

    def _time(self, node: Node) -> int:
        """Femtoseconds, at least 1."""
        seconds = _seconds(node, self.cost) if isinstance(self.cost, Roofline) else self.cost(node)
        return max(1, round(seconds * 1e15))


def _in_range(ops: list[JointOperation]) -> tuple[JointOperation, ...]:
    """With times that add up to what solvers can count, whatever unit they are given in."""
    step = max(1.0, sum(op.time for op in ops) / _MOST_TIME)
    return (
        tuple(ops)
        if step == 1
        else tuple(replace(op, time=max(1, round(op.time / step))) for op in ops)
    )


def _seconds(node: Node, roofline: Roofline) -> float:
    if not isinstance(node.target, torch._ops.OpOverload):
        return 0.0
    args, kwargs = map_arg((node.args, node.kwargs), lambda read: read.meta.get("val"))
    return roofline.seconds(node.target, args, kwargs, node.meta.get("val"))


def parts(node: Node) -> list[Node]:
    """The nodes with the tensors that an operation makes: itself, or what takes its tuple apart."""
    return [node] if isinstance(node.meta.get("val"), torch.Tensor) else list(node.users)


def _key(tensor: torch.Tensor) -> int:
    # Views of one storage have one address, also where it is fake.
    key: int = tensor.untyped_storage()._cdata
    return key


def _tensors(node: Node) -> list[torch.Tensor]:
    return tensors_of(node.meta.get("val"))


def _bytes(tensor: torch.Tensor, node: Node) -> int:
    sizes = (*tensor.shape, *tensor.stride(), tensor.untyped_storage().nbytes())
    if not all(isinstance(size, int) for size in sizes):
        raise UnsupportedModel(
            f"the size of {node.name!r} is symbolic, so that a budget in bytes has no meaning; "
            "compile with dynamic=False"
        )
    return storage_bytes(tensor)


def once(node: Node) -> bool:
    """Whether running the operation twice would not give the same result, or is torch's ban."""
    if _recompute_tag(node) is False:
        return True
    if not isinstance(node.target, torch._ops.OpOverload) or is_mutable(node.target):
        return True
    if is_random(node.target) and not _draws_nothing(node):
        return True
    return node.target.namespace in ("_c10d_functional", "c10d_functional")


def _draws_nothing(node: Node) -> bool:
    """Whether an operation that can drop out is told to drop nothing: attention, mostly."""
    arguments = node.target._schema.arguments  # type: ignore[union-attr]
    for at, argument in enumerate(arguments):
        if argument.name == "dropout_p":
            given = node.args[at] if at < len(node.args) else node.kwargs.get("dropout_p")
            return bool((argument.default_value if given is None else given) == 0)
    return False


def _recompute_tag(node: Node) -> bool | None:
    """True, False, None: tagged to run again, to be saved, not at all."""
    tag = node.meta.get("recompute")
    policy = of_torch.CheckpointPolicy
    if tag in (policy.MUST_RECOMPUTE, policy.PREFER_RECOMPUTE):
        return True
    return False if tag == policy.MUST_SAVE else None

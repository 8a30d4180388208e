"""A block's operations as a compute graph, to be printed, saved, or solved."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from scheduler.common.errors import UnsupportedModel
from scheduler.common.text import did_you_mean, shown
from scheduler.costs.computegraph import ComputeCosts, NodeCost
from scheduler.costs.options.inside import Inside
from scheduler.memory.gpus import Gpu
from scheduler.pytorch.observe.clock import Roofline
from scheduler.pytorch.profiling.profile import see


def block_graph(
    model: nn.Module,
    inputs: Any,
    loss_fn: Callable[[Any], Any] | None = None,
    blocks: str | Iterable[str] = "auto",
    *,
    block: str | None = None,
    fake: bool | None = None,
    gpu: str | Gpu | None = None,
    roofline: Roofline | None = None,
) -> ComputeCosts:
    """The operations of one block, forward and backward, as a compute graph.

    Print it, ``save`` it, or solve it as any other. See `profile` for the other parameters.

    Parameters
    ----------
    block
        Name of the block's module. Default: the first.

    Returns
    -------
    ComputeCosts
        Nodes carry the name and the number of the call, such as ``aten.mm.default#3``, which an
        option's ``keeps`` names. Views are no nodes of their own: who reads one reads what it looks
        into. An operation in place has no bytes of its own. Times in ms.

    Raises
    ------
    UnsupportedModel
        There is no such block, or `profile` refuses the model.
    """
    seen = see(model, inputs, loss_fn, blocks, options=True, fake=fake, gpu=gpu, roofline=roofline)
    names = [each.name for each in seen.blocks]
    if block is None:
        block = names[0]
    if block not in names:
        hint = did_you_mean(block, names) or f"; the blocks are {', '.join(names)}"
        raise UnsupportedModel(f"the model has no block {shown(block)}{hint}")
    ways = seen.each[names.index(block)].ways
    assert ways is not None  # options were asked for
    return compute_graph(ways.inside, block)


def compute_graph(inside: Inside, name: str) -> ComputeCosts:
    """`inside` as a compute graph called `name`; see `block_graph`."""
    nodes: list[NodeCost] = []
    edges: set[tuple[int, int]] = set()
    # Who made a storage, and who has changed it last.
    makers: dict[int, set[int]] = {}
    for prefix, operations in (("", inside.forward), ("backward ", inside.backward)):
        for operation in operations:
            if not operation.makes and not operation.changes:
                continue
            here = len(nodes)
            nodes.append(
                NodeCost(
                    f"{prefix}{operation.name}#{operation.call}",
                    time=operation.time,
                    bytes=sum(inside.storage_bytes[i] for i in operation.makes),
                    backward=bool(prefix),
                )
            )
            for storage in (*operation.reads, *operation.changes):
                edges |= {(maker, here) for maker in makers.get(storage, ())}
            for storage in operation.makes:
                makers[storage] = {here}
            for storage in operation.changes:
                if storage in makers:
                    makers[storage] = {min(makers[storage]), here}
    return ComputeCosts(tuple(nodes), tuple(sorted(edges)), name)

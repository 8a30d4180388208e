"""Put the operations of a block that was looked into together again: one layer per output.

A block that hands over several tensors cannot be one layer, since a layer makes one tensor. But its
operations fall apart into those that only serve one of these tensors and those that only serve
another; each such group becomes a layer. (A T5's first block makes a position bias, by a look-up
that the rest of the block has no part in.)
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import fx, nn

from scheduler.pytorch.graph.tracing.fx import FxTrace, Kinds


def put_together(found: FxTrace, kinds: Kinds, model: nn.Module) -> None:
    """Join the layers of each block that was looked into, where that changes no result.

    Where two groups would read the same, or both draw random numbers, gradients would be added up,
    or numbers drawn, in another order than the model's: such a block stays in pieces. Completes
    the `groups`, `joined` and `names` of the kinds.
    """
    for name, handed in found.handed.items():
        inside = [node for node in found.graph.nodes if node.meta.get("inside") == name]
        groups = _groups([node for node in inside if node in kinds.layers], kinds)
        if groups is None or not _independent(inside, groups, kinds, model):
            kinds.pieces.append(name)
            continue
        kinds.groups |= groups
        kinds.joined |= {node for node, last in groups.items() if node is not last}
        for last in set(groups.values()):
            mine = [last, *views_of(last, kinds)]
            place = next((place for place, node in handed if node in mine), None)
            if place is not None:
                kinds.names[last] = name if place == handed[0][0] else f"{name}[{place}]"


def views_of(base: fx.Node, kinds: Kinds, among: set[fx.Node] | None = None) -> list[fx.Node]:
    """The views of a node, and their views."""
    found: list[fx.Node] = []
    todo = [base]
    while todo:
        for user in todo.pop().users:
            if user in kinds.views and user not in found and (among is None or user in among):
                found.append(user)
                todo.append(user)
    return found


def _groups(layers: list[fx.Node], kinds: Kinds) -> dict[fx.Node, fx.Node] | None:
    """For each layer the last of its group, which is read outside; None: they are entangled."""
    groups: dict[fx.Node, fx.Node] = {}
    for node in reversed(layers):
        readers = {
            user
            for view in [node, *views_of(node, kinds)]
            for user in view.users
            if user not in kinds.views
        }
        within = {groups[user] for user in readers if user in groups}
        if readers - groups.keys():
            groups[node] = node
        elif len(within) == 1:
            groups[node] = within.pop()
        else:
            return None
    return groups


def _independent(
    inside: list[fx.Node],
    groups: dict[fx.Node, fx.Node],
    kinds: Kinds,
    model: nn.Module,
) -> bool:
    if len({groups.get(node, node) for node in inside if node.meta["random"]}) > 1:
        return False
    readers: dict[fx.Node | int, set[fx.Node]] = {}
    for node, last in groups.items():
        for base in {read for read in _read(node, kinds) if read not in kinds.views}:
            if base in kinds.differs and groups.get(base) is not last:
                readers.setdefault(base, set()).add(last)
        for parameter in _parameters(node, kinds, model):
            readers.setdefault(id(parameter), set()).add(last)
    return all(len(found) == 1 for found in readers.values())


def _parameters(node: fx.Node, kinds: Kinds, model: nn.Module) -> list[nn.Parameter]:
    if node.op == "call_module":
        return list(model.get_submodule(str(node.target)).parameters())
    own = dict(model.named_parameters(remove_duplicate=False))
    names = [str(other.target) for other in _read(node, kinds) if other.op == "get_attr"]
    return [own[name] for name in names if name in own]


def _read(node: fx.Node, kinds: Kinds) -> Iterator[fx.Node]:
    """All that a node reads, and what the views among it look into."""
    todo = [node]
    while todo:
        for other in todo.pop().all_input_nodes:
            yield other
            if other in kinds.views:
                todo.append(other)

"""What each node of a trace is: a layer, a view, or held throughout."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import fx, nn
from torch.autograd.graph import get_gradient_edge
from torch.utils._pytree import tree_map_only

from scheduler.common.errors import UnsupportedModel
from scheduler.pytorch.graph.tracing.fx import (
    Arguments,
    FxTrace,
    Kinds,
    Untraceable,
    changed_in_place,
    run_node,
)
from scheduler.pytorch.graph.tracing.grouping import put_together, views_of
from scheduler.pytorch.observe.autograd import Source, gate, nodes_below, saving_nothing
from scheduler.pytorch.observe.dispatch import tensors_of


def see_kinds(found: FxTrace, model: nn.Module, arguments: Arguments) -> Kinds:
    """Run a trace node by node and see what each is.

    None may change its input in place, return several tensors, or take a value out of a tensor.
    """
    run = _Run(found, model, arguments)
    for node in found.graph.nodes:
        if node.op not in ("placeholder", "output"):
            try:
                run.see(node)
            except UnsupportedModel as error:
                raise Untraceable(str(error), node.meta.get("through", ())) from error
        run.forget(node)
    put_together(found, run.kinds, model)
    _separate(found.graph, run.kinds)
    return run.kinds


class _Run:
    def __init__(self, found: FxTrace, model: nn.Module, arguments: Arguments) -> None:
        self.found = found
        self.model = model
        self.kinds = Kinds()
        self.reads_layer: set[fx.Node] = set()
        self.env: dict[fx.Node, Any] = {}
        own = [*model.parameters(), *model.buffers(), *found.constants.values()]
        self.own = {id(tensor.untyped_storage()) for tensor in own}
        self.of_parameters: set[fx.Node] = set()  # layers
        self.held_since = False  # the last layer
        self.last = {other: node for node in found.graph.nodes for other in node.all_input_nodes}
        places = [node for node in found.graph.nodes if node.op == "placeholder"]
        for place, tensor in zip(places, arguments.tensors, strict=True):
            self.env[place] = _fresh(tensor, tensor.requires_grad)
            self.kinds.sizes[place] = tensor.numel()
            if tensor.requires_grad:
                self.kinds.differs.add(place)

    def forget(self, node: fx.Node) -> None:
        """Let go of what `node` was the last to read."""
        for other in node.all_input_nodes:
            if self.last[other] is node:
                self.env.pop(other, None)

    def see(self, node: fx.Node) -> None:
        """Run a node and put it with its kind."""
        kinds = self.kinds
        inputs = node.all_input_nodes
        read = [t for other in inputs for t in tensors_of(self.env[other])]
        versions = [t._version for t in read]
        saved: list[Any] = []
        with saving_nothing(lambda tensor: saved.append(None)):
            result = run_node(node, self.model, self.found.constants, self.env.__getitem__)
        changed = {
            id(t) for t, version in zip(read, versions, strict=True) if t._version != version
        }
        if changed:
            self._join_in_place(node, result, changed)
            return
        made = tensors_of(result)
        if isinstance(result, torch.Tensor):
            kinds.sizes[node] = result.numel()
        layered = any(other in kinds.layers or other in self.reads_layer for other in inputs)
        if not made:
            if layered or "value" not in node.meta:
                raise UnsupportedModel(
                    f"{_said(node)} makes {type(result).__name__} from the values of a tensor; "
                    "name a block that contains it in leaves"
                )
            kinds.held.add(node)
            return
        storages = {id(t.untyped_storage()) for t in read} | self.own
        if all(id(t.untyped_storage()) in storages for t in made):
            kinds.views.add(node)
            if not isinstance(result, torch.Tensor):
                kinds.bundles.add(node)
            self.env[node] = result
            if layered:
                self.reads_layer.add(node)
            if any(t.requires_grad for t in made):
                kinds.differs.add(node)
            return
        if not any(t.requires_grad for t in made) and not isinstance(result, torch.Tensor):
            kinds.bundles.add(node)
        elif not isinstance(result, torch.Tensor):
            raise UnsupportedModel(
                f"{_said(node)} returns {type(result).__name__} with {len(made)} tensors, and a "
                "layer makes one; name a block that contains it in leaves"
            )
        if any(t.requires_grad for t in made):
            before = next(reversed(kinds.layers), None)
            if before in inputs and not saved and self._passes_on(before, node, result):
                kinds.joined.add(before)
            # The gradient of a token that is repeated is summed up as it lies in the reader's.
            kinds.joined |= {n for n in inputs if n in self.of_parameters and len(n.users) == 1}
            self._count_edges(node, result)
            if self._is_of_parameters(node):
                self.of_parameters.add(node)
            kinds.layers[node] = None
            kinds.differs.add(node)
            self.held_since = False
        elif layered and not node.meta["random"]:
            # Made again by whoever reads it, as a view is: it would be a layer without a backward.
            kinds.views.add(node)
            self.reads_layer.add(node)
        elif layered:
            raise UnsupportedModel(
                f"{_said(node)} draws something without a gradient for a layer's output; name a "
                "block that contains it in leaves"
            )
        else:
            kinds.held.add(node)
            self.held_since = True
        self.env[node] = tree_map_only(torch.Tensor, lambda t: _fresh(t, t.requires_grad), result)

    def _join_in_place(self, node: fx.Node, result: Any, changed: set[int]) -> None:
        """Join a layer to the one operation that reads it and changes its output in place.

        It then runs right before that: where other layers run in between it must neither draw
        random numbers nor share what it reads with them.
        """
        read = {n: {id(t) for t in tensors_of(self.env[n])} for n in node.all_input_nodes}
        owner = next((n for n, tensors in read.items() if tensors == changed), None)
        kinds = self.kinds
        if owner in kinds.layers and len(owner.users) == 1 and isinstance(result, torch.Tensor):
            alone = not owner.meta["random"] and all(
                len(other.users) == 1 and other not in kinds.joined
                for other in owner.all_input_nodes
                if other in kinds.differs
            )
            if (owner is next(reversed(kinds.layers)) and not self.held_since) or alone:
                kinds.joined.add(owner)
                kinds.layers[node] = None
                kinds.differs.add(node)
                self.held_since = False
                node.meta["random"] |= owner.meta["random"]
                self.env[node] = _fresh(result, True)
                return
        raise changed_in_place(_said(node))

    def _count_edges(self, node: fx.Node, result: torch.Tensor) -> None:
        below = Counter(nodes_below(result.grad_fn))
        for other in node.all_input_nodes:
            value = self.env[other]
            count = below[value.grad_fn] if isinstance(value, torch.Tensor) else 0
            if count > 1:
                self.kinds.edges[other, node] = count

    def _is_of_parameters(self, node: fx.Node) -> bool:
        """Whether an operation reads parameters and nothing else, and draws nothing."""
        read = [other for other in node.all_input_nodes if other.op != "get_attr"]
        return (
            node.op == "call_function"
            and not node.meta["random"]
            and all(n in self.kinds.views and self._is_of_parameters(n) for n in read)
        )

    def _passes_on(self, before: fx.Node, node: fx.Node, result: torch.Tensor) -> bool:
        """Whether the gradient of `node`, as it lies, becomes that of the layer before it.

        A part of it, as that of a concatenation, would be copied between two layers, and what is
        summed up of the copy is rounded otherwise.
        """
        if node.op == "call_module" or len(before.users) != 1 or self.held_since:
            return False
        gradient = torch.ones_like(result)
        edge = get_gradient_edge(self.env[before])
        (found,) = torch.autograd.grad(result, [edge], gradient, allow_unused=True)
        if found is None or found.untyped_storage() is not gradient.untyped_storage():
            return False
        whole = found.numel() == gradient.numel()
        return whole or (not found.is_contiguous() and self._is_summed_up(before))

    def _is_summed_up(self, node: fx.Node) -> bool:
        """Whether a layer's gradient is summed up to that of a bias, or of a smaller addend."""
        if node.op == "call_module":
            return isinstance(self.model.get_submodule(str(node.target)), nn.Linear)
        return any(
            other.op == "get_attr"
            or other in self.of_parameters
            or (other in self.kinds.joined and self._is_summed_up(other))
            for other in node.all_input_nodes
        )


def _separate(graph: fx.Graph, kinds: Kinds) -> None:
    """Copy views whose gradients would be added up in another order than the model adds them.

    Autograd adds up the gradients of a view before it hands the sum on. Where a view is made anew
    in each layer that reads it they are added one by one, which rounds otherwise unless there are
    two at most, or each view is read by one layer with no other reader of its base in between, or
    all read one view that has each element once, and read it once but for the first to add. A view
    that repeats elements adds up in itself.
    """
    order = {node: i for i, node in enumerate(graph.nodes)}
    for base in graph.nodes:
        if (base in kinds.views and base.op != "get_attr") or base not in kinds.differs:
            continue
        views = views_of(base, kinds, kinds.differs)
        if not views:
            continue
        ends = [
            (order[view], order[_run_with(user, kinds)])
            for view in [base, *views]
            for user in view.users
            if user in kinds.layers
            for _ in range(kinds.edges.get((view, user), 1))
        ]
        used = {view for view, _ in ends}
        sizes = [kinds.sizes.get(view, 0) for view in views if order[view] in used]
        repeats = len(ends) > 1 and any(size > kinds.sizes[base] for size in sizes)
        later = [end for end in ends if end != max(ends)]
        once = len(set(later)) == len(later)
        whole = len(used) == 1 and sizes == [kinds.sizes[base]] and once
        if not repeats and (len(ends) <= 2 or whole):
            continue
        readers = {user for _, user in ends}
        calm = all(
            len({user for view, user in ends if view == order[v]}) <= 1 for v in views
        ) and all(
            not any(view < other < user for other in readers)
            for view, user in ends
            if view != order[base]
        )
        if calm and not repeats:
            continue
        for view in views:
            if any(user in kinds.layers for user in view.users):
                if view in kinds.bundles:
                    raise UnsupportedModel(
                        f"{_said(view)} gives several views of one tensor to several operations "
                        "together; name a block that contains them in leaves"
                    )
                kinds.views.discard(view)
                kinds.copies.add(view)
                kinds.layers[view] = None


def _run_with(node: fx.Node, kinds: Kinds) -> fx.Node:
    """The last node of the layer that a node is run in."""
    while node in kinds.joined or node in kinds.views:
        last = kinds.groups.get(node, node)
        node = last if last is not node else next(iter(node.users))
    return node


def _fresh(tensor: torch.Tensor, requires_grad: bool) -> torch.Tensor:
    if not requires_grad:
        return tensor.detach()
    # Cut off from what made it, or autograd would keep every layer so far.
    made: torch.Tensor = Source.apply(gate(tensor.device), [tensor], None)
    return made


def _said(node: fx.Node) -> str:
    if node.op == "call_module":
        return f"module {str(node.target)!r}"
    return f"operation {node.name!r}"

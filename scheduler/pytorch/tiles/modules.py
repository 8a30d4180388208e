"""A module that treats tokens alone, run tile by tile: what it holds, and when.

T tokens come in (of all token tensors together X bytes), Y bytes go out, in n tiles as even as
`torch.Tensor.tensor_split` makes them; G bytes are the gradients of the module's parameters, as
they are or in float32 where they are narrower.

Forward: Y, and beside it one tile's forward without gradients, its output included (the first
tile's is made before Y is). Saved: the input alone, X, before the tiles run: where the module is
the last that saves something in a recomputed segment, the recomputation ends before it. A forward
that drops is the same.

Backward, with the gradient of the output given: X, the gradient of the input, from the start, and
for each tile: its input again (only its gradient takes memory: X / n), its forward with gradients,
and its backward. Of the parameters, sums: G from the first tile on, and beside it the gradient of
one parameter at a time, as the tile's backward makes it. In the end the sums are rounded to the
parameters' types, one by one. The module's forward so runs once more for each time that its block
runs; inside a recomputed block three times, or twice where the recomputation ends before it. What
runs for the backward leaves out products that the backward does not need, such as an MLP's last.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.utils.checkpoint as of_torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_flatten, tree_unflatten

from scheduler.common.errors import UnsupportedModel
from scheduler.common.text import counted
from scheduler.pytorch.model.autocast import Ambient, lifted, without_cast_cache
from scheduler.pytorch.model.replace import Replaced
from scheduler.pytorch.observe.dispatch import OperationMode
from scheduler.pytorch.tiles.chunks import exact, same
from scheduler.pytorch.tiles.tokens import why_whole


class TiledModule(Replaced):
    """The replaced forward of a module that treats tokens alone."""

    def __init__(
        self, module: nn.Module, name: str, tiles: int, *, looked_at: bool = False
    ) -> None:
        super().__init__(module)
        self.name = name
        self.tiles = tiles
        self._looked_at = {module.training} if looked_at else set[bool]()
        self.stops: dict[Any, int | None] = {}  # of `_Again`, by what may make them others
        _outside_graphs()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        _outside_graphs()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run tile by tile."""
        return _outside_graphs()(self, args, kwargs)

    def check(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise `UnsupportedModel` where it is seen not to treat tokens alone, when it runs first.

        Dropout may be on in training only. Where a selective checkpoint counts operations that is
        seen in the backward.
        """
        if self.module.training in self._looked_at or _is_counted():
            return
        if why := why_whole(self.module, self.original, args, kwargs):
            raise UnsupportedModel(
                f"{self.name!r} cannot run in tiles: it {why}; profile the model as it trains, "
                "with tiles=True, and solve again"
            )
        self._looked_at.add(self.module.training)


_uncompiled: list[Callable[..., Any]] = []
"""`_run`, once there is a module: making it loads the compiler."""


def _outside_graphs() -> Callable[..., Any]:
    if not _uncompiled:
        _uncompiled.append(torch.compiler.disable(_run))
    return _uncompiled[0]


def _run(tiled: TiledModule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    tiled.check(args, kwargs)
    leaves, form = tree_flatten((args, kwargs))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    tokens = [leaves[i] for i in places]

    def given(parts: Sequence[torch.Tensor]) -> Any:
        mine = list(leaves_alone)
        for i, part in zip(places, parts, strict=True):
            mine[i] = part
        return tree_unflatten(mine, form)

    def run(parts: Sequence[torch.Tensor], parameters: dict[str, torch.Tensor] | None) -> Any:
        mine, keywords = given(parts)
        if parameters is None:
            return tiled.original(*mine, **keywords)
        inside = {f"module.{name}": tensor for name, tensor in parameters.items()}
        return functional_call(_Body(tiled), inside, mine, keywords)

    def check(parts: Sequence[torch.Tensor]) -> None:
        mine, keywords = given(parts)
        tiled.check(mine, keywords)

    leaves_alone = [None if i in places else leaf for i, leaf in enumerate(leaves)]
    lead = tokens[0].shape[:-1]
    for other in tokens:
        if other.shape[:-1] != lead:  # though it had none when it was looked at
            raise UnsupportedModel(
                f"{tiled.name!r} runs in tiles, and is handed a tensor of the form "
                f"{tuple(other.shape)} beside its tokens; solve costs without tiles"
            )
    count = lead.numel()
    work = _Work(tiled, run, check, lead, tokens[0].device)
    trained = dict[str, nn.Parameter]()
    if torch.is_grad_enabled():
        trained = {n: p for n, p in tiled.module.named_parameters() if p.requires_grad}
    graded = [t for t in (*tokens, *trained.values()) if t.requires_grad]
    if not torch.is_grad_enabled() or not graded:
        return work.forward(tokens, min(tiled.tiles, count))
    if count < tiled.tiles:
        raise UnsupportedModel(
            f"{tiled.name!r} runs in {tiled.tiles} tiles, and this step has "
            f"{counted(count, 'token')}; give it more, or solve for fewer tiles"
        )
    work.names = list(trained)
    work.needed = [t.requires_grad for t in tokens]
    entered = _Entry.apply(work, graded[0], *tokens)
    made: torch.Tensor = _Tiles.apply(work, len(tokens), *entered, *trained.values())
    return made


class _Body(nn.Module):
    """The module as it was, to be called with other tensors for its parameters."""

    def __init__(self, tiled: TiledModule) -> None:
        super().__init__()
        self.module = tiled.module
        self._forward = tiled.original

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module's own forward."""
        return self._forward(*args, **kwargs)


class _Work:
    """One call of a tiled module.

    `entry` is the node that has its input; `names` are those of its parameters that are trained.
    """

    entry: Any
    names: list[str]
    needed: list[bool]

    def __init__(
        self,
        tiled: TiledModule,
        run: Callable[..., Any],
        check: Callable[..., Any],
        lead: torch.Size,
        device: torch.device,
    ) -> None:
        self.tiled, self.lead = tiled, lead
        around = Ambient(device).around
        self._device, self._run, self._again, self._check = device, run, around(run), around(check)

    def forward(self, tokens: Sequence[torch.Tensor], tiles: int) -> torch.Tensor:
        """The output, without a graph."""
        out: torch.Tensor | None = None
        with _inside(), torch.no_grad(), without_cast_cache(self._device.type):
            for start, end, parts in self._tiles([self._flat(t) for t in tokens], tiles):
                made = self._run(parts, None)
                if out is None:
                    out = made.new_empty((self.lead.numel(), made.shape[-1]))
                out[start:end] = made.reshape(end - start, -1)
                del made, parts
        assert out is not None
        return out.view(*self.lead, -1)

    def backward(self, grad: torch.Tensor) -> list[torch.Tensor | None]:
        """The gradients of the tokens, and of the parameters."""
        saved = self.entry.saved_tensors
        self._check(saved)
        tokens = [self._flat(t) for t in saved]
        del saved
        grads = [
            torch.empty_like(t) if is_needed else None
            for t, is_needed in zip(tokens, self.needed, strict=True)
        ]
        grad = self._flat(grad)
        sums = [None] * len(self.names)
        parameters = dict(self.tiled.module.named_parameters())
        leaves = {name: parameters[name].detach().requires_grad_() for name in self.names}
        hooks = [
            leaf.register_post_accumulate_grad_hook(partial(_add, sums, i))
            for i, leaf in enumerate(leaves.values())
        ]
        for start, end, parts in self._tiles(tokens, self.tiled.tiles):
            parts = [
                p.detach().requires_grad_(g is not None) for p, g in zip(parts, grads, strict=True)
            ]
            made = self._made_again(parts, leaves)
            torch.autograd.backward(made, grad[start:end].view_as(made))
            del made
            for part, whole in zip(parts, grads, strict=True):
                if whole is not None:
                    given, part.grad = part.grad, None
                    whole[start:end] = 0 if given is None else given.reshape(end - start, -1)
                    del given
            del parts, part
        for hook in hooks:
            hook.remove()
        found: list[torch.Tensor | None] = [
            None if g is None else g.view(*self.lead, -1) for g in grads
        ]
        for i, leaf in enumerate(leaves.values()):
            each, sums[i] = sums[i], None
            found.append(None if each is None else each.to(leaf.dtype))
        return found

    def _made_again(
        self, parts: list[torch.Tensor], leaves: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        """A tile's output, with its graph: its values are nobody's, and products may lack them."""
        stops, key = self.tiled.stops, (self.tiled.module.training, *self.needed, *self.names)
        if key not in stops:
            few = [p.detach()[..., :2, :].requires_grad_(p.requires_grad) for p in parts]
            made, again = self._run_again(few, leaves, None)
            stops[key] = None if _has_own(made.grad_fn) else again.saved
        made, again = self._run_again(parts, leaves, stops[key])
        if again.saved > again.left_out:  # it ran otherwise than when it was looked at
            stops[key] = None
            made, again = self._run_again(parts, leaves, None)
        return made

    def _run_again(
        self, parts: list[torch.Tensor], leaves: dict[str, torch.Tensor], stop: int | None
    ) -> tuple[torch.Tensor, _Again]:
        again = _Again(stop)
        # As it was in the forward; and hooks are not for what ends right here.
        hooks = saved_tensors_hooks(again.pack, same)
        with lifted(self._device), torch.enable_grad(), hooks, again:
            return self._again(parts, leaves), again

    def _flat(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.reshape(-1, tensor.shape[-1])

    def _tiles(
        self, tokens: Sequence[torch.Tensor], tiles: int
    ) -> Iterator[tuple[int, int, list[torch.Tensor]]]:
        """Each tile's first and last token, and its part of the tokens in as many dimensions."""
        ones = (1,) * (len(self.lead) - 1)
        start = 0
        for part in range(tiles):
            end = start + (self.lead.numel() + tiles - 1 - part) // tiles
            yield start, end, [t[start:end].view(*ones, end - start, -1) for t in tokens]
            start = end


_HERE = threading.local()


def _is_counted() -> bool:
    """Whether a selective checkpoint tells operations apart by how many there were."""
    kinds = of_torch._CachingTorchDispatchMode, of_torch._CachedTorchDispatchMode
    return any(isinstance(mode, kinds) for mode in _get_current_dispatch_mode_stack())


def in_tiles() -> bool:
    """Whether a tile's forward is running: its operations are not a block's to keep."""
    return getattr(_HERE, "depth", 0) > 0


@contextmanager
def _inside() -> Iterator[None]:
    _HERE.depth = getattr(_HERE, "depth", 0) + 1
    try:
        yield
    finally:
        _HERE.depth -= 1


_SIZES: dict[Any, Callable[..., tuple[int, ...]]] = {
    torch.ops.aten.mm.default: lambda a, b: (a.shape[0], b.shape[1]),
    torch.ops.aten.bmm.default: lambda a, b: (*a.shape[:2], b.shape[2]),
    torch.ops.aten.addmm.default: lambda c, a, b: (a.shape[0], b.shape[1]),
    torch.ops.aten.baddbmm.default: lambda c, a, b: (*a.shape[:2], b.shape[2]),
}
"""Of the products that may be left out, the sizes of their results."""


class _Again(OperationMode):
    """A tile's forward for its backward, which stops computing after operation number `stop`.

    `saved` is how many had run when autograd last saved something, `left_out` how many before the
    first product was left out.
    """

    def __init__(self, stop: int | None) -> None:
        super().__init__()
        self._stop = sys.maxsize if stop is None else stop
        self.ran = self.saved = 0
        self.left_out = sys.maxsize

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        """For autograd's hooks."""
        self.saved = self.ran
        return tensor

    def _operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        before, self.ran = self.ran, self.ran + 1
        # Within a function of its own autograd saves nothing, which may hold what it makes.
        if before < self._stop or func not in _SIZES or not torch.is_grad_enabled():
            return func(*args, **kwargs)
        self.left_out = min(self.left_out, before)
        return args[-1].new_empty(_SIZES[func](*args))


def _has_own(node: Any) -> bool:
    """Whether a graph has a function that is not torch's, which may hold tensors unseen."""
    todo, known = [node], set[Any]()
    while todo:
        node = todo.pop()
        if node is None or node in known:
            continue
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            return True
        known.add(node)
        todo += [after for after, _ in node.next_functions]
    return False


def _add(sums: list[Any], i: int, leaf: torch.Tensor) -> None:
    """Add the gradient that has just come to a leaf to the sum of its tiles."""
    grad, leaf.grad = leaf.grad, None
    assert grad is not None
    if sums[i] is None:
        sums[i] = grad.to(exact(grad.dtype))
    else:
        sums[i] += grad


class _Entry(torch.autograd.Function):
    """The tokens on their way in, which are saved here: before the tiles run."""

    @staticmethod
    def forward(
        ctx: Any, work: _Work, door: torch.Tensor, *tokens: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """The same tokens; the door makes that there is a node."""
        ctx.save_for_backward(*tokens)
        ctx.set_materialize_grads(False)
        work.entry = ctx
        return tuple(token.view_as(token) for token in tokens)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Hand the gradients on."""
        return None, None, *grads


class _Tiles(torch.autograd.Function):
    """The tiles."""

    @staticmethod
    def forward(ctx: Any, work: _Work, count: int, *tensors: torch.Tensor) -> torch.Tensor:
        """The output."""
        ctx.work = work
        return work.forward(tensors[:count], work.tiled.tiles)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        """Make each tile again, and its gradients."""
        if torch.is_grad_enabled():
            raise UnsupportedModel(
                f"a second derivative was asked of {ctx.work.tiled.name!r}, whose tiles have the "
                "first only; remove the plan, or solve costs without tiles"
            )
        return None, None, *ctx.work.backward(grad_outputs[0])

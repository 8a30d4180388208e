"""What runs in tiles: the head, and modules inside blocks, seen once for each number of tiles."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import nn

from scheduler.common.errors import UnsupportedModel
from scheduler.costs.options.both import TiledOptions
from scheduler.costs.options.tiles import Tile, find_tiles
from scheduler.costs.peaks import Peaks
from scheduler.export.standalone.state import Snapshot, is_small
from scheduler.pytorch.model.replace import replaced
from scheduler.pytorch.observe.autograd import gate, saving_nothing
from scheduler.pytorch.observe.clock import Clock
from scheduler.pytorch.observe.dispatch import tensors_of
from scheduler.pytorch.observe.layer import IsolatedLayer, see_layer
from scheduler.pytorch.observe.tracker import storage_bytes
from scheduler.pytorch.profiling.options import see_tiled_options
from scheduler.pytorch.tiles.head import chunked_head
from scheduler.pytorch.tiles.modules import TiledModule
from scheduler.pytorch.tiles.tokens import why_whole


@dataclass(frozen=True)
class Tiles:
    """The head in tiles; `refused` is why it must run whole, where it must."""

    of_head: tuple[Tile, ...] = ()
    refused: str = ""


@dataclass(frozen=True)
class TiledBlock:
    """A block with modules in tiles.

    `modules` are those that run so, by their names in the block; `refused` says of others why they
    do not; `tiles` are all numbers of tiles that were tried and are worth it. `both`: with the one
    in tiles that holds most, and results of others kept.
    """

    modules: tuple[str, ...] = ()
    refused: dict[str, str] = field(default_factory=dict)
    tiles: tuple[Tile, ...] = ()
    both: tuple[TiledOptions, ...] = ()

    @property
    def each(self) -> list[Peaks]:
        """The block in each number of tiles."""
        return [tile.peaks for tile in (*self.tiles, *(one.tile for one in self.both))]


def see_tiles(
    model: nn.Module, tokens: int, least: int | None, whole: Peaks, see: Callable[[], Peaks]
) -> Tiles:
    """See the head of a model in tiles; `see` runs a step around the blocks, as for `whole`."""

    def tiled(count: int) -> Peaks:
        with chunked_head(model, count):
            return see()

    try:
        return Tiles(find_tiles(tokens, least, whole, tiled))
    except UnsupportedModel as error:
        return Tiles(refused=str(error))


def see_tiled_block(
    called: str,
    block: nn.Module,
    layer: IsolatedLayer,
    whole: Peaks,
    clock: Clock,
    least: int | None,
    shared: set[int],
    *,
    options: bool,
) -> TiledBlock:
    """See the block `called` so, which costs `whole` as it is, with token-wise modules in tiles.

    `shared` are modules that other blocks have, too, which may run in other tiles.
    """
    template = layer.template
    tokens = template.numel() // template.shape[-1] if template.dim() > 1 else 0
    if least is None or tokens < 2 * least or not whole.repeatable:
        return TiledBlock()
    look = _Look(block, shared, clock)
    with look.looking():
        times = clock.repeated(partial(_forward, _as_it_is(layer), look))
    modules = tuple(look.worth)
    if not modules:
        return TiledBlock(refused=look.refused)
    time = median(times)

    def tiled(names: tuple[str, ...], count: int) -> Peaks:
        with _put(block, names, count):
            seen, _ = see_layer(_as_it_is(layer), clock)
        longer = seen.forward_time + seen.backward_time - whole.forward_time - whole.backward_time
        return replace(
            seen,
            forward_time=whole.forward_time,
            backward_time=whole.backward_time + max(longer, look.shares(names) * time),
        )

    def around(name: str) -> Iterator[TiledOptions]:
        for tile in find_tiles(tokens, least, whole, partial(tiled, (name,))):
            with _put(block, (name,), tile.count):
                ways = see_tiled_options(called, _as_it_is(layer), tile.peaks, clock)
            yield TiledOptions(name, tile, ways)

    largest = look.largest() if options else None
    both = () if largest is None else tuple(around(largest))
    found = find_tiles(tokens, least, whole, partial(tiled, modules))
    return TiledBlock(modules, look.refused, found, both)


@contextmanager
def _put(block: nn.Module, names: Iterable[str], count: int) -> Iterator[None]:
    """Inside, these modules of a block run in so many tiles."""
    placed = [TiledModule(block.get_submodule(n), n, count, looked_at=True) for n in names]
    for each in placed:
        each.put()
    try:
        yield
    finally:
        for each in placed:
            each.take_away()


def _as_it_is(layer: IsolatedLayer) -> IsolatedLayer:
    """The layer, which starts from its module as it is: with the forwards that are replaced."""
    return replace(layer, state=Snapshot(layer.state.roots, is_small, handed=layer.state.handed))


def _forward(layer: IsolatedLayer, look: _Look) -> float:
    """Time of what is worth tiles in one forward."""
    layer.clear()
    look.start()
    layer.forward(gate(layer.template.device), [layer.template])
    layer.clear()
    return look.time


class _Look:
    """Looks at the modules inside a block while it runs, the outermost first."""

    def __init__(self, block: nn.Module, shared: set[int], clock: Clock) -> None:
        self.refused: dict[str, str] = {}
        self.worth: dict[str, int] = {}  # with the bytes that they hold inside
        self.time = 0.0
        self._clock = clock
        self._inside = False
        self._modules = {
            name: module
            for name, module in block.named_modules()
            if name and id(module) not in shared
        }

    def largest(self) -> str | None:
        """The module that holds most inside, if it is one with products."""
        name = max(self.worth, key=lambda each: self.worth[each])
        weights = self._modules[name].parameters()
        return name if any(weight.dim() > 1 for weight in weights) else None

    def shares(self, names: Iterable[str]) -> float:
        """The part that modules have in all that is held inside."""
        return sum(self.worth[name] for name in names) / (sum(self.worth.values()) or 1)

    def start(self) -> None:
        """Before the block runs."""
        self.time = 0.0

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Look, while inside."""
        with ExitStack() as stack:
            for name, module in self._modules.items():
                run = partial(self._run, name, module, module.forward)
                stack.enter_context(replaced(module, run))
            yield

    def _run(
        self, name: str, module: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        if self._inside:
            return forward(*args, **kwargs)
        self._inside = True
        try:
            why = self.refused.get(name) or why_whole(module, forward, args, kwargs)
            if not why:
                return self._alone(name, module, forward, args, kwargs)
        finally:
            self._inside = False
        self.refused[name] = why
        self.worth.pop(name, None)
        return forward(*args, **kwargs)

    def _alone(
        self,
        name: str,
        module: nn.Module,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Run a module that treats tokens alone; it is worth tiles if it saves as much as it takes.

        Beside its input, which a tile keeps, and its output.
        """
        saved: dict[int, torch.Tensor] = {}
        start = self._clock.mark()
        with saving_nothing(lambda t: saved.update({id(t.untyped_storage()): t.detach()})):
            made = forward(*args, **kwargs)
        time = self._clock.between(start, self._clock.mark())
        given = tensors_of((args, kwargs))
        own = [*module.parameters(), *module.buffers(), *given, made]
        for tensor in own:
            saved.pop(id(tensor.untyped_storage()), None)
        taken = sum(tensor.numel() * tensor.element_size() for tensor in given)
        held = sum(map(storage_bytes, saved.values()))
        if held >= taken:
            self.worth[name] = held
            self.time += time
        return made

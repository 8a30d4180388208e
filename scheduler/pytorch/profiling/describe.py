"""A profile with its reasons: what was found, what was folded, what was left out and why."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from torch import nn

from scheduler.common.errors import UnsupportedModel
from scheduler.common.text import format_bytes, format_time
from scheduler.costs.costgraph import CostGraph, spread_text
from scheduler.costs.layer import LayerCost
from scheduler.memory.gpus import Gpu
from scheduler.pytorch.model.call import NoChain
from scheduler.pytorch.model.calls import shared_names
from scheduler.pytorch.model.fake import is_fake
from scheduler.pytorch.model.find import Found, look_for
from scheduler.pytorch.model.step import prepared
from scheduler.pytorch.observe.clock import Roofline
from scheduler.pytorch.profiling.options import SeenOptions
from scheduler.pytorch.profiling.profile import Seen, instead_of_chain, profiled, see
from scheduler.pytorch.profiling.tiles import TiledBlock
from scheduler.report.tables import aligned, spread, wrapped

_MOST_ROWS, _MOST_NAMES = 20, 4


@dataclass(frozen=True)
class Description:
    """A profile of a model; `print` shows it in one screen.

    Attributes
    ----------
    costs
        What `profile` returns.
    blocks
        Module names of the blocks, in the order in which they run.
    how
        How they were found.
    folded
        Groups of neighbouring layers with equal costs, as they are shown.
    runs
        How many blocks were run by themselves; the others are like one of them.
    notes
        A sentence for everything a reader should know: what is in the two ends, what is held
        throughout, what is not run, frozen, shared, in evaluation mode or always kept, and why.
    """

    costs: CostGraph
    blocks: list[str]
    how: str
    folded: list[list[str]]
    runs: int
    fake: bool
    notes: list[str]

    def __str__(self) -> str:
        kind, count = self.costs.name, len(self.blocks)
        verb, itself = ("was", "itself") if self.runs == 1 else ("were", "themselves")
        like = "" if self.runs == count else "; the others are like one of these"
        first = (
            f"{kind}: {count} blocks, {self.how}. {self.runs} of them {verb} run by {itself}"
            f"{like}. Times are {'estimated' if self.fake else 'measured'}."
        )
        lines = [wrapped(first), "", *_table(self.costs, self.folded), ""]
        noise = [self.costs.noise] if self.costs.noise else []
        lines.extend(wrapped(note) for note in (*noise, *self.notes))
        return "\n".join(lines)


def describe(
    model: nn.Module,
    inputs: Any,
    loss_fn: Callable[[Any], Any] | None = None,
    blocks: str | Iterable[str] = "auto",
    *,
    options: bool = False,
    tiles: bool | int = False,
    fake: bool | None = None,
    gpu: str | Gpu | None = None,
    roofline: Roofline | None = None,
) -> Description:
    """A model's profile, and what was found, what was folded, what was left out and why.

    Parameters
    ----------
    model, inputs, loss_fn, blocks, options, tiles, fake, gpu, roofline
        As for `profile`.

    Raises
    ------
    UnsupportedModel
        As `profile` does.
    """
    names = blocks if isinstance(blocks, str) else list(blocks)
    model = profiled(model, names, options=options)
    machine: dict[str, Any] = {"fake": fake, "gpu": gpu, "roofline": roofline}
    try:
        found = _found(model, inputs, names, fake)
        outside = _Outside(model, found.names)
        with outside.watched():
            ways: dict[str, Any] = {"options": options, "tiles": tiles}
            seen = see(model, inputs, loss_fn, found.names, **ways, **machine)
    except NoChain as error:
        costs = instead_of_chain(error, model, inputs, loss_fn, names, **machine)
        return _of_graph(costs, is_fake(model) if fake is None else fake, error)
    return Description(
        seen.costs,
        [block.name for block in seen.blocks],
        found.how,
        [[layer.name for layer in run] for _, run in groupby(seen.costs.layers, _nameless)],
        seen.runs,
        seen.fake,
        list(_notes(model, seen, found, outside)),
    )


def _of_graph(costs: CostGraph, fake: bool, error: UnsupportedModel) -> Description:
    names = [layer.name for layer in costs.layers]
    kept = [layer.name for layer in costs.layers if not layer.recomputable]
    return Description(
        costs,
        names,
        f"the layers of a graph with {len(costs.edges or ())} edges",
        [[layer.name for layer in run] for _, run in groupby(costs.layers, _nameless)],
        len(names),
        fake,
        [
            f"{format_bytes(costs.input_bytes)} are held throughout: inputs, loss, and what needs "
            "no gradient.",
            f"Always kept: {_some(kept)}.",
            f"It is no chain: {error}.",
        ],
    )


def _found(model: nn.Module, inputs: Any, blocks: str | list[str], fake: bool | None) -> Found:
    faking = is_fake(model) if fake is None else fake
    with prepared(model, inputs, fake=faking) as (model, inputs):
        return look_for(model, blocks, inputs)


class _Outside:
    """The outermost modules that are no block, hold none and are in none; when they are called."""

    def __init__(self, model: nn.Module, blocks: Sequence[str]) -> None:
        self.model, self.blocks = model, blocks
        self.when: dict[str, str] = {}
        self._now = "before"
        self._names: list[str] = []
        self._look(model, "")

    def _look(self, module: nn.Module, prefix: str) -> None:
        for name, child in module.named_children():
            path = f"{prefix}{name}"
            if path in self.blocks:
                continue
            holds = any(block.startswith(f"{path}.") for block in self.blocks)
            if holds or isinstance(child, (nn.ModuleList, nn.ModuleDict)):
                self._look(child, f"{path}.")
            else:
                self._names.append(path)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Note when the modules are called, while inside."""
        model, blocks = self.model, self.blocks
        handles = [model.register_forward_pre_hook(lambda *_: self._turn("before"))]
        first, last = model.get_submodule(blocks[0]), model.get_submodule(blocks[-1])
        handles.append(first.register_forward_pre_hook(lambda *_: self._turn("during")))
        handles.append(last.register_forward_hook(lambda *_: self._turn("after")))
        for name in self._names:
            module = model.get_submodule(name)
            handles.append(module.register_forward_pre_hook(lambda *_, name=name: self._call(name)))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _turn(self, now: str) -> None:
        self._now = now

    def _call(self, name: str) -> None:
        self.when.setdefault(name, self._now)

    def at(self, when: str | None) -> list[str]:
        """Names of the modules that are called then; None: never."""
        return [name for name in self._names if self.when.get(name) == when]


def _notes(model: nn.Module, seen: Seen, found: Found, outside: _Outside) -> Iterator[str]:
    layers, parts = seen.costs.layers, seen.parts
    if parts.peaks[0] is not None:
        yield f"{layers[0].name} is what runs before the blocks: {_some(outside.at('before'))}."
    yield f"{layers[-1].name} is what runs after them, with the loss: {_some(outside.at('after'))}."
    held = [f"{format_bytes(parts.held_bytes)} are held throughout: inputs and loss"]
    if parts.side_bytes:
        held.append(
            f"of them {format_bytes(parts.side_bytes)} that the blocks are handed beside the "
            "activation"
        )
    if beside := sum(parts.beside):
        held.append(
            f"{format_bytes(beside)} more that the blocks are handed beside the activation are "
            "held for blocks that run again"
        )
    if local := max(nbytes + sum(size for _, size in inputs) for nbytes, inputs in parts.local):
        held.append(
            f"the model's own code refers to {format_bytes(local)} more while its "
            "blocks run forward for the first time"
        )
    yield "; ".join(held) + "."
    if any(block.sides for block in seen.blocks):
        yield "Beside the activation the blocks pass a gradient to other arguments."
    kept = [layer.name for layer in layers if not layer.recomputable and layer.name in found.names]
    if kept:
        yield f"Always kept, because they go another way when they are run again: {_some(kept)}."
    yield from _options(seen)
    yield from _tiles(seen)
    if found.others:
        yield (
            f"No blocks, because they hand later ones more than their activation: "
            f"{_some(found.others)}."
        )
    names = [block.name for block in seen.blocks]
    if cut_off := [name for name in found.names if name not in names]:
        yield f"No blocks, because they have no backward in a step: {_some(cut_off)}."
    if seen.tiles.refused:
        yield f"The head runs whole: {seen.tiles.refused}."
    if unused := outside.at(None):
        yield f"Not called in this step: {_some(unused)}."
    if frozen := [name for name, p in model.named_parameters() if not p.requires_grad]:
        total = len(list(model.parameters()))
        yield f"Frozen: {len(frozen)} of {total} parameters ({_some(frozen)})."
    if shared := shared_names(model):
        pairs = _some([f"{b} is {a}" for a, b in shared])
        yield f"Shared parameters, whose one gradient the first backward makes: {pairs}."
    if model.training and (still := _evaluating(model)):
        yield f"In evaluation mode: {_some(still)}."
    elif not model.training:
        yield "The model is in evaluation mode; in training mode it may save more (dropout)."


def _options(seen: Seen) -> Iterator[str]:
    """What was found inside the blocks, once for all that share it."""
    alike: dict[int, tuple[SeenOptions, list[str]]] = {}
    for block, each in zip(seen.blocks, seen.each, strict=True):
        if each.ways is not None:
            alike.setdefault(id(each.ways), (each.ways, []))[1].append(block.name)
    for this, names in alike.values():
        if not this.ways:
            yield f"No options: {_some(names)}."
            continue
        yield (
            f"Options of {_some(names)}, from {len(this.inside.forward)} operations: "
            f"{', '.join(way.want.name for way in this.ways)}. Of those named by their share of "
            f"the saved bytes, the best within any number of bytes takes at most "
            f"{format_time(this.gap, seen.costs.time_unit)} longer than the best set of results "
            "that there is."
        )


def _tiles(seen: Seen) -> Iterator[str]:
    """What runs in tiles inside the blocks, and what does not and why, once for all alike."""
    alike: dict[int, tuple[TiledBlock, list[str]]] = {}
    for block, each in zip(seen.blocks, seen.each, strict=True):
        if each.tiles.modules or each.tiles.refused:
            alike.setdefault(id(each.tiles), (each.tiles, []))[1].append(block.name)
    for this, names in alike.values():
        outer = [n for n in this.refused if not any(n.startswith(f"{o}.") for o in this.refused)]
        whole = "; ".join(f"{name}, which {this.refused[name]}" for name in outer)
        tail = f" Whole there: {whole}." if whole else ""
        if not this.tiles:
            yield f"Nothing in {_some(names)} is worth tiles.{tail}"
            continue
        counts = ", ".join(str(tile.count) for tile in this.tiles)
        parts = ", ".join(this.modules)
        yield f"Tiles in {_some(names)}: {parts}, in {counts} tiles.{tail}"


def _evaluating(model: nn.Module) -> list[str]:
    """Outermost modules in evaluation mode."""
    names: list[str] = []
    for name, module in model.named_modules():
        if not module.training and not any(name.startswith(f"{outer}.") for outer in names):
            names.append(name)
    return names


def _some(names: Sequence[str]) -> str:
    if not names:
        return "no modules"
    shown = ", ".join(names[:_MOST_NAMES])
    more = len(names) - _MOST_NAMES
    return f"{shown} and {more} more" if more > 0 else shown


def _nameless(layer: LayerCost) -> LayerCost:
    return replace(layer, name="")


def _table(costs: CostGraph, folded: list[list[str]]) -> list[str]:
    by_name = {layer.name: layer for layer in costs.layers}
    shown = spread(folded, _MOST_ROWS)
    rows = [["layer", "", "output", "saved", "gradients", "forward", "again", "backward", "spread"]]
    for names in shown:
        layer = by_name[names[0]]
        assert layer.recompute_time is not None
        times = (layer.forward_time, layer.recompute_time, layer.backward_time)
        rows.append(
            [
                names[0] if len(names) == 1 else f"{names[0]} – {names[-1].rpartition('.')[2]}",
                f"x {len(names)}" if len(names) > 1 else "",
                format_bytes(layer.output_bytes),
                format_bytes(layer.saved_bytes),
                format_bytes(layer.gradient_bytes),
                *(format_time(time, costs.time_unit) for time in times),
                spread_text(layer),
            ]
        )
    measured = any(layer.time_spread for layer in costs.layers)
    lines = aligned(rows if measured else [row[:-1] for row in rows])
    if len(shown) < len(folded):
        lines.append(f"({len(folded) - len(shown)} more rows are not shown)")
    return lines

"""From a model and a batch to layer costs."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from scheduler.common.errors import InvalidCosts, UnsupportedModel
from scheduler.common.text import shown
from scheduler.costs.costgraph import CostGraph
from scheduler.costs.options.tiles import least_tokens
from scheduler.costs.peaks import Peaks
from scheduler.memory.gpus import Gpu
from scheduler.pytorch.graph.profile import profile_graph
from scheduler.pytorch.model.autocast import Ambient, lifted
from scheduler.pytorch.model.call import (
    NoChain,
    check_unwrapped,
)
from scheduler.pytorch.model.calls import CalledBlock, find_calls, used_outside
from scheduler.pytorch.model.fake import is_fake
from scheduler.pytorch.model.find import Found, look_for
from scheduler.pytorch.model.stacks import listed
from scheduler.pytorch.model.step import check_loss, device_of, prepared, without_caches
from scheduler.pytorch.model.wrappers import bare, check_compiled, check_opened
from scheduler.pytorch.observe.clock import Clock, Roofline, RooflineClock
from scheduler.pytorch.profiling.blocks import SeenBlock, see_blocks, see_holds
from scheduler.pytorch.profiling.layers import Sight
from scheduler.pytorch.profiling.marks import Parts
from scheduler.pytorch.profiling.parts import see_parts
from scheduler.pytorch.profiling.tiles import Tiles, see_tiles


def profile(
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
) -> CostGraph:
    """Measure what each layer of a model costs in one training step.

    The layers are what runs before the blocks ("embedding"), each block under its module name, and
    what runs after them with the loss ("head"). Where the model runs code of its own between two
    blocks, or reads the output of one elsewhere, too, that is a layer which a plan keeps, named by
    the block after it ("before decoder.0"). Each distinct block is run by itself, once for the
    bytes and a few times for the clock, so that the whole step is never in memory. The model, its
    gradients, its buffers and the random state are left as they were. Where autocast is on, the
    forward is profiled under it and the backward outside, as torch recommends, and casts as an
    applied plan does: once a use, not once a step.

    Parameters
    ----------
    model
        In the mode it will be trained in; also inside DistributedDataParallel, but before it is
        sharded or compiled as a whole.
    inputs
        A tensor, a tuple of arguments, or a dict of keyword arguments, of the size to be trained.
    loss_fn
        ``loss_fn(output)`` gives the scalar to differentiate; default the output's own ``loss``.
    blocks
        "auto" (the children of every `nn.ModuleList` or `nn.Sequential` that the model calls once
        each), a pattern of names such as ``"decoder.block.*"``, or the names in the order in which
        they run.
    options
        True: look inside the blocks, and give each its options: which of its results to keep while
        the rest is dropped and made again (of chains). At most 10 of the Pareto set of a block, and
        what people choose by hand ("save-matmuls", …; see `scheduler.costs.options.policies`).
    tiles
        True: give the head options to run with its loss in tiles, of at least 1,024 tokens, so that
        the logits are never there as a whole, and the blocks options to run so what treats tokens
        alone in them, such as an MLP; a number: of at least so many. Gradients under a plan that
        takes one are the model's to rounding, not bit by bit.
    fake
        True: work on fake tensors, with neither memory nor arithmetic; bytes are exact and times
        are estimated. Default: where the model's tensors are fake or on the meta device.
    gpu
        The machine whose times a fake profile estimates: a name, such as "h100", or a
        `scheduler.memory.gpus.Gpu`. Default: the `Roofline` of an A100-class GPU.
    roofline
        The machine, by its own figures.

    Returns
    -------
    CostGraph
        A chain; of a model that is none, where no blocks are named, a graph of layers, which
        `solve` and `apply` take as well. Times in ms, sizes in bytes. `input_bytes` holds the
        inputs and what kept blocks hold of what they are handed beside the activation (position
        embeddings); the rest of that (masks) is the `beside_bytes` of the last block that takes it.

    Raises
    ------
    UnsupportedModel
        The blocks cannot be found, do not run once each in this order, or do something that a plan
        cannot honour.
    InvalidCosts
        `gpu` is given for a profile on real tensors, or beside `roofline`.
    """
    machine: dict[str, Any] = {"gpu": gpu, "roofline": roofline}
    if isinstance(model, nn.Module) and not model.training:
        warnings.warn(
            f"{type(bare(model, sharded=False)).__name__} is in eval mode, as from_pretrained "
            "leaves it, and in train mode a step may keep more (dropout); call model.train() "
            "before profile, or keep it in eval mode in training",
            stacklevel=2,
        )
    try:
        ways: dict[str, Any] = {"options": options, "tiles": tiles}
        return see(model, inputs, loss_fn, blocks, **ways, fake=fake, **machine).costs
    except NoChain as error:
        return instead_of_chain(error, model, inputs, loss_fn, blocks, fake=fake, **machine)


def instead_of_chain(
    error: NoChain,
    model: nn.Module,
    inputs: Any,
    loss_fn: Callable[[Any], Any] | None,
    blocks: str | Iterable[str],
    *,
    fake: bool | None,
    gpu: str | Gpu | None,
    roofline: Roofline | None,
) -> CostGraph:
    """The costs of a model that is no chain, which `error` says, as a graph of layers.

    Raises the error where the blocks were named, and where a graph cannot be either.
    """
    if blocks != "auto":
        raise error
    roofline = roofline if gpu is None else Roofline.of(gpu)
    try:
        return profile_graph(model, inputs, loss_fn, "auto", fake=fake, roofline=roofline)
    except UnsupportedModel as other:
        if str(other) == str(error):
            raise error from other
        raise UnsupportedModel(f"{error} (nor is it a graph of layers: {other})") from other


@dataclass(frozen=True)
class Seen:
    """A profile, and what it was made of; `runs`: how many blocks were run by themselves."""

    costs: CostGraph
    blocks: list[CalledBlock]
    parts: Parts
    runs: int
    fake: bool
    each: list[SeenBlock]
    tiles: Tiles


def profiled(model: nn.Module, blocks: str | list[str], *, options: bool) -> nn.Module:
    """The model without its wrapper; `UnsupportedModel` where that is seen not to do."""
    model = bare(model, sharded=False)
    check_unwrapped(model, [])
    likely = listed(model) if blocks == "auto" else look_for(model, blocks).names
    check_compiled(model, likely)
    if options:
        check_opened(model, likely)
    return model


def see(
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
) -> Seen:
    """What `profile`, whose parameters these are, sees on its way to the costs."""
    blocks = blocks if isinstance(blocks, str) else list(blocks)
    model = profiled(model, blocks, options=options)
    check_loss(loss_fn)
    faking = is_fake(model) if fake is None else fake
    machine = _machine(gpu, roofline, faking)
    with prepared(model, inputs, fake=faking) as (model, inputs):
        device = device_of(model, inputs)
        clock = RooflineClock(machine) if faking else Clock(device)
        with lifted(device) as ambient:
            loss_fn = None if loss_fn is None else ambient.around(loss_fn)
            with ambient.inside(model, cache=False):
                found = look_for(model, blocks, inputs)
            check_unwrapped(model, found.names)
            with without_caches(model, found.names):
                least = least_tokens(tiles)
                return _profile(model, inputs, loss_fn, found, clock, ambient, options, least)


def _machine(gpu: str | Gpu | None, roofline: Roofline | None, faking: bool) -> Roofline:
    if gpu is None:
        return roofline or Roofline()
    if roofline is not None:
        raise InvalidCosts("give gpu= or roofline=, not both: each says how fast the machine is")
    if not faking:
        raise InvalidCosts(
            f"gpu={shown(gpu)} estimates the times of a fake profile, and this model is profiled "
            "on real tensors, whose times are measured; add fake=True, or leave gpu= out"
        )
    return Roofline.of(gpu)


def _profile(
    model: nn.Module,
    inputs: Any,
    loss_fn: Callable[[Any], Any] | None,
    found: Found,
    clock: Clock,
    ambient: Ambient,
    options: bool,
    least: int | None,
) -> Seen:
    with ambient.inside(model, cache=False):
        blocks = find_calls(model, inputs, found.names)
    _check_casts(model, blocks, ambient)
    see_holds(blocks, ambient)
    with ambient.inside(model, cache=True):
        parts = see_parts(model, inputs, loss_fn, blocks, clock, ambient)
    # What has no backward is let go where its output is: to the chain it is code between blocks.
    cut_off = [block.name for block in blocks if parts.runs[block.run].cut_off]
    if 0 < len(cut_off) < len(blocks):
        names = [name for name in found.names if name not in cut_off]
        found = replace(found, names=names)
        return _profile(model, inputs, loss_fn, found, clock, ambient, options, least)
    with ambient.inside(model, cache=True):
        tiles = see_tiles(
            model,
            _tokens(blocks[-1]),
            least,
            _last(parts),
            lambda: _last(see_parts(model, inputs, loss_fn, blocks, clock, ambient)),
        )
    seen, runs = see_blocks(blocks, parts, clock, ambient, options, least)
    casts = ambient.cached_bytes(
        [block.module for block in blocks], all_of_first=not parts.runs[0].needs_grad
    )
    # A checkpoint holds what its blocks change on their modules as it was before; and what dropped
    # forwards leave is there until the step is over: for kept ones the safe side.
    held = parts.held_bytes + max(block.awaited_bytes for block in blocks)
    held += sum(each.peaks.state_bytes + each.peaks.left_bytes for each in seen)
    layers = Sight(model, blocks, parts, seen, held, casts, tiles).layers()
    costs = CostGraph(layers, input_bytes=held, name=type(model).__name__, time_unit="ms")
    estimated = isinstance(clock, RooflineClock)
    return Seen(costs, blocks, parts, runs, estimated, seen, tiles)


def _tokens(block: CalledBlock) -> int:
    assert block.output is not None
    return block.output.numel() // block.output.size(-1) if block.output.dim() > 1 else 1


def _last(parts: Parts) -> Peaks:
    peaks = parts.peaks[-1]
    assert peaks is not None  # only the first part may be nothing
    return peaks


def _check_casts(model: nn.Module, found: list[CalledBlock], ambient: Ambient) -> None:
    """Raise `UnsupportedModel` where autocast casts a weight once for uses that a plan parts."""
    if not ambient.keeps_casts:
        return
    uses = Counter(id(p) for block in found for p in {*block.module.parameters()})
    outside = {id(p) for p in used_outside(model, found)}
    for block in found:
        for name, parameter in block.module.named_parameters():
            shared = uses[id(parameter)] > 1 or id(parameter) in outside
            if shared and parameter.requires_grad and parameter.dtype == torch.float32:
                raise UnsupportedModel(
                    f"'{block.name}.{name}' is also another module's weight, which autocast casts "
                    "once a step and a plan once a use, so that its gradient would be rounded "
                    "otherwise; train with torch.autocast(..., cache_enabled=False)"
                )

"""From a model and a batch to layer costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import BackwardHook

from scheduler.common.errors import InvalidCosts, UnsupportedModel
from scheduler.common.text import shown
from scheduler.costs.costgraph import CostGraph
from scheduler.costs.layer import LayerCost
from scheduler.costs.peaks import Peaks
from scheduler.costs.waiting import Waiting, with_waiting
from scheduler.export.standalone.caches import for_one_run
from scheduler.export.standalone.state import Snapshot, is_small
from scheduler.memory.gpus import Gpu
from scheduler.pytorch.graph.profile import profile_graph
from scheduler.pytorch.model.autocast import Ambient, lifted
from scheduler.pytorch.model.call import (
    Call,
    NoChain,
    activation_of,
    before,
    check_unwrapped,
    extras_of,
)
from scheduler.pytorch.model.calls import CalledBlock, find_calls, own_parameters, used_outside
from scheduler.pytorch.model.fake import is_fake
from scheduler.pytorch.model.find import Found, look_for
from scheduler.pytorch.model.stacks import listed
from scheduler.pytorch.model.step import device_of, prepared, without_caches
from scheduler.pytorch.model.wrappers import bare, check_compiled, check_opened
from scheduler.pytorch.observe.autograd import Beside
from scheduler.pytorch.observe.clock import Clock, Roofline, RooflineClock
from scheduler.pytorch.observe.dispatch import tensors_of
from scheduler.pytorch.observe.layer import IsolatedLayer, Layout, see_layer
from scheduler.pytorch.profiling.marks import Parts
from scheduler.pytorch.profiling.options import SeenOptions, see_options
from scheduler.pytorch.profiling.parts import see_parts


def profile(
    model: nn.Module,
    inputs: Any,
    loss_fn: Callable[[Any], Any] | None = None,
    blocks: str | Iterable[str] = "auto",
    *,
    options: bool = False,
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
        inputs and what the blocks are handed beside the activation (masks, position embeddings).

    Raises
    ------
    UnsupportedModel
        The blocks cannot be found, do not run once each in this order, or do something that a plan
        cannot honour.
    InvalidCosts
        `gpu` is given for a profile on real tensors, or beside `roofline`.
    """
    machine: dict[str, Any] = {"gpu": gpu, "roofline": roofline}
    try:
        return see(model, inputs, loss_fn, blocks, options=options, fake=fake, **machine).costs
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
    options: list[SeenOptions | None]  # of each block, where they were asked for


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
    fake: bool | None = None,
    gpu: str | Gpu | None = None,
    roofline: Roofline | None = None,
) -> Seen:
    """What `profile`, whose parameters these are, sees on its way to the costs."""
    blocks = blocks if isinstance(blocks, str) else list(blocks)
    model = profiled(model, blocks, options=options)
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
                return _profile(model, inputs, loss_fn, found, clock, ambient, options)


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
) -> Seen:
    with ambient.inside(model, cache=False):
        blocks = find_calls(model, inputs, found.names)
    _check_casts(model, blocks, ambient)
    with ambient.inside(model, cache=True):
        parts = see_parts(model, inputs, loss_fn, blocks, clock)
    # What has no backward is let go where its output is: to the chain it is code between blocks.
    cut_off = [block.name for block in blocks if parts.runs[block.run].cut_off]
    if 0 < len(cut_off) < len(blocks):
        names = [name for name in found.names if name not in cut_off]
        found = replace(found, names=names)
        return _profile(model, inputs, loss_fn, found, clock, ambient, options)
    seen, runs = _see_blocks(blocks, parts, clock, ambient, options)
    casts = ambient.cached_bytes(
        [block.module for block in blocks], all_of_first=not parts.runs[0].needs_grad
    )
    layers = _layers(model, blocks, parts, seen, casts)
    # A checkpoint holds what its blocks change on their modules as it was before; and what dropped
    # forwards leave is there until the step is over: for kept ones the safe side.
    held = parts.held_bytes + sum(peaks.state_bytes + peaks.left_bytes for peaks, _ in seen)
    costs = CostGraph(layers, input_bytes=held, name=type(model).__name__, time_unit="ms")
    all_ways = [ways for _, ways in seen]
    estimated = isinstance(clock, RooflineClock)
    return Seen(costs, blocks, parts, runs, estimated, all_ways)


def _layers(
    model: nn.Module,
    blocks: list[CalledBlock],
    parts: Parts,
    seen: list[tuple[Peaks, SeenOptions | None]],
    casts: int,
) -> tuple[LayerCost, ...]:
    """Blocks and parts in the order in which they run."""
    # A block that holds its input as it is kept holds it in a checkpoint, too.
    first = {b.run: peaks for b, (peaks, _) in reversed(list(zip(blocks, seen, strict=True)))}
    free = {run for run, peaks in first.items() if not peaks.input_saved}
    local = [each.nbytes + _not_held(each.inputs, free) for each in parts.local]
    nothing = _with_local(model, blocks, parts, seen, casts, free, [0] * len(blocks))
    counted = _that_count(blocks, parts, [peaks for peaks, _ in seen], local, nothing)
    return _with_local(model, blocks, parts, seen, casts, free, counted)


def _with_local(
    model: nn.Module,
    blocks: list[CalledBlock],
    parts: Parts,
    seen: list[tuple[Peaks, SeenOptions | None]],
    casts: int,
    free: set[int],
    local_bytes: list[int],
) -> tuple[LayerCost, ...]:
    """`_layers` with so much more in each block's forward."""
    layers: list[LayerCost] = []
    places: list[int] = []  # of the parts

    def add_part(name: str) -> None:
        peaks = parts.peaks[len(places)]
        more = casts if places else 0
        more += _not_held(parts.inputs[len(places)], free)
        places.append(len(layers))
        if peaks is not None:
            cost = peaks.with_more_in_forward(more).cost(_free(name, model), recomputable=False)
            layers.append(cost)

    last_use: dict[int, int] = {}  # of each side: the last block that it is handed to
    kinds = {peaks for peaks, _ in seen}
    for block, (peaks, ways), local in zip(blocks, seen, local_bytes, strict=True):
        if block.run == len(places):
            add_part(before(block.name) if places else "embedding")
        more = local + casts + max(peaks.more_before(last) for last in kinds)
        more += parts.loss_bytes  # what the backward began with is there while it runs again
        layer = peaks.with_more_in_forward(more).cost(block.name)
        if ways is not None:
            costs_of = tuple(way.cost(peaks, more) for way in ways.ways)
            layer = replace(layer, options=costs_of)
        last_use |= dict.fromkeys(block.sides.values(), len(layers))
        layers.append(layer)
    add_part("loss" if isinstance(model, nn.Sequential) else "head")
    waiting = [Waiting(places[a], places[b], size) for a, b, size in parts.freed]
    made_by = [(maker, *parts.sides[side]) for side, maker in last_use.items()]
    waiting += [Waiting(maker, places[part], size) for maker, part, size in made_by if part]
    return with_waiting(layers, parts.held_bytes, waiting)


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


def _that_count(
    blocks: list[CalledBlock],
    parts: Parts,
    seen: list[Peaks],
    local_bytes: list[int],
    layers: tuple[LayerCost, ...],
) -> list[int]:
    """By how much each block's forward is higher for what the model's own code still refers to.

    That is there only while the blocks run forward for the first time, and matters only where that
    forward could set the peak: the backward of the same block comes with the gradients that those
    above it have left. Where it could, it is on top of every forward of the block: the safe side.
    `layers` are those without.
    """
    above, left = 0, {}
    for layer in reversed(layers):
        left[layer.name] = above
        above += layer.gradient_bytes
    return [
        0 if peaks.spare_bytes + left[block.name] >= local + parts.loss_bytes else local
        for block, peaks, local in zip(blocks, seen, local_bytes, strict=True)
    ]


def _not_held(inputs: list[tuple[int, int]], free: set[int]) -> int:
    return sum(size for run, size in inputs if run in free)


def _see_blocks(
    found: list[CalledBlock], parts: Parts, clock: Clock, ambient: Ambient, options: bool
) -> tuple[list[tuple[Peaks, SeenOptions | None]], int]:
    """See each block; those of one kind, in one position for gradients, only once."""
    calls = {block.kind: block.call for block in found if block.call is not None}
    own = [
        [] if block.no_grad else own_parameters(block.module, calls[block.kind].others)
        for block in found
    ]
    trained = [
        bool(parameters or block.sides) for block, parameters in zip(found, own, strict=True)
    ]
    made: set[int] = set()  # parameters whose gradient is there already
    made_sides: set[int] = set()
    layout: Layout | None = None
    run = len(parts.runs)
    seen: dict[Any, tuple[Peaks, Layout | None, SeenOptions | None]] = {}
    result = []
    for i, block in reversed(list(enumerate(found))):
        if block.run < run:
            run = block.run
            made |= parts.runs[run].given
            layout = parts.runs[run].layout
        of_run = [trained[j] for j in range(i) if found[j].run == run]
        needs_grad = parts.runs[run].needs_grad or any(of_run)
        waiting = {place: token in made_sides for place, token in block.sides.items()}
        earlier = [id(parameter) in made for parameter in own[i]]
        graded = tuple(sorted(block.graded))
        mode = (block.no_grad, needs_grad)
        key = (block.kind, mode, tuple(waiting.items()), tuple(earlier), layout, graded)
        if key not in seen:
            call = calls[block.kind]
            others = call.others
            if not all(isinstance(others[place], torch.Tensor) for place in waiting):
                raise UnsupportedModel(
                    f"block {block.name!r} is handed an argument that the blocks before it change, "
                    "so they are not a chain"
                )
            layer = IsolatedLayer(
                _alone(block, ambient.around(_forward_of(block)), call),
                call.activation,
                needs_grad,
                sides=[others[place] for place in waiting],
                waiting=list(waiting.values()),
                trained=own[i],
                earlier=[p for p, is_there in zip(own[i], earlier, strict=True) if is_there],
                layout=layout,
                state=Snapshot(
                    [block.module], is_small, handed=[*call.args, *call.kwargs.values()]
                ),
            )
            try:
                peaks, passed = see_layer(layer, clock)
                ways = see_options(block.name, layer, peaks, clock) if options else None
                seen[key] = peaks, passed, ways
            except UnsupportedModel as error:
                first = next(other for other in found if other.kind == block.kind)
                kind = type(first.module).__name__
                raise UnsupportedModel(f"block {first.name!r} ({kind}): {error}") from None
            except torch.cuda.OutOfMemoryError:
                raise
            except RuntimeError as error:
                raise UnsupportedModel(
                    f"block {block.name!r} cannot be run again by itself "
                    f"({type(error).__name__}: {error}), as a recomputation would; leave it out of "
                    "the blocks, and switch off what it changes (a cache for instance)"
                ) from error
        peaks, layout, ways = seen[key]
        result.append((peaks, ways))
        made |= {id(parameter) for parameter in own[i]}
        made_sides |= set(block.sides.values())
    return result[::-1], len(seen)


def _forward_of(block: CalledBlock) -> Callable[..., Any]:
    forward: Callable[..., Any] = block.module.forward
    return torch.no_grad()(forward) if block.no_grad else forward


def _alone(
    block: CalledBlock, forward: Callable[..., Any], call: Call
) -> Callable[[torch.Tensor, list[torch.Tensor]], torch.Tensor]:
    held: list[Call] = []  # as the model holds the containers that a block may put tensors into

    def once(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = for_one_run(block.module, args, kwargs)
        hooks = block.module._backward_hooks.values(), block.module._backward_pre_hooks.values()
        if not any(hooks) or block.module._is_full_backward_hook is False:
            return forward(*args, **kwargs)
        # They hold the gradient that they are shown, and may hand on another.
        shown = BackwardHook(block.module, *map(list, hooks))
        return shown.setup_output_hook(forward(*shown.setup_input_hook(args), **kwargs))

    def run(activation: torch.Tensor, sides: list[torch.Tensor]) -> torch.Tensor:
        handed = call.with_others(dict(zip(block.sides, sides, strict=True))) if sides else call
        held[:] = [handed.without_activation()]
        if not block.graded:
            return activation_of(block.name, handed.run(once, activation))
        with ExitStack() as stack:
            left: list[torch.Tensor] = []
            for leak in block.leaks:
                hook = leak.module.register_forward_hook(lambda *of: left.extend(tensors_of(of[2])))
                stack.callback(hook.remove)
            output = handed.run(once, activation)
        extras = [*extras_of(output), *left]
        graded = [extras[place] for place in block.graded if extras[place].requires_grad]
        made: torch.Tensor = Beside.apply(activation_of(block.name, output), *graded)
        return made

    return run


def _free(name: str, model: nn.Module) -> str:
    return f"({name})" if name in dict(model.named_modules()) else name

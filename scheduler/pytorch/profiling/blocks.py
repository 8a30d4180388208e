"""See each block by itself, those of one kind only once."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.hooks import BackwardHook

from scheduler.common.errors import UnsupportedModel
from scheduler.common.text import first_sentence
from scheduler.costs.peaks import Peaks
from scheduler.export.standalone.caches import for_one_run
from scheduler.export.standalone.state import Snapshot, is_small, name_of
from scheduler.pytorch.model.autocast import Ambient
from scheduler.pytorch.model.call import Call, NoChain, activation_of, extras_of
from scheduler.pytorch.model.calls import CalledBlock, own_parameters
from scheduler.pytorch.observe.autograd import Aside, Beside, gate
from scheduler.pytorch.observe.clock import Clock
from scheduler.pytorch.observe.dispatch import tensors_of
from scheduler.pytorch.observe.layer import IsolatedLayer, Layout, see_layer
from scheduler.pytorch.profiling.marks import Parts
from scheduler.pytorch.profiling.options import SeenOptions, see_options
from scheduler.pytorch.profiling.tiles import TiledBlock, see_tiled_block


@dataclass(frozen=True)
class SeenBlock:
    """A block as it was seen; its `ways` where options were asked for."""

    peaks: Peaks
    ways: SeenOptions | None
    tiles: TiledBlock

    @property
    def kinds(self) -> list[Peaks]:
        """Whole, and in each number of tiles."""
        return [self.peaks, *self.tiles.each]


def see_blocks(
    found: list[CalledBlock],
    parts: Parts,
    clock: Clock,
    ambient: Ambient,
    options: bool,
    least: int | None,
) -> tuple[list[SeenBlock], int]:
    """See each block; those of one kind, in one position for gradients, only once.

    `least`: tokens of a tile; None: no tiles.
    """
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
    seen: dict[Any, tuple[SeenBlock, Layout | None]] = {}
    uses = Counter(id(part) for block in found for part in block.module.modules())
    shared = {part for part, count in uses.items() if count > 1}
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
                tiles = see_tiled_block(
                    block.name, block.module, layer, peaks, clock, least, shared, options=options
                )
                seen[key] = SeenBlock(peaks, ways, tiles), passed
            except UnsupportedModel as error:
                first = next(other for other in found if other.kind == block.kind)
                kind = type(first.module).__name__
                raise UnsupportedModel(f"block {first.name!r} ({kind}): {error}") from None
            except torch.cuda.OutOfMemoryError:
                raise
            except RuntimeError as error:
                if left := _with_graph(layer.state):
                    raise NoChain(
                        f"block {block.name!r} reads {left}, where the model leaves a tensor that "
                        "passes a gradient on, so they are not a chain; hand it to the block as "
                        "an argument"
                    ) from error
                raise UnsupportedModel(
                    f"block {block.name!r} cannot be run again by itself "
                    f"({first_sentence(error)}), as a recomputation would; leave it out of "
                    "the blocks, and switch off what it changes (a cache for instance)"
                ) from error
        one, layout = seen[key]
        result.append(one)
        made |= {id(parameter) for parameter in own[i]}
        made_sides |= set(block.sides.values())
    return result[::-1], len(seen)


def _with_graph(state: Snapshot) -> str:
    """Names of what has a gradient to pass on where a forward begins; "" where nothing has."""
    state.put()
    found = [tensor for tensor, _, _ in state.tensors if tensor.grad_fn is not None]
    return " or ".join(name_of(state.roots, tensor) for tensor in found)


def see_holds(found: list[CalledBlock], ambient: Ambient) -> None:
    """Note in each block what it holds of its other arguments, for its backward and beyond.

    And what it leaves that may be given a gradient. What takes a gradient, and whether the block
    has one, is heeded where it was seen before.
    """
    calls = {block.kind: block.call for block in found if block.call is not None}
    seen: dict[Any, tuple[frozenset[int], frozenset[int], list[bool]]] = {}
    for block in found:
        key = block.kind, block.no_grad, *block.sides
        if key not in seen:
            seen[key] = _holds(block, calls[block.kind], ambient)
        block.holds, block.stays, left = seen[key]
        block.left = [each for each, graph in zip(block.left, left, strict=False) if graph]


def _holds(
    block: CalledBlock, call: Call, ambient: Ambient
) -> tuple[frozenset[int], frozenset[int], list[bool]]:
    others = call.others
    places = [place for place, leaf in enumerate(others) if isinstance(leaf, torch.Tensor)]
    state = Snapshot([block.module], is_small, handed=[*call.args, *call.kwargs.values()])
    try:
        # Copies, or those who hold them anyway would hide who else does.
        copies = {place: _copied(others[place]) for place in places}
        storages = {place: weakref.ref(copies[place].untyped_storage()) for place in places}
        door = gate(call.activation.device)
        for place in block.sides:  # no leaves, which their graph would hold
            copies[place] = Aside.apply(door, [copies[place]], lambda gradient: None)
        call = call.with_others(copies)
        activation = call.activation.detach()
        output = call.run(
            _once(block, ambient.around(_forward_of(block))),
            activation.requires_grad_(activation.is_floating_point()),
        )
        left = [any(t.requires_grad for t in each.tensors) for each in block.left]
    except Exception:  # what that is about is said where the block is profiled
        return frozenset(places), frozenset(places), []
    finally:
        state.put()
    del copies, call
    holds = frozenset(place for place in places if storages[place]() is not None)
    del output
    return holds, frozenset(place for place in places if storages[place]() is not None), left


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a tensor, laid out alike in a storage of its own."""
    count = tensor.untyped_storage().nbytes() // tensor.itemsize
    flat = tensor.detach().as_strided((count,), (1,), 0).clone()
    copy = flat.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())
    return copy.requires_grad_(tensor.requires_grad)


def _forward_of(block: CalledBlock) -> Callable[..., Any]:
    forward: Callable[..., Any] = block.module.forward
    return torch.no_grad()(forward) if block.no_grad else forward


def _once(block: CalledBlock, forward: Callable[..., Any]) -> Callable[..., Any]:
    def once(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = for_one_run(block.module, args, kwargs)
        hooks = block.module._backward_hooks.values(), block.module._backward_pre_hooks.values()
        if not any(hooks) or block.module._is_full_backward_hook is False:
            return forward(*args, **kwargs)
        # They hold the gradient that they are shown, and may hand on another.
        shown = BackwardHook(block.module, *map(list, hooks))
        return shown.setup_output_hook(forward(*shown.setup_input_hook(args), **kwargs))

    return once


def _alone(
    block: CalledBlock, forward: Callable[..., Any], call: Call
) -> Callable[[torch.Tensor, list[torch.Tensor]], torch.Tensor]:
    held: list[Call] = []  # as the model holds the containers that a block may put tensors into
    once = _once(block, forward)

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
        left += [tensor for each in block.left for tensor in each.tensors]
        extras = [*extras_of(output), *left]
        graded = [t for place, t in enumerate(extras) if place in block.graded and t.requires_grad]
        made: torch.Tensor = Beside.apply(activation_of(block.name, output), *graded)
        return made

    return run

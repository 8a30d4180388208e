"""From a model's shape to the costs that a plan is solved on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from os import PathLike
from typing import TYPE_CHECKING

from scheduler.costs.costgraph import CostGraph
from scheduler.costs.layer import LayerCost
from scheduler.costs.options.both import TiledOptions, drops_of_both, with_both
from scheduler.costs.options.pareto import SeenOption
from scheduler.costs.options.tiles import (
    Drops,
    Tile,
    drops_of,
    least_tokens,
    with_tiled_drops,
    with_tiles,
)
from scheduler.costs.peaks import Peaks
from scheduler.memory.activations import block_kept, head_activations
from scheduler.memory.gpus import Gpu, load_gpu
from scheduler.memory.recipe import Recipe, RecipeFields, recipe_of
from scheduler.memory.shape.load import load_shape
from scheduler.memory.shape.shape import Shape
from scheduler.memory.simulate.beside import (
    first_input_bytes,
    handed_bytes,
    held_bytes,
    kept_bytes,
    let_go_bytes,
    local_bytes,
    unused_bytes,
)
from scheduler.memory.simulate.ends import embed
from scheduler.memory.simulate.options import block_options, tiled_options
from scheduler.memory.simulate.setting import HEAD, Setting, linears, setting
from scheduler.memory.simulate.stacks import stacked
from scheduler.memory.simulate.step import (
    ROOT_BYTES,
    Activations,
    Seen,
    block,
    head,
    rehearse,
    run_once,
)
from scheduler.memory.simulate.tiles import block_tiles, head_tiles

if TYPE_CHECKING:
    from typing_extensions import Unpack


CHUNKS = 8  # of a chunked loss, as `loss_bytes` takes it


def costs_from_shape(
    shape: Shape | Mapping[str, object] | str | PathLike[str],
    batch: int,
    sequence: int | None = None,
    *,
    recipe: Recipe | None = None,
    gpu: str | Gpu = "h100",
    efficiency: float | tuple[float, float] | None = None,
    options: bool = False,
    tiles: bool | int = False,
    **fields: Unpack[RecipeFields],
) -> CostGraph:
    """Layer costs of one training step, from a model's sizes alone.

    Layers: "embedding", the blocks by the names that they have in transformers' model
    ("model.layers.0", "transformer.h.0"), "head" with the last norm and the loss, as
    `scheduler.pytorch.profile` names them. Blocks can be recomputed, the two ends cannot. A plan
    for these costs can be applied to that model as it is. Of two stacks (T5) the first block of
    each makes what the others are handed, and is part of what comes before them: of "embedding",
    and of "before decoder.block.1".

    Derived, tensor by tensor: `saved_bytes`, `input_saved` and `output_saved` (`block_activations`,
    `head_activations`); `gradient_bytes` (parameters, each in the dtype of its weight); and, for
    blocks and for the head, the working memory of forward, of a forward that keeps nothing, and of
    backward. For these the layer is run on paper (`rehearse`): transformers' code with sizes in
    place of numbers, variables and all, and the peaks read off. They equal what
    `scheduler.pytorch.profile` sees on fake tensors, for every family, frozen and with adapters
    (tests/memory/test_costs.py, tests/memory/test_profiled.py).

    Times, in ms, are the same run's, by the GPU's roofline: each kernel takes the longer of its
    FLOPs and of the bytes it reads and writes. `recompute_time` ends where torch stops a
    recomputation, at the last tensor it must save: before the down projection of a block without
    dropout, at the last mask of a block with it.

    With `options` each block has its options: selective checkpoints that keep chosen results inside
    it and make the rest again. They are those of `scheduler.pytorch.profile(..., options=True)`: at
    most 10 of the block's Pareto set, and what people choose by hand
    (`scheduler.costs.options.policies`). The block is run on paper under each, so that bytes, peaks
    and times are the profile's too (tests/memory/test_options.py). ``keeps`` is filled but under
    autocast, and a plan can be applied as it is. Which kernel runs attention on CUDA depends on
    more than the shape: flash is named, or the memory-efficient one where there is a mask, in fp32
    and for wide heads. A block that runs others, or what a plan keeps another number of times, is
    refused in its first step: profile the model there for a plan to apply.

    Approximated: attention with a bias that is learned (T5) on CUDA, where its kernel is named and
    was not measured; that bias is held to the end of the step, also where every block is kept;
    working memory of experts that are not "grouped" (it is taken to be theirs), and
    under autocast (when cached casts of weights go is not followed); the mask of a window, which
    kernels that know windows do without (a sequence as long as the model's window has one here, as
    in SDPA); the chunked loss (one chunk's working memory on top of what is kept; chunks are
    equal). Launch times and scratch memory inside kernels are not counted.

    On several GPUs these are the costs of one of them, `sequence` the whole one's: heads, MLPs and
    words divided by `tensor_parallel`, tokens by `context_parallel` and, between such layers, by
    `sequence_parallel`; of experts weights alone by `expert_parallel`, as each GPU brings tokens of
    its own. What GPUs send each other are operations of a block, of what its `Gpu`'s links take
    and hidden under attention alone, and their results may be kept by options or made again. A
    stage of a pipeline is a part of the chain. Approximated there: what attention over a divided
    sequence holds beside its tensors (by torch's code and Megatron's documents); routers, which run
    on all tokens of a tensor-parallel group; what data parallelism sends is not counted.

    Parameters
    ----------
    shape
        A `Shape`, or what `load_shape` takes.
    batch, sequence
        B and S: sequences in a (micro-)batch, tokens in each; of images the second is left out, as
        their patches make the tokens. Labels of T5 are as long as its inputs.
    recipe, fields
        A `Recipe`, or its fields: precision, train, lora, attention, loss, padding_mask, device and
        experts change the costs. Of precision only what is computed in does, so that "bf16" and
        "bf16-mixed" are the same here, and "fp16" is "fp16-mixed".
        train="frozen" (a prompt is tuned, say): no weight gets a gradient, but
        gradients pass through all blocks to the embedding's output; what trains there is not
        counted. With adapters they do so too, as PEFT's enable_input_require_grads arranges it,
        which trainers call where something is checkpointed: the output is held with its gradient.
    gpu
        For the times: a name of `GPUS`, ``"memory=80GB,flops=989e12,bandwidth=3.35e12"``, or a
        `Gpu`.
    efficiency
        The share of the GPU's peak FLOP/s that is sustained, or a pair: of FLOP/s, of bandwidth.
        Default: the GPU's own, 0.5 and 0.8.
    options
        Give each block its options; experts must be "grouped".
    tiles
        True: give blocks options to run their MLPs and norms, and the head to run with its loss, in
        tiles of at least 1,024 tokens, as `scheduler.pytorch.profile(..., tiles=True)` does; a
        number: of at least so many. Of blocks byte for byte the profile's, for Llama, Mistral,
        Qwen2 and 3, Gemma, Gemma 2, Phi-3, GLM, GLM-4, GPT-2 and GPT-NeoX; others run whole, as
        experts do. Of the head bytes of single tokens are bounded, so that its peaks are up to a
        hundredth above a profile's; a classifier's runs whole, and one with an adapter. Under
        autocast nothing runs in tiles.

    Returns
    -------
    CostGraph
        A chain. `input_bytes` holds what is there throughout, as `profile` counts it: token ids and
        labels, 8·T each (images, in the model's dtype, and a label for each), the loss, position
        ids 8·S, the rotary tables, masks.

    Raises
    ------
    InvalidRecipe, InvalidShape
        A size is not a positive whole number, a name is unknown, or the sequence is longer than the
        positions that the model has learned.
    UnsupportedModel
        Nobody has derived a formula for this combination.
    """
    shape = load_shape(shape)
    recipe = recipe_of(recipe, fields, computing=True)
    least = least_tokens(tiles)
    machine = load_gpu(gpu).at(efficiency)
    at = setting(shape, batch, sequence, recipe)
    if shape.buckets:
        return stacked(at, machine, options=options, least=least)
    own = at.shape
    kinds = {
        kind: _Kind.of(at.of(kind), machine, options=options, least=least) for kind in own.kinds
    }
    first = kinds[own.blocks[0]].kept
    head_kept = head_activations(shape, at.batch, at.sequence * at.context, recipe).kept
    whole = _head(at, machine, recipe.loss).peaks
    whole = replace(whole, drop_peak=None, recompute_time=whole.forward_time)
    # Without a norm after the blocks the code that refers to it has ended.
    ending = whole.with_more_in_forward(0 if shape.post_norm else first_input_bytes(at, first))
    end = _layer("head", head_kept, ending, _head_gradients(at), recomputable=False)
    if recipe.loss == "hf" and (found := head_tiles(at, machine, least, whole)):
        beside = ending.forward_peak - whole.forward_peak
        kept = _as_kept(whole, head_kept, end.gradient_bytes)
        end = with_tiles(end, replace(kept, saved_bytes=end.saved_bytes), found, more=beside)
    held = held_bytes(at, head_kept.output_bytes)
    blocks, drops = _blocks(at, kinds, end)
    layers = (_embedding(at, machine, held), *blocks, end)
    return CostGraph(
        with_tiled_drops(layers, held, drops),
        input_bytes=held,
        name=shape.name,
        time_unit="ms",
    )


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of block: its setting, what it keeps, how it ran on paper, its options and tiles."""

    at: Setting
    kept: Activations
    peaks: Peaks
    ways: list[SeenOption]
    tiles: tuple[Tile, ...]
    both: tuple[TiledOptions, ...]

    @classmethod
    def of(cls, at: Setting, machine: Gpu, *, options: bool, least: int | None) -> _Kind:
        """Run it on paper."""
        seen = rehearse(block, at, machine)
        kept = block_kept(at, seen)
        ways = block_options(at, machine, kept, seen) if options else []
        both = tiled_options(at, machine, kept, seen.peaks, least) if options else ()
        return cls(at, kept, seen.peaks, ways, block_tiles(at, machine, least, seen.peaks), both)

    @property
    def each(self) -> list[Peaks]:
        """Whole, and in each number of tiles."""
        tiled = (*self.tiles, *(each.tile for each in self.both))
        return [self.peaks, *(tile.peaks for tile in tiled)]

    def cost(self, first: int, *again: int) -> LayerCost:
        """Its costs, with more bytes in its forwards as `Peaks.cost` takes them."""
        gradients = _block_gradients(self.at)
        one = _layer("block", self.kept, self.peaks, gradients, first, *again)
        one = replace(one, options=tuple(way.cost(self.peaks, *again) for way in self.ways))
        whole = _as_kept(self.peaks, self.kept, one.gradient_bytes)
        whole = replace(whole, saved_bytes=one.saved_bytes)
        one = with_tiles(one, whole, self.tiles, self.at.tiled, *again)
        return with_both(one, whole, self.both, *again)


def _blocks(
    at: Setting, kinds: Mapping[Shape, _Kind], end: LayerCost
) -> tuple[list[LayerCost], dict[str, Drops]]:
    """The blocks, each with what else is there while it runs forward, and `with_tiled_drops`'s."""
    blocks = at.shape.blocks
    first = first_input_bytes(at, kinds[blocks[0]].kept)
    every = {peaks for kind in kinds.values() for peaks in kind.each}
    alike: dict[tuple[Shape, bool], LayerCost] = {}
    found, drops = [], dict[str, Drops]()
    for i, shape in enumerate(blocks):
        kind, key = kinds[shape], (shape, i > 0)
        if key not in alike:
            alike[key] = kind.cost(
                local_bytes(at) + (first if i else 0),
                max(kind.peaks.more_before(last) for last in every),
                end.output_bytes,
            )
        name, beside = f"{at.shape.stack}.{i}", let_go_bytes(at, i)
        found.append(replace(alike[key], name=name, beside_bytes=beside))
        drops[name] = {**drops_of(kind.tiles), **drops_of_both(kind.both)}
    return found, drops


def _layer(
    name: str,
    kept: Activations,
    peaks: Peaks,
    gradients: int,
    *more: int,
    recomputable: bool = True,
) -> LayerCost:
    """A layer by its peaks, where it keeps what formulas say and not what it was seen to keep."""
    cost = _as_kept(peaks, kept, peaks.gradient_bytes).cost(name, *more, recomputable=recomputable)
    return replace(cost, saved_bytes=kept.saved_bytes, gradient_bytes=gradients)


def _as_kept(peaks: Peaks, kept: Activations, gradients: int) -> Peaks:
    return replace(
        peaks,
        input_bytes=kept.input_bytes,
        output_bytes=kept.output_bytes,
        input_saved=kept.input_saved,
        output_saved=kept.output_saved,
        gradient_bytes=gradients,
    )


def _head(at: Setting, machine: Gpu, loss: str) -> Seen:
    """The head on paper; a chunked loss is one chunk after another, run again on its backward."""
    if loss != "chunked":
        seen = rehearse(partial(head, loss=loss), at, machine, scalar=True)
        # The caller's outputs refer to the logits until the backward is over.
        logits = at.logits * at.compute * (loss == "hf-outputs-kept")
        return replace(
            seen,
            tensors=(*seen.tensors, ("logits", logits)),
            backward_peak=seen.backward_peak + logits,
        )
    part = replace(at, batch=1, sequence=ceil(at.tokens / CHUNKS))
    seen = rehearse(head, part, machine, scalar=True)
    # Nothing of a chunk is kept; the gradient of the whole input is there beside each chunk's own.
    beside = (at.tokens - part.tokens) * at.shape.width * at.stream
    return replace(
        seen,
        tensors=(),
        input_saved=False,
        backward_peak=seen.backward_peak + beside,
        forward_time=seen.forward_time * CHUNKS,
        backward_time=(seen.forward_time + seen.backward_time) * CHUNKS,
    )


def _embedding(at: Setting, machine: Gpu, held: int) -> LayerCost:
    """The embedding: a row is read for each token, and its gradient added to a table of zeros.

    Learned positions are looked up too and added. The rotary tables are made in fp32, five tensors
    of S·a elements, the first one half; what stays of them is in the chain's input.

    A tied table has its gradient already, from the head: this one is made, and a sum of the two.
    Where no table is trained the gradient still passes dropout, to what the tables give. With
    adapters that is a leaf, as PEFT makes it: held to the end of the step, and the first block's
    input itself where nothing is done to it before. Its gradient is none that an optimizer takes.
    """
    shape, e = at.shape, at.stream
    if not shape.causal:
        return _embedded(at, machine, held)
    output, table = at.features * e, shape.vocabulary * shape.width * e
    # What each GPU's words give is added up; backward, all of that is there on each.
    whole = at.tokens * shape.width * e if at.tensor > 1 else 0
    back_whole = whole if at.scattered else 0
    rows = at.sequence * shape.width * e if shape.positions else 0
    scaled = shape.family.startswith("gemma")
    mask = at.features * at.mask_size(e) if shape.dropout else 0
    # Position ids that no table of its own saves are with what the blocks are handed.
    ids = 8 * at.sequence * bool(shape.positions and at.trained)
    if shape.positions:
        summed = output + rows + ids
        transient = summed + (output if shape.dropout else 0)
    else:
        transient = at.sequence * shape.turned_width * (18 - 2 * e)
        transient = max(transient, output * scaled - handed_bytes(at)) + unused_bytes(at)
    positions = shape.positions * shape.width * e
    leaf = output * (at.lora is not None)
    is_input = bool(leaf) and not shape.positions and not mask
    saved = mask + leaf * (not is_input) + ids
    gradients = positions + (0 if shape.tied else table) if at.trained else 0
    # Live at the highest moments of the backward: the output's gradient with that before dropout
    # and the mask, which then go (Gemma: with that before its scale); with the gradient of the
    # positions' rows, summed over the batch, and of their table; with both tables; or, tied, the
    # table's gradient and the sum.
    peak = output + (mask + output if mask else 0) + leaf + ids
    if at.trained:
        peak = max(peak, positions + table + max(output, table * shape.tied))
        peak = max(peak, output + positions + rows * (at.batch > 1))
        peak = max(peak, 2 * output * scaled)
    counted = saved + output * (2 if is_input else 1)
    # The blocks have let go of what they held beside their input.
    above = peak + ROOT_BYTES - kept_bytes(at) - counted - held - gradients
    moved = 2 * output + (3 * output + rows if shape.positions else 0)
    back = output + table + (3 * table if shape.tied else 0) + rows + positions
    if not at.trained:
        back = mask + 2 * output if mask else 0
    bandwidth = machine.sustained_bandwidth
    link = machine.sustained_link(far=machine.is_far(at.tensor)) * at.tensor / (at.tensor - 1 or 1)
    added = whole * (1 if at.scattered else 2) / link
    return LayerCost(
        "embedding",
        forward_time=(moved / bandwidth + added) * 1e3,
        backward_time=(back / bandwidth + back_whole / link) * 1e3,
        output_bytes=output,
        saved_bytes=saved,
        forward_transient_bytes=max(transient - (saved - mask), 0) + whole,
        backward_transient_bytes=max(above, 0) + back_whole,
        backward_overlap_bytes=min(max(-above, 0), counted + held, held + gradients),
        gradient_bytes=gradients,
        output_saved=is_input,
        recomputable=False,
    )


def _embedded(at: Setting, machine: Gpu, held: int) -> LayerCost:
    """The embedding, seen on paper."""
    peaks = run_once(embed, at, machine)
    gradients = peaks.gradient_bytes if at.trained else 0
    backward = peaks.backward_peak - kept_bytes(at)
    peaks = replace(peaks, input_bytes=held, input_saved=True, gradient_bytes=gradients)
    peaks = replace(peaks, backward_peak=backward)
    return peaks.cost("embedding", is_first=True, recomputable=False)


def _block_gradients(at: Setting) -> int:
    if at.trained:
        shape, wide = at.shape, at.shape.fp32_router_parameters
        elsewhere = (shape.experts - at.own_experts) * shape.expert_parameters
        return (shape.block_parameters - wide - elsewhere) * at.stream + wide * 4
    if at.lora is None:
        return 0
    sizes = (sum(size) for name, size in linears(at.shape).items() if name in at.targets)
    return at.lora.rank * at.lora.size * sum(sizes)


def _head_gradients(at: Setting) -> int:
    shape = at.shape
    if at.lora is not None and HEAD in at.targets:
        return at.lora.rank * at.lora.size * (shape.width + shape.vocabulary)
    table = shape.vocabulary * shape.width if shape.tied else 0
    own = shape.head_parameters - shape.idle_parameters
    return (own + table) * at.stream if at.trained else 0

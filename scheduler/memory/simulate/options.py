"""The options of a block from its shape alone, as `scheduler.pytorch` sees those in torch.

The block runs on paper once to write its operations down. The sets of results worth keeping are
chosen as they are in torch, and the block is run under each: as a selective checkpoint, forward,
forward again and backward.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from scheduler.costs.layer import OptionCost
from scheduler.costs.options.inside import Inside
from scheduler.costs.options.pareto import option_cost, wanted
from scheduler.memory.activations.setting import Setting
from scheduler.memory.activations.tape import Activations
from scheduler.memory.errors import NoFormula
from scheduler.memory.gpus import Gpu
from scheduler.memory.simulate.recorder import Recorder
from scheduler.memory.simulate.selective import Selective
from scheduler.memory.simulate.step import Seen, block, flops_share
from scheduler.memory.simulate.tensors import Value

__all__ = ["block_options", "look_inside"]


@dataclass(frozen=True, slots=True)
class _Way:
    """Bytes of a block that ran by itself, as `scheduler.costs.options.pareto.Sizes` has them."""

    input_bytes: int
    output_bytes: int
    saved_bytes: int
    input_saved: bool
    output_saved: bool
    forward_peak: int
    backward_peak: int
    gradient_bytes: int


def block_options(
    at: Setting, gpu: Gpu, kept: Activations, seen: Seen, more: int
) -> tuple[OptionCost, ...]:
    """The options of the shape's block; a result's call is one of transformers' code.

    Parameters
    ----------
    at, gpu
        How it runs, and where.
    kept, seen
        The block as it is kept whole.
    more
        Bytes live beside every forward.

    Raises
    ------
    UnsupportedModel
        The experts run otherwise than on paper.
    """
    if at.shape.experts and at.experts != "grouped":
        raise NoFormula(
            f"there are no options for experts={at.experts!r}, whose operations are not followed; "
            "say experts='grouped', or leave options out",
            argument="experts",
        )
    whole = _Way(
        input_bytes=kept.input_bytes,
        output_bytes=kept.output_bytes,
        # As on paper, since its peaks are: under autocast the formulas know more.
        saved_bytes=seen.saved_bytes - kept.output_bytes * kept.output_saved,
        input_saved=kept.input_saved,
        output_saved=kept.output_saved,
        forward_peak=seen.forward_peak,
        backward_peak=seen.backward_peak,
        gradient_bytes=seen.gradient_bytes,
    )
    inside = look_inside(at, gpu)
    found, _gap = wanted(inside, seen.recompute_time * 1e3, kept.saved_bytes)
    named = _are_names_certain(at)
    options = []
    for want in found:
        way = _under(at, gpu, want.kept, kept.input_bytes)
        if way.saved_bytes <= kept.saved_bytes:
            want = want if named else replace(want, keeps=())
            again = max(seen.again_peak - seen.forward_peak, 0)
            options.append(option_cost(want, way, whole, more + again))
    return tuple(options)


def look_inside(at: Setting, gpu: Gpu) -> Inside:
    """The operations of the shape's block, its backward left out."""
    paper = Recorder(gpu, flops_share=flops_share(at))
    made = block(paper, at, paper.source(at.tokens * at.shape.width, at.stream))
    return paper.inside(made)


def _under(at: Setting, gpu: Gpu, kept: Collection[int], input_bytes: int) -> _Way:
    """Run the block as a selective checkpoint that keeps the results at these positions."""
    paper = Selective(gpu, kept, flops_share=flops_share(at))
    x = paper.source(at.tokens * at.shape.width, at.stream)
    made: Value = paper.checkpoint(lambda paper, x: block(paper, at, x), x)
    forward_peak, with_output = paper.peak, paper.live
    root, elements, size, output = made.node, made.elements, made.size, made.bytes
    assert root is not None
    del made
    saved = paper.live
    is_saved = saved == with_output
    paper.reset_peak()
    paper.backward(root, paper.compute((), elements, size))
    inputs = sum(v.bytes for leaf in paper.leaves if leaf.order for v in leaf.collected)
    return _Way(
        input_bytes=input_bytes,
        output_bytes=output,
        saved_bytes=saved - output * is_saved,
        input_saved=True,  # the second run starts from it
        output_saved=is_saved,
        forward_peak=forward_peak,
        backward_peak=paper.peak,
        gradient_bytes=paper.live - inputs,
    )


def _are_names_certain(at: Setting) -> bool:
    """Whether operations have the names and numbers that transformers' code gives them.

    On CUDA they do not: which kernel runs a fused attention depends on GPU and libraries, and half
    precision has kernels of its own. Nor under autocast, where biases are cast too.
    """
    return not (at.cuda or at.autocast)

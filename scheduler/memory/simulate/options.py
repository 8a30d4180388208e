"""The options of a block from its shape alone, as `scheduler.pytorch` sees those in torch.

The block runs on paper once to write its operations down. The sets of results worth keeping are
chosen as they are in torch, and the block is run under each: as a selective checkpoint, forward,
forward again and backward.
"""

from __future__ import annotations

from dataclasses import replace

from scheduler.costs.layer import OptionCost
from scheduler.costs.options.inside import Inside
from scheduler.costs.options.pareto import option_cost, wanted
from scheduler.memory.errors import NoFormula
from scheduler.memory.gpus import Gpu
from scheduler.memory.simulate.recorder import Recorder
from scheduler.memory.simulate.selective import Selective
from scheduler.memory.simulate.setting import Setting
from scheduler.memory.simulate.step import Activations, Seen, block, flops_share, run_again

__all__ = ["block_options", "look_inside"]


def block_options(
    at: Setting, gpu: Gpu, kept: Activations, seen: Seen, more: int
) -> tuple[OptionCost, ...]:
    """The options of the shape's block; a result's call is one of transformers' code.

    Parameters
    ----------
    at, gpu
        How it runs, and where.
    kept, seen
        The block whole: what it keeps, and as it ran on paper.
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
    inside = look_inside(at, gpu)
    found, _gap = wanted(inside, seen.recompute_time * 1e3, kept.saved_bytes)
    named = _are_names_certain(at)
    options = []
    for want in found:
        way = run_again(Selective(gpu, want.kept, flops_share=flops_share(at)), block, at)
        if way.saved_bytes <= kept.saved_bytes:
            want = want if named else replace(want, keeps=())
            again = max(seen.again_peak - seen.forward_peak, 0)
            options.append(option_cost(want, way, seen, more + again))
    return tuple(options)


def look_inside(at: Setting, gpu: Gpu) -> Inside:
    """The operations of the shape's block, its backward left out."""
    paper = Recorder(gpu, flops_share=flops_share(at))
    made = block(paper, at, paper.source(at.tokens * at.shape.width, at.stream))
    return paper.inside(made)


def _are_names_certain(at: Setting) -> bool:
    """Whether operations have the names and numbers that transformers' code gives them.

    On CUDA they do not: which kernel runs a fused attention depends on GPU and libraries, and half
    precision has kernels of its own. Nor under autocast, where biases are cast too.
    """
    return not (at.cuda or at.autocast)

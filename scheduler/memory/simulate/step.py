"""A block and a head, run on paper: what happens between their forward and their backward.

As `activations` derives what is kept, this derives what else is there meanwhile. Every function
mirrors a module of transformers 5.24; a variable here lives as long as the variable there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from scheduler.memory.activations.setting import Setting
from scheduler.memory.gpus import Gpu
from scheduler.memory.simulate.attention import attend
from scheduler.memory.simulate.kernels import add, cast, linear, scale, unary
from scheduler.memory.simulate.mixture import mixture
from scheduler.memory.simulate.modules import mlp, norm
from scheduler.memory.simulate.selective import Selective
from scheduler.memory.simulate.tensors import Paper, Value

__all__ = ["Seen", "block", "flops_share", "head", "rehearse"]

Forward = Callable[[Paper, Setting, Value], Value]


@dataclass(frozen=True, slots=True)
class Seen:
    """Bytes seen while a layer ran on paper, its input and its parameters not counted; seconds.

    The backward's peak holds the saved set, the output's gradient, and what it makes. That of a
    recomputation, up to the last saved tensor, holds what the backward has made before it, beyond
    the output's gradient; 0 for the loss.
    """

    saved_bytes: int
    gradient_bytes: int
    forward_peak: int
    drop_peak: int
    again_peak: int
    backward_peak: int
    forward_time: float
    recompute_time: float
    backward_time: float


def flops_share(at: Setting) -> float:
    """Share of bf16's FLOP/s: fp32 products run as TF32, at half of it."""
    return 0.5 if at.compute == 4 else 1.0


def rehearse(forward: Forward, at: Setting, gpu: Gpu, *, scalar: bool = False) -> Seen:
    """Run a layer on paper, forward and backward.

    `scalar`: its output is the loss, which is live during the backward like the saved set.
    """
    share = flops_share(at)
    elements = at.tokens * at.shape.width
    dropping = Paper(gpu, keep=False, flops_share=share)
    forward(dropping, at, dropping.source(elements, at.stream))
    paper = Paper(gpu, flops_share=share)
    made = forward(paper, at, paper.source(elements, at.stream))
    forward_peak, seconds = paper.peak, paper.seconds
    loss = made if scalar else None
    root, elements, size = made.node, made.elements, made.size
    assert root is not None
    del made
    saved = paper.live - (loss.bytes if loss is not None else 0)
    start = paper.seconds
    paper.reset_peak()
    paper.backward(root, paper.compute((), elements, size))
    inputs = sum(v.bytes for leaf in paper.leaves if leaf.order for v in leaf.collected)
    return Seen(
        saved_bytes=saved,
        gradient_bytes=paper.live - inputs - (loss.bytes if loss is not None else 0),
        forward_peak=forward_peak,
        drop_peak=dropping.peak,
        again_peak=0 if scalar else _again_peak(forward, at, gpu),
        backward_peak=paper.peak,
        forward_time=seconds,
        recompute_time=paper.saved_at,
        backward_time=paper.seconds - start,
    )


def _again_peak(forward: Forward, at: Setting, gpu: Gpu) -> int:
    paper = Selective(gpu, (), flops_share=flops_share(at))
    x = paper.source(at.tokens * at.shape.width, at.stream)
    made = paper.checkpoint(lambda paper, x: forward(paper, at, x), x)
    root, elements, size = made.node, made.elements, made.size
    assert root is not None
    del made
    paper.backward(root, paper.compute((), elements, size))
    return paper.again_peak - elements * size


def block(paper: Paper, at: Setting, x: Value) -> Value:
    """Run one block of the shape."""
    if at.shape.parallel:
        return _parallel(paper, at, x)
    # GPT-2's block refers to the normed inputs until the sums are made, and to the attention's
    # output to its end; the others let go of each when its part has run.
    holds = at.shape.family == "gpt2"
    normed = norm(paper, at, x)
    attended, _probabilities = attend(paper, at, normed)
    if not holds:
        del normed
    if at.shape.norms == 4:
        attended = norm(paper, at, attended)
    x = add(paper, x, attended)
    if holds:
        del normed
    else:
        del attended
    normed = norm(paper, at, x)
    made = (mixture if at.shape.experts else mlp)(paper, at, normed)
    if not holds:
        del normed
    if at.shape.norms == 4:
        made = norm(paper, at, made)
    return add(paper, x, made)


def _parallel(paper: Paper, at: Setting, given: Value) -> Value:
    x = norm(paper, at, given)
    attended, _probabilities = attend(paper, at, x)
    x = norm(paper, at, given)
    x = mlp(paper, at, x)
    return add(paper, add(paper, x, attended), given)


def head(paper: Paper, at: Setting, x: Value, loss: str = "hf") -> Value:
    """Run the last norm, the head and the loss."""
    x = norm(paper, at, x)
    size = at.compute
    weight = None
    if at.autocast:
        x = cast(paper, x, size)
        n = at.shape.width * at.shape.vocabulary
        weight = cast(paper, paper.leaf(n, 4, trained=at.trained), size)
    logits = linear(
        paper, x, at.shape.width, at.shape.vocabulary, trained=at.trained, weight=weight
    )
    if at.shape.family == "gemma2":
        logits = unary(paper, logits, "aten.div.Tensor")
        logits = scale(paper, unary(paper, logits, "aten.tanh.default", saves="output"))
    return _loss(paper, at, logits, size if loss == "bf16" else 4)


def _loss(paper: Paper, at: Setting, logits: Value, size: int) -> Value:
    """Run transformers' loss of a causal model: cross-entropy against labels shifted by one."""
    upcast = cast(paper, logits, size)
    padded = paper.compute((), at.batch * (at.sequence + 1), 8)
    # One row is contiguous where it is: the shifted labels are then a view.
    labels = padded if at.batch == 1 else paper.compute((padded,), at.tokens, 8)
    chances = unary(paper, upcast, "aten._log_softmax.default", saves="output")
    made, divisor = paper.compute((chances,), 1, size), paper.compute((), 1, size)
    n = chances.elements
    paper.record(
        made,
        (chances,),
        lambda g, saved: [paper.compute((*g, *saved), n, size)],
        paper.save(labels, divisor),
    )
    return made

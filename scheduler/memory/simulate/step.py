"""A block and a head, run on paper: what happens between their forward and their backward.

What is kept (`activations`) and what else is there meanwhile both follow from it. Every function
mirrors a module of transformers 5.24; a variable here lives as long as the variable there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from scheduler.costs.peaks import Peaks
from scheduler.memory.gpus import Gpu
from scheduler.memory.simulate.attending.attend import attend, mix
from scheduler.memory.simulate.ends import classes, cross_entropy, masked
from scheduler.memory.simulate.experts.mixtures import mixture
from scheduler.memory.simulate.kernels import add, cast, dropout, linear, scale, unary
from scheduler.memory.simulate.modules import activate, adapted, mlp, norm, project
from scheduler.memory.simulate.parallel.collectives import enter
from scheduler.memory.simulate.selective import Selective
from scheduler.memory.simulate.setting import HEAD, Setting
from scheduler.memory.simulate.t5 import t5_block, t5_head
from scheduler.memory.simulate.tensors import Paper, Storage, Value

Forward = Callable[[Paper, Setting, Value], Value]

ROOT_BYTES = 4
"""What a step's backward starts from, the gradient of the loss: there until it is over."""


@dataclass(frozen=True, slots=True)
class Activations:
    """What autograd keeps of one layer between its forward and its backward.

    Attributes
    ----------
    tensors
        Each storage that is kept, the layer's input and output among them where they are saved;
        parameters are not. What made it (torch's name of the operation; "input") and its bytes.
    input_bytes, output_bytes
        Of what the layer gets and of what it hands on, kept or not.
    input_saved, output_saved
        Is it among `tensors`?
    """

    tensors: tuple[tuple[str, int], ...]
    input_bytes: int
    output_bytes: int
    input_saved: bool
    output_saved: bool

    @property
    def total_bytes(self) -> int:
        """Bytes of all that is kept, the input and the output included where they are saved."""
        return sum(size for _, size in self.tensors)

    @property
    def saved_bytes(self) -> int:
        """Bytes kept beyond the layer's input and output: `saved_bytes` of a layer's costs."""
        held = self.input_bytes if self.input_saved else 0
        held += self.output_bytes if self.output_saved else 0
        return self.total_bytes - held


@dataclass(frozen=True, slots=True)
class Seen(Activations):
    """What a layer kept that ran on paper, and took meanwhile, input and parameters not counted.

    The backward's peak holds the saved set, the gradients of the output and of the loss, and what
    it makes. That of a forward that keeps nothing is `drop_peak`. That of a recomputation, up to
    the last saved tensor, holds what the backward has made before it, beyond the output's gradient:
    `early_bytes`; both 0 for the loss. Bytes; times in seconds.
    """

    gradient_bytes: int
    forward_peak: int
    backward_peak: int
    forward_time: float
    recompute_time: float
    backward_time: float
    drop_peak: int = 0
    again_peak: int = 0
    early_bytes: int = 0

    @property
    def peaks(self) -> Peaks:
        """The same as a profile says it."""
        return Peaks(
            input_bytes=self.input_bytes,
            output_bytes=self.output_bytes,
            saved_bytes=self.saved_bytes,
            input_saved=self.input_saved,
            output_saved=self.output_saved,
            forward_peak=self.forward_peak,
            drop_peak=self.drop_peak,
            backward_peak=self.backward_peak,
            gradient_bytes=self.gradient_bytes,
            forward_time=self.forward_time * 1e3,
            recompute_time=self.recompute_time * 1e3,
            backward_time=self.backward_time * 1e3,
            again_peak=self.again_peak,
            early_bytes=self.early_bytes,
        )


def flops_share(at: Setting, gpu: Gpu) -> float:
    """Share of bf16's FLOP/s: fp32 products run as TF32, where there is one."""
    return gpu.fp32_share if at.compute == 4 else 1.0


def run(paper: Paper, forward: Forward, at: Setting, *, scalar: bool = False) -> Seen:
    """Run a layer on paper, forward and backward.

    `scalar`: its output is the loss, which is live during the backward like the saved set.
    """
    given = at.features
    made = forward(paper, at, paper.source(given, at.stream))
    ledger = paper.ledger
    forward_peak, forward_time, with_output = ledger.peak, paper.seconds, ledger.live
    root, elements, size = made.node, made.elements, made.size
    assert root is not None
    loss = made if scalar else None
    beside = made.bytes if scalar else 0
    del made
    tensors, input_saved = paper.tensors(loss), paper.outside.live > 0
    output_saved = not scalar and ledger.live == with_output
    waiting = paper.handed_back()
    # Those are counted by the layers that make them.
    counted = sum(value.bytes for value in waiting.values())
    given_back = [paper.compute((), elements, size)]
    start = given_back[0] if scalar else Storage(ledger, ROOT_BYTES, "root")
    ledger.reset_peak()
    paper.backward(root, given_back.pop(), waiting)
    backward_peak = ledger.peak - counted
    del start
    inputs = sum(v.bytes for leaf in paper.leaves if leaf.order for v in leaf.collected)
    return Seen(
        tensors=tensors,
        input_bytes=given * at.stream,
        output_bytes=elements * size,
        input_saved=input_saved,
        output_saved=output_saved,
        gradient_bytes=ledger.live - inputs - beside,
        forward_peak=forward_peak,
        backward_peak=backward_peak,
        forward_time=forward_time,
        recompute_time=paper.saved_at,
        backward_time=paper.seconds - forward_time,
    )


def run_once(forward: Forward, at: Setting, gpu: Gpu, *, scalar: bool = False) -> Peaks:
    """What a layer that cannot be run again needs, seen on paper; `scalar` as in `run`."""
    seen = run(Paper(gpu, flops_share=flops_share(at, gpu)), forward, at, scalar=scalar)
    return replace(seen.peaks, drop_peak=None, recompute_time=seen.peaks.forward_time)


def run_again(paper: Selective, forward: Forward, at: Setting) -> Seen:
    """Run a layer as a selective checkpoint."""

    def twice(paper_: Paper, at: Setting, x: Value) -> Value:
        return paper.checkpoint(lambda paper, x: forward(paper, at, x), x)

    return run(paper, twice, at)


def rehearse(forward: Forward, at: Setting, gpu: Gpu, *, scalar: bool = False) -> Seen:
    """Run a layer on paper: once as it is, once keeping nothing, once checkpointed.

    `scalar` as in `run`.
    """
    share = flops_share(at, gpu)
    dropping = Paper(gpu, keep=False, flops_share=share)
    forward(dropping, at, dropping.source(at.features, at.stream))
    seen = replace(
        run(Paper(gpu, flops_share=share), forward, at, scalar=scalar),
        drop_peak=dropping.ledger.peak,
    )
    if scalar:
        return seen
    again = Selective(gpu, (), flops_share=share)
    run_again(again, forward, at)
    given = seen.output_bytes + ROOT_BYTES
    return replace(
        seen,
        again_peak=again.again_peak - given,
        early_bytes=max(again.early_bytes - given, 0),
    )


def block(paper: Paper, at: Setting, x: Value) -> Value:
    """Run one block of the shape."""
    if at.shape.parallel:
        return _parallel(paper, at, x)
    if at.shape.post_norm:
        return _post_normed(paper, at, x)
    if at.shape.buckets:
        return t5_block(paper, at, x)
    # GPT-2's block refers to the normed inputs until the sums are made, and to the attention's
    # output to its end; the others let go of each when its part has run, and drop outside of it.
    holds = at.shape.family == "gpt2"
    holds_attention = holds or at.shape.family == "llama4_text"
    normed = norm(paper, at, x)
    attended, _probabilities = attend(paper, at, normed)
    if not holds_attention:
        del normed
    if not holds:
        attended = dropout(paper, at, attended, at.shape.dropout)
    if at.shape.norms == 4:
        attended = norm(paper, at, attended)
    x = add(paper, x, attended)
    if holds_attention:
        del normed
    else:
        del attended
    normed = norm(paper, at, x)
    made = (mixture if at.shape.experts else mlp)(paper, at, normed)
    if not holds:
        del normed
        made = dropout(paper, at, made, at.shape.dropout)
    if at.shape.norms == 4:
        made = norm(paper, at, made)
    return add(paper, x, made)


def _post_normed(paper: Paper, at: Setting, x: Value) -> Value:
    attended, _probabilities = mix(paper, at, x)
    attended = _summed(paper, at, attended, x, "o")
    # The attention's own call has ended, and let go of its output before the projection.
    inner = activate(paper, at, project(paper, at, attended, "up"))
    return _summed(paper, at, inner, attended, "down")


def _summed(paper: Paper, at: Setting, x: Value, residual: Value, name: str) -> Value:
    """Run the layer of this name on what the caller holds on to, add the residual, and norm."""
    made = project(paper, at, x, name)
    made = dropout(paper, at, made, at.shape.dropout)
    return norm(paper, at, add(paper, made, residual))


def _parallel(paper: Paper, at: Setting, given: Value) -> Value:
    x = norm(paper, at, given)
    attended, _probabilities = attend(paper, at, x)
    attended = dropout(paper, at, attended, at.shape.dropout)
    x = norm(paper, at, given)
    x = mlp(paper, at, x)
    x = dropout(paper, at, x, at.shape.dropout)
    return add(paper, add(paper, x, attended), given)


def head(paper: Paper, at: Setting, x: Value, loss: str = "hf") -> Value:
    """Run the last norm, the head and the loss; of a chunked loss what is not in chunks."""
    if at.shape.head != "causal":
        return _HEADS[at.shape.head](paper, at, x, loss)
    x = enter(paper, at, norm(paper, at, x))
    size = at.compute
    weight = None
    if at.autocast:
        x = cast(paper, x, size)
        n = at.shape.width * at.shape.vocabulary
        weight = cast(paper, paper.leaf(n, 4, trained=at.trained), size)
    d, many = at.shape.width, at.shape.vocabulary
    logits = linear(paper, x, d, many, trained=at.trained, weight=weight)
    logits = adapted(paper, at, logits, x, HEAD, d, many)
    if loss == "chunked":
        return logits
    if at.shape.family == "gemma2":
        for step in capped(paper):
            logits = step(logits)
    return _loss(paper, at, logits, size if loss == "bf16" else 4)


def capped(paper: Paper) -> tuple[Callable[[Value], Value], ...]:
    """What Gemma 2 does to logits, one after another."""
    return (
        lambda x: unary(paper, x, "aten.div.Tensor"),
        lambda x: unary(paper, x, "aten.tanh.default", saves="output"),
        partial(scale, paper),
    )


_HEADS = {"masked": masked, "classes": classes, "seq2seq": t5_head}
"""What the shape's `head` is run by, where that is no causal one."""


def _loss(paper: Paper, at: Setting, logits: Value, size: int) -> Value:
    """Run transformers' loss of a causal model: cross-entropy against labels shifted by one."""
    upcast = cast(paper, logits, size)
    padded = paper.compute((), at.batch * (at.sequence + 1), 8)
    # One row is contiguous where it is: the shifted labels are then a view.
    labels = padded if at.batch == 1 else paper.compute((padded,), at.tokens, 8)
    return cross_entropy(paper, upcast, labels)

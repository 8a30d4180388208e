"""What encoders run before their first block and after their last, on paper: see `modules`."""

from __future__ import annotations

from scheduler.memory.simulate.kernels import add, cast, dropout, join, part, unary
from scheduler.memory.simulate.modules import activate, dense, norm
from scheduler.memory.simulate.setting import Setting
from scheduler.memory.simulate.tensors import Paper, Value


def embed(paper: Paper, at: Setting, given: Value) -> Value:
    """Run what comes before the blocks."""
    return (_see if at.shape.pixels else _read)(paper, at, given)


def _read(paper: Paper, at: Setting, _given: Value) -> Value:
    """Look up words, their types and their positions, add them up, and norm."""
    shape = at.shape
    # RoBERTa counts each sequence's positions, but for its padding.
    each = at.tokens if shape.first_position else at.sequence
    places_ids = paper.compute((), each, 8) if shape.first_position else None
    type_ids = paper.compute((), each, 8)
    words = looked_up(paper, at, at.tokens, shape.vocabulary, shared=shape.tied)
    words = entered(paper, at, words)
    types = looked_up(paper, at, at.tokens, shape.types, type_ids)
    made = add(paper, words, types)
    places = looked_up(paper, at, each, shape.positions, places_ids)
    made = add(paper, made, places)
    made = norm(paper, at, made)
    return dropout(paper, at, made, shape.dropout)


def looked_up(
    paper: Paper,
    at: Setting,
    rows: int,
    table: int,
    ids: Value | None = None,
    *,
    shared: bool = False,
) -> Value:
    """Take rows of a table; `ids` where they are made here, `shared` with the head."""
    count, n = rows * at.shape.width, table * at.shape.width
    w = paper.leaf(n, at.stream, trained=at.trained, shared=shared)
    reads = (w.view(count), *([ids] if ids else []))
    made = paper.compute(reads, count, at.stream, op="aten.embedding.default")
    kept = [paper.save(ids)] if ids and at.trained else []
    paper.record(made, (w,), lambda g, saved: [paper.compute((*g, *saved), n, at.stream)], *kept)
    return made


def _see(paper: Paper, at: Setting, _given: Value) -> Value:
    """Make a token of each patch, put the class's before them, and add positions."""
    shape = at.shape
    patches = entered(paper, at, _patches(paper, at))
    joined = join(paper, _class_token(paper, at), cast(paper, patches, at.stream))
    del patches
    made = _placed(paper, at, joined)
    del joined
    return dropout(paper, at, made, shape.dropout)


def entered(paper: Paper, at: Setting, x: Value) -> Value:
    """Let gradients go on into a model whose own weights do not train.

    With adapters it becomes a leaf, which is held with its gradient, as PEFT makes it; else what
    trains there is not counted.
    """
    if not at.trained:
        held = [paper.save(x)] if at.lora else []
        door = paper.leaf(0, x.size)
        paper.record(x, (door,), lambda g, saved: g if at.lora else [None], *held)
    return x


def _placed(paper: Paper, at: Setting, x: Value) -> Value:
    """Add learned positions. Their gradient is a copy, of one sequence too."""
    n = at.sequence * at.shape.width
    places = paper.leaf(n, at.stream, trained=at.trained)
    made = paper.compute((x, places), x.elements, at.stream, op="aten.add.Tensor")
    paper.record(made, (x, places), lambda g, saved: [*g, paper.compute(g, n, at.stream)])
    return made


def _patches(paper: Paper, at: Setting) -> Value:
    """Run a convolution whose stride is its kernel's size: a product for each patch."""
    shape, size = at.shape, at.compute
    count = (at.tokens - at.batch) * shape.width
    weights = shape.patch_parameters - shape.width
    images = paper.leaf(at.batch * shape.pixels * shape.channels, at.stream, trained=False)
    w = paper.leaf(weights, at.stream, trained=at.trained)
    b = paper.leaf(shape.width, at.stream, trained=at.trained)
    reads = [cast(paper, each, size) for each in (images, w, b)]
    flops = 2 * count * weights // shape.width
    made = paper.compute(reads, count, size, flops, op="aten.convolution.default")

    def back(grads: list[Value], saved: list[Value]) -> list[Value]:
        # One kernel for both; each is there when the other is handed on.
        to_w, to_b = paper.run("", (*grads, *saved), [(weights, size), (shape.width, size)], flops)
        return [to_w, to_b]

    paper.record(made, (reads[1], reads[2]), back, paper.save(*reads[:2]))
    return made


def _class_token(paper: Paper, at: Setting) -> Value:
    token = paper.leaf(at.shape.width, at.stream, trained=at.trained)
    if at.batch == 1:
        return token  # its gradient is a part of all tokens', which is not let go
    every = token.view(at.batch * at.shape.width)
    paper.record_simple(every, token)
    return every


def masked(paper: Paper, at: Setting, x: Value, loss: str) -> Value:
    """Run the head on every token, a layer with a norm before it, and a loss not in chunks."""
    made = transformed(paper, at, x)
    logits = dense(paper, at, made, at.shape.width, at.shape.vocabulary, bias=at.shape.head_bias)
    return logits if loss == "chunked" else _own_loss(paper, at, logits)


def transformed(paper: Paper, at: Setting, x: Value) -> Value:
    """Run the layer before the head, with its norm."""
    made = dense(paper, at, x, at.shape.width, at.shape.width, bias=True)
    made = activate(paper, at, made)
    return norm(paper, at, made)


def _own_loss(paper: Paper, at: Setting, logits: Value) -> Value:
    """Run the loss in the logits' own dtype; autocast has it in fp32."""
    return cross_entropy(paper, cast(paper, logits, 4) if at.autocast else logits)


def classes(paper: Paper, at: Setting, x: Value, _loss: str) -> Value:
    """Run the last norm, the head on each sequence's first token, and the loss."""
    shape = at.shape
    x = norm(paper, at, x)
    first = part(paper, x, at.batch * shape.width)
    logits = dense(paper, at, first, shape.width, shape.vocabulary, bias=shape.head_bias)
    return _own_loss(paper, at, logits)


def cross_entropy(paper: Paper, logits: Value, *labels: Value) -> Value:
    """Run cross-entropy in the logits' dtype; `labels` where they are not the caller's own."""
    size = logits.size
    chances = unary(paper, logits, "aten._log_softmax.default", saves="output")
    made, divisor = paper.compute((chances,), 1, size), paper.compute((), 1, size)
    paper.record_simple(made, chances, paper.save(*labels, divisor))
    return made

"""What of a model trains, tensor by tensor: what an optimizer's state is counted from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import prod

from scheduler.memory.recipe import Lora
from scheduler.memory.shape.shape import Shape
from scheduler.memory.simulate.setting import HEAD, linears, lora_targets
from scheduler.memory.state.optimizers import Dims, Optimizer


def matrices(shape: Shape) -> Counter[Dims]:
    """Weights of the blocks' linear layers, outputs × inputs; experts in two tensors of three.

    As transformers has them: of all experts together, gate and up in one.
    """
    found: Counter[Dims] = Counter()
    for inputs, outputs in linears(shape).values():
        found[outputs, inputs] += shape.layers
    d, inner, shared = shape.width, 2 if shape.gated else 1, shape.shared_expert_width
    if shape.experts:
        many, f = shape.experts, shape.mlp_width
        for dims in ((many, d), (many, inner * f, d), (many, d, f)):
            found[dims] += shape.layers
    if shared:
        found[shared, d] += inner * shape.layers
        found[d, shared] += shape.layers
    return found


def trained_tensors(shape: Shape, optimizer: Optimizer) -> tuple[Counter[Dims], int]:
    """All tensors of a model but those that the optimizer leaves to AdamW, and what those have.

    Of vectors each is as long as the model is wide, though some biases are longer.
    """
    found, d = matrices(shape), shape.width
    tables = [("embedding", shape.vocabulary), ("embedding", shape.positions)]
    if not shape.tied:
        tables.append(("head", shape.vocabulary))
    left = 0
    for kind, rows in tables:
        if kind in optimizer.plain:
            left += rows * d
        elif rows:
            found[rows, d] += 1
    vectors = shape.parameters - left - elements(found)
    found[d,] += vectors // d
    if vectors % d:
        found[vectors % d,] += 1
    return +found, left


def elements(tensors: Mapping[Dims, int]) -> int:
    """Of all these tensors."""
    return sum(count * prod(dims) for dims, count in tensors.items())


def adapter_tensors(shape: Shape, lora: Lora | None) -> tuple[Counter[Dims], Counter[Dims]]:
    """A and B of each adapter: of those in blocks, and of the head's; none without LoRA."""
    inside: Counter[Dims] = Counter()
    of_head: Counter[Dims] = Counter()
    if lora is not None:
        sizes = linears(shape) | {HEAD: (shape.width, shape.vocabulary)}
        for name in lora_targets(shape, lora):
            inputs, outputs = sizes[name]
            found, count = (of_head, 1) if name == HEAD else (inside, shape.layers)
            found[lora.rank, inputs] += count
            found[outputs, lora.rank] += count
    return inside, of_head

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
    for kind, number in shape.kinds.items():
        for inputs, outputs in linears(kind).values():
            found[outputs, inputs] += number
        d, inner, shared = kind.width, 2 if kind.gated else 1, kind.shared_expert_width
        if kind.experts:
            many, f = kind.experts, kind.mlp_width
            for dims in ((many, d), (many, inner * f, d), (many, d, f)):
                found[dims] += number
        if shared:
            found[shared, d] += inner * number
            found[d, shared] += number
    return found


def trained_tensors(shape: Shape, optimizer: Optimizer) -> tuple[Counter[Dims], int]:
    """All tensors of a model but those that the optimizer leaves to AdamW, and what those have.

    Of vectors each is as long as the model is wide, though some are not.
    """
    found, d = matrices(shape), shape.width
    tables = [("embedding", rows) for rows in (shape.positions, shape.types)]
    if shape.pixels:
        found[d, shape.channels, shape.patch, shape.patch] += 1
    else:
        tables.append(("embedding", shape.vocabulary))
    if not shape.tied:
        tables.append(("head", shape.vocabulary))
    if shape.head == "masked":
        found[d, d] += 1
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


def adapter_tensors(
    shape: Shape, lora: Lora | None
) -> tuple[dict[Shape, Counter[Dims]], Counter[Dims]]:
    """A and B of each adapter: of those in a block of each kind, and of the head's."""
    targets = frozenset() if lora is None else lora_targets(shape, lora)
    rank = 0 if lora is None else lora.rank

    def of(sizes: Mapping[str, tuple[int, int]]) -> Counter[Dims]:
        found: Counter[Dims] = Counter()
        for name in targets & sizes.keys():
            inputs, outputs = sizes[name]
            found[rank, inputs] += 1
            found[outputs, rank] += 1
        return found

    inside = {kind: of(linears(kind)) for kind in shape.kinds}
    return inside, of({HEAD: (shape.width, shape.vocabulary)})

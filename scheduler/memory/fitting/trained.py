"""What of a model trains, tensor by tensor: what an optimizer's state is counted from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
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


def tables(shape: Shape) -> list[tuple[str, int]]:
    """What is looked up in by each token: rows, and that it is an embedding."""
    rows = (shape.positions, shape.types, 0 if shape.pixels else shape.vocabulary)
    return [("embedding", count) for count in rows]


def head_tables(shape: Shape) -> list[tuple[str, int]]:
    """The head's own table, where it has one."""
    return [] if shape.tied else [("head", shape.vocabulary)]


def trained_tensors(
    shape: Shape,
    linear: Counter[Dims],
    ends: Iterable[tuple[str, int]],
    parameters: int,
    optimizer: Optimizer,
) -> tuple[Counter[Dims], int]:
    """The tensors of so many parameters but those left to AdamW, and what those have.

    Matrices of linear layers and tables are given; of vectors each is as long as the model is wide,
    though some are not.
    """
    found, d, left = Counter(linear), shape.width, 0
    if ends and shape.pixels:
        found[d, shape.channels, shape.patch, shape.patch] += 1
    if ends and shape.head == "masked":
        found[d, d] += 1
    for kind, rows in ends:
        if kind in optimizer.plain:
            left += rows * d
        elif rows:
            found[rows, d] += 1
    vectors = parameters - left - elements(found)
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

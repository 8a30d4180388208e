"""What autograd keeps of a forward pass, written down by hand, tensor by tensor.

Each operation puts on a `Tape` the tensors that its backward needs. A tensor that two operations
keep is there once, as its storage is: that is why tensors have names.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from scheduler.memory.activations import Activations
from scheduler.memory.recipe import RecipeFields, recipe_of
from scheduler.memory.shape.shape import Shape
from scheduler.memory.simulate.setting import setting

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["Tape", "Tensor", "embedding_activations"]


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor on paper: a name, how many elements, bytes of one element."""

    name: str
    elements: int
    size: int

    @property
    def bytes(self) -> int:
        """Bytes of its storage."""
        return self.elements * self.size

    def named(self, name: str, size: int | None = None) -> Tensor:
        """Another tensor of as many elements."""
        return replace(self, name=name, size=self.size if size is None else size)


class Tape:
    """Collects the tensors that a forward keeps, each storage once."""

    def __init__(self) -> None:
        self._kept: dict[str, int] = {}

    def keep(self, *tensors: Tensor) -> None:
        """Keep tensors until the backward."""
        for tensor in tensors:
            self._kept[tensor.name] = tensor.bytes

    def finish(self, taken: Tensor, made: Tensor) -> Activations:
        """All that was kept by the layer that took one tensor and made the other."""
        return Activations(
            tensors=tuple(self._kept.items()),
            input_bytes=taken.bytes,
            output_bytes=made.bytes,
            input_saved=taken.name in self._kept,
            output_saved=made.name in self._kept,
        )


def embedding_activations(
    shape: Shape, batch: int, sequence: int, **fields: Unpack[RecipeFields]
) -> Activations:
    """Bytes that are kept before the first block; the layer's input are the token ids.

    Kept: the ids, int64, 8·T, when the embedding is trained; with learned positions their ids, 8·S;
    dropout's mask, also when nothing here is trained, since a gradient passes on to the embedding's
    output; with rotary the tables cos and sin, s·S·a each (a features of a head that turn), which
    every block uses and all sequences share.
    """
    at = setting(shape, batch, sequence, recipe_of(None, fields, computing=True), inside=False)
    tape = Tape()
    ids = Tensor("token ids", at.tokens, 8)
    if at.trained:
        tape.keep(ids)
        if shape.positions:
            tape.keep(Tensor("position ids", at.sequence, 8))
    made = Tensor("embedding", at.tokens * shape.width, at.stream)
    if shape.dropout:
        tape.keep(made.named("embedding dropout mask", at.mask_size(made.size)))
    if not shape.positions:
        table = Tensor("cosines", at.sequence * shape.turned_width, at.stream)
        tape.keep(table, table.named("sines"))
    return tape.finish(ids, made)

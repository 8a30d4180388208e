"""What autograd keeps of a forward pass, written down tensor by tensor.

The formulas of this package are forwards on paper: each operation is a function that puts on a
`Tape` the tensors its backward needs and returns the tensor it makes. A tensor that two operations
keep is there once, as its storage is: that is why tensors have names.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

__all__ = ["Activations", "Tape", "Tensor"]


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


@dataclass(frozen=True, slots=True)
class Activations:
    """What autograd keeps of one layer between its forward and its backward.

    Attributes
    ----------
    tensors
        Name and bytes of each storage that is kept, in the order of the forward; the layer's input
        and output are among them where they are saved. Parameters are not.
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

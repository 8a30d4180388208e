"""The global random generators of Python, numpy and torch: where they are, and put there again.

Reading a state of Python's or numpy's makes 600 numbers of it and takes 10 to 100 µs; a block may
take less. So what lies in memory is compared first, which takes 1 µs.
"""

from __future__ import annotations

import ctypes
import pickle
import random
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

_WORDS = 624
"""Of the Mersenne twister, which both use; 32 bits each, and a position."""


class Generator:
    """A generator, with the state that was read last."""

    def __init__(self) -> None:
        self._state: Any = None
        self._place: object = None

    def state(self) -> Any:
        """The state: the same object where the generator has not moved."""
        place = self.place()
        if place is None or place != self._place:
            self._state, self._place = self.read(), place
        return self._state

    def moved_from(self, state: Any) -> bool:
        """Whether the state is another than `state`."""
        now = self.state()
        return now is not state and not self.equal(now, state)

    def place(self) -> object:
        """Something that is another for every state; None where nothing cheap is."""
        raise NotImplementedError

    def read(self) -> Any:
        """The state, read anew."""
        raise NotImplementedError

    def put(self, state: Any) -> None:
        """Set the state."""
        raise NotImplementedError

    def equal(self, one: Any, other: Any) -> bool:
        """Whether two states are the same."""
        return bool(one == other)


class PythonGenerator(Generator):
    """The generator behind the functions of `random`.

    CPython keeps the words and the position at the end of the object, in either order. That is
    looked at once, not believed: elsewhere the state is read each time.
    """

    def __init__(self) -> None:
        super().__init__()
        self._object: Any = getattr(random.random, "__self__", None)
        base = type(self._object).__mro__[1] if self._object is not None else object
        size = base.__basicsize__ - object.__basicsize__
        self._memory = _memory(id(self._object) + object.__basicsize__, max(size, 0))
        self._known = size >= 4 * (_WORDS + 1) and self._is_there()

    def _is_there(self) -> bool:
        if sys.implementation.name != "cpython":
            return False
        *words, position = random.getstate()[1]
        found = self._memory.raw
        expected = b"".join(word.to_bytes(4, sys.byteorder) for word in words)
        return expected in found and position.to_bytes(4, sys.byteorder) in found

    def place(self) -> object:
        """What is in memory, and the normal number that waits to be handed out."""
        return (self._memory.raw, self._object.gauss_next) if self._known else None

    def read(self) -> Any:
        """The state, read anew."""
        return random.getstate()

    def put(self, state: Any) -> None:
        """Set the state."""
        random.setstate(state)


class NumpyGenerator(Generator):
    """The generator behind the functions of `numpy.random`; its state is None without numpy.

    Its place in memory, which numpy documents, does not tell whether the second of a pair of normal
    numbers, which are made two at a time, has been handed out. Where one waits, the state is read.
    Once a forward has been seen to draw, it is always read.
    """

    def __init__(self) -> None:
        super().__init__()
        self._drawn = False
        self._generator: Any = None
        self._memory = _memory(0, 0)

    def moved_from(self, state: Any) -> bool:
        """Whether the state is another than `state`."""
        moved = super().moved_from(state)
        self._drawn = self._drawn or moved
        return moved

    def place(self) -> object:
        """What is in memory of the global generator."""
        numpy = sys.modules.get("numpy")
        if numpy is None:
            return "no numpy"
        get = getattr(numpy.random, "get_bit_generator", None)
        generator = None if get is None else get()
        waiting = self._state is not None and self._state["has_gauss"]
        if self._drawn or waiting or type(generator).__name__ != "MT19937":
            return None
        if generator is not self._generator:
            assert generator is not None
            self._generator = generator
            self._memory = _memory(generator.ctypes.state_address, 4 * (_WORDS + 1))
        return self._memory.raw

    def read(self) -> Any:
        """The state, read anew."""
        numpy = sys.modules.get("numpy")
        return None if numpy is None else numpy.random.get_state(legacy=False)

    def put(self, state: Any) -> None:
        """Set the state."""
        if state is not None:
            sys.modules["numpy"].random.set_state(state)
            self._place = None

    def equal(self, one: Any, other: Any) -> bool:
        """Whether two states are the same."""
        return pickle.dumps(one) == pickle.dumps(other)  # arrays in dicts


class TorchGenerator(Generator):
    """The generator behind torch's functions: the CPU's, or that of another device."""

    def __init__(self, device: torch.device | None = None) -> None:
        super().__init__()
        self._device = () if device is None else (device,)
        self._module: Any = torch if device is None else _module(device)

    def state(self) -> Any:
        """The state: the same object where the generator has not moved."""
        state = self.read()
        if (place := _bytes(state)) != self._place:
            self._state, self._place = state, place
        return self._state

    def read(self) -> Any:
        """A copy of the state."""
        return self._module.get_rng_state(*self._device)

    def put(self, state: Any) -> None:
        """Set the state."""
        self._module.set_rng_state(state, *self._device)

    def equal(self, one: Any, other: Any) -> bool:
        """Whether two states are the same."""
        return _bytes(one) == _bytes(other)


def torch_generators(devices: Iterable[torch.device]) -> list[Generator]:
    """Torch's generators on the CPU and on these devices, where they have begun."""
    others = [d for d in devices if d.type != "cpu" and getattr(_module(d), "_initialized", False)]
    return [TorchGenerator(), *map(TorchGenerator, others)]


def _module(device: torch.device) -> Any:
    return getattr(torch, device.type, None)


def _bytes(state: torch.Tensor) -> bytes:
    """A state where it lies, in the CPU's memory: torch itself may be in fake mode."""
    return ctypes.string_at(state.data_ptr(), state.nbytes)


def _memory(address: int, size: int) -> Any:
    return (ctypes.c_char * size).from_address(address)


GENERATORS: tuple[Generator, ...] = (PythonGenerator(), NumpyGenerator())


@contextmanager
def unmoved(devices: Iterable[torch.device]) -> Iterator[None]:
    """Put the generators back at the end, those of torch on the CPU and on these devices too."""
    generators = [*GENERATORS, *torch_generators(devices)]
    before = [(generator, generator.read()) for generator in generators]
    try:
        yield
    finally:
        for generator, state in before:
            generator.put(state)

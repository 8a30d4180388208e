"""How the values of each type are copied, compared, put back, and looked into."""

from __future__ import annotations

import pickle
import random
from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum
from functools import partial
from operator import is_
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn


def nothing(value: Any) -> Iterable[tuple[Any, Any]]:
    """What is inside a value that nothing is looked for in."""
    return ()


class Kind:
    """How the values of some types are copied, compared, put back, and looked into."""

    def __init__(
        self,
        copy: Callable[[Any], Any] | None,
        put: Callable[[Any, Any], None] | None = None,
        inside: Callable[[Any], Iterable[tuple[Any, Any]]] = nothing,
        same: Callable[[Any, Any], bool] | None = None,
    ) -> None:
        self.copy, self.put, self.inside = copy, put, inside
        self.same = same or _same_items

    def values(self, value: Any) -> Iterable[Any]:
        """What is inside a value that may have a state."""
        return [each for _, each in self.inside(value) if type(each) not in PLAIN_TYPES]


PLAIN_TYPES: set[type] = {type(None), bool, int, float, str}
"""Types seen so far whose values have no state."""


def _same_items(value: Any, copy: Any) -> bool:
    return len(value) == len(copy) and all(map(is_, value, copy))


def _same_entries(value: dict[Any, Any], copy: dict[Any, Any]) -> bool:
    return (
        len(value) == len(copy)
        and all(map(is_, value.values(), copy.values()))
        and value.keys() == copy.keys()
    )


def _put_entries(value: dict[Any, Any], copy: dict[Any, Any]) -> None:
    for key in [key for key in value if key not in copy]:
        del value[key]
    for key, before in copy.items():
        if key not in value or value[key] is not before:
            value[key] = before


def _put_items(value: Any, copy: list[Any]) -> None:
    value.clear()
    (value.update if isinstance(value, set) else value.extend)(copy)


def _put_array(value: Any, copy: Any) -> None:
    value[...] = copy


def _put_generator(value: torch.Generator, copy: torch.Tensor) -> None:
    value.set_state(copy)


def _slots(value: Any) -> list[str]:
    names = [n for kind in type(value).__mro__ for n in kind.__dict__.get("__slots__", ())]
    return [name for name in names if not name.startswith("__") and hasattr(value, name)]


def _put_slots(value: Any, copy: dict[str, Any]) -> None:
    for name, before in copy.items():
        setattr(value, name, before)


def _closure(function: Any) -> Iterable[tuple[Any, Any]]:
    return zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)


def _contents(cell: CellType) -> list[Any]:
    try:
        return [cell.cell_contents]
    except ValueError:  # not yet set
        return []


def _put_contents(cell: CellType, copy: list[Any]) -> None:
    if copy:
        cell.cell_contents = copy[0]


PLAIN = Kind(None)
MODULE = Kind(None)
TENSOR = Kind(None)
DICT = Kind(dict, _put_entries, dict.items, _same_entries)
_LIST = Kind(list, _put_items, enumerate)
# In no order of their own, which what is put in again need not have.
_SET = Kind(
    set,
    _put_items,
    lambda value: enumerate(sorted(value, key=repr)),
    lambda value, copy: value == copy,
)
_TUPLE = Kind(None, inside=enumerate)
_OBJECT = Kind(
    lambda value: dict(vars(value)),
    lambda value, copy: _put_entries(vars(value), copy),
    lambda value: vars(value).items(),
    lambda value, copy: _same_entries(vars(value), copy),
)
_SLOTS = Kind(
    lambda value: {name: getattr(value, name) for name in _slots(value)},
    _put_slots,
    lambda value: [(name, getattr(value, name)) for name in _slots(value)],
    lambda value, copy: all(getattr(value, name, None) is each for name, each in copy.items()),
)
_FUNCTION = Kind(None, inside=_closure)
_CELL = Kind(
    _contents, _put_contents, lambda cell: enumerate(_contents(cell)),
    lambda cell, copy: _same_items(_contents(cell), copy),
)  # fmt: skip
_METHOD = Kind(None, inside=lambda method: [("__self__", method.__self__)])
_PARTIAL = Kind(None, inside=lambda p: [("func", p.func), *enumerate(p.args), *p.keywords.items()])
_ARRAY = Kind(lambda value: value.copy(), _put_array, same=lambda v, copy: bool((v == copy).all()))
_NUMPY = {
    "ndarray": _ARRAY,
    "Generator": Kind(
        lambda value: value.bit_generator.state,
        lambda value, copy: setattr(value.bit_generator, "state", copy),
        same=lambda value, copy: pickle.dumps(value.bit_generator.state) == pickle.dumps(copy),
    ),
    "RandomState": Kind(
        lambda value: value.get_state(legacy=False),
        lambda value, copy: value.set_state(copy),
        same=lambda v, copy: pickle.dumps(v.get_state(legacy=False)) == pickle.dumps(copy),
    ),
}
_GENERATOR = Kind(
    lambda value: value.get_state(), _put_generator,
    same=lambda value, copy: torch.equal(value.get_state(), copy),
)  # fmt: skip
_RANDOM = Kind(
    random.Random.getstate, random.Random.setstate,
    same=lambda value, copy: value.getstate() == copy,
)  # fmt: skip

# Not to be set back; some tell where they are.
_ITERATOR = Kind(repr, same=lambda value, copy: repr(value) == copy)

_BY_TYPE: tuple[tuple[Any, Kind], ...] = (
    (nn.Module, MODULE),
    (torch.Tensor, TENSOR),
    (torch.Generator, _GENERATOR),
    (random.Random, _RANDOM),
    (dict, DICT),
    ((list, deque, bytearray), _LIST),
    (set, _SET),
    (tuple, _TUPLE),
    (FunctionType, _FUNCTION),
    (MethodType, _METHOD),
    (CellType, _CELL),
    (partial, _PARTIAL),
    ((type, ModuleType, Enum, str, bytes, int, float, complex, frozenset, range), PLAIN),
)


_KINDS: dict[type, Kind] = {}


def kind_of(kind: type) -> Kind:
    """How values of a type are handled; found once."""
    if (found := _KINDS.get(kind)) is None:
        found = _KINDS[kind] = _look_up(kind)
        if found is PLAIN:
            PLAIN_TYPES.add(kind)
    return found


def _look_up(kind: type) -> Kind:
    for types, found in _BY_TYPE:
        if issubclass(kind, types):
            return found
    home = kind.__module__.partition(".")[0]
    if home == "itertools":
        return _ITERATOR
    if home == "numpy":
        return _NUMPY.get(kind.__name__, PLAIN)
    if home in ("torch", "threading", "logging", "builtins", "scheduler"):
        return PLAIN  # devices, streams, process groups, plans: no state of a forward
    if getattr(kind, "__dictoffset__", 0):
        return _OBJECT
    return _SLOTS if any("__slots__" in each.__dict__ for each in kind.__mro__) else PLAIN

"""What a forward changes beside what it returns, found and put back.

A counter, a running average, a list that grows, a tensor that is set once: whatever can be reached
from a module. What a forward sets is known by the identity of what lies there, what it changes in
place by a tensor's version. A tensor is put back as it was, in its own memory, and around
autograd, for which it has not changed: so views of it, and whoever else has it, see the same.
"""

from __future__ import annotations

import pickle
import random
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from enum import Enum
from functools import partial
from operator import is_
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

_STRUCTURE = frozenset(nn.Module().__dict__) | {"forward"}
"""Attributes of modules that are looked into on their own, or that no forward changes."""


def _nothing(value: Any) -> Iterable[tuple[Any, Any]]:
    return ()


class _Kind:
    """How the values of some types are copied, compared, put back, and looked into."""

    def __init__(
        self,
        copy: Callable[[Any], Any] | None,
        put: Callable[[Any, Any], None] | None = None,
        inside: Callable[[Any], Iterable[tuple[Any, Any]]] = _nothing,
        same: Callable[[Any, Any], bool] | None = None,
    ) -> None:
        self.copy, self.put, self.inside = copy, put, inside
        self.same = same or _same_items

    def values(self, value: Any) -> Iterable[Any]:
        """What is inside a value that may have a state."""
        return [each for _, each in self.inside(value) if type(each) not in _PLAIN_TYPES]


_PLAIN_TYPES: set[type] = {type(None), bool, int, float, str}
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


_PLAIN = _Kind(None)
_MODULE = _Kind(None)
_TENSOR = _Kind(None)
_DICT = _Kind(dict, _put_entries, dict.items, _same_entries)
_LIST = _Kind(list, _put_items, enumerate)
# In no order of their own, which what is put in again need not have.
_SET = _Kind(
    set,
    _put_items,
    lambda value: enumerate(sorted(value, key=repr)),
    lambda value, copy: value == copy,
)
_TUPLE = _Kind(None, inside=enumerate)
_OBJECT = _Kind(
    lambda value: dict(vars(value)),
    lambda value, copy: _put_entries(vars(value), copy),
    lambda value: vars(value).items(),
    lambda value, copy: _same_entries(vars(value), copy),
)
_SLOTS = _Kind(
    lambda value: {name: getattr(value, name) for name in _slots(value)},
    _put_slots,
    lambda value: [(name, getattr(value, name)) for name in _slots(value)],
    lambda value, copy: all(getattr(value, name, None) is each for name, each in copy.items()),
)
_FUNCTION = _Kind(None, inside=_closure)
_CELL = _Kind(
    _contents, _put_contents, lambda cell: enumerate(_contents(cell)),
    lambda cell, copy: _same_items(_contents(cell), copy),
)  # fmt: skip
_METHOD = _Kind(None, inside=lambda method: [("__self__", method.__self__)])
_PARTIAL = _Kind(None, inside=lambda p: [("func", p.func), *enumerate(p.args), *p.keywords.items()])
_ARRAY = _Kind(lambda value: value.copy(), _put_array, same=lambda v, copy: bool((v == copy).all()))
_NUMPY = {
    "ndarray": _ARRAY,
    "Generator": _Kind(
        lambda value: value.bit_generator.state,
        lambda value, copy: setattr(value.bit_generator, "state", copy),
        same=lambda value, copy: pickle.dumps(value.bit_generator.state) == pickle.dumps(copy),
    ),
    "RandomState": _Kind(
        lambda value: value.get_state(legacy=False),
        lambda value, copy: value.set_state(copy),
        same=lambda v, copy: pickle.dumps(v.get_state(legacy=False)) == pickle.dumps(copy),
    ),
}
_GENERATOR = _Kind(
    lambda value: value.get_state(), _put_generator,
    same=lambda value, copy: torch.equal(value.get_state(), copy),
)  # fmt: skip
_RANDOM = _Kind(
    random.Random.getstate, random.Random.setstate,
    same=lambda value, copy: value.getstate() == copy,
)  # fmt: skip

# Not to be set back; some tell where they are.
_ITERATOR = _Kind(repr, same=lambda value, copy: repr(value) == copy)

_BY_TYPE: tuple[tuple[Any, _Kind], ...] = (
    (nn.Module, _MODULE),
    (torch.Tensor, _TENSOR),
    (torch.Generator, _GENERATOR),
    (random.Random, _RANDOM),
    (dict, _DICT),
    ((list, deque, bytearray), _LIST),
    (set, _SET),
    (tuple, _TUPLE),
    (FunctionType, _FUNCTION),
    (MethodType, _METHOD),
    (CellType, _CELL),
    (partial, _PARTIAL),
    ((type, ModuleType, Enum, str, bytes, int, float, complex, frozenset, range), _PLAIN),
)


_KINDS: dict[type, _Kind] = {}


def _kind_of(kind: type) -> _Kind:
    if (found := _KINDS.get(kind)) is None:
        found = _KINDS[kind] = _look_up(kind)
        if found is _PLAIN:
            _PLAIN_TYPES.add(kind)
    return found


def _look_up(kind: type) -> _Kind:
    for types, found in _BY_TYPE:
        if issubclass(kind, types):
            return found
    home = kind.__module__.partition(".")[0]
    if home == "itertools":
        return _ITERATOR
    if home == "numpy":
        return _NUMPY.get(kind.__name__, _PLAIN)
    if home in ("torch", "threading", "logging", "builtins", "scheduler"):
        return _PLAIN  # devices, streams, process groups, plans: no state of a forward
    if getattr(kind, "__dictoffset__", 0):
        return _OBJECT
    return _SLOTS if any("__slots__" in each.__dict__ for each in kind.__mro__) else _PLAIN


class Snapshot:
    """The state of some values as it is now, and whatever can be reached from them.

    Parameters
    ----------
    roots
        Modules, or anything that modules may hold.
    copied
        Whether a tensor's values are copied, so that they can be put back. Not parameters, nor
        what has a graph.
    handed
        More roots, whose tensors are not copied.
    whole
        Also of modules of torch.nn, which set no attributes, and what no forward changes.
    """

    def __init__(
        self,
        roots: Iterable[Any],
        copied: Callable[[torch.Tensor], bool] = lambda tensor: True,
        *,
        handed: Iterable[Any] = (),
        whole: bool = False,
    ) -> None:
        self.roots, self.handed = list(roots), list(handed)
        # With what holds each value, so that no identity is given out again.
        self.cells: list[tuple[_Kind, Any, Any]] = []
        self.tensors: list[tuple[torch.Tensor, int, torch.Tensor | None]] = []
        # Of those with a copy: where they are, for `tensor.data = other` puts them elsewhere.
        self.places: dict[int, torch.Tensor] = {}
        known: set[int] = set()
        self._reach(self.roots, copied, known, whole)
        if self.handed:
            self._reach(self.handed, lambda tensor: False, known, whole)

    def _reach(
        self,
        roots: Iterable[Any],
        copied: Callable[[torch.Tensor], bool],
        known: set[int],
        whole: bool,
    ) -> None:
        todo = [root for root in roots if type(root) not in _PLAIN_TYPES]
        while todo:
            value = todo.pop()
            if id(value) in known:
                continue
            known.add(id(value))
            kind = _kind_of(type(value))
            if kind is _TENSOR:
                plain = value.is_leaf and not value.is_inference() and not is_expanded(value)
                if isinstance(value, nn.Parameter) or value.requires_grad:
                    plain = plain and whole and is_small(value)  # a forward hardly changes it
                copy = None
                if plain and copied(value):
                    self.places[id(value)] = place = value.detach()
                    copy = place.clone()
                self.tensors.append((value, _version(value), copy))
            elif kind is _MODULE:
                for part in _dicts_of(value, whole):
                    self.cells.append((_DICT, part, dict(part)))
                todo += _in_module(value, whole)
            elif kind is not _PLAIN:
                if kind.copy is not None:
                    self.cells.append((kind, value, kind.copy(value)))
                todo += kind.values(value)

    def changes(self, surely: Callable[[torch.Tensor], bool]) -> Snapshot | None:
        """What is no longer as it was, as it was; None where all is. Some tensors `surely` are not.

        A norm changes its statistics without a new version: what is copied is compared.
        """
        cells = [each for each in self.cells if not each[0].same(each[1], each[2])]
        tensors = [
            (tensor, version, copy)
            for tensor, version, copy in self.tensors
            if _version(tensor) != version
            or (copy is not None and (surely(tensor) or not _equal(tensor, copy)))
        ]
        if not cells and not tensors:
            return None
        found = Snapshot(())
        found.roots, found.handed, found.places = self.roots, self.handed, self.places
        found.cells, found.tensors = cells, tensors
        return found

    @property
    def lost(self) -> str | None:
        """The name of what is no longer as it was and cannot be put back."""
        gone = [
            value
            for kind, value, copy in self.cells
            if kind.put is None and not kind.same(value, copy)
        ]
        gone += [
            tensor
            for tensor, version, copy in self.tensors
            if _version(tensor) != version and (copy is None or isinstance(tensor, nn.Parameter))
        ]
        return name_of([*self.roots, *self.handed], gone[0]) if gone else None

    @property
    def changed(self) -> str | None:
        """The type of something that holds others than before."""
        found = (type(v).__name__ for kind, v, copy in self.cells if not kind.same(v, copy))
        return next(found, None)

    @property
    def left_tensors(self) -> str | None:
        """The type of something in which tensors lie that were not there before."""
        known = {id(tensor) for tensor, _, _ in self.tensors}
        for kind, value, saved in self.cells:
            if kind.same(value, saved):
                continue
            now = Snapshot((), handed=[value])
            if any(id(tensor) not in known for tensor, _, _ in now.tensors):
                return type(value).__name__
        return None

    @property
    def copied_bytes(self) -> int:
        """Bytes of the copies of tensors."""
        return sum(copy.nbytes for _, _, copy in self.tensors if copy is not None)

    def put(self) -> None:
        """Put everything there as it was."""
        for kind, value, saved in self.cells:
            if kind.put is not None and not kind.same(value, saved):
                kind.put(value, saved)
        for tensor, _, saved in self.tensors:
            if saved is not None:
                if self.is_elsewhere(tensor):
                    tensor.data = self.places[id(tensor)]
                tensor.data.copy_(saved)

    def is_elsewhere(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor with a copy is in other memory now."""
        place = self.places.get(id(tensor))
        return place is not None and place.untyped_storage() is not tensor.untyped_storage()


def _equal(tensor: torch.Tensor, copy: torch.Tensor) -> bool:
    try:
        return torch.equal(tensor, copy)
    except RuntimeError:  # fake ones have no values
        return False


def is_expanded(tensor: torch.Tensor) -> bool:
    """Whether elements share memory, so that nobody can change them in place."""
    return 0 in tensor.stride() and tensor.numel() > 1


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _dicts_of(module: nn.Module, whole: bool) -> list[dict[str, Any]]:
    """The dicts of a module that a forward may change."""
    if whole:
        return [module.__dict__]
    found: list[dict[str, Any]] = [module._buffers] if module._buffers else []
    if _sets_attributes(module):
        found.append(module.__dict__)
    return found


def _in_module(module: nn.Module, whole: bool) -> list[Any]:
    """What is inside a module that may have a state."""
    if whole:
        return [each for each in module.__dict__.values() if type(each) not in _PLAIN_TYPES]
    found: list[Any] = [part for part in module._modules.values() if _may_have_state(part)]
    if module._buffers:
        found += module._buffers.values()
    if _sets_attributes(module):
        found += [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
        found += [
            each
            for name, each in module.__dict__.items()
            if type(each) not in _PLAIN_TYPES and name not in _STRUCTURE
        ]
    return found


def _may_have_state(part: nn.Module | None) -> bool:
    """Whether a module is more than the simplest of torch.nn: this is on every call's way."""
    return part is not None and bool(part._modules or part._buffers or _sets_attributes(part))


_SETS: dict[type, bool] = {}


def _sets_attributes(module: nn.Module) -> bool:
    """Whether a module's forward may set attributes: those of torch.nn do not."""
    kind = type(module)
    if (sets := _SETS.get(kind)) is None:
        sets = _SETS[kind] = not kind.__module__.startswith("torch.nn.modules.")
    return sets or bool(module._forward_hooks or module._forward_pre_hooks)


def name_of(roots: Iterable[Any], wanted: Any) -> str:
    """The name by which something is reached, in quotes."""
    name = next((name for name, value, _ in _reached(roots) if value is wanted), "")
    return repr(name) if name else "a tensor that it is handed"


def named_state(model: nn.Module) -> dict[str, Any]:
    """What a forward may change on a model, by name: tensors, numbers, words, states of generators.

    Parameters are left out: an optimizer changes them.
    """
    found: dict[str, Any] = {}
    for name, value, kind in _reached([model]):
        if isinstance(value, torch.Tensor | int | float | complex | str | bytes | None):
            if not isinstance(value, nn.Parameter):
                found[name] = value
        elif kind.copy is not None and kind.inside is _nothing:
            found[name] = kind.copy(value)
    return found


def _reached(roots: Iterable[Any]) -> Iterator[tuple[str, Any, _Kind]]:
    """Everything that can be reached, once, with its name."""
    todo = [("", root) for root in roots]
    known: set[int] = set()
    for path, value in todo:  # grows
        kind = _kind_of(type(value))
        if kind is not _PLAIN and id(value) in known:
            continue
        known.add(id(value))
        yield path, value, kind
        inside = list(kind.inside(value))
        if kind is _MODULE:
            inside = [each for each in value.__dict__.items() if each[0] not in _STRUCTURE]
            inside += [*value._parameters.items(), *value._buffers.items(), *value._modules.items()]
        todo += [(f"{path}.{name}".lstrip("."), each) for name, each in inside]


def is_small(tensor: torch.Tensor) -> bool:
    """Whether a tensor may be copied before a forward: more is the weights of a quantized model."""
    return tensor.nbytes <= 2**20


class BlockState:
    """What the forward of some modules changes: known in each forward, undone in a repetition.

    A small tensor's values are copied before a forward if it is the first that is seen with it, or
    if an earlier one has changed it. `refuse` makes the error where one changes what has no copy.
    """

    def __init__(self, modules: Iterable[Any], refuse: Callable[[str], Exception]) -> None:
        self._modules = list(modules)
        self._refuse = refuse
        self._parts = [part for module in self._modules for part in module.modules()]
        self._modes: list[bool] = []
        # Of the tensors that a forward was seen with in these modes: whether it has changed them.
        self._seen: dict[int, tuple[weakref.ref[Any], bool]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_seen": {}}

    def _known(self, tensor: torch.Tensor) -> bool | None:
        known = self._seen.get(id(tensor))
        return None if known is None or known[0]() is not tensor else known[1]

    def _copied(self, tensor: torch.Tensor) -> bool:
        return is_small(tensor) and self._known(tensor) is not False

    def before(self, handed: Iterable[Any] = ()) -> Snapshot:
        """To be called before a forward, with what it is handed, of which no tensor is copied."""
        modes = [part.training for part in self._parts]
        if modes != self._modes:
            self._modes, self._seen = modes, {}
        return Snapshot(self._modules, self._copied, handed=handed)

    def after(self, before: Snapshot) -> Snapshot | None:
        """To be called after it: what it has changed, as it was before; None where nothing."""
        changes = before.changes(lambda tensor: self._known(tensor) is True)
        changed = set() if changes is None else {id(tensor) for tensor, _, _ in changes.tensors}
        if changes is not None and (name := changes.lost) is not None:
            raise self._refuse(
                f"changes {name} in place in its forward, which a recomputation would do again and "
                "which is not put back; make a small buffer of it, or a new tensor each time"
            )
        for tensor, _, saved in before.tensors:
            if saved is not None:
                self._seen[id(tensor)] = weakref.ref(tensor), id(tensor) in changed
        return changes

    @contextmanager
    def repeated(self, before: Snapshot | None) -> Iterator[None]:
        """Inside, a forward is run again from the state `before` it; then all is as it is now."""
        if before is None:
            yield
            return
        now = Snapshot(self._modules, self._copied, handed=before.handed)
        before.put()
        try:
            yield
        finally:
            now.put()


class Watched(AbstractContextManager[None]):
    """A context for a forward of a block: the first is looked at, the others leave no trace.

    `states` has, by a block's number, what the first has changed. It can be entered repeatedly.
    """

    def __init__(
        self,
        state: BlockState,
        states: dict[int, Snapshot | None],
        number: int,
        handed: Iterable[Any],
    ) -> None:
        self._state, self._states, self._number, self._handed = state, states, number, handed
        self._before: Snapshot | None = None
        self._repeated: AbstractContextManager[None] | None = None

    def __enter__(self) -> None:
        if self._number in self._states:
            self._repeated = self._state.repeated(self._states[self._number])
            self._repeated.__enter__()
        else:
            self._before = self._state.before(self._handed)

    def __exit__(self, kind: Any, *error: Any) -> None:
        if self._repeated is not None:
            self._repeated.__exit__(kind, *error)
        elif kind is None and self._before is not None:
            self._states[self._number] = self._state.after(self._before)
        self._before = self._repeated = None

"""Everything there is to know of a model and of the process around it, to be compared."""

from __future__ import annotations

import pickle
import random
import sys
from collections import deque
from collections.abc import Iterator
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

Facts = dict[str, Any]


def bits(tensor: torch.Tensor) -> Any:
    """The bytes of a tensor, with all that gives them a meaning."""
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    form = (tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.requires_grad)
    return (*form, flat.numpy().tobytes())


def children(value: Any) -> Iterator[tuple[str, Any]]:
    """What an object holds, each with its way there."""
    if isinstance(value, torch.Tensor):
        yield ".grad", value.grad if value.is_leaf else None
        for hooks in ("_backward_hooks", "_post_accumulate_grad_hooks"):
            yield from (
                (f".{hooks}", item) for item in (getattr(value, hooks, None) or {}).values()
            )
    elif isinstance(value, (list, tuple, deque)):
        yield from ((f"[{i}]", item) for i, item in enumerate(value))
    elif isinstance(value, dict):
        yield from ((f".{key}", item) for key, item in value.items())
    elif isinstance(value, MethodType):
        yield ".self", value.__self__
    elif isinstance(value, FunctionType):
        yield from ((f".cell{i}", c.cell_contents) for i, c in enumerate(value.__closure__ or ()))
    if hasattr(value, "__dict__") and not isinstance(value, (type, FunctionType, ModuleType)):
        inner = ("_modules", "_parameters", "_buffers") if isinstance(value, nn.Module) else ()
        for name, item in vars(value).items():
            if isinstance(value, nn.Module) and isinstance(item, dict) and "_hooks" in name:
                # Their keys are counted through the whole process.
                yield from ((f".{name}", hook) for hook in item.values())
            else:
                yield "" if name in inner else f".{name}", item


def essence(value: Any) -> Any:
    """What an object is, beside what it holds."""
    if isinstance(value, torch.Tensor):
        return bits(value)
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.tobytes()
    if isinstance(value, torch.Generator):
        return bits(value.get_state())
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, (list, tuple, deque)):
        return len(value), getattr(value, "maxlen", None)
    if isinstance(value, (set, frozenset, dict)):
        return sorted(map(repr, value))
    if isinstance(value, (FunctionType, MethodType, type)):
        return value.__qualname__
    return type(value).__name__ if hasattr(value, "__dict__") else repr(value)


ATOMS = (int, float, complex, str, bytes, type(None), type, torch.dtype, torch.device)


def facts(root: Any, same: bool = False) -> Facts:
    """Everything that can be reached from an object, by its way there; one thing twice is said.

    `same`: which objects they are counts as well, so that a copy put in a place is noticed.
    """
    found: Facts = {}
    ways: dict[int, str] = {}
    alive, todo = [], [("", root)]
    while todo:
        way, value = todo.pop()
        if way.endswith(".forward"):  # how a plan is applied: its own notes are no state
            found[way] = "replaced"
        elif isinstance(value, ATOMS):
            found[way] = f"{type(value).__name__} {value!r}"
        elif id(value) in ways:
            found[way] = f"the same as {ways[id(value)]}"
        else:
            ways[id(value)] = way
            alive.append(value)
            found[way] = (type(value).__name__, essence(value))
            if same and isinstance(value, (torch.Tensor, nn.Module, list, dict, set, deque)):
                found[f"{way} is"] = id(value)
            todo += [(way + step, item) for step, item in children(value)][::-1]
    return found


def parted(found: Facts, expected: Facts) -> list[str]:
    """Where two sets of facts differ."""
    ways = [w for w in {**expected, **found} if found.get(w, "–") != expected.get(w, "–")]
    return [f"{w}: {brief(found.get(w))} for {brief(expected.get(w))}" for w in ways]


def brief(fact: Any) -> str:
    return str(fact if isinstance(fact, (str, int)) else fact and fact[0])[:80]


def around() -> Facts:
    """The process around a model: random states, modes of torch, hooks of all modules."""
    everywhere = vars(nn.modules.module).items()
    hooks = {name: repr(found) for name, found in everywhere if name.startswith("_global_")}
    modes = (torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.get_default_dtype())
    numbers = (
        torch.get_rng_state(),
        *map(pickle.dumps, (random.getstate(), np.random.get_state())),
    )
    limits = (sys.getrecursionlimit(), torch.are_deterministic_algorithms_enabled())
    return facts({"hooks": hooks, "modes": modes, "random": numbers, "limits": limits})

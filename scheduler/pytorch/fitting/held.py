"""What a live model's training holds from step to step, and what the optimizer's step needs."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from scheduler.common.errors import UnsupportedModel
from scheduler.common.text import shown
from scheduler.memory.state.sizes import OPTIMIZERS
from scheduler.memory.state.state import State, training_state
from scheduler.pytorch.observe.dispatch import OperationMode, tensors_of
from scheduler.pytorch.observe.tracker import MemoryTracker, storage_bytes, unique_bytes

_PRECISIONS = {8: "fp32", 4: "fp32", 2: "bf16"}
_QUANTISED = 4096
"""Elements from which bitsandbytes keeps a tensor's moments in 8 bits."""


def trained_bytes(model: nn.Module) -> int:
    """Bytes of all gradients that a backward can make."""
    return sum(storage_bytes(p) for p in model.parameters() if p.requires_grad)


def held_state(
    model: nn.Module, optimizer: torch.optim.Optimizer | str | None, *, sums: bool = False
) -> tuple[State, int]:
    """What is held from step to step, and the bytes that the optimizer's step needs beside it.

    Parameters
    ----------
    model
        Its parameters and buffers are `weights_bytes`.
    optimizer
        What it holds once it has made a step, which it makes here on stand-ins without memory: so
        of any class, and whatever of its state is there already. A name of
        `scheduler.memory.state.sizes.OPTIMIZERS`: by that arithmetic. None: nothing.
    sums
        Whether gradients stay from one backward to the next, and are a part of it.

    Raises
    ------
    UnsupportedModel
        The optimizer is of other parameters, or cannot be run on stand-ins before its first step.
    InvalidRecipe
        No optimizer has this name.
    """
    weights = unique_bytes([list(model.parameters()), list(model.buffers())])
    trained = [p for p in model.parameters() if p.requires_grad]
    if optimizer is None:
        moments, update, name = 0, 0, "no optimizer"
    elif isinstance(optimizer, str):
        moments, name = named_moments(trained, optimizer), optimizer
        several = bool(trained) and trained[0].device.type == "cuda"  # torch updates all at once
        update = trained_bytes(model) if several else _one_by_one(trained)
    else:
        optimizer = getattr(optimizer, "optimizer", optimizer)  # inside accelerate's, Lightning's
        _check_parameters(model, optimizer)
        moments, update = _first_step(optimizer, trained)
        name = type(optimizer).__name__
    gradients = trained_bytes(model) if sums else 0
    return State(weights, gradients, 0, moments, 0, name), update


def _one_by_one(trained: list[nn.Parameter]) -> int:
    """What an optimizer needs that updates one parameter after the other: twice the largest."""
    return 2 * max(map(storage_bytes, trained), default=0)


def named_moments(trained: Iterable[torch.Tensor], optimizer: str) -> int:
    """Bytes of the statistics that an optimizer of this name keeps of some parameters."""
    by_size: dict[int, list[torch.Tensor]] = {}
    for parameter in trained:
        by_size.setdefault(parameter.element_size(), []).append(parameter)
    total = 0
    for size, group in by_size.items():
        fallback, factored = 0, optimizer.startswith("adafactor")
        if optimizer == "muon":
            fallback = sum(p.numel() for p in group if p.dim() != 2)
        elif optimizer == "adam-8bit":
            fallback = sum(p.numel() for p in group if p.numel() < _QUANTISED)
        total += training_state(
            sum(p.numel() for p in group),
            precision=_PRECISIONS.get(size, "fp32"),
            optimizer=optimizer,
            adamw_parameters=fallback,
            factored_statistics=sum(map(_statistics, group)) if factored else None,
        ).moments_bytes
    return total


def _statistics(parameter: torch.Tensor) -> int:
    """Rows and columns of a matrix, or of several; of a vector all of it."""
    if parameter.dim() < 2:
        return parameter.numel()
    *many, rows, columns = parameter.shape
    return torch.Size(many).numel() * (rows + columns)


def _check_parameters(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise UnsupportedModel(
            f"optimizer must be a torch optimizer, a name such as 'adamw', or None, got "
            f"{shown(optimizer)}"
        )
    mine = {id(parameter) for parameter in model.parameters()}
    if not any(id(p) in mine for group in optimizer.param_groups for p in group["params"]):
        raise UnsupportedModel(
            f"the {type(optimizer).__name__} is of other parameters: it has none of this "
            f"{type(model).__name__}; make it from model.parameters(), or give its name, such as "
            "optimizer='adamw'"
        )


def _first_step(optimizer: torch.optim.Optimizer, trained: list[nn.Parameter]) -> tuple[int, int]:
    """Bytes that an optimizer holds after its next step, and needs beside it meanwhile."""
    there = list(optimizer.state.values())
    try:
        return _on_stand_ins(optimizer, there)
    except Exception as error:  # whatever its kernels cannot do without values
        name = "adam-8bit" if "8bit" in type(optimizer).__name__.lower() else ""
        name = name or type(optimizer).__name__.lower()
        if there:
            moments = unique_bytes(there)
        elif name in OPTIMIZERS:
            moments = named_moments(trained, name)
        else:
            raise UnsupportedModel(
                f"what {type(optimizer).__name__} holds is not known before its first step "
                f"({type(error).__name__}: {error}); make a step first, or give optimizer= the "
                "name of one that holds as much"
            ) from error
        return moments, _one_by_one(trained)


def _on_stand_ins(optimizer: torch.optim.Optimizer, there: list[Any]) -> tuple[int, int]:
    mode = FakeTensorMode(allow_non_fake_inputs=True)

    def fake(tensor: torch.Tensor) -> torch.Tensor:
        with mode:
            made = torch.empty_strided(
                tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device
            )
        is_parameter = isinstance(tensor, nn.Parameter)
        return nn.Parameter(made, requires_grad=tensor.requires_grad) if is_parameter else made

    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    memo: dict[int, Any] = {id(t): fake(t) for t in [*parameters, *tensors_of(there)]}
    with mode:
        twin = copy.deepcopy(optimizer, memo)
        for group in twin.param_groups:
            if group.get("foreach", False) is None and not group.get("fused"):
                # torch looks at the class of the parameters, which is another one here.
                group["foreach"] = any(p.device.type == "cuda" for p in group["params"])
            for parameter in group["params"]:
                if parameter.requires_grad:
                    parameter.grad = torch.empty_like(parameter)
        tracker = MemoryTracker()
        with _Ones(), tracker:
            twin.step()
    # As long as parameters are on a GPU, counters on the CPU are nothing that counts.
    device = parameters[0].device
    held = [t for t in tensors_of(list(twin.state.values())) if t.device == device]
    return unique_bytes(held), tracker.peak_bytes - tracker.live_bytes


class _Ones(OperationMode):
    """Every number that is read from a tensor is a one: an optimizer reads its steps so."""

    def _operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return 1.0 if func is torch.ops.aten._local_scalar_dense.default else func(*args, **kwargs)

"""What a live model's training holds from step to step, and what the optimizer's step needs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.modules.module import register_module_forward_pre_hook

from scheduler.common.errors import UnsupportedModel
from scheduler.common.text import first_sentence, shown
from scheduler.memory.errors import Argument
from scheduler.memory.state.optimizers import check_optimizer, known_name, optimizer_of
from scheduler.memory.state.sizes import PRECISIONS
from scheduler.memory.state.state import State
from scheduler.pytorch.model.step import call_model, loss_of, prepared
from scheduler.pytorch.model.wrappers import bare
from scheduler.pytorch.observe.autograd import leaves_above, saving_nothing
from scheduler.pytorch.observe.dispatch import OperationMode, tensors_of
from scheduler.pytorch.observe.tracker import MemoryTracker, storage_bytes, unique_bytes

_PRECISIONS = {8: "fp32", 4: "fp32", 2: "bf16"}


def trained(model: nn.Module, idle: Collection[str] = ()) -> list[nn.Parameter]:
    """Parameters that a backward can give a gradient, but for the `idle` ones, by their names."""
    return [p for name, p in model.named_parameters() if p.requires_grad and name not in idle]


def trained_bytes(model: nn.Module, idle: Collection[str] = ()) -> int:
    """Bytes of all gradients that a backward can make."""
    return sum(map(storage_bytes, trained(model, idle)))


def without_gradient(
    model: nn.Module, inputs: Any, loss_fn: Callable[[Any], Any] | None, *, fake: bool
) -> set[str]:
    """Parameters from which no way leads to the loss, in a forward that saves nothing.

    Not those of a module in a list of which others of its class ran: it may be its turn in the next
    step, as of an expert that no token was routed to.
    """
    with prepared(model, inputs, fake=fake) as (model, inputs):
        called: set[nn.Module] = set()
        ran = register_module_forward_pre_hook(lambda module, args: called.add(module))
        try:
            with saving_nothing():
                loss = loss_of(call_model(model, inputs), loss_fn)
        finally:
            ran.remove()
        reached = {id(leaf) for leaf in leaves_above(loss.grad_fn, None)}
        for several in model.modules():
            if isinstance(several, nn.ModuleList | nn.ModuleDict):
                ready = [*several.children()]
                kinds = {type(each) for each in ready if each in called}
                waiting = (each for each in ready if each not in called and type(each) in kinds)
                reached |= {id(p) for each in waiting for p in each.parameters()}
        named = model.named_parameters()
        return {name for name, p in named if p.requires_grad and id(p) not in reached}


def held_state(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | str | None,
    *,
    sums: bool = False,
    idle: Collection[str] = (),
) -> tuple[State, int]:
    """What is held from step to step, and the bytes that the optimizer's step needs beside it.

    Parameters
    ----------
    model
        Its parameters and buffers are `weights_bytes`.
    optimizer
        What it holds once it has made a step, which it makes here on stand-ins without memory: so
        of any class, and whatever of its state is there already. A name of
        `scheduler.memory.state.optimizers.OPTIMIZERS`: by that arithmetic. None: nothing.
    sums
        Whether gradients stay from one backward to the next, and are a part of it.
    idle
        Names of parameters that no step gives a gradient: an optimizer passes them over.

    Raises
    ------
    UnsupportedModel
        The optimizer is of other parameters, or cannot be run on stand-ins before its first step.
    InvalidRecipe
        No optimizer has this name.
    """
    weights = unique_bytes([list(model.parameters()), list(model.buffers())])
    gradients = trained_bytes(model, idle)
    if optimizer is None:
        moments, update, name = 0, 0, "no optimizer"
    elif isinstance(optimizer, str):
        moments, name = named_moments(model, optimizer, idle), optimizer
        several = any(p.device.type == "cuda" for p in trained(model))  # torch updates all at once
        update = gradients if several else _one_by_one(model, idle)
    else:
        optimizer = getattr(optimizer, "optimizer", optimizer)  # inside accelerate's, Lightning's
        _check_parameters(model, optimizer)
        moments, update = _first_step(optimizer, model, idle)
        name = type(optimizer).__name__
    return State(weights, gradients if sums else 0, 0, moments, 0, name), update


def _one_by_one(model: nn.Module, idle: Collection[str]) -> int:
    """What an optimizer needs that updates one parameter after the other: twice the largest."""
    return 2 * max(map(storage_bytes, trained(model, idle)), default=0)


def named_moments(model: nn.Module, optimizer: str, idle: Collection[str] = ()) -> int:
    """Bytes of the statistics that an optimizer of this name keeps of what a model trains."""
    known = optimizer_of(check_optimizer(Argument("optimizer"), optimizer))
    plain = {id(p) for module in _tables(model, known.plain) for p in module.parameters()}
    total = 0
    for p in trained(model, idle):
        sizes = PRECISIONS[_PRECISIONS.get(p.element_size(), "fp32")]
        if id(p) in plain:
            total += p.numel() * known.of_plain(sizes)
        else:
            total += known.bytes_of(tuple(p.shape), sizes)
    return total


def _tables(model: nn.Module, kinds: Collection[str]) -> Iterator[nn.Module]:
    """Embeddings, and the head where a model says which module that is."""
    if "embedding" in kinds:
        yield from (module for module in model.modules() if isinstance(module, nn.Embedding))
    head = getattr(bare(model), "get_output_embeddings", lambda: None)()
    if "head" in kinds and isinstance(head, nn.Module):
        yield head


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


def _first_step(
    optimizer: torch.optim.Optimizer, model: nn.Module, idle: Collection[str]
) -> tuple[int, int]:
    """Bytes that an optimizer holds after its next step, and needs beside it meanwhile."""
    name, there = _called(optimizer), _state(optimizer)
    if name is not None and name.startswith("paged"):
        # Pages are not torch's: a step on stand-ins would make them, and they are not counted.
        return named_moments(model, name, idle), _one_by_one(model, idle)
    passed_over = [p for key, p in model.named_parameters() if key in idle]
    try:
        return _on_stand_ins(optimizer, there, passed_over)
    except Exception as error:  # whatever its kernels cannot do without values
        if there:
            moments = unique_bytes(there)
        elif name is not None:
            moments = named_moments(model, name, idle)
        else:
            raise UnsupportedModel(
                f"what {type(optimizer).__name__} holds is not known before its first step "
                f"({first_sentence(error)}); make a step first, or give optimizer= the "
                "name of one that holds as much"
            ) from error
        return moments, _one_by_one(model, idle)


def _called(optimizer: torch.optim.Optimizer) -> str | None:
    """The name of an optimizer's arithmetic; bitsandbytes has bits and pages as arguments too."""
    name = type(optimizer).__name__
    if getattr(optimizer, "is_paged", False) and "paged" not in name.lower():
        name = f"paged_{name}"
    if getattr(getattr(optimizer, "args", None), "optim_bits", 0) == 8 and "8bit" not in name:
        name = f"{name}_8bit"
    return known_name(name)


def _on_stand_ins(
    optimizer: torch.optim.Optimizer, there: list[torch.Tensor], idle: list[nn.Parameter]
) -> tuple[int, int]:
    mode = FakeTensorMode(allow_non_fake_inputs=True)

    def fake(tensor: torch.Tensor) -> torch.Tensor:
        with mode:
            made = torch.empty_strided(
                tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device
            )
        is_parameter = isinstance(tensor, nn.Parameter)
        return nn.Parameter(made, requires_grad=tensor.requires_grad) if is_parameter else made

    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    memo: dict[int, Any] = {id(t): fake(t) for t in [*parameters, *there]}
    left_out = {id(memo.get(id(p))) for p in idle}
    with mode:
        twin = copy.deepcopy(optimizer, memo)
    # Optimizers copy their state and groups alone, and not what a class of its own adds.
    more = {name: value for name, value in vars(optimizer).items() if name not in vars(twin)}
    vars(twin).update(copy.deepcopy(more, memo))
    with mode:
        for group in twin.param_groups:
            if group.get("foreach", False) is None and not group.get("fused"):
                # torch looks at the class of the parameters, which is another one here.
                group["foreach"] = any(p.device.type == "cuda" for p in group["params"])
            for parameter in group["params"]:
                if parameter.requires_grad and id(parameter) not in left_out:
                    parameter.grad = torch.empty_like(parameter)
        tracker = MemoryTracker()
        with _Ones(), tracker:
            twin.step()
    # As long as parameters are on a GPU, counters on the CPU are nothing that counts.
    device = parameters[0].device
    held = [t for t in _state(twin) if t.device == device]
    return unique_bytes(held), tracker.peak_bytes - tracker.live_bytes


def _state(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Tensors in an optimizer's state, those in objects that hold a projection among them."""
    values = [value for each in optimizer.state.values() for value in each.values()]
    return tensors_of(
        [v if isinstance(v, torch.Tensor) else getattr(v, "__dict__", v) for v in values]
    )


class _Ones(OperationMode):
    """Every number that is read from a tensor is a one: an optimizer reads its steps so."""

    def _operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return 1.0 if func is torch.ops.aten._local_scalar_dense.default else func(*args, **kwargs)

"""Run by two processes (see `test_torch_integrations`): plans under DDP and FSDP2 over gloo.

Prints a line for each check that passed in the first process; the second must pass them too.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from scheduler import Plan, UnsupportedModel
from scheduler.pytorch import apply
from tests.models import mean_square, mlp, noise
from tests.test_torch_refusals import Stack, blocks_of, segments

try:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
except ImportError:  # torch 2.4 and 2.5
    import torch.distributed._composable.fsdp as earlier

    MixedPrecisionPolicy, fully_shard = earlier.MixedPrecisionPolicy, earlier.fully_shard  # type: ignore

SINGLE = segments(blocks_of(4), 1, 1, 1)
NESTED = segments(blocks_of(4), 3)
X = noise(32, 16)
Wrap = Callable[[nn.Module, Plan | None], nn.Module]


class Partly(Stack):
    """A model with a block that takes no part in its output."""

    def __init__(self) -> None:
        super().__init__(4)
        self.unused = mlp()


def ddp(after: bool, *, partly: bool = False, **settings: bool) -> Wrap:
    """Wrap a copy, and apply a plan to it after that or before."""

    def wrap(model: nn.Module, plan: Plan | None) -> nn.Module:
        twin = Partly() if partly else copy.deepcopy(model)
        if plan is not None and not after:
            apply(plan, twin)
        wrapped = DistributedDataParallel(twin, **settings)  # type: ignore[arg-type]
        if plan is not None and after:
            apply(plan, wrapped)
        return wrapped

    return wrap


def fsdp(after: bool, mixed: bool, reshard: bool = True) -> Wrap:
    """Shard a copy block by block."""

    def wrap(model: nn.Module, plan: Plan | None) -> nn.Module:
        twin: Any = copy.deepcopy(model)
        names = list(twin.state_dict())
        if plan is not None and not after:
            apply(plan, twin)
        mesh = init_device_mesh("cpu", (2,))
        policy = MixedPrecisionPolicy(torch.bfloat16) if mixed else MixedPrecisionPolicy()
        settings: dict[str, Any] = {"mesh": mesh, "mp_policy": policy}
        for block in twin.blocks:
            fully_shard(block, **settings, reshard_after_forward=reshard)
        fully_shard(twin, **settings)
        if plan is not None and after:
            apply(plan, twin)
        assert list(twin.state_dict()) == names
        return twin  # type: ignore[no-any-return]

    return wrap


def gradients(wrap: Wrap, plan: Plan | None) -> dict[str, torch.Tensor]:
    """Of three steps, in each process on other rows; of each parameter the local part."""
    model = wrap(Stack(4), plan)
    found = {}
    torch.manual_seed(dist.get_rank())
    for step in range(3):
        model.zero_grad()
        mean_square(model(X + dist.get_rank() + step)).backward()
        for name, parameter in model.named_parameters():
            local = parameter.grad
            if local is not None:
                local = local.to_local() if hasattr(local, "to_local") else local
                found[f"{step} {name}"] = local.clone()
    return found


def check(name: str, wrap: Wrap, plan: Plan = SINGLE) -> None:
    """Compare with the run without a plan, bit by bit."""
    found, expected = gradients(wrap, plan), gradients(wrap, None)
    assert found.keys() == expected.keys(), name
    assert len(found) >= 3, name
    different = [key for key in found if not torch.equal(found[key], expected[key])]
    assert not different, f"{name}: {different}"
    say(name)


def refused(name: str, wrap: Wrap, words: str) -> None:
    """Nested segments of sharded blocks."""
    with pytest.raises(UnsupportedModel, match=words):
        gradients(wrap, NESTED)
    say(name)


def say(name: str) -> None:
    """Report from one process."""
    dist.barrier()
    if dist.get_rank() == 0:
        print("passed:", name, flush=True)


def main() -> None:
    """Check one after the other."""
    dist.init_process_group("gloo")
    for after in (False, True):
        when = "after" if after else "before"
        check(f"ddp {when}", ddp(after), NESTED)
        check(f"ddp {when} static_graph", ddp(after, static_graph=True), NESTED)
        unused = ddp(after, partly=True, find_unused_parameters=True)
        check(f"ddp {when} find_unused_parameters", unused, NESTED)
        check(f"fsdp {when}", fsdp(after, mixed=False))
        check(f"fsdp {when} mixed", fsdp(after, mixed=True))
    check("fsdp kept", fsdp(True, mixed=True, reshard=False))
    refused("fsdp nested after", fsdp(True, mixed=False), "is a unit of fully_shard and shares")
    refused("fsdp nested before", fsdp(False, mixed=False), "or from fully_shard")
    dist.barrier()  # one that leaves early would end the other
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""Run by two processes (see `test_integrations`): plans under DDP and FSDP2 over gloo.

Prints a line for each check that passed in the first process; the second must pass them too.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from scheduler import Plan, UnsupportedModel
from scheduler.pytorch import apply
from scheduler.pytorch.callbacks import checkpoint_prepared
from scheduler.pytorch.checkpointing.followed import FollowedModel
from solvers.schedule import Checkpoint, Items, Keep
from tests.pytorch.checkpointing.test_refusals import Stack, blocks_of, segments
from tests.pytorch.models import mean_square, mlp, noise

try:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
except ImportError:  # torch 2.4 and 2.5
    import torch.distributed._composable.fsdp as earlier

    MixedPrecisionPolicy, fully_shard = earlier.MixedPrecisionPolicy, earlier.fully_shard  # type: ignore

SINGLE = segments(blocks_of(4), 1, 1, 1)
NESTED = segments(blocks_of(4), 3)
DEEP = replace(
    NESTED,
    schedule=Items(
        (
            Checkpoint(
                0, 3, (Checkpoint(0, 2, (Checkpoint(0, 1, (Keep(0), Keep(1))), Keep(2))), Keep(3))
            ),
        )
    ),
)
TILED = replace(
    NESTED,
    schedule=Items(
        (
            Checkpoint(0, 1, (Keep(0, "tiles-4"), Keep(1, "tiles-4"))),
            Keep(2, "tiles-4"),
            Checkpoint(3, 3, (Keep(3, "tiles-4"),)),
        )
    ),
    tiles=dict.fromkeys(blocks_of(4), 4),
    tiled=dict.fromkeys(blocks_of(4), ("0",)),
)
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


class Stages(nn.Module):
    """Four blocks in stages of two."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stages = nn.Sequential(*(nn.Sequential(mlp(), mlp()) for _ in range(2)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.stages(x)  # type: ignore[no-any-return]


def staged(model: nn.Module, plan: Plan | None) -> nn.Module:
    """Shard a model stage by stage, and apply a plan to it."""
    twin: Any = Stages()
    for stage in twin.stages:
        fully_shard(stage, mesh=init_device_mesh("cpu", (2,)))
    fully_shard(twin, mesh=init_device_mesh("cpu", (2,)))
    if plan is not None:
        apply(plan, twin)
    return twin  # type: ignore[no-any-return]


def fsdp(after: bool, mixed: bool, reshard: bool = True, grouped: bool = False) -> Wrap:
    """Shard a copy block by block, or two blocks by two."""

    def wrap(model: nn.Module, plan: Plan | None) -> nn.Module:
        twin: Any = copy.deepcopy(model)
        names = list(twin.state_dict())
        if plan is not None and not after:
            apply(plan, twin)
        mesh = init_device_mesh("cpu", (2,))
        policy = MixedPrecisionPolicy(torch.bfloat16) if mixed else MixedPrecisionPolicy()
        settings: dict[str, Any] = {"mesh": mesh, "mp_policy": policy}
        blocks = list(twin.blocks)
        for unit in [blocks[:2], blocks[2:]] if grouped else blocks:
            fully_shard(unit, **settings, reshard_after_forward=reshard)
        fully_shard(twin, **settings)
        if plan is not None and after:
            apply(plan, twin)
        assert list(twin.state_dict()) == names
        return twin  # type: ignore[no-any-return]

    return wrap


def followed(model: nn.Module, plan: Plan | None) -> nn.Module:
    """Have a plan made for each batch that is larger, in one process in one step and not the other.

    In the midst of a forward of DistributedDataParallel, with steps that are tried out.
    """
    wrapped = DistributedDataParallel(copy.deepcopy(model))
    if plan is not None:
        asked: dict[str, Any] = {"loss_fn": mean_square, "options": False, "margin": 0}
        FOLLOWED[:] = [checkpoint_prepared(wrapped, None, budget="134KB", **asked)]
    return wrapped


FOLLOWED: list[FollowedModel[Any]] = []


def even() -> nn.Sequential:
    """A block with an MLP that draws nothing."""
    return nn.Sequential(mlp(dropout=0.0), nn.Tanh())


def gradients(
    wrap: Wrap, plan: Plan | None, block: Callable[[], nn.Module] = mlp
) -> dict[str, torch.Tensor]:
    """Of three steps, in each process on other rows; of each parameter the local part."""
    model = wrap(Stack(4, block), plan)
    found = {}
    torch.manual_seed(dist.get_rank())
    for step in range(3):
        model.zero_grad()
        rows = 16 + 8 * ((step + dist.get_rank()) % 3)
        mean_square(model(X[:rows] + dist.get_rank() + step)).backward()
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


def check_tiles(name: str, wrap: Wrap) -> None:
    """Compare a run with tiles inside blocks with one without, to rounding."""
    found, expected = gradients(wrap, TILED, even), gradients(wrap, None, even)
    assert found.keys() == expected.keys(), name
    for key, whole in expected.items():
        torch.testing.assert_close(found[key], whole, rtol=1e-5, atol=1e-6 * float(whole.norm()))
    say(f"{name} tiles")


SEEN: list[list[bool]] = []
"""Not in the hook: what a hook inside a block has is as after one forward, too."""


def scattered() -> None:
    """What a recomputation drops again, it lets go of: the parameters, too."""
    model: Any = fsdp(True, mixed=False)(Stack(4), DEEP)
    model.blocks[3][0].register_forward_hook(
        lambda *_: SEEN.append([hasattr(block[0].weight, "to_local") for block in model.blocks])
    )
    mean_square(model(X)).backward()
    assert SEEN == [[True, True, True, False]] * 2
    say("fsdp scattered")


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
        check_tiles(f"ddp {when}", ddp(after))
        check_tiles(f"fsdp {when}", fsdp(after, mixed=False))
        check(f"fsdp {when} mixed", fsdp(after, mixed=True))
        check(f"fsdp {when} nested", fsdp(after, mixed=False), NESTED)
        check(f"fsdp {when} nested mixed", fsdp(after, mixed=True), NESTED)
        check(f"fsdp {when} deep", fsdp(after, mixed=False), DEEP)
    check("ddp followed", followed)
    assert FOLLOWED[0].handle is not None
    assert FOLLOWED[0].handle.plan.overhead > 0
    check("fsdp kept", fsdp(True, mixed=True, reshard=False))
    check("fsdp kept nested", fsdp(True, mixed=True, reshard=False), DEEP)
    scattered()
    check("fsdp grouped", fsdp(True, mixed=False, grouped=True), DEEP)
    names = [f"stages.{i}.{k}" for i in range(2) for k in range(2)]
    check("fsdp stages", staged, segments(names, 2, 2))
    with pytest.raises(UnsupportedModel, match=r"'stages.1.0' is in another unit of fully_shard"):
        staged(Stages(), segments(names, 1, 2, 1))
    say("fsdp stages refused")
    dist.barrier()  # one that leaves early would end the other
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

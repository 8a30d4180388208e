"""FSDP2: each block a unit of fully_shard, bfloat16 parameters, and a plan applied after it.

Run: torchrun --standalone --nproc-per-node 2 examples/fsdp2.py
"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import LlamaConfig, LlamaForCausalLM

from scheduler import Plan, frontier, solve
from scheduler.pytorch import apply, profile

CONFIG = LlamaConfig(hidden_size=64, intermediate_size=176, num_hidden_layers=6, vocab_size=256)


def made() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(CONFIG).train()


def gradients(plan: Plan | None, batch: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    model = made()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.model.layers:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    if plan is not None:
        apply(plan, model)
    model(**batch).loss.backward()
    return [parameter.grad.to_local() for parameter in model.parameters()]  # type: ignore


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(dist.get_rank())
    tokens = torch.randint(0, 256, (4, 64), generator=generator)
    batch = {"input_ids": tokens, "labels": tokens}
    # A unit computes in bfloat16, gathered for its forward: profile a bfloat16 model. Blocks in one
    # segment would not be gathered, so that such a plan is refused: every-layer has none.
    costs = profile(made().bfloat16(), batch, fake=True)
    plan = solve(costs, budget=frontier(costs)[-1][0], method="every-layer")
    pairs = zip(gradients(plan, batch), gradients(None, batch), strict=True)
    same = all(torch.equal(found, expected) for found, expected in pairs)
    print(f"rank {dist.get_rank()}: gradients equal those without the plan: {same}\n")
    dist.barrier()  # one that leaves early would end the other
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""DistributedDataParallel: the plan is applied after wrapping (before works as well).

Run: torchrun --standalone --nproc-per-node 2 examples/ddp.py
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from transformers import GPT2Config, GPT2LMHeadModel

from scheduler import Plan, frontier, solve
from scheduler.pytorch import apply, profile

CONFIG = GPT2Config(n_layer=6, n_embd=64, n_head=4, vocab_size=256, bos_token_id=0, eos_token_id=0)


def made() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    return GPT2LMHeadModel(CONFIG).train()


def gradients(plan: Plan | None, batch: dict[str, torch.Tensor], how: str) -> list[torch.Tensor]:
    """Of two steps, the second on buckets that DDP has laid out anew."""
    model = DistributedDataParallel(made(), **{how: True})  # type: ignore[arg-type]
    if plan is not None:
        apply(plan, model)
    found = []
    torch.manual_seed(dist.get_rank())
    for _ in range(2):
        model.zero_grad()
        model(**batch).loss.backward()
        found += [p.grad.clone() for p in model.parameters() if p.grad is not None]
    return found


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(dist.get_rank())
    tokens = torch.randint(0, 256, (4, 64), generator=generator)
    batch = {"input_ids": tokens, "labels": tokens}
    # Bytes are the same everywhere, times are not: solve once, or estimate times (fake=True).
    costs = profile(made(), batch, fake=True)
    plan = solve(costs, budget=frontier(costs)[-1][0] // 2)
    for how in ("static_graph", "find_unused_parameters"):
        pairs = zip(gradients(plan, batch, how), gradients(None, batch, how), strict=True)
        same = all(torch.equal(found, expected) for found, expected in pairs)
        print(f"rank {dist.get_rank()}, {how}: gradients equal those without the plan: {same}\n")
    dist.barrier()  # one that leaves early would end the other
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

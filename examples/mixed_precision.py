"""Autocast to bfloat16, and to float16 with a GradScaler.

Run: python examples/mixed_precision.py
"""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from scheduler import Plan, frontier, solve
from scheduler.pytorch import apply, profile, verify

CONFIG = GPT2Config(n_layer=6, n_embd=64, n_head=4, vocab_size=256, bos_token_id=0, eos_token_id=0)
TOKENS = torch.randint(0, 256, (4, 64), generator=torch.Generator().manual_seed(0))
BATCH = {"input_ids": TOKENS, "labels": TOKENS}


def train(plan: Plan | None, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    model = GPT2LMHeadModel(CONFIG).train()
    if plan is not None:
        apply(plan, model)
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cpu", enabled=dtype == torch.float16)
    for _ in range(3):
        with torch.autocast("cpu", dtype):
            loss = model(**BATCH).loss
        scaler.scale(loss).backward()  # outside autocast, as torch recommends
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return model.state_dict()


def main() -> None:
    model = GPT2LMHeadModel(CONFIG).train()
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype):  # profile and verify as the training will run
            costs = profile(model, BATCH)
            plan = solve(costs, budget=frontier(costs)[-1][0] // 2)
            print(verify(plan, model, BATCH))
        found, expected = train(plan, dtype), train(None, dtype)
        same = all(torch.equal(found[name], expected[name]) for name in expected)
        print(f"weights after three steps in {dtype} equal those without the plan: {same}")


if __name__ == "__main__":
    main()

"""torch.compile, block by block, inside a plan's checkpoints.

Run: python examples/compile_blocks.py [inductor]; without a C++ compiler leave "inductor" away
"""

import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from scheduler import frontier, solve
from scheduler.pytorch import profile, verify

CONFIG = GPT2Config(n_layer=4, n_embd=64, n_head=4, vocab_size=256, bos_token_id=0, eos_token_id=0)


def main() -> None:
    backend = "inductor" if "inductor" in sys.argv[1:] else "aot_eager"
    torch.manual_seed(0)
    model = GPT2LMHeadModel(CONFIG).train()
    tokens = torch.randint(0, 256, (4, 64))
    batch = {"input_ids": tokens, "labels": tokens}

    # The forward, not the block: block.compile() would put the checkpoint inside the graph.
    for block in model.transformer.h:
        block.forward = torch.compile(block.forward, backend=backend)
    costs = profile(model, batch)  # of the compiled blocks: what they save is the compiler's choice
    plan = solve(costs, budget=frontier(costs)[-1][0] // 2)
    found = verify(plan, model, batch)
    print(found)
    print(f"gradients equal those of the compiled model without the plan: {found.ok}")


if __name__ == "__main__":
    main()

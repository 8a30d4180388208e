"""A plain training loop: profile, solve, verify, train.

Run: python examples/plain_loop.py
"""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from scheduler import frontier, solve
from scheduler.pytorch import apply, profile, verify

CONFIG = LlamaConfig(
    hidden_size=64,
    intermediate_size=176,
    num_hidden_layers=8,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=256,
    max_position_embeddings=128,
)


def train(model: LlamaForCausalLM, batch: dict[str, torch.Tensor]) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(3):
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def main() -> None:
    torch.manual_seed(0)
    model = LlamaForCausalLM(CONFIG).train()
    tokens = torch.randint(0, 256, (4, 128))
    batch = {"input_ids": tokens, "labels": tokens}
    start = {name: value.clone() for name, value in model.state_dict().items()}

    costs = profile(model, batch)
    keep_all = frontier(costs)[-1][0]
    plan = solve(costs, budget=keep_all // 2)  # on a GPU: budget_gb=80, reserved=...
    found = verify(plan, model, batch)  # a step with the plan against one without
    print(found)
    plan = found.calibrated  # carries what was measured, also into its file

    train(model, batch)
    without = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(start)
    with apply(plan, model) as handle:
        train(model, batch)
        print(handle.report())
    same = all(torch.equal(value, without[name]) for name, value in model.state_dict().items())
    print(f"weights after three steps equal those without the plan: {same}")


if __name__ == "__main__":
    main()

"""transformers.Trainer with a callback that applies a plan: no subclass, gradients accumulated.

Run: python examples/trainer_callback.py
"""

import tempfile
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from scheduler import Plan, frontier, solve
from scheduler.pytorch import Handle, apply, profile

CONFIG = GPT2Config(n_layer=6, n_embd=64, n_head=4, vocab_size=256, bos_token_id=0, eos_token_id=0)
TOKENS = torch.randint(0, 256, (16, 64), generator=torch.Generator().manual_seed(0))
ROWS = [{"input_ids": row, "labels": row} for row in TOKENS]


class ApplyPlan(TrainerCallback):
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.handle: Handle | None = None

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self.handle = apply(self.plan, kwargs["model"])  # also switches use_cache off

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        assert self.handle is not None
        print(self.handle.report())
        self.handle.remove()  # use_cache is on again


def train(plan: Plan | None) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    model = GPT2LMHeadModel(CONFIG)
    with tempfile.TemporaryDirectory() as folder:
        batches = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
        quiet = {"report_to": "none", "save_strategy": "no", "disable_tqdm": True}
        settings: dict[str, Any] = {"max_steps": 2, "use_cpu": True, **batches, **quiet}
        extra: Any = {"train_dataset": ROWS, "callbacks": [ApplyPlan(plan)] if plan else []}
        Trainer(model, TrainingArguments(folder, **settings), **extra).train()
    return model.state_dict()


def main() -> None:
    model = GPT2LMHeadModel(CONFIG).train()
    costs = profile(model, {"input_ids": TOKENS[:4], "labels": TOKENS[:4]})
    # The second micro-batch finds the gradients of the first: they are not in the costs.
    gradients = sum(4 * parameter.numel() for parameter in model.parameters())
    budget = frontier(costs)[-1][0] // 2 + gradients
    plan = solve(costs, budget=budget, reserved=gradients)
    found, expected = train(plan), train(None)
    same = all(torch.equal(found[name], expected[name]) for name in expected)
    print(f"weights after two accumulated steps equal those without the plan: {same}")


if __name__ == "__main__":
    main()

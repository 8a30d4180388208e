"""PyTorch Lightning with a callback that applies a plan.

Run: python examples/lightning_callback.py
"""

from typing import Any

import lightning
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from scheduler import Plan, frontier, solve
from scheduler.pytorch import apply, profile

CONFIG = GPT2Config(n_layer=6, n_embd=64, n_head=4, vocab_size=256, bos_token_id=0, eos_token_id=0)
TOKENS = torch.randint(0, 256, (8, 64), generator=torch.Generator().manual_seed(0))


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = GPT2LMHeadModel(CONFIG).train()

    def training_step(self, tokens: torch.Tensor, _: int) -> torch.Tensor:
        return self.model(input_ids=tokens, labels=tokens).loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.model.parameters())


class ApplyPlan(lightning.Callback):
    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def on_train_start(self, _: Any, module: Any) -> None:
        print(apply(self.plan, module.model).report())


def train(*callbacks: lightning.Callback) -> dict[str, torch.Tensor]:
    settings: dict[str, Any] = {"accelerator": "cpu", "logger": False, "max_epochs": 1}
    settings |= {"enable_checkpointing": False, "enable_progress_bar": False}
    module = Module()
    trainer = lightning.Trainer(precision="bf16-mixed", callbacks=list(callbacks), **settings)
    trainer.fit(module, torch.utils.data.DataLoader(TOKENS, batch_size=4))  # type: ignore[arg-type]
    return module.model.state_dict()


def main() -> None:
    with torch.autocast("cpu", torch.bfloat16):  # as precision="bf16-mixed" runs it
        costs = profile(Module().model, {"input_ids": TOKENS[:4], "labels": TOKENS[:4]})
    plan = solve(costs, budget=frontier(costs)[-1][0] // 2)
    found, expected = train(ApplyPlan(plan)), train()
    same = all(torch.equal(found[name], expected[name]) for name in expected)
    print(f"weights after an epoch equal those without the plan: {same}")


if __name__ == "__main__":
    main()

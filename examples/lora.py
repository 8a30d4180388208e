"""PEFT LoRA on a frozen base.

Run: python examples/lora.py
"""

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

from scheduler import frontier, solve
from scheduler.pytorch import apply, profile, verify

CONFIG = LlamaConfig(
    hidden_size=64,
    intermediate_size=176,
    num_hidden_layers=8,
    num_attention_heads=4,
    num_key_value_heads=4,
    vocab_size=256,
    max_position_embeddings=64,
)


def main() -> None:
    torch.manual_seed(0)
    base = LlamaForCausalLM(CONFIG)
    adapters = LoraConfig(r=4, lora_dropout=0.1, target_modules=["q_proj", "v_proj", "down_proj"])
    model = get_peft_model(base, adapters).train()  # no enable_input_require_grads() is needed
    tokens = torch.randint(0, 256, (4, 64))
    batch = {"input_ids": tokens, "labels": tokens}

    costs = profile(model, batch)
    plan = solve(costs, budget=frontier(costs)[-1][0] // 2)
    found = verify(plan, model, batch)
    print(found)
    with apply(plan, model):
        model(**batch).loss.backward()
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    reached = [name for name, parameter in model.named_parameters() if parameter.grad is not None]
    print(f"{len(reached)} of {len(trained)} adapters have a gradient")
    print(f"gradients equal those without the plan: {found.ok and reached == trained}")


if __name__ == "__main__":
    main()

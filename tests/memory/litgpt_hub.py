"""Figures of LitGPT's ``config_hub/finetune``, with adapters beside weights in bf16 or in NF4.

Read in public sources of mid-2024, facts only: the table in ``config_hub/finetune/README.md``, the
configs beside it (rank 32 on queries and values, dropout 0.05, bf16-true, at most 512 tokens), and
``litgpt/finetune/lora.py``, which prints ``torch.cuda.max_memory_allocated`` of the whole run.

What made QLoRA 25 to 28% larger there than this package says of transformers with PEFT:

- bitsandbytes before 0.43.2 (July 2024; its pull request 1270) kept the input of every product with
  4-bit weights, frozen ones too: of a Llama block T·(2d + 2d + 2f) that nothing else keeps.
- It kept them as attributes and not by ``save_for_backward``, so that a backward does not let go of
  them. The script holds the logits of one step, and with them its graph, until those of the next
  are made: at the end of a forward both steps' inputs are there, of the old one the attention's
  output too, 2·T·d, which the new one has anyway.
- Fabric quantises the head as well, and its weight, dequantised to fp16 and cast to bf16, is there
  twice while logits are made: 4·V·d.

From 0.43.2 on nothing of this stays but the last.
"""

from __future__ import annotations

from scheduler.memory import Shape, training_state
from tests.memory.litgpt import adapter_parameters, litgpt_block, litgpt_lora_bytes

__all__ = ["litgpt_hub_bytes"]

_RANK = 32


def litgpt_hub_bytes(shape: Shape, batch: int, sequence: int, *, quantized: bool) -> int:
    """Most bytes of the script on one GPU, in any step but the first.

    In bf16: `litgpt_lora_bytes`, with adapters' gradients and moments in bf16, 6·P_a. Quantised:
    moments are paged, and the highest moment is the last product of a forward, where the head makes
    its last logits, 2·T·V, and those of the step before are there in fp32, 4·T·V.
    """
    adapters = shape.layers * adapter_parameters(shape, _RANK)
    if not quantized:
        return litgpt_lora_bytes(shape, batch, sequence, _RANK) + 6 * adapters
    tokens, head = batch * sequence, shape.vocabulary * shape.width
    linears = shape.parameters - shape.layers * 2 * shape.norm_parameters - shape.norm_parameters
    linears -= shape.embedding_parameters
    state = training_state(
        shape.parameters,
        precision="bf16",
        optimizer="sgd",
        base="nf4",
        quantized_parameters=linears,
        lora_parameters=adapters,
    )
    sizes = shape, batch, sequence, _RANK
    kept = litgpt_block(*sizes, first=True).total_bytes
    kept += (shape.layers - 1) * litgpt_block(*sizes).total_bytes
    last_norm = tokens * (4 * shape.width + 4)
    inputs = shape.layers * tokens * (4 * shape.width + 2 * shape.mlp_width)
    before = inputs + shape.layers * tokens * 2 * shape.query_width
    logits = (2 + 4) * tokens * shape.vocabulary
    return state.total_bytes + kept + last_norm + inputs + before + logits + 4 * head

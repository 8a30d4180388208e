"""What this package says of each row of memory_published.csv, in bytes (or as a ratio).

Each row is a small calculation of its own, made of the package's functions: papers, tools and
people count different things. A row is either this package's count, or a formula that its source
gives or that has been given for it, as `tests.memory.published` documents it; then the full
count is beside it where there is one. Nothing is fitted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from memory_figures import (
    BERT_PARAMETERS,
    adafactor_saves,
    autocast_weights,
    bert,
    context_parallel,
    deepspeed,
    double_quantisation,
    five_times,
    foreach,
    gpt2_xl,
    lomo,
    lora_at_start,
    qlora,
    torchtitan_difference,
    torchtitan_long,
    torchtune_block,
    torchtune_chunked,
    torchtune_full,
    torchtune_in_backward,
    torchtune_in_backward_sum,
    torchtune_lora,
    torchtune_lora_sum,
    zero,
)
from memory_shapes import (
    BERT,
    CODE_34B,
    LLAMA_3B,
    LLAMA_7B,
    LLAMA_8B,
    LLAMA_13B,
    MISTRAL_7B,
    PHI,
    STABLELM_3B,
)

from scheduler.memory import Shape, training_state
from scheduler.memory.activations import loss_bytes
from tests.memory.litgpt import litgpt_lora_bytes
from tests.memory.litgpt_hub import litgpt_hub_bytes
from tests.memory.published import (
    deepspeed_zero2_doc_bytes,
    first_block_backward_bytes,
    galore_bytes,
    zero_activations_bytes,
)

__all__ = ["ROWS", "Row"]


@dataclass(frozen=True)
class Row:
    """How a figure is computed.

    Attributes
    ----------
    calculate
        Ours, in bytes or as a ratio.
    formula
        A documented formula of the figure's source or table; else this package's own count.
    full
        Beside a formula: what this package counts, where it counts such a thing at all.
    note
        What one has to know of it.
    """

    calculate: Callable[[], float]
    formula: bool = False
    full: Callable[[], float] | None = None
    note: str = ""


_LITGPT_BLOCKS = "LitGPT's own blocks, tensor by tensor"
_LITGPT = f"{_LITGPT_BLOCKS}; RMS norm in fp32 is an inference"
_TARGETS = "rank 8 on all linear layers but k, as in torchtune's config: an inference"
_TITAN = "persistent state alone; reserved memory has more that depends on the GPUs"
_MEGATRON = "the paper's table 2; no tensor-parallel blocks in this package"

_HUB = "LitGPT's own blocks; heads that share keys and values have copies for all"


def _hub_quantised(shape: Shape) -> Row:
    return Row(
        lambda: litgpt_hub_bytes(shape, 2, 512, quantized=True),
        formula=True,
        full=lambda: qlora(shape),
        note="bitsandbytes kept the inputs of frozen layers, over two steps, up to its 0.43.2",
    )


ROWS = {
    1: Row(lambda: zero(0)),
    2: Row(lambda: zero(1)),
    3: Row(lambda: zero(2)),
    4: Row(lambda: zero(3)),
    5: Row(lambda: training_state(1.5e9).total_bytes),
    6: Row(
        lambda: zero_activations_bytes(48, 1600, 32, 1024),
        formula=True,
        full=gpt2_xl,
        note="the paper's rule of 12hBSL elements: fewer than any layer keeps",
    ),
    7: Row(gpt2_xl, note="saved tensors, which row 6's figure does not count"),
    8: Row(lambda: training_state(2851e6, zero=2, gpus=8).weights_bytes),
    9: Row(
        lambda: deepspeed_zero2_doc_bytes(2851e6, 8),
        formula=True,
        full=lambda: training_state(2851e6, zero=2, gpus=8).total_bytes,
        note="the documentation's; DeepSpeed's code has 2P + 18P/N since: 11.28 GiB",
    ),
    10: Row(lambda: deepspeed(2851e6, 32e6, 8)),
    11: Row(lambda: deepspeed(2851e6, 32e6, 8, offload=True)),
    12: Row(lambda: deepspeed(737.67e6, 32.9e6, 4)),
    13: Row(lambda: deepspeed(6805e6, 131e6, 4)),
    14: Row(lambda: training_state(108_310_272, precision="fp32").weights_bytes),
    15: Row(lambda: training_state(108_310_272, precision="fp32").total_bytes),
    16: Row(
        lambda: training_state(108_310_272, precision="fp16-mixed").total_bytes,
        note="the tool prints the largest of its parts, not their sum",
    ),
    17: Row(lambda: training_state(BERT_PARAMETERS, precision="fp32").weights_bytes),
    18: Row(lambda: bert(4)),
    19: Row(lambda: bert(1)),
    20: Row(lambda: bert(1, checkpointed=True)),
    21: Row(
        lambda: adafactor_saves(0),
        formula=True,
        full=lambda: adafactor_saves(BERT.factored_statistics),
        note="8P; the full count leaves Adafactor its rows and columns",
    ),
    22: Row(lomo, note="8Td of a layer are taken from the file and not derived"),
    23: Row(lambda: 4 * 8192 * (LLAMA_7B.layers * LLAMA_7B.kv_width + LLAMA_7B.vocabulary)),
    24: Row(lambda: 4 * 8192 * LLAMA_7B.layers * LLAMA_7B.kv_width),
    25: Row(lambda: litgpt_lora_bytes(LLAMA_7B, 1, 1304), note=_LITGPT),
    26: Row(lambda: litgpt_lora_bytes(LLAMA_7B, 2, 1304), note=_LITGPT),
    27: Row(lambda: litgpt_lora_bytes(LLAMA_13B, 1, 1304), note=_LITGPT),
    28: Row(lambda: litgpt_lora_bytes(STABLELM_3B, 1, 1034), note=_LITGPT_BLOCKS),
    29: Row(lambda: litgpt_lora_bytes(STABLELM_3B, 2, 1034), note=_LITGPT_BLOCKS),
    30: Row(lambda: litgpt_lora_bytes(STABLELM_3B, 4, 1034), note=_LITGPT_BLOCKS),
    31: Row(lambda: litgpt_lora_bytes(PHI, 1, 1044, shared_norm=True), note=_LITGPT_BLOCKS),
    32: Row(lambda: litgpt_lora_bytes(PHI, 2, 1044, shared_norm=True), note=_LITGPT_BLOCKS),
    33: Row(lambda: litgpt_lora_bytes(PHI, 4, 1044, shared_norm=True), note=_LITGPT_BLOCKS),
    34: Row(lambda: 2 * LLAMA_7B.parameters),
    35: Row(lambda: 2 * LLAMA_13B.parameters),
    36: Row(lambda: double_quantisation(LLAMA_7B)),
    37: Row(lambda: double_quantisation(LLAMA_13B)),
    38: Row(lambda: double_quantisation(CODE_34B)),
    39: Row(lambda: double_quantisation(LLAMA_13B)),
    40: Row(lambda: autocast_weights(STABLELM_3B)),
    41: Row(lambda: autocast_weights(LLAMA_7B)),
    42: Row(torchtune_full),
    43: Row(
        lambda: first_block_backward_bytes(LLAMA_3B, 8192, torchtune_block(LLAMA_3B, 4096)),
        formula=True,
        full=torchtune_chunked,
        note="the full count has the sum of a tied table's two gradients as well",
    ),
    44: Row(
        lambda: torchtune_lora_sum(None),
        formula=True,
        full=lambda: torchtune_lora(None),
        note="the full count has the working memory of a block's backward as well",
    ),
    45: Row(
        lambda: torchtune_lora_sum("nf4-double"),
        formula=True,
        full=lambda: torchtune_lora("nf4-double"),
        note="the full count has the working memory of a block's backward as well",
    ),
    46: Row(
        torchtune_in_backward_sum,
        formula=True,
        full=torchtune_in_backward,
        note="adds moments that are not at once, which the full count does not",
    ),
    47: Row(lora_at_start, note=_TARGETS),
    48: Row(torchtitan_difference, note=_TITAN),
    49: Row(torchtitan_difference, note=_TITAN),
    50: Row(torchtitan_difference, note=_TITAN),
    51: Row(torchtitan_long, note="not explained by anybody: Float8 products, reserved memory"),
    52: Row(context_parallel),
    53: Row(lambda: five_times(20480, 128), formula=True, note=_MEGATRON),
    54: Row(lambda: five_times(12288, 96), formula=True, note=_MEGATRON),
    55: Row(lambda: loss_bytes("hf", 2)[0] * 2 * 256 * 151665),
    56: Row(lambda: training_state(7e9, precision="fp32").total_bytes),
    57: Row(
        lambda: galore_bytes(LLAMA_7B, 16 * 256, 1024),
        formula=True,
        note="GaLore's script: in 8 bits, its optimizer run layer by layer in the backward",
    ),
    58: Row(foreach),
    59: Row(lambda: litgpt_hub_bytes(LLAMA_7B, 2, 512, quantized=False), note=_HUB),
    60: Row(lambda: litgpt_hub_bytes(LLAMA_8B, 1, 512, quantized=False), note=_HUB),
    61: Row(lambda: litgpt_hub_bytes(MISTRAL_7B, 2, 512, quantized=False), note=_HUB),
    62: _hub_quantised(LLAMA_7B),
    63: _hub_quantised(LLAMA_8B),
    64: _hub_quantised(MISTRAL_7B),
}

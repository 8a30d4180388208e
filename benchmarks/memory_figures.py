"""How the figures of memory_published.csv are computed that take more than one call.

Each is a small calculation of its own, made of the package's functions.
"""

from __future__ import annotations

from dataclasses import replace

from memory_shapes import BERT, GPT2_XL, LLAMA_3B, LLAMA_7B, LLAMA_8B

from scheduler.memory import Lora, Recipe, Shape, fit, training_state
from scheduler.memory.activations import block_activations, head_activations
from scheduler.memory.fitting.training import Training
from scheduler.memory.gpus import load_gpu
from scheduler.memory.simulate.setting import linears
from solvers.chain.uniform import uniform_plan
from solvers.schedule import Items
from tests.memory.published import (
    checkpointed_sum_bytes,
    megatron_block_bytes,
    rotary_tables_bytes,
)

MIB = 2**20
BERT_PARAMETERS = 335_143_938  # with pooler and classifier, which a decoder's shape lacks
BERT_CONTEXT = 1343 * MIB  # nvidia-smi before the model was loaded, from the same page
# torchtune's configs for Llama: adapters on all linear layers but k.
TORCHTUNE = Lora(8, ("q", "v", "o", "gate", "up", "down"))


def zero(stage: int) -> float:
    """ZeRO's figure 1."""
    return training_state(7.5e9, zero=stage, gpus=64).total_bytes


def deepspeed(parameters: float, layer: float, gpus: int, offload: bool = False) -> float:
    """DeepSpeed's estimate of stage 3: fp32 gradients, and one layer's weight and gradient."""
    state = training_state(parameters, zero=3, gpus=gpus, gradient_accumulation=True)
    return 4 * layer + (state.weights_bytes if offload else state.total_bytes)


def bert(batch: int, checkpointed: bool = False) -> float:
    """Context, state and blocks of bert-large in fp32 at 512 tokens."""
    total = BERT_CONTEXT + training_state(BERT_PARAMETERS, precision="fp32").total_bytes
    if not checkpointed:
        block = block_activations(BERT, batch, 512, precision="fp32", attention="eager")
        return total + BERT.layers * block.total_bytes
    # The page's table has gradients in the state: they stay from one micro-batch to the next.
    return total + every_layer(
        Training(BERT, load_gpu("a100-40"), Recipe(precision="fp32", attention="eager")), 1, 512
    )


def every_layer(training: Training, batch: int, sequence: int, gradients: bool = False) -> float:
    """Peak of a step with a checkpoint around each block, replayed on the costs of the shape.

    Unless they stay, a layer's gradients are gone after its backward: added to what is in the
    state already, or used by an optimizer in the backward.
    """
    costs = training.costs(batch, sequence)
    layers = costs.layers
    if not gradients:
        layers = tuple(
            replace(
                layer,
                gradient_bytes=0,
                backward_transient_bytes=layer.backward_transient_bytes + layer.gradient_bytes,
            )
            for layer in layers
        )
    chain = replace(costs, layers=layers).to_chain()
    return chain.replay(Items(uniform_plan(chain, 1))).peak_bytes


def step_every_layer(training: Training, batch: int, sequence: int) -> float:
    """The same with the state: gradients counted as they are made."""
    state = training.state
    always = state.total_bytes - state.gradients_bytes
    return always + every_layer(training, batch, sequence, gradients=True)


def qlora(shape: Shape) -> float:
    """A step of what rows 62 to 64 train, as transformers and PEFT would; nothing checkpointed."""
    found = fit(
        shape,
        gpu="a10g",
        batch=2,
        sequence=512,
        precision="bf16",
        base="nf4",
        train="lora",
        lora=Lora(32, ("q", "v"), "bf16", 0.05),
        margin=0,
        search=False,
    )
    return found.peak_bytes + found.reserved_bytes


def adafactor_saves(statistics: int) -> float:
    """Moments of AdamW less so many factored statistics of Adafactor, in fp32."""
    adamw = training_state(BERT_PARAMETERS, precision="fp32").moments_bytes
    return adamw - 4 * statistics


def lomo() -> float:
    """LLaMA-7B, fp16, eager: blocks, cached keys and values, head and loss.

    transformers 4.30 kept 2·A more a layer for its torch.max with the mask, and 8·T·d more, which
    is taken from the file's formula and not derived here.
    """
    shape, batch, sequence = LLAMA_7B, 8, 512
    tokens = batch * sequence
    block = block_activations(shape, batch, sequence, precision="fp16", attention="eager")
    older = 2 * batch * shape.heads * sequence**2 + 8 * tokens * shape.width
    cache = 4 * tokens * shape.kv_width
    head = head_activations(shape, batch, sequence, precision="fp16", loss="hf-outputs-kept")
    return shape.layers * (block.total_bytes + older + cache) + head.kept.total_bytes


def double_quantisation(shape: Shape) -> float:
    """What double quantisation of all linear layers saves, the head among them."""
    linear = shape.parameters - shape.embedding_parameters
    linear -= (shape.layers * shape.norms + 1) * shape.norm_parameters
    plain, double = (
        training_state(
            shape.parameters, trainable_parameters=0, base=base, quantized_parameters=linear
        ).total_bytes
        for base in ("nf4", "nf4-double")
    )
    return plain - double


def autocast_weights(shape: Shape) -> float:
    """Weights in fp32, and the 2-byte casts that autocast keeps of all but the embedding."""
    state = training_state(shape.parameters, precision="autocast", trainable_parameters=0)
    return state.weights_bytes + 2 * (shape.parameters - shape.embedding_parameters)


def torchtune_block(shape: Shape, sequence: int, lora: Lora | None = None) -> int:
    """What a block keeps of two sequences; torchtune expands keys and values to all heads."""
    expanded = replace(shape, kv_heads=shape.heads)
    train = "full" if lora is None else "lora"
    return block_activations(expanded, 2, sequence, train=train, lora=lora).total_bytes


def torchtune_full() -> float:
    """Llama 3.2 3B, bf16, at the loss: torchtune expands keys and values to all heads."""
    state = training_state(LLAMA_3B.parameters, precision="bf16")
    blocks = LLAMA_3B.layers * torchtune_block(LLAMA_3B, 4096)
    head = head_activations(LLAMA_3B, 2, 4096)
    return state.total_bytes - state.gradients_bytes + blocks + head.peak_bytes


def torchtune_chunked() -> float:
    """The same with a chunked loss and every block checkpointed."""
    return step_every_layer(
        Training(LLAMA_3B, load_gpu("a100-80"), Recipe(precision="bf16", loss="chunked")), 2, 4096
    )


def adapters(shape: Shape, gpu: str, base: str | None = None) -> Training:
    """LoRA of rank 8 by torchtune's configs, with a chunked loss."""
    recipe = Recipe(precision="bf16", train="lora", lora=TORCHTUNE, base=base, loss="chunked")
    return Training(shape, load_gpu(gpu), recipe)


def torchtune_lora(base: str | None) -> float:
    """Llama 3.1 8B with adapters, every block checkpointed: replayed on its costs."""
    return step_every_layer(adapters(LLAMA_8B, "rtx4090", base), 2, 2048)


def torchtune_lora_sum(base: str | None) -> float:
    """The same added up; a 4-bit base has one weight in bf16 at a time."""
    state = adapters(LLAMA_8B, "rtx4090", base).state.total_bytes
    largest = 2 * max(a * b for a, b in linears(LLAMA_8B).values()) if base else 0
    block = torchtune_block(LLAMA_8B, 2048, TORCHTUNE)
    return checkpointed_sum_bytes(state, LLAMA_8B, 4096, block, largest)


def torchtune_in_backward() -> float:
    """Weights, and a step whose gradients are used at once; the optimizer's state is paged."""
    training = Training(LLAMA_8B, load_gpu("rtx4090"), Recipe(precision="bf16", loss="chunked"))
    return training.state.weights_bytes + every_layer(training, 2, 2048)


def torchtune_in_backward_sum() -> float:
    """The same added up, with the largest gradient: embedding or head."""
    weights = training_state(LLAMA_8B.parameters, precision="bf16").weights_bytes
    largest = 2 * LLAMA_8B.vocabulary * LLAMA_8B.width
    block = torchtune_block(LLAMA_8B, 2048)
    return checkpointed_sum_bytes(weights, LLAMA_8B, 4096, block, largest)


def lora_at_start() -> float:
    """Weights, adapters and each block's rotary tables of 4096 positions."""
    state = adapters(LLAMA_7B, "a100-80").state
    tables = rotary_tables_bytes(LLAMA_7B.layers, 4096, LLAMA_7B.head_width)
    return state.weights_bytes + state.adapters_bytes + tables


def torchtitan_difference() -> float:
    """Fp32 weights, gradients and moments over 8 GPUs and over 128."""
    few, many = (
        training_state(LLAMA_8B.parameters, precision="autocast", zero="fsdp", gpus=gpus)
        for gpus in (8, 128)
    )
    return few.total_bytes - many.total_bytes


def torchtitan_long() -> float:
    """Llama 3.1 8B on 8 GPUs, 32768 tokens each, every block checkpointed."""
    training = Training(LLAMA_8B, load_gpu("h100"), Recipe(zero="fsdp", gpus=8))
    return step_every_layer(training, 1, 32768)


def context_parallel() -> float:
    """Eight times the sequence over eight times the GPUs: what one GPU holds is the same."""
    with_it, without = (
        training_state(LLAMA_8B.parameters, zero="fsdp", gpus=8, context_parallel=parallel)
        for parallel in (8, 1)
    )
    return with_it.total_bytes / without.total_bytes


def five_times(width: int, heads: int) -> float:
    """Tensor parallelism over 8 GPUs, over sequence parallelism and selective recomputation too."""
    tensor, all_of_it = (
        megatron_block_bytes(
            width,
            heads,
            1,
            2048,
            tensor_parallel=8,
            sequence_parallel=parallel,
            recompute=recompute,
        )
        for parallel, recompute in ((False, "nothing"), (True, "attention"))
    )
    return tensor / all_of_it


def foreach() -> float:
    """Temporaries of a foreach step over the parameters it updates."""
    training = Training(LLAMA_8B, load_gpu("h100"), Recipe(precision="fp32", update="foreach"))
    return training.temporaries_bytes() / training.state.weights_bytes


def gpt2_xl() -> float:
    block = block_activations(GPT2_XL, 32, 1024, attention="eager")
    return GPT2_XL.layers * block.total_bytes

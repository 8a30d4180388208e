"""Models of memory_published.csv that have no shape of their own in the package."""

from __future__ import annotations

from dataclasses import replace

from scheduler.memory import Shape, load_shape

LLAMA_7B = load_shape("llama-7b")
LLAMA_8B = load_shape("llama-3-8b")
MISTRAL_7B = load_shape("mistral-7b")
LLAMA_13B = replace(
    LLAMA_7B, name="llama-13b", layers=40, width=5120, heads=40, kv_heads=40, mlp_width=13824
)
CODE_34B = replace(
    LLAMA_7B, name="codellama-34b", layers=48, width=8192, heads=64, kv_heads=8, mlp_width=22016
)
LLAMA_3B = Shape(
    name="llama-3.2-3b",
    family="llama",
    layers=28,
    width=3072,
    heads=24,
    kv_heads=8,
    head_width=128,
    mlp_width=8192,
    vocabulary=128256,
    tied=True,
)
STABLELM_3B = Shape(
    name="stablelm-base-alpha-3b",
    family="gpt_neox",
    layers=16,
    width=4096,
    heads=32,
    kv_heads=32,
    head_width=128,
    mlp_width=16384,
    vocabulary=50688,
    gated=False,
    activation="gelu",
    norm="layer",
    qkv_bias=True,
    output_bias=True,
    mlp_bias=True,
    norm_bias=True,
    parallel=True,
)
# LitGPT pads the vocabulary and has one norm for attention and MLP; a shape counts two a block.
PHI = Shape(
    name="phi-1_5",
    family="gpt_neox",
    layers=24,
    width=2048,
    heads=32,
    kv_heads=32,
    head_width=64,
    mlp_width=8192,
    vocabulary=51200,
    gated=False,
    activation="gelu",
    norm="layer",
    qkv_bias=True,
    output_bias=True,
    mlp_bias=True,
    norm_bias=True,
    head_bias=True,
    parallel=True,
)
# BERT norms after its sums and not before; a block keeps what GPT-2's keeps with a fused gelu.
BERT = Shape(
    name="bert-large",
    family="gpt2",
    layers=24,
    width=1024,
    heads=16,
    kv_heads=16,
    head_width=64,
    mlp_width=4096,
    vocabulary=30522,
    positions=512,
    gated=False,
    activation="gelu",
    norm="layer",
    qkv_bias=True,
    output_bias=True,
    mlp_bias=True,
    norm_bias=True,
    tied=True,
    dropout=0.1,
    attention_dropout=0.1,
)
GPT2_XL = replace(load_shape("gpt2"), name="gpt2-xl", layers=48, width=1600, heads=25, kv_heads=25)
GPT2_XL = replace(GPT2_XL, mlp_width=6400)

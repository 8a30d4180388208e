"""A model's shape: everything its memory depends on, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shape:
    """A decoder-only transformer, by its sizes.

    Attributes
    ----------
    name, family
        What it is called; "llama" (RMS norm, gated MLP, rotary) or "gpt2" (layer norm, learned
        positions), or another family that `load_shape` knows.
    layers, width, heads, kv_heads, head_width
        L, d, H, G, a. Queries have H·a features, keys and values G·a.
    mlp_width
        f, of a dense MLP or of one expert.
    vocabulary, positions
        V, and the number of learned positions (0: none).
    gated
        The MLP has gate, up and down (else up and down).
    activation
        "silu", "gelu" (fused), "gelu_new" (written out in operations), "relu".
    norm
        "rms" or "layer".
    qkv_bias, output_bias, mlp_bias, norm_bias, head_bias
        Which linear layers and norms carry a bias.
    qk_norm
        Queries and keys are normed per head.
    norms
        Norms in a block (2, or 4 where the outputs of attention and MLP are normed too).
    tied
        Head and embedding share their weight.
    experts, experts_per_token, shared_expert_width
        Of a mixture of experts; 0 experts: a dense MLP.
    parallel
        Attention and MLP read the same residual (GPT-NeoX).
    dropout
        Probability of residual and embedding dropout in training (0: none).
    attention_dropout
        Probability of dropout on attention probabilities.
    """

    name: str
    family: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_width: int
    mlp_width: int
    vocabulary: int
    positions: int = 0
    gated: bool = True
    activation: str = "silu"
    norm: str = "rms"
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    norm_bias: bool = False
    head_bias: bool = False
    qk_norm: bool = False
    norms: int = 2
    tied: bool = False
    experts: int = 0
    experts_per_token: int = 0
    shared_expert_width: int = 0
    parallel: bool = False
    dropout: float = 0.0
    attention_dropout: float = 0.0

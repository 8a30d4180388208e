"""Every field of a config.json is read, known to be harmless, or refused by name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import transformers

from scheduler.memory.errors import InvalidShape
from scheduler.memory.shape.families.table import FAMILIES
from scheduler.memory.shape.load import load_shape

# The fields of files as their owners published them, and the parameters that are known of them.
RELEASED: dict[str, tuple[int, str]] = {
    "huggyllama/llama-7b": (
        6_738_415_616,
        """{"architectures": ["LlamaForCausalLM"], "bos_token_id": 1, "eos_token_id": 2,
        "pad_token_id": 0, "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 11008,
        "initializer_range": 0.02, "max_sequence_length": 2048, "model_type": "llama",
        "num_attention_heads": 32, "num_hidden_layers": 32, "rms_norm_eps": 1e-06,
        "torch_dtype": "float16", "transformers_version": "4.27.0.dev0", "use_cache": true,
        "vocab_size": 32000, "max_position_embeddings": 2048, "tie_word_embeddings": false}""",
    ),
    "meta-llama/Llama-3.1-8B": (
        8_030_261_248,
        """{"architectures": ["LlamaForCausalLM"], "attention_bias": false,
        "attention_dropout": 0.0, "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009],
        "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
        "intermediate_size": 14336, "max_position_embeddings": 131072, "mlp_bias": false,
        "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32,
        "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
        "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192, "rope_type": "llama3"}, "rope_theta": 500000.0,
        "tie_word_embeddings": false, "torch_dtype": "bfloat16",
        "transformers_version": "4.43.0.dev0", "use_cache": true, "vocab_size": 128256}""",
    ),
    "mistralai/Mistral-7B-v0.1": (
        7_241_732_096,
        """{"architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2,
        "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
        "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mistral",
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096,
        "tie_word_embeddings": false, "torch_dtype": "bfloat16",
        "transformers_version": "4.34.0.dev0", "use_cache": true, "vocab_size": 32000}""",
    ),
    "mistralai/Mixtral-8x7B-v0.1": (
        46_702_792_704,
        """{"architectures": ["MixtralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1,
        "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
        "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mixtral",
        "num_attention_heads": 32, "num_experts_per_tok": 2, "num_hidden_layers": 32,
        "num_key_value_heads": 8, "num_local_experts": 8, "output_router_logits": false,
        "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.02,
        "sliding_window": null, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
        "transformers_version": "4.36.0.dev0", "use_cache": true, "vocab_size": 32000}""",
    ),
    "Qwen/Qwen2.5-7B": (
        7_615_616_512,
        """{"architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0,
        "bos_token_id": 151643, "eos_token_id": 151643, "hidden_act": "silu", "hidden_size": 3584,
        "initializer_range": 0.02, "intermediate_size": 18944, "max_position_embeddings": 131072,
        "max_window_layers": 28, "model_type": "qwen2", "num_attention_heads": 28,
        "num_hidden_layers": 28, "num_key_value_heads": 4, "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0, "sliding_window": 131072, "tie_word_embeddings": false,
        "torch_dtype": "bfloat16", "transformers_version": "4.40.1", "use_cache": true,
        "use_mrope": false, "use_sliding_window": false, "vocab_size": 152064}""",
    ),
    "Qwen/Qwen3-8B": (
        8_190_735_360,
        """{"architectures": ["Qwen3ForCausalLM"], "attention_bias": false,
        "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128,
        "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
        "intermediate_size": 12288, "max_position_embeddings": 40960, "max_window_layers": 36,
        "model_type": "qwen3", "num_attention_heads": 32, "num_hidden_layers": 36,
        "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": null,
        "rope_theta": 1000000, "sliding_window": null, "tie_word_embeddings": false,
        "torch_dtype": "bfloat16", "transformers_version": "4.51.0", "use_cache": true,
        "use_sliding_window": false, "vocab_size": 151936}""",
    ),
    "Qwen/Qwen1.5-MoE-A2.7B": (
        14_315_784_192,
        """{"architectures": ["Qwen2MoeForCausalLM"], "attention_dropout": 0.0,
        "bos_token_id": 151643, "eos_token_id": 151643, "decoder_sparse_step": 1,
        "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
        "intermediate_size": 5632, "max_position_embeddings": 8192, "max_window_layers": 21,
        "model_type": "qwen2_moe", "moe_intermediate_size": 1408, "norm_topk_prob": false,
        "num_attention_heads": 16, "num_experts": 60, "num_experts_per_tok": 4,
        "num_hidden_layers": 24, "num_key_value_heads": 16, "output_router_logits": false,
        "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001,
        "shared_expert_intermediate_size": 5632, "sliding_window": 32768,
        "tie_word_embeddings": false, "torch_dtype": "bfloat16",
        "transformers_version": "4.39.0.dev0", "use_cache": true, "use_sliding_window": false,
        "vocab_size": 151936}""",
    ),
    "Qwen/Qwen3-30B-A3B": (
        30_532_122_624,
        """{"architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false,
        "attention_dropout": 0.0, "bos_token_id": 151643, "decoder_sparse_step": 1,
        "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048,
        "initializer_range": 0.02, "intermediate_size": 6144, "max_position_embeddings": 40960,
        "max_window_layers": 48, "mlp_only_layers": [], "model_type": "qwen3_moe",
        "moe_intermediate_size": 768, "norm_topk_prob": true, "num_attention_heads": 32,
        "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48,
        "num_key_value_heads": 4, "output_router_logits": false, "rms_norm_eps": 1e-06,
        "rope_scaling": null, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001,
        "sliding_window": null, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
        "transformers_version": "4.51.0", "use_cache": true, "use_sliding_window": false,
        "vocab_size": 151936}""",
    ),
    "google/gemma-2b": (
        2_506_172_416,
        """{"architectures": ["GemmaForCausalLM"], "attention_bias": false,
        "attention_dropout": 0.0, "bos_token_id": 2, "eos_token_id": 1, "head_dim": 256,
        "hidden_act": "gelu", "hidden_activation": null, "hidden_size": 2048,
        "initializer_range": 0.02, "intermediate_size": 16384, "max_position_embeddings": 8192,
        "model_type": "gemma", "num_attention_heads": 8, "num_hidden_layers": 18,
        "num_key_value_heads": 1, "pad_token_id": 0, "rms_norm_eps": 1e-06, "rope_scaling": null,
        "rope_theta": 10000.0, "torch_dtype": "bfloat16", "transformers_version": "4.38.0.dev0",
        "use_cache": true, "vocab_size": 256000}""",
    ),
    "google/gemma-2-2b": (
        2_614_341_888,
        """{"architectures": ["Gemma2ForCausalLM"], "attention_bias": false,
        "attention_dropout": 0.0, "attn_logit_softcapping": 50.0, "bos_token_id": 2,
        "cache_implementation": "hybrid", "eos_token_id": [1, 107],
        "final_logit_softcapping": 30.0, "head_dim": 256, "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2304, "initializer_range": 0.02,
        "intermediate_size": 9216, "max_position_embeddings": 8192, "model_type": "gemma2",
        "num_attention_heads": 8, "num_hidden_layers": 26, "num_key_value_heads": 4,
        "pad_token_id": 0, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06,
        "rope_theta": 10000.0, "sliding_window": 4096, "sliding_window_size": 4096,
        "torch_dtype": "float32", "transformers_version": "4.42.4", "use_cache": true,
        "vocab_size": 256000, "_attn_implementation": "eager"}""",
    ),
    "google/gemma-3-1b-it": (
        999_885_952,
        """{"architectures": ["Gemma3ForCausalLM"], "attention_bias": false, "attention_dropout":
        0.0, "attn_logit_softcapping": null, "bos_token_id": 2, "cache_implementation":
        "hybrid", "eos_token_id": [1, 106], "final_logit_softcapping": null, "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1152, "initializer_range":
        0.02, "intermediate_size": 6912, "max_position_embeddings": 32768, "model_type":
        "gemma3_text", "num_attention_heads": 4, "num_hidden_layers": 26, "num_key_value_heads":
        1, "pad_token_id": 0, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06,
        "rope_local_base_freq": 10000, "rope_scaling": null, "rope_theta": 1000000,
        "sliding_window": 512, "sliding_window_pattern": 6, "torch_dtype": "bfloat16",
        "transformers_version": "4.50.0.dev0", "use_cache": true, "vocab_size": 262144}""",
    ),
    "openai/gpt-oss-20b": (
        20_914_757_184,
        """{"architectures": ["GptOssForCausalLM"], "attention_bias": true, "attention_dropout":
        0.0, "eos_token_id": 200002, "experts_per_token": 4, "head_dim": 64, "hidden_act":
        "silu", "hidden_size": 2880, "initial_context_length": 4096, "initializer_range": 0.02,
        "intermediate_size": 2880, "layer_types": ["sliding_attention", "full_attention",
        "sliding_attention", "full_attention", "sliding_attention", "full_attention",
        "sliding_attention", "full_attention", "sliding_attention", "full_attention",
        "sliding_attention", "full_attention", "sliding_attention", "full_attention",
        "sliding_attention", "full_attention", "sliding_attention", "full_attention",
        "sliding_attention", "full_attention", "sliding_attention", "full_attention",
        "sliding_attention", "full_attention"], "max_position_embeddings": 131072, "model_type":
        "gpt_oss", "num_attention_heads": 64, "num_experts_per_tok": 4, "num_hidden_layers": 24,
        "num_key_value_heads": 8, "num_local_experts": 32, "output_router_logits": false,
        "pad_token_id": 199999, "rms_norm_eps": 1e-05, "rope_scaling": {"beta_fast": 32.0,
        "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096, "rope_type":
        "yarn", "truncate": false}, "rope_theta": 150000, "router_aux_loss_coef": 0.9,
        "sliding_window": 128, "swiglu_limit": 7.0, "tie_word_embeddings": false,
        "transformers_version": "4.55.0.dev0", "use_cache": true, "vocab_size": 201088}""",
    ),
    "deepseek-ai/DeepSeek-V3": (
        671_026_404_352,
        """{"architectures": ["DeepseekV3ForCausalLM"], "attention_bias": false,
        "attention_dropout": 0.0, "auto_map": {"AutoConfig":
        "configuration_deepseek.DeepseekV3Config", "AutoModel":
        "modeling_deepseek.DeepseekV3Model", "AutoModelForCausalLM":
        "modeling_deepseek.DeepseekV3ForCausalLM"}, "bos_token_id": 0, "eos_token_id": 1,
        "ep_size": 1, "first_k_dense_replace": 3, "hidden_act": "silu", "hidden_size": 7168,
        "initializer_range": 0.02, "intermediate_size": 18432, "kv_lora_rank": 512,
        "max_position_embeddings": 163840, "model_type": "deepseek_v3", "moe_intermediate_size":
        2048, "moe_layer_freq": 1, "n_group": 8, "n_routed_experts": 256, "n_shared_experts": 1,
        "norm_topk_prob": true, "num_attention_heads": 128, "num_experts_per_tok": 8,
        "num_hidden_layers": 61, "num_key_value_heads": 128, "num_nextn_predict_layers": 1,
        "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps":
        1e-06, "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0,
        "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096, "type": "yarn"},
        "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid",
        "tie_word_embeddings": false, "topk_group": 4, "topk_method": "noaux_tc", "torch_dtype":
        "bfloat16", "transformers_version": "4.46.3", "use_cache": true, "v_head_dim": 128,
        "vocab_size": 129280}""",
    ),
    "microsoft/Phi-3-mini-4k-instruct": (
        3_821_079_552,
        """{"_name_or_path": "Phi-3-mini-4k-instruct", "architectures": ["Phi3ForCausalLM"],
        "attention_dropout": 0.0, "auto_map": {"AutoConfig": "configuration_phi3.Phi3Config",
        "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM"}, "bos_token_id": 1,
        "embd_pdrop": 0.0, "eos_token_id": 32000, "hidden_act": "silu", "hidden_size": 3072,
        "initializer_range": 0.02, "intermediate_size": 8192, "max_position_embeddings": 4096,
        "model_type": "phi3", "num_attention_heads": 32, "num_hidden_layers": 32,
        "num_key_value_heads": 32, "original_max_position_embeddings": 4096,
        "pad_token_id": 32000, "resid_pdrop": 0.0, "rms_norm_eps": 1e-05, "rope_scaling": null,
        "rope_theta": 10000.0, "sliding_window": 2047, "tie_word_embeddings": false,
        "torch_dtype": "bfloat16", "transformers_version": "4.40.2", "use_cache": true,
        "attention_bias": false, "vocab_size": 32064}""",
    ),
    "microsoft/Phi-4-mini-instruct": (
        3_836_021_760,
        """{"architectures": ["Phi3ForCausalLM"], "attention_bias": false,
        "attention_dropout": 0.0, "auto_map": {"AutoTokenizer": "Xenova/gpt-4o"},
        "bos_token_id": 199999, "embd_pdrop": 0.0, "eos_token_id": 199999, "full_attn_mod": 1,
        "hidden_act": "silu", "hidden_size": 3072, "initializer_range": 0.02,
        "intermediate_size": 8192, "interpolate_factor": 1, "lm_head_bias": false,
        "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "phi3",
        "num_attention_heads": 24, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "original_max_position_embeddings": 4096, "pad_token_id": 199999,
        "partial_rotary_factor": 0.75, "resid_pdrop": 0.0, "rms_norm_eps": 1e-05,
        "rope_scaling": {"long_factor": [1, 1.1], "short_factor": [1.0, 1.0], "type": "longrope"},
        "rope_theta": 10000.0, "sliding_window": 262144, "tie_word_embeddings": true,
        "torch_dtype": "bfloat16", "transformers_version": "4.45.0", "use_cache": true,
        "vocab_size": 200064}""",
    ),
    "EleutherAI/pythia-1b": (
        1_011_781_632,
        """{"architectures": ["GPTNeoXForCausalLM"], "bos_token_id": 0, "eos_token_id": 0,
        "hidden_act": "gelu", "hidden_size": 2048, "initializer_range": 0.02,
        "intermediate_size": 8192, "layer_norm_eps": 1e-05, "max_position_embeddings": 2048,
        "model_type": "gpt_neox", "num_attention_heads": 8, "num_hidden_layers": 16,
        "rotary_emb_base": 10000, "rotary_pct": 0.25, "tie_word_embeddings": false,
        "torch_dtype": "float16", "transformers_version": "4.24.0", "use_cache": true,
        "use_parallel_residual": true, "vocab_size": 50304}""",
    ),
    "openai-community/gpt2-xl": (
        1_557_611_200,
        """{"activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"],
        "attn_pdrop": 0.1, "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256,
        "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "gpt2",
        "n_ctx": 1024, "n_embd": 1600, "n_head": 25, "n_layer": 48, "n_positions": 1024,
        "output_past": true, "resid_pdrop": 0.1, "summary_activation": null,
        "summary_first_dropout": 0.1, "summary_proj_to_labels": true, "summary_type": "cls_index",
        "summary_use_proj": true, "task_specific_params": {"text-generation": {"do_sample": true,
        "max_length": 50}}, "vocab_size": 50257}""",
    ),
    "distilbert/distilgpt2": (
        81_912_576,
        """{"_num_labels": 1, "activation_function": "gelu_new",
        "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1, "bos_token_id": 50256,
        "embd_pdrop": 0.1, "eos_token_id": 50256, "id2label": {"0": "LABEL_0"},
        "initializer_range": 0.02, "label2id": {"LABEL_0": 0}, "layer_norm_epsilon": 1e-05,
        "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 6,
        "n_positions": 1024, "resid_pdrop": 0.1, "summary_activation": null,
        "summary_first_dropout": 0.1, "summary_proj_to_labels": true, "summary_type": "cls_index",
        "summary_use_proj": true, "task_specific_params": {"text-generation": {"do_sample": true,
        "max_length": 50}}, "vocab_size": 50257}""",
    ),
}

RELEASED |= {
    "google-bert/bert-base-uncased": (
        109_514_298,
        """{"architectures": ["BertForMaskedLM"], "attention_probs_dropout_prob": 0.1,
        "gradient_checkpointing": false, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
        "hidden_size": 768, "initializer_range": 0.02, "intermediate_size": 3072,
        "layer_norm_eps": 1e-12, "max_position_embeddings": 512, "model_type": "bert",
        "num_attention_heads": 12, "num_hidden_layers": 12, "pad_token_id": 0,
        "position_embedding_type": "absolute", "transformers_version": "4.6.0.dev0",
        "type_vocab_size": 2, "use_cache": true, "vocab_size": 30522}""",
    ),
    "FacebookAI/roberta-base": (
        124_697_433,
        """{"architectures": ["RobertaForMaskedLM"], "attention_probs_dropout_prob": 0.1,
        "bos_token_id": 0, "eos_token_id": 2, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
        "hidden_size": 768, "initializer_range": 0.02, "intermediate_size": 3072,
        "layer_norm_eps": 1e-05, "max_position_embeddings": 514, "model_type": "roberta",
        "num_attention_heads": 12, "num_hidden_layers": 12, "pad_token_id": 1,
        "type_vocab_size": 1, "vocab_size": 50265}""",
    ),
    "google-t5/t5-small": (
        60_506_624,
        """{"architectures": ["T5ForConditionalGeneration"], "d_ff": 2048, "d_kv": 64,
        "d_model": 512, "decoder_start_token_id": 0, "dropout_rate": 0.1, "eos_token_id": 1,
        "initializer_factor": 1.0, "is_encoder_decoder": true, "layer_norm_epsilon": 1e-06,
        "model_type": "t5", "n_positions": 512, "num_heads": 8, "num_layers": 6,
        "output_past": true, "pad_token_id": 0, "relative_attention_num_buckets": 32,
        "task_specific_params": {"summarization": {"early_stopping": true}}, "use_cache": true,
        "vocab_size": 32128}""",
    ),
    # Of its thousand classes, numbers in place of names.
    "google/vit-base-patch16-224": (
        86_567_656,
        """{"architectures": ["ViTForImageClassification"], "attention_probs_dropout_prob": 0.0,
        "encoder_stride": 16, "hidden_act": "gelu", "hidden_dropout_prob": 0.0,
        "hidden_size": 768, "image_size": 224, "initializer_range": 0.02,
        "intermediate_size": 3072, "layer_norm_eps": 1e-12, "model_type": "vit",
        "num_attention_heads": 12, "num_channels": 3, "num_hidden_layers": 12, "patch_size": 16,
        "qkv_bias": true, "transformers_version": "4.13.0.dev0", "id2label": """
        + json.dumps({str(i): f"{i}" for i in range(1000)})
        + "}",
    ),
}

_GLM = """{"attention_bias": true, "attention_dropout": 0.0, "head_dim": 128, "hidden_act":
    "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 13696,
    "max_position_embeddings": 32768, "num_attention_heads": 32, "num_hidden_layers": 40,
    "num_key_value_heads": 2, "pad_token_id": 151329, "partial_rotary_factor": 0.5,
    "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "tie_word_embeddings": false, "use_cache":
    true, "vocab_size": 151552}"""
# The text of Llama 4 Maverick.
_LLAMA4 = """{"attention_bias": false, "attention_chunk_size": 8192, "attention_dropout": 0.0,
    "bos_token_id": 200000, "eos_token_id": [200001, 200007, 200008], "for_llm_compressor":
    false, "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120, "initializer_range":
    0.02, "interleave_moe_layer_step": 2, "intermediate_size": 8192,
    "intermediate_size_mlp": 16384, "max_position_embeddings": 1048576, "model_type":
    "llama4_text", "num_attention_heads": 40, "num_experts_per_tok": 1, "num_hidden_layers":
    48, "num_key_value_heads": 8, "num_local_experts": 128, "output_router_logits": false,
    "pad_token_id": 200018, "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta":
    500000.0, "router_aux_loss_coef": 0.001, "router_jitter_noise": 0.0, "torch_dtype":
    "bfloat16", "use_cache": true, "use_qk_norm": false, "vocab_size": 202048}"""

BASE: dict[str, dict[str, Any]] = {
    name: json.loads(text)
    for name, text in {
        "llama": RELEASED["meta-llama/Llama-3.1-8B"][1],
        "mistral": RELEASED["mistralai/Mistral-7B-v0.1"][1],
        "mixtral": RELEASED["mistralai/Mixtral-8x7B-v0.1"][1],
        "qwen2": RELEASED["Qwen/Qwen2.5-7B"][1],
        "qwen2_moe": RELEASED["Qwen/Qwen1.5-MoE-A2.7B"][1],
        "qwen3": RELEASED["Qwen/Qwen3-8B"][1],
        "qwen3_moe": RELEASED["Qwen/Qwen3-30B-A3B"][1],
        "gemma": RELEASED["google/gemma-2b"][1],
        "gemma2": RELEASED["google/gemma-2-2b"][1],
        "phi3": RELEASED["microsoft/Phi-3-mini-4k-instruct"][1],
        "gemma3_text": RELEASED["google/gemma-3-1b-it"][1],
        "glm": _GLM.replace("{", '{"model_type": "glm", ', 1),
        "glm4": _GLM.replace("{", '{"model_type": "glm4", ', 1),
        "gpt_oss": RELEASED["openai/gpt-oss-20b"][1],
        "llama4_text": _LLAMA4,
        "deepseek_v3": RELEASED["deepseek-ai/DeepSeek-V3"][1],
        "gpt2": RELEASED["openai-community/gpt2-xl"][1],
        "gpt_neox": RELEASED["EleutherAI/pythia-1b"][1],
        "bert": RELEASED["google-bert/bert-base-uncased"][1],
        "roberta": RELEASED["FacebookAI/roberta-base"][1],
        "vit": RELEASED["google/vit-base-patch16-224"][1],
        "t5": RELEASED["google-t5/t5-small"][1],
    }.items()
}


@pytest.mark.parametrize("name", RELEASED)
def test_a_released_config(name: str, tmp_path: Path) -> None:
    parameters, text = RELEASED[name]
    path = tmp_path / "config.json"
    path.write_text(text, encoding="utf-8")
    assert load_shape(path).parameters == parameters


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_what_transformers_writes(family: str) -> None:
    """Its defaults, whole or without what is default; and a released file that it has read."""
    configs = [transformers.AutoConfig.for_model(family)]
    configs.append(type(configs[0]).from_dict(dict(BASE[family])))
    for config in configs:
        shape = replace(load_shape(config.to_dict()), name=family)
        for use_diff in (True, False):
            written = load_shape(json.loads(config.to_json_string(use_diff=use_diff)))
            assert replace(written, name=family) == shape
    assert shape == replace(load_shape(BASE[family]), name=family)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_an_unknown_field_is_refused(family: str) -> None:
    with pytest.raises(InvalidShape) as info:
        load_shape(BASE[family] | {"foo_bar": 3})
    assert str(info.value) == (
        "the config has the field 'foo_bar', 3, which is not known of the model_type "
        f"{family!r}: remove it if the model's memory does not depend on it, else this model is "
        "not covered"
    )


def test_an_unknown_field_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    fields = {"num_key_value_head": 8, "kv_lora_rank": None}
    path.write_text(json.dumps(BASE["llama"] | fields), encoding="utf-8")
    with pytest.raises(InvalidShape, match=r"config\.json' has the field 'num_key_value_head', 8"):
        load_shape(path)
    with pytest.raises(
        InvalidShape, match=r"\(nor 'kv_lora_rank'\): remove it .* did you mean 'num"
    ):
        load_shape(path)


HARMLESS: list[tuple[str, dict[str, Any]]] = [
    ("llama", {"pretraining_tp": None, "torchscript": False, "pruned_heads": {}}),
    ("llama", {"output_attentions": False, "tie_encoder_decoder": False, "attention_bias": None}),
    ("llama", {"num_experts": 0, "quantization_config": None, "partial_rotary_factor": 1.0}),
    ("llama", {"use_cache": False, "temperature": 0.7, "unsloth_version": "2025.1"}),
    ("llama", {"rope_scaling": None, "rope_parameters": {"rope_type": "default"}}),
    ("mistral", {"attention_bias": False, "mlp_bias": False}),
    ("mixtral", {"router_jitter_noise": 0.0, "num_experts": 8}),
    ("qwen2", {"attention_bias": True, "use_sliding_window": True, "max_window_layers": 28}),
    ("qwen2", {"layer_types": ["full_attention"] * 28}),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True, "num_key_value_heads": 25, "head_dim": 64}),
    ("gpt_neox", {"hidden_dropout_prob": 0.0, "head_dim": 256, "gradient_checkpointing": False}),
    ("bert", {"directionality": "bidi", "pooler_fc_size": 768, "is_decoder": False}),
    ("vit", {"pooler_act": "tanh", "image_size": [224, 224], "num_labels": 2}),
]


@pytest.mark.parametrize(("family", "more"), HARMLESS)
def test_harmless_values(family: str, more: dict[str, Any]) -> None:
    assert load_shape(BASE[family] | more) == load_shape(BASE[family])


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("llama", {"pretraining_tp": 2}, "pretraining_tp of the config is 2: transformers splits no"),
    ("llama", {"output_hidden_states": True}, "output_hidden_states of the config is True: what a"),
    ("llama", {"quantization": {"bits": 4}}, "quantization of the config is {'bits': 4}: quant"),
    ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor of the config is 0.5: this"),
    ("llama", {"rope_scaling": "linear"}, "rope_scaling of the config is 'linear': it must be a"),
    ("llama", {"attention_dropout": 1.5}, "attention_dropout of the config must be at least 0"),
    ("llama", {"sliding_window": 512}, "has the field 'sliding_window', 512, which is not known"),
    ("mistral", {"attention_bias": True}, "attention_bias of the config is True: the model_type's"),
    ("mistral", {"sliding_window": -1}, "sliding_window of the config must be a whole number >= 0"),
    ("mixtral", {"num_experts": 4}, "num_experts of the config is 4: num_local_experts is 8; remo"),
    ("mixtral", {"router_jitter_noise": 0.1}, "router_jitter_noise of the config is 0.1: noise"),
    ("qwen2", {"attention_bias": False}, "attention_bias of the config is False: queries, keys"),
    ("qwen2", {"layer_types": ["full_attention"]}, "it must say 'full_attention' or 'sliding_att"),
    (
        "gemma3_text",
        {"attn_logit_softcapping": 50.0},
        "only models of this family that cap nothing",
    ),
    ("gpt_oss", {"layer_types": 3}, "it must say 'full_attention' or 'sliding_attention' for each"),
    ("llama4_text", {"no_rope_layers": [1, 0]}, "it must say 0 or 1 for each of 48 layers"),
    (
        "llama4_text",
        {"moe_layers": 3},
        "moe_layers of the config is 3: it must be a list of blocks",
    ),
    ("deepseek_v3", {"rope_interleave": False}, "only heads that turn neighbours are known"),
    ("deepseek_v3", {"num_key_value_heads": 8}, "in this family each head has its own keys"),
    ("qwen3_moe", {"output_router_logits": True}, "the loss on the router's choices is not count"),
    ("gemma2", {"final_logit_softcapping": None}, "is None: only models that cap with a tanh"),
    ("gpt2", {"num_key_value_heads": 5}, "num_key_value_heads of the config is 5: in this family"),
    ("gpt2", {"reorder_and_upcast_attn": True}, "only attention in the model's dtype is known"),
    ("gpt_neox", {"rotary_pct": 1.5}, "rotary_pct of the config is 1.5: a share of a head must be"),
    ("gpt_neox", {"hidden_dropout_prob": 0.1}, "transformers reads hidden_dropout; say it there"),
    ("phi3", {"rope_parameters": {"partial_rotary_factor": 0}}, "in rope_parameters of the config"),
    ("bert", {"is_decoder": True}, "is_decoder of the config is True: only encoders of this"),
    ("bert", {"position_embedding_type": "relative_key"}, "only absolute positions are known"),
    ("roberta", {"hidden_act": "relu"}, "hidden_act of the config is 'relu': this family's head"),
    ("roberta", {"pad_token_id": 513}, "pad_token_id of the config is 513: positions begin after"),
    ("t5", {"num_layers": 1}, "num_layers of the config is 1: only stacks of at least 2 blocks"),
    ("t5", {"is_decoder": True}, "only encoders with their decoders are known; say false"),
    ("t5", {"feed_forward_proj": "gated-mish"}, "feed_forward_proj of the config must be one of"),
    ("vit", {"patch_size": [16, 8]}, "patch_size of the config is [16, 8]: only square patches"),
    ("vit", {"patch_size": 448}, "patch_size of the config is 448: an image has 224 × 224 pixels"),
    ("vit", {"image_size": [224]}, "image_size of the config is [224]: it must be a number, or"),
    ("vit", {"problem_type": "regression"}, "only a classifier of one class out of several"),
    ("vit", {"id2label": {"0": "yes"}}, "only a classifier of one class out of several is known"),
]


@pytest.mark.parametrize(("family", "more", "sentence"), REFUSED)
def test_a_value_that_is_not_covered(family: str, more: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidShape) as info:
        load_shape(BASE[family] | more)
    assert sentence in str(info.value)
    assert "\n" not in str(info.value)


def test_windows_and_turned_features() -> None:
    read = {family: load_shape(record) for family, record in BASE.items()}
    windows = {f: sorted({one.window for one in shape.kinds}) for f, shape in read.items()}
    assert {f: found for f, found in windows.items() if found != [0]} == {
        "gemma2": [0, 4096],
        "gemma3_text": [0, 512],
        "gpt_oss": [0, 128],
        "llama4_text": [0, 8192],
        "mistral": [4096],
        "phi3": [2047],
    }
    full = [i for i, one in enumerate(read["gemma3_text"].blocks) if not one.window]
    assert full == [5, 11, 17, 23]
    turned = {f: shape.rotary_width for f, shape in read.items() if shape.rotary_width}
    assert turned == {"gpt_neox": 64, "glm": 64, "glm4": 64, "deepseek_v3": 64}
    # Three quarters of a head of 128; a share that comes to an odd number of features.
    assert load_shape(json.loads(RELEASED["microsoft/Phi-4-mini-instruct"][1])).rotary_width == 96
    odd = {"rope_parameters": {"partial_rotary_factor": 0.27}}
    assert load_shape(BASE["phi3"] | odd).rotary_width == 26
    on = {"use_sliding_window": True, "max_window_layers": 0, "sliding_window": 1024}
    assert load_shape(BASE["qwen2"] | on).window == 1024
    some = load_shape(BASE["qwen2"] | on | {"max_window_layers": 14})
    assert [one.window for one in some.blocks] == [0] * 14 + [1024] * 14
    assert load_shape(BASE["qwen3_moe"] | on).window == 1024
    assert load_shape(BASE["mistral"] | {"sliding_window": None}).window == 0
    # A mistral that says nothing: transformers' own default.
    silent = {field: v for field, v in BASE["mistral"].items() if field != "sliding_window"}
    assert load_shape(silent).window == 4096

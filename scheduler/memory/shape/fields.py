"""Fields of a config.json that no size depends on, and the one value at which others do not.

A field that is neither here nor read by the model's family may change the memory in a way that
nobody has derived: it is refused by name. The lists are of what released configs carry and of what
transformers writes (its versions 2 to 5.24).
"""

from __future__ import annotations

from scheduler.common.text import did_you_mean, shown
from scheduler.memory.errors import Argument, InvalidShape
from scheduler.memory.shape.config import Config

__all__ = ["check_fields"]

_BOOKKEEPING = """
    model_type architectures auto_map custom_pipelines transformers_version torch_dtype dtype
    name_or_path _name_or_path _commit_hash _num_labels _attn_implementation attn_implementation
    _attn_implementation_autoset _attn_implementation_internal _flash_attn_2_enabled
    _experts_implementation experts_implementation _experts_implementation_internal
    trust_remote_code use_flash_attention_2 unsloth_fixed unsloth_version is_llama_config
    transformers.js_config use_bfloat16 tf_legacy_loss model_max_length max_sequence_length
    gradient_checkpointing
"""
_TOKENS = """
    bos_token_id eos_token_id pad_token_id sep_token_id cls_token_id unk_token_id mask_token_id
    decoder_start_token_id tokenizer_class prefix
"""
_GENERATION = """
    use_cache cache_implementation return_dict return_dict_in_generate output_scores output_past
    max_length max_new_tokens min_length do_sample early_stopping num_beams num_beam_groups
    diversity_penalty temperature top_k top_p typical_p repetition_penalty length_penalty
    no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids num_return_sequences
    forced_bos_token_id forced_eos_token_id remove_invalid_values suppress_tokens
    begin_suppress_tokens exponential_decay_length_penalty generation_config
"""
_NUMBERS = """
    initializer_range initializer_factor rms_norm_eps layer_norm_eps layer_norm_epsilon
    rope_theta rope_interleaved rotary_emb_base max_position_embeddings
    original_max_position_embeddings router_aux_loss_coef query_pre_attn_scalar
"""
_OTHER_TASKS = """
    id2label label2id num_labels problem_type finetuning_task task_specific_params
    classifier_dropout predict_special_tokens is_decoder summary_type summary_use_proj
    summary_activation summary_proj_to_labels summary_first_dropout
"""
_NEUTRAL = frozenset(" ".join((_BOOKKEEPING, _TOKENS, _GENERATION, _NUMBERS, _OTHER_TASKS)).split())
"""Fields that leave the memory of training as it is, whatever they hold."""

_NEUTRAL_IN: dict[str, frozenset[str]] = {
    # Transformers reads hidden_act; early files also have the other, both of the same size.
    "gemma": frozenset({"hidden_activation"}),
    "gemma2": frozenset({"hidden_act", "sliding_window", "sliding_window_size", "layer_types"}),
    # Transformers keeps embd_pdrop and applies only resid_pdrop. The others are of another runtime.
    "phi3": frozenset({"embd_pdrop", "full_attn_mod", "interpolate_factor"}),
    "gpt2": frozenset({"n_ctx", "scale_attn_weights", "scale_attn_by_inverse_layer_idx"}),
    # The width of dense blocks, which such a model has none of here.
    "qwen2_moe": frozenset({"intermediate_size"}),
    "qwen3_moe": frozenset({"intermediate_size"}),
}
"""The same, of one family."""

_QUANTISED = (
    "quantised weights are not read from a config; remove it, and say how frozen weights are "
    "stored by ",
    Argument("base", "nf4"),
)
_NO_BIAS = "the model_type's layers have none; correct the model_type, or remove it"
_NO_EXPERTS = "the model_type {family!r} has no experts; correct the model_type, or remove it"
_KEPT = "what a model returns stays in memory, which is not counted; say false"
_DECODER = "only decoders without an encoder are known"
_VALUES: dict[str, tuple[object, str | tuple[str | Argument, ...]]] = {
    "quantization_config": (None, _QUANTISED),
    "quantization": (None, _QUANTISED),
    "compression_config": (None, _QUANTISED),
    "num_local_experts": (0, _NO_EXPERTS),
    "num_experts": (0, _NO_EXPERTS),
    "n_routed_experts": (0, _NO_EXPERTS),
    "attention_bias": (False, _NO_BIAS),
    "mlp_bias": (False, _NO_BIAS),
    "lm_head_bias": (False, _NO_BIAS),
    "output_attentions": (False, _KEPT),
    "output_hidden_states": (False, _KEPT),
    "output_router_logits": (False, "the loss on the router's choices is not counted; say false"),
    "router_jitter_noise": (0, "noise on the router's input is not counted; say 0"),
    "is_encoder_decoder": (False, _DECODER),
    "add_cross_attention": (False, _DECODER),
    "cross_attention_hidden_size": (None, _DECODER),
    "tie_encoder_decoder": (False, _DECODER),
    "pretraining_tp": (1, "transformers splits no layer in parts any more; say 1"),
    "chunk_size_feed_forward": (0, "only an MLP that sees all tokens at once is known; say 0"),
    "pruned_heads": ({}, "only blocks with all their heads are known; remove it"),
    "torchscript": (False, "a traced model ties no weights, which is not counted; say false"),
    "reorder_and_upcast_attn": (False, "only attention in the model's dtype is known; say false"),
    "use_bidirectional_attention": (False, "only causal attention is known; say false"),
    "use_mrope": (False, "only positions along one line are known; say false"),
    "attention_probs_dropout_prob": (0, "transformers reads attention_dropout; say it there"),
    "hidden_dropout_prob": (0, "transformers reads hidden_dropout; say it there"),
}
"""Fields known at one value, or at null; elsewhere the sentence says why not."""


def check_fields(config: Config, family: str) -> None:
    """Refuse what nobody has read, unless it is known to leave the memory as it is.

    Raises
    ------
    InvalidShape
        A field is not known, or known at another value than it holds.
    """
    left = {field: value for field, value in config.record.items() if field not in config.asked}
    for field, value in left.items():
        if field in _VALUES:
            known, reason = _VALUES[field]
            why = (reason.format(family=family),) if isinstance(reason, str) else reason
            # A mapping of no entries and a flag of 0 say what null does.
            if value is not None and value != known:
                config.refuse(field, value, *why)
    neutral = _NEUTRAL | _NEUTRAL_IN.get(family, frozenset())
    known_names = sorted({*config.asked, *neutral, *_VALUES})
    unknown = [field for field in left if field not in neutral and field not in _VALUES]
    if unknown:
        _refuse_unknown(config, family, unknown, known_names)


def _refuse_unknown(config: Config, family: str, unknown: list[str], known: list[str]) -> None:
    first = unknown[0]
    near = did_you_mean(first, known)
    more = f" (nor {', '.join(map(shown, unknown[1:]))})" if unknown[1:] else ""
    raise InvalidShape(
        f"{config.where} has the field {shown(first)}, {shown(config.record[first])}, which is not "
        f"known of the model_type {family!r}{more}: remove it if the model's memory does not "
        f"depend on it, else this model is not covered{near}"
    )

"""A config.json as its reader sees it: fields asked for by name, each checked and remembered.

A field that the model's family does not read and that is not listed here may change the memory in a
way that nobody has derived: it is refused by name. The lists, of fields that no size depends on and
of the one value at which others do not, are of what released configs carry and of what transformers
writes (its versions 2 to 5.24).
"""

from __future__ import annotations

from collections.abc import Mapping

from scheduler.common.text import did_you_mean, shown
from scheduler.memory.errors import (
    Argument,
    InvalidShape,
    check_choice,
    check_count,
    check_flag,
    check_probability,
)

_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "relu": "relu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "gelu_new": "gelu_new",
}


class Config:
    """What a file holds, each field asked for by name and checked; `where` is how errors call it.

    `asked` are the fields that somebody has asked for, whether they are there or not: those that
    the model's family reads.
    """

    def __init__(self, record: Mapping[str, object], where: str) -> None:
        self.record = record
        self.where = where
        self.asked: set[str] = set()

    def get(self, field: str, default: object = None) -> object:
        """What the field holds; `default` where it is absent."""
        self.asked.add(field)
        return self.record.get(field, default)

    def has(self, field: str) -> bool:
        """Whether the field is there, and not null."""
        return self.get(field) is not None

    def size(self, field: str, default: int | None = None, least: int = 1) -> int:
        """A size; `default` serves where the field is absent or null."""
        if not self.has(field):
            if default is not None:
                return default
            raise InvalidShape(
                f"{self.where} has no {field!r}, which the model_type "
                f"{shown(self.record.get('model_type'))} needs; add it"
            )
        return check_count(f"{field} of {self.where}", self.record[field], InvalidShape, least)

    def flag(self, field: str, default: bool) -> bool:
        """True or False; `default` serves where the field is absent or null."""
        if not self.has(field):
            return default
        return check_flag(f"{field} of {self.where}", self.record[field], InvalidShape)

    def dropout(self, field: str, default: float = 0.0) -> float:
        """A probability; `default` where the field is absent, none where it is null."""
        value = self.get(field, default)
        return check_probability(f"{field} of {self.where}", value or 0.0, InvalidShape)

    def activation(self, field: str) -> str:
        """An activation function, as a shape calls it."""
        if not self.has(field):
            self.size(field)
        what = f"{field} of {self.where}"
        return _ACTIVATIONS[check_choice(what, self.record[field], _ACTIVATIONS, InvalidShape)]

    def per_head(self, width: str, heads: str) -> int:
        """The width of a head where nothing says it: the heads share the model's width."""
        if self.size(width) % self.size(heads):
            raise InvalidShape(
                f"{width} of {self.where}, {self.size(width)}, is not a multiple of its "
                f"{self.size(heads)} heads ({heads}); make it one"
            )
        return self.size(width) // self.size(heads)

    def share(self, default: float, *names: str) -> float:
        """The share of a head's features that rotary positions turn, above 0 and at most 1.

        Transformers 5 writes it into ``rope_parameters``; before, it was a field of its own, one of
        `names`. Where layers of several types turn differently it is in an object for each type.
        """
        found = []
        for field in ("rope_scaling", "rope_parameters"):
            inside = self.get(field)
            if inside is not None and not isinstance(inside, Mapping):
                self.refuse(field, inside, "it must be a JSON object or null")
            of_types = inside.values() if isinstance(inside, Mapping) else ()
            for each in (inside, *of_types):
                if isinstance(each, Mapping) and each.get("partial_rotary_factor") is not None:
                    what = f"partial_rotary_factor in {field}"
                    found.append((what, each["partial_rotary_factor"]))
        found += [(field, self.record[field]) for field in names if self.has(field)]
        for field, share in found:
            if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
                self.refuse(field, share, "a share of a head must be above 0 and at most 1")
            else:
                return share
        return default

    def only(self, field: str, known: object, why: str) -> None:
        """Refuse a field that is there and neither null nor `known`."""
        if self.has(field) and self.record[field] != known:
            self.refuse(field, self.record[field], why)

    def refuse(self, field: str, value: object, *why: str | Argument) -> None:
        """Say what is wrong with a field."""
        raise InvalidShape(f"{field} of {self.where} is {shown(value)}: ", *why)


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
    # What a classifier of images does not have: a pooler, a decoder of masked patches.
    "bert": frozenset(
        {
            "directionality",
            "pooler_fc_size",
            "pooler_num_attention_heads",
            "pooler_num_fc_layers",
            "pooler_size_per_head",
            "pooler_type",
        }
    ),
    "t5": frozenset(
        {
            "relative_attention_max_distance",
            "dense_act_fn",
            "is_gated_act",
            "n_positions",
        }
    ),
    "vit": frozenset({"encoder_stride", "pooler_output_size", "pooler_act"}),
    # Transformers reads hidden_act; early files also have the other, both of the same size.
    "gemma": frozenset({"hidden_activation"}),
    "gemma2": frozenset({"hidden_act", "sliding_window_size"}),
    "gemma3_text": frozenset({"hidden_act", "rope_local_base_freq"}),
    # Transformers keeps embd_pdrop and applies only resid_pdrop. The others are of another runtime.
    "phi3": frozenset({"embd_pdrop", "full_attn_mod", "interpolate_factor"}),
    "gpt2": frozenset({"n_ctx", "scale_attn_weights", "scale_attn_by_inverse_layer_idx"}),
    # What follows from other fields, what transformers does not read, and layers that predict
    # further tokens (MTP), which it does not build.
    "deepseek_v3": frozenset(
        """
        head_dim qk_head_dim num_nextn_predict_layers num_mtp_layers scoring_func topk_method
        routed_scaling_factor seq_aux aux_loss_alpha ep_size
        """.split()  # noqa: SIM905
    ),
    "llama4_text": frozenset({"floor_scale", "attn_scale", "for_llm_compressor"}),
    # Experts of a token by an older name, and the length of the cache.
    "gpt_oss": frozenset(
        ("swiglu_alpha", "swiglu_limit", "experts_per_token", "initial_context_length")
    ),
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
    """Refuse what nobody has read, unless it is known to leave the memory as it is."""
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
        first = unknown[0]
        near = did_you_mean(first, known_names)
        more = f" (nor {', '.join(map(shown, unknown[1:]))})" if unknown[1:] else ""
        raise InvalidShape(
            f"{config.where} has the field {shown(first)}, {shown(config.record[first])}, which is "
            f"not known of the model_type {family!r}{more}: remove it if the model's memory does "
            f"not depend on it, else this model is not covered{near}"
        )

"""Tiny models of transformers, whatever their kind: built, fed, and their blocks."""

from __future__ import annotations

from importlib import import_module
from typing import Any

torch: Any = import_module("torch")  # untyped here: these models are built by name
transformers: Any = import_module("transformers")

_KINDS = {
    "vit": "AutoModelForImageClassification",
    "bert": "AutoModelForMaskedLM",
    "roberta": "AutoModelForMaskedLM",
    "t5": "AutoModelForSeq2SeqLM",
}


def kind_of(config: Any) -> Any:
    """The class that makes a model with the head that a shape of this family has."""
    return getattr(transformers, _KINDS.get(config.model_type, "AutoModelForCausalLM"))


def batch_of(model: Any, batch: int, sequence: int, device: str = "cpu") -> dict[str, Any]:
    """What a model is trained on: tokens, or images, whose size is the config's."""
    config = model.config
    if hasattr(config, "image_size"):
        sides = (config.num_channels, config.image_size, config.image_size)
        images = torch.rand(batch, *sides, device=device, dtype=model.dtype)
        labels = torch.randint(0, config.num_labels, (batch,), device=device)
        return {"pixel_values": images, "labels": labels}
    ids = torch.randint(2, config.vocab_size, (batch, sequence), device=device)
    return {"input_ids": ids, "labels": ids.clone()}


def blocks_of(model: Any) -> Any:
    """The list of a model's blocks."""
    lists = (part for part in model.modules() if isinstance(part, torch.nn.ModuleList))
    return next(lists)

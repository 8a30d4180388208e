"""Which models there are, and one of them made, with a batch that it trains on."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._pytree import tree_leaves
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

from tests.pytorch.zoo.batches import Batches
from tests.pytorch.zoo.configs import tiny
from tests.pytorch.zoo.exceptions import CONFIGS

_HEADS = {  # what a model is taken for, the first that there is; and its kind in the table
    "CAUSAL_LM": "causal",
    "SEQ_TO_SEQ_CAUSAL_LM": "sequence to sequence",
    "SPEECH_SEQ_2_SEQ": "sequence to sequence",
    "IMAGE_TEXT_TO_TEXT": "multimodal",
    "MULTIMODAL_LM": "multimodal",
    "MASKED_LM": "masked",
    "CTC": "audio",
    "RNNT": "audio",
    "TDT": "audio",
    "IMAGE_CLASSIFICATION": "image",
    "VIDEO_CLASSIFICATION": "video",
    "SEMANTIC_SEGMENTATION": "image",
    "UNIVERSAL_SEGMENTATION": "image",
    "OBJECT_DETECTION": "image",
    "ZERO_SHOT_OBJECT_DETECTION": "multimodal",
    "DEPTH_ESTIMATION": "image",
    "AUDIO_CLASSIFICATION": "audio",
    "TEXT_TO_SPECTROGRAM": "audio",
    "TIME_SERIES_PREDICTION": "time series",
    "VISUAL_QUESTION_ANSWERING": "multimodal",
    "QUESTION_ANSWERING": "masked",
    "SEQUENCE_CLASSIFICATION": "masked",
    "PRETRAINING": "pretraining",
}


@dataclass(frozen=True)
class Made:
    """A model in training mode, a batch of it, and its loss (None: its output's own)."""

    model: nn.Module
    batch: Any
    loss_fn: Callable[[Any], Any] | None


@dataclass(frozen=True)
class Entry:
    """A model of the zoo; `makes` are ways to make it, of which the first that trains counts."""

    name: str
    kind: str
    makes: tuple[Callable[[], Iterator[Made]], ...]

    def in_tenth(self, tenth: int) -> bool:
        """Whether it belongs to this tenth of all: a matter of its name alone."""
        return zlib.crc32(self.name.encode()) % 10 == tenth


def seed() -> None:
    """Set every random state to the same."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)


def entries() -> list[Entry]:
    """Every model that is installed, `transformers` first."""
    from tests.pytorch.zoo.others import diffusers_entries, timm_entries

    return [*transformers_entries(), *diffusers_entries(), *timm_entries()]


def transformers_entries() -> list[Entry]:
    """One model of each type of configuration that is no mere part of another."""
    heads = {
        key: getattr(modeling_auto, f"MODEL_FOR_{key}_MAPPING_NAMES") for key in _HEADS
    }
    base = modeling_auto.MODEL_MAPPING_NAMES
    found: list[Entry] = []
    taken: set[str] = set()
    for kind in CONFIG_MAPPING_NAMES:
        names = [(_HEADS[key], mapping[kind]) for key, mapping in heads.items() if kind in mapping]
        if kind in base and not kind.endswith(("_text", "_vision", "_text_model", "_vision_model")):
            names.append(("base", base[kind]))
        classes = [
            (what, name)
            for what, each in names
            for name in ((each,) if isinstance(each, str) else each[:1])
        ]
        if not classes or classes[0][1] in taken:
            continue
        taken.add(classes[0][1])
        makes = tuple(_maker(kind, name) for _, name in classes[:3])
        found.append(Entry(f"transformers/{kind}", classes[0][0], makes))
    return found


def _maker(kind: str, name: str) -> Callable[[], Iterator[Made]]:
    def make() -> Iterator[Made]:
        import transformers

        config = tiny(CONFIG_MAPPING[kind](), CONFIGS.get(kind))
        seed()
        model = getattr(transformers, name)(config).train()
        for batch in Batches(model):
            own = any(key in batch for key in ("labels", "start_positions", "return_loss", "mask_labels"))
            yield Made(model, batch, None if own else mean_square)

    return make


def mean_square(output: Any) -> torch.Tensor:
    """A loss for a model that has none: of the first tensor that takes a gradient."""
    values = output.values() if isinstance(output, dict) else output
    leaves = tree_leaves(list(values) if not isinstance(values, torch.Tensor) else [values])
    return next(
        leaf.float().square().mean()
        for leaf in leaves
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad
    )

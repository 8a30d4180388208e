"""Models of `transformers`: one of each type of configuration that is no mere part of another."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import transformers
from transformers.models.auto import configuration_auto, modeling_auto

from tests.pytorch.zoo.batches import TARGETS, Batches
from tests.pytorch.zoo.configs import tiny
from tests.pytorch.zoo.exceptions import CONFIGS
from tests.pytorch.zoo.models import Entry, Made, mean_square, seed

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


def transformers_entries() -> list[Entry]:
    """One model of each type of configuration that is no mere part of another."""
    heads = {key: getattr(modeling_auto, f"MODEL_FOR_{key}_MAPPING_NAMES") for key in _HEADS}
    base = modeling_auto.MODEL_MAPPING_NAMES
    found: list[Entry] = []
    taken: set[str] = set()
    for kind in configuration_auto.CONFIG_MAPPING:
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
        config = tiny(configuration_auto.CONFIG_MAPPING[kind](), CONFIGS.get(kind))
        seed()
        model = getattr(transformers, name)(config).train()
        for batch in Batches(model):
            own = not batch.keys().isdisjoint(TARGETS)
            yield Made(model, batch, None if own else mean_square)

    return make

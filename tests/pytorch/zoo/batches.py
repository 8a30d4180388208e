"""Batches for models of `transformers`, from their configuration and the arguments they take."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

ROWS, LENGTH = 2, 48

_IMAGE = r"^(pixel_values|image|images|image_pixel_values|pixel_values_images)$"


class Batches:
    """What a model may be called with: the richest batch first."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.config = model, model.config
        self.kind = type(model).__name__
        self.takes = set(inspect.signature(model.forward).parameters)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        main = getattr(self.model, "main_input_name", "input_ids")
        inputs = self.inputs()
        text = {key: value for key, value in inputs.items() if "ids" in key}
        labels = self.labels()
        for batch in (inputs, text, {k: v for k, v in inputs.items() if k == main}):
            if not batch:
                continue
            for target in labels:
                yield {**batch, **target}
            yield batch

    def inputs(self) -> dict[str, Any]:
        """One input of every kind that the model takes."""
        found: dict[str, Any] = {}
        ids = self.tokens(LENGTH)
        for name in self.takes:
            if name in ("input_ids", "decoder_input_ids"):
                found[name] = ids
            elif name == "bbox":
                found[name] = torch.tensor([1, 2, 8, 9]).expand(ROWS, LENGTH, 4).contiguous()
            elif re.search(_IMAGE, name):
                found[name] = self.image()
            elif name in ("pixel_values_videos", "video"):
                found[name] = self.image()[:, None].repeat(1, 4, 1, 1, 1)
            elif name in ("input_features", "audio_features", "audio_input_features"):
                found[name] = self.sound()
            elif name in ("input_values", "audio_values", "audio"):
                found[name] = noise(ROWS, 4000)
            elif name in ("past_values", "context", "past_time_features"):
                found[name] = noise(ROWS, LENGTH)
            elif name == "inputs":
                found[name] = ids
        if "decoder_input_ids" in found and "labels" in self.takes:
            del found["decoder_input_ids"]
        return found

    def labels(self) -> list[dict[str, Any]]:
        """Targets, by what the model is for."""
        kind, takes = self.kind, self.takes
        some = torch.arange(ROWS)
        if "start_positions" in takes:
            return [{"start_positions": some, "end_positions": some + 3}]
        if "return_loss" in takes:
            return [{"return_loss": True}]
        if "next_sentence_label" in takes:
            return [{"labels": self.tokens(LENGTH), "next_sentence_label": some % 2}]
        if "mask_labels" in takes:
            size = _number(self.config, "image_size", 64)
            masks = [torch.ones(1, size, size) for _ in range(ROWS)]
            return [{"mask_labels": masks, "class_labels": [torch.tensor([0])] * ROWS}]
        if "labels" not in takes:
            return []
        if re.search("Detection|Pose", kind):
            box = {"class_labels": torch.tensor([0, 1]), "boxes": torch.rand(2, 4) / 2 + 0.2}
            return [{"labels": [box] * ROWS}]
        if "SemanticSegmentation" in kind:
            size = _number(self.config, "image_size", 64)
            return [{"labels": torch.zeros(ROWS, size, size, dtype=torch.long)}]
        whole = {"labels": some % 2}
        every = {"labels": self.tokens(LENGTH)}
        short = {"labels": self.tokens(6)}
        if "TokenClassification" in kind or "FrameClassification" in kind:
            return [{"labels": every["labels"] % 2}]
        if "CTC" in kind or "RNNT" in kind or "TDT" in kind:
            return [short]
        if re.search("Classification|XVector|Multiple", kind):
            return [whole]
        return [every, short, whole]

    def tokens(self, length: int) -> torch.Tensor:
        """Ids of words that mean nothing else."""
        known = _numbers(self.config, "vocab_size")
        largest = min([100, *(v - 1 for v in known if v > 8)])
        generator = torch.Generator().manual_seed(0)
        low = min(16, largest // 2)
        return torch.randint(low, largest, (ROWS, length), generator=generator)

    def image(self) -> torch.Tensor:
        """Pictures of the size that the configuration says."""
        channels = _number(self.config, "num_channels", 3)
        if channels > 9:
            channels = 3
        size = _number(self.config, "image_size", 64)
        return noise(ROWS, channels, size, size)

    def sound(self) -> torch.Tensor:
        """Features of sound, as many as there are positions for."""
        mel = _number(self.config, "num_mel_bins", 16)
        length = 2 * _number(self.config, "max_source_positions", 64)
        if re.search("Whisper|Audio|Voxtral|Qwen", self.kind):
            return noise(ROWS, mel, length)
        return noise(ROWS, length, mel)


def noise(*shape: int) -> torch.Tensor:
    """Numbers that are the same each time."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def _numbers(config: Any, key: str) -> list[int]:
    """The field of this name in a configuration and in those nested in it."""
    found: list[int] = []
    for name, value in vars(config).items():
        if name == key:
            pair = isinstance(value, list | tuple)
            if isinstance(value[0] if pair and value else value, int):
                found.append(value[0] if pair else value)
        elif hasattr(value, "to_dict"):
            found += _numbers(value, key)
    return found


def _number(config: Any, key: str, default: int) -> int:
    return next(iter(_numbers(config, key)), default)

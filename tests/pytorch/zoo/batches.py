"""Batches for models of `transformers`, from their configuration and the arguments they take."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from itertools import product
from typing import Any

import torch
from torch import nn

ROWS, LENGTH = 2, 48

TARGETS = ("labels", "start_positions", "return_loss", "mask_labels")

Batch = dict[str, Any]


class Batches:
    """What a model may be called with: the richest batch first."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.config = model, model.config
        self.kind = type(model).__name__
        self.takes = set(inspect.signature(model.forward).parameters)

    def __iter__(self) -> Iterator[Batch]:
        """Every batch in which each kind of input has one of the forms that it may have."""
        ids = {k: self.tokens(LENGTH) for k in self.takes if k in ("input_ids", "inputs")}
        if "bbox" in self.takes:
            ids["bbox"] = torch.tensor([1, 2, 8, 9]).expand(ROWS, LENGTH, 4).contiguous()
        if "decoder_input_ids" in self.takes and "labels" not in self.takes:
            ids["decoder_input_ids"] = self.tokens(LENGTH)
        senses = [forms for forms in (self.pictures(), self.films(), self.sounds()) if forms]
        for forms in product(*senses):
            batch = dict(ids)
            for form in forms:
                batch |= form
            yield from self.labelled(self.with_places(batch) if forms else batch)
            if forms and ids:
                yield from self.labelled({k: v for k, v in batch.items() if k not in ids})
        if senses and ids:
            yield from self.labelled(ids)

    def labelled(self, batch: Batch) -> Iterator[Batch]:
        """The batch with targets of what the model may be for, and without."""
        for target in self.targets(batch):
            yield {**batch, **target}
        yield batch

    def pictures(self) -> list[Batch]:
        """Pictures of the size that the configuration says."""
        name = next((k for k in self.takes if re.search(r"^(pixel_values|images?)$", k)), None)
        if name is None:
            return []
        channels, size = self.number("num_channels", 3), self.number("image_size", 64)
        patch, frames = self.number("patch_size", 8), self.number("num_frames", 4)
        if "image_grid_thw" in self.takes:
            inside = 3 * self.number("temporal_patch_size", 1) * patch * patch
            grid = torch.tensor([[1, 4, 4]] * ROWS)
            return [{name: noise(16 * ROWS, inside), "image_grid_thw": grid}]
        if "spatial_shapes" in self.takes:
            shapes = torch.tensor([[4, 4]] * ROWS)
            mask = torch.ones(ROWS, 16, dtype=torch.long)
            values = noise(ROWS, 16, 3 * patch * patch)
            return [{name: values, "spatial_shapes": shapes, "pixel_attention_mask": mask}]
        one = {name: noise(ROWS, channels, size, size)}
        return [
            one,
            {name: one[name][:, None].repeat(1, frames, 1, 1, 1)},
            {name: one[name][:, None]},
        ]

    def films(self) -> list[Batch]:
        """Films, where there is an input for them and none for pictures."""
        if "pixel_values_videos" not in self.takes or "pixel_values" in self.takes:
            return []
        size, frames = self.number("image_size", 64), self.number("num_frames", 4)
        return [{"pixel_values_videos": noise(ROWS, frames, 3, size, size)}]

    def sounds(self) -> list[Batch]:
        """Sound as features or as samples, whichever way round."""
        masks = {
            k: torch.ones(ROWS, 128, dtype=torch.long)
            for k in self.takes
            if re.search(r"(input_features|feature_attention|feature)_mask$", k)
        }
        if "input_features" in self.takes:
            mels = dict.fromkeys([self.number(k, 16) for k in ("num_mel_bins", "feature_size")])
            length = min(2 * self.number("max_source_positions", 64), 256)
            masks = {k: torch.ones(ROWS, length, dtype=torch.long) for k in masks}
            forms = [noise(ROWS, mel, length) for mel in mels]
            forms += [form.transpose(1, 2).contiguous() for form in forms]
            return [{"input_features": form, **masks} for form in forms]
        name = next((k for k in ("input_values", "audio_values") if k in self.takes), None)
        if name is None:
            return []
        return [
            {name: noise(ROWS, 4000)},
            {name: noise(ROWS, 1, 3840)},
            {name: noise(ROWS, 128, self.number("num_mel_bins", 16))},
        ]

    def with_places(self, batch: Batch) -> Batch:
        """Text with as many places for pictures as the model says that it has features for."""
        token = next(
            (
                value
                for key in ("image_token_id", "image_token_index", "audio_token_id")
                if isinstance(value := getattr(self.config, key, None), int)
            ),
            None,
        )
        if token is None or "input_ids" not in batch:
            return batch
        if "mm_token_type_ids" in self.takes:
            batch = {**batch, "mm_token_type_ids": torch.zeros_like(batch["input_ids"])}
        try:
            with torch.no_grad():
                self.model(**batch)
        except Exception as error:
            if found := re.search(r"features:? *(\d+)", str(error)):
                places = torch.full((ROWS, int(found[1]) // ROWS), token)
                ids = torch.cat([places, batch["input_ids"]], 1)
                kinds = {k: (ids == token).long() for k in batch if k == "mm_token_type_ids"}
                return {**batch, **kinds, "input_ids": ids}
        return batch

    def targets(self, batch: Batch) -> list[Batch]:
        """Targets, by what the model is for."""
        kind, takes = self.kind, self.takes
        some = torch.arange(ROWS)
        if "start_positions" in takes:
            return [{"start_positions": some, "end_positions": some + 3}]
        if "return_loss" in takes:
            return [{"return_loss": True}]
        every = {"labels": batch.get("input_ids", self.tokens(LENGTH))}
        if "next_sentence_label" in takes:
            return [{**every, "next_sentence_label": some % 2}]
        size = self.number("image_size", 64)
        if "mask_labels" in takes:
            masks = [torch.ones(1, size, size) for _ in range(ROWS)]
            return [{"mask_labels": masks, "class_labels": [torch.tensor([0])] * ROWS}]
        if "labels" not in takes:
            return []
        if re.search("Detection|Pose", kind):
            boxes = torch.tensor([[0.4, 0.4, 0.3, 0.3], [0.6, 0.5, 0.2, 0.4]])
            return [{"labels": [{"class_labels": torch.tensor([0, 1]), "boxes": boxes}] * ROWS}]
        if "SemanticSegmentation" in kind:
            return [{"labels": torch.zeros(ROWS, size, size, dtype=torch.long)}]
        whole, short = {"labels": some % 2}, {"labels": self.tokens(6)}
        if "TokenClassification" in kind or "FrameClassification" in kind:
            return [{"labels": every["labels"] % 2}]
        if re.search("CTC|RNNT|TDT", kind):
            return [short]
        if re.search("Classification|XVector|Multiple", kind):
            return [whole]
        return [every, short, whole]

    def tokens(self, length: int) -> torch.Tensor:
        """Ids of words that mean nothing else."""
        largest = min([96, *(v - 1 for v in _numbers(self.config, "vocab_size") if v > 8)])
        generator = torch.Generator().manual_seed(0)
        return torch.randint(min(16, largest // 2), largest, (ROWS, length), generator=generator)

    def number(self, key: str, default: int) -> int:
        """The first field of this name, here or nested."""
        return next(iter(_numbers(self.config, key)), default)


def noise(*shape: int) -> torch.Tensor:
    """Numbers that are the same each time."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def _numbers(config: Any, key: str) -> list[int]:
    found: list[int] = []
    for name, value in vars(config).items():
        if name == key:
            pair = isinstance(value, list | tuple) and bool(value)
            if isinstance(first := value[-1] if pair else value, int):
                found.append(first)
        elif hasattr(value, "to_dict"):
            found += _numbers(value, key)
    return found

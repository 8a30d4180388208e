"""Make the costs that come with the package: ``python benchmarks/examples.py``, with torchvision.

All are of one machine, an H100 by its data sheet (`scheduler.memory.gpus`): nothing is measured.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import torch
from torch import nn

import scheduler
from scheduler import CostGraph
from scheduler.memory import costs_from_shape
from scheduler.pytorch import profile

FOLDER = Path(scheduler.__file__).parent / "costs" / "examples"
GPU = "h100"
NOTE = (
    "One step of {} on one NVIDIA H100, by the roofline of its data sheet, not measured (made by "
    "benchmarks/examples.py)."
)


class Dense(nn.Module):
    """A dense layer that hands on what it was given beside what it makes."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        """The input, and the layer's output behind it."""
        return torch.cat((given, self.layer(given)), 1)


def in_a_row(model: nn.Module) -> nn.Sequential:
    """A network of torchvision as a sequence of its layers, under their names."""
    body = [each for each in getattr(model, "features", model).named_children() if each[0] != "fc"]
    parts = OrderedDict(body)
    for name, part in body:
        if name.startswith("denseblock"):
            dense = ((key, Dense(layer)) for key, layer in part.named_children())
            parts[name] = nn.Sequential(OrderedDict(dense))
        elif isinstance(part, nn.ReLU):
            parts[name] = nn.ReLU()  # not in place, which could not be run again
    if "norm5" in parts:
        parts["relu5"] = nn.ReLU()
    parts |= {"avgpool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten()}
    parts["classifier"] = model.get_submodule("fc" if hasattr(model, "fc") else "classifier")
    return nn.Sequential(parts)


def loss(logits: torch.Tensor) -> torch.Tensor:
    """The cross-entropy with labels that are made on the spot."""
    labels = torch.zeros(len(logits), dtype=torch.int64, device=logits.device)
    return nn.functional.cross_entropy(logits, labels)


def examples() -> Iterator[CostGraph]:
    """The costs, each with a note of what they are."""
    note = NOTE.format("8 sequences of 1,024 tokens in bf16")
    yield replace(costs_from_shape("gpt2", 8, 1024, gpu=GPU), name="gpt2-small", note=note)
    for name, batch in (("resnet18", 32), ("resnet152", 16), ("densenet121", 16)):
        with torch.device("meta"):
            model = in_a_row(getattr(import_module("torchvision").models, name)())
            images = torch.empty(batch, 3, 224, 224)
        costs = profile(model, images, loss, gpu=GPU)
        note = NOTE.format(f"{batch} images of 224 x 224 in fp32 (products in TF32)")
        yield replace(costs, name=name, note=note)


if __name__ == "__main__":
    for costs in examples():
        costs.save(FOLDER / f"{costs.name}.json")
        print(costs)

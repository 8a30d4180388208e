"""Command-line options that describe a model and how it is trained; light to import."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

__all__ = ["MODEL_OPTIONS", "add_model_options"]

# Option, type, metavar, help. None of them has a default here: what was not given is left to the
# functions that take it, and an option without --model can be told.
_OPTIONS = (
    ("gpu", str, "GPU", "a100-40, a100-80, h100, h200, l40s, rtx4090, b200 (default: h100)"),
    ("batch", int, "B", "sequences on each GPU (default: 1)"),
    ("sequence", int, "S", "tokens in each (default: 4096, or the model's learned positions)"),
    ("precision", str, "P", "bf16-mixed (default), fp16-mixed, fp32, autocast, bf16"),
    ("optimizer", str, "O", "adamw, sgd, lion, adafactor, muon, adam-8bit …"),
    ("zero", str, "STAGE", "0 to 3, or fsdp, over --gpus (default: 0)"),
    ("gpus", int, "N", "data-parallel GPUs (default: 1)"),
    ("lora", str, "SPEC", "train adapters: r=16,targets=all,dtype=bf16,dropout=0.05"),
    ("base", str, "KIND", "frozen weights in nf4, nf4-double, bf16, fp16, fp32"),
    ("attention", str, "A", "sdpa (default) or eager"),
    ("loss", str, "L", "hf (default), hf-outputs-kept, bf16, chunked"),
    ("gradient-dtype", str, "D", "gradients kept in fp32, bf16, fp16 (default: as weights)"),
    ("update", str, "U", "optimizer's step: fused (default), foreach"),
    ("efficiency", float, "SHARE", "of the GPU's peak FLOP/s that training reaches"),
)
_FLAGS = (
    ("frozen", "train no weight"),
    (
        "options",
        "also keep parts of a block: chosen results inside it, the rest is made again",
    ),
    (
        "gradient-accumulation",
        "those of earlier micro-batches are there from the start, in fp32 or --gradient-dtype",
    ),
)
_PARALLEL = ("tensor", "pipeline", "sequence", "context", "expert")
MODEL_OPTIONS = tuple(name for name, *_ in (*_OPTIONS, *_FLAGS))


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Add --model and what goes with it."""
    group = parser.add_argument_group("a model in place of a cost file")
    group.add_argument(
        "--model", metavar="NAME", help="llama-3-8b, gpt2, …, or the path to a config.json"
    )
    # Kept under the names that they are given by, hyphens too, so that messages can name them.
    for name, kind, metavar, text in _OPTIONS:
        group.add_argument(f"--{name}", dest=name, type=kind, metavar=metavar, help=text)
    for name, text in _FLAGS:
        group.add_argument(f"--{name}", dest=name, action="store_true", default=None, help=text)
    for name in _PARALLEL:
        group.add_argument(
            f"--{name}-parallel", nargs="?", action=_NotThere, help=argparse.SUPPRESS
        )


class _NotThere(argparse.Action):
    """A kind of parallelism that has no formulas here: say so, and what there is."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        argument = self.dest
        parser.error(
            f"there is no {option_string}: costs are of data-parallel GPUs (--zero, --gpus); in "
            f"Python training_state({argument}=...) divides the persistent state"
        )

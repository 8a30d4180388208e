"""Command-line options that describe a model and how it is trained; light to import."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection
from typing import Any, NamedTuple


class Option(NamedTuple):
    """An option: its flag without the hyphens before it, what it holds, and its help.

    Without a `metavar` it holds nothing. It gives the argument, or the field of a recipe, that is
    named like the flag; where the two differ, `field`.
    """

    flag: str
    metavar: str
    help: str
    type: Callable[[str], object] = str
    field: str = ""

    @property
    def argument(self) -> str:
        """The argument, or the field of a `Recipe`, that it gives."""
        return self.field or self.flag.replace("-", "_")


def _stage(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


def _tokens(text: str) -> int:
    thousands = text[:-1]
    if text[-1:] in ("k", "K") and thousands.isdecimal():
        either = f"{int(thousands) * 1024} or {thousands}000"
        raise argparse.ArgumentTypeError(f"{text!r} has two readings: write {either}")
    try:
        return int(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"invalid int value: {text!r}") from error


# None of them has a default here: what was not given is left to the functions that take it, and an
# option without --model can be told.
OPTIONS = (
    Option(
        "gpu",
        "GPU",
        "h100 (default), a100-80, b200, rtx4090, mi300x, gaudi3 …, or as "
        "memory=80GB,flops=989e12,bandwidth=3.35e12",
    ),
    Option("batch", "B", "sequences on each GPU (default: 1)", int),
    Option(
        "sequence", "S", "tokens in each (default: 4096, or the model's learned positions)", _tokens
    ),
    Option("precision", "P", "bf16-mixed (default), fp16-mixed, fp32, autocast, bf16"),
    Option(
        "optimizer",
        "O",
        "adamw (default), adam-8bit, paged-adam-8bit, lion, adafactor, muon, soap, shampoo, "
        "galore,rank=128 …, or as transformers' --optim has it",
    ),
    Option("zero", "STAGE", "0 to 3, or fsdp, over --gpus (default: 0)", _stage),
    Option("gpus", "N", "all GPUs (default: as few as --tp, --cp, --ep and --pp need)", int),
    Option("tp", "N", "GPUs that share heads, MLPs and words", int, "tensor_parallel"),
    Option("sequence-parallel", "", "these also share the tokens between such layers"),
    Option("cp", "N", "GPUs that share the tokens of a sequence", int, "context_parallel"),
    Option("ep", "N", "GPUs that share experts", int, "expert_parallel"),
    Option("pp", "N", "stages of a pipeline", int, "pipeline_parallel"),
    Option("runtime", "R", "whose parallelism it is: torch (default), megatron"),
    Option("load-factor", "X", "rows of the fullest GPU's experts over even ones (1)", float),
    Option("lora", "SPEC", "train adapters: r=16,targets=all,dtype=bf16,dropout=0.05"),
    Option("base", "KIND", "frozen weights in nf4, nf4-double, bf16, fp16, fp32"),
    Option("attention", "A", "sdpa (default) or eager"),
    Option("loss", "L", "hf (default), hf-outputs-kept, bf16, chunked"),
    Option("gradient-dtype", "D", "gradients kept in fp32, bf16, fp16 (default: as weights)"),
    Option("update", "U", "optimizer's step: fused (default), foreach"),
    Option(
        "margin",
        "SIZE",
        "for CUDA context, fragmentation, communication (default: 1GiB, 3%% of the budget and, on "
        "several GPUs, 1GiB)",
    ),
    Option("efficiency", "SHARE", "of the GPU's peak FLOP/s that training reaches", float),
    Option("frozen", "", "train no weight", field="train"),
    Option(
        "options",
        "",
        "also keep parts of a block: chosen results inside it, the rest is made again",
    ),
    Option(
        "tiles",
        "",
        "also run MLPs, norms, and the head with its loss in tiles of 1,024 tokens and more",
    ),
    Option(
        "gradient-accumulation",
        "",
        "those of earlier micro-batches are there from the start, in fp32 or --gradient-dtype",
    ),
)
NOT_OPTIONS = ("padding_mask", "device", "experts")
"""The fields of a `Recipe` that have no option."""
MODEL_OPTIONS = ("state", *(option.flag for option in OPTIONS))


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add --model."""
    what = (
        "llama-3-8b, gpt2, …, the path to a config.json, or Qwen/Qwen3-8B as far as Hugging Face's "
        "local cache has it"
    )
    parser.add_argument("--model", metavar="NAME", help=what)


def add_model_options(
    parser: argparse.ArgumentParser, *, state: bool = True, main: Collection[str] = ()
) -> None:
    """Add what goes with --model; where `state` can be left out, --state.

    `main`: flags that stand with the main options of the help.
    """
    group = parser.add_argument_group("a model and how it is trained")
    # Kept under the names that they are given by, hyphens too, so that messages can name them.
    for flag, metavar, text, kind, named in OPTIONS:
        holds: dict[str, Any] = {"type": kind, "metavar": metavar}
        if not metavar:
            holds = {"action": "store_true", "default": None}
        where = parser if flag in main else group
        long = [f"--{named.replace('_', '-')}"] if named.endswith("_parallel") else []
        where.add_argument(f"--{flag}", *long, dest=flag, help=text, **holds)
    if state:
        what = "none leaves out what is held from step to step (default: all)"
        group.add_argument("--state", choices=("all", "none"), help=what)

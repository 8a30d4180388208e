"""The longest sequence with tiles, held to a step of the tiled model on fake tensors.

`fit` says on paper how long a sequence may be. A plan for that length is applied to the model,
whose step runs on fake tensors: nothing is computed, and all that is made is counted. Only the
kernel of attention is another than on the GPU, so that costs on paper are asked for the CPU's.

    python benchmarks/tiles.py [--model llama-3-8b] [--sequence N]
"""

from __future__ import annotations

import argparse
import json
from importlib import import_module, resources
from typing import Any

from scheduler import frontier
from scheduler.memory import costs_from_shape, fit
from scheduler.pytorch import verify

torch: Any = import_module("torch")
transformers: Any = import_module("transformers")
RUN: dict[str, Any] = {"gpu": "h100", "zero": 3, "gpus": 8}


def main() -> None:
    """Print a line for each length: on paper, and as the model runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="llama-3-8b")
    parser.add_argument("--sequence", type=int)
    asked = parser.parse_args()
    length = asked.sequence
    if length is None:
        limits = [fit(asked.model, tiles=tiles, **RUN).limits for tiles in (False, True)]
        before, length = [0 if each is None else each.sequence_checkpointed for each in limits]
        print(f"longest sequence: {before:,} tokens, with tiles {length:,}", flush=True)
    model = _model(asked.model)
    ids = torch.zeros(1, length, dtype=torch.long, device="meta")
    trades = frontier(costs_from_shape(asked.model, 1, length, device="cpu", tiles=True))
    for name, place in (
        ("smallest budget", 0),
        ("middle of the frontier", len(trades.points) // 2),
    ):
        plan = trades.plan(budget=trades.points[place][0])
        found = verify(plan, model, {"input_ids": ids, "labels": ids}, device="fake")
        print(
            f"{name}: tiles {dict(plan.tiles)}, predicted {plan.peak_bytes:,}, "
            f"seen {found.peak_bytes:,} ({plan.peak_bytes / found.peak_bytes - 1:+.4%})",
            flush=True,
        )


def _model(name: str) -> Any:
    """A model of this shape, without memory, in bf16."""
    file = resources.files("scheduler.memory.shape") / "configs" / f"{name}.json"
    record = json.loads(file.read_text())
    config = transformers.AutoConfig.for_model(**record, use_cache=False)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    return model.train()


if __name__ == "__main__":
    main()

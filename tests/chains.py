"""Chains that were measured once, whose figures tests know."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from scheduler import CostGraph

FOLDER = Path(__file__).parent / "data" / "chains"


def _named(stem: str, name: str) -> CostGraph:
    return replace(CostGraph.load(FOLDER / f"{stem}.json"), name=name, note="")


GPT2 = _named("gpt2_small_12", "gpt2-small")
DENSENET = _named("densenet121", "densenet121")

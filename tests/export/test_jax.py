"""The jax file, run by jax and flax on the CPU, in a process of their own.

What is compared is what jax says of its programs: XLA's compiler for CPUs undoes recomputation, so
that its own memory figures do not tell the two apart.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scheduler import CostGraph, Plan
from scheduler.costs.layer import OptionCost
from scheduler.export import export
from scheduler.export.targets.jax import TENSORS
from solvers.schedule import Keep
from tests.export.export_cases import chain_costs, plan_at

SCRIPT = Path(__file__).parent / "jax_step.py"
NAMES = [*(f"h.{i}" for i in range(6)), "loss"]
COSTS = chain_costs(NAMES, ("loss",))
Said = dict[str, dict[str, Any]]

MAXTEXT_TENSORS = {
    # AI-Hypercomputer/maxtext, src/maxtext/configs/base.yml, read on 2026-11-29: what the policy
    # "custom" takes 'remat', 'device' or 'offload' for; 'remat' where nothing is said. The file
    # has "decoder_layer_input", "indexer_cutoff_threshold" and "engram" too.
    *("context", "mlpwi", "mlpwi_0", "mlpwi_1", "mlpwo", "moe_mlpwi_0", "moe_mlpwi_1"),
    *("moe_mlpwo", "query_proj", "key_proj", "value_proj", "kv_proj", "qkv_proj", "out_proj"),
    *("query_wa_proj", "kv_wa_proj", "mla_q", "mla_kv", "attention_out"),
}


def with_option(name: str) -> CostGraph:
    """The same layers, which can be kept at a third of their bytes for a tenth of their time."""
    layers = [
        replace(
            layer,
            options=(OptionCost(name, layer.saved_bytes // 3, layer.forward_time / 10),),
        )
        if layer.recomputable
        else layer
        for layer in COSTS.layers
    ]
    return CostGraph(tuple(layers), input_bytes=COSTS.input_bytes)


@pytest.fixture(scope="module")
def plans() -> dict[str, Plan]:
    return {
        "nested": plan_at(COSTS, 0.0),
        "half": plan_at(COSTS, 0.4),
        "keep-all": plan_at(COSTS, 1.0),
        "wide": plan_at(with_option("wide"), 0.7),
        "nothing": plan_at(with_option("nothing_saveable"), 0.6),
    }


@pytest.fixture(scope="module")
def said(plans: dict[str, Plan], tmp_path_factory: pytest.TempPathFactory) -> Said:
    """What `SCRIPT` says of each plan's file; numbers of layers as integers."""
    paths = [tmp_path_factory.mktemp(name) / "plan.py" for name in plans]
    for path, plan in zip(paths, plans.values(), strict=True):
        path.write_text(export(plan, "jax").text)
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, paths)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    answers = dict(zip(plans, map(json.loads, done.stdout.splitlines()), strict=True))
    for answer in answers.values():
        for of in (answer["jax"], answer["flax"]):
            for key in ("counts", "residuals"):
                of[key] = {int(layer): count for layer, count in of[key].items()}
    return answers


@pytest.mark.parametrize("name", ["nested", "half", "keep-all"])
def test_a_plan(said: Said, plans: dict[str, Plan], name: str) -> None:
    check(said[name], plans[name])
    assert plans["nested"].depth > 1


def check(said: dict[str, Any], plan: Plan) -> None:
    runs = list(plan.forwards.values())
    kept = {i for i, count in enumerate(runs) if count == 1}
    of_jax, of_flax = said["jax"], said["flax"]
    assert said["refused"] == "the plan has 7 layers, and 6 blocks are given"
    assert said["same parameters"] is True
    # Gradients are bitwise equal, compiled each for itself.
    assert of_jax["apart"] == of_flax["apart"] == 0
    # Every layer's forward runs as often as the plan says; in flax once more for each recomputed.
    assert of_jax["counts"] == dict(enumerate(runs))
    assert of_flax["counts"] == {i: min(count, 2) for i, count in enumerate(runs[:-1])}
    # Values are kept of the layers that the plan keeps, and of no others.
    assert of_jax["residuals"].keys() == kept
    assert of_flax["residuals"].keys() == kept - {len(runs) - 1}
    for of in (of_jax, of_flax):
        saves = of["residual bytes"] < of["residual bytes of keep-all"]
        assert saves == (len(kept) < len(runs))


def test_options_are_policies_that_save_by_name(said: Said, plans: dict[str, Plan]) -> None:
    plan = plans["wide"]
    states = {item.layer: item.option for item in plan.items if isinstance(item, Keep)}
    assert set(states.values()) == {"wide", None}
    assert len(states) < 7  # the others are checkpointed
    # Under the option one of two values is kept, and what comes after it runs again.
    kept = {i: 1 if option else 3 if i == 6 else 2 for i, option in states.items()}
    again = {i: 1 if i in states and not states[i] else 2 for i in range(7)}
    for of, layers in ((said["wide"]["jax"], range(7)), (said["wide"]["flax"], range(6))):
        assert of["apart"] == 0
        assert of["residuals"] == {i: kept[i] for i in layers if i in kept}
        assert of["counts"] == {i: again[i] for i in layers}
        assert of["residual bytes"] < of["residual bytes of keep-all"]


def test_options_are_policies_of_jax(said: Said, plans: dict[str, Plan]) -> None:
    items = plans["nothing"].items
    options = {item.layer for item in items if isinstance(item, Keep) and item.option}
    assert options
    of_jax = said["nothing"]["jax"]
    assert of_jax["apart"] == 0
    assert not options & of_jax["residuals"].keys()
    assert all(of_jax["counts"][i] == 2 for i in options)


def test_the_tensors_are_those_of_maxtext() -> None:
    assert set(TENSORS) == MAXTEXT_TENSORS

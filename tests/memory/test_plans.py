"""From a config to a plan to the model of that config: solved on paper, applied, measured."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from peft import LoraConfig, get_peft_model

from scheduler import CostGraph, Plan, UnsupportedModel, solve
from scheduler.cli.main import main
from scheduler.export.export import TARGETS, export
from scheduler.memory.costs import costs_from_shape
from scheduler.memory.fitting.peaks import smallest_peak
from scheduler.memory.recipe import Lora
from scheduler.memory.shape.families.table import FAMILIES
from scheduler.memory.shape.load import load_shape
from scheduler.pytorch import apply, verify
from tests.memory.memory_cases import keep_all_peak
from tests.memory.models import batch_of
from tests.memory.test_measured import EAGER, model_of
from tests.memory.test_profiled import config_of

torch: Any = import_module("torch")  # untyped here: these tests build models by name

BATCH, SEQUENCE = 2, 32
DROPOUT = {"resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1}
MORE: dict[str, dict[str, Any]] = {
    # Without a kernel for it the CPU runs attention with dropout step by step.
    "gpt2": DROPOUT,
    # Where gradients of many experts set the peak every plan has the same one.
    "mixtral": {"intermediate_size": 16, "num_local_experts": 4},
    "gpt_oss": {"intermediate_size": 48, "num_local_experts": 4},
    # As those of weights where a sequence is short.
    "vit": {"image_size": 64},
}


def model_with(family: str) -> tuple[Any, Any, dict[str, Any]]:
    """A tiny model, its config as a file has it, and a batch."""
    config = config_of(family, {"num_hidden_layers": 3} | MORE.get(family, {}))
    attention = "eager" if family in EAGER else "sdpa"
    torch.manual_seed(0)
    model = model_of(config, "fp32", attention)
    return model, config.to_dict(), batch_of(model, BATCH, SEQUENCE)


def keeping(costs: CostGraph, operation: str) -> Plan:
    """A tight plan with options, each of which keeps a result of an operation."""
    wanted = [
        tuple(o for o in layer.options if any(operation in name for name, *_ in o.keeps))
        for layer in costs.layers
    ]
    layers = [replace(layer, options=o) for layer, o in zip(costs.layers, wanted, strict=True)]
    plan = tight(replace(costs, layers=tuple(layers)))
    assert plan.policies
    return plan


def tight(costs: CostGraph) -> Plan:
    """A plan that has to give something up."""
    plan = solve(costs, budget=(2 * keep_all_peak(costs) + 3 * smallest_peak(costs)[0]) // 5)
    assert plan.overhead > 0
    return plan


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_plan_on_paper_is_the_model_s(family: str, tmp_path: Path) -> None:
    model, config, batch = model_with(family)
    attention, shape = model.config._attn_implementation, load_shape(config)
    for options in (False, True):
        costs = costs_from_shape(
            shape,
            BATCH,
            shape.fixed_sequence or SEQUENCE,
            precision="fp32",
            attention=attention,
            device="cpu",
            options=options,
        )
        tight(costs).save(tmp_path / "plan.json")
        plan = Plan.load(tmp_path / "plan.json")
        assert bool(plan.policies) == options
        found = verify(plan, model, batch)
        assert found.ok, str(found)
        assert found.gradients == "equal"
        assert 0.99 * plan.peak_bytes <= found.peak_bytes <= plan.peak_bytes
        # Other frameworks' models have one stack, and fsdp has no options.
        targets = {"torch", "json"} if shape.buckets else TARGETS.keys()
        for target in targets - ({"fsdp"} if options else set()):
            exported = export(plan, target, costs)
            if target == "torch":
                file: dict[str, Any] = {"__name__": "plan"}
                exec(exported.text, file)
                file["apply_plan"](model).remove()  # its names are the model's


def test_the_command_line_s_plan_is_the_model_s(tmp_path: Path) -> None:
    model, config, batch = model_with("gpt_neox")
    file, written = tmp_path / "config.json", tmp_path / "plan.json"
    file.write_text(json.dumps(config))
    how = ["--batch", str(BATCH), "--sequence", str(SEQUENCE), "--precision", "fp32"]
    how += ["--state", "none", "--margin", "0"]
    budget = tight(costs_from_shape(config, BATCH, SEQUENCE, precision="fp32")).peak_bytes
    asked = ["solve", "--model", str(file), *how, "--budget", f"{budget}B", "-o", str(written)]
    assert main(asked) == 0
    plan = Plan.load(written)
    found = verify(plan, model, batch)
    assert found.ok, str(found)
    assert found.peak_bytes <= plan.peak_bytes <= budget


def test_kernels_that_the_device_has_not_are_one_sentence() -> None:
    model, config, batch = model_with("llama")
    costs = costs_from_shape(config, BATCH, SEQUENCE, precision="fp32", options=True)  # on CUDA
    attention = "_scaled_dot_product_efficient_attention"
    with apply(keeping(costs, attention), model), pytest.raises(UnsupportedModel) as caught:
        model(**batch)
    said = f"block 'model.layers.0' runs aten.{attention}.default 0 times, and the plan keeps"
    assert said in str(caught.value)
    assert "profile this one as it trains" in str(caught.value)
    # What runs on every device alike is kept there too.
    products = keeping(costs, "aten.mm.default")
    assert any(attention not in str(keeps) for keeps in products.policies.values())


def test_another_number_of_the_same_operations_is_one_sentence() -> None:
    """Kept by their numbers, other results than the costs are of would stay."""
    model, config, batch = model_with("qwen3")
    shape = replace(load_shape(config), qk_norm=False)
    costs = costs_from_shape(shape, BATCH, SEQUENCE, precision="fp32", device="cpu", options=True)
    plan = keeping(costs, "aten.mul.Tensor")
    with apply(plan, model), pytest.raises(UnsupportedModel) as caught:
        model(**batch)
    assert "times, and in the plan's costs it runs " in str(caught.value)


# PEFT asks transformers whether its checkpointing is on by the word that it had before.
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_a_model_in_peft_s() -> None:
    """Its blocks have other names; what passes gradients into it stays with its own."""
    model, config, batch = model_with("llama")
    settings = LoraConfig(
        r=4, target_modules=["q_proj", "down_proj", "lm_head"], task_type="CAUSAL_LM"
    )
    model = get_peft_model(model, settings)
    model.enable_input_require_grads()
    how: dict[str, Any] = {"lora": Lora(4, ("q", "down", "lm_head"), "fp32"), "train": "lora"}
    costs = costs_from_shape(
        config, BATCH, SEQUENCE, precision="fp32", device="cpu", options=True, **how
    )
    plan = tight(costs)
    assert plan.policies
    found = verify(plan, model, batch)
    assert found.ok, str(found)
    assert set(found.forwards) == {f"base_model.model.model.layers.{i}" for i in range(3)}
    assert plan.peak_bytes - 8 <= found.peak_bytes <= plan.peak_bytes

"""Exports that are flags and sections: their names and values, and that none better exists."""

from __future__ import annotations

import ast
import json
import re
import sys
import types
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from scheduler import (
    CostGraph,
    InfeasibleBudget,
    InvalidPlan,
    Plan,
    SchedulerError,
    frontier,
    solve,
)
from scheduler.common.text import format_bytes
from scheduler.costs.layer import OptionCost
from scheduler.export import TARGETS, Exported, export
from scheduler.export.targets.jax import MAXTEXT, remat_policy
from scheduler.export.targets.megatron import MODULES
from scheduler.planning.chain.against import read_setting
from scheduler.plans.file.fields import FIELDS
from scheduler.plans.file.items import SCHEMA
from scheduler.plans.settings import Setting, blocks_of
from solvers.chain.problem import Chain
from solvers.schedule import Items
from tests.chains import GPT2
from tests.export.export_cases import chain_costs, gpt2_plan, plan_at, sequential_plan
from tests.planning.test_against import llama

# Names and kinds of values as their projects publish them; read on 2026-11-29.
DEEPSPEED: dict[str, tuple[type, ...]] = {
    # microsoft/DeepSpeed, deepspeed/runtime/activation_checkpointing/config.py
    "partition_activations": (bool,),
    "cpu_checkpointing": (bool,),
    "contiguous_memory_optimization": (bool,),
    "number_checkpoints": (int, types.NoneType),
    "synchronize_checkpoint_boundary": (bool,),
    "profile": (bool,),
}
MEGATRON: dict[str, tuple[object, ...]] = {
    # NVIDIA/Megatron-LM, megatron/core/transformer/transformer_config.py; None leaves a flag out
    "recompute_granularity": (None, "full", "selective"),
    "recompute_method": (None, "uniform", "block"),
}
MEGATRON_MODULES = {
    # the same file, the choices of recompute_modules
    "core_attn",
    "moe_act",
    "layernorm",
    "mla_up_proj",
    "mlp",
    "moe",
    "shared_experts",
}
MAXTEXT_POLICIES = {
    # AI-Hypercomputer/maxtext, src/maxtext/configs/base.yml, remat_policy; "custom" is another
    "minimal_with_context",
    "minimal",
    "save_dot_with_context_except_mlp",
    "save_dot_except_mlpwi",
    "save_dot_except_mlp",
    "save_qkv_proj",
    "qkv_proj_offloaded",
    "minimal_offloaded",
    "save_out_proj",
    "full",
}
TORCHTITAN: dict[str, re.Pattern[str]] = {
    # pytorch/torchtitan, torchtitan/distributed/activation_checkpoint.py and its configuration
    "mode": re.compile("selective|full|memory_budget|none"),
    "selective_ac_option": re.compile(r"op|[1-9]\d*"),
}


def literal(text: str, name: str) -> Any:
    """The value that a Python file assigns to `name`."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return ast.literal_eval(node.value)
    raise AssertionError(f"no {name}")


def is_best(done: Exported, plan: Plan, chain: Chain, texts: list[str]) -> None:
    """The outcome is a replay, fits, and no setting of `texts` that fits is faster."""
    assert done.outcome is not None
    again = chain.replay(Items(done.outcome.items))
    assert (again.peak_bytes, again.time) == (done.outcome.peak_bytes, done.outcome.ticks)
    assert plan.budget_bytes is not None
    assert again.peak_bytes <= plan.budget_bytes - plan.reserved_bytes
    results = [chain.replay(Items(read_setting(text, chain).items(chain))) for text in texts]
    fitting = [r.time for r in results if r.peak_bytes <= plan.budget_bytes - plan.reserved_bytes]
    assert again.time == min(fitting)


# --- megatron -----------------------------------------------------------------------------------


def megatron_values(text: str) -> dict[str, Any]:
    lines = " ".join(line.removeprefix("# ") for line in text.splitlines() if line[:1] == "#")
    call = ast.parse(lines[lines.index("TransformerConfig(") :], mode="eval").body
    assert isinstance(call, ast.Call)
    return {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.7, 0.9, 1.0])
@pytest.mark.parametrize(
    "option", [None, "core_attn", "core_attn+mlp", "save-little", "megatron-selective"]
)
def test_megatron_is_the_best_of_its_flags(share: float, option: str | None) -> None:
    costs = llama(9, option)
    plan = plan_at(costs, share)
    chain = costs.to_chain()
    count = len(blocks_of(chain))
    texts = ["none"]
    texts += [f"megatron: full {m} {n}" for m in ("block", "uniform") for n in range(1, count + 1)]
    if option is not None and set(option.split("+")) <= set(MODULES):
        texts.append(f"megatron: selective {option}")
    if option == "megatron-selective":
        texts.append("megatron: selective core_attn")
    peaks = [
        chain.replay(Items(read_setting(text, chain).items(chain))).peak_bytes for text in texts
    ]
    assert plan.budget_bytes is not None
    if min(peaks) > plan.budget_bytes:
        with pytest.raises(InfeasibleBudget, match="no plan of method 'megatron' fits") as caught:
            export(plan, "megatron")
        assert caught.value.smallest_budget_bytes == min(peaks)
        return
    done = export(plan, "megatron")
    is_best(done, plan, chain, texts)
    assert done.outcome is not None
    values = megatron_values(done.text)
    for name, choices in MEGATRON.items():
        assert values[name] in choices
    number, modules = values["recompute_num_layers"], values["recompute_modules"]
    assert (number is not None) == (values["recompute_granularity"] == "full")
    assert (modules is not None) == (values["recompute_granularity"] == "selective")
    assert set(modules or ()) <= MEGATRON_MODULES
    flags = [line for line in done.text.splitlines() if not line.startswith("#")]
    expected = [
        f"--{name.replace('_', '-')} {' '.join(value) if isinstance(value, list) else value}"
        for name, value in values.items()
        if value is not None
    ]
    assert flags == expected
    # The flags mean the outcome.
    if number is not None:
        again = read_setting(f"megatron: full {values['recompute_method']} {number}", chain)
        assert again.items(chain) == done.outcome.items
    if modules is not None:
        again = read_setting(f"megatron: selective {'+'.join(modules)}", chain)
        assert again.items(chain) == done.outcome.items


def test_the_reserve_is_in_what_is_refused() -> None:
    costs = llama(9, None)
    reach = export(plan_at(costs, 1.0), "megatron")
    assert reach.outcome is not None
    least = frontier(costs).points[0][0]
    plan = solve(costs, budget=least + 500, reserved=500)
    with pytest.raises(InfeasibleBudget, match="500 B of it reserved") as caught:
        export(plan, "megatron")
    assert caught.value.budget_bytes == least + 500
    assert solve(costs, budget=least).peak_bytes < caught.value.smallest_budget_bytes - 500


def test_the_module_names_are_those_of_megatron() -> None:
    assert set(MODULES) == MEGATRON_MODULES
    assert set(MAXTEXT) == MAXTEXT_POLICIES


def test_megatron_says_what_it_loses() -> None:
    plan = solve(GPT2, 5)
    assert export(plan, "megatron").notes == (
        "Megatron's flags count 15 blocks, '0' to '14'. In place of the plan: full block 10; it "
        "takes 92.19 s a step against the plan's 92.10 s (0.100% longer), at a peak of 4.619 "
        "GiB against 4.478 GiB.",
    )


def test_megatron_stages() -> None:
    # Four equal blocks on two stages; the first holds two micro-batches.
    costs = chain_costs([f"layers.{i}" for i in range(4)], saved=300)
    record = costs.to_dict()
    for layer in record["layers"]:
        layer |= {"forward_time": 1, "backward_time": 2, "saved_bytes": 300}
    stage = chain_costs([f"layers.{i}" for i in range(2)]).to_dict()
    stage["layers"] = record["layers"][:2]
    chain = export_chain(stage)
    kept = chain.replay(Items(read_setting("none", chain).items(chain))).peak_bytes
    held = 100 + 2 * (300 + 100)  # the input, and of each layer its inside and its output
    plan = solve(record, budget=kept + held)
    done = export(plan, "megatron", stages=2)
    assert megatron_values(done.text)["recompute_granularity"] is None
    assert done.notes[1] == (
        f"Stage 0: 2 blocks, micro-batches in flight: 2, peak {format_bytes(kept + held)}."
    )
    less = solve(record, budget=kept + held - 1)
    again = megatron_values(export(less, "megatron", stages=2).text)
    assert again["recompute_granularity"] == "full"
    assert again["recompute_num_layers"] in (1, 2)
    # The least that the flags reach, with two micro-batches on the first stage.
    deep = solve(record, budget=frontier(record).points[0][0])
    with pytest.raises(InfeasibleBudget, match="no plan of method 'megatron'") as caught:
        export(deep, "megatron", stages=2)
    enough = solve(record, budget=caught.value.smallest_budget_bytes)
    assert megatron_values(export(enough, "megatron", stages=2).text)["recompute_granularity"]
    with pytest.raises(SchedulerError, match="5 pipeline stages are more than the 4 blocks"):
        export(plan, "megatron", stages=5)
    with pytest.raises(SchedulerError, match="pipeline stages are for target 'megatron'"):
        export(plan, "torch", stages=2)


def export_chain(record: dict[str, Any]) -> Chain:
    from scheduler.costs.readers import as_costs

    return as_costs(record).to_chain()


def test_a_plan_that_flags_cannot_reach_is_refused() -> None:
    plan = sequential_plan(8)  # nested eight deep, at the least peak that there is
    for target in ("megatron", "deepspeed"):
        with pytest.raises(InfeasibleBudget) as caught:
            export(plan, target)
        assert caught.value.smallest_budget_bytes > plan.peak_bytes
    # Files that apply the plan say so and go on.
    for target, flag in (("transformers", "every_n_layers"), ("jax", "remat_policy")):
        done = export(plan, target)
        assert done.outcome is None
        assert any(f"No {flag}" in note for note in done.notes)
        assert "NEAREST" not in done.text
        assert "MAXTEXT" not in done.text


# --- deepspeed, transformers, torchtitan, MaxText -----------------------------------------------


@pytest.mark.parametrize("share", [0.3, 0.6, 1.0])
def test_deepspeed(share: float) -> None:
    costs = llama(9)
    plan, chain = plan_at(costs, share), costs.to_chain()
    done = export(plan, "deepspeed")
    section = json.loads(done.text)
    assert list(section) == ["activation_checkpointing"]
    values = section["activation_checkpointing"]
    assert values.keys() == DEEPSPEED.keys()
    for name, kinds in DEEPSPEED.items():
        assert type(values[name]) in kinds
    texts = ["none", *(f"deepspeed: number_checkpoints {n}" for n in range(1, 10))]
    is_best(done, plan, chain, texts)
    assert done.outcome is not None
    number = values["number_checkpoints"]
    meant = "none" if number is None else f"deepspeed: number_checkpoints {number}"
    assert read_setting(meant, chain).items(chain) == done.outcome.items


@pytest.mark.parametrize("share", [0.4, 0.8])
def test_the_nearest_settings(share: float) -> None:
    costs = llama(9, None)
    plan, chain = plan_at(costs, share), costs.to_chain()
    every = [f"transformers: every_n_layers {n}" for n in range(1, 10)]
    done = export(plan, "transformers")
    is_best(done, plan, chain, every)
    nearest = literal(done.text, "NEAREST")
    number = nearest["activation_checkpointing_kwargs"]["every_n_layers"]
    assert done.outcome is not None
    meant = read_setting(f"transformers: every_n_layers {number}", chain)
    assert meant.items(chain) == done.outcome.items

    done = export(plan, "torchtitan")
    is_best(done, plan, chain, [f"torchtitan: selective {n}" for n in range(1, 10)])
    nearest = literal(done.text, "NEAREST")
    assert nearest.keys() == TORCHTITAN.keys()
    assert all(TORCHTITAN[name].fullmatch(value) for name, value in nearest.items())
    assert done.outcome is not None
    meant = read_setting(f"torchtitan: selective {nearest['selective_ac_option']}", chain)
    assert meant.items(chain) == done.outcome.items
    assert literal(done.text, "LAYERS")[1:10] == [f"layers.{i}" for i in range(9)]

    done = export(plan, "jax")
    is_best(done, plan, chain, ["all"])
    assert literal(done.text, "MAXTEXT") == {"remat_policy": "full"}


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("save_qkv_proj", {"remat_policy": "save_qkv_proj"}),
        ("out_proj+context", {"remat_policy": "custom", "out_proj": "device", "context": "device"}),
        ("hidden", {"remat_policy": "full"}),
    ],
)
def test_options_are_policies_of_maxtext(option: str, words: dict[str, str]) -> None:
    plan = plan_at(llama(6, option), 0.6)
    assert plan.to_dict()["items"] != list(range(8))
    done = export(plan, "jax")
    assert done.outcome is not None
    assert remat_policy(done.outcome) == words == literal(done.text, "MAXTEXT")


# --- jax ----------------------------------------------------------------------------------------


def test_the_jax_file_holds_the_plan() -> None:
    plan = gpt2_plan(8)
    text = export(plan, "jax").text
    assert literal(text, "LAYERS") == list(plan.layers)
    depth: list[tuple[str, str]] = literal(text, "CHECKPOINTS")
    assert len(depth) == plan.depth
    assert {name for span in depth for name in span} <= set(plan.layers)
    assert sum(plan.forwards.values()) == sum(
        1 + sum(plan.layers.index(a) <= i <= plan.layers.index(b) for a, b in depth)
        for i in range(len(plan.layers))
    )
    tree = ast.parse(text)
    named = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert named == {"policy", "apply_plan", "flax_block"}
    roots = {
        name.split(".")[0]
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert roots - sys.stdlib_module_names == {"jax", "flax"}


def test_the_jax_file_holds_options_and_what_flax_does() -> None:
    plan = plan_at(llama(6, "hidden"), 0.6)
    text = export(plan, "jax").text
    options = literal(text, "OPTIONS")
    assert options
    assert set(options.values()) == {"hidden"}
    whole = solve(GPT2, 5)
    done = export(whole, "jax")
    assert len(literal(done.text, "RECOMPUTED")) == sum(n > 1 for n in whole.forwards.values())
    assert done.notes[0] == (
        "flax_block recomputes layers one by one, without the plan's longer segments: it takes as "
        "long as the plan (92.10 s a step), at a peak of 4.619 GiB against 4.478 GiB."
    )


def test_jax_has_no_early_stop() -> None:
    record = chain_costs([f"h.{i}" for i in range(6)]).to_dict()
    for layer in record["layers"]:
        layer["recompute_time"] = layer["forward_time"] / 2
    plan = solve(record, budget=frontier(record).points[0][0])
    assert any(
        note.startswith("jax recomputes a segment to its end: the plan takes ")
        for note in export(plan, "jax").notes
    )


# --- json ---------------------------------------------------------------------------------------


def test_json_is_the_plan_file() -> None:
    plan = solve(GPT2, 5)
    assert export(plan, "json").text == plan.to_json(costs=True)


def test_the_schema_names_the_fields_of_a_plan_file() -> None:
    schema = json.loads(export(solve(GPT2, 5), "json-schema").text)
    steps = {"items", "schedule", "actions"}
    assert schema["properties"]["schema"] == {"const": SCHEMA}
    assert set(schema["properties"]) == {field.name for field in FIELDS} >= steps
    of_all = {field.name for field in FIELDS if field.needed and steps <= {*field.of}}
    optional = {"reserved_bytes", "proven_bytes", "measured_peak_bytes", "class", "gap"}
    optional |= {"policies", "tiles", "tiled", "costs"}
    assert set(schema["required"]) == of_all == set(schema["properties"]) - optional - steps
    assert {each["required"][0] for each in schema["oneOf"]} == steps
    for plan in (solve(GPT2, 5), gpt2_plan(), plan_at(llama(6), 0.5)):
        record = plan.to_dict()
        assert set(schema["required"]) <= record.keys() <= schema["properties"].keys()
        check_items(record["items"], schema["$defs"]["item"]["oneOf"])


def check_items(items: list[Any], forms: list[dict[str, Any]]) -> None:
    for item in items:
        if isinstance(item, int):
            assert forms[0]["type"] == "integer"
            continue
        form = next(f for f in forms[1:] if set(f["required"]) == item.keys())
        assert form["properties"].keys() == item.keys()
        check_items(item.get("body", []), forms)


# --- what is refused ----------------------------------------------------------------------------


def test_an_unknown_target() -> None:
    with pytest.raises(SchedulerError) as caught:
        export(solve(GPT2, 5), "megatorn")
    assert str(caught.value) == (
        "unknown target 'megatorn'; choose torch, transformers, lightning, accelerate, fsdp, "
        "torchtitan, megatron, deepspeed, axolotl, jax, json or json-schema; did you mean "
        "'megatron'?"
    )


def test_a_plan_of_a_graph() -> None:
    record = llama(3, None).to_dict()
    names = [layer["name"] for layer in record["layers"]]
    record["edges"] = [*map(list, pairwise(names)), [names[0], names[3]]]
    plan = solve(record, budget="1MB")
    assert json.loads(export(plan, "json").text)["schema"] == SCHEMA
    for target in TARGETS.keys() - {"json", "json-schema"}:
        with pytest.raises(InvalidPlan, match="export it to json or json-schema, or run it with"):
            export(plan, target)


def test_costs_of_another_plan_and_no_costs() -> None:
    plan = Plan.from_json(solve(GPT2, 5).to_json())
    with pytest.raises(InvalidPlan, match="the plan belongs to other costs"):
        export(plan, "megatron", llama())
    for target in ("megatron", "deepspeed"):
        with pytest.raises(InvalidPlan, match="flags can only be chosen with the costs"):
            export(plan, target)
    assert "NEAREST" not in export(plan, "transformers").text
    assert "Without the plan's costs" in export(plan, "transformers").notes[0]
    assert export(plan, "torch").text == export(plan, "torch", GPT2).text


def test_the_same_plan_gives_the_same_file() -> None:
    for target in TARGETS:
        assert export(solve(GPT2, 5), target) == export(solve(GPT2, 5), target)


# --- axolotl ------------------------------------------------------------------------------------

# axolotl-ai-cloud/axolotl, src/axolotl/utils/schemas/config.py and docs/config-reference
AXOLOTL = {"gradient_checkpointing", "tiled_mlp", "tiled_mlp_num_shards", "cut_cross_entropy"}


def tiled_llama() -> CostGraph:
    costs = llama(9, None)
    tiles = {n: OptionCost(f"tiles-{n}", 8000 // n, n, 0, 0, tiles=n) for n in (2, 4)}
    layers = [
        replace(layer, options=tuple(tiles.values()))
        if layer.recomputable or layer is costs.layers[-1]
        else layer
        for layer in costs.layers
    ]
    return replace(costs, layers=tuple(layers))


@pytest.mark.parametrize("share", [0.05, 0.5, 1.0])
def test_axolotl_is_the_best_of_its_flags(share: float) -> None:
    costs = tiled_llama()
    chain = costs.to_chain()
    plan = plan_at(costs, share)
    blocks = blocks_of(chain)
    last = len(costs) - 1
    found: list[tuple[int, int]] = []
    for segments in ((), tuple((i, i) for i in blocks)):
        for name in (None, "tiles-2", "tiles-4"):
            for head in ((), ((last, "tiles-4"),)):
                kept = (*((i, name) for i in blocks if name), *head)
                done = chain.replay(Items(Setting("", segments, kept=kept).items(chain)))
                found.append((done.peak_bytes, done.time))
    assert plan.budget_bytes is not None
    fitting = [time for peak, time in found if peak <= plan.budget_bytes]
    if not fitting:
        with pytest.raises(InfeasibleBudget, match="axolotl"):
            export(plan, "axolotl")
        return
    given = export(plan, "axolotl")
    assert given.outcome is not None
    assert given.outcome.ticks == min(fitting)
    flags = [line for line in given.text.splitlines() if line[:1].isalpha() and "plug" not in line]
    assert {line.partition(":")[0] for line in flags} <= AXOLOTL
    tiled = dict(given.outcome.setting.kept)
    assert ("tiled_mlp: true" in flags) == (blocks[0] in tiled)
    assert ("cut_cross_entropy: true" in flags) == (last in tiled)

"""Plans: their figures, their file, their replay, how they print."""

from __future__ import annotations

import copy
import json
import pickle
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler import CostGraph, InvalidPlan, LayerCost, Plan, SchedulerError, frontier, solve
from scheduler.costs.layer import OptionCost
from scheduler.planning.certify import certified
from scheduler.plans.chain import item_lines
from scheduler.plans.file.items import items_to_json, parse_items
from solvers.schedule import Checkpoint, Item, Items, Keep
from solvers.solution import Solution
from tests.chains import GPT2
from tests.oracles.strategies import chains, plans

PLAN = solve(GPT2, 5)


def uniform(length: int) -> CostGraph:
    return CostGraph(
        tuple(
            LayerCost(f"h.{i}", forward_time=1, backward_time=2, output_bytes=100, saved_bytes=1000)
            for i in range(length)
        ),
        input_bytes=100,
        name="uniform",
    )


def sentence(call: Callable[..., object], *arguments: Any) -> str:
    with pytest.raises(InvalidPlan) as caught:
        call(*arguments)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 500
    return message


def changed(**changes: Any) -> str:
    """The message for the plan's file with `changes`; `...` removes a field."""
    record = {**json.loads(PLAN.to_json()), **changes}
    record = {key: value for key, value in record.items() if value is not ...}
    return sentence(Plan.from_json, json.dumps(record), "plan.json")


# --- figures ------------------------------------------------------------------------------------


def test_figures() -> None:
    assert PLAN.budget_bytes == 5 * 10**9
    assert PLAN.overhead == PLAN.time / PLAN.keep_all_time - 1
    assert PLAN.gap == 0
    assert (PLAN.status, PLAN.optimal_in, PLAN.method) == ("optimal", "persistent", "optimal")
    assert PLAN.layers == tuple(layer.name for layer in GPT2.layers)
    assert PLAN.costs_sha256 == GPT2.sha256
    assert PLAN.depth == 1
    assert PLAN.solve_seconds is not None


def test_forwards_are_two_for_what_is_checkpointed_once() -> None:
    recomputed = {"1", "2", "3", "5", "6", "7", "8", "11", "12"}
    assert PLAN.forwards == {name: 1 + (name in recomputed) for name in PLAN.layers}


def test_a_plan_that_is_not_proven() -> None:
    plan = solve(GPT2, 5, method="every-layer")
    assert (plan.status, plan.optimal_in) == ("feasible", None)
    assert plan.lower_bound_time == plan.keep_all_time
    assert plan.gap == plan.overhead > 0.3
    assert "gap 35.39%" in str(plan)


def test_a_chain_without_time() -> None:
    layer = LayerCost("a", forward_time=0, backward_time=0, output_bytes=1, saved_bytes=1)
    plan = solve([layer], budget=100)
    assert (plan.overhead, plan.gap, plan.status) == (0, 0, "optimal")


# --- file ---------------------------------------------------------------------------------------


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    PLAN.save(path)
    loaded = Plan.load(path)
    assert loaded == PLAN
    assert hash(loaded) == hash(PLAN)
    assert loaded.solve_seconds is None
    assert Plan.from_dict(PLAN.to_dict()) == PLAN
    assert json.loads(path.read_text()) == PLAN.to_dict()
    assert loaded != replace(PLAN, method="greedy")
    assert loaded != "a plan"


def test_the_file_is_the_documented_one() -> None:
    record = PLAN.to_dict()
    assert record["schema"] == "checkpoint-scheduler/plan/1"
    assert set(record) == {
        *("schema", "layers", "items", "budget_bytes", "peak_bytes", "time", "time_unit"),
        *("keep_all_peak_bytes", "keep_all_time", "method", "status", "lower_bound_time"),
        *("costs_sha256", "class", "reserved_bytes", "proven_bytes"),
    }
    assert record["items"][:2] == [0, {"checkpoint": [1, 3], "body": [1, 2, 3]}]
    assert record["class"] == "persistent"


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.data())
def test_items_survive_json(data: st.DataObject) -> None:
    chain = data.draw(chains(max_layers=6))
    items = data.draw(plans(chain))
    names = [layer.name for layer in chain.layers]
    values = json.loads(json.dumps(items_to_json(items)))
    assert parse_items(values, names) == items
    plan = replace(PLAN, schedule=Items(items), layers=tuple(names))
    assert Plan.from_json(plan.to_json()).items == items
    assert item_lines(items, names)


def test_a_written_plan_without_what_may_be_left_out() -> None:
    record = PLAN.to_dict()
    del record["class"], record["reserved_bytes"]
    assert Plan.from_dict(record) == PLAN


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": ...}, "there is no 'schema'"),
        ({"schema": ..., "model_type": "qwen2"}, "this is a model's config, not a plan file; give"),
        ({"schema": "checkpoint-scheduler/costs/1"}, "this is a cost file, not a plan"),
        ({"schema": "checkpoint-scheduler/graph/1"}, "this is a compute graph, not a plan"),
        ({"schema": "checkpoint-scheduler/plan/2"}, "unknown schema 'checkpoint-scheduler/plan/2'"),
        ({"schema": 1}, "unknown schema 1"),
        ({"schedule": []}, "the plan has both 'items' and 'schedule'; it has one of them"),
        ({"peak_byte": 3}, "unknown field 'peak_byte' in the plan; did you mean 'peak_bytes'?"),
        ({"time": ...}, "the plan has no 'time'"),
        ({"items": ...}, "the plan has no 'items'"),
        ({"time": -1}, "'time' must be a finite number >= 0, got -1"),
        ({"time": float("nan")}, "'time' must be a finite number >= 0, got nan"),
        ({"time": 10**400}, "'time' must be a finite number"),
        ({"time": True}, "'time' must be a finite number >= 0, got True"),
        ({"peak_bytes": 1.5}, "'peak_bytes' must be a whole number of bytes >= 0, got 1.5"),
        ({"peak_bytes": -1}, "'peak_bytes' must be a whole number of bytes >= 0, got -1"),
        ({"budget_bytes": "5GB"}, "'budget_bytes' must be a whole number"),
        ({"budget_bytes": 10}, "more than its budget of 10"),
        ({"reserved_bytes": 10**9}, "and 1000000000 reserved, more than its budget"),
        ({"status": "best"}, "'status' must be optimal or feasible, got 'best'"),
        ({"class": "any"}, "'class' must be persistent, got 'any'"),
        ({"lower_bound_time": 1}, "the plan says 'optimal', but its time is"),
        ({"lower_bound_time": 10**6}, "less than its lower bound, 1000000"),
        ({"costs_sha256": "abc"}, "'costs_sha256' must be 64 hexadecimal digits, got 'abc'"),
        ({"layers": []}, "'layers' must list the names of the layers, got []"),
        ({"layers": ["a", 1]}, "'layers[1]' must be text on one line, got 1"),
        ({"layers": ["a", "a"]}, "two layers are named 'a', the 1st and the 2nd"),
        ({"method": ""}, "'method' must be text on one line, got ''"),
    ],
)
def test_a_file_that_is_no_plan(changes: dict[str, Any], message: str) -> None:
    text = changed(**changes)
    assert text.startswith("plan.json: ")
    assert message in text


@pytest.mark.parametrize(
    ("items", "message"),
    [
        (3, "items: must be a list of items, got 3"),
        ([], "items: ends before layer 0 ('a'); it must reach layer 4 ('e')"),
        ([0, 1, 2, 3], "items: ends before layer 4 ('e')"),
        ([0, 2], "items[1]: starts at layer 2 ('c'), but items cover the layers in order"),
        ([0, 0], "items[1]: starts at layer 0 ('a')"),
        ([0, 1, 2, 3, 4, 4], "items[5]: starts at layer 4 ('e'), but the list that it is in ends"),
        ([0, 1, 2, 3, 5], "items[4]: there is no layer 5; the plan has layers 0 to 4"),
        ([-1], "items[0]: there is no layer -1"),
        ([True], "items[0]: an item is the index of a layer to keep"),
        ([None], "items[0]: an item is the index of a layer to keep"),
        ([1.0], "items[0]: an item is the index of a layer to keep"),
        ([{}], "items[0]: there is no 'keep'; it needs keep and option"),
        ([{"keep": 0}], "items[0]: there is no 'option'"),
        ([{"keep": 0, "option": 3}], "items[0]: 'option' must be a name, got 3"),
        ([{"keep": "0", "option": "o"}], "items[0]: an item is the index"),
        ([{"keep": 0, "opt": "o"}], "items[0]: unknown field 'opt'; did you mean 'option'?"),
        ([{"checkpoint": [0, 4]}], "items[0]: there is no 'body'"),
        ([{"body": [0]}], "items[0]: there is no 'checkpoint'"),
        ([{"checkpoint": [0, 4], "body": [], "x": 1}], "items[0]: unknown field 'x'"),
        ([{"checkpoint": 0, "body": [0]}], "items[0]: 'checkpoint' must be a pair"),
        ([{"checkpoint": [0, 1.5], "body": [0]}], "items[0]: a layer is an index, got 1.5"),
        ([{"checkpoint": [0, 9], "body": [0]}], "items[0]: there is no layer 9"),
        ([{"checkpoint": [2, 1], "body": [2]}], "items[0]: the checkpoint ends at layer 1, before"),
        ([{"checkpoint": [0, 1], "body": {}}], "items[0].body: must be a list of items, got {}"),
        ([{"checkpoint": [0, 1], "body": []}], "items[0].body: ends before layer 0"),
        ([{"checkpoint": [0, 1], "body": [0]}], "items[0].body: ends before layer 1 ('b')"),
        (
            [0, {"checkpoint": [1, 3], "body": [1, {"checkpoint": [2, 4], "body": [2]}]}],
            "items[1].body[1]: goes on to layer 4 ('e'), but the list that it is in ends with "
            "layer 3 ('d')",
        ),
        ([{"checkpoint": [0, 1], "body": [1]}], "items[0].body[0]: starts at layer 1 ('b')"),
    ],
)
def test_items_that_are_no_plan(items: object, message: str) -> None:
    assert message in changed(items=items, layers=list("abcde"))


def test_a_file_that_is_no_json(tmp_path: Path) -> None:
    text = PLAN.to_json()
    assert "plan.json, line " in sentence(Plan.from_json, text[: len(text) // 2], "plan.json")
    assert "the file is empty" in sentence(Plan.from_json, "", "plan.json")
    assert "is a JSON object, this is [1]" in sentence(Plan.from_json, "[1]")
    assert "this is 3" in sentence(Plan.from_dict, 3)
    assert "there is no plan file" in sentence(Plan.load, tmp_path / "none.json")
    assert "nested too deeply" in sentence(Plan.from_json, "[" * 10**6)
    assert "nested too deeply" in sentence(Plan.from_json, '{"body": ' * 10**6)


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    with pytest.raises(SchedulerError, match="there is no directory"):
        PLAN.save(tmp_path / "none" / "plan.json")


def test_items_given_in_code_must_cover_the_layers() -> None:
    assert "must start at layer 0" in sentence(lambda: replace(PLAN, schedule=Items((Keep(1),))))
    assert "stops before layer 1" in sentence(lambda: replace(PLAN, schedule=Items((Keep(0),))))


# --- depth --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def deep() -> Plan:
    """A thousand levels: 0 .. i recomputed as 0 .. i - 1 and i."""
    length = 1001
    items: tuple[Item, ...] = (Keep(0),)
    for i in range(1, length):
        items = (Checkpoint(0, i - 1, items), Keep(i))
    costs = uniform(length)
    plan = replace(PLAN, schedule=Items(items), layers=tuple(layer.name for layer in costs.layers))
    return replace(plan, _costs=costs, costs_sha256=costs.sha256)


def test_a_deep_plan_survives(deep: Plan, tmp_path: Path) -> None:
    limit = sys.getrecursionlimit()
    assert deep.depth == 1000
    deep.save(tmp_path / "deep.json")
    loaded = Plan.load(tmp_path / "deep.json")
    assert loaded == deep
    assert hash(loaded) == hash(deep)
    assert loaded != replace(deep, schedule=Items(tuple(Keep(i) for i in range(1001))))
    assert sys.getrecursionlimit() == limit
    assert pickle.loads(pickle.dumps(deep)) == deep
    assert copy.deepcopy(deep) == deep
    assert Plan.from_dict(deep.to_dict()) == deep


def test_a_deep_plan_prints(deep: Plan) -> None:
    assert repr(deep).startswith("<Plan: 1001 layers, ")
    text = str(deep)
    assert "checkpoints nest 1000 deep" in text
    assert text.endswith("more rows")
    assert len(text.splitlines()) < 45
    assert all(len(line) < 100 for line in text.splitlines())


def test_a_deep_plan_is_plain_json(deep: Plan) -> None:
    record = json.loads(json.dumps(deep.to_dict()))
    assert Plan.from_dict(record) == deep
    assert repr(deep.items).count("Checkpoint(") == 1000
    assert deep.items == deep.schedule.items
    assert len({deep.items, Plan.from_dict(record).items}) == 1


def test_bodies_that_nest_in_the_text_are_read(deep: Plan) -> None:
    text = "0"
    for i in range(1, 1001):
        text = f'{{"checkpoint": [0, {i - 1}], "body": [{text}]}}, {i}'
    record = {**deep.to_dict(), "items": []}
    written = json.dumps(record).replace('"items": []', f'"items": [{text}]')
    assert Plan.from_json(written) == deep


@pytest.mark.parametrize("count", [3, 10**6])
def test_a_flat_body_that_is_cut_off(count: int) -> None:
    record = {**PLAN.to_dict(), "items": [{"checkpoint": [0, 1], "body": count}, 0]}
    assert "more items belong to a 'body' before" in sentence(Plan.from_dict, record)


def test_a_deep_file_changed_by_hand_names_the_place(deep: Plan) -> None:
    written = deep.to_json()
    assert '"body": 1},\n  0,' in written  # nested deeper than JSON readers go, so it is flat
    text = written.replace('"body": 1},\n  0,', '"body": 1},\n  1,')
    message = sentence(Plan.from_json, text)
    assert "body[0]: starts at layer 1 ('h.1')" in message


def test_a_real_plan_at_the_smallest_budget_of_many_layers() -> None:
    costs = uniform(300)
    plan = solve(costs, budget=1500)
    assert plan.depth > 200
    assert Plan.from_json(plan.to_json()) == plan
    assert plan.replay().peak_bytes == plan.peak_bytes


# --- replay -------------------------------------------------------------------------------------


def test_a_plan_replays_on_its_own_costs() -> None:
    done = PLAN.replay()
    assert (done.peak_bytes, done.time) == (PLAN.peak_bytes, PLAN.time)
    assert done.set_by == "the backward of '14'"
    assert PLAN.replay(GPT2) == done


def test_a_plan_is_saved_with_its_costs(tmp_path: Path) -> None:
    PLAN.save(tmp_path / "plan.json", costs=True)
    loaded = Plan.load(tmp_path / "plan.json")
    assert loaded.carries_costs
    assert loaded == PLAN
    assert loaded.replay() == PLAN.replay()
    assert loaded.to_json() == PLAN.to_json()
    record = PLAN.to_dict(costs=True)
    record["costs"]["layers"][0]["saved_bytes"] += 1
    assert "belongs to other costs" in sentence(Plan.from_dict, record)
    record["costs"]["layers"][0]["saved_bytes"] = "x"
    assert "the plan's 'costs': layer '0': saved_bytes must" in sentence(Plan.from_dict, record)
    bare = Plan.from_json(PLAN.to_json())
    assert "does not carry its costs" in sentence(lambda: bare.to_json(costs=True))


def test_a_loaded_plan_needs_its_costs(tmp_path: Path) -> None:
    loaded = Plan.from_json(PLAN.to_json())
    assert "does not carry its costs; pass the layer costs" in sentence(loaded.replay)
    assert loaded.replay(GPT2) == PLAN.replay()
    GPT2.save(tmp_path / "costs.json")
    assert loaded.replay(tmp_path / "costs.json") == PLAN.replay()
    other = CostGraph.example("resnet18")
    message = sentence(loaded.replay, other)
    assert "belongs to other costs" in message
    assert GPT2.sha256[:8] in message
    assert other.sha256[:8] in message
    assert "belongs to other costs" in sentence(PLAN.timeline, other)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"peak_bytes": 10**9}, f"a peak of 1000000000 bytes, its replay gives {PLAN.peak_bytes}"),
        ({"keep_all_peak_bytes": 5}, "a keep-all peak of 5 bytes, its replay gives"),
        ({"time": 1e6, "status": "feasible"}, "a time of 1000000.0 ms, its replay gives"),
        ({"keep_all_time": 5}, "a keep-all time of 5 ms, its replay gives"),
        ({"items": list(range(16))}, f"says a peak of {PLAN.peak_bytes} bytes, its replay gives"),
        (
            {"items": [{"keep": 0, "option": "half"}, *range(1, 16)]},
            "the plan cannot be executed: layer '0' has no option 'half'",
        ),
    ],
)
def test_a_plan_changed_by_hand(changes: dict[str, Any], message: str) -> None:
    plan = Plan.from_dict({**PLAN.to_dict(), **changes})
    assert message in sentence(plan.replay, GPT2)


def test_optimal_holds_for_the_budget_it_was_proven_for() -> None:
    record = solve(uniform(6), budget="6kB", reserved=500).to_dict()
    assert (record["status"], record["proven_bytes"]) == ("optimal", 5500)
    assert record["lower_bound_time"] > record["keep_all_time"]
    for more in ({"budget_bytes": 9000}, {"budget_bytes": None}, {"reserved_bytes": 0}):
        said = sentence(Plan.from_dict, {**record, **more})
        assert "was proven for 5500 bytes, and its budget now leaves" in said
    plan = Plan.from_dict(record)
    assert "solve again" in sentence(replace(plan, budget_bytes=9000).replay, uniform(6))
    for less in ({"budget_bytes": 5800}, {"budget_bytes": 9000, "reserved_bytes": 3500}):
        assert Plan.from_dict({**record, **less}).replay(uniform(6)) == plan.replay(uniform(6))
    older = {key: value for key, value in record.items() if key != "proven_bytes"}
    assert Plan.from_dict(older).replay(uniform(6)) == plan.replay(uniform(6))
    everything = solve(uniform(6), budget="9kB")
    assert everything.overhead == 0
    assert replace(everything, budget_bytes=None).replay()  # nothing is faster in any budget


# --- policies -----------------------------------------------------------------------------------

CALLS = (("aten.mm.default", 3), ("aten.mm.default", 0))


def with_policies(length: int = 4) -> CostGraph:
    layers = uniform(length).layers
    options = (OptionCost("lean", 300, 0.25, keeps=CALLS), OptionCost("unsaid", 100, 0.5))
    return CostGraph(tuple(replace(layer, options=options) for layer in layers), 100, "lean")


def test_a_plan_says_what_its_options_keep() -> None:
    costs = with_policies()
    chain = costs.to_chain()
    items = (Checkpoint(0, 1, (Keep(0, "lean"), Keep(1))), Keep(2, "unsaid"), Keep(3, "lean"))
    solution = Solution.of(chain, Items(items), 0)
    plan = certified(costs, chain, solution, method="by hand")
    assert plan.policies == {"h.0": CALLS, "h.3": CALLS}
    assert plan.forwards == {"h.0": 3, "h.1": 2, "h.2": 2, "h.3": 2}
    record = json.loads(plan.to_json())
    pairs = [["aten.mm.default", 3], ["aten.mm.default", 0]]
    assert record["policies"] == {"h.0": pairs, "h.3": pairs}
    for again in (Plan.from_json(plan.to_json()), copy.deepcopy(plan), replace(plan)):
        assert again == plan
        assert hash(again) == hash(plan)
        assert again.policies == plan.policies
        assert again.replay(costs) == plan.replay()
    assert Plan.from_dict(plan.to_dict()) == plan
    bare = replace(plan, policies={})
    assert bare != plan
    assert "policies" not in bare.to_dict()
    assert "the plan's 'policies' are not what its costs say" in sentence(bare.replay, costs)


def test_solved_plans_say_what_their_options_keep() -> None:
    costs = with_policies()
    plan = solve(costs, budget=2400)
    kept = {costs.layers[i].name: option for i, option in plan.schedule.options().items()}
    assert set(kept.values()) == {"lean", "unsaid"}
    assert plan.policies == {name: CALLS for name, option in kept.items() if option == "lean"}
    assert frontier(costs).plan(budget=plan.peak_bytes).policies == plan.policies


@pytest.mark.parametrize(
    ("policies", "message"),
    [
        (3, "'policies' must say for names of layers what to keep, got 3"),
        ({"h.1": [["a", 0]]}, "policies['h.1']: the plan keeps no layer of that name under"),
        ({"h.9": [["a", 0]]}, "policies['h.9']: the plan keeps no layer of that name under"),
        ({"h.0": []}, "policies['h.0'] is empty; leave it out"),
        ({"h.0": {}}, "policies['h.0'] must be a list of pairs, got {}"),
        ({"h.0": [["a"]]}, "policies['h.0'][0] must be a pair, got ['a']"),
    ],
)
def test_policies_that_cannot_be(policies: object, message: str) -> None:
    record = {
        **PLAN.to_dict(),
        "layers": ["h.0", "h.1"],
        "items": [{"keep": 0, "option": "lean"}, 1],
        "policies": policies,
    }
    assert message in sentence(Plan.from_json, json.dumps(record), "plan.json")


def test_timeline() -> None:
    costs = replace(uniform(2), name="")
    plan = solve(costs, budget=2400)
    assert plan.items == (Checkpoint(0, 0, (Keep(0),)), Keep(1))
    steps = plan.timeline()
    assert [text for text, _, _ in steps] == [
        "hold the input",
        "forward 'h.0'",
        "forward 'h.1', keeping",
        "drop the output of 'h.0'",
        "drop the output of 'h.1'",
        "backward 'h.1'",
        "forward 'h.0', keeping",
        "drop the output of 'h.0'",
        "backward 'h.0'",
        "drop the input",
    ]
    assert max(during for _, during, _ in steps) == plan.peak_bytes
    assert steps[0][1:] == (200, 200)  # the input, and the gradient of the output
    assert steps[-1][2] == 200  # the input, and its gradient
    assert Plan.from_json(plan.to_json()).timeline(costs) == steps


# --- text ---------------------------------------------------------------------------------------


def test_repr() -> None:
    assert repr(PLAN) == (
        "<Plan: 16 layers, method optimal, optimal, peak 4.478 GiB, overhead 16.54%>"
    )


def test_str() -> None:
    assert str(replace(PLAN, solve_seconds=0.25)).splitlines() == [
        "    time  92.10 s a step, 16.54% over the 79.03 s for keeping everything",
        "    peak  4.478 GiB; keeping everything needs 7.788 GiB",
        "  budget  5.000 GB (4.657 GiB)",
        "  status  optimal; no persistent plan within the budget takes less than 92.10 s "
        "(gap 0.00%)",
        "  method  optimal, 16 layers",
        "  solved  in 250.0 ms",
        "",
        "0        keep",
        "1–3      checkpoint as one",
        "4        keep",
        "5–8      checkpoint as one",
        "9–10     keep",
        "11–12    checkpoint as one",
        "13–loss  keep",
    ]


def test_str_says_what_is_reserved() -> None:
    plan = solve(GPT2, 5, reserved="200MB")
    assert "  budget  5.000 GB (4.657 GiB), 200.0 MB (190.7 MiB) of it reserved" in str(plan)


def each(first: int, last: int, size: int = 1) -> tuple[Item, ...]:
    spans = [(i, i + size - 1) for i in range(first, last + 1, size)]
    return tuple(Checkpoint(i, j, tuple(Keep(k) for k in range(i, j + 1))) for i, j in spans)


def test_runs_of_equal_items_are_folded() -> None:
    names = [f"h.{i}" for i in range(20)]
    nested = Checkpoint(11, 16, (*each(11, 14, 2), Keep(15), Keep(16, "light")))
    items = (*each(0, 4), *each(5, 10, 2), nested, Keep(17), Keep(18), Keep(19, "light"))
    assert item_lines(items, names) == [
        "h.0–h.4      checkpoint each",
        "h.5–h.10     checkpoint every 2",
        "h.11–h.16    checkpoint as one, recomputed as",
        "  h.11–h.14  checkpoint every 2",
        "  h.15       keep",
        "  h.16       keep with option 'light'",
        "h.17–h.18    keep",
        "h.19         keep with option 'light'",
    ]


def test_rows_beyond_the_most_are_counted() -> None:
    names = [f"h.{i}" for i in range(80)]
    items = tuple(item for i in range(0, 80, 2) for item in (Keep(i), *each(i + 1, i + 1)))
    lines = item_lines(items, names)
    assert len(lines) == 31
    assert lines[-1] == "… 50 more rows"
    assert item_lines(items[:31], names)[-1] == "… 1 more row"

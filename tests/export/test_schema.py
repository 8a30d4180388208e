"""The JSON Schema of plan files: it takes every plan that is written, and none that is broken."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler import CostGraph, InvalidPlan, LayerCost, Plan, solve
from scheduler.costs import ComputeCosts, NodeCost, OptionCost
from scheduler.export import export
from scheduler.plans.file.items import items_to_json
from tests.export.export_cases import chain_costs, gpt2_plan, sequential_plan
from tests.export.json_schema import accepts
from tests.oracles.strategies import chains, plans

CHAIN = solve(CostGraph.example("gpt2-small"), 5)
SCHEMA: dict[str, Any] = json.loads(export(CHAIN, "json-schema").text)
DROP: Any = ...


def options_plan() -> Plan:
    option = OptionCost("lean", 10, 0.1, keeps=(("aten.mm.default", 0),))
    layers = [
        LayerCost(
            f"h.{i}",
            forward_time=1,
            backward_time=2,
            output_bytes=9,
            saved_bytes=900,
            options=(option,),
        )
        for i in range(4)
    ]
    return solve(layers, budget=1800)


def node_plan() -> Plan:
    nodes = tuple(NodeCost(name, time=1, bytes=2, backward=name == "c") for name in "abc")
    return solve(ComputeCosts(nodes, ((0, 1), (1, 2), (0, 2))), budget=100)


def layer_plan() -> Plan:
    layers = chain_costs(["a", "b", "c"]).layers
    return solve(CostGraph(layers, edges=(("a", "b"), ("b", "c"), ("a", "c"))), budget=10_000)


@pytest.mark.parametrize(
    "plan",
    [
        *(CHAIN, gpt2_plan(), sequential_plan(), options_plan(), node_plan(), layer_plan()),
        solve(CHAIN._costs, 5, reserved="1MB"),
    ],
)
def test_it_takes_every_plan(plan: Plan) -> None:
    record = json.loads(plan.to_json())
    assert accepts(SCHEMA, record)
    assert Plan.from_dict(record) == plan


def test_the_plans_have_what_plans_can_have() -> None:
    assert options_plan().policies
    for plan, steps in ((CHAIN, "items"), (node_plan(), "schedule"), (layer_plan(), "actions")):
        assert steps in plan.to_dict()


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.data())
def test_it_takes_every_nesting(data: st.DataObject) -> None:
    chain = data.draw(chains(max_layers=6))
    items = items_to_json(data.draw(plans(chain)))
    names = [layer.name for layer in chain.layers]
    assert accepts(
        SCHEMA, {**CHAIN.to_dict(), "layers": names, "items": json.loads(json.dumps(items))}
    )


SPANS: list[tuple[Any, Any]] = [
    *((0, [0]), ([0], [0]), ([0, 1.5], [0]), ([0, 1], {}), ([0, 1], [])),
]
VALUES: dict[str, list[Any]] = {
    "schema": [DROP, "checkpoint-scheduler/costs/1", 1],
    "layers": [DROP, [], ["a", 1], ["a", "a"], [""], "a"],
    "items": [
        *(DROP, 3, [], [-1], [True], [None], [1.5], [{}], ["0"]),
        *([{"keep": 0}], [{"keep": 0, "option": 3}], [{"keep": "0", "option": "o"}]),
        *([{"keep": 0, "opt": "o"}], [{"checkpoint": [0, 4]}], [{"body": [0]}]),
        *([{"checkpoint": span, "body": body}] for span, body in SPANS),
    ],
    "schedule": [[], ["0"]],
    "actions": [[["backward", "0"]]],
    "time": [DROP, -1, True, "3", None],
    "peak_byte": [3],
    "peak_bytes": [DROP, 1.5, -1, None, "1"],
    "budget_bytes": [DROP, "5GB", -1],
    "status": [DROP, "best"],
    "method": [DROP, 3],
    "class": ["all"],
    "costs_sha256": [DROP, "abc", "g" * 64],
    "policies": [3, {"0": []}, {"0": {}}, {"0": [["a"]]}, {"0": [["", 0]]}],
}


@pytest.mark.parametrize(
    "changes",
    [{key: each} for key in VALUES for each in VALUES[key]],
    ids=str,
)
def test_it_takes_no_broken_plan(changes: dict[str, Any]) -> None:
    record = {**CHAIN.to_dict(), **changes}
    record = {key: value for key, value in record.items() if value is not DROP}
    assert not accepts(SCHEMA, record)
    with pytest.raises(InvalidPlan):
        Plan.from_dict(record)


@pytest.mark.parametrize(
    "changes",
    [
        *(
            {"gap": "1%"},
            {"gap": -1},
            {"class": []},
            {"note": "x"},
            {"actions": []},
            {"items": [0]},
        ),
        *({"schedule": "a"}, {"schedule": []}, {"schedule": [0]}),
    ],
    ids=str,
)
def test_it_takes_no_broken_plan_of_a_graph(changes: dict[str, Any]) -> None:
    record = {**node_plan().to_dict(), **changes}
    assert not accepts(SCHEMA, record)
    with pytest.raises(InvalidPlan):
        Plan.from_dict(record)


@pytest.mark.parametrize(
    "action",
    [
        *(["forward", "a"], ["forward", "a", "hold"], ["backward", "a", "keep"], ["drop", "a"]),
        *("forward", ["forward", 0, "keep"]),
    ],
    ids=str,
)
def test_it_takes_no_broken_action(action: object) -> None:
    record = {**layer_plan().to_dict(), "actions": [action]}
    assert not accepts(SCHEMA, record)
    with pytest.raises(InvalidPlan):
        Plan.from_dict(record)

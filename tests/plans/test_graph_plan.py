"""Plans of graphs: what they say, that it is replayed, and their files."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler import ComputeCosts, CostGraph, GraphPlan, InvalidPlan, LayerCost, NodeCost, Plan
from scheduler.costs.readers import Costs
from scheduler.planning.certify import certified
from scheduler.planning.request import Budget
from solvers.graph.schedule import Nodes
from solvers.schedule import Backward, Forward
from solvers.solution import PlanClass, Solution
from tests.costs.test_graph_costs import compute_graphs, fixed, layer_graphs

# a and b feed a loss, and the backward part needs both again.
GRAPH = ComputeCosts(
    (
        NodeCost("a", time=2, bytes=10),
        NodeCost("b", time=3, bytes=20),
        NodeCost("loss", time=1, bytes=1),
        NodeCost("db", time=4, bytes=20, backward=True),
        NodeCost("da", time=5, bytes=10, backward=True),
    ),
    ((0, 1), (1, 2), (2, 3), (1, 3), (3, 4), (0, 4)),
    "net",
)
AGAIN = (0, 1, 2, 3, 0, 4)
OF_GRAPHS = [each for each in PlanClass if each is not PlanClass.PERSISTENT]

LAYERS = CostGraph(
    tuple(
        LayerCost(name, forward_time=1, backward_time=2, output_bytes=8, saved_bytes=16)
        for name in ("in", "skip", "out")
    ),
    4,
    "skips",
    edges=(("in", "skip"), ("in", "out"), ("skip", "out")),
)


def graph_of(costs: Any) -> Any:
    """Costs as a graph, those of a chain of layers too."""
    return costs.to_layer_graph() if costs.noun == "layer" else costs.to_compute_graph()


def made(
    costs: Costs,
    steps: tuple[Any, ...] | None = None,
    *,
    bound: int | None = None,
    plan_class: PlanClass = PlanClass.STAGED,
    budget: int | None = None,
    reserved: int = 0,
) -> GraphPlan:
    """The plan of `steps` (default: run everything once), with a bound in ticks."""
    graph = graph_of(costs)
    everything = graph.keep_all()
    schedule = everything if steps is None else type(everything)(steps)
    bound = graph.least_time if bound is None else bound
    solution = Solution.of(graph, schedule, bound, plan_class)
    size = Budget(budget, reserved) if budget is not None else None
    return certified(costs, graph, solution, method="staged", size=size)


PLAN = made(GRAPH, AGAIN, budget=60, reserved=3)
LAYER_PLAN = made(
    LAYERS,
    (
        Forward(0, False),
        Forward(1, True),
        Forward(2, True),
        Backward(2),
        Backward(1),
        Forward(0, True),
        Backward(0),
    ),
    budget=1000,
)


def sentence(call: Any, *arguments: Any) -> str:
    with pytest.raises(InvalidPlan) as caught:
        call(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def changed(plan: GraphPlan, **changes: object) -> str:
    """The message for the file of `plan` with `changes`; ``...`` takes a field out."""
    record = {**plan.to_dict(), **changes}
    record = {key: value for key, value in record.items() if value is not ...}
    message = sentence(Plan.from_json, json.dumps(record), "plan.json")
    assert message.startswith("plan.json: ")
    return message.removeprefix("plan.json: ")


# --- what it says -------------------------------------------------------------------------------


def test_a_plan_of_a_compute_graph() -> None:
    assert isinstance(PLAN, Plan)
    assert PLAN.layers == ("a", "b", "loss", "db", "da")
    assert PLAN.forwards == {"a": 2, "b": 1, "loss": 1, "db": 1, "da": 1}
    assert (PLAN.time, PLAN.keep_all_time, PLAN.lower_bound_time) == (17.0, 15.0, 15.0)
    assert PLAN.overhead == pytest.approx(2 / 15)
    assert PLAN.gap == pytest.approx(2 / 15)
    assert (PLAN.status, PLAN.optimal_in, PLAN.standing) == ("feasible", None, "feasible")
    assert PLAN.plan_class == "staged"
    assert PLAN.peak_bytes < PLAN.keep_all_peak_bytes
    done = PLAN.replay()
    assert (done.peak_bytes, done.time) == (PLAN.peak_bytes, 17.0)
    assert done.set_by == "the computation of 'db'"


def test_optimal_names_its_class() -> None:
    bound = 17 * GRAPH.ticks_per_unit
    for plan_class in OF_GRAPHS:
        plan = made(GRAPH, AGAIN, bound=bound, plan_class=plan_class)
        assert (plan.status, plan.optimal_in) == ("optimal", plan_class.value)
        order = " in the given order" if plan_class is PlanClass.STAGED else ""
        assert f"optimal in class {plan_class.value}{order}, peak" in repr(plan)
        assert f"status  optimal in class {plan_class.value}{order}; no plan of class" in str(plan)


def test_a_plan_of_layers() -> None:
    assert LAYER_PLAN.forwards == {"in": 2, "skip": 1, "out": 1}
    assert LAYER_PLAN.time == 3 + 6 + 1
    assert LAYER_PLAN.replay().set_by.startswith("the backward of ")
    steps = [what for what, _, _ in LAYER_PLAN.timeline()]
    assert steps[:2] == ["forward 'in'", "forward 'skip', keeping"]
    assert steps[-1] == "backward 'in'"


def test_a_timeline_has_the_peak() -> None:
    line = PLAN.timeline()
    assert [what for what, _, _ in line] == [
        f"compute {name!r}" for name in ("a", "b", "loss", "db", "a", "da")
    ]
    assert max(during for _, during, _ in line) == PLAN.peak_bytes


def test_it_has_steps_and_no_items() -> None:
    with pytest.raises(AttributeError, match="no items, which are for chains; read its steps"):
        _ = PLAN.items
    with pytest.raises(AttributeError, match="no depth"):
        _ = PLAN.depth
    with pytest.raises(AttributeError, match="'Plan' object has no attribute 'peak'"):
        PLAN.peak  # type: ignore[attr-defined]  # noqa: B018


def test_it_prints_on_one_line_and_on_one_screen() -> None:
    assert repr(PLAN) == ("<Plan: 5 nodes, method staged, feasible, peak 41 B, overhead 13.33%>")
    assert str(PLAN).splitlines() == [
        "    time  17.00 ms a step, 13.33% over the 15.00 ms for keeping everything",
        "    peak  41 B; keeping everything needs 51 B",
        "          set by the computation of 'db'",
        "  budget  60 bytes, 3 bytes of it reserved",
        "  status  feasible; no plan of class staged within the budget takes less than 15.00 ms "
        "(gap 13.33%)",
        "  method  staged, 5 nodes",
        "",
        "1 of 5 nodes computed more than once, 1 extra run in all:",
        "  a  2 times",
    ]
    assert str(LAYER_PLAN).splitlines()[-2:] == [
        "1 of 3 layers run more than once, 1 extra run in all:",
        "  in  2 times",
    ]
    assert str(made(GRAPH)).endswith("\nNothing is recomputed.")
    assert "note  a remark" in str(replace(PLAN, note="a remark"))


def test_many_rows_are_cut() -> None:
    count = 50
    costs = ComputeCosts(tuple(NodeCost(f"n{i}", time=1, bytes=1) for i in range(count)))
    repeats = tuple(range(count)) + tuple(i for i in range(count) if i % 2)
    lines = str(made(costs, repeats)).splitlines()
    assert lines[-1] == "  … 5 more rows"
    assert len(lines) < 35
    runs = str(made(costs, tuple(range(count)) + tuple(range(9)) + tuple(range(3)))).splitlines()
    assert runs[-2:] == ["  n0–n2  3 times", "  n3–n8  2 times"]


# --- files --------------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", [PLAN, LAYER_PLAN], ids=["nodes", "layers"])
def test_a_plan_file_keeps_everything(plan: GraphPlan, tmp_path: Path) -> None:
    plan.save(tmp_path / "plan.json")
    again = Plan.load(tmp_path / "plan.json")
    assert isinstance(again, GraphPlan)
    assert again == plan
    assert hash(again) == hash(plan)
    assert (again.steps, again.plan_class, again.gap) == (plan.steps, plan.plan_class, plan.gap)
    assert again.solve_seconds is None
    assert Plan.from_dict(plan.to_dict()) == plan
    assert again.replay(GRAPH if plan is PLAN else LAYERS) == plan.replay()
    assert "carry its costs" in sentence(again.replay)
    copy = pickle.loads(pickle.dumps(plan))
    assert copy == plan
    assert copy.replay() == plan.replay()
    assert replace(plan, method="other") != plan


def test_what_a_plan_file_says() -> None:
    record = PLAN.to_dict()
    assert record["schedule"] == ["a", "b", "loss", "db", "a", "da"]
    assert record["class"] == "staged"
    assert record["gap"] == PLAN.gap
    assert "items" not in record
    actions = LAYER_PLAN.to_dict()["actions"]
    assert actions[0] == ["forward", "in", "drop"]
    assert actions[1] == ["forward", "skip", "keep"]
    assert actions[-1] == ["backward", "in"]


def test_a_gap_above_no_time_at_all() -> None:
    free = ComputeCosts((NodeCost("a", time=0, bytes=1), NodeCost("b", time=1, bytes=1)))
    plan = made(free, (0, 1, 1), bound=0)
    assert plan.gap == float("inf")
    assert plan.to_dict()["gap"] is None
    assert Plan.from_json(plan.to_json()) == plan


@fixed
@given(compute_graphs() | layer_graphs(), st.sampled_from(OF_GRAPHS), st.data())
def test_every_plan_survives_its_file(
    costs: Costs, plan_class: PlanClass, data: st.DataObject
) -> None:
    graph = graph_of(costs)
    steps = graph.keep_all().steps
    if isinstance(steps[0], int):
        # Nodes that read nothing may run again at any time.
        sources = [i for i in range(len(graph)) if not graph.inputs[i]]
        steps += tuple(data.draw(st.lists(st.sampled_from(sources), max_size=5)))
    plan = made(costs, steps, plan_class=plan_class)
    again = Plan.from_json(plan.to_json())
    assert again == plan
    assert again.to_json() == plan.to_json()
    assert again.replay(costs).peak_bytes == plan.peak_bytes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"class": "persistent"}, "'class' must be forward, staged or any, got 'persistent'"),
        ({"class": ...}, "the plan has no 'class'"),
        ({"class": []}, "'class' must be forward, staged or any, got []"),
        ({"gap": 0.5}, "the plan says a gap of 0.5, but its time is 17.0 and its lower bound 15"),
        ({"gap": None}, "the plan says a gap of None, but its time"),
        ({"gap": "1%"}, "'gap' must be a finite number >= 0, got '1%'"),
        ({"schedule": "a"}, "'schedule' must be a list, got 'a'"),
        ({"schedule": []}, "the schedule never computes 'a'; it is not a whole plan"),
        ({"schedule": ["a", "b"]}, "the schedule never computes 'loss'; it is not a whole plan"),
        ({"schedule": ["a", "x"]}, "schedule[1]: 'x' is none of the plan's 'layers'"),
        ({"schedule": ["a", "lss"]}, "is none of the plan's 'layers'; did you mean 'loss'?"),
        ({"schedule": [0]}, "schedule[0]: 0 is none of the plan's 'layers'"),
        ({"items": [0]}, "the plan has both 'items' and 'schedule'; it has one of them"),
        ({"actions": []}, "the plan has both 'schedule' and 'actions'; it has one of them"),
        ({"status": "optimal"}, "the plan says 'optimal', but its time is 17.0"),
        ({"lower_bound_time": 18}, "less than its lower bound, 18"),
        ({"budget_bytes": 43}, "more than its budget of 43"),
        ({"note": "x"}, "unknown field 'note' in the plan"),
    ],
)
def test_a_file_that_is_no_plan(changes: dict[str, Any], message: str) -> None:
    assert message in changed(PLAN, **changes)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (["forward", "in"], 'actions[0]: an action is ["forward", NAME, "keep" or "drop"]'),
        (["forward", "in", "hold"], "actions[0]: an action is"),
        (["backward", "in", "keep"], "actions[0]: an action is"),
        (["drop", "in"], "actions[0]: an action is"),
        ("forward", "actions[0]: an action is"),
        (["backward", "inn"], "actions[0]: 'inn' is none of the plan's 'layers'; did you mean"),
        (["forward", 0, "keep"], "actions[0]: 0 is none of the plan's 'layers'"),
        (["forward", "in", "keep"], "the actions have no forward of 'skip'; it is not a whole"),
    ],
)
def test_actions_that_are_none(action: object, message: str) -> None:
    assert message in changed(LAYER_PLAN, actions=[action])


def test_actions_without_a_backward() -> None:
    actions = [["forward", name, "keep"] for name in LAYER_PLAN.layers]
    assert "the actions have no backward of 'in'" in changed(LAYER_PLAN, actions=actions)


def test_a_gap_may_be_left_out() -> None:
    record = PLAN.to_dict()
    del record["gap"]
    assert Plan.from_dict(record) == PLAN


# --- replay -------------------------------------------------------------------------------------


def test_a_plan_that_was_changed_is_found_out() -> None:
    record = PLAN.to_dict()
    del record["gap"]
    for change, part in (
        ({"schedule": ["a", "b", "loss", "db", "da"]}, "the plan says a peak of 41 bytes, its"),
        ({"peak_bytes": 50}, "the plan says a peak of 50 bytes, its replay gives 41"),
        ({"time": 16.0}, "the plan says a time of 16.0 ms, its replay gives 17.0"),
        ({"keep_all_peak_bytes": 1}, "a keep-all peak of 1 bytes"),
        ({"keep_all_time": 1.0}, "a keep-all time of 1.0"),
        ({"schedule": ["b", "a", "loss", "db", "da"]}, "cannot be executed: 'b' is computed while"),
    ):
        plan = Plan.from_dict({**record, **change})
        assert part in sentence(plan.replay, GRAPH)


def test_a_bound_that_keeping_everything_beats_is_found_out() -> None:
    needed = PLAN.keep_all_peak_bytes + PLAN.reserved_bytes
    bound = PLAN.keep_all_time + 0.5
    claim = replace(PLAN, budget_bytes=needed, status="feasible", lower_bound_time=bound)
    assert f"a lower bound of {bound}, but keeping everything takes" in sentence(
        claim.replay, GRAPH
    )
    tight = replace(claim, budget_bytes=needed - 1)
    assert tight.replay(GRAPH).peak_bytes == PLAN.peak_bytes


def test_optimal_is_what_its_bound_says() -> None:
    claim = replace(PLAN, status="optimal", lower_bound_time=PLAN.time - 1)
    assert "it is optimal only when the two are equal" in sentence(claim.replay, GRAPH)


def test_a_plan_holds_for_its_costs_only() -> None:
    plan = Plan.from_json(PLAN.to_json())
    other = replace(GRAPH, edges=GRAPH.edges[:-1])
    assert "the plan belongs to other costs" in sentence(plan.replay, other)
    assert "the plan belongs to other costs" in sentence(plan.replay, LAYERS)
    assert plan.replay(GRAPH.to_dict()) == PLAN.replay()
    confused = Plan.from_dict({**PLAN.to_dict(), "costs_sha256": LAYERS.sha256})
    assert "of different kinds of graphs" in sentence(confused.replay, LAYERS)


def test_the_plan_of_a_chain_does_not_take_a_graph() -> None:
    from scheduler import solve

    chain = replace(LAYERS, edges=None)
    plan = solve(chain, budget=10**6)
    swapped = replace(plan, costs_sha256=LAYERS.sha256)
    assert "these costs are a graph" in sentence(swapped.replay, LAYERS)


# --- nothing leaves without a replay ------------------------------------------------------------


def test_what_a_solver_says_is_checked() -> None:
    graph = GRAPH.to_compute_graph()
    good = Solution.of(graph, graph.keep_all(), plan_class=PlanClass.ANY)

    def fails(solution: Solution[Nodes], budget: int | None = None, reserved: int = 0) -> str:
        size = None if budget is None else Budget(budget, reserved)
        with pytest.raises(RuntimeError) as caught:
            certified(GRAPH, graph, solution, method="m", size=size)
        assert "this is a bug of checkpoint-scheduler" in str(caught.value)
        return str(caught.value)

    assert "made an illegal plan" in fails(replace(good, schedule=Nodes((1, 0, 2, 3, 4))))
    assert "never computes 'da'" in fails(replace(good, schedule=Nodes((0, 1, 2, 3))))
    assert "says peak and time" in fails(replace(good, peak_bytes=good.peak_bytes - 1))
    assert "says peak and time" in fails(replace(good, time=good.time + 1))
    assert "says peak and time" in fails(replace(good, lower_bound_time=good.time + 1))
    assert "needs 51 bytes, more than its budget of 50" in fails(good, 50)
    assert "needs 54 bytes, more than its budget of 53" in fails(good, 53, 3)


def test_a_class_holds_in_the_order_of_the_plan() -> None:
    apart = ComputeCosts(tuple(NodeCost(name, time=1, bytes=1) for name in "abc"), ((0, 2), (1, 2)))
    given_order, own = made(apart, (0, 1, 0, 2)), made(apart, (1, 0, 1, 2))
    assert not given_order.has_own_order
    assert own.has_own_order
    assert "no plan of class staged within" in str(given_order)
    assert "no plan of class staged in this order of first runs within" in str(own)
    proven = made(apart, (1, 0, 1, 2), bound=4 * apart.ticks_per_unit)
    assert "optimal in class staged in this order of first runs," in repr(proven)
    anywhere = made(apart, (1, 0, 1, 2), plan_class=PlanClass.ANY)
    assert "no plan of class any within" in str(anywhere)
    assert not LAYER_PLAN.has_own_order
    towers = replace(LAYERS, edges=())
    in_, skip, *rest = towers.to_layer_graph().keep_all().steps
    assert made(towers, (skip, in_, *rest)).has_own_order
    assert not made(towers).has_own_order

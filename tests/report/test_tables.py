"""The rows of a plan and the difference of two: their figures are the replay's."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from scheduler import CostGraph, InvalidPlan, LayerCost, Plan, solve
from scheduler.plans.diff import diff_plans
from scheduler.plans.rows import plan_rows, policy_sentences, rows_table, rows_text
from scheduler.report.tables import fitted, span_text
from solvers.schedule import Backward, Checkpoint, Forward, Item, Items, Keep, actions
from tests.planning.test_graph_api import UNET, UNET_PEAK
from tests.report.test_pictures import EXAMPLE, NESTED, plan_of, random_costs


def layer(name: str, output: int, saved: int) -> LayerCost:
    return LayerCost(
        name=name, forward_time=2, backward_time=3, output_bytes=output, saved_bytes=saved
    )


# --- rows ----------------------------------------------------------------------------------------


def test_rows_of_a_plan_worked_out_by_hand() -> None:
    costs = CostGraph((layer("a", 10, 100), layer("b", 20, 200), layer("c", 30, 300)), 5)
    plan = plan_of(costs, (Checkpoint(0, 0, (Keep(0),)), Keep(1), Keep(2)))
    first, rest = plan_rows(plan)[0], plan_rows(plan)[1:]
    # Live at the start: the input and the last gradient, 5 + 30. After a's forward: its output.
    assert (first.first, first.what, first.runs) == ("a", "checkpoint", 2)
    assert first.held_bytes == 10
    assert first.again_time == 2
    inner_and_kept = [(row.first, row.last, row.held_bytes) for row in rest]
    # b and c keep their saved sets and outputs; c's is held by the sweep and by its saved set.
    assert inner_and_kept == [("b", "c", 20 + 200 + 30 + 300)]
    assert rest[0].sets_peak
    # The backward of c: everything above, and b's gradient as the new one.
    assert rest[0].highest_bytes == plan.peak_bytes == 5 + 30 + 10 + 550 + 20


def random_items(draw: random.Random, first: int, last: int, depth: int = 0) -> tuple[Item, ...]:
    items: list[Item] = []
    while first <= last:
        end = draw.randint(first, last)
        if draw.random() < 0.5 or depth > 3:
            items.append(Keep(first, draw.choice((None, "lean"))))
            first += 1
        else:
            items.append(Checkpoint(first, end, random_items(draw, first, end, depth + 1)))
            first = end + 1
    return tuple(items)


@pytest.mark.parametrize("seed", range(30))
def test_rows_add_up_to_the_replay(seed: int) -> None:
    draw = random.Random(seed)
    costs = random_costs(draw.randint(1, 12), seed)
    items = random_items(draw, 0, len(costs) - 1)
    plan = plan_of(costs, items)
    rows = plan_rows(plan)
    chain = costs.to_chain()
    steps = chain.replay(Items(items)).moments
    # What the rows of the outer level hold is what is live when the forward sweep has ended.
    turn = next(i for i, step in enumerate(steps) if isinstance(step.action, Backward))
    sweep = [i for i, step in enumerate(steps[:turn]) if isinstance(step.action, Forward)]
    ends = len(chain) - 1
    outer = next(i for i in sweep if steps[i].action.layer == ends)
    live = steps[outer].after_bytes
    if outer + 1 < len(steps) and steps[outer + 1].action.layer == ends - 1 and ends:
        live = steps[outer + 1].after_bytes  # the input of the last layer is let go
    start = chain.input_bytes + chain.layers[-1].output_bytes
    assert sum(row.held_bytes or 0 for row in rows if not row.depth) == live - start
    assert max(row.highest_bytes for row in rows) == plan.peak_bytes
    assert any(row.sets_peak and row.highest_bytes == plan.peak_bytes for row in rows)
    again = sum(row.again_time for row in rows if not row.depth)
    recomputed, seen = 0, set()
    for action in actions(items, len(chain)):
        if isinstance(action, Forward):
            if action.layer in seen:
                one = chain.layers[action.layer]
                recomputed += one.recompute_time if action.ends_body else one.forward_time
            seen.add(action.layer)
            recomputed += chain.layers[action.layer].way(action.option).recompute_time
    assert again == pytest.approx(recomputed / costs.ticks_per_unit)


def test_rows_of_a_graph() -> None:
    plan = solve(UNET, budget=3 * UNET_PEAK // 4)
    rows = plan_rows(plan)
    assert {row.runs for row in rows} == set(plan.forwards.values())
    assert max(row.highest_bytes for row in rows) == plan.peak_bytes
    assert next(row.first for row in rows if row.sets_peak) in plan.replay().set_by
    assert all(row.held_bytes is None for row in rows)
    assert sum(row.again_time for row in rows) == pytest.approx(plan.time - plan.keep_all_time)


def test_rows_say_what_options_keep() -> None:
    costs = random_costs(4, 1)
    keeps = [(("aten.mm.default", 0), ("aten.mm.default", 2)), (("aten.relu_.default", 1),)]
    layers = [
        replace(layer, options=(replace(layer.options[0], keeps=keeps[i // 2]),))
        for i, layer in enumerate(costs.layers)
    ]
    costs = CostGraph(tuple(layers), costs.input_bytes)
    lean = plan_of(costs, (Keep(0, "lean"), Keep(1, "lean"), Keep(2), Keep(3)))
    first = "Option 'lean' keeps: aten.mm.default#0, aten.mm.default#2."
    assert policy_sentences(lean) == [first]
    both = plan_of(costs, (Keep(0, "lean"), Keep(1, "lean"), Keep(2), Keep(3, "lean")))
    assert policy_sentences(both) == [
        "Option 'lean' keeps in block.0–1: aten.mm.default#0, aten.mm.default#2.",
        "Option 'lean' keeps in block.3: aten.relu_.default#1.",
    ]
    text = rows_text(lean, plan_rows(lean), 60)
    assert first in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 60
    assert "Option" not in rows_text(solve(EXAMPLE, budget="310MB"), [], 60)
    assert policy_sentences(solve(UNET, budget=3 * UNET_PEAK // 4)) == []


@pytest.mark.parametrize("width", [100, 60, 40])
def test_a_table_fits_the_width(width: int) -> None:
    plan = solve(EXAMPLE, budget="310MB")
    rows = plan_rows(plan)
    text = rows_text(plan, rows, width)
    assert max(map(len, text.splitlines())) <= width
    assert text.splitlines()[0].startswith("layers" if width == 100 else "features.conv0")
    assert "checkpoint as one, recomputed as" in text
    assert text.count("peak") == 1
    short = rows_text(plan, rows, width, most=5)
    assert f"{len(rows) - 5} more rows" in " ".join(short.split())
    assert "with the peak among them" in " ".join(short.split())
    assert len(rows_table(rows)) == len(rows) + 1


def test_names_are_cut_before_figures() -> None:
    rows = [("x" * 80, "1.000 GiB"), ("y", "2.000 MiB")]
    lines = fitted(("name", "size"), rows, 40)
    assert max(map(len, lines)) <= 40
    assert "x…x" in lines[1]
    assert lines[1].endswith("1.000 GiB")
    assert fitted(("name", "size"), rows, 20)[1:] == ["  size 1.000 GiB", "y", "  size 2.000 MiB"]


def test_a_span_says_what_is_shared_once() -> None:
    assert span_text("enc.h.0", "enc.h.11") == "enc.h.0–11"
    assert span_text("a", "b") == "a–b"
    assert span_text("a.b", "a.b") == "a.b"
    assert span_text("a", "a.b") == "a–b"


# --- the difference of two plans -----------------------------------------------------------------


def test_a_difference_names_what_is_treated_otherwise() -> None:
    costs = random_costs(16, 1)
    one = plan_of(costs, NESTED)
    other = plan_of(
        costs, (Checkpoint(0, 11, tuple(map(Keep, range(12)))), *map(Keep, range(12, 16)))
    )
    found = diff_plans(one, other)
    words = {(row.first, row.last): (row.before, row.after) for row in found.rows}
    assert words[("block.12", "block.12")] == ("keep with option 'lean'", "keep")
    before, after = words[("block.0", "block.2")]
    assert before == f"checkpoint 0–11, run {one.forwards['block.0']} times"
    assert after == "checkpoint 0–11"
    # The last half of the outer segment runs twice in both.
    assert found.different == 7 == sum(int(r.last[6:]) - int(r.first[6:]) + 1 for r in found.rows)
    record = found.to_dict()
    for name, plan in (("before", one), ("after", other)):
        assert record[name]["peak_bytes"] == plan.replay().peak_bytes
        assert record[name]["time"] == plan.replay().time
        assert record[name]["extra_runs"] == sum(plan.forwards.values()) - 16
    assert record["same_costs"]
    assert "7 of 16 layers are treated differently" in str(found)
    assert diff_plans(one, one).rows == ()
    assert "All 16 layers are treated alike." in str(diff_plans(one, one))


def test_a_difference_of_graphs_and_of_other_costs() -> None:
    tight, roomy = solve(UNET, budget=3 * UNET_PEAK // 4), solve(UNET, budget=UNET_PEAK)
    found = diff_plans(roomy, tight)
    again = [name for name, runs in tight.forwards.items() if runs > 1]
    named = [name for row in found.rows for name in (row.first, row.last)]
    assert set(named) <= set(again)
    assert found.different == len(again)
    costs = random_costs(16, 1)
    larger = CostGraph(costs.layers, costs.input_bytes + 1)
    other = diff_plans(plan_of(costs, NESTED), plan_of(larger, NESTED))
    assert not other.same_costs
    assert "The plans were made for different costs." in str(other)
    with pytest.raises(InvalidPlan, match="plans are of different layers: only one of them has"):
        diff_plans(tight, plan_of(costs, NESTED))


@pytest.mark.parametrize("width", [100, 40])
def test_a_difference_fits_the_width(width: int) -> None:
    one: Plan = solve(EXAMPLE, budget="500MB")
    text = diff_plans(one, solve(EXAMPLE, budget="310MB")).text(("a", "b"), width)
    assert max(map(len, text.splitlines())) <= width
    assert "checkpoint 0–8, run 5 times" in " ".join(text.split())

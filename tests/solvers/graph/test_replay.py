"""The judge of graph schedules, against arithmetic by hand and the oracle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solvers.graph.problem import ComputeGraph, LayerGraph, Node
from solvers.graph.schedule import Actions, LayerAction, Nodes
from solvers.problem import Layer
from solvers.replay import Replay
from solvers.schedule import Backward, Compute, Forward, IllegalPlan, Items, actions
from tests.oracles import graph_oracle
from tests.oracles.strategies import chains, plans
from tests.solvers.graph.graph_strategies import (
    as_layer_graph,
    compute_graphs,
    examples,
    layer_actions,
    layer_graphs,
    schedules,
    training_graphs,
)


def during(result: Replay) -> list[int]:
    return [moment.during_bytes for moment in result.moments]


def roles(result: Replay) -> list[str]:
    return [moment.role for moment in result.moments]


def after(result: Replay) -> list[int]:
    return [moment.after_bytes for moment in result.moments]


# a -> b -> c and a -> c; nothing reads d
DIAMOND = ComputeGraph(
    (Node("a", 1, 100), Node("b", 2, 20), Node("c", 4, 3), Node("d", 8, 50)),
    ((0, 1), (1, 2), (0, 2)),
)


def test_a_copy_is_freed_right_after_its_last_use() -> None:
    result = DIAMOND.replay(Nodes((0, 1, 2, 3)))
    assert during(result) == [100, 120, 123, 50]
    assert after(result) == [100, 120, 0, 0]  # a sink's at once
    assert (result.peak_bytes, result.peak_at, result.time) == (123, 2, 15)


def test_a_fresh_copy_serves_the_uses_after_it() -> None:
    result = DIAMOND.replay(Nodes((0, 1, 3, 0, 2)))
    # The first copy of a is not held across d: a's next use is after its second run.
    assert during(result) == [100, 120, 70, 120, 123]
    assert after(result) == [100, 20, 20, 120, 0]
    assert result.time == 16


def test_a_copy_that_nobody_reads_is_freed_at_once() -> None:
    result = DIAMOND.replay(Nodes((0, 1, 2, 1, 0, 3)))
    assert during(result) == [100, 120, 123, 120, 100, 50]
    assert after(result) == [100, 120, 100, 0, 0, 0]
    assert roles(result) == ["first", "first", "first", "again", "again", "first"]
    assert [moment.action for moment in result.moments] == list(map(Compute, (0, 1, 2, 1, 0, 3)))
    assert [moment.ticks for moment in result.moments] == [1, 2, 4, 2, 1, 8]


def test_a_backward_node_that_runs_again() -> None:
    nodes = (*DIAMOND.nodes[:2], *(replace(node, backward=True) for node in DIAMOND.nodes[2:]))
    result = replace(DIAMOND, nodes=nodes).replay(Nodes((0, 1, 2, 0, 2, 3)))
    assert roles(result) == ["first", "first", "back", "again", "again", "back"]


#              f  b  x   w    r   tf td tb o  g
A = Layer("a", 3, 6, 10, 100, 99, 4, 40, 5, 0, 7)
B = Layer("b", 4, 8, 20, 200, 99, 6, 60, 9, 0, 11)
C = Layer("c", 5, 10, 30, 300, 99)
TRIANGLE = LayerGraph((A, B, C), ((0, 1), (0, 2), (1, 2)), 1)

DROP: list[LayerAction] = [Forward(i, False) for i in range(3)]
KEEP: list[LayerAction] = [Forward(i, True) for i in range(3)]
BACK: list[LayerAction] = [Backward(i) for i in range(3)]


def test_layers_keeping_all() -> None:
    result = TRIANGLE.replay(Actions((*KEEP, BACK[2], BACK[1], BACK[0])))
    assert during(result) == [
        145,  # a_-1 1, d_2 30; a_0 10, W_0 100, tf 4
        367,  # 141 live; a_1 20, W_1 200, tf 6
        691,  # 361 live; a_2 30, W_2 300
        721,  # 691 live; d_0 10, d_1 20
        391,  # 691 + 30 - W_2 300 - d_2 30 - a_2 30 = 361; added to d_0 10, g 11, tb 9
        145,  # 361 + 11 - W_1 200 - d_1 20 - a_1 20 = 132; d_-1 1, g 7, tb 5
    ]
    assert after(result)[-1] == 20  # a_-1 1, d_-1 1, g 7 + 11
    assert (result.peak_bytes, result.peak_at, result.time) == (721, 3, 36)


def test_layers_recomputing() -> None:
    steps = [DROP[0], KEEP[1], KEEP[2], BACK[2], BACK[1], KEEP[0], BACK[0]]
    result = TRIANGLE.replay(Actions(tuple(steps)))
    assert during(result) == [
        81,  # 31 live; a_0 10, td 40, and no W
        267,  # 41 live
        591,  # 261 live
        621,
        291,  # 261 live
        136,  # a_0 was last read by the backward of b: a_-1 1, d_0 10, g 11; then as at first
        145,
    ]
    assert result.time == 36 + 3
    assert roles(result) == ["first", "first", "first", "back", "back", "again", "back"]
    assert [moment.ticks for moment in result.moments] == [3, 4, 5, 10, 8, 3, 6]
    assert [moment.action for moment in result.moments] == steps


def test_a_forward_for_the_saved_set_alone_leaves_one_output() -> None:
    steps = [DROP[0], KEEP[1], KEEP[0], KEEP[2], BACK[2], BACK[1], BACK[0]]
    result = TRIANGLE.replay(Actions(tuple(steps)))
    # The first copy of a_0 goes after the forward of b; the second one serves the later readers.
    assert during(result)[:4] == [81, 267, 31 + 220 + 10 + 100 + 4, 691]


def test_what_no_saved_set_holds_is_let_go_in_the_forward() -> None:
    layers = tuple(replace(la, input_saved=False, output_saved=False) for la in (A, B, C))
    result = replace(TRIANGLE, layers=layers).replay(Actions((*KEEP, BACK[2], BACK[1], BACK[0])))
    assert during(result) == [
        145,
        367,
        691,
        661,  # 691 - a_0 10 - a_1 20 - a_2 30 = 631; 30
        361,  # 631 + 30 - 300 - 30 = 331; 10 + 11 + 9
        135,  # 331 + 11 - 200 - 20 = 122; 1 + 7 + 5
    ]
    assert after(result)[-1] == 20


@pytest.mark.parametrize("overlap", [0, 25])
def test_layers_side_by_side(overlap: int) -> None:
    graph = LayerGraph((A, replace(B, backward_overlap_bytes=overlap)), (), 5)
    result = graph.replay(Actions((*KEEP[:2], BACK[1], BACK[0])))
    assert during(result) == [
        149,  # a_-1 5, d_0 10, d_1 20; 10 + 100 + 4
        371,  # 145 live; 20 + 200 + 6
        390 - overlap,  # 365 live; d_-1 5, g 11, tb 9
        158,  # 365 + 16 - 200 - 20 - 20 = 141; added to d_-1 5, g 7, tb 5
    ]
    assert after(result)[-1] == 28  # a_-1 5, d_-1 5, g 7 + 11


@pytest.mark.parametrize(
    ("schedule", "sentence"),
    [
        ((0, 1, 2), "never computes 'd'"),
        ((), "never computes 'a'"),
        ((0, 2, 1, 3), r"'c' is computed while its input 'b' is not live \(step 1\)"),
        ((0, 1, 2, 4), "computes node 4, but there are nodes 0 to 3"),
        ((0, 1, 2, 3, -1), "computes node -1"),
    ],
)
def test_schedules_refused(schedule: tuple[int, ...], sentence: str) -> None:
    with pytest.raises(IllegalPlan, match=sentence):
        DIAMOND.replay(Nodes(schedule))


FIXED = replace(TRIANGLE, layers=(replace(A, recomputable=False), B, C))


@pytest.mark.parametrize(
    ("graph", "steps", "sentence"),
    [
        (TRIANGLE, [KEEP[0], KEEP[2]], r"forward of 'c' runs while the output of 'b' is not live"),
        (TRIANGLE, [*KEEP, BACK[1]], "backward of 'b' runs before that of 'c', which reads it"),
        (TRIANGLE, [*KEEP[:2], DROP[2], BACK[2]], "'c' runs while its saved set is not live"),
        (TRIANGLE, [*KEEP, BACK[2], BACK[2]], "the backward of 'c' runs twice"),
        (TRIANGLE, [*KEEP, BACK[2], DROP[2]], "the forward of 'c' runs after its backward"),
        (TRIANGLE, [*KEEP, KEEP[1]], "the forward of 'b' keeps what is already kept"),
        (TRIANGLE, [*KEEP, BACK[2], BACK[1]], "ends before the backward of 'a'"),
        (TRIANGLE, [], "ends before the backward of 'a'"),
        (FIXED, [KEEP[0], DROP[0]], "recomputes 'a', which must be kept"),
        (FIXED, [DROP[0], KEEP[0]], "recomputes 'a', which must be kept"),
        (TRIANGLE, [Forward(3, True)], "step 0 names layer 3 of 3"),
        (TRIANGLE, [Backward(-1)], "step 0 names layer -1 of 3"),
    ],
)
def test_actions_refused(graph: LayerGraph, steps: list[LayerAction], sentence: str) -> None:
    with pytest.raises(IllegalPlan, match=sentence):
        graph.replay(Actions(tuple(steps)))


def same(judge: Replay, oracle: graph_oracle.Outcome) -> None:
    assert during(judge) == oracle.during
    assert (judge.peak_bytes, judge.time) == (oracle.peak, oracle.time)
    assert oracle.during[judge.peak_at] == oracle.peak


@examples(200)
@given(st.data())
def test_schedules_replay_as_the_oracle_says(data: st.DataObject) -> None:
    graph = data.draw(compute_graphs() | training_graphs())
    schedule = data.draw(schedules(graph))
    same(graph.replay(Nodes(schedule)), graph_oracle.simulate_schedule(graph, schedule))


@examples(200)
@given(st.data())
def test_actions_replay_as_the_oracle_says(data: st.DataObject) -> None:
    graph = data.draw(layer_graphs(max_layers=6))
    steps = data.draw(layer_actions(graph))
    same(graph.replay(Actions(tuple(steps))), graph_oracle.simulate_actions(graph, steps))


@examples(150)
@given(st.data())
def test_what_is_legal(data: st.DataObject) -> None:
    graph = data.draw(compute_graphs(max_nodes=3))
    schedule = data.draw(st.lists(st.integers(0, len(graph) - 1), max_size=6))
    try:
        outcome = graph_oracle.simulate_schedule(graph, schedule)
    except graph_oracle.Illegal:
        with pytest.raises(IllegalPlan):
            graph.replay(Nodes(tuple(schedule)))
    else:
        same(graph.replay(Nodes(tuple(schedule))), outcome)


def spoiled(data: st.DataObject, steps: Sequence[LayerAction], n: int) -> list[LayerAction]:
    """The actions with one put elsewhere, left out, or put in."""
    result = list(steps)
    place = st.integers(0, len(result) - 1)
    change = data.draw(st.sampled_from(("move", "leave out", "put in")))
    moved = result[data.draw(place)] if change == "put in" else result.pop(data.draw(place))
    if change == "put in" and data.draw(st.booleans()):
        moved = Forward(data.draw(st.integers(0, n - 1)), data.draw(st.booleans()))
    if change != "leave out":
        result.insert(data.draw(place), moved)
    return result


@examples(200)
@given(st.data())
def test_what_is_legal_of_layers(data: st.DataObject) -> None:
    graph = data.draw(layer_graphs())
    steps = spoiled(data, data.draw(layer_actions(graph)), len(graph))
    try:
        outcome = graph_oracle.simulate_actions(graph, steps)
    except graph_oracle.Illegal:
        with pytest.raises(IllegalPlan):
            graph.replay(Actions(tuple(steps)))
    else:
        same(graph.replay(Actions(tuple(steps))), outcome)


@examples(200)
@given(st.data())
def test_plans_of_chains_need_no_more_as_graphs(data: st.DataObject) -> None:
    chain = data.draw(chains(max_layers=6, as_graph=True))
    layers = tuple(replace(la, recompute_time=la.forward_time) for la in chain.layers)
    chain = replace(chain, layers=layers)
    items = data.draw(plans(chain))
    steps: list[LayerAction] = []
    for action in actions(items, len(chain)):
        if isinstance(action, Forward):
            steps.append(Forward(action.layer, action.keep))
        elif isinstance(action, Backward):
            steps.append(action)
    as_chain = chain.replay(Items(items))
    as_graph = as_layer_graph(chain).replay(Actions(tuple(steps)))
    assert as_graph.time == as_chain.time
    assert as_graph.peak_bytes <= as_chain.peak_bytes

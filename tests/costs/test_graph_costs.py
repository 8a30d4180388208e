"""Costs of graphs: layers with edges, and compute graphs; every form, every slip in a sentence."""

from __future__ import annotations

import json
import math
import pickle
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler import ComputeCosts, CostGraph, InvalidCosts, LayerCost, NodeCost
from scheduler.costs.layer import OptionCost
from scheduler.costs.readers import as_any_costs, as_costs, read_costs_text
from solvers.graph.problem import LayerGraph

GRAPHS = Path(__file__).parents[1] / "data" / "graphs"
COSTS: dict[str, Any] = {
    "forward_time": 1,
    "backward_time": 2,
    "output_bytes": 3,
    "saved_bytes": 4,
}


fixed = settings(deadline=None, derandomize=True, max_examples=150)


def layers(names: str) -> tuple[LayerCost, ...]:
    return tuple(LayerCost(name, **COSTS) for name in names)


def edges(text: str) -> tuple[tuple[str, str], ...]:
    """``"ab bc"`` as edges of layers with one letter each."""
    return tuple((pair[0], pair[1]) for pair in text.split())


def nodes(count: int) -> tuple[NodeCost, ...]:
    return tuple(NodeCost(chr(97 + i), time=i + 1, bytes=10 * i) for i in range(count))


def sentence(call: Any, *arguments: Any, **keywords: Any) -> str:
    with pytest.raises(InvalidCosts) as caught:
        call(*arguments, **keywords)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 400
    return message


@st.composite
def layer_graphs(draw: st.DrawFn) -> CostGraph:
    """Acyclic graphs of layers in any order, with floats for times."""
    count = draw(st.integers(1, 7))
    ranks = draw(st.permutations(range(count)))
    pairs = [(a, b) for a in range(count) for b in range(count) if ranks[a] < ranks[b]]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    times = st.integers(0, 9) | st.floats(1e-9, 1e6)
    made = tuple(
        LayerCost(
            f"l{i}",
            forward_time=draw(times),
            backward_time=draw(times),
            output_bytes=draw(st.integers(0, 2**40)),
            saved_bytes=draw(st.integers(0, 2**40)),
            input_saved=draw(st.booleans()),
            gradient_bytes=draw(st.integers(0, 9)),
        )
        for i in range(count)
    )
    named = tuple((f"l{a}", f"l{b}") for a, b in chosen)
    unit = draw(st.sampled_from(("ms", "s", "cycles")))
    return CostGraph(made, draw(st.integers(0, 99)), draw(st.text("aé ")), unit, named)


@st.composite
def compute_graphs(draw: st.DrawFn) -> ComputeCosts:
    count = draw(st.integers(1, 8))
    pairs = [(a, b) for a in range(count) for b in range(a + 1, count)]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    made = tuple(
        NodeCost(
            f"n{i}",
            time=draw(st.integers(0, 9) | st.floats(1e-9, 1e6)),
            bytes=draw(st.integers(0, 2**40)),
            backward=draw(st.booleans()),
        )
        for i in range(count)
    )
    unit = draw(st.sampled_from(("ms", "s", "cycles")))
    return ComputeCosts(made, tuple(chosen), draw(st.text("aé ")), unit)


# --- layers with edges --------------------------------------------------------------------------


def test_a_graph_of_layers() -> None:
    graph = CostGraph(layers("abcd"), 7, edges=edges("ab ac bd cd"))
    assert not graph.is_chain
    assert graph.edges == edges("ab ac bd cd")
    problem = graph.to_layer_graph()
    assert problem.edges == ((0, 1), (0, 2), (1, 3), (2, 3))
    assert problem.input_bytes == 7
    assert problem.layers == CostGraph(layers("abcd"), 7).to_chain().layers
    assert graph.size == "4 layers, 4 edges"
    assert "CostGraph: 4 layers, 4 edges, forward 4.000 ms" in repr(graph)
    assert "no chain but a graph of 4 edges" in sentence(graph.to_chain)


def test_edges_of_one_path_are_a_chain() -> None:
    chain = CostGraph(layers("abc"))
    for order, pairs in (("abc", "ab bc"), ("abc", "bc ab"), ("cab", "ab bc"), ("cba", "bc ab")):
        graph = CostGraph(layers(order), edges=edges(pairs))
        assert graph.is_chain
        assert graph.edges is None
        assert graph == chain
        assert graph.sha256 == chain.sha256
    assert CostGraph(layers("a"), edges=()).is_chain


def test_a_chain_is_a_graph_too() -> None:
    chain = CostGraph(layers("abc"), 5)
    assert chain.to_layer_graph() == LayerGraph(chain.to_chain().layers, ((0, 1), (1, 2)), 5)


def test_layers_in_any_order_are_sorted_and_otherwise_stay() -> None:
    given_in_order = CostGraph(layers("axby"), edges=edges("xy ab"))
    assert [layer.name for layer in given_in_order.layers] == list("axby")
    assert given_in_order.edges == edges("ab xy")
    graph = CostGraph(layers("dcba"), edges=edges("ad bd ac"))
    assert [layer.name for layer in graph.layers] == list("badc")
    assert graph.edges == edges("bd ad ac")


def test_the_order_of_the_edges_does_not_matter_but_the_edges_do() -> None:
    graph = CostGraph(layers("abc"), edges=edges("ab ac bc"))
    again = CostGraph(layers("abc"), edges=edges("bc ac ab"))
    assert (again, again.sha256) == (graph, graph.sha256)
    fewer = CostGraph(layers("abc"), edges=edges("ab ac"))
    assert fewer.sha256 != graph.sha256
    assert fewer.sha256 != CostGraph(layers("abc")).sha256


def test_parts_without_edges_between_them() -> None:
    """Two towers that read the same input, and a layer on its own, have a meaning: keep them."""
    apart = CostGraph(layers("abcx"), edges=edges("ab"))
    assert apart.to_layer_graph().inputs == ((), (0,), (), ())
    none = CostGraph(layers("abc"), edges=())
    assert not none.is_chain
    assert none.to_layer_graph().edges == ()


def test_a_table_says_what_each_layer_reads() -> None:
    names = tuple(LayerCost(name, **COSTS) for name in ("in", "l1", "l2", "l3", "skip", "out"))
    pairs = (("in", "l1"), ("l1", "l2"), ("l2", "l3"), ("in", "skip"))
    joins = tuple((name, "out") for name in ("in", "l1", "l3", "skip"))
    table = str(CostGraph(names, 5, "net", edges=pairs + joins)).splitlines()
    assert table[0] == "net: 6 layers, 8 edges, input 5 B"
    assert table[1].split() == ["layer", "forward", "backward", "output", "saved", "reads"]
    assert [line.split()[0] for line in table[2:]] == ["in–l3", "skip", "out"]
    assert table[2].endswith("the input")
    assert table[3].endswith("  in")
    assert table[4].endswith("in, l1, l3 and 1 more")


@fixed
@given(layer_graphs())
def test_a_cost_file_with_edges_keeps_everything(graph: CostGraph) -> None:
    again = read_costs_text(graph.to_json(), "x")
    assert again == graph
    assert again.sha256 == graph.sha256
    assert CostGraph.from_json(json.dumps(graph.to_dict())) == graph
    assert as_costs(graph.to_dict()) == graph
    assert pickle.loads(pickle.dumps(graph)) == graph
    position = {layer.name: i for i, layer in enumerate(graph.layers)}
    for a, b in graph.edges or ():
        assert position[a] < position[b]


def test_options_are_for_chains() -> None:
    a = replace(LayerCost("a", **COSTS), options=(OptionCost("o", 1, 1),))
    assert CostGraph((a, *layers("b")), edges=edges("ab")).is_chain
    assert sentence(CostGraph, (a, *layers("bc")), edges=edges("ab ac")) == (
        "layer 'a' has options, which a graph with edges cannot use; remove them"
    )


CIRCLES = [
    ("abc", "ab bc ca", "the edges run in a circle, 'a' → 'b' → 'c' → 'a', so no layer of it"),
    ("cba", "ab bc ca", "the edges run in a circle, 'c' → 'a' → 'b' → 'c', so"),
    ("abcd", "ab bc cb cd", "the edges run in a circle, 'b' → 'c' → 'b', so"),
    ("a", "aa", "layer 'a' has an edge to itself, but it cannot read its own output"),
    ("abc", "ab ab", "the edge from 'a' to 'b' is there twice; remove one"),
    ("ab", "ab ax", "the 2nd edge names an unknown layer 'x'"),
    ("ab", "xb", "the 1st edge names an unknown layer 'x'"),
]


@pytest.mark.parametrize(("names", "pairs", "part"), CIRCLES)
def test_edges_without_a_meaning(names: str, pairs: str, part: str) -> None:
    assert sentence(CostGraph, layers(names), edges=edges(pairs)).startswith(part)
    record = {
        "schema": "checkpoint-scheduler/costs/1",
        "layers": [{"name": name, **COSTS} for name in names],
        "edges": [list(edge) for edge in edges(pairs)],
    }
    assert sentence(CostGraph.from_json, json.dumps(record), "c.json").startswith(f"c.json: {part}")
    if "twice" in part or "unknown" in part:
        return
    graph: Any = nx.DiGraph()
    graph.add_nodes_from((name, COSTS) for name in names)
    graph.add_edges_from(edges(pairs))
    assert sentence(as_any_costs, graph).startswith(part)


def test_a_long_circle_is_cut() -> None:
    names = "abcdefghijkl"
    pairs = [(a, b) for a, b in zip(names, names[1:] + names[0], strict=True)]
    message = sentence(CostGraph, layers(names), edges=tuple(pairs))
    assert "'a' → 'b' → 'c' → 'd' → 'e' → 'f' → 'g' → 'h' → … → 'a' (12 in all)" in message


@fixed
@given(st.integers(2, 12), st.data())
def test_every_circle_is_found_and_is_one(count: int, data: st.DataObject) -> None:
    index = st.integers(0, count - 1)
    drawn = data.draw(st.lists(st.tuples(index, index), unique=True))
    pairs = [(a, b) for a, b in drawn if a != b]
    graph: Any = nx.DiGraph(pairs)
    names = "abcdefghijkl"[:count]
    named = tuple((names[a], names[b]) for a, b in pairs)
    if nx.is_directed_acyclic_graph(graph):
        CostGraph(layers(names), edges=named)
        return
    message = sentence(CostGraph, layers(names), edges=named)
    circle = message.partition("circle, ")[2].partition(", so")[0]
    said = [name.strip("'") for name in circle.split(" (")[0].split(" → ")]
    for pair in pairwise(said):
        assert "…" in pair or pair in named


def test_edges_that_are_no_edges() -> None:
    def message(value: object) -> str:
        return sentence(CostGraph, layers("ab"), edges=value)

    assert message({"a": "b"}).startswith("'edges' must be a list of pairs of layer names")
    assert message("ab") == "'edges' must be a list of pairs of layer names, got 'ab'"
    assert message([("a",)]) == "the 1st edge must be a pair of layer names, got ('a',)"
    assert message([(0, 1)]) == "the 1st edge must name its layers, got 0"
    record: dict[str, object] = {"schema": "checkpoint-scheduler/costs/1", "layers": []}
    record["edges"] = None
    assert "'edges' must be a list" in sentence(CostGraph.from_json, json.dumps(record))


# --- compute graphs -----------------------------------------------------------------------------


def test_a_compute_graph() -> None:
    graph = ComputeCosts(nodes(3), ((0, 1), (0, 2)), "net", "us")
    problem = graph.to_compute_graph()
    assert [node.time for node in problem.nodes] == [1000, 2000, 3000]
    assert [node.bytes for node in problem.nodes] == [0, 10, 20]
    assert problem.edges == ((0, 1), (0, 2))
    assert graph.size == "3 nodes, 2 edges"
    assert repr(graph) == ("<ComputeCosts 'net': 3 nodes, 2 edges, time 6.000 us, outputs 30 B>")


def test_a_node_without_a_name_is_called_by_its_position() -> None:
    graph = ComputeCosts.from_dict({"nodes": [{"time": 1, "bytes": 2}, {"time": 1, "bytes": 2}]})
    assert [node.name for node in graph.nodes] == ["node 0", "node 1"]
    assert graph.edges == ()
    assert graph.time_unit == "ms"


def test_nodes_in_any_order_are_sorted() -> None:
    graph = ComputeCosts(nodes(4), ((3, 0), (2, 0), (3, 2)))
    assert [node.name for node in graph.nodes] == list("bdca")
    assert graph.edges == ((1, 2), (1, 3), (2, 3))


def test_times_of_an_unknown_unit_stay_whole() -> None:
    whole = ComputeCosts((NodeCost("a", time=3.0, bytes=1),), (), "", "cycles")
    assert whole.to_compute_graph().nodes[0].time == 3
    part = ComputeCosts((NodeCost("a", time=0.5, bytes=1),), (), "", "cycles")
    assert part.to_compute_graph().nodes[0].time == 500_000


def test_equal_costs_have_equal_digests() -> None:
    graph = ComputeCosts(nodes(3), ((0, 1),))
    assert graph.sha256 == ComputeCosts(nodes(3), ((0, 1),), "a name").sha256
    assert graph.sha256 == ComputeCosts(nodes(3), [(0, 1)]).sha256  # type: ignore[arg-type]
    floats = tuple(replace(node, time=float(node.time)) for node in nodes(3))
    assert graph.sha256 == ComputeCosts(floats, ((0, 1),)).sha256
    assert graph.sha256 != ComputeCosts(nodes(3), ((0, 2),)).sha256
    backward = tuple(replace(node, backward=True) for node in nodes(3))
    assert graph.sha256 != ComputeCosts(backward, ((0, 1),)).sha256


def test_numpy_values_become_plain() -> None:
    node = NodeCost("a", time=np.float32(2.5), bytes=np.int64(3), backward=np.bool_(True))  # type: ignore[arg-type]
    assert node == NodeCost("a", time=2.5, bytes=3, backward=True)
    assert type(node.bytes) is int
    graph = ComputeCosts(nodes(2), ((np.int64(0), np.int64(1)),))  # type: ignore[arg-type]
    assert json.loads(graph.to_json())["edges"] == [[0, 1]]


def test_a_table_of_nodes() -> None:
    alike = tuple(NodeCost(f"n{i}", time=1, bytes=2**20, backward=i > 3) for i in range(6))
    pairs = tuple((i, i + 1) for i in range(5))
    table = str(ComputeCosts(alike, (*pairs, (0, 5)), "net")).splitlines()
    assert table[0] == "net: 6 nodes (2 backward), 6 edges"
    assert [line.split()[0] for line in table[2:]] == ["n0–n3", "n4", "n5"]
    assert table[4].split()[-3:] == ["backward", "n0,", "n4"]


@fixed
@given(compute_graphs())
def test_the_file_of_a_compute_graph_keeps_everything(graph: ComputeCosts) -> None:
    again = read_costs_text(graph.to_json(), "x")
    assert again == graph
    assert again.sha256 == graph.sha256
    assert as_any_costs(graph.to_dict()) == graph
    assert ComputeCosts.from_json(json.dumps(graph.to_dict())) == graph
    assert pickle.loads(pickle.dumps(graph)) == graph


@pytest.mark.parametrize("name", ["mlp16", "res4", "tr2", "rlayer20", "rlayer100"])
def test_the_graphs_of_this_project(name: str, tmp_path: Path) -> None:
    graph = ComputeCosts.load(GRAPHS / f"{name}.json")
    record = json.loads((GRAPHS / f"{name}.json").read_text())
    assert graph.name == name
    assert [node.name for node in graph.nodes] == [node["name"] for node in record["nodes"]]
    assert [list(edge) for edge in graph.edges] == sorted(record["edges"])
    graph.save(tmp_path / "again.json")
    assert as_any_costs(tmp_path / "again.json") == graph


def of_record(**changes: object) -> str:
    """The message for a compute graph's file of three good nodes with `changes` at the top."""
    record: dict[str, object] = {
        "schema": "checkpoint-scheduler/graph/1",
        "nodes": [{"name": name, "time": 1, "bytes": 2} for name in "abc"],
        "edges": [[0, 1]],
        **changes,
    }
    record = {key: value for key, value in record.items() if value is not ...}
    message = sentence(read_costs_text, json.dumps(record), "g.json")
    assert message.startswith("g.json: ")
    return message.removeprefix("g.json: ")


@pytest.mark.parametrize(
    ("value", "part"),
    [
        ([[0, 1], [1, 2], [2, 0]], "the edges run in a circle, 'a' → 'b' → 'c' → 'a', so no node"),
        ([[1, 1]], "node 'b' has an edge to itself"),
        ([[0, 1], [0, 1]], "the edge from 'a' to 'b' is there twice; remove one"),
        ([[0, 3]], "the 1st edge leads to node 3, but there are nodes 0 to 2"),
        ([[0, 1], [-1, 1]], "the 2nd edge leads to node -1, but there are nodes 0 to 2"),
        ([["a", "b"]], "the 1st edge must give the indices of its nodes, got 'a'"),
        ([[0, True]], "the 1st edge must give the indices of its nodes, got True"),
        ([[0.5, 1]], "the 1st edge must give the indices of its nodes, got 0.5"),
        ([[0, 1, 2]], "the 1st edge must be a pair of node indices, got [0, 1, 2]"),
        ([3], "the 1st edge must be a pair of node indices, got 3"),
        ({}, "'edges' must be a list of pairs of node indices, got {}"),
        (None, "'edges' must be a list of pairs of node indices, got None"),
    ],
)
def test_edges_of_nodes_without_a_meaning(value: object, part: str) -> None:
    assert of_record(edges=value).startswith(part)


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"time": -1}, "node 'a': time must be a finite number >= 0, got -1"),
        ({"time": math.nan}, "node 'a': time must be a finite number >= 0, got nan"),
        ({"time": 2**62}, "node 'a': time must be below 2**62"),
        ({"time": 2**61}, "the times add up to"),
        ({"bytes": -1}, "node 'a': bytes must be a whole number of bytes >= 0, got -1"),
        ({"bytes": 1.5}, "node 'a': bytes must be a whole number of bytes >= 0, got 1.5"),
        ({"bytes": 2**62}, "node 'a': bytes must be below 2**62"),
        ({"bytes": 2**62 - 1}, "the sizes add up to"),
        ({"backward": 1}, "node 'a': backward must be True or False, got 1"),
        ({"name": "two\nlines"}, "a node: name must be printable, on one line"),
        ({"name": 3}, "a node: name must be text, got 3"),
        ({"name": "b"}, "two nodes are named 'b', the 1st and the 2nd; give each a name"),
        ({"tiem": 3}, "unknown field 'tiem' in node 'a' (1st node); did you mean 'time'?"),
    ],
)
def test_nodes_without_a_meaning(change: dict[str, object], part: str) -> None:
    good = [{"name": name, "time": 1, "bytes": 2} for name in "abc"]
    made = [{**good[0], **change}, *good[1:]]
    assert of_record(nodes=made, time_unit="cycles").startswith(part)


def test_negative_and_huge_costs_of_layers_with_edges() -> None:
    bad = {"name": "a", **COSTS, "output_bytes": -1}
    good = [{"name": name, **COSTS} for name in "bc"]
    record = {"layers": [bad, *good], "edges": [["a", "b"], ["a", "c"]]}
    assert sentence(as_any_costs, record).startswith("layer 'a': output_bytes must be a whole")
    bad["output_bytes"] = 2**62 - 1
    assert "the sizes add up to" in sentence(as_any_costs, record)
    bad["output_bytes"] = 2**62
    assert "output_bytes must be below 2**62" in sentence(as_any_costs, record)


def test_the_top_of_a_compute_graph() -> None:
    assert of_record(nodes=[]) == "there are no nodes; a graph needs at least one"
    assert of_record(nodes=...) == "there is no 'nodes'; a compute graph lists its operations there"
    assert of_record(nodes={}) == "the nodes must be a list, got {}"
    assert of_record(nodes=[3]).startswith("the 1st node is 3; a node is a NodeCost or a mapping")
    assert of_record(nodes=[{"name": "a", "time": 1}]) == (
        "node 'a' (1st node) has no 'bytes'; it needs time and bytes"
    )
    assert "did you mean 'edges'?" in of_record(edge=[])
    assert of_record(note=3) == "'note' must be text, got 3"
    assert of_record(name=3) == "the graph: name must be text, got 3"
    assert "time_unit must not be empty" in of_record(time_unit=" ")
    assert of_record(schema="checkpoint-scheduler/graph/2").startswith("unknown schema")


def test_the_wrong_file_says_what_it_is() -> None:
    graph, chain = ComputeCosts(nodes(2)), CostGraph(layers("ab"))
    assert "this is a compute graph, not costs of layers" in sentence(
        CostGraph.from_json, graph.to_json()
    )
    assert "this is a cost file of layers" in sentence(ComputeCosts.from_json, chain.to_json())
    assert "this is a plan, not a compute graph" in sentence(
        ComputeCosts.from_json, '{"schema": "checkpoint-scheduler/plan/1"}'
    )
    assert "there is no 'schema'; a compute graph" in sentence(ComputeCosts.from_json, "{}")
    assert "is a JSON object, this is [3]" in sentence(ComputeCosts.from_json, "[3]")
    assert "costs of layers are needed here" in sentence(as_costs, graph)
    assert "input_bytes describes layers" in sentence(as_any_costs, graph, input_bytes=3)
    assert as_any_costs(graph, time_unit="s").time_unit == "s"


# --- networkx -----------------------------------------------------------------------------------


def test_a_networkx_graph_of_layers() -> None:
    graph: Any = nx.DiGraph(name="net", input_bytes=9, time_unit="us")
    graph.add_nodes_from(("d", "a", "b", "c"), **COSTS)
    graph.add_edges_from(edges("ab ac bd cd"))
    costs = as_any_costs(graph)
    assert costs == CostGraph(layers("abcd"), 9, "net", "us", edges("ab ac bd cd"))
    assert graph.number_of_nodes() == 4  # it is as it was
    path: Any = nx.DiGraph([("b", "c"), ("a", "b")])
    nx.set_node_attributes(path, dict.fromkeys("abc", COSTS))
    assert as_any_costs(path) == CostGraph(layers("abc"))


def test_a_networkx_graph_of_operations() -> None:
    graph: Any = nx.DiGraph(name="net", time_unit="us")
    graph.add_node(0, time=1, bytes=5)
    graph.add_node(("loss", 1), time=2, bytes=6, backward=True)
    graph.add_edge(0, ("loss", 1))
    costs = as_any_costs(graph)
    expected = (
        NodeCost("0", time=1, bytes=5),
        NodeCost("('loss', 1)", time=2, bytes=6, backward=True),
    )
    assert costs == ComputeCosts(expected, ((0, 1),), "net", "us")
    graph.add_node(7, time=1)
    assert "node '7' (3rd node) has no 'bytes'" in sentence(as_any_costs, graph)
    twice: Any = nx.MultiDiGraph([(0, 1), (0, 1)])
    nx.set_node_attributes(twice, {i: {"time": 1, "bytes": 1} for i in (0, 1)})
    assert "the edge from '0' to '1' is there twice" in sentence(as_any_costs, twice)


@fixed
@given(compute_graphs())
def test_networkx_and_back(graph: ComputeCosts) -> None:
    made: Any = nx.DiGraph(name=graph.name, time_unit=graph.time_unit)
    for node in graph.nodes:
        made.add_node(node.name, time=node.time, bytes=node.bytes, backward=node.backward)
    made.add_edges_from((graph.nodes[a].name, graph.nodes[b].name) for a, b in graph.edges)
    assert as_any_costs(made) == graph


# --- size ---------------------------------------------------------------------------------------


def test_ten_thousand_nodes_are_read_and_checked() -> None:
    count = 10_000
    made = [{"name": f"n{i}", "time": 1, "bytes": 1} for i in range(count)]
    joined = [[i, i + 1] for i in range(count - 1)] + [[i, i + 50] for i in range(count - 50)]
    record = {"schema": "checkpoint-scheduler/graph/1", "nodes": made, "edges": joined}
    graph = read_costs_text(json.dumps(record), "big.json")
    assert len(graph) == count
    joined.append([count - 1, 0])
    message = sentence(read_costs_text, json.dumps(record), "big.json")
    assert "run in a circle, 'n0' → " in message

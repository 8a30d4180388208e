"""Costs: every form they come in, their file, their integers, how they print."""

from __future__ import annotations

import json
import os
import pickle
import stat
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.common.errors import InvalidCosts, SchedulerError
from scheduler.common.files import write_atomically
from scheduler.costs import CostGraph, LayerCost, OptionCost
from scheduler.costs.layer import as_layers
from scheduler.costs.readers import as_costs
from scheduler.memory import costs_from_shape

CHAINS = sorted((Path(__file__).parents[1] / "data" / "chains").glob("*.json"))

A = LayerCost("a", forward_time=1, backward_time=2, output_bytes=3, saved_bytes=4)
B = LayerCost(
    "b",
    forward_time=1.5,
    backward_time=2.5,
    output_bytes=30,
    saved_bytes=40,
    gradient_bytes=5,
    output_saved=False,
    options=(OptionCost("half", 20, 0.25),),
)
RECORDS: list[dict[str, Any]] = [
    {"name": "a", "forward_time": 1, "backward_time": 2, "output_bytes": 3, "saved_bytes": 4},
    {
        "name": "b",
        "forward_time": 1.5,
        "backward_time": 2.5,
        "output_bytes": 30,
        "saved_bytes": 40,
        "gradient_bytes": 5,
        "output_saved": False,
        "options": [{"name": "half", "saved_bytes": 20, "recompute_time": 0.25}],
    },
]
GRAPH = CostGraph((A, B), input_bytes=7, name="pair")

times = st.one_of(st.integers(0, 10**6), st.floats(1e-6, 1e6))
sizes = st.integers(0, 2**44)


@st.composite
def option_costs(draw: st.DrawFn, name: str, saved: int) -> OptionCost:
    calls = st.tuples(st.sampled_from(["aten.mm.default", "aten.silu.default"]), st.integers(0, 9))
    return OptionCost(
        name,
        draw(st.integers(0, saved)),
        draw(times),
        forward_transient_bytes=draw(st.none() | sizes),
        backward_transient_bytes=draw(st.none() | sizes),
        backward_overlap_bytes=draw(st.none() | st.just(0)),
        input_saved=draw(st.none() | st.booleans()),
        output_saved=draw(st.none() | st.booleans()),
        keeps=tuple(draw(st.lists(calls, unique=True, max_size=3))),
    )


@st.composite
def layer_costs(draw: st.DrawFn) -> LayerCost:
    saved = draw(sizes)
    names = draw(st.lists(st.sampled_from("pqr"), unique=True, max_size=2))
    return LayerCost(
        forward_time=draw(times),
        backward_time=draw(times),
        output_bytes=draw(sizes),
        saved_bytes=saved,
        recompute_time=draw(st.none() | times),
        forward_transient_bytes=draw(sizes),
        backward_transient_bytes=draw(sizes),
        gradient_bytes=draw(sizes),
        input_saved=draw(st.booleans()),
        output_saved=draw(st.booleans()),
        options=tuple(draw(option_costs(name, saved)) for name in names),
        drop_transient_bytes=draw(st.none() | sizes),
        again_transient_bytes=draw(sizes),
        beside_bytes=draw(sizes),
        recomputable=draw(st.booleans()),
    )


@st.composite
def cost_graphs(draw: st.DrawFn) -> CostGraph:
    layers = draw(st.lists(layer_costs(), min_size=1, max_size=5))
    text = st.text().filter(str.isprintable)
    names = draw(st.lists(text.filter(bool), min_size=5, max_size=5, unique=True))
    return CostGraph(
        tuple(replace(layer, name=f"n{name}") for layer, name in zip(layers, names, strict=False)),
        input_bytes=draw(sizes),
        name=draw(text),
        time_unit=draw(st.sampled_from(["s", "ms", "us", "ns", "steps"])),
    )


# --- the layer ----------------------------------------------------------------------------------


def test_a_layer_stores_plain_numbers() -> None:
    layer = LayerCost(
        name="h.0",
        forward_time=np.float32(1.5),  # type: ignore[arg-type]
        backward_time=np.int64(3),  # type: ignore[arg-type]
        output_bytes=np.uint64(4),  # type: ignore[arg-type]
        saved_bytes=5.0,  # type: ignore[arg-type]
        gradient_bytes=np.array(6),  # type: ignore[arg-type]
        output_saved=np.bool_(False),  # type: ignore[arg-type]
    )
    values = [layer.forward_time, layer.backward_time, layer.output_bytes, layer.saved_bytes]
    assert values == [1.5, 3, 4, 5]
    assert [type(value) for value in values] == [float, int, int, int]
    assert type(layer.gradient_bytes) is int
    assert layer.output_saved is False


def test_defaults_of_a_layer() -> None:
    layer = CostGraph((replace(A, forward_transient_bytes=9),)).to_chain().layers[0]
    assert layer.recompute_time == layer.forward_time == 10**6
    assert layer.drop_transient_bytes == layer.forward_transient_bytes == 9
    assert (layer.input_saved, layer.output_saved, layer.recomputable) == (True, True, True)


def test_options_may_be_mappings() -> None:
    assert replace(B, options=RECORDS[1]["options"]) == B


def test_layers_and_graphs_can_be_pickled_hashed_and_compared() -> None:
    assert pickle.loads(pickle.dumps(GRAPH)) == GRAPH
    assert hash(GRAPH) == hash(CostGraph((A, B), input_bytes=7, name="pair"))
    assert replace(GRAPH, input_bytes=8) != GRAPH


# --- the graph ----------------------------------------------------------------------------------


def test_unnamed_layers_are_named_by_position() -> None:
    bare = replace(A, name="")
    graph = CostGraph((bare, B, bare))
    assert [layer.name for layer in graph.layers] == ["layer 0", "b", "layer 2"]
    assert len(graph) == 3


def test_to_chain_keeps_every_field() -> None:
    layer = replace(
        B,
        recompute_time=1.25,
        forward_transient_bytes=1,
        drop_transient_bytes=2,
        backward_transient_bytes=3,
        backward_overlap_bytes=4,
        ending_transient_bytes=9,
        first_transient_bytes=10,
        again_transient_bytes=11,
        beside_bytes=12,
        input_saved=False,
        recomputable=False,
        options=(*B.options, OptionCost("third", 10, 0.5, 6, 7, 8, False, True, (("aten.mm", 0),))),
    )
    chain = CostGraph((layer,), input_bytes=7).to_chain()
    (made,) = chain.layers
    assert chain.input_bytes == 7
    assert asdict(made) == {
        "name": "b",
        "forward_time": 1_500_000,
        "backward_time": 2_500_000,
        "output_bytes": 30,
        "saved_bytes": 40,
        "recompute_time": 1_250_000,
        "forward_transient_bytes": 1,
        "drop_transient_bytes": 2,
        "backward_transient_bytes": 3,
        "backward_overlap_bytes": 4,
        "gradient_bytes": 5,
        "ending_transient_bytes": 9,
        "first_transient_bytes": 10,
        "again_transient_bytes": 11,
        "beside_bytes": 12,
        "input_saved": False,
        "output_saved": False,
        "recomputable": False,
        "options": (
            {"name": "half", "saved_bytes": 20, "recompute_time": 250_000}
            | dict.fromkeys(
                (
                    "forward_transient_bytes",
                    "backward_transient_bytes",
                    "backward_overlap_bytes",
                    "input_saved",
                    "output_saved",
                    "ending_transient_bytes",
                )
            ),
            {
                "name": "third",
                "saved_bytes": 10,
                "recompute_time": 500_000,
                "forward_transient_bytes": 6,
                "backward_transient_bytes": 7,
                "backward_overlap_bytes": 8,
                "input_saved": False,
                "output_saved": True,
                "ending_transient_bytes": None,
            },
        ),
    }


@pytest.mark.parametrize(
    ("unit", "forward", "ticks", "expected"),
    [
        ("s", 1.5, 10**9, 1_500_000_000),
        ("ms", 12.245, 10**6, 12_245_000),
        ("us", 0.0016, 10**4, 16),
        ("ns", 3.4, 10, 34),
        ("ns", 3.001, 1, 3),
        ("ns", 2.002, 1, 2),
        ("ns", 2.0025, 10**3, 2002),
        ("ns", 0.4, 10, 4),
        ("ms", 123.4e-6, 10**7, 1234),
        ("hours", 1e-7, 10**7, 1),
        ("ns", 1e-320, 1, 0),  # lost in a sum of floats too
        ("steps", 3, 1, 3),
        ("steps", 3.0, 1, 3),
        ("steps", 0.1, 10**6, 100_000),
    ],
)
def test_times_become_integers(unit: str, forward: float, ticks: int, expected: int) -> None:
    graph = CostGraph((replace(A, forward_time=forward),), time_unit=unit)
    assert graph.ticks_per_unit == ticks
    assert graph.to_chain().layers[0].forward_time == expected


def test_times_of_every_magnitude_count() -> None:
    short = replace(A, forward_time=1e-290, backward_time=3e-290)
    assert CostGraph((short,), time_unit="ns").to_chain().least_time == 4
    wide = [replace(A, forward_time=2.345e-12), replace(B, forward_time=2e3)]
    with pytest.raises(InvalidCosts, match=r"layer 'a': forward_time 2\.345e-12 ns is too short"):
        CostGraph(wide, time_unit="ns")  # type: ignore[arg-type]
    option = replace(B, forward_time=2e3, options=(OptionCost("o", 1, 2.345e-12),))
    with pytest.raises(InvalidCosts, match=r"layer 'b', option 'o': recompute_time 2\.345e-12 s"):
        CostGraph((A, option), time_unit="s")


def test_a_fraction_anywhere_makes_ticks_of_an_unknown_unit_fine() -> None:
    layer = replace(A, saved_bytes=9, options=(OptionCost("o", 1, 0.5),))
    assert CostGraph((layer,), time_unit="steps").ticks_per_unit == 10**6
    layer = replace(A, recompute_time=0.5)
    assert CostGraph((layer,), time_unit="steps").ticks_per_unit == 10**6


def test_the_digest_is_of_the_costs_alone() -> None:
    same = CostGraph(
        (replace(A, forward_time=1.0, recompute_time=1, drop_transient_bytes=0), B),
        input_bytes=7,
        name="another name",
    )
    assert GRAPH.sha256 == same.sha256
    assert len(GRAPH.sha256) == 64
    others = [
        replace(GRAPH, input_bytes=8),
        replace(GRAPH, time_unit="s"),
        CostGraph((B, A), 7),
        CostGraph((replace(A, name="c"), B), 7),
        CostGraph((A, replace(B, output_saved=True)), 7),
    ]
    assert GRAPH.sha256 not in {other.sha256 for other in others}


def test_the_digest_is_of_what_options_say() -> None:
    def digest(**fields: Any) -> str:
        return CostGraph((replace(B, options=(OptionCost("half", 20, 0.25, **fields),)),)).sha256

    calls = (("aten.mm.default", 1), ("aten.mm.default", 0))
    plain = digest()
    assert plain == digest(forward_transient_bytes=0, output_saved=False, input_saved=True)
    assert digest(keeps=calls) == digest(keeps=calls[::-1])
    others = {
        digest(keeps=calls),
        digest(forward_transient_bytes=1),
        digest(backward_transient_bytes=1),
        digest(backward_overlap_bytes=1),
        digest(input_saved=False),
        digest(output_saved=True),
    }
    assert plain not in others
    assert len(others) == 6


def test_a_graph_prints_on_one_line_and_as_a_table() -> None:
    blocks = [replace(B, name=f"h.{i}", saved_bytes=3 * 2**20) for i in range(12)]
    graph = CostGraph((A, *blocks), input_bytes=65536, name="net")
    assert repr(graph) == (
        "<CostGraph 'net': 13 layers, forward 19.00 ms, backward 32.00 ms, "
        "saved inside layers 36.00 MiB>"
    )
    title, header, first, folded = str(graph).splitlines()
    assert title == "net: 13 layers, input 64.00 KiB"
    assert header.split() == ["layer", "forward", "backward", "output", "saved"]
    assert first.split() == ["a", "1.000", "ms", "2.000", "ms", "3", "B", "4", "B"]
    assert folded.split() == [
        "h.0–h.11",
        *["1.500", "ms", "2.500", "ms", "30", "B", "3.000", "MiB"],
    ]
    assert len(header) == len(first) == len(folded)


def test_a_long_table_is_cut_in_the_middle() -> None:
    layers = tuple(replace(A, name=f"l{i}", saved_bytes=i) for i in range(100))
    lines = str(CostGraph(layers)).splitlines()
    assert len(lines) == 43
    assert "… 60 more rows …" in lines
    assert lines[-1].startswith("l99")


# --- the file -----------------------------------------------------------------------------------


@settings(max_examples=100)
@given(cost_graphs())
def test_json_round_trip(graph: CostGraph) -> None:
    again = CostGraph.from_json(json.dumps(graph.to_dict()))
    assert again == graph
    assert again.sha256 == graph.sha256
    assert again.to_chain() == graph.to_chain()


@settings(max_examples=30)
@given(graph=cost_graphs())
def test_file_round_trip(tmp_path_factory: pytest.TempPathFactory, graph: CostGraph) -> None:
    path = tmp_path_factory.mktemp("costs") / "graph.json"
    graph.save(path)
    assert CostGraph.load(path) == graph
    assert as_costs(path) == as_costs(str(path)) == graph


def test_a_file_says_no_more_than_it_must(tmp_path: Path) -> None:
    GRAPH.save(tmp_path / "pair.json")
    text = (tmp_path / "pair.json").read_text()
    assert json.loads(text) == {
        "schema": "checkpoint-scheduler/costs/1",
        "name": "pair",
        "time_unit": "ms",
        "input_bytes": 7,
        "layers": RECORDS,
    }
    assert text.count("\n") == 5


@pytest.mark.parametrize("path", CHAINS, ids=lambda path: path.stem)
def test_the_projects_own_cost_files_are_read(path: Path) -> None:
    graph = CostGraph.load(path)
    record = json.loads(path.read_text())
    assert graph.name == path.stem
    assert [layer.name for layer in graph.layers] == [la["name"] for la in record["layers"]]
    chain = graph.to_chain()
    for layer, given_layer in zip(chain.layers, record["layers"], strict=True):
        assert layer.forward_time == pytest.approx(given_layer["forward_time"] * 1e6, abs=0.5)
        assert layer.saved_bytes == given_layer["saved_bytes"]


def test_the_files_of_the_tests_are_there() -> None:
    assert len(CHAINS) == 11


def test_a_byte_order_mark_and_a_note_are_no_trouble(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    record = {**GRAPH.to_dict(), "note": "measured on a Tuesday"}
    path.write_text("\ufeff" + json.dumps(record), encoding="utf-8")
    assert CostGraph.load(path) == GRAPH


def test_edges_that_form_a_path_put_the_layers_in_its_order() -> None:
    layers = [{**RECORDS[0], "name": name} for name in "dbac"]
    record = {
        "schema": "checkpoint-scheduler/costs/1",
        "layers": layers,
        "edges": [["c", "d"], ["a", "b"], ["b", "c"]],
    }
    graph = CostGraph.from_json(json.dumps(record))
    assert [layer.name for layer in graph.layers] == list("abcd")


def test_one_layer_needs_no_edges() -> None:
    assert len(as_costs({"layers": [RECORDS[0]], "edges": []})) == 1


def test_the_spread_of_measured_times_is_shown_and_no_part_of_the_problem() -> None:
    calm = CostGraph((replace(A, time_spread=0.042), replace(B, time_spread=0.1)))
    assert str(calm).splitlines()[1].split()[2:5] == ["backward", "spread", "output"]
    assert "±4.20%" in str(calm)
    assert calm.noise == ""
    assert CostGraph.from_json(calm.to_json()) == calm != CostGraph((A, B))
    assert calm.sha256 == CostGraph((A, B)).sha256
    assert "spread" not in str(CostGraph((A, B)))
    noisy = CostGraph((replace(A, time_spread=0.5), B))
    assert "too noisy for these times to be trusted: repeated runs were 21.43%" in noisy.noise
    assert noisy.noise in " ".join(str(noisy).split())


def test_examples_are_of_one_machine_and_say_so() -> None:
    assert CostGraph.example_names() == ("densenet121", "gpt2-small", "resnet152", "resnet18")
    for name in CostGraph.example_names():
        example = CostGraph.example(name)
        assert example.name == name
        assert "on one NVIDIA H100, by the roofline of its data sheet" in example.note
        assert example.note in " ".join(str(example).split())
        assert not any(layer.name.isdecimal() for layer in example.layers)
        assert CostGraph.from_json(example.to_json()).note == example.note
        assert replace(example, note="").sha256 == example.sha256
    shape = costs_from_shape("gpt2", 8, 1024, gpu="h100")
    assert CostGraph.example("gpt2-small").layers == shape.layers


# --- every form ---------------------------------------------------------------------------------


def test_sequences_of_layers_and_records() -> None:
    expected = CostGraph((A, B))
    for obj in ([A, B], (A, B), iter([A, B]), RECORDS, [A, RECORDS[1]], (la for la in (A, B))):
        assert as_costs(obj) == expected


def test_a_graph_passes_through_and_keywords_take_precedence() -> None:
    assert as_costs(GRAPH) is GRAPH
    changed = as_costs(GRAPH, input_bytes=0, time_unit="s")
    assert (changed.input_bytes, changed.time_unit, changed.name) == (0, "s", "pair")
    assert GRAPH.input_bytes == 7


def test_every_form_takes_what_is_given_beside_it_before_it_is_checked(tmp_path: Path) -> None:
    """Without the input's bytes the backward of the first layer would make less than it frees."""
    records = [{**RECORDS[0], "backward_overlap_bytes": 5}, RECORDS[1]]
    layers = [replace(A, backward_overlap_bytes=5), B]
    columns = {key: [1, 2] for key in ("forward_time", "backward_time")}
    columns |= {"output_bytes": [3, 3], "saved_bytes": [4, 4], "backward_overlap_bytes": [5, 0]}
    graph: Any = nx.DiGraph([("a", "b")])
    nx.set_node_attributes(graph, {each["name"]: each for each in records})
    file = tmp_path / "costs.json"
    file.write_text(json.dumps({"schema": GRAPH.to_dict()["schema"], "layers": records}))
    expected = CostGraph(tuple(layers), 7, time_unit="us")
    beside: dict[str, Any] = {"input_bytes": 7, "time_unit": "us"}
    bare = tmp_path / "bare.json"
    bare.write_text(json.dumps({"layers": records}))
    forms: list[Any] = [
        layers,
        tuple(records),
        iter(layers),
        {"layers": records},
        file,
        str(file),
        bare,
    ]
    for obj in forms:
        assert as_costs(obj, **beside) == expected
    assert as_costs(graph, **beside).layers == expected.layers
    assert as_costs(expected, input_bytes=8) == replace(expected, input_bytes=8)
    whole = CostGraph(as_layers(pd.DataFrame(columns).to_dict("records")), **beside)
    for obj in [columns, {**columns, "input_bytes": 1}, pd.DataFrame(columns)]:
        assert as_costs(obj, **beside) == whole


def test_a_mapping_of_columns() -> None:
    columns = {
        "name": ["a", "b"],
        "forward_time": np.array([1, 1.5]),
        "backward_time": (2, 2.5),
        "output_bytes": np.array([3, 30]),
        "saved_bytes": pd.Series([4, 40]),
        "gradient_bytes": range(0, 10, 5),
        "output_saved": np.array([True, False]),
        "options": [[], RECORDS[1]["options"]],
        "input_bytes": np.int64(7),
        "time_unit": "us",
    }
    assert as_costs(columns) == CostGraph((A, B), 7, time_unit="us")


def test_columns_without_names() -> None:
    columns = {key: [1, 2] for key in ("forward_time", "backward_time", "output_bytes")}
    graph = as_costs({**columns, "saved_bytes": [0, 0]})
    assert [layer.name for layer in graph.layers] == ["layer 0", "layer 1"]


def test_a_mapping_in_the_form_of_a_cost_file() -> None:
    assert as_costs(GRAPH.to_dict()) == GRAPH
    assert as_costs({"layers": [A, RECORDS[1]], "input_bytes": 7, "name": "pair"}) == GRAPH


def test_a_dataframe_named_by_column_by_index_or_not_at_all() -> None:
    frame = pd.DataFrame([*RECORDS[:1], {**RECORDS[0], "name": "z"}])
    assert [layer.name for layer in as_costs(frame).layers] == ["a", "z"]
    assert as_costs(frame.set_index("name"), input_bytes=7) == as_costs(frame, input_bytes=7)
    unnamed = frame.drop(columns="name")
    assert [layer.name for layer in as_costs(unnamed).layers] == ["layer 0", "layer 1"]
    assert as_costs(unnamed[1:]).layers[0].name == "layer 0"


def test_a_digraph_that_is_a_path() -> None:
    graph: Any = nx.DiGraph(input_bytes=7, name="pair")
    graph.add_edge("a", "b")
    for record in reversed(RECORDS):
        attributes = {key: value for key, value in record.items() if key != "name"}
        graph.add_node(record["name"], **attributes)
    assert as_costs(graph) == GRAPH
    assert as_costs(nx.MultiDiGraph(graph)) == GRAPH


def test_nodes_that_are_numbers_are_named_by_them() -> None:
    graph = nx.path_graph(3, create_using=nx.DiGraph)
    costs = {key: value for key, value in RECORDS[0].items() if key != "name"}
    nx.set_node_attributes(graph, dict.fromkeys(graph, costs))
    assert [layer.name for layer in as_costs(graph).layers] == ["0", "1", "2"]


def test_inputs_are_not_changed() -> None:
    records = json.loads(json.dumps(RECORDS))
    columns = {key: [value] for key, value in RECORDS[0].items()}
    frame = pd.DataFrame(RECORDS[:1])
    graph: Any = nx.DiGraph()
    graph.add_node("a", **{key: value for key, value in RECORDS[0].items() if key != "name"})
    before = (json.dumps(columns), frame.copy(), dict(graph.nodes["a"]))
    for obj in (records, columns, frame, graph):
        as_costs(obj)
    assert records == RECORDS
    assert json.dumps(columns) == before[0]
    assert frame.equals(before[1])
    assert dict(graph.nodes["a"]) == before[2]


def test_reading_costs_loads_no_heavy_package() -> None:
    code = (
        "import sys; from scheduler.costs import CostGraph;"
        "from scheduler.costs.readers import as_costs;"
        "as_costs(CostGraph.example('resnet18').to_dict()).to_chain();"
        "print([m for m in ('numpy', 'scipy', 'networkx', 'ortools', 'numba', 'torch', 'pandas')"
        " if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- writing ------------------------------------------------------------------------------------


def test_a_new_file_has_usual_permissions(tmp_path: Path) -> None:
    plain, written = tmp_path / "plain", tmp_path / "written"
    plain.write_text("x")
    write_atomically(written, "x")
    assert written.stat().st_mode == plain.stat().st_mode


def test_an_old_file_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    path.write_text("old")
    path.chmod(0o640)
    write_atomically(path, "new")
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    write_atomically(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"


def test_a_device_is_written_to_and_not_replaced() -> None:
    write_atomically(os.devnull, "gone")
    assert not Path(os.devnull).is_file()


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_keeps_the_old_file_and_leaves_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, failure: BaseException
) -> None:
    path = tmp_path / "costs.json"
    GRAPH.save(path)
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise failure

    monkeypatch.setattr(os, step, fail)
    expected = SchedulerError if isinstance(failure, OSError) else KeyboardInterrupt
    with pytest.raises(expected) as caught:
        replace(GRAPH, name="new").save(path)
    if expected is SchedulerError:
        assert str(caught.value) == f"cannot write {str(path)!r}: no space left on device"
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    places: list[tuple[str | Path, str]] = [
        (tmp_path / "absent" / "x.json", "absent'; make it first"),
        (tmp_path, "it is a directory; name a file in it"),
        (f"{tmp_path}/a\0b", "null byte"),
    ]
    for path, part in places:
        with pytest.raises(SchedulerError) as caught:
            GRAPH.save(path)
        assert str(caught.value).startswith("cannot write ")
        assert part in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_read_only_file_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "costs.json"
    path.write_text("old")
    # Root may write anywhere, so the answer is given here.
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(SchedulerError, match="the file is read-only"):
        GRAPH.save(path)
    assert path.read_text() == "old"


def test_a_directory_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(13, os.strerror(13))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(SchedulerError, match="permission denied; choose a place"):
        GRAPH.save(tmp_path / "costs.json")

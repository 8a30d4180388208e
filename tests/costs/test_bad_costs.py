"""Costs that have no meaning: one sentence each, which names the layer, the field or the line."""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pytest

from scheduler.common.errors import InvalidCosts, SchedulerError
from scheduler.costs import CostGraph, LayerCost, OptionCost
from scheduler.costs.readers import as_costs

GOOD: dict[str, Any] = {
    "name": "h.0",
    "forward_time": 1,
    "backward_time": 2,
    "output_bytes": 3,
    "saved_bytes": 4,
}
LAYER = LayerCost(**GOOD)
SCHEMA = "checkpoint-scheduler/costs/1"

TIMES = ("forward_time", "backward_time", "recompute_time")
SIZES = (
    "output_bytes",
    "saved_bytes",
    "forward_transient_bytes",
    "drop_transient_bytes",
    "backward_transient_bytes",
    "backward_overlap_bytes",
    "gradient_bytes",
)
FLAGS = ("input_saved", "output_saved", "recomputable")


def sentence(call: Callable[..., object], *arguments: Any, **keywords: Any) -> str:
    """The message of the `InvalidCosts` that the call raises: one line, no traceback of ours."""
    with pytest.raises(InvalidCosts) as caught:
        call(*arguments, **keywords)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 500
    return message


def of_json(**changes: Any) -> str:
    """The message for a cost file of one good layer with `changes` at the top."""
    record = {"schema": SCHEMA, "layers": [GOOD], **changes}
    record = {key: value for key, value in record.items() if value is not ...}
    return sentence(CostGraph.from_json, json.dumps(record), "costs.json")


# --- values -------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", TIMES)
@pytest.mark.parametrize(
    "value",
    [
        *(-1, -0.5, math.nan, math.inf, -math.inf, True, "3", b"3", 1j, [1], {}, Decimal(1)),
        *(np.float32("nan"), np.bool_(True), np.array([1.0]), np.datetime64("2020-01-01")),
    ],
)
def test_a_time_is_a_finite_number(field: str, value: object) -> None:
    message = sentence(LayerCost, **{**GOOD, field: value})
    assert message.startswith(f"layer 'h.0': {field} must be a finite number >= 0, got ")


@pytest.mark.parametrize("field", SIZES)
@pytest.mark.parametrize(
    "value",
    [-1, 1.5, -2.0, math.nan, math.inf, False, "3", "3MB", 1j, [1], np.float64(0.5)],
)
def test_a_size_is_a_whole_number(field: str, value: object) -> None:
    message = sentence(LayerCost, **{**GOOD, field: value})
    assert message.startswith(f"layer 'h.0': {field} must be a whole number of bytes >= 0, got ")


@pytest.mark.parametrize("field", FLAGS)
@pytest.mark.parametrize("value", [0, 1, "true", None, 0.0])
def test_a_flag_is_a_bool(field: str, value: object) -> None:
    message = sentence(LayerCost, **{**GOOD, field: value})
    assert message == f"layer 'h.0': {field} must be True or False, got {value!r}"


@pytest.mark.parametrize("field", ["forward_time", "output_bytes"])
@pytest.mark.parametrize("value", [2**62, 1e300, 10**400])
def test_a_cost_beyond_all_reason(field: str, value: object) -> None:
    message = sentence(LayerCost, **{**GOOD, field: value})
    assert message.startswith(f"layer 'h.0': {field} must be below 2**62, got ")


@pytest.mark.parametrize("field", ["forward_time", "backward_time", "output_bytes", "saved_bytes"])
def test_none_is_not_a_cost(field: str) -> None:
    assert f"layer 'h.0': {field} must be" in sentence(LayerCost, **{**GOOD, field: None})


def test_the_sentence_for_nan() -> None:
    message = sentence(LayerCost, **{**GOOD, "name": "h.3", "forward_time": math.nan})
    assert message == "layer 'h.3': forward_time must be a finite number >= 0, got nan"


@pytest.mark.parametrize("name", [3, None, "two\nlines", "\x1b[31mred", "\ud800"])
def test_a_name_is_text_on_one_line(name: object) -> None:
    assert "a layer: name must be" in sentence(LayerCost, **{**GOOD, "name": name})


def test_a_layer_without_a_name_is_called_by_its_position() -> None:
    bad = {**GOOD, "name": "", "saved_bytes": -4}
    assert sentence(as_costs, [LAYER, bad]).startswith("layer 'layer 1': saved_bytes must")
    assert sentence(LayerCost, **bad).startswith("a layer without a name: saved_bytes must")


def test_options() -> None:
    def message(*options: object) -> str:
        return sentence(LayerCost, **{**GOOD, "options": options})

    good = {"name": "o", "saved_bytes": 1, "recompute_time": 1}
    assert message({**good, "saved_bytes": -1}).startswith(
        "layer 'h.0', option 'o': saved_bytes must be a whole number"
    )
    assert message({**good, "recompute_time": math.nan}).startswith(
        "layer 'h.0', option 'o': recompute_time must be a finite number"
    )
    assert message({**good, "saved_bytes": 5}) == (
        "layer 'h.0', option 'o': saved_bytes 5 is more than the layer's own 4; "
        "an option saves less"
    )
    assert message(good, good) == "layer 'h.0': two options are named 'o'; rename one"
    assert "1st option of layer 'h.0'; did you mean 'recompute_time'?" in message(
        {**good, "recompute_tme": 1}
    )
    assert message(good, {"name": "p", "saved_bytes": 1}).startswith(
        "the 2nd option of layer 'h.0' has no 'recompute_time'"
    )
    assert "the 1st option is 3; an option is an OptionCost" in message(3)
    assert "an option has no name" in message({**good, "name": ""})
    assert "options must be a list" in sentence(LayerCost, **{**GOOD, "options": good})
    assert "options must be a list" in sentence(LayerCost, **{**GOOD, "options": None})
    assert "option 'x': saved_bytes" in sentence(OptionCost, "x", 0.5, 1)
    assert message({**good, "forward_transient_bytes": -1}).startswith(
        "layer 'h.0', option 'o': forward_transient_bytes must be a whole number"
    )
    assert message({**good, "input_saved": 1}).startswith(
        "layer 'h.0', option 'o': input_saved must be True or False"
    )


@pytest.mark.parametrize(
    ("keeps", "words"),
    [
        ("aten.mm.default", "keeps must be a list of pairs, got 'aten.mm.default'; write"),
        (None, "keeps must be a list of pairs, got None"),
        ([["aten.mm.default"]], "keeps[0] must be a pair, got ['aten.mm.default']"),
        ([["aten.mm.default", 0], ["", 1]], "keeps[1] must be a pair, got ['', 1]"),
        ([["aten.mm.default", -1]], "keeps[0] must be a pair, got ['aten.mm.default', -1]"),
        ([["aten.mm.default", True]], "keeps[0] must be a pair, got ['aten.mm.default', True]"),
        ([["aten.mm.default", 1.0]], "keeps[0] must be a pair"),
        ([["aten.mm.default", 3, 3]], "keeps[0] must be a pair, got ['aten.mm.default', 3, 3]"),
        ([["aten.mm.default", 3, True]], "keeps[0] must be a pair"),
        ([["a", 1, 2], ["a", 1]], "keeps[1] is ['a', 1] once more; leave it out"),
        ([["a", 1], ["b", 1], ["a", 1]], "keeps[2] is ['a', 1] once more; leave it out"),
    ],
)
def test_what_an_option_keeps(keeps: object, words: str) -> None:
    option = {"name": "o", "saved_bytes": 1, "recompute_time": 1, "keeps": keeps}
    message = sentence(LayerCost, **{**GOOD, "options": [option]})
    assert message.startswith(f"layer 'h.0', option 'o': {words}")


# --- the graph ----------------------------------------------------------------------------------


@pytest.mark.parametrize("empty", [[], (), iter([]), {}, pd.DataFrame(), nx.DiGraph()])
def test_no_layers(empty: object) -> None:
    assert sentence(as_costs, empty).startswith("there are no layers")


def test_two_layers_of_one_name() -> None:
    other = replace(LAYER, name="x")
    assert sentence(CostGraph, (LAYER, other, LAYER)) == (
        "two layers are named 'h.0', the 1st and the 3rd; give each a name of its own"
    )
    unnamed = replace(LAYER, name="")
    clash = replace(LAYER, name="layer 0")
    assert "the 1st and the 2nd" in sentence(CostGraph, (unnamed, clash))


def test_values_of_the_graph() -> None:
    assert "the graph: input_bytes must be" in sentence(CostGraph, (LAYER,), input_bytes=-1)
    assert "the graph: name must be text" in sentence(CostGraph, (LAYER,), name=3)
    assert "the graph: time_unit must be text" in sentence(CostGraph, (LAYER,), time_unit=None)
    assert "time_unit must not be empty" in sentence(CostGraph, (LAYER,), time_unit=" ")
    assert "input_bytes must be" in sentence(as_costs, [LAYER], input_bytes=1.5)


def test_what_the_solvers_refuse_is_refused_at_once() -> None:
    greedy = replace(LAYER, backward_overlap_bytes=99)
    assert "layer 'h.0': backward_overlap_bytes 99 is more than" in sentence(CostGraph, (greedy,))
    lean = OptionCost("lean", 1, 1, backward_overlap_bytes=99)
    assert sentence(CostGraph, (replace(LAYER, options=(lean,)),)).startswith(
        "layer 'h.0', option 'lean': backward_overlap_bytes 99 is more than"
    )
    hungry = OptionCost("hungry", 1, 1, backward_transient_bytes=2**62 - 1)
    assert "the sizes add up to" in sentence(CostGraph, (replace(LAYER, options=(hungry,)),))
    vast = replace(LAYER, forward_time=2.0**60)
    assert "the times add up to" in sentence(CostGraph, (vast,))


def test_an_unknown_example() -> None:
    message = sentence(CostGraph.example, "gpt2_small")
    assert "no example 'gpt2_small'; did you mean 'gpt2-small'?" in message
    assert "resnet152" in message
    assert "no example '../costs'" in sentence(CostGraph.example, "../costs")


# --- records and columns ------------------------------------------------------------------------


def test_an_unknown_field_is_answered_with_the_nearest() -> None:
    slip = {**GOOD, "foward_time": 1}
    others = [{**GOOD, "name": name} for name in "ab"]
    assert sentence(as_costs, [*others, slip]) == (
        "unknown field 'foward_time' in layer 'h.0' (3rd layer); did you mean 'forward_time'?"
    )
    assert "; the fields are name, forward_time" in sentence(as_costs, [{**GOOD, "zzz": 1}])
    assert "unknown field 3 in layer" in sentence(as_costs, [{**GOOD, 3: 1}])


@pytest.mark.parametrize("field", ["forward_time", "backward_time", "output_bytes", "saved_bytes"])
def test_a_missing_field_is_named(field: str) -> None:
    record = {key: value for key, value in GOOD.items() if key != field}
    assert sentence(as_costs, [record]) == (
        f"layer 'h.0' (1st layer) has no {field!r}; "
        "it needs forward_time, backward_time, output_bytes and saved_bytes"
    )


@pytest.mark.parametrize("name", [0, 3, False, ["a"]])
def test_a_record_with_a_name_that_is_no_text(name: object) -> None:
    assert "name must be text" in sentence(as_costs, [{**GOOD, "name": name}])


def test_items_that_are_no_layers() -> None:
    assert sentence(as_costs, [LAYER, 3.5]) == (
        "the 2nd layer is 3.5; a layer is a LayerCost or a mapping of its fields"
    )
    assert "the 1st layer is" in sentence(CostGraph, "abc")


@pytest.mark.parametrize("obj", [None, 3, 1.5, b"costs.json", object(), np.ones(4), {LAYER}])
def test_what_is_no_form_of_costs(obj: object) -> None:
    message = sentence(as_costs, obj)
    assert message.startswith("cannot read layer costs from ")
    assert "a list of LayerCost or of mappings" in message
    assert "path of a cost file" in message


def test_columns() -> None:
    columns = {key: [value] for key, value in GOOD.items()}

    def message(**changes: object) -> str:
        return sentence(as_costs, {**columns, **changes})

    assert message(saved_bytes=[1, 2]) == (
        "column 'saved_bytes' has 2 values and 'name' has 1; give every layer one of each"
    )
    assert "unknown column 'saved_byte'; did you mean 'saved_bytes'?" in message(saved_byte=[1])
    assert "column 'saved_bytes' must list one value a layer, got 4" in message(saved_bytes=4)
    assert "column 'name' must list" in message(name="h.0")
    assert "layer 'h.0': saved_bytes must be" in message(saved_bytes=np.array([[1, 2]]))
    assert "layer 'h.0': forward_time must be" in message(forward_time=np.array([np.nan]))
    assert "input_bytes must be" in message(input_bytes=[1])
    assert "must list one value a layer" in sentence(as_costs, GOOD)
    del columns["backward_time"]
    assert "has no 'backward_time'" in sentence(as_costs, columns)


def test_dataframes() -> None:
    frame = pd.DataFrame([GOOD])
    assert "unknown column 'flops'" in sentence(as_costs, frame.assign(flops=1))
    assert "pass input_bytes= beside it" in sentence(as_costs, frame.assign(input_bytes=1))
    twice = pd.concat([frame, frame["name"]], axis=1)
    assert "two columns are named 'name'" in sentence(as_costs, twice)
    nan = frame.assign(backward_time=np.nan)
    assert "layer 'h.0': backward_time must be" in sentence(as_costs, nan)


# --- graphs -------------------------------------------------------------------------------------


def test_other_graphs() -> None:
    undirected = nx.path_graph(2)
    assert "use a networkx DiGraph" in sentence(as_costs, undirected)
    bare = nx.path_graph(2, create_using=nx.DiGraph)
    assert "layer '0' (1st layer) has no 'forward_time'" in sentence(as_costs, bare)
    double: Any = nx.MultiDiGraph([("a", "b"), ("a", "b")])
    nx.set_node_attributes(double, {n: {**GOOD, "name": n} for n in "ab"})
    assert "the edge from 'a' to 'b' is there twice" in sentence(as_costs, double)


def test_edges_that_are_no_edges() -> None:
    layers = [{**GOOD, "name": name} for name in ("embed", "head")]

    def message(edges: object) -> str:
        return of_json(layers=layers, edges=edges)

    assert "costs.json: 'edges' must be a list of pairs" in message({"embed": "head"})
    assert "the 1st edge must be a pair of layer names, got 'ab'" in message(["ab"])
    assert "the 1st edge must be a pair" in message([["embed"]])
    assert "the 1st edge must name its layers, got 0" in message([[0, 1]])
    assert "the 1st edge names an unknown layer 'haed'; did you mean 'head'?" in message(
        [["embed", "haed"]]
    )
    assert "is there twice; remove one" in message([["embed", "head"], ["embed", "head"]])


# --- the file -----------------------------------------------------------------------------------


def test_truncated_json_is_answered_with_line_and_column() -> None:
    text = json.dumps({"schema": SCHEMA, "layers": [GOOD]}, indent=1)
    cut = text[: text.index('"saved_bytes"') + 4]
    line = cut.count("\n") + 1
    message = sentence(CostGraph.from_json, cut, "costs.json")
    assert message.startswith(f"costs.json, line {line}, column 4: this is not valid JSON: ")
    assert message.endswith("(the text ends too early)")
    for end in range(len(text)):
        assert sentence(CostGraph.from_json, text[:end], "costs.json").startswith("costs.json")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "x, line 1, column 1: this is not valid JSON: the file is empty"),
        ("\n{'a': 1}", "x, line 2, column 2: this is not valid JSON"),
        ("[1, 2", "ends too early"),
        ("[1]", "x: a cost file is a JSON object, this is [1]"),
        ("null", "x: a cost file is a JSON object, this is None"),
        ("[" * 100_000, "x: the JSON is nested too deeply"),
        ('{"schema": ' * 100_000, "x: the JSON is nested too deeply"),
        ('{"schema": ' + "9" * 5000 + "}", "x: "),
        ('{"layers": [], "layers": []}', "x: the key 'layers' appears twice; keep one"),
        ('{"layers": [{"name": "q", "a": 1, "a": 2}]}', "the key 'a' of 'q' appears twice"),
    ],
)
def test_what_is_not_a_json_object(text: str, part: str) -> None:
    assert part in sentence(CostGraph.from_json, text, "x")


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity", "1e999", "-1", '"1"', "true"])
def test_a_bad_number_in_a_file_is_named_by_layer_and_field(literal: str) -> None:
    text = json.dumps({"schema": SCHEMA, "layers": [GOOD]})
    for field in ("forward_time", "saved_bytes"):
        bad = text.replace(f'"{field}": {GOOD[field]}', f'"{field}": {literal}')
        message = sentence(CostGraph.from_json, bad, "costs.json")
        assert message.startswith(f"costs.json: layer 'h.0': {field} must be ")


def test_nan_is_refused_everywhere_in_a_file() -> None:
    for key in ("input_bytes", "name", "note", "time_unit", "edges", "layers", "schema"):
        assert "nan" in of_json(**{key: math.nan})
    assert "nan" in of_json(layers=[math.nan])
    assert "nan" in of_json(layers=[{**GOOD, "name": math.nan}])
    assert "nan" in of_json(layers=[{**GOOD, "options": math.nan}])
    assert "nan" in of_json(edges=[[math.nan, "h.0"]])


def test_schemas() -> None:
    assert of_json(schema=...) == (
        f'costs.json: there is no \'schema\'; a cost file says "schema": "{SCHEMA}"'
    )
    for schema in ("checkpoint-scheduler/costs/2", "nonsense", None, 1, ["a"]):
        message = of_json(schema=schema)
        assert f"unknown schema {schema!r}" in message
        assert SCHEMA in message
    graph = of_json(schema="checkpoint-scheduler/graph/1")
    assert "this is a compute graph, not costs of layers; solve takes it as it is" in graph
    plan = of_json(schema="checkpoint-scheduler/plan/1")
    assert "this is a plan, not costs; read it with Plan.load" in plan
    assert "unknown schema" in sentence(as_costs, {"schema": "x", "layers": [LAYER]})


def test_the_top_of_a_file() -> None:
    assert "unknown field 'input_byte' in the cost file; did you mean 'input_bytes'?" in of_json(
        input_byte=3
    )
    assert "unknown field 'zzz' in the cost file; the fields are" in of_json(zzz=3)
    assert "costs.json: there is no 'layers'" in of_json(layers=...)
    assert "'layers' must be a list, got {}" in of_json(layers={})
    assert "costs.json: there are no layers" in of_json(layers=[])
    assert "costs.json: the graph: input_bytes must be" in of_json(input_bytes=-3)
    assert "'note' must be text, got 3" in of_json(note=3)
    assert "costs.json: unknown field 'foward_time' in layer 'h.0' (1st layer)" in of_json(
        layers=[{**GOOD, "foward_time": 3}]
    )
    assert "costs.json: two layers are named 'h.0'" in of_json(layers=[GOOD, GOOD])


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    absent = tmp_path / "absent.json"
    assert sentence(as_costs, absent) == (f"there is no cost file {str(absent)!r}; check the path")
    assert "is a directory, not a cost file" in sentence(as_costs, str(tmp_path))
    binary = tmp_path / "binary"
    binary.write_bytes(b"\x80\x02}q\x00.")
    assert "is not UTF-8 text (byte 0)" in sentence(as_costs, binary)
    assert "cannot read the cost file" in sentence(as_costs, "a" * 5000)
    assert "cannot read the cost file" in sentence(as_costs, "a\0b")
    assert "CostGraph.example('resnet18')" in sentence(as_costs, "resnet18")
    wrong = tmp_path / "wrong.json"
    wrong.write_text("{\n")
    assert sentence(as_costs, wrong).startswith(f"{wrong}, line 2, column 1: ")


def test_the_errors_are_of_one_family_and_survive_pickling() -> None:
    with pytest.raises(SchedulerError) as caught:
        as_costs([])
    assert isinstance(caught.value, ValueError)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), str(again)) == (InvalidCosts, str(caught.value))

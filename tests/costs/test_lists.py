"""Lists of layers: comma-separated values, JSON, rows with columns; one answer in each form."""

from __future__ import annotations

import json
from collections import namedtuple
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import torch

import scheduler
from scheduler.cli.main import main
from scheduler.common.errors import InvalidCosts
from scheduler.costs import CostGraph, LayerCost
from scheduler.costs.readers import as_costs, read_costs_text

COLUMNS = ("name", "forward_time", "backward_time", "output_bytes", "saved_bytes", "input_saved")
ROWS = [("a", 1.5, 3, 64, 256, False), ("b", 2, 4, 64, 512, True), ("c", 1, 2, 8, 32, True)]
RECORDS: list[dict[str, Any]] = [dict(zip(COLUMNS, row, strict=True)) for row in ROWS]
# More than can overlap with an input of no bytes.
OVERLAP = {**RECORDS[0], "input_saved": True, "backward_overlap_bytes": 300}
COSTS = CostGraph(tuple(LayerCost(**record) for record in RECORDS), input_bytes=48, time_unit="us")
CSV = "\n".join([",".join(COLUMNS), *(",".join(map(str, row)) for row in ROWS)])


def message(text: str, source: str = "x.csv") -> str:
    with pytest.raises(InvalidCosts) as caught:
        read_costs_text(text, source)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500
    return str(caught.value)


def forms(directory: Path, records: list[dict[str, Any]]) -> list[object]:
    """The same layers in every form that is read, without what is said beside them."""
    frame = pd.DataFrame(records)
    graph: Any = nx.DiGraph()
    for record in records:
        graph.add_node(record["name"], **{k: v for k, v in record.items() if k != "name"})
    graph.add_edges_from(zip(list(graph), list(graph)[1:], strict=False))
    texts = {
        "list.json": json.dumps(records),
        "layers.csv": frame.to_csv(index=False),
        "layers.tsv": frame.to_csv(index=False, sep="\t"),
        "layers": frame.to_csv(index=False, sep=";"),
    }
    for name, text in texts.items():
        (directory / name).write_text(text)
    row = namedtuple("row", list(records[0]))  # type: ignore[misc]  # named after the columns
    return [
        *(directory / name for name in texts),
        *(records, tuple(records), iter(records), [LayerCost(**record) for record in records]),
        *([row(**record) for record in records], frame, graph, {"layers": records}),
        {name: [record[name] for record in records] for name in records[0]},
    ]


def test_every_form_of_the_same_costs_is_the_same(tmp_path: Path) -> None:
    for form in forms(tmp_path, RECORDS):
        assert as_costs(form, input_bytes=48, time_unit="us") == COSTS
    for form in (ROWS, [list(row) for row in ROWS], np.array(ROWS, dtype=object), iter(ROWS)):
        assert as_costs(form, columns=COLUMNS, input_bytes=48, time_unit="us") == COSTS
    for form in (pd.DataFrame(ROWS), pd.DataFrame(np.array(ROWS, dtype=object))):
        assert as_costs(form, columns=COLUMNS, input_bytes=48, time_unit="us") == COSTS
    for text in (CSV, json.dumps(RECORDS), COSTS.to_json()):
        given = {"input_bytes": 48, "time_unit": "us"}
        assert read_costs_text(text, "standard input", given) == COSTS
    plan = scheduler.solve(COSTS, budget=1000)
    said: Any = {"columns": COLUMNS, "input_bytes": 48, "time_unit": "us"}
    assert scheduler.solve(ROWS, budget=1000, **said) == plan
    assert scheduler.frontier(ROWS, **said).points == scheduler.frontier(COSTS).points
    assert str(scheduler.compare(ROWS, budget=1000, **said)) == str(
        scheduler.compare(COSTS, budget=1000)
    )


def test_what_is_said_beside_the_layers_counts_before_they_are_checked(tmp_path: Path) -> None:
    with pytest.raises(InvalidCosts):
        as_costs([OVERLAP])
    expected = CostGraph((LayerCost(**OVERLAP),), input_bytes=1000)
    for form in forms(tmp_path, [OVERLAP]):
        assert as_costs(form, input_bytes=1000) == expected


def test_an_empty_cell_of_a_frame_is_a_field_at_its_default() -> None:
    more = {"gradient_bytes": 8, "recompute_time": 1.5, "recomputable": False}
    records = [RECORDS[0], {**RECORDS[1], **more}]
    frame = pd.DataFrame(records)
    for form in (frame, frame.convert_dtypes(), pd.DataFrame(records, dtype=object)):
        assert as_costs(form, input_bytes=48) == as_costs(records, input_bytes=48)
    with pytest.raises(InvalidCosts, match="names 1 column, and the DataFrame has 9"):
        as_costs(frame, columns=("name",))


def test_an_array_of_numbers() -> None:
    columns = COLUMNS[1:5]
    expected = as_costs([dict(zip(columns, (1, 2, 8, 16), strict=True))] * 2)
    for array in (np.array([[1.0, 2, 8, 16]] * 2), torch.tensor([[1, 2, 8, 16]] * 2)):
        assert as_costs(array, columns=columns) == expected
    with pytest.raises(InvalidCosts, match=r"the 1st layer is \[1.*say what they are, as in col"):
        as_costs(np.ones((2, 4)))


@pytest.mark.parametrize(
    ("rows", "columns", "words"),
    [
        ([(1, 2, 3)], COLUMNS[1:5], "the 1st layer has 3 values in 4 columns"),
        ([(1, 2, 3, 4)], ("forward_time", "bwd", "out", "saved"), "columns 'bwd', 'out', 'saved'"),
        ([(1, 2)], ("forward_time", "forward_time"), "two columns are named 'forward_time'"),
        ([RECORDS[0]], COLUMNS, "with columns= each is a row of values"),
        ({"forward_time": [1]}, COLUMNS, "has no rows; leave it out"),
        ("layers.csv", COLUMNS, "'layers.csv' has no rows"),
        (COSTS, COLUMNS, "has no rows"),
        (torch.nn.Linear(1, 1), COLUMNS, "in the place of its costs"),
        ([(1, 2)], "name", "columns= lists names"),
    ],
)
def test_rows_that_cannot_be_read(rows: object, columns: Any, words: str) -> None:
    with pytest.raises(InvalidCosts, match=words):
        as_costs(rows, columns=columns)


def test_a_model_says_which_call_measures_it() -> None:
    class Odd(torch.nn.Linear):
        columns = to_dict = nodes = edges = is_directed = None

    for given in (torch.nn.Linear(1, 1), Odd(1, 1), [torch.nn.Linear(1, 1)], torch.nn.Linear):
        with pytest.raises(InvalidCosts, match=r"got a model \((Linear|Odd)\).* scheduler"):
            as_costs(given)


def test_errors_name_the_line_and_the_columns() -> None:
    assert message(CSV.replace("512", "-1")) == (
        "x.csv, line 3: layer 'b': saved_bytes must be a whole number of bytes >= 0, got -1"
    )
    assert message(CSV.replace("512", "4MB")).endswith("got '4MB'")
    assert message(CSV.replace("512", "")) == (
        "x.csv, line 3: saved_bytes is empty; every layer needs one"
    )
    assert message(CSV.replace("b,2,", "\n\nb,nan,")).startswith("x.csv, line 5: layer 'b': forw")
    assert message(CSV.replace(",8,", ",8,8,")) == (
        "x.csv, line 4: 7 values in 6 columns; give each one"
    )
    assert message(CSV.replace("c,", "a,")).startswith("x.csv: two layers are named 'a'")
    assert message(CSV.replace("saved_bytes", "saved_byte")) == (
        "x.csv, line 1: unknown column 'saved_byte'; did you mean 'saved_bytes'?"
    )
    unknown = message("layer,ms\na,1")
    assert unknown.startswith(
        "x.csv, line 1: unknown columns 'layer', 'ms'; the columns are name, "
    )
    needed = "(needed: forward_time, backward_time, output_bytes, saved_bytes)"
    assert unknown.endswith(f"recomputable, time_spread {needed}")
    missing = message("name,forward_time\na,1", "standard input")
    assert missing.startswith(
        "standard input, line 1: there is no column 'backward_time'; it needs"
    )
    assert message("") == "x.csv: there are no layers; give the costs of at least one"
    assert message('"a', "x.csv").startswith("x.csv, line 1: unknown column 'a")
    assert "x.json: layer 'a': saved_bytes" in message(
        json.dumps([{**RECORDS[0], "saved_bytes": -1}]), "x.json"
    )
    assert "x, line 1, column 1: this is not valid JSON" in message("layer a", "x")


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listed, whole = tmp_path / "layers.csv", tmp_path / "costs.json"
    listed.write_text(CSV)
    around = ["--input-bytes", "48", "--time-unit", "us"]
    assert main(["show", str(listed), *around, "--json"]) == 0
    whole.write_text(capsys.readouterr().out)
    assert CostGraph.load(whole) == COSTS
    plans = []
    for costs in ([str(listed), *around], [str(whole)]):
        assert main(["solve", *costs, "--budget", "1KB", "--json"]) == 0
        plans.append(capsys.readouterr().out)
    assert plans[0] == plans[1]
    plan = tmp_path / "plan.json"
    plan.write_text(plans[0])
    for wrong, words in (
        (["show", str(plan), *around], "--input-bytes describes a list of layers, and this is a"),
        (["solve", "--model", "gpt2", *around], "and a model's costs say it; leave it out"),
        (
            ["solve", str(listed), "--input-bytes", "4Q", "--budget", "1KB"],
            "--input-bytes '4Q' has",
        ),
    ):
        assert main(wrong) == 2
        assert words in capsys.readouterr().err

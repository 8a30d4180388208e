"""Settings that people have: what plan each is, and its row beside the optimum."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from itertools import pairwise

import pytest

from scheduler import CostGraph, LayerCost, SchedulerError, UnsuitableMethod, compare, solve
from scheduler.cli.main import main
from scheduler.costs.layer import OptionCost
from scheduler.costs.readers import as_costs
from scheduler.planning.chain.against import FORMS, read_setting
from scheduler.planning.comparison import Comparison
from solvers.schedule import Checkpoint, Item, Items, Keep
from tests.chains import GPT2

Capture = pytest.CaptureFixture[str]


def llama(blocks: int = 12, option: str | None = "core_attn") -> CostGraph:
    """An embedding, blocks of different sizes, and a head with the loss."""
    layers = [
        LayerCost(
            name=name,
            forward_time=3 + i % 2,
            backward_time=6,
            output_bytes=1000,
            saved_bytes=9000 + 100 * i,
            output_saved=False,
            recomputable=name.startswith("model"),
            options=(OptionCost(option, 4000 + i, 1),)
            if option and name.startswith("model")
            else (),
        )
        for i, name in enumerate(
            ["embedding", *(f"model.layers.{i}" for i in range(blocks)), "head"]
        )
    ]
    return CostGraph(tuple(layers), input_bytes=100)


def kept(*layers: int) -> list[Item]:
    return [Keep(i) for i in layers]


def segments(*spans: tuple[int, int]) -> dict[int, Item]:
    return {a: Checkpoint(a, b, tuple(kept(*range(a, b + 1)))) for a, b in spans}


def each(*layers: int) -> dict[int, Item]:
    return segments(*((i, i) for i in layers))


def plan_with(parts: dict[int, Item], length: int = 14) -> tuple[Item, ...]:
    items: list[Item] = []
    at = 0
    while at < length:
        item = parts.get(at, Keep(at))
        items.append(item)
        at = item.last + 1 if isinstance(item, Checkpoint) else at + 1
    return tuple(items)


# What each means for 12 blocks, written down by hand: layers 1 to 12 of 14.
SETTINGS: dict[str, dict[int, Item]] = {
    "none": {},
    "all": each(*range(1, 13)),
    "every 4": each(1, 5, 9),
    "stride 5": segments((1, 5), (6, 10), (11, 12)),
    "layers: 0,3,7-9": each(1, 4, 8, 9, 10),
    "layers: model.layers.2": each(3),
    "checkpoint_sequential 5": segments((1, 2), (3, 4), (5, 6), (7, 8)),
    "checkpoint_sequential 1": {},
    "transformers: gradient_checkpointing": each(*range(1, 13)),
    "transformers: activation_checkpointing": each(*range(1, 13)),
    "transformers: every_n_layers 2": each(1, 3, 5, 7, 9, 11),
    "megatron: full block 3": each(1, 2, 3),
    "megatron: full uniform 4": segments((1, 4), (5, 8), (9, 12)),
    "megatron: selective": {i: Keep(i, "core_attn") for i in range(1, 13)},
    "megatron: selective core_attn": {i: Keep(i, "core_attn") for i in range(1, 13)},
    "option: core_attn": {i: Keep(i, "core_attn") for i in range(1, 13)},
    "deepspeed: number_checkpoints 5": segments((1, 3), (4, 6), (7, 8), (9, 10), (11, 12)),
    "torchtitan: full": each(*range(1, 13)),
    "torchtitan: selective 2": each(2, 4, 6, 8, 10, 12),
}


@pytest.mark.parametrize("text", SETTINGS)
def test_the_predicted_peak_is_the_replay_of_the_equivalent_plan(text: str) -> None:
    costs, expected = llama(), plan_with(SETTINGS[text])
    chain = costs.to_chain()
    assert read_setting(text, chain).items(chain) == expected
    comparison = compare(costs, budget="1MB", against=text)
    assert isinstance(comparison, Comparison)
    row = comparison.rows[-2]
    done = chain.replay(Items(expected))
    assert row.method == text
    assert row.peak_bytes == done.peak_bytes
    assert row.time == done.time / costs.ticks_per_unit
    assert row.optimal_time_at_peak == solve(costs, budget=done.peak_bytes).time
    assert row.optimal_time_at_peak <= row.time
    assert row.fits
    assert not compare(costs, budget=done.peak_bytes - 1, against=text).rows[-2].fits


def test_every_form_is_tested() -> None:
    words = {" ".join(text.split()[:3]) for text in SETTINGS}
    for form in FORMS:
        start = form.split(" N")[0].split(" MODULE")[0].split(" NAME")[0].split(" 0,")[0]
        assert any(text.startswith(start) for text in words | set(SETTINGS)), form


def test_ten_settings_side_by_side() -> None:
    texts = list(SETTINGS)[:10]
    comparison = compare(GPT2, 5, against=[t for t in texts if "model" not in t])
    methods = [row.method for row in comparison.rows]
    assert methods[-10:-1] == [t for t in texts if "model" not in t]
    assert methods[-1] == "optimal"
    assert all(len(line) <= 100 for line in str(comparison).splitlines())
    assert methods[:8] == [row.method for row in compare(GPT2, 5).rows[:8]]


def with_policies(without: tuple[int, ...] = ()) -> CostGraph:
    """Blocks with a policy of people, one that not all have, and one of a Pareto set."""
    names = ("save-matmuls", "save-9%", "save-12.34%", "core_attn")
    layers = [
        replace(
            layer,
            options=tuple(OptionCost(n, 1000 * (k + 1), 1 / (k + 1)) for k, n in enumerate(names))[
                : 4 - i % 2
            ]
            if layer.options and i not in without
            else (),
        )
        for i, layer in enumerate(llama().layers)
    ]
    return CostGraph(tuple(layers), input_bytes=100)


@pytest.mark.parametrize("without", [(), (3, 8)])
def test_policies_of_people_stand_beside_the_optimum(without: tuple[int, ...]) -> None:
    costs = with_policies(without)
    items = tuple(
        Keep(i, "save-matmuls") if 0 < i < 13 and i not in without else Keep(i) for i in range(14)
    )
    done = costs.to_chain().replay(Items(items))
    comparison = compare(costs, budget=done.peak_bytes)
    rows = {row.method: row for row in comparison.rows if row.method.startswith("option")}
    assert list(rows) == ["option: save-matmuls"]  # not all have core_attn; percents are no policy
    row = rows["option: save-matmuls"]
    assert (row.peak_bytes, row.fits, row.note) == (done.peak_bytes, True, "")
    assert row.time == done.time / costs.ticks_per_unit
    assert row.optimal_time_at_peak == solve(costs, budget=done.peak_bytes).time <= row.time
    assert not compare(costs, budget=done.peak_bytes - 1).rows[-2].fits
    asked = compare(costs, budget=done.peak_bytes, against="option: save-matmuls")
    which = "of the 12 blocks" if without else "the 12 blocks"
    assert asked.rows[-2].note.startswith(which)
    assert [row.method for row in asked.rows] == [row.method for row in comparison.rows]


def test_costs_without_options_of_blocks_have_no_such_rows() -> None:
    fixed = [replace(layer, recomputable=False) for layer in with_policies().layers]
    for costs in (GPT2, CostGraph(tuple(fixed), input_bytes=100)):
        methods = [row.method for row in compare(costs, budget="1TB").rows]
        assert not any(method.startswith("option") for method in methods)


def test_selective_as_traced_blocks_call_it() -> None:
    costs = llama(option="megatron-selective")
    chain = costs.to_chain()
    expected = read_setting("option: megatron-selective", chain).items(chain)
    for text in ("megatron: selective", "megatron: selective core_attn"):
        assert read_setting(text, chain).items(chain) == expected
    with pytest.raises(SchedulerError, match="no option 'mlp'"):
        read_setting("megatron: selective mlp", chain)


def test_the_row_says_what_the_setting_is() -> None:
    comparison = compare(GPT2, 5, against="megatron:  full block  4")
    assert comparison.rows[-2].method == "megatron: full block 4"
    assert comparison.rows[-2].note == (
        "of the 15 blocks '0' to '14', 4 are recomputed, in 4 checkpoints."
    )


def test_blocks_are_what_is_numbered() -> None:
    layers = [("conv1", True), ("layer1.0", True), ("layer1.1", True), ("layer2.0", True)]
    costs = CostGraph(
        tuple(
            LayerCost(name=n, forward_time=1, backward_time=1, output_bytes=1, saved_bytes=9)
            for n, _ in [*layers, ("fc", True)]
        )
    )
    chain = costs.to_chain()
    assert read_setting("all", chain).segments == ((1, 1), (2, 2), (3, 3))
    named = [{**layer, "name": f"part{i}"} for i, layer in enumerate(costs.to_dict()["layers"])]
    chain = as_costs({**costs.to_dict(), "layers": named}).to_chain()
    assert read_setting("stride 2", chain).segments == ((0, 1), (2, 3), (4, 4))


def test_a_segment_does_not_cross_what_is_no_block() -> None:
    record = llama(6, None).to_dict()
    record["layers"][4]["recomputable"] = False  # model.layers.3
    chain = as_costs(record).to_chain()
    assert read_setting("stride 5", chain).segments == ((1, 3), (5, 6))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("mgatron: full block 2", "did you mean 'megatron: full block N'"),
        ("every", "the forms are: all; none; every N; stride N; layers: 0,3,7-9"),
        ("every 0", "0 is no number of the 12 blocks of these costs; give 1 to 12"),
        ("megatron: full block 13", "give 1 to 12"),
        ("megatron: selective mlp", "layer 'model.layers.0' has no option 'mlp' (it has: 'core"),
        ("layers: 3-12", "the 12 blocks of these costs have the numbers 0 to 11"),
        ("layers: 5-3", "there are no layers '5-3'"),
        ("layers: model.layer.3", "did you mean 'model.layers.3'?"),
        ("layers: head", "layer 'head' must be kept"),
        (7, "a setting is a text such as 'every 4', got 7"),
    ],
)
def test_what_is_refused(text: object, sentence: str) -> None:
    with pytest.raises(SchedulerError) as caught:
        compare(llama(), budget="1MB", against=[text])  # type: ignore[list-item]
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_graphs_have_no_settings() -> None:
    record = llama(2, None).to_dict()
    names = [layer["name"] for layer in record["layers"]]
    record["edges"] = [*map(list, pairwise(names)), [names[0], names[3]]]
    with pytest.raises(UnsuitableMethod, match="compared on a chain of layers"):
        compare(as_costs(record), budget="1MB", against="all")


def test_on_the_command_line(capsys: Capture) -> None:
    arguments = ["compare", "--example", "gpt2-small", "--budget", "5GB"]
    settings = ["--against", "megatron: full block 12", "--against", "every 4"]
    assert main([*arguments, *settings, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["method"] for row in rows[-3:]] == ["megatron: full block 12", "every 4", "optimal"]
    assert main([*arguments, *settings, "--csv"]) == 0
    table = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [int(row["peak_bytes"]) for row in table[-3:]] == [r["peak_bytes"] for r in rows[-3:]]
    assert main([*arguments, "--against", "each 4"]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith("checkpoint-scheduler: error: unknown setting 'each 4'; the forms are: ")


def test_a_long_list_is_cut_in_the_table() -> None:
    text = "layers: 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14"
    comparison = compare(GPT2, 5, against=text)
    assert comparison.rows[-2].method == text
    lines = str(comparison).splitlines()
    assert sum("layers: 0,1,2,3,4,5,6,7,8,9,10,11,12,… " in line for line in lines) == 1
    assert all(len(line) <= 100 for line in lines[:20])


def test_what_costs_with_tiles_have_beside_the_optimum() -> None:
    costs = llama(option=None)
    tiles = [OptionCost(f"tiles-{n}", 4000, 1, tiles=n) for n in (2, 4)]
    head = replace(costs.layers[-1], options=tuple(tiles))
    of_blocks = tuple(
        replace(layer, options=tuple(tiles)) if layer.recomputable else layer
        for layer in costs.layers[:-1]
    )
    for layers, what in ((costs.layers[:-1], "loss"), (of_blocks, "MLP and loss")):
        tiled = replace(costs, layers=(*layers, head))
        found = {row.method: row for row in compare(tiled, budget=10**6).rows}
        (row,) = [row for name, row in found.items() if name.startswith(("ALST", "option"))]
        assert row.method == f"ALST: checkpoints, {what} tiled"
        chain = tiled.to_chain()
        inside = "tiles-4" if "MLP" in what else None
        items: list[Item] = [
            Checkpoint(i, i, (Keep(i, inside),)) if layer.recomputable else Keep(i)
            for i, layer in enumerate(chain.layers[:-1])
        ]
        done = chain.replay(Items((*items, Keep(len(items), "tiles-4"))))
        assert (row.peak_bytes, row.time) == (done.peak_bytes, done.time / tiled.ticks_per_unit)

"""``fit`` and ``--model`` on the command line: what they print where, and their exit status."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduler import CostGraph, Plan, SchedulerError, solve
from scheduler.cli.fit import parse_lora
from scheduler.common.text import format_both, format_bytes, format_smallest, format_time
from scheduler.common.units import parse_bytes
from scheduler.memory import Lora, costs_from_shape, fit
from scheduler.memory.fitting.facts import default_margin
from scheduler.memory.gpus import load_gpu
from tests.cli.test_cli import refused, run
from tests.memory.memory_cases import TINY_LLAMA

Capture = pytest.CaptureFixture[str]
LLAMA = ("--model", "llama-3-8b", "--sequence", "8192")
SHARDED = (*LLAMA, "--zero", "3", "--gpus", "8")


# --- fit ----------------------------------------------------------------------------------------


def test_fit_is_one_screen(capsys: Capture) -> None:
    status, out, err = run(capsys, "fit", *SHARDED)
    assert (status, err) == (0, "")
    found = fit("llama-3-8b", sequence=8192, zero=3, gpus=8)
    # What would help is said as it is given here.
    assert without_help(out) == without_help(str(found))
    for text, said in ((out, "--loss chunked ("), (str(found), "loss='chunked' (")):
        assert f"     helps  {said}" in text
    assert "            --lora r=16 (" in out
    assert len(out.splitlines()) <= 32
    for label in ("model", "state", "margin", "up to loss", "layer", "optimizer", "fits", "plan"):
        assert any(line.lstrip().startswith(label) for line in out.splitlines()), label


def without_help(text: str) -> str:
    """A fit without the lines that say what would help."""
    return re.sub(r"\n     helps  .*?\n\n", "\n\n", text.rstrip("\n"), flags=re.DOTALL)


def test_fit_as_json_is_the_object(capsys: Capture) -> None:
    status, out, _ = run(
        capsys, "fit", "--model", "gpt2", "--batch", "4", "--budget", "6GB", "--json"
    )
    assert status == 0
    expected = fit("gpt2", batch=4, budget="6GB").to_dict()
    assert len(expected["remedies"]) == 7
    assert json.loads(out) == json.loads(json.dumps(expected))


def test_fit_without_a_plan_is_status_3_and_says_all(capsys: Capture) -> None:
    status, out, err = run(capsys, "fit", *LLAMA, "--json", "--no-search")
    assert status == 3
    record = json.loads(out)
    assert record["plan"] is None
    assert record["limits"] is None
    assert "error: no plan fits a budget of 85.04 GB (79.20 GiB)" in err
    assert f"is {format_smallest(record['smallest_budget_bytes'])}, set by" in err
    assert err.count("\n") == 1


def test_fit_with_every_option(capsys: Capture) -> None:
    arguments = (
        *("--model", "llama-7b", "--gpu", "a100-40", "--batch", "2", "--sequence", "1024"),
        *("--precision", "bf16", "--optimizer", "adamw_8bit", "--zero", "fsdp", "--gpus", "4"),
        *("--lora", "r=16,targets=q+v,dtype=fp32,dropout=0.05", "--base", "nf4-double"),
        *("--attention", "eager", "--loss", "bf16", "--update", "foreach"),
        *("--gradient-dtype", "fp32", "--gradient-accumulation"),
        *("--efficiency", "0.4", "--margin", "2GiB", "--budget", "39GB", "--no-search"),
    )
    status, out, _ = run(capsys, "fit", *arguments, "--json")
    assert status == 0
    expected = fit(
        "llama-7b",
        gpu="a100-40",
        batch=2,
        sequence=1024,
        precision="bf16",
        optimizer="adam-8bit",
        zero="fsdp",
        gpus=4,
        train="lora",
        lora=Lora(16, ("q", "v"), "fp32", 0.05),
        base="nf4-double",
        attention="eager",
        loss="bf16",
        update="foreach",
        gradient_dtype="fp32",
        gradient_accumulation=True,
        efficiency=0.4,
        margin="2GiB",
        budget="39GB",
        search=False,
    )
    assert json.loads(out) == json.loads(json.dumps(expected.to_dict()))
    assert "LoRA r=16 on q, v in fp32 dropout 0.05, base in nf4-double" in " ".join(
        str(expected).split()
    )


def test_fit_explains(capsys: Capture) -> None:
    status, out, _ = run(capsys, "fit", *SHARDED, "--explain", "--no-search")
    assert status == 0
    for part in ("2.83×", "4.47×", "a/c = 24.5", "segments of 6"):
        assert part in out
    assert max(map(len, out.splitlines())) <= 100
    _, out, _ = run(capsys, "fit", *SHARDED, "--explain", "--no-search", "--json")
    assert "2.83×" in json.loads(out)["explanation"]


def test_what_helps_is_said_as_it_is_passed(capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(TINY_LLAMA | {"num_hidden_layers": 5}))
    sizes = ("--batch", "2", "--sequence", "512", "--margin", "0", "--precision", "fp16-mixed")
    model = ("fit", "--model", str(path), *sizes)
    for budget in ("6MB", "12MB"):
        asked = (*model, "--budget", budget)
        remedies = json.loads(run(capsys, *asked, "--json")[1])["remedies"]
        _, out, _ = run(capsys, *asked)
        helps = out.partition("     helps  ")[2].partition("\n\n")[0]
        commands = [line.split(" (")[0].split(": ")[0].split() for line in helps.splitlines()]
        assert len(commands) == len(remedies) >= 3
        for options, remedy in zip(commands, remedies, strict=True):
            found = json.loads(run(capsys, *asked, *options, "--no-search", "--json")[1])
            assert found["smallest_budget_bytes"] == remedy["smallest_budget_bytes"]
            assert found["overhead"] == remedy["overhead"]
    assert ["--batch", "1", "--gradient-accumulation"] in commands
    assert ["--lora", "r=16,dtype=fp16"] in commands


def test_fit_reads_a_config(capsys: Capture, tmp_path: Path) -> None:
    config = {
        "model_type": "gpt2",
        "n_layer": 2,
        "n_embd": 64,
        "n_head": 4,
        "n_positions": 128,
        "vocab_size": 100,
        "activation_function": "gelu_new",
        "n_inner": None,
        "resid_pdrop": 0.1,
        "embd_pdrop": 0.1,
        "attn_pdrop": 0.1,
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    status, out, _ = run(capsys, "fit", "--model", str(path), "--json")
    assert status == 0
    assert json.loads(out)["sequence"] == 128


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "no model given; add one, as in --model llama-3-8b"),
        (("--model", "llama-3-9b"), "there is no shape 'llama-3-9b'; did you mean 'llama-3-8b'?"),
        ((*LLAMA, "--gpu", "h1000"), "gpu must be one of"),
        ((*LLAMA, "--gpu", "mi300"), "give the memory that it has as --budget"),
        ((*LLAMA, "--zero", "4"), "zero must be 0, 1, 2, 3 or 'fsdp', got 4"),
        ((*LLAMA, "--zero", "three"), "zero must be 0, 1, 2, 3 or 'fsdp', got 'three'"),
        ((*LLAMA, "--batch", "0"), "batch must be a whole number >= 1, got 0"),
        ((*LLAMA, "--batch", "one"), "invalid int value: 'one'"),
        ((*LLAMA, "--margin", "2G"), "the margin '2G' has two readings"),
        ((*LLAMA, "--optimizer", "adm"), "optimizer must be one of"),
        ((*LLAMA, "--lora", "r=16", "--frozen"), "give one"),
        ((*LLAMA, "--lora", "targets=q"), "has no r; write it as r=16"),
        ((*LLAMA, "--lora", "r=16,rank=2"), "has an unknown part 'rank'"),
        ((*LLAMA, "--lora", "r=16,r=2"), "gives r twice"),
        ((*LLAMA, "--lora", "q,r=2"), "has a part 'q' without ="),
        ((*LLAMA, "--lora", "r=many"), "has no number where one is due"),
        ((*LLAMA, "--lora", "r=16,targets=z"), "a LoRA target of llama-3-8b must be one of 'q'"),
        ((*LLAMA, "--lora", "r=16,dtype=int8"), "the dtype of lora must be one of"),
        ((*LLAMA, "--base", "nf4"), "--base nf4 stores weights that do not train; say --lora or"),
        ((*LLAMA, "--efficiency", "2"), "--efficiency must be above 0 and at most 1, got 2"),
        (("--model", "mixtral-8x7b", "--precision", "autocast"), "say --precision bf16"),
        (("--model", "gpt2", "--sequence", "1025"), "--sequence must be at most the 1024"),
        ((*LLAMA, "--precision", "fp16"), "--precision fp16 names what costs_from_shape computes"),
        ((*LLAMA, "--gradient-dtype", "fp64"), "--gradient-dtype must be one of 'fp32', 'bf16'"),
        (
            (*LLAMA, "--frozen", "--gradient-dtype", "fp32"),
            "--frozen makes no gradients; leave out --gradient-dtype",
        ),
        (
            (*LLAMA, "--frozen", "--gradient-accumulation"),
            "--frozen makes no gradients; leave out --gradient-accumulation",
        ),
        ((*LLAMA, "--batch", "99999999999999"), "× sequence 8192 is too large to count"),
        ((*LLAMA, "--batch", "9" * 30), "--batch must be below 2**62"),
        ((*LLAMA, "--lora", "r=9999999"), "adapters of rank 9999999 have"),
        ((*LLAMA, "--accumulate"), "unrecognized arguments: --accumulate"),
    ],
)
def test_bad_input_is_one_sentence(
    capsys: Capture, arguments: tuple[str, ...], message: str
) -> None:
    assert message in refused(capsys, "fit", *arguments)


def test_parallel_degrees(capsys: Capture) -> None:
    given = "--tp", "8", "--sequence-parallel", "--zero", "1", "--gpus", "64", "--no-search"
    status, out, _ = run(capsys, "fit", "--model", "llama-3-8b", *given)
    assert status == 0
    assert "ZeRO-1 over 8 GPUs, tensor and sequence parallel 8" in out
    refused_ones = {
        ("--tp", "5"): "--tp 5 must divide the 12 heads of gpt2; choose 1, 2, 3, 4, 6, 12",
        ("--sequence-parallel",): "--sequence-parallel divides tokens over the GPUs of --tp",
        ("--tensor-parallel", "2", "--gpus", "3"): "--gpus must be a multiple of --tp·--pp·--cp",
        ("--ep", "2"): "--ep 2 divides experts, and gpt2 has none",
        ("--pp", "2"): "--pp 2 cuts a model into stages",
        ("--cp", "3"): "--sequence must be a multiple of 6, so that --cp can divide it, got 1024",
    }
    for arguments, message in refused_ones.items():
        assert message in refused(capsys, "fit", "--model", "gpt2", *arguments)


def test_notes_of_a_config(capsys: Capture, tmp_path: Path) -> None:
    config = TINY_LLAMA | {"max_position_embeddings": 4000}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    status, out, _ = run(capsys, "fit", "--model", str(path), "--json")
    found = json.loads(out)
    assert (status, found["trained_positions"], len(found["notes"])) == (0, 4000, 2)
    assert "the sequence of 4,096 is beyond the 4,000 positions" in found["notes"][0]
    _, out, _ = run(capsys, "fit", "--model", str(path))
    assert "; made for 4,000 positions" in out
    assert len(out.splitlines()) <= 32


@pytest.mark.parametrize("zero", [3, "fsdp"])
def test_one_gpu_shards_nothing(capsys: Capture, zero: int | str) -> None:
    said = "ZeRO-3 over 1 GPU shards nothing; give more gpus\n"
    arguments = ("--model", "gpt2", "--zero", str(zero))
    status, out, err = run(capsys, "fit", *arguments, "--no-search")
    assert (status, err) == (0, "")
    assert f"      note  {said}" in out
    assert "ZeRO-3 over 1 GPU, " in out
    assert out == f"{fit('gpt2', zero=zero, search=False)}\n"
    status, _, err = run(capsys, "show", *arguments, "--optimizer", "adamw", "--gpus", "1")
    assert status == 0
    assert err.startswith(f"checkpoint-scheduler: note: {said}")
    _, out, _ = run(capsys, "fit", *arguments, "--gpus", "2", "--no-search", "--options")
    assert "not applied under fully_shard" in out


def test_fit_is_patient(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    entered: list[str] = []

    @contextlib.contextmanager
    def patience() -> Iterator[None]:
        entered.append("fit")
        yield

    monkeypatch.setattr("scheduler.cli.commands.fit._patience", patience)
    assert run(capsys, "fit", "--model", "gpt2", "--no-search")[0] == 0
    assert entered == ["fit"]


def test_frozen(capsys: Capture) -> None:
    status, out, err = run(capsys, "fit", "--model", "gpt2", "--frozen", "--no-search", "--json")
    assert (status, err) == (0, "")
    found = json.loads(out)
    assert found["train"] == "frozen"
    assert found["state"]["total"] == found["state"]["weights"] == 2 * found["parameters"]
    assert found["gradients_bytes"] == 0
    status, out, err = run(capsys, "fit", "--model", "gpt2", "--frozen", "--no-search", "--explain")
    assert (status, err) == (0, "")
    assert "no weight trained" in out


def test_adapters_as_they_are_written() -> None:
    assert parse_lora("r=8") == Lora(8)
    assert parse_lora("r=8, targets=q,v") == Lora(8, ("q", "v"))
    assert parse_lora("targets=q+v,r=8,dropout=0.1") == Lora(8, ("q", "v"), dropout=0.1)
    with pytest.raises(SchedulerError, match="no r"):
        parse_lora("dtype=bf16")


# --- --model for the other commands -------------------------------------------------------------


RECIPES: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "full": ((), {}),
    "zero-2": (("--zero", "2", "--gpus", "4"), {"zero": 2, "gpus": 4}),
    "lora": (("--lora", "r=4", "--options"), {"train": "lora", "lora": Lora(4), "options": True}),
    "foreach": (
        ("--update", "foreach", "--gradient-accumulation", "--batch", "1"),
        {"update": "foreach", "gradient_accumulation": True, "batch": 1},
    ),
    "fp32": (
        ("--precision", "fp32", "--optimizer", "adam-8bit", "--loss", "chunked"),
        {"precision": "fp32", "optimizer": "adam-8bit", "loss": "chunked"},
    ),
}


@pytest.mark.parametrize("name", RECIPES)
def test_every_command_says_what_fit_says(capsys: Capture, tmp_path: Path, name: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(TINY_LLAMA | {"num_hidden_layers": 5}))
    options, recipe = RECIPES[name]
    model = ("--model", str(path), "--batch", "4", "--sequence", "256", "--margin", "8MB", *options)
    asked: dict[str, Any] = {"batch": 4, "sequence": 256, "margin": "8MB", "search": False} | recipe
    roomy = fit(path, **asked)
    least = roomy.smallest_budget_bytes
    size = (least + roomy.reserved_bytes + roomy.peak_bytes) // 2
    found = fit(path, budget=size, **asked)
    assert found.plan is not None
    budget = ("--budget", f"{size}B")

    record = json.loads(run(capsys, "fit", *model, *budget, "--no-search", "--json")[1])
    assert record["smallest_budget_bytes"] == least
    assert Plan.from_json(run(capsys, "solve", *model, *budget, "--json")[1]) == found.plan
    _, out, err = run(capsys, "compare", *model, *budget, "--json")
    compared, optimal = json.loads(out), json.loads(out)["rows"][-1]
    assert compared["reserved_bytes"] == record["reserved_bytes"] == found.reserved_bytes
    assert (compared["budget_bytes"], compared["keep_all_peak_bytes"]) == (size, found.peak_bytes)
    assert (optimal["peak_bytes"], optimal["time"]) == (found.plan.peak_bytes, found.plan.time)
    aside = f"{format_bytes(found.reserved_bytes)} are set aside ({found.reserved_for}); "
    assert f"of {format_both(size)}, h100, {aside}" in err
    _, out, err = run(capsys, "frontier", *model, "--json")
    points = json.loads(out)
    assert points["points"][0]["peak_bytes"] + points["reserved_bytes"] == least
    assert (points["budget_bytes"], points["reserved_bytes"]) == (
        roomy.budget_bytes,
        roomy.reserved_bytes,
    )
    assert aside in err
    _, out, err = run(capsys, "show", *model, "--json")
    assert CostGraph.from_json(out) == found.costs
    assert aside in err
    for less in (least - 1, found.reserved_bytes):
        error = fit(path, budget=less, **asked).infeasible()
        assert found.reserved_for in str(error)
        said = refused(capsys, "solve", *model, "--budget", f"{less}B", status=3)
        assert said.partition(", set by ")[0] == str(error).partition(", set by ")[0]


@pytest.mark.parametrize("command", ["fit", "solve", "compare"])
def test_the_budget_that_is_named_does(capsys: Capture, tmp_path: Path, command: str) -> None:
    """As it is printed, in both units; the default margin, a share of the budget, grows with it."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(TINY_LLAMA))
    model = (command, "--model", str(path), "--sequence", "256")
    more = ("--reserved", "200MB") if command == "solve" else ()
    named: list[set[str]] = []
    less = "1GB"
    for _ in range(2):
        status, _, err = run(capsys, *model, *more, "--budget", less)
        assert status == 3
        named += map(set, re.findall(r"budget is ([0-9.]+ GB) \(([0-9.]+ GiB)\)", err))
        less = f"{int(parse_bytes(max(named[0])) * 0.999)}B"
    assert named[0] == named[1]
    assert [run(capsys, *model, *more, "--budget", size)[0] for size in named[0]] == [0, 0]


def test_defaults_are_those_of_fit(capsys: Capture) -> None:
    found = fit("gpt2", batch=2, search=False)
    assert found.plan is not None
    status, out, _ = run(capsys, "solve", "--model", "gpt2", "--batch", "2", "--json")
    assert (status, Plan.from_json(out)) == (0, found.plan)
    assert found.plan.reserved_bytes == found.state.total_bytes - found.gradients_bytes + (
        default_margin(load_gpu("h100").usable_bytes)
    )


def test_the_state_is_left_out_aloud(capsys: Capture) -> None:
    arguments = ("--model", "gpt2", "--batch", "8", "--state", "none", "--margin", "0")
    status, out, err = run(capsys, "solve", *arguments, "--budget", "6GB", "--json")
    assert (status, Plan.from_json(out)) == (0, solve(costs_from_shape("gpt2", 8, 1024), 6))
    left_out = "0 B are set aside (margin 0 B); the state is left out (--state none); "
    assert f"of 6.000 GB (5.588 GiB), h100, {left_out}" in err
    assert err.count("\n") == 1
    status, out, err = run(capsys, "show", *arguments)
    assert (status, err) == (0, "")
    assert left_out in " ".join(out.split())


def test_more_may_be_reserved(capsys: Capture) -> None:
    arguments = ("solve", "--model", "gpt2", "--batch", "4", "--budget", "9GB")
    status, out, err = run(capsys, *arguments, "--reserved", "1GB")
    found = fit("gpt2", batch=4, budget="9GB", search=False)
    assert (status, err) == (0, "")
    first, _, rest = out.partition("is left for the step\n")
    assert "state without gradients 1.623 GiB, margin 1.251 GiB, reserved 953.7 MiB" in " ".join(
        first.split()
    )
    assert f"{format_both(found.reserved_bytes + 10**9)} of it reserved" in rest
    message = refused(capsys, *arguments, "--reserved", "16")
    assert "reserved 16 is 16 bytes" in message
    assert "did you mean '16GB'?" in message


@pytest.mark.parametrize("command", ["solve", "compare"])
def test_a_state_beyond_the_budget_is_status_3(capsys: Capture, command: str) -> None:
    message = refused(capsys, command, *LLAMA, "--batch", "4", "--budget", "80GB", status=3)
    assert message == str(fit("llama-3-8b", sequence=8192, batch=4, budget_gb=80).infeasible())
    assert message.startswith(
        "no plan fits a budget of 80.00 GB (74.51 GiB), less than the 107.9 GiB that are reserved "
        "(state without gradients 104.7 GiB, margin 3.235 GiB): the smallest feasible budget is "
    )


def test_show_and_frontier_of_a_model(capsys: Capture) -> None:
    line = "of 85.04 GB (79.20 GiB), h100, 4.999 GiB are set aside (state without gradients 1.623"
    status, out, err = run(capsys, "show", "--model", "gpt2", "--batch", "2")
    assert (status, err) == (0, "")
    assert line in " ".join(out.split())
    assert "transformer.h.0–transformer.h.11" in out
    arguments = ("frontier", "--model", "gpt2", "--batch", "2")
    status, out, err = run(capsys, *arguments, "--points", "3")
    assert status == 0
    assert "keep-all needs" in out
    assert " fit 85.04 GB (79.20 GiB), of which 4.999 GiB are reserved; the fastest" in out
    assert line in " ".join(out.split())


def test_a_table_of_times_has_four_digits(capsys: Capture) -> None:
    _, out, _ = run(capsys, "show", "--model", "llama-3-8b")
    costs = costs_from_shape("llama-3-8b", 1, 4096).layers
    rows = {line.split()[0]: line.split()[1:5] for line in out.splitlines()[4:]}
    for name, layer in (("embedding", costs[0]), ("model.layers.1–model.layers.30", costs[2])):
        times = (layer.forward_time, layer.backward_time)
        assert " ".join(rows[name]) == " ".join(format_time(time, "ms") for time in times)


def test_gradients_change_what_is_reserved(capsys: Capture) -> None:
    arguments = ("solve", "--model", "gpt2", "--margin", "0", "--budget", "8GB", "--json")
    reserved = [
        Plan.from_json(run(capsys, *arguments, *more)[1]).reserved_bytes
        for more in (
            (),
            ("--gradient-dtype", "fp32"),
            ("--gradient-accumulation",),
            ("--gradient-accumulation", "--gradient-dtype", "bf16"),
        )
    ]
    count = 124439808
    assert reserved == [14 * count, 14 * count, 18 * count, 16 * count]


def test_the_costs_of_a_model_replay_its_plan(capsys: Capture, tmp_path: Path) -> None:
    model = ("--model", "gpt2", "--batch", "8")
    status, out, _ = run(capsys, "show", *model, "--json")
    assert status == 0
    assert out.endswith("}\n")
    assert CostGraph.from_json(out) == costs_from_shape("gpt2", 8, 1024)
    costs, plan = tmp_path / "costs.json", tmp_path / "plan.json"
    costs.write_text(out)
    assert run(capsys, "solve", *model, "--budget", "10GB", "-o", str(plan))[0] == 0
    status, out, _ = run(capsys, "show", str(plan), "--costs", str(costs))
    assert status == 0
    assert "Replayed: the peak of" in out
    assert run(capsys, "show", str(plan)) == (0, out, "")  # it has them with it
    assert run(capsys, "show", str(costs), "--json")[1] == costs.read_text()
    Plan.load(plan).save(plan)
    assert "not a plan" in refused(capsys, "show", str(plan), "--json")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--example", "gpt2-small", "--model", "gpt2"), "both --example gpt2-small and --model"),
        (("--example", "gpt2-small", "--batch", "2"), "--batch describes a model; name it"),
        (("--example", "gpt2-small", "--frozen"), "--frozen describes a model; name it"),
        (("--example", "gpt2-small", "--gradient-dtype", "fp32"), "--gradient-dtype describes a"),
        (("--example", "gpt2-small", "--margin", "1GB"), "--margin describes a model; name it"),
        (("--example", "gpt2-small", "--state", "none"), "--state describes a model; name it"),
        (("--model", "gpt2", "--state", "some"), "invalid choice: 'some'"),
        (("--model", "gpt2", "--margin", "2"), "the margin 2 is 2 bytes, next to nothing"),
        (("--model", "gpt2", "--sequence", "2000"), "at most the 1024 positions"),
    ],
)
@pytest.mark.parametrize("command", ["solve", "compare", "frontier", "show"])
def test_models_and_bad_input(
    capsys: Capture, command: str, arguments: tuple[str, ...], message: str
) -> None:
    budget = () if command == "show" else ("--budget", "5GB")
    assert message in refused(capsys, command, *arguments, *budget)


@pytest.mark.parametrize("command", ["fit", "solve", "compare", "frontier"])
def test_a_number_of_gb_is_no_number_of_bytes(capsys: Capture, command: str) -> None:
    message = refused(capsys, command, "--model", "gpt2", "--budget", "40")
    assert message.startswith("budget 40 is 40 bytes, next to nothing of the 1.089 GiB that ")
    assert "did you mean '40GB'?" in message

"""``fit`` and ``--model`` on the command line: what they print where, and their exit status."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler import CostGraph, Plan, SchedulerError, solve
from scheduler.cli.fit import parse_lora
from scheduler.memory import Lora, costs_from_shape, fit, training_state
from tests.cli.test_cli import refused, run
from tests.memory.memory_cases import TINY_LLAMA

Capture = pytest.CaptureFixture[str]
LLAMA = ("--model", "llama-3-8b", "--sequence", "8192")
SHARDED = (*LLAMA, "--zero", "3", "--gpus", "8")


# --- fit ----------------------------------------------------------------------------------------


def test_fit_is_one_screen(capsys: Capture) -> None:
    status, out, err = run(capsys, "fit", *SHARDED)
    assert (status, err) == (0, "")
    assert out.rstrip("\n") == str(fit("llama-3-8b", sequence=8192, zero=3, gpus=8))
    assert len(out.splitlines()) <= 24
    for label in ("model", "state", "margin", "up to loss", "layer", "optimizer", "fits", "plan"):
        assert any(line.lstrip().startswith(label) for line in out.splitlines()), label


def test_fit_as_json_is_the_object(capsys: Capture) -> None:
    status, out, _ = run(capsys, "fit", *SHARDED, "--json")
    assert status == 0
    expected = fit("llama-3-8b", sequence=8192, zero=3, gpus=8).to_dict()
    assert json.loads(out) == json.loads(json.dumps(expected))


def test_fit_without_a_plan_is_status_3_and_says_all(capsys: Capture) -> None:
    status, out, err = run(capsys, "fit", *LLAMA, "--json", "--no-search")
    assert status == 3
    record = json.loads(out)
    assert record["plan"] is None
    assert record["limits"] is None
    assert "error: no plan fits a budget of 85.04 GB (79.20 GiB)" in err
    assert str(record["smallest_budget_bytes"]) in err
    assert err.count("\n") == 1


def test_fit_with_every_option(capsys: Capture) -> None:
    arguments = (
        *("--model", "llama-7b", "--gpu", "a100-40", "--batch", "2", "--sequence", "1024"),
        *("--precision", "bf16", "--optimizer", "adam-8bit", "--zero", "fsdp", "--gpus", "4"),
        *("--lora", "r=16,targets=q+v,dtype=fp32,dropout=0.05", "--base", "nf4-double"),
        *("--attention", "eager", "--loss", "bf16", "--update", "foreach"),
        *("--gradient-dtype", "fp32", "--gradient-accumulation"),
        *("--efficiency", "0.4", "--margin", "2GiB", "--budget", "39GB"),
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


@pytest.mark.parametrize("kind", ["tensor", "pipeline", "sequence", "context", "expert"])
@pytest.mark.parametrize("command", ["fit", "solve"])
def test_other_parallelism_is_told(capsys: Capture, command: str, kind: str) -> None:
    for value in ((), ("4",)):
        message = refused(capsys, command, "--model", "gpt2", f"--{kind}-parallel", *value)
        assert message.startswith(f"there is no --{kind}-parallel: costs are of data-parallel GPUs")
        assert f"training_state({kind}_parallel=...) divides" in message
    assert "parallel" not in run(capsys, command, "--help")[1].replace("data-parallel", "")


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
    assert len(out.splitlines()) <= 24


@pytest.mark.parametrize("zero", [3, "fsdp"])
def test_one_gpu_shards_nothing(capsys: Capture, zero: int | str) -> None:
    note = "checkpoint-scheduler: note: ZeRO-3 over 1 GPU shards nothing; give --gpus\n"
    arguments = ("--model", "gpt2", "--zero", str(zero))
    status, out, err = run(capsys, "fit", *arguments, "--no-search")
    assert (status, err) == (0, note)
    assert "ZeRO-3 over 1 GPU, " in out
    assert out == f"{fit('gpt2', zero=zero, search=False)}\n"
    status, _, err = run(capsys, "show", *arguments, "--optimizer", "adamw", "--gpus", "1")
    assert status == 0
    assert err.startswith(note)
    assert run(capsys, "fit", *arguments, "--gpus", "2", "--no-search")[2] == ""


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


def test_solve_a_model(capsys: Capture) -> None:
    arguments = ("solve", "--model", "gpt2", "--batch", "8", "--budget", "6GB", "--json")
    status, out, err = run(capsys, *arguments)
    assert (status, err) == (0, "")
    assert Plan.from_json(out) == solve(costs_from_shape("gpt2", 8, 1024), 6)


def test_an_optimizer_reserves_the_state(capsys: Capture) -> None:
    arguments = ("--model", "gpt2", "--batch", "8", "--optimizer", "adamw", "--budget", "8GB")
    status, out, err = run(capsys, "solve", *arguments, "--reserved", "1GB", "--json")
    assert status == 0
    costs = costs_from_shape("gpt2", 8, 1024)
    gradients = sum(layer.gradient_bytes for layer in costs.layers)
    state = training_state(124439808)
    assert gradients == state.gradients_bytes
    reserved = state.total_bytes - gradients + 10**9
    assert Plan.from_json(out) == solve(costs, 8, reserved=reserved)
    assert "persistent state without gradients, 1.74 GB (1.62 GiB), comes off the budget" in err
    status, out, err = run(capsys, "compare", *arguments)
    assert status == 0
    assert "1.74 GB (1.62 GiB) of it reserved" in out


@pytest.mark.parametrize("command", ["solve", "compare"])
def test_a_state_beyond_the_budget_is_status_3(capsys: Capture, command: str) -> None:
    arguments = (command, *LLAMA, "--batch", "4", "--optimizer", "adamw", "--budget", "80GB")
    message = refused(capsys, *arguments, status=3)
    assert "no plan fits a budget of 80.00 GB" in message
    assert "104.7 GiB of it reserved" in message


def test_show_and_frontier_of_a_model(capsys: Capture) -> None:
    status, out, err = run(capsys, "show", "--model", "gpt2", "--batch", "2")
    assert (status, err) == (0, "")
    assert "transformer.h.0–transformer.h.11" in out
    arguments = ("frontier", "--model", "gpt2", "--batch", "2", "--optimizer", "adamw")
    status, out, err = run(capsys, *arguments, "--points", "3")
    assert status == 0
    assert "keep-all needs" in out
    assert "comes on top of these figures" in err


def test_a_table_of_times_has_four_digits(capsys: Capture) -> None:
    _, out, _ = run(capsys, "show", "--model", "llama-3-8b")
    costs = costs_from_shape("llama-3-8b", 1, 4096).layers
    rows = {line.split()[0]: line.split()[1:3] for line in out.splitlines()[2:]}
    for name, layer in (("embedding", costs[0]), ("model.layers.0–model.layers.31", costs[1])):
        times = (layer.forward_time, layer.backward_time)
        assert rows[name] == [f"{time:.4g}" for time in times]
    assert max(len(word) for row in rows.values() for word in row) <= 7


def test_gradients_change_what_is_reserved(capsys: Capture) -> None:
    arguments = ("solve", "--model", "gpt2", "--optimizer", "adamw", "--budget", "8GB", "--json")
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
    status, out, err = run(capsys, "show", *model, "--json")
    assert (status, err) == (0, "")
    assert out.endswith("}\n")
    assert CostGraph.from_json(out) == costs_from_shape("gpt2", 8, 1024)
    costs, plan = tmp_path / "costs.json", tmp_path / "plan.json"
    costs.write_text(out)
    assert run(capsys, "solve", *model, "--budget", "6GB", "-o", str(plan))[0] == 0
    status, out, _ = run(capsys, "show", str(plan), "--costs", str(costs))
    assert status == 0
    assert "Replayed: the peak of" in out
    assert run(capsys, "show", str(costs), "--json")[1] == costs.read_text()
    assert "not a plan" in refused(capsys, "show", str(plan), "--json")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--example", "gpt2-small", "--model", "gpt2"), "both --example gpt2-small and --model"),
        (("--example", "gpt2-small", "--batch", "2"), "--batch describes a model; name it"),
        (("--example", "gpt2-small", "--frozen"), "--frozen describes a model; name it"),
        (("--model", "gpt2", "--zero", "3"), "--zero needs --optimizer"),
        (("--model", "gpt2", "--gradient-dtype", "fp32"), "--gradient-dtype needs --optimizer"),
        (("--example", "gpt2-small", "--gradient-dtype", "fp32"), "--gradient-dtype describes a"),
        (("--model", "gpt2", "--gradient-accumulation"), "-accumulation needs --optimizer"),
        (("--model", "gpt2", "--optimizer", "adamw", "--update", "fused"), "goes with the command"),
        (("--model", "gpt2", "--sequence", "2000"), "at most the 1024 positions"),
    ],
)
@pytest.mark.parametrize("command", ["solve", "compare", "frontier", "show"])
def test_models_and_bad_input(
    capsys: Capture, command: str, arguments: tuple[str, ...], message: str
) -> None:
    budget = ("--budget", "5GB") if command in ("solve", "compare") else ()
    assert message in refused(capsys, command, *arguments, *budget)


def test_a_model_needs_a_budget_too(capsys: Capture) -> None:
    arguments = ("solve", "--model", "gpt2", "--optimizer", "adamw")
    assert "no budget given" in refused(capsys, *arguments)

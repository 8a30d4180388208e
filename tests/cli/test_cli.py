"""The command line: what it prints where, and its exit status."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scheduler import CostGraph, LayerCost, Plan, solve
from scheduler.cli.main import main
from tests.chains import FOLDER

EXAMPLE = (str(FOLDER / "gpt2_small_12.json"),)
GPT2 = CostGraph.load(EXAMPLE[0])
ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "scheduler" / "memory" / "shape" / "configs" / "gpt2.json"

Capture = pytest.CaptureFixture[str]


def run(capsys: Capture, *arguments: str) -> tuple[int, str, str]:
    """Exit status, standard output, standard error."""
    try:
        status = main(arguments)
    except SystemExit as stop:
        status = int(stop.code or 0)
    return (status, *capsys.readouterr())


def refused(capsys: Capture, *arguments: str, status: int = 2) -> str:
    """The one sentence of a command that fails, which prints no data."""
    code, out, err = run(capsys, *arguments)
    assert code == status
    assert out == ""
    assert err.startswith("checkpoint-scheduler: error: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    return err.removeprefix("checkpoint-scheduler: error: ").strip()


@pytest.fixture
def costs(tmp_path: Path) -> Path:
    path = tmp_path / "costs.json"
    GPT2.save(path)
    return path


@pytest.fixture
def standard_input(monkeypatch: pytest.MonkeyPatch) -> Any:
    def give(data: str | bytes) -> None:
        raw = data if isinstance(data, bytes) else data.encode()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw)))

    return give


# --- solve --------------------------------------------------------------------------------------


def test_solve(capsys: Capture, costs: Path) -> None:
    status, out, err = run(capsys, "solve", str(costs), "--budget", "5GB")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "    time  92.10 s a step, 16.54% over the 79.03 s for keeping everything"
    assert lines[-1] == "13–loss  keep"


def test_solve_an_example_by_another_method(capsys: Capture) -> None:
    arguments = ("solve", *EXAMPLE, "--budget", "5GB", "--method", "greedy", "--json")
    status, out, _ = run(capsys, *arguments)
    assert status == 0
    assert Plan.from_json(out) == solve(GPT2, 5, method="greedy")


def test_solve_writes_a_plan(capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    arguments = ("solve", *EXAMPLE, "--budget", "5GB", "--reserved", "200MB", "-o", str(path))
    status, out, err = run(capsys, *arguments)
    assert status == 0
    assert "200.0 MB (190.7 MiB) of it reserved" in out
    assert err == f"checkpoint-scheduler: wrote {path}\n"
    assert Plan.load(path) == solve(GPT2, 5, reserved="200MB")


def test_solve_reads_standard_input(capsys: Capture, costs: Path, standard_input: Any) -> None:
    standard_input(costs.read_text())
    status, out, _ = run(capsys, "solve", "-", "--budget", "5GB", "--json")
    assert status == 0
    assert Plan.from_json(out) == solve(GPT2, 5)


def test_solve_with_limits(capsys: Capture) -> None:
    limits = ("--max-points", "1000", "--memory-limit", "2GiB")
    status, out, _ = run(capsys, "solve", *EXAMPLE, "--budget", "5GB", "--json", *limits)
    assert status == 0
    assert Plan.from_json(out) == solve(GPT2, 5)


def test_a_budget_that_nothing_fits_is_status_3(capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    arguments = ("solve", *EXAMPLE, "--budget", "1GB", "-o", str(path))
    message = refused(capsys, *arguments, status=3)
    assert message == (
        "no plan fits a budget of 1.000 GB (953.7 MiB): the smallest feasible budget is "
        "3.499 GB (3.259 GiB), set by the backward of '14'"
    )
    assert not path.exists()


def test_a_plan_is_written_whole_or_not_at_all(capsys: Capture, tmp_path: Path) -> None:
    arguments = ("solve", *EXAMPLE, "--budget", "5GB", "-o")
    assert "there is no directory" in refused(capsys, *arguments, str(tmp_path / "no" / "p.json"))
    assert "it is a directory" in refused(capsys, *arguments, str(tmp_path))
    assert list(tmp_path.iterdir()) == []


# --- compare, frontier --------------------------------------------------------------------------


def test_an_output_is_no_input(capsys: Capture, tmp_path: Path) -> None:
    """Costs that a command reads are still there after it, however the file is named."""
    table = tmp_path / "mine.csv"
    table.write_text(before := "forward_time,backward_time,output_bytes,saved_bytes\n1,2,2,5\n")
    plan, link = tmp_path / "plan.json", tmp_path / "link.csv"
    link.symlink_to(table)
    asked = ("solve", str(table), "--budget", "1GB", "-o")
    status, _, err = run(capsys, *asked, str(plan))
    assert status == 0
    assert "next to nothing of the budget of 1GB; sizes in costs are bytes: are these MB?" in err
    for arguments in (
        (*asked, str(link)),
        ("report", str(plan), "--costs", str(table), "-o", str(table)),
        ("export", str(plan), "--to", "torch", "-o", str(plan)),
    ):
        status, _, err = run(capsys, *arguments)
        assert status == 2
        assert "is also what is read, and would replace it; name another" in err
    assert table.read_text() == before
    assert (
        "banana' is none of s, ms, us, ns" in run(capsys, *asked, "-", "--time-unit", "banana")[2]
    )


def test_compare(capsys: Capture) -> None:
    status, out, err = run(capsys, "compare", *EXAMPLE, "--budget", "5GB")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("gpt2_small_12: 16 layers, keep-all peak 7.788 GiB, ")
    assert lines[-2].startswith("The optimum loses 16.54% to recomputation")


def test_compare_as_data(capsys: Capture) -> None:
    _, out, _ = run(capsys, "compare", *EXAMPLE, "--budget", "5GB", "--json")
    record = json.loads(out)
    assert record["budget_bytes"] == 5 * 10**9
    assert record["rows"][-1]["method"] == "optimal"
    _, out, _ = run(capsys, "compare", *EXAMPLE, "--budget", "5GB", "--csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["method"] for row in rows] == [row["method"] for row in record["rows"]]
    assert [row["time"] for row in rows] == [
        "" if row["time"] is None else str(row["time"]) for row in record["rows"]
    ]


def test_compare_of_what_nothing_fits(capsys: Capture) -> None:
    status, out, err = run(capsys, "compare", *EXAMPLE, "--budget", "1GB")
    assert status == 3
    assert "optimal        3.258 GiB    no" in out
    assert err == (
        "checkpoint-scheduler: error: no plan fits: the smallest feasible budget is "
        "3.499 GB (3.259 GiB), set by the backward of '14'\n"
    )


def test_frontier(capsys: Capture) -> None:
    status, out, err = run(capsys, "frontier", *EXAMPLE)
    assert (status, err) == (0, "")
    assert len(out.splitlines()) == 22
    _, out, _ = run(capsys, "frontier", *EXAMPLE, "--points", "3")
    assert len(out.splitlines()) == 5


def test_frontier_within_a_budget(capsys: Capture) -> None:
    """The fastest that fits is the plan of `solve`; where none does, the smallest budget solves."""
    within = ("--budget", "7GB", "--reserved", "1GB")
    _, solved, _ = run(capsys, "solve", *EXAMPLE, *within)
    _, out, _ = run(capsys, "frontier", *EXAMPLE, *within)
    fitting = re.search(r"Of these \d+ plans (\d+) fit 7.000 GB .* loses\s([\d.]+%)", out, re.S)
    assert fitting is not None
    assert int(fitting[1]) > 0
    assert f" {fitting[2]} over" in solved
    record = json.loads(run(capsys, "frontier", *EXAMPLE, *within, "--json")[1])
    assert (record["budget_bytes"], record["reserved_bytes"]) == (7 * 10**9, 10**9)
    _, out, _ = run(capsys, "frontier", *EXAMPLE, "--budget", "2GB", *within[2:])
    least = re.search(r" plans 0 fit .* the tightest needs a\sbudget of ([\d.]+) GB", out, re.S)
    assert least is not None
    status, _, _ = run(capsys, "solve", *EXAMPLE, "--budget", f"{least[1]}GB", *within[2:])
    assert status == 0
    assert "--reserved comes off a budget" in refused(capsys, "frontier", *EXAMPLE, *within[2:])


def test_frontier_as_data(capsys: Capture) -> None:
    _, out, _ = run(capsys, "frontier", *EXAMPLE, "--json")
    points = [(point["peak_bytes"], point["time"]) for point in json.loads(out)["points"]]
    _, out, _ = run(capsys, "frontier", *EXAMPLE, "--csv")
    header, *rows = csv.reader(io.StringIO(out))
    assert header == ["peak_bytes", "time", "overhead"]
    assert [(int(row[0]), float(row[1])) for row in rows] == points
    _, out, _ = run(capsys, "frontier", *EXAMPLE, "--csv", "--points", "1")
    assert len(out.splitlines()) == 2


# --- show ---------------------------------------------------------------------------------------


def test_show_costs(capsys: Capture, costs: Path) -> None:
    status, out, _ = run(capsys, "show", str(costs))
    assert status == 0
    assert out == f"{GPT2}\n"
    assert run(capsys, "show", *EXAMPLE)[1] == out


def test_show_a_plan(capsys: Capture, costs: Path, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    solve(GPT2, 5).save(path)
    status, out, _ = run(capsys, "show", str(path))
    assert status == 0
    assert "status  optimal" in out
    assert out.splitlines()[-1].startswith("Not replayed: --costs COSTS executes it ")
    _, out, _ = run(capsys, "show", str(path), "--costs", str(costs))
    assert out.splitlines()[-1] == (
        "Replayed: the peak of 4.478 GiB is set by the backward of '14'; a step takes 92.10 s."
    )


def test_show_a_plan_that_does_not_hold(capsys: Capture, costs: Path, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(
        solve(GPT2, 5)
        .to_json()
        .replace('"time": 9', '"time": 8')
        .replace('"lower_bound_time": 9', '"lower_bound_time": 8')
    )
    status, out, err = run(capsys, "show", str(path), "--costs", str(costs))
    assert (status, out) == (2, "")
    assert "the plan says a time of 82101.4286 ms, its replay gives 92101.4286" in err
    path.write_text(solve(GPT2, 5).to_json().replace("[1, 3]", "[1, 2]"))
    message = refused(capsys, "show", str(path))
    assert "items[1].body[2]: starts at layer 3 ('3'), but the list that it is in ends" in message
    message = refused(capsys, "show", str(costs), "--costs", str(costs))
    assert "--costs replays a plan" in message


# --- bad input ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "the following arguments are required: COMMAND"),
        (("solv",), "there is no command 'solv'; did you mean 'solve'?"),
        (("solve",), "no costs given; name a cost file, - for standard input, or an example"),
        (("solve", *EXAMPLE), "no budget given; add one, as in --budget 40GB"),
        (("compare", *EXAMPLE), "no budget given; add one, as in --budget 40GB"),
        (("solve", *EXAMPLE, "--budget"), "argument --budget: expected one argument"),
        (("solve", *EXAMPLE, "--budget", "40G"), "the budget '40G' has two readings; write 40GB"),
        (("solve", *EXAMPLE, "--budget", "forty"), "the budget 'forty' is not a size"),
        (("solve", *EXAMPLE, "--budget", "0"), "the budget must be at least one byte, got '0'"),
        (("solve", *EXAMPLE, "--budget", "nan"), "the budget 'nan' is not a size"),
        (("solve", *EXAMPLE, "--budget", "-5GB"), "the budget must be at least one byte"),
        (("solve", *EXAMPLE, "--budget", ""), "the budget '' is not a size"),
        (
            ("solve", *EXAMPLE, "--budget", "5GB", "--reserved", "5GB"),
            "nothing is left of a budget",
        ),
        (("solve", *EXAMPLE, "--budget", "5GB", "--method", "best"), "there is no method 'best'"),
        (("solve", *EXAMPLE, "--budget", "5GB", "--max-points", "3"), "at least 16, got 3"),
        (("solve", *EXAMPLE, "--budget", "5GB", "--memory-limit", "1"), "memory_limit must be at"),
        (("solve", *EXAMPLE, "--budget", "5GB", "--fast"), "unrecognized arguments: --fast"),
        (("solve", *EXAMPLE, "--budg", "5GB"), "--budg 5GB; did you mean '--budget'? (see 'checkp"),
        (
            ("fit", "--method=greedy"),
            "--method is an option of solve (see 'checkpoint-scheduler fit",
        ),
        (("show", str(ROOT / "README.md")), "this is not valid JSON: it begins with "),
        (("fit", "--sequence", "32k"), "'32k' has two readings: write 32768 or 32000"),
        (("fit", "--sequence", "long"), "invalid int value: 'long'"),
        (("fit", "--model", "qwen2.5-7b"), "such as Qwen/Qwen2.5-7B"),
        (("solve", str(CONFIG), "--budget", "5GB"), "a model's config, not a cost file; give it w"),
        (("solve", "--example", "gpt3", "--budget", "5GB"), "there is no example 'gpt3'"),
        (
            ("solve", "a.json", "--example", "gpt2-small", "--budget", "5GB"),
            "both 'a.json' and --example gpt2-small",
        ),
        (("solve", "none.json", "--budget", "5GB"), "there is no cost file 'none.json'"),
        (("solve", "llama-3-8b", "--budget", "5GB"), "did you mean --model llama-3-8b?"),
        (("show", "gpt2-small"), "did you mean --example gpt2-small?"),
        (("fit", "llama-3-8b"), "fit takes its model by an option: --model llama-3-8b"),
        (("show", "none.json"), "there is no cost or plan file 'none.json'"),
        (("show",), "no costs given"),
        (("solve", str(ROOT), "--budget", "5GB"), "is a directory, not a cost file"),
        (("frontier", *EXAMPLE, "--points", "0"), "--points must be at least 1, got 0"),
        (("frontier", *EXAMPLE, "--points", "x"), "argument --points: invalid int value: 'x'"),
        (("frontier", *EXAMPLE, "--json", "--csv"), "not allowed with argument --json"),
    ],
)
def test_bad_usage(capsys: Capture, arguments: tuple[str, ...], message: str) -> None:
    assert message in refused(capsys, *arguments)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1, column 1: this is not valid JSON: the file is empty"),
        ('{"schema": "checkpoint-scheduler/costs/1",\n "layers": [', "line 2, column 13"),
        ('{"schema": "checkpoint-scheduler/costs/2", "layers": []}', "unknown schema"),
        ('{"schema": "checkpoint-scheduler/costs/1", "layers": []}', "there are no layers"),
        ("[]", "standard input: there are no layers"),
        (b"\xff\xfe", "standard input is not UTF-8 text (byte 0)"),
    ],
)
def test_bad_costs(capsys: Capture, standard_input: Any, text: str | bytes, message: str) -> None:
    for command in ("solve", "compare", "show"):
        standard_input(text)
        budget = () if command == "show" else ("--budget", "5GB")
        assert message in refused(capsys, command, "-", *budget)


def with_dash(plan: str, costs: str) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Commands that read standard input: what of, and the command."""
    other = ("--costs", costs)
    return {
        "show": (plan, ("show", "-", *other)),
        "show --costs": (costs, ("show", plan, "--costs", "-")),
        "solve": (costs, ("solve", "-", "--budget", "5GB", "--json")),
        "export": (plan, ("export", "-", "--to", "torch", *other)),
        "export --costs": (costs, ("export", plan, "--to", "torch", "--costs", "-")),
        "report": (plan, ("report", "-", "--no-solve", *other)),
        "report --costs": (costs, ("report", plan, "--no-solve", "--costs", "-")),
        "diff": (plan, ("diff", "-", plan)),
        "diff after": (plan, ("diff", plan, "-")),
    }


@pytest.mark.parametrize("which", with_dash("", ""))
def test_a_dash_is_standard_input(
    capsys: Capture, costs: Path, tmp_path: Path, standard_input: Any, which: str
) -> None:
    plan = tmp_path / "plan.json"
    solve(GPT2, 5).save(plan)
    path, command = with_dash(str(plan), str(costs))[which]
    named = run(capsys, *(path if word == "-" else word for word in command))
    data = Path(path).read_bytes()
    for start in (b"", b"\xef\xbb\xbf"):  # with a byte-order mark too
        standard_input(start + data)
        status, out, err = run(capsys, *command)
        assert (status, err) == (0, named[2])
        # A report says what its files are called.
        called = (
            ("--costs -", f"--costs {costs}") if "costs" in which else ("show -", f"show {plan}")
        )
        if which.startswith("report"):
            assert out.count("<svg") == named[1].count("<svg") == 4
            assert called[0] in out
            assert called[1] in named[1]
        else:
            assert out == named[1]
    standard_input(b"\xff" + data)
    message = refused(capsys, *command)
    assert message.startswith("standard input is not UTF-8 text (byte 0); a ")
    standard_input("{")
    assert refused(capsys, *command).startswith("standard input, line 1, column 2: this is not ")


def test_standard_input_is_one_file(capsys: Capture) -> None:
    for command, what in (
        (("show", "-", "--costs", "-"), "the plan and the costs"),
        (("export", "-", "--costs", "-", "--to", "torch"), "the plan and the costs"),
        (("report", "-", "--costs", "-"), "the plan and the costs"),
        (("diff", "-", "-"), "the two plans"),
    ):
        assert refused(capsys, *command) == (
            f"{what} cannot both come from standard input; name a file for one of them"
        )


def test_standard_input_that_cannot_be_read() -> None:
    with open(os.devnull, "w") as write_only:
        done = process("show", "-", stdin=write_only, capture_output=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("checkpoint-scheduler: error: cannot read standard input: ")


def test_a_plan_in_place_of_costs(capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    solve(GPT2, 5).save(path)
    message = refused(capsys, "solve", str(path), "--budget", "5GB")
    assert "this is a plan, not costs" in message


def test_an_interrupt_is_one_line(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("scheduler.api.solve", interrupted)
    status, out, err = run(capsys, "solve", *EXAMPLE, "--budget", "5GB")
    assert (status, out, err) == (130, "", "checkpoint-scheduler: interrupted\n")


def test_memory_that_runs_out(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("scheduler.api.frontier", exhausted)
    assert "give a smaller --memory-limit" in refused(capsys, "frontier", *EXAMPLE)


# --- as a process -------------------------------------------------------------------------------


def process(*arguments: str, **keywords: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "scheduler", *arguments]
    return subprocess.run(command, text=True, cwd=ROOT, check=False, **keywords)


def test_exit_statuses() -> None:
    done = process("show", *EXAMPLE, capture_output=True)
    assert (done.returncode, done.stderr) == (0, "")
    done = process("solve", *EXAMPLE, capture_output=True)
    assert (done.returncode, done.stdout) == (2, "")
    done = process("solve", *EXAMPLE, "--budget", "1GB", capture_output=True)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.count("\n") == 1


def test_help_and_version() -> None:
    done = process("--help", capture_output=True)
    assert done.returncode == 0
    assert "solve" in done.stdout
    assert "exit status: 0 done" in done.stdout
    done = process("--version", capture_output=True)
    assert done.returncode == 0
    assert done.stdout.startswith("checkpoint-scheduler ")


def test_a_closed_pipe_is_quiet() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = process("show", *EXAMPLE, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_one_sentence() -> None:
    with open("/dev/full", "w") as full:
        done = process("show", *EXAMPLE, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 2
    assert done.stderr == (
        "checkpoint-scheduler: error: cannot write the output: No space left on device\n"
    )


def test_a_terminal_that_knows_only_ascii() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = process("compare", *EXAMPLE, "--budget", "5GB", capture_output=True, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    done = process("solve", "--help", capture_output=True, env=environment)
    assert (done.returncode, done.stderr) == (0, "")


def test_closed_streams_are_no_traceback() -> None:
    command = f"{sys.executable} -m scheduler solve --example gpt2-small --budget 5GB"
    for closed, status in ((">&-", 0), ("2>&-", 0)):
        done = subprocess.run(f"{command} {closed}", shell=True, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (status, "")
    empty = subprocess.run(
        f"{sys.executable} -m scheduler show - <&-", shell=True, capture_output=True, text=True
    )
    assert empty.returncode == 2
    assert "the file is empty" in empty.stderr
    assert "Traceback" not in empty.stderr


MAIN = {
    "solve": "--example --model --budget --reserved --output",
    "compare": "--example --model --budget --reserved --against",
    "frontier": "--example --model --points --budget --reserved --json --csv",
    "show": "--example --model --costs --steps --json --csv",
    "fit": "--model --budget --gpu --batch --sequence",
    "export": "--to --costs --output --length --stages",
    "report": "--costs --example --output --picture --no-solve",
    "diff": "--json --csv",
}


@pytest.mark.parametrize("command", MAIN)
def test_help_begins_with_the_main_options(capsys: Capture, command: str) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    parts = capsys.readouterr().out.split("\n\n")
    assert len(parts[0]) < 100
    first = next(i for i, part in enumerate(parts) if part.startswith("options:"))
    assert first <= 3
    found = re.findall(r"^  (?:-\w.*, )?(--[a-z-]+)", parts[first], re.M)
    assert found == [*MAIN[command].split(), "--help"]


def test_examples_are_listed_with_their_machine(capsys: Capture) -> None:
    status, out, _ = run(capsys, "show", "--example", "list")
    assert status == 0
    assert re.findall(r"^\S+", out, re.M) == list(CostGraph.example_names())
    assert out.count("NVIDIA H100") == len(CostGraph.example_names())


def test_tables_have_four_digits(capsys: Capture, tmp_path: Path) -> None:
    """Whatever the sizes, the times and the shares are: no more digits than anybody reads."""
    layers = [
        LayerCost(
            f"block.{i}",
            forward_time=37**i / 7,
            backward_time=41**i / 9,
            output_bytes=1023 * 1017**i,
            saved_bytes=1025 * 1019**i,
        )
        for i in range(4)
    ]
    file, tight, roomy = (str(tmp_path / name) for name in ("costs.json", "a.json", "b.json"))
    costs = CostGraph(tuple(layers), 1019, "odd")
    costs.save(file)
    graph = str(tmp_path / "graph.json")
    replace(costs, edges=(("block.0", "block.1"), ("block.0", "block.2"))).save(graph)
    peak = solve(costs, budget="1000TB").keep_all_peak_bytes
    solve(costs, budget=peak - 1, reserved=1017).save(tight)
    solve(costs, budget="999999999MB").save(roomy)
    for arguments in (
        ("show", file),
        ("solve", file, "--budget", f"{peak - 1}B", "--reserved", "1017B"),
        ("compare", file, "--budget", f"{peak - 1}B"),
        ("compare", graph, "--budget", f"{peak}B", "--quiet"),
        ("frontier", file),
        ("frontier", graph, "--points", "2", "--quiet"),
        ("show", tight, "--costs", file),
        ("diff", tight, roomy),
        ("fit", "--model", "llama-3-8b", "--explain", "--no-search"),
        ("show", "--model", "gpt2"),
    ):
        status, out, _ = run(capsys, *arguments)
        assert status in (0, 3), arguments
        for number in re.findall(r"(?<![\w.])\d[\d,]*\.\d+(?![\w.])", out):
            digits = number.replace(",", "").replace(".", "").lstrip("0")
            assert len(digits) <= 4, (arguments, number)

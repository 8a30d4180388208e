"""``report``, ``diff`` and ``show`` of a plan on the command line."""

from __future__ import annotations

import csv
import fcntl
import importlib.util
import io
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from html import escape
from pathlib import Path
from xml.etree import ElementTree

import pytest

from scheduler import ComputeCosts, CostGraph, NodeCost, Plan, solve
from scheduler.plans.pictures import strip_picture, timeline_picture
from scheduler.plans.rows import PlanRow, plan_rows
from tests.cli.test_cli import refused, run
from tests.planning.test_graph_api import UNET, UNET_PEAK

ROOT = Path(__file__).parents[2]
EXAMPLE = ("--example", "gpt2-small")
COSTS = CostGraph.example("gpt2-small")

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def plan(tmp_path: Path) -> str:
    path = tmp_path / "plan.json"
    solve(COSTS, budget="5GB").save(path)
    return str(path)


@pytest.fixture
def costs(tmp_path: Path) -> str:
    path = tmp_path / "costs.json"
    COSTS.save(path)
    return str(path)


# --- report --------------------------------------------------------------------------------------


def test_report(capsys: Capture, plan: str, costs: str, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    status, out, err = run(capsys, "report", plan, "--costs", costs, "-o", str(path))
    assert (status, out, err) == (0, "", f"checkpoint-scheduler: wrote {path}\n")
    text = path.read_text(encoding="utf-8")
    ElementTree.fromstring(text.partition("\n")[2])
    assert text.count("<svg") == 6
    assert escape(COSTS.note, quote=False) in text
    assert f"checkpoint-scheduler report {plan} --costs {costs} -o {path}" in text
    first = text
    run(capsys, "report", plan, "--costs", costs, "-o", str(path))
    assert path.read_text(encoding="utf-8") == first
    _, out, _ = run(capsys, "report", plan, *EXAMPLE, "--no-solve")
    assert out.count("<svg") == 4


def test_report_of_a_graph(capsys: Capture, tmp_path: Path) -> None:
    graph, path = tmp_path / "unet.json", tmp_path / "plan.json"
    UNET.save(graph)
    solve(UNET, budget=3 * UNET_PEAK // 4).save(path)
    options = ("--points", "3", "--time-limit", "5", "--threads", "1", "--quiet")
    status, out, err = run(capsys, "report", str(path), "--costs", str(graph), *options)
    assert (status, err) == (0, "")
    assert "proven lower bound" in out
    message = refused(capsys, "report", str(path), "--costs", str(graph), "--max-points", "20")
    assert "max_points limits the sets of the solver of chains" in message
    for option, words in (("--points", "points must be"), ("--time-limit", "positive number of s")):
        assert words in refused(capsys, "report", str(path), "--costs", str(graph), option, "0")


def test_one_picture(capsys: Capture, plan: str) -> None:
    loaded = Plan.load(plan)
    _, out, _ = run(capsys, "report", plan, *EXAMPLE, "--picture", "timeline")
    assert out == timeline_picture(loaded, COSTS)
    _, out, _ = run(capsys, "report", plan, *EXAMPLE, "--picture", "strip")
    assert out == strip_picture(loaded, COSTS.name)
    _, out, _ = run(capsys, "report", plan, *EXAMPLE, "--picture", "curve")
    assert 'data-picture="curve"' in out
    assert 'data-method="uniform-sqrt"' in out


def test_what_a_report_refuses(capsys: Capture, plan: str, tmp_path: Path) -> None:
    for arguments, message in (
        (("--example", "densenet121"), "the plan belongs to other costs"),
        ((), "add --costs COSTS, or --example NAME"),
        ((*EXAMPLE, "--costs", "x.json"), "and not both"),
        ((*EXAMPLE, "--picture", "pie"), "there is no picture 'pie'; choose timeline, curve"),
        ((*EXAMPLE, "--time-limit", "5"), "time_limit of a chain is for solve alone"),
        ((*EXAMPLE, "-o", str(tmp_path / "no" / "r.html"), "--no-solve"), "cannot write"),
        (("--costs", "none.json"), "there is no cost file 'none.json'"),
    ):
        assert message in refused(capsys, "report", plan, *arguments)
    assert "there is no plan file" in refused(capsys, "report", "none.json", *EXAMPLE)
    changed = tmp_path / "changed.json"
    record = json.loads(Path(plan).read_text(encoding="utf-8"))
    record["peak_bytes"] -= 1
    changed.write_text(json.dumps(record), encoding="utf-8")
    assert "changed after it was solved" in refused(capsys, "report", str(changed), *EXAMPLE)


def test_a_report_says_what_is_not_installed(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, plan: str
) -> None:
    there = importlib.util.find_spec
    monkeypatch.setattr(
        "scheduler.report.figure.find_spec", lambda name: there(name) if name != "jinja2" else None
    )
    message = refused(capsys, "report", plan, *EXAMPLE)
    assert "a report needs jinja2, which is not installed: pip install" in message
    assert run(capsys, "report", plan, *EXAMPLE, "--picture", "strip")[0] == 0


# --- show ----------------------------------------------------------------------------------------


def test_show_the_rows_of_a_plan(capsys: Capture, plan: str, costs: str) -> None:
    loaded = Plan.load(plan)
    rows = plan_rows(loaded, COSTS)
    status, out, _ = run(capsys, "show", plan, "--costs", costs)
    assert status == 0
    assert max(map(len, out.splitlines())) <= 100
    assert "held" in out
    _, out, _ = run(capsys, "show", plan, "--costs", costs, "--csv")
    read = list(csv.reader(io.StringIO(out)))
    assert read == [list(PlanRow._fields), *([str(value) for value in row] for row in rows)]
    _, out, _ = run(capsys, "show", plan, "--costs", costs, "--json")
    record = json.loads(out)
    assert record["peak_bytes"] == loaded.replay(COSTS).peak_bytes
    assert record["rows"] == [row._asdict() for row in rows]
    assert "--costs" in refused(capsys, "show", plan, "--csv")
    assert "what is shown is a cost file" in refused(capsys, "show", costs, "--csv")


# --- diff ----------------------------------------------------------------------------------------


def test_diff(capsys: Capture, plan: str, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    solve(COSTS, budget="6GB").save(other)
    status, out, err = run(capsys, "diff", plan, str(other))
    assert (status, err) == (0, "")
    assert "layers are treated differently:" in out
    assert max(map(len, out.splitlines())) <= 100
    _, out, _ = run(capsys, "diff", plan, str(other), "--json")
    record = json.loads(out)
    assert record["after"]["peak_bytes"] == Plan.load(other).peak_bytes
    _, out, _ = run(capsys, "diff", plan, str(other), "--csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["after"] for row in rows] == [row["after"] for row in record["rows"]]
    _, out, _ = run(capsys, "diff", plan, plan)
    assert "All 14 layers are treated alike." in out
    example = tmp_path / "dense.json"
    solve(CostGraph.example("densenet121"), budget="1GB").save(example)
    assert "different layers" in refused(capsys, "diff", plan, str(example))


# --- terminals -----------------------------------------------------------------------------------


def on_a_terminal(columns: int, *arguments: str) -> list[str]:
    """What a command prints on a terminal of so many columns."""
    reader, writer = pty.openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    environment = {key: value for key, value in os.environ.items() if key != "COLUMNS"}
    command = [sys.executable, "-m", "scheduler", *arguments]
    done = subprocess.Popen(
        command, stdout=writer, stderr=subprocess.PIPE, cwd=ROOT, env=environment
    )
    os.close(writer)
    read = b""
    while True:
        try:
            part = os.read(reader, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        read += part
    os.close(reader)
    assert done.stderr is not None
    assert done.stderr.read() == b""
    done.stderr.close()
    assert done.wait() == 0
    return read.decode().splitlines()


def test_a_narrow_terminal(plan: str, costs: str, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    solve(COSTS, budget="6GB").save(other)
    for arguments in (("show", plan, "--costs", costs), ("diff", plan, str(other))):
        lines = on_a_terminal(40, *arguments)
        assert lines
        assert max(map(len, lines)) <= 40
        assert "\x1b" not in "".join(lines)  # no colours that would have to be turned off


@pytest.mark.parametrize("columns", [40, 60, 80, 200])
def test_nothing_is_wider_than_what_is_set(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    graph, of_chain, of_graph = (tmp_path / name for name in ("unet.json", "a.json", "b.json"))
    UNET.save(graph)
    compute = tmp_path / "compute.json"
    nodes = [NodeCost(f"operation.{i}", time=i + 1, bytes=10 ** (i % 15)) for i in range(60)]
    ComputeCosts(tuple(nodes), tuple((i, i + 1) for i in range(59))).save(compute)
    solve(COSTS, budget="5GB").save(of_chain)
    solve(UNET, budget=3 * UNET_PEAK // 4).save(of_graph)
    sweep = ("--points", "2", "--time-limit", "5", "--quiet")
    layers = "layers: 0,1,2,3,4,5,6,7,8,9,10,11"
    for arguments in (
        ("solve", *EXAMPLE, "--budget", "5GB"),
        ("compare", *EXAMPLE, "--budget", "5GB", "--against", layers),
        ("compare", str(graph), "--budget", str(UNET_PEAK), *sweep[2:]),
        ("frontier", *EXAMPLE),
        ("frontier", str(graph), *sweep),
        ("show", *EXAMPLE),
        ("show", "--example", "densenet121"),
        ("show", str(graph)),
        ("show", str(compute)),
        ("show", str(of_chain)),
        ("show", str(of_graph)),
        ("show", str(of_graph), "--costs", str(graph)),
        ("diff", str(of_chain), str(of_chain)),
    ):
        status, out, _ = run(capsys, *arguments)
        assert status == 0
        lines = out.splitlines()
        assert max(map(len, lines)) <= min(columns, 100), arguments
        assert "\N{NO-BREAK SPACE}" not in out
        if columns == 200:  # as where nothing is set
            monkeypatch.delenv("COLUMNS")
            wide = run(capsys, *arguments)[1]
            # How long it took is not the same again.
            again = [re.sub(r"[\d.]+ (us|ms|s)\b|\s", "", text) for text in (wide, out)]
            assert again[0] == again[1]
            monkeypatch.setenv("COLUMNS", "200")


def test_a_narrow_table_has_every_figure(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ("compare", *EXAMPLE, "--budget", "5GB")
    wide = run(capsys, *command)[1].split("\n\n")[1].splitlines()
    header, *rows = (re.split(r"  +", line) for line in wide)
    monkeypatch.setenv("COLUMNS", "40")
    narrow = run(capsys, *command)[1].split("\n\n")[1]
    paragraphs = re.split(r"\n(?=\S)", narrow)
    assert len(paragraphs) == len(rows)
    for row, paragraph in zip(rows, paragraphs, strict=True):
        name, *figures = paragraph.splitlines()
        assert name == row[0]
        said = " ".join(line.strip() for line in figures).split("; ")
        assert said == [f"{label} {cell}" for label, cell in zip(header[1:], row[1:], strict=True)]
    assert not re.search(r"\d\n +(s|GiB|MiB)\b", narrow)  # no unit stands in another line


def test_what_is_set_as_columns_need_not_be_a_number(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = run(capsys, "frontier", *EXAMPLE)[1]
    for columns in ("0", "", "-1", "many"):
        monkeypatch.setenv("COLUMNS", columns)
        assert run(capsys, "frontier", *EXAMPLE)[1] == wide

"""The command line on graphs: what it prints where, and its exit status."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from scheduler import ComputeCosts, CostGraph, GraphPlan, Plan, solve
from scheduler.cli.progress import Watching
from solvers.graph.methods import METHODS
from solvers.methods import Limits, Method
from solvers.schedule import Backward
from solvers.solution import Infeasible, Progress, Solution
from tests.cli.test_cli import refused, run
from tests.cli.test_waiting import IGNORING
from tests.planning.test_graph_api import UNET, UNET_PEAK, keep_all

ROOT = Path(__file__).parents[2]
GRAPHS = Path(__file__).parents[1] / "data" / "graphs"
RES4 = GRAPHS / "res4.json"
BUDGET = str(3 * UNET_PEAK // 4)

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def unet(tmp_path: Path) -> str:
    path = tmp_path / "unet.json"
    UNET.save(path)
    return str(path)


# --- solve --------------------------------------------------------------------------------------


def test_solve(capsys: Capture, unet: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    status, out, err = run(capsys, "solve", unet, "--budget", BUDGET, "-o", str(path))
    assert (status, err) == (0, f"checkpoint-scheduler: wrote {path}\n")
    assert "  status  optimal in class forward; no plan of class forward within" in out
    assert "layers run more than once" in out
    plan = Plan.load(path)
    assert isinstance(plan, GraphPlan)
    assert plan == solve(UNET, budget=int(BUDGET))


def test_solve_a_compute_graph_with_every_option(capsys: Capture) -> None:
    graph = ComputeCosts.load(RES4)
    budget = str(9 * keep_all(graph.to_problem()).peak_bytes // 10)
    options = ("--method", "staged", "--optimal-in", "staged", "--time-limit", "60")
    arguments = ("solve", str(RES4), "--budget", budget, *options, "--threads", "2", "--quiet")
    status, out, err = run(capsys, *arguments, "--json")
    assert (status, err) == (0, "")
    plan = Plan.from_json(out)
    assert (plan.method, plan.optimal_in) == ("staged", "staged")
    plan.replay(graph)


def test_show(capsys: Capture, unet: str, tmp_path: Path) -> None:
    assert run(capsys, "show", unet) == (0, f"{UNET}\n", "")
    graph = ComputeCosts.load(RES4)
    assert run(capsys, "show", str(RES4)) == (0, f"{graph}\n", "")
    _, out, _ = run(capsys, "show", str(RES4), "--json")
    assert ComputeCosts.from_json(out) == graph
    _, out, _ = run(capsys, "show", unet, "--json")
    assert CostGraph.from_json(out) == UNET
    path = tmp_path / "plan.json"
    plan = solve(UNET, budget=int(BUDGET))
    plan.save(path)
    _, out, _ = run(capsys, "show", str(path))
    assert "status  optimal in class forward" in out
    assert "Not replayed" in out
    status, out, _ = run(capsys, "show", str(path), "--costs", unet)
    assert status == 0
    assert f"is set by {plan.replay().set_by}; a step takes" in out
    message = refused_after_output(capsys, "show", str(path), "--costs", str(RES4))
    assert "the plan belongs to other costs" in message


def refused_after_output(capsys: Capture, *arguments: str) -> str:
    status, _, err = run(capsys, *arguments)
    assert status == 2
    return err


# --- compare, frontier --------------------------------------------------------------------------


def test_compare(capsys: Capture, unet: str) -> None:
    arguments = ("compare", unet, "--budget", BUDGET, "--time-limit", "20")
    status, out, err = run(capsys, *arguments)
    assert (status, err) == (0, "")
    assert out.startswith("u-net: 5 layers, 6 edges, keep-all peak ")
    assert "staged (forward)" in out
    _, out, _ = run(capsys, *arguments, "--json")
    record = json.loads(out)
    assert record["rows"][0]["method"] == "keep-all"
    _, out, _ = run(capsys, *arguments, "--csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["method"] for row in rows] == [row["method"] for row in record["rows"]]
    status, out, err = run(capsys, "compare", unet, "--budget", "1000")
    assert status == 3
    assert "keep-all" in out
    assert err.startswith("checkpoint-scheduler: error: no plan of class 'staged' fits a budget")


def test_frontier(capsys: Capture, unet: str) -> None:
    status, out, err = run(capsys, "frontier", unet, "--points", "4")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("u-net: 5 layers, 6 edges; keep-all needs ")
    assert 3 <= len(lines) <= 6
    _, out, _ = run(capsys, "frontier", unet, "--points", "4", "--json")
    points = json.loads(out)["points"]
    _, out, _ = run(capsys, "frontier", unet, "--points", "4", "--csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["peak_bytes"] for row in rows] == [str(point["peak_bytes"]) for point in points]
    assert rows[-1]["proven"] == "True"


# --- what cannot be done ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--time-limit", "0"), "time_limit must be a positive number of seconds, got 0.0"),
        (("--time-limit", "soon"), "argument --time-limit: invalid float value: 'soon'"),
        (("--optimal-in", "persistent"), "optimal_in must be 'forward', 'staged' or 'any'"),
        (("--threads", "0"), "threads must be a whole number of at least 1, got 0"),
        (("--method", "binomial"), "method 'binomial' is for chains, and this is a graph"),
        (("--method", "stagd"), "there is no method 'stagd'; did you mean 'staged'?"),
        (("--max-points", "20"), "max_points limits the sets of the solver of chains"),
    ],
)
def test_bad_usage(capsys: Capture, unet: str, arguments: tuple[str, ...], message: str) -> None:
    assert message in refused(capsys, "solve", unet, "--budget", BUDGET, *arguments)


def test_options_of_graphs_on_a_chain(capsys: Capture) -> None:
    chain = ("--example", "gpt2-small")
    for command, budget in (("solve", ("--budget", "5GB")), ("frontier", ())):
        message = refused(capsys, command, *chain, *budget, "--optimal-in", "any")
        assert "optimal_in is for graphs, and these layers are a chain" in message
    assert run(capsys, "solve", *chain, "--budget", "5GB", "--quiet")[0] == 0


def test_bad_files(capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "bad.json"

    def message(record: object) -> str:
        path.write_text(json.dumps(record))
        return refused(capsys, "solve", str(path), "--budget", "5GB")

    made = [{"name": name, "time": 1, "bytes": 1} for name in "abc"]
    graph = {"schema": "checkpoint-scheduler/graph/1", "nodes": made}
    circle = message({**graph, "edges": [[0, 1], [1, 2], [2, 0]]})
    assert "'a' → 'b' → 'c' → 'a'" in circle
    assert "leads to node 7" in message({**graph, "edges": [[0, 7]]})
    assert "bytes must be" in message({**graph, "nodes": [{**made[0], "bytes": -1}]})
    assert "below 2**62" in message({**graph, "nodes": [{**made[0], "time": 2**62}]})
    assert "no nodes" in message({**graph, "nodes": []})


def test_a_budget_that_nothing_fits_is_status_3(capsys: Capture, unet: str) -> None:
    message = refused(capsys, "solve", unet, "--budget", "1000", status=3)
    assert "the backward of 'up1'" in message
    assert "alone needs" in message


def found_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def say(*_: object) -> None:
        raise Infeasible(9100, Backward(4), None, None, out_of_time=True)

    monkeypatch.setattr(Method, "solve", say)


def test_no_plan_in_time_is_status_4(
    capsys: Capture, unet: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found_nothing(monkeypatch)
    arguments = ("solve", unet, "--budget", BUDGET, "--time-limit", "2")
    message = refused(capsys, *arguments, status=4)
    assert "no plan was found within a budget of " in message
    assert "in the time limit of 2 s" in message
    status, out, err = run(capsys, "compare", *arguments[1:])
    assert status == 4
    assert "found no plan in 2 s" in out
    assert err == ("checkpoint-scheduler: error: no method found a plan within this budget\n")


# --- Ctrl-C and progress ------------------------------------------------------------------------


def press(monkeypatch: pytest.MonkeyPatch, what: Exception | None = None) -> None:
    """A solver during which Ctrl-C is pressed, and which then has a plan or raises `what`."""

    real = Method.solve

    def say(_: Method, problem: Any, budget: int, limits: Limits) -> Solution[Any]:
        os.kill(os.getpid(), signal.SIGINT)
        assert limits.interrupted is not None
        assert limits.interrupted()
        if what is not None:
            raise what
        return real(METHODS["staged"], problem, budget)

    monkeypatch.setattr(Method, "solve", say)


def test_ctrl_c_gives_the_best_so_far(
    capsys: Capture, unet: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = signal.getsignal(signal.SIGINT)
    press(monkeypatch)
    status, out, err = run(capsys, "solve", unet, "--budget", "1MB")
    assert status == 0
    assert "Nothing is recomputed." in out
    assert err == "checkpoint-scheduler: interrupted: this is the best plan so far\n"
    status, out, err = run(capsys, "compare", unet, "--budget", "1MB")
    assert status == 0
    assert "not tried: interrupted" in out
    assert err == "checkpoint-scheduler: interrupted: this is what was found so far\n"
    status, out, err = run(capsys, "frontier", unet)
    assert status == 0
    assert "Interrupted: larger budgets were not tried." in out
    assert err == "checkpoint-scheduler: interrupted: these are the budgets solved so far\n"
    assert signal.getsignal(signal.SIGINT) is handler


def test_ctrl_c_without_a_plan(capsys: Capture, unet: str, monkeypatch: pytest.MonkeyPatch) -> None:
    press(monkeypatch, Infeasible(9100, Backward(4), None, None))
    status, out, err = run(capsys, "solve", unet, "--budget", BUDGET)
    assert (status, out) == (130, "")
    assert err.startswith("checkpoint-scheduler: interrupted before a plan was found within ")
    assert err.count("\n") == 1
    status, _, err = run(capsys, "compare", unet, "--budget", BUDGET)
    assert status == 130
    assert "no method found a plan" in err


def test_a_second_ctrl_c_stops_at_once(
    capsys: Capture, unet: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def say(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Method, "solve", say)
    status, out, err = run(capsys, "solve", unet, "--budget", BUDGET)
    assert (status, out, err) == (130, "", "checkpoint-scheduler: interrupted\n")


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "200")
    ticks = UNET.ticks_per_unit
    with Watching(UNET) as watching:
        report = watching.watch.report
        assert report is not None
        report(Progress("relaxation", None, 50 * ticks, 0.4))
        report(Progress("relaxation", None, 51 * ticks, 0.5))  # too soon to be shown
        report(Progress("branch and bound", 60 * ticks, 50 * ticks, 3.2))
    end = "Ctrl-C takes the best so far"
    assert terminal.getvalue().split("\r\x1b[K") == [
        "",
        f"relaxation, 0 s; no plan yet; bound 50.00 ms; {end}",
        f"branch and bound, 3 s; best 60.00 ms; bound 50.00 ms; gap 20.00%; {end}",
        "",
    ]


def test_a_line_of_progress_does_not_wrap(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "20")
    with Watching(UNET) as watching:
        assert watching.watch.report is not None
        watching.watch.report(Progress("branch and bound", None, 0, 3.2))
    assert terminal.getvalue().split("\r\x1b[K") == ["", "branch and bound, 3", ""]


def test_no_progress_where_none_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", _Terminal())
    assert Watching(UNET, quiet=True).watch.report is None
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert Watching(UNET).watch.report is None


@pytest.mark.parametrize("before", [(), IGNORING], ids=["", "ignored before"])
def test_a_real_ctrl_c_on_a_real_terminal(before: tuple[str, ...]) -> None:
    """A process is interrupted while it proves: progress on the terminal, the plan as output."""
    graph = ComputeCosts.load(RES4)
    budget = str(4 * keep_all(graph.to_problem()).peak_bytes // 10)
    master, slave = pty.openpty()
    command = [*before, sys.executable, "-m", "scheduler", "solve", str(RES4)]
    with subprocess.Popen(
        [*command, "--optimal-in", "staged", "--budget", budget],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=slave,
        text=True,
    ) as process:
        os.close(slave)
        seen = b""
        while b"; best " not in seen and process.poll() is None:
            seen += os.read(master, 4096)
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        out = process.stdout.read()
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        seen += os.read(master, 65536)
    os.close(master)
    assert process.returncode == 0
    assert "status  feasible; no plan of class staged" in out
    assert b"bound" in seen
    assert b"interrupted: this is the best plan so far" in seen

"""Long work on the command line: what is shown of it, how it is ended, what is checked first."""

from __future__ import annotations

import html
import os
import pty
import random
import re
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from scheduler import (
    CostGraph,
    InfeasibleBudget,
    LayerCost,
    Plan,
    SchedulerError,
    frontier,
    solve,
)
from scheduler.cli.page import Files, plan_report
from scheduler.cli.progress import Watching
from scheduler.common.files import check_writable, write_atomically
from scheduler.planning.chain.compare import compare_chain
from scheduler.planning.chain.sweep import ChainSweep
from scheduler.planning.frontier import Frontier
from scheduler.planning.request import read_budget
from solvers.schedule import Items
from solvers.solution import Solution
from tests.cli.test_cli import refused, run
from tests.planning.test_graph_api import UNET
from tests.report.svg_reading import of_class, parsed

ROOT = Path(__file__).parents[2]
EXAMPLE = ("--example", "gpt2-small")
COSTS = CostGraph.example("gpt2-small")
CLEAR = "\r\x1b[K"

Capture = pytest.CaptureFixture[str]


def uneven(length: int) -> CostGraph:
    """A chain that no two layers of are equal."""
    draw = random.Random(length)
    layers = [
        LayerCost(
            name=f"h.{i}",
            forward_time=draw.randint(1, 10**6),
            backward_time=draw.randint(1, 10**6),
            output_bytes=draw.randint(1, 10**9),
            saved_bytes=draw.randint(1, 10**9),
        )
        for i in range(length)
    ]
    return CostGraph(tuple(layers), input_bytes=10**6)


# --- a thread of its own -------------------------------------------------------------------------


@pytest.mark.parametrize(("quiet", "on_terminal"), [(False, True), (True, True), (False, False)])
def test_the_seconds_of_a_chain_are_shown_on_a_terminal(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, quiet: bool, on_terminal: bool
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: on_terminal)
    monkeypatch.setattr("scheduler.cli.progress._PATIENCE", 0.0)
    ready = threading.Event()
    written: list[str] = []
    with Watching(COSTS, quiet=quiet) as watching:
        write = watching._write

        def seen(words: str) -> None:
            write(words)
            written.append(words)
            ready.set()

        monkeypatch.setattr(watching, "_write", seen)
        assert watching.run("the frontier", lambda: ready.wait(10)) is True
    said = capsys.readouterr().err
    assert written[0] == "the frontier of 14 layers: 0 s; Ctrl-C ends it (a first run compiles too)"
    if on_terminal and not quiet:
        assert said.startswith(f"{CLEAR}{written[0]}")
        assert said.endswith(CLEAR)  # the line is gone again
    else:
        assert said == ""


@pytest.mark.parametrize("on_terminal", [True, False])
def test_who_waits_for_fit_at_a_terminal_is_told_why(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, on_terminal: bool
) -> None:
    def slow(_: object) -> int:
        threading.Event().wait(0.3)
        return 0

    monkeypatch.setattr(sys.stderr, "isatty", lambda: on_terminal)
    monkeypatch.setattr("scheduler.cli.commands.fit._PATIENCE", 0.01)
    monkeypatch.setattr("scheduler.cli.fit.fit", slow)
    status, out, err = run(capsys, "fit", "--model", "gpt2")
    said = (
        "checkpoint-scheduler: working ... (the first run on a machine compiles the solver, once)"
    )
    assert (status, out, err) == (0, "", f"{said}\n" if on_terminal else "")


def test_what_is_raised_in_the_thread_is_raised_here() -> None:
    watching = Watching(COSTS)
    caller = threading.get_ident()
    assert watching.run("x", threading.get_ident) != caller
    with pytest.raises(InfeasibleBudget):
        watching.run("x", lambda: solve(COSTS, budget="1B"))
    # The solvers of graphs look for Ctrl-C themselves, from where they are called.
    assert Watching(UNET).run("x", threading.get_ident) == caller


def test_work_is_given_up_when_its_seconds_are_over() -> None:
    stop = threading.Event()
    watching = Watching(COSTS)
    with pytest.raises(TimeoutError):
        watching.run("x", lambda: stop.wait(30), 0.2)
    stop.set()
    started: list[int] = []
    with pytest.raises(TimeoutError):
        watching.run("x", lambda: started.append(1), 0.0)
    assert not started


@pytest.mark.parametrize("command", ["frontier", "compare"])
def test_an_interrupt_while_a_chain_is_solved(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    stop = threading.Event()

    def slow(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        stop.wait(30)

    monkeypatch.setattr(f"scheduler.api.{command}", slow)
    budget = () if command == "frontier" else ("--budget", "5GB")
    status, out, err = run(capsys, command, *EXAMPLE, *budget)
    stop.set()
    assert (status, out, err) == (130, "", "checkpoint-scheduler: interrupted\n")


IGNORING = ("sh", "-c", 'trap "" INT; exec "$@"', "sh")
"""Starts a command with SIGINT ignored, as a shell without job control starts `command &`."""


@pytest.mark.parametrize("before", [(), IGNORING], ids=["", "ignored before"])
def test_an_interrupt_ends_the_process_in_the_middle_of_the_kernel(
    tmp_path: Path, before: tuple[str, ...]
) -> None:
    frontier(COSTS)  # compiles, which is interrupted easily
    costs = tmp_path / "costs.json"
    uneven(400).save(costs)  # its frontier takes minutes
    reader, writer = pty.openpty()
    process = subprocess.Popen(
        [*before, sys.executable, "-m", "scheduler", "frontier", str(costs)],
        stdout=subprocess.PIPE,
        stderr=writer,
        cwd=ROOT,
    )
    os.close(writer)

    def read_until(enough: Callable[[bytes], bool]) -> None:
        seen = b""
        while not enough(seen):
            ready, _, _ = select.select([reader], [], [], 60)
            assert ready, seen
            seen += os.read(reader, 4096)

    try:
        # The seconds go on while the kernel runs: it leaves the interpreter to others.
        read_until(lambda seen: len(set(re.findall(rb"layers: (\d+) s", seen))) > 2)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
        read_until(lambda seen: b"checkpoint-scheduler: interrupted" in seen)
    finally:
        process.kill()
        process.wait()
        os.close(reader)
    assert (process.returncode, out) == (130, b"")


def test_what_was_ignored_is_ignored_again(capsys: Capture) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert run(capsys, "show", *EXAMPLE)[0] == 0
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


# --- what cannot be written ----------------------------------------------------------------------


def test_what_cannot_be_written_is_said_before_solving(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def late(*_: object, **__: object) -> NoReturn:
        raise AssertionError("solved before the output was looked at")

    plan = tmp_path / "plan.json"
    solve(COSTS, budget="5GB").save(plan)
    for name in ("api.solve", "api.frontier", "api.compare", "export.export"):
        monkeypatch.setattr(f"scheduler.{name}", late)
    there = (tmp_path / "no" / "file", f"there is no directory {str(tmp_path / 'no')!r}")
    for path, why in (there, (tmp_path, "it is a directory; name a file in it")):
        for arguments in (
            ("report", str(plan), *EXAMPLE),
            ("export", str(plan), "--to", "torch"),
            ("solve", *EXAMPLE, "--budget", "5GB"),
        ):
            message = refused(capsys, *arguments, "-o", str(path))
            assert f"cannot write {str(path)!r}: {why}" in message


def test_a_dash_is_standard_output(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    plan = solve(COSTS, budget="5GB")
    plan.save("plan.json")
    _, out, _ = run(capsys, "solve", *EXAMPLE, "--budget", "5GB", "-o", "-")
    assert Plan.from_json(out) == plan
    for arguments in (("export", "plan.json", "--to", "torch"), ("report", "plan.json", *EXAMPLE)):
        out = run(capsys, *arguments, "-o", "-")[1]
        assert out == run(capsys, *arguments)[1]
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


def test_looking_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "file"
    check_writable(path)
    assert list(tmp_path.iterdir()) == []
    write_atomically(path, "old")
    check_writable(path)
    check_writable(os.devnull)
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
    assert path.read_text() == "old"
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    check_writable(pipe)  # without waiting for a reader
    for bad in (tmp_path / "no" / "file", tmp_path, path / "under"):
        with pytest.raises(SchedulerError, match="cannot write ") as caught:
            check_writable(bad)
        with pytest.raises(SchedulerError) as other:
            write_atomically(bad, "new")
        assert str(caught.value) == str(other.value)


# --- long chains ---------------------------------------------------------------------------------


def at_once(work: Callable[[], Solution[Items]], seconds: float) -> Solution[Items]:
    assert seconds > 0
    return work()


def in_turns(turns: int) -> Callable[[Callable[[], Solution[Items]], float], Solution[Items]]:
    """Has time for so many."""
    left = [turns]

    def run(work: Callable[[], Solution[Items]], _: float) -> Solution[Items]:
        left[0] -= 1
        if left[0] < 0:
            raise TimeoutError
        return work()

    return run


def test_a_sweep_is_what_the_frontier_says() -> None:
    costs = uneven(40)
    whole = frontier(costs)
    size = read_budget(None, whole.keep_all_peak_bytes * 6 // 10, 0)
    sweep = ChainSweep(costs.to_chain(), at_once, 60)
    comparison = compare_chain(costs, costs.to_chain(), size, optima=sweep.optima)
    assert comparison == compare_chain(costs, costs.to_chain(), size)
    swept = Frontier(costs, costs.to_chain(), sweep.trades())
    assert set(swept.points) <= set(whole.points)
    assert len(swept) >= 7
    assert (sweep.missing, swept.exact) == (0, False)
    assert swept.points_are == "optimal plans of a sweep"
    for budget, time in swept.bounds:
        assert time == [t for peak, t in whole.points if peak <= budget][-1]
    assert swept.keep_all_peak_bytes == whole.keep_all_peak_bytes
    assert swept.keep_all_time == whole.keep_all_time


def test_a_sweep_ends_when_its_time_is_over() -> None:
    costs = uneven(40)
    size = read_budget(None, frontier(costs).keep_all_peak_bytes * 6 // 10, 0)
    everything = compare_chain(costs, costs.to_chain(), size)
    sweep = ChainSweep(costs.to_chain(), in_turns(4), 60)
    comparison = compare_chain(costs, costs.to_chain(), size, optima=sweep.optima)
    swept = Frontier(costs, costs.to_chain(), sweep.trades())
    assert len(sweep.solved) == 4
    assert sweep.missing > 3
    assert comparison.optimal == everything.optimal
    # The larger budgets are there, and of the smaller ones nothing is said.
    peaks = {row.peak_bytes: row.optimal_time_at_peak for row in comparison.rows[:-1]}
    known = [peak for peak, time in peaks.items() if peak is not None and time is not None]
    unknown = [peak for peak, time in peaks.items() if peak is not None and time is None]
    assert known
    assert max(unknown) < min(known)
    assert "–" in str(comparison)
    plan = solve(costs, budget=size.asked)
    root = parsed(swept.picture(plan, comparison))
    assert "optimal plans of a sweep" in root.findtext("{http://www.w3.org/2000/svg}desc", "")
    assert of_class(root, "plan")
    text = plan_report(plan, costs, (swept, comparison), Files("p", " --costs c", "r"))
    assert f"{sweep.missing} smaller budgets were left out for lack of time" in text
    with pytest.raises(TimeoutError):
        compare_chain(
            costs,
            costs.to_chain(),
            size,
            optima=ChainSweep(costs.to_chain(), in_turns(0), 60).optima,
        )


def test_a_plan_that_is_proven_is_not_solved_again() -> None:
    costs = uneven(40)
    size = read_budget(None, frontier(costs).keep_all_peak_bytes * 6 // 10, 0)
    plan = solve(costs, budget=size.asked)
    sweep = ChainSweep(costs.to_chain(), in_turns(0), 60)
    sweep.know_plan(plan, size.available)
    assert (
        compare_chain(costs, costs.to_chain(), size, optima=sweep.optima).optimal.time == plan.time
    )
    other = ChainSweep(costs.to_chain(), in_turns(0), 60)
    unproven = replace(plan, status="feasible", lower_bound_time=plan.lower_bound_time / 2)
    other.know_plan(unproven, size.available)
    assert not other.solved


def test_the_report_of_a_long_chain(capsys: Capture, tmp_path: Path) -> None:
    costs, plan, path = (tmp_path / name for name in ("costs.json", "plan.json", "report.html"))
    layers = [replace(COSTS.layers[1], name=f"h.{i}") for i in range(121)]
    chain = CostGraph((*layers, COSTS.layers[-1]), input_bytes=COSTS.input_bytes)
    chain.save(costs)
    budget = solve(chain, 10**6).keep_all_peak_bytes * 7 // 10
    solve(chain, budget=budget, method="greedy").save(plan)
    command = ("report", str(plan), "--costs", str(costs), "-o", str(path))
    status, _, _ = run(capsys, *command, "--time-limit", "100")
    text = path.read_text(encoding="utf-8")
    assert status == 0
    assert "Each point was solved for its own budget; between two there are more." in text
    assert run(capsys, *command, "--time-limit", "1e-9")[0] == 0
    text = html.unescape(path.read_text(encoding="utf-8"))
    assert text.count("<svg") == 4
    assert (
        "Time against memory and the other methods are left out: the optimum of 122 layers within "
        "the plan's budget was not found in 1e-09 s; give a larger --time-limit."
    ) in text
    status, out, err = run(capsys, *command[:4], "--picture", "curve", "--time-limit", "1e-9")
    assert (status, out) == (4, "")
    assert "give a larger --time-limit" in err
    for option in ("--points", "--threads"):
        assert "is for graphs" in refused(capsys, *command, option, "2")
    assert "positive number of seconds" in refused(capsys, *command, "--time-limit", "0")

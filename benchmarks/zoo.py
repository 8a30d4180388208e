"""Every model that people have, made tiny, and what plans do to it.

For each model of `transformers`, `diffusers` and `timm` that trains a step: `profile` with nothing
named, plans over the whole frontier from the half-way budget on, a step under each: gradients and
state as those of a plain step to the bit, and the measured peak within what was predicted. Then the
same with options. A process for each, random weights, on the CPU.

    PYTHONPATH=. python benchmarks/zoo.py --json zoo.jsonl [--tenth 0] [NAME ...]

What stands in the file is not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import torch

from scheduler import frontier
from scheduler.report.tables import aligned, format_percent
from tests.pytorch.zoo.check import (
    CRASHED,
    LATE,
    OUTCOMES,
    UNTRAINED,
    WORKS,
    DoesNotTrain,
    Result,
    check,
    check_auto,
    said,
    trained,
)
from tests.pytorch.zoo.hub import transformers_entries
from tests.pytorch.zoo.models import Entry
from tests.pytorch.zoo.others import diffusers_entries, timm_entries

JOBS = 2
WITHOUT, WITH, AUTO = "without options", "with options", "auto_checkpoint"


def run(entry: Entry, limit: int, plans: int, ways: list[str]) -> list[dict[str, Any]]:
    """The lines of one model, one for each way to plan."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    about: dict[str, Any] = {"name": entry.name, "kind": entry.kind}
    lines = []
    for way in ways:
        signal.setitimer(signal.ITIMER_PROF, limit)
        begin = time.process_time()
        try:
            make = trained(entry)
            made = make()
            about["class"] = type(made.model).__name__
            about["batch"] = sorted(made.batch) if isinstance(made.batch, dict) else []
            if way == AUTO:
                result = check_auto(make)
            else:
                result = check(make, options=way == WITH, plans=plans)
        except DoesNotTrain as error:
            return [{**about, "way": way, **asdict(Result(UNTRAINED, str(error)))}]
        except Late:
            result = Result(LATE, f"after {limit} s of CPU")
        except Exception as error:
            result = Result(CRASHED, said(error))
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        seconds = round(time.process_time() - begin, 1)
        lines.append({**about, "way": way, "seconds": seconds, **asdict(result)})
    return lines


class Late(BaseException):
    """The time of a model is over."""


def _late(*_: Any) -> None:
    raise Late


def warm_up() -> None:
    """Load what every model needs, so that the forks share it; no backward, whose threads do not.

    A backward here would leave the forks with an autograd engine whose threads are gone.
    """
    for name in ("accelerate", "torch._dynamo"):
        import_module(name)
    layer = {"forward_time": 1.0, "backward_time": 2.0, "output_bytes": 8, "saved_bytes": 64}
    options = [{"name": "less", "saved_bytes": 8, "recompute_time": 0.5}]
    frontier([layer] * 4)
    frontier([{**layer, "options": options}] * 4)


def run_all(todo: list[Entry], file: Path, args: argparse.Namespace) -> None:
    """Run models, each in a fork of this process, and add their lines to the file."""
    running: dict[int, Entry] = {}
    todo = list(todo)
    left = len(todo)
    with file.open("a", encoding="utf-8") as out:
        while todo or running:
            while todo and len(running) < args.jobs:
                entry = todo.pop(0)
                pid = os.fork()
                if pid == 0:
                    _child(entry, out, args)
                running[pid] = entry
            pid, status = os.wait()
            entry = running.pop(pid)
            left -= 1
            if status:
                outcome = LATE if os.WTERMSIG(status) == signal.SIGKILL else CRASHED
                about = {"name": entry.name, "kind": entry.kind, "way": args.ways[0]}
                died = Result(outcome, f"the process died with status {status}")
                out.write(json.dumps({**about, **asdict(died)}) + "\n")
                out.flush()
            print(f"{left} left, {entry.name}", file=sys.stderr, flush=True)


def _child(entry: Entry, out: Any, args: argparse.Namespace) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    signal.signal(signal.SIGPROF, _late)
    hard = 3 * args.limit  # in a kernel that no signal interrupts
    resource.setrlimit(resource.RLIMIT_CPU, (hard, hard))
    lines = run(entry, args.limit, args.plans, args.ways)
    out.write("".join(json.dumps(line) + "\n" for line in lines))
    out.flush()
    os._exit(0)


def table(lines: list[dict[str, Any]]) -> str:
    """How many models of each kind came to which outcome, and the worst predictions by name."""
    counted = [line for line in lines if line["outcome"] != UNTRAINED]
    text = []
    for way in (WITHOUT, WITH, AUTO):
        mine = [line for line in counted if line["way"] == way]
        if not mine:
            continue
        kinds = sorted({line["kind"] for line in mine})
        seen = Counter((line["kind"], line["outcome"]) for line in mine)
        rows = [[way, "all", *OUTCOMES]]
        for kind in kinds:
            row = [seen[kind, outcome] for outcome in OUTCOMES]
            rows.append([kind, str(sum(row)), *(str(n or "–") for n in row)])
        total = [sum(seen[kind, outcome] for kind in kinds) for outcome in OUTCOMES]
        rows.append(["all", str(sum(total)), *(str(n or "–") for n in total)])
        text += [*aligned(rows, left=1), "", *_predictions(mine), ""]
    untrained = sum(line["outcome"] == UNTRAINED for line in lines)
    types = {line["name"] for line in counted}
    text.append(f"{len(types)} models; {untrained} more do not train a step and are not counted.")
    return "\n".join(text)


def _predictions(lines: list[dict[str, Any]]) -> list[str]:
    rows = [
        (row["predicted"] / row["measured"] - 1, line["name"])
        for line in lines
        for row in line["rows"]
    ]
    if not rows:
        return []
    exact = sum(error == 0 for error, _ in rows)
    near = sum(abs(error) <= 0.01 for error, _ in rows)
    worst: dict[str, float] = {}
    for error, name in sorted(rows, key=lambda row: -abs(row[0])):
        worst.setdefault(name, error)
    named = ", ".join(f"{n} {100 * e:+.2f}%" for n, e in list(worst.items())[:12])
    return [
        f"{len(rows)} plans: {exact} exact, {format_percent(near / len(rows))} within 1 %, median "
        f"{format_percent(median(abs(error) for error, _ in rows))}, "
        f"{sum(error < 0 for error, _ in rows)} below the measurement.",
        f"Worst: {named}.",
    ]


def problems(lines: list[dict[str, Any]]) -> str:
    """Everything that did not work, one line each."""
    return "\n".join(
        f"{line['name']} ({line.get('class', '?')}, {line['way']}): "
        f"{line['outcome']}: {line['detail']}"
        for line in sorted(lines, key=lambda line: (line["outcome"], line["name"]))
        if line["outcome"] not in (WORKS, UNTRAINED)
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was asked for and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", metavar="NAME", help="parts of names; default all")
    parser.add_argument("--json", type=Path, default=Path("zoo.jsonl"), metavar="FILE")
    parser.add_argument("--tenth", type=int, choices=range(10), help="a fixed tenth of them")
    parser.add_argument(
        "--limit", type=int, default=60, metavar="SECONDS", help="of CPU, for one model"
    )
    parser.add_argument("--plans", type=int, default=6, help="of each frontier that are run")
    parser.add_argument("--jobs", type=int, default=JOBS, help="processes at a time")
    parser.add_argument("--no-options", action="store_true")
    parser.add_argument("--auto", action="store_true", help="auto_checkpoint, and nothing else")
    args = parser.parse_args(arguments)
    args.ways = [AUTO] if args.auto else [WITHOUT, WITH][: 1 + (not args.no_options)]
    warm_up()
    known = _read(args.json)
    done = {line["name"] for line in known if line["way"] in args.ways}
    wanted = [
        entry
        for entry in (*transformers_entries(), *diffusers_entries(), *timm_entries())
        if (not args.names or any(name in entry.name for name in args.names))
        and (args.tenth is None or entry.in_tenth(args.tenth))
    ]
    run_all([entry for entry in wanted if entry.name not in done], args.json, args)
    names = {entry.name for entry in wanted}
    lines = [line for line in _read(args.json) if line["name"] in names]
    print(table(lines))
    print()
    print(problems(lines))
    return 0


def _read(file: Path) -> list[dict[str, Any]]:
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


if __name__ == "__main__":
    sys.exit(main())

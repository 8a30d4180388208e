"""The one definition of what a pipeline takes: its stages run, microbatch by microbatch.

Each microbatch on a stage is a replay of the stage's chain, and what the runtime holds beside it: a
buffer for the gradient of the last output, in forwards; that output, while it is in flight.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from solvers.pipeline.problem import Pipeline
from solvers.schedule import Backward, IllegalPlan, Item, Items, Keep


@dataclass(frozen=True, slots=True)
class Run:
    """One forward or backward of a microbatch on a stage.

    Attributes
    ----------
    kind, microbatch
        As in an `Order`.
    start, end
        In the problem's unit of time.
    peak_bytes, after_bytes
        Bytes on the stage's device at most, and once it is over.
    """

    kind: str
    microbatch: int
    start: float
    end: float
    peak_bytes: int
    after_bytes: int


@dataclass(frozen=True, slots=True)
class StageReplay:
    """What one stage does in a step: its runs in order."""

    runs: tuple[Run, ...]

    @property
    def peak_bytes(self) -> int:
        """Bytes on its device at most."""
        return max(run.peak_bytes for run in self.runs)

    @property
    def times(self) -> tuple[float, float]:
        """Of the forward and the backward of one microbatch."""
        ahead, back = (next(run for run in self.runs if run.kind == kind) for kind in "FB")
        return ahead.end - ahead.start, back.end - back.start


@dataclass(frozen=True, slots=True)
class _Phase:
    """One microbatch's forward or backward alone: time, its peak, what it leaves."""

    time: int
    peak: int
    after: int


def replay(
    pipeline: Pipeline, cuts: Sequence[int], plans: Sequence[Sequence[Item]]
) -> tuple[StageReplay, ...]:
    """Run one step, in the order of each stage, as soon as what it waits for is there.

    Parameters
    ----------
    pipeline
        The problem.
    cuts
        First layer of each stage, and the number of layers.
    plans
        Of each stage, its layers counted from 0.

    Raises
    ------
    IllegalPlan
        A plan cannot be executed, or a stage waits for ever.
    """
    phases = []
    for first, end, items in zip(cuts[:-1], cuts[1:], plans, strict=True):
        phases.append(_phases(pipeline, first, end - 1, tuple(items)))
    times = _times(pipeline, [(ahead.time, back.time) for ahead, back in phases])
    stages = []
    for s, (order, (ahead, back)) in enumerate(zip(pipeline.orders, phases, strict=True)):
        live = pipeline.outside(s, cuts[s], cuts[s + 1] - 1)
        runs = []
        for kind, m in order:
            phase = ahead if kind == "F" else back
            # What this microbatch holds is part of what its backward counts.
            others = live if kind == "F" else live - ahead.after
            live = others + phase.after
            start = times[kind, m, s]
            end = start + phase.time
            runs.append(Run(kind, m, start, end, others + phase.peak, live))
        stages.append(StageReplay(tuple(runs)))
    return tuple(stages)


def _phases(
    pipeline: Pipeline, first: int, last: int, items: tuple[Item, ...]
) -> tuple[_Phase, _Phase]:
    """Forward and backward of one microbatch, without what is outside and the stage's input."""
    chain, runtime = pipeline.stage_chain(first, last), pipeline.runtime
    top = last - first
    moments = chain.replay(Items((*items, Keep(top + 1)))).moments
    split = next(i for i, each in enumerate(moments) if isinstance(each.action, Backward))
    output, lone = chain.layers[top].output_bytes, chain.input_bytes
    kept = items[-1]  # what of the last layer is held, where that is its output
    saved = isinstance(kept, Keep) and next(
        way.output_saved for way in chain.ways[top] if way.option == kept.option
    )
    held = output if runtime.output_held else 0
    buffer = output if runtime.gradient_buffer_in_forward else 0
    beside = 0 if saved else held  # until the last layer lets it go
    left = _Phase(
        sum(each.ticks for each in moments[:split]),
        max(each.during_bytes for each in moments[:split]) - lone + buffer,
        moments[split - 1].after_bytes - lone + beside,
    )
    peak = 0
    for each in moments[split:]:
        peak = max(peak, each.during_bytes - lone + beside)
        if isinstance(each.action, Backward) and each.action.layer == top:
            beside = held
    return left, _Phase(sum(each.ticks for each in moments[split:]), peak, 0)


def _times(
    pipeline: Pipeline, phases: Sequence[tuple[int, int]]
) -> dict[tuple[str, int, int], int]:
    """When each forward and backward starts, by kind, microbatch and stage."""
    starts: dict[tuple[str, int, int], int] = {}
    ends: dict[tuple[str, int, int], int] = {}
    waiting = {s: _runs(pipeline, s) for s in range(pipeline.stages)}
    upcoming = {s: next(runs) for s, runs in waiting.items()}
    clock = [0] * pipeline.stages
    while upcoming:
        ready = [s for s, (_, needs) in upcoming.items() if needs is None or needs in ends]
        if not ready:
            s, ((kind, m, _), _) = next(iter(upcoming.items()))
            raise IllegalPlan(f"stage {s} waits for ever before {kind}{m}")
        for s in ready:
            run, needs = upcoming[s]
            clock[s] = max(clock[s], 0 if needs is None else ends[needs])
            if needs is not None and needs[2] != s:
                clock[s] = max(clock[s], ends[needs] + pipeline.communication_time)
            starts[run] = clock[s]
            clock[s] += phases[s][run[0] == "B"]
            ends[run] = clock[s]
            following = next(waiting[s], None)
            if following is None:
                del upcoming[s]
            else:
                upcoming[s] = following
    return starts


def _runs(
    pipeline: Pipeline, s: int
) -> Iterator[tuple[tuple[str, int, int], tuple[str, int, int] | None]]:
    """Of stage `s` in order what it runs, and what that waits for on the stage beside it."""
    for kind, m in pipeline.orders[s]:
        if kind == "F":
            yield (kind, m, s), (kind, m, s - 1) if s else None
        else:
            above = (kind, m, s + 1) if s + 1 < pipeline.stages else ("F", m, s)
            yield (kind, m, s), above

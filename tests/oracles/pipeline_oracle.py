"""What a pipeline's plans cost, and the least time of all of them, from the meaning alone.

Nothing here may use `solvers.pipeline` or `solvers.chain`: every stage does its forwards and
backwards tensor by tensor, all microbatches of a step, and every cut with every nested plan is
tried. Slow and plain on purpose.

A case is an instance of `tests/data/pipelines_reference.json`; its options go by their `name` or
else their number ("0" the first). The plan of a stage speaks of layers by their place in the whole
chain. A stage of layers first .. t holds

- `state_bytes` of its layers, all the time;
- its input, a_{first-1}: buffers for all microbatches from the start (`input_buffers` "all"), or
  one from the forward to the end of the backward ("flight"). Stage 0 too: the chain's input;
- with `gradient_buffer_in_forward`, d_t while there is a forward: one buffer, not one a microbatch.
  In a backward it is d_t itself, which goes when layer t's backward is done. Without the flag d_t
  comes when a backward starts. The last stage too: one stage alone is then a chain;
- with `output_held`, a_t from the forward to the end of that microbatch's whole backward, on the
  last stage too. Without it a_t goes when the forward is done, unless W_t holds it;
- d_{first-1} from its making by layer `first` to the end of the backward, stage 0 too.

So with k microbatches in flight at most, K what one holds between forward and backward, and W the
peak of one alone, both without the stage's input, the peak is

    sum of state_bytes + (M or k) x_{first-1} + (k - 1) K + W

The 200 instances settle all of this but two things, which make no difference there: the gradient's
buffer during forwards of the last stage, and the fresh output of a layer that saves it under an
option that does not, counted here in its backward as `tests/oracles/oracle.py` does.

The forwards of a stage cost f, its last layer's too; the one that ends a body costs r. Sends take
`communication_time` on every arc between two stages and occupy neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations, pairwise
from random import Random
from typing import Any, NamedTuple

from solvers.schedule import Checkpoint, Item, Keep

Case = dict[str, Any]
Level = tuple[Item, ...]
Action = tuple[str, int]
"""Forward or backward ("F", "B") of a microbatch."""


class Front(NamedTuple):
    """A stage's forward time and the pairs (peak, backward time) that no plan beats."""

    forward_time: int
    points: list[tuple[int, int]]


@dataclass
class Memory:
    """Tensors by name, how many hold each of them, and the most that was ever live."""

    sizes: dict[str, int] = field(default_factory=dict)
    holds: dict[str, int] = field(default_factory=dict)
    live: int = 0  # their sum
    made: int = 0
    peak: int = 0

    def make(self, what: str, size: int) -> str:
        self.made += 1
        name = f"{what} ({self.made})"  # a recomputed activation is another tensor
        self.sizes[name] = size
        self.holds[name] = 1
        self.live += size
        self.on_top(0)
        return name

    def hold(self, name: str) -> str:
        self.holds[name] += 1
        return name

    def let_go(self, name: str) -> None:
        self.holds[name] -= 1
        if not self.holds[name]:
            del self.holds[name]
            self.live -= self.sizes.pop(name)

    def on_top(self, size: int) -> None:
        self.peak = max(self.peak, self.live + size)


class Stage:
    """A stage at work: `forward` and `backward` of a level of its plan add to memory and time."""

    def __init__(self, case: Case) -> None:
        self.layers: list[dict[str, Any]] = case["layers"]
        self.input_bytes: int = case["input_bytes"]
        self.memory = Memory()
        self.time = 0

    def x(self, i: int) -> int:
        size: int = self.layers[i]["output_bytes"] if i >= 0 else self.input_bytes
        return size

    def forward(self, level: Level, source: str, is_body: bool) -> tuple[list[Any], str]:
        """What each item holds for its backward, and the output, which the sweep still holds."""
        memory = self.memory
        current = memory.hold(source)
        held: list[Any] = []
        for item in level:
            if isinstance(item, Checkpoint):
                held.append(memory.hold(current))
                for i in range(item.first, item.last + 1):
                    memory.on_top(self.x(i) + self.layers[i]["drop_transient_bytes"])
                    output = memory.make(f"a{i}", self.x(i))
                    memory.let_go(current)
                    current = output
                    self.time += self.layers[i]["forward_time"]
                continue
            i, layer = item.layer, self.layers[item.layer]
            way = layer | (options(layer)[item.option] if item.option is not None else {})
            memory.on_top(self.x(i) + way["saved_bytes"] + way["forward_transient_bytes"])
            output = memory.make(f"a{i}", self.x(i))
            mine = [memory.make(f"W{i}", way["saved_bytes"])]
            if way["input_saved"]:
                mine.append(memory.hold(current))
            if way["output_saved"]:
                mine.append(memory.hold(output))
            held.append(mine)
            memory.let_go(current)
            current = output
            early = is_body and item is level[-1]
            self.time += layer["recompute_time" if early else "forward_time"]
        return held, current

    def backward(self, level: Level, held: list[Any], gradient: str) -> str:
        """The gradient of the level's input; `gradient`, that of its output, is let go."""
        memory = self.memory
        for item, mine in zip(reversed(level), reversed(held), strict=True):
            if isinstance(item, Checkpoint):
                inner, output = self.forward(item.body, mine, True)
                memory.let_go(output)
                gradient = self.backward(item.body, inner, gradient)
                memory.let_go(mine)
                continue
            i, layer = item.layer, self.layers[item.layer]
            if item.option is not None:
                option = options(layer)[item.option]
                self.time += option["recompute_time"]
                mine.append(memory.make(f"W{i}", layer["saved_bytes"] - option["saved_bytes"]))
                if layer["output_saved"] and not option["output_saved"]:
                    mine.append(memory.make(f"a{i}", self.x(i)))
            memory.on_top(self.x(i - 1) + layer["backward_transient_bytes"])
            below = memory.make(f"d{i - 1}", self.x(i - 1))
            for name in [*mine, gradient]:
                memory.let_go(name)
            gradient = below
            self.time += layer["backward_time"]
        return gradient


def options(layer: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {option.get("name", str(n)): option for n, option in enumerate(layer["options"])}


def order(case: Case, stage: int) -> list[Action]:
    """1F1B with `stages - stage` microbatches in flight, as torch does it, or GPipe."""
    microbatches: int = case["microbatches"]
    k = microbatches
    if case["schedule"] == "1f1b":
        k = min(k, case["stages"] - stage)
    actions: list[Action] = [("F", m) for m in range(k)]
    for m in range(microbatches):
        actions.append(("B", m))
        if m + k < microbatches:
            actions.append(("F", m + k))
    return actions


def replay(
    case: Case, first: int, last: int, level: Level, actions: Sequence[Action]
) -> tuple[int, dict[Action, int]]:
    """The peak of a stage of layers `first` .. `last` that does `actions`, and each one's time."""
    stage = Stage(case)
    memory, runtime = stage.memory, case["runtime"]
    ahead, output_held = runtime["gradient_buffer_in_forward"], runtime["output_held"]
    memory.make("state", sum(la["state_bytes"] for la in case["layers"][first : last + 1]))
    inputs: dict[int, str] = {}
    if runtime["input_buffers"] == "all":
        inputs = {m: memory.make("input", stage.x(first - 1)) for m in {m for _, m in actions}}
    held: dict[int, list[Any]] = {}
    outputs: dict[int, str] = {}
    gradients: list[str] = []
    times: dict[Action, int] = {}
    for kind, m in actions:
        stage.time = 0
        if not gradients and (ahead or kind == "B"):
            gradients.append(memory.make("gradient", stage.x(last)))
        if kind == "F":
            if m not in inputs:
                inputs[m] = memory.make("input", stage.x(first - 1))
            held[m], outputs[m] = stage.forward(level, inputs[m], False)
            if not output_held:
                memory.let_go(outputs.pop(m))
        else:
            memory.let_go(stage.backward(level, held.pop(m), gradients.pop()))
            if output_held:
                memory.let_go(outputs.pop(m))
            if runtime["input_buffers"] == "flight":
                memory.let_go(inputs.pop(m))
        times[kind, m] = stage.time
    # Nothing of a microbatch outlives it.
    assert len(memory.sizes) == 1 + len(inputs)
    return memory.peak, times


def makespan(case: Case, times: Sequence[dict[Action, int]]) -> int:
    """When the last action ends: each starts when what it waits for, and the one before, are done.

    `times` are those of the stages' actions, in the stages' own order.
    """
    ends: dict[tuple[str, int, int], int] = {}
    now = [0] * len(times)
    todo = [list(actions) for actions in times]
    while any(todo):
        before = len(ends)
        for s, actions in enumerate(todo):
            while actions:
                kind, m = actions[0]
                other = s - 1 if kind == "F" else s + 1
                if other == len(times):
                    ready = ends.get(("F", m, s))
                elif other < 0:
                    ready = 0
                elif (ready := ends.get((kind, m, other))) is not None:
                    ready += case["communication_time"]
                if ready is None:
                    break
                now[s] = ends[kind, m, s] = max(now[s], ready) + times[s][actions.pop(0)]
        assert len(ends) > before, "every stage waits for another"
    return max(now)


def machine(case: Case, cuts: Sequence[int], plans: Sequence[Level]) -> tuple[list[int], int]:
    """The peak of every stage and the time of a step; `cuts` begins with 0 and ends with L."""
    peaks, times = [], []
    for s, ((first, end), level) in enumerate(zip(pairwise(cuts), plans, strict=True)):
        peak, durations = replay(case, first, end - 1, level, order(case, s))
        peaks.append(peak)
        times.append(durations)
    return peaks, makespan(case, times)


def every_plan(case: Case, first: int, last: int) -> list[Level]:
    """Every nested plan of a stage; no body is one checkpoint of its very own layers."""

    @cache
    def bodies(s: int, t: int) -> list[Level]:
        names = [None, *options(case["layers"][s])]
        made: list[Level] = [(Keep(s, name), *rest) for name in names for rest in levels(s + 1, t)]
        for j in range(s, t):
            heads = [Checkpoint(s, j, body) for body in bodies(s, j)]
            made += [(head, *rest) for head in heads for rest in levels(j + 1, t)]
        return made

    @cache
    def levels(s: int, t: int) -> list[Level]:
        if s > t:
            return [()]
        return bodies(s, t) + [(Checkpoint(s, t, body),) for body in bodies(s, t)]

    return levels(first, last)


def front(case: Case, first: int, last: int, actions: Sequence[Action]) -> Front:
    """All that plans of layers `first` .. `last` can do as a stage with these actions."""
    forward, pairs = 0, set()
    for level in every_plan(case, first, last):
        peak, times = replay(case, first, last, level, actions)
        forward, backward = times["F", 0], times["B", 0]
        assert set(times.values()) == {forward, backward}
        pairs.add((peak, backward))
    points: list[tuple[int, int]] = []
    for peak, backward in sorted(pairs):
        if not points or backward < points[-1][1]:
            points.append((peak, backward))
    return Front(forward, points)


def least_time(case: Case) -> int | None:
    """The least time of a step over all cuts and plans within the budgets; None: nothing fits.

    Every stage takes its least backward time, for no end of an action comes later by a shorter one.
    """
    count, stages = len(case["layers"]), case["stages"]

    @cache
    def times(s: int, first: int, last: int) -> dict[Action, int] | None:
        found = front(case, first, last, order(case, s))
        fits = [backward for peak, backward in found.points if peak <= case["budgets"][s]]
        if not fits:
            return None
        each = {"F": found.forward_time, "B": min(fits)}
        return {action: each[action[0]] for action in order(case, s)}

    spans: list[int] = []
    for inner in combinations(range(1, count), stages - 1):
        cuts = (0, *inner, count)
        of_stages = [times(s, a, b - 1) for s, (a, b) in enumerate(pairwise(cuts))]
        possible = [each for each in of_stages if each is not None]
        if len(possible) == stages:
            spans.append(makespan(case, possible))
    return min(spans, default=None)


def random_case(seed: int, most_layers: int = 5, stages: int | None = None) -> Case:
    """A case in the reference's form, whose budgets are those of some plan, or a little less."""
    draw = Random(seed)
    n = draw.randint(stages or 2, max(most_layers, stages or 2))
    count = stages or draw.randint(2, min(3, n))
    case: Case = {
        "layers": [_layer(draw) for _ in range(n)],
        "input_bytes": draw.randint(0, 9),
        "stages": count,
        "microbatches": draw.randint(1, 6),
        "budgets": [],
        "schedule": draw.choice(("1f1b", "gpipe")),
        "communication_time": draw.choice((0, 0, 1, 4)),
        "runtime": {
            "output_held": draw.random() < 0.6,
            "gradient_buffer_in_forward": draw.random() < 0.6,
            "input_buffers": draw.choice(("all", "flight")),
        },
    }
    cuts = (0, *sorted(draw.sample(range(1, n), count - 1)), n)
    plans = [random_plan(case, a, b - 1, draw) for a, b in pairwise(cuts)]
    peaks, _ = machine(case, cuts, plans)
    less = draw.choice((0, 0, 0, 1, 3))
    case["budgets"] = [max(peaks)] * count if draw.random() < 0.3 else [p - less for p in peaks]
    return case


def random_plan(case: Case, first: int, last: int, draw: Random) -> Level:
    """A nested plan of a stage, any option and depth."""
    if first > last:
        return ()
    end = draw.randint(first, last)
    head: Item = Keep(first, draw.choice([None, *options(case["layers"][first])]))
    if draw.random() < 0.5:
        end = first
    elif end > first:
        middle = draw.randint(first, end - 1)
        below = random_plan(case, first, middle, draw)
        head = Checkpoint(first, end, below + random_plan(case, middle + 1, end, draw))
    else:
        head = Checkpoint(first, end, (head,))
    return (head, *random_plan(case, end + 1, last, draw))


def _layer(draw: Random) -> dict[str, Any]:
    saved, forward = draw.randint(0, 30), draw.randint(1, 9)
    layer: dict[str, Any] = {
        "forward_time": forward,
        "backward_time": draw.randint(1, 15),
        "recompute_time": draw.randint(0, forward),
        "output_bytes": draw.randint(0, 9),
        "saved_bytes": saved,
        "forward_transient_bytes": draw.randint(0, draw.choice((5, 5, 50))),
        "drop_transient_bytes": draw.randint(0, draw.choice((8, 8, 50))),
        "backward_transient_bytes": draw.randint(0, draw.choice((6, 6, 50))),
        "input_saved": draw.random() < 0.5,
        "output_saved": draw.random() < 0.5,
        "state_bytes": draw.randint(0, 10),
        "options": [],
    }
    if draw.random() < 0.3:
        option = {"saved_bytes": draw.randint(0, saved), "recompute_time": draw.randint(0, 4)}
        for flag in ("input_saved", "output_saved"):
            option[flag] = draw.random() < 0.5
        layer["options"].append(option)
    return layer

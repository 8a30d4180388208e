"""Schedules on graphs, written a second time from DESIGN §4 and §7 alone.

Nothing here may use the graphs' own `replay` or a solver: agreement with them counts only because
the two were written apart. Slow and plain on purpose.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from solvers.graph.problem import ComputeGraph, LayerGraph
from solvers.graph.schedule import LayerAction
from solvers.schedule import Backward, Forward

Held = tuple[frozenset[int], frozenset[int]]
"""Live outputs and live saved sets."""


class Illegal(Exception):
    """The schedule cannot run."""


@dataclass(frozen=True)
class Outcome:
    peak: int
    time: int
    during: list[int]


def check(condition: bool) -> None:
    if not condition:
        raise Illegal


def last_uses(runs: Sequence[tuple[int | None, Sequence[int]]]) -> list[tuple[int, int, int]]:
    """Every copy as (value, step that makes it, step of its last use).

    `runs` says of each step what value it makes and what values it reads. A read is of the newest
    copy; a copy that nobody reads is gone after the step that makes it.
    """
    copies: list[tuple[int, int, int]] = []
    for step, (_, reads) in enumerate(runs):
        for read in reads:
            check(any(made == read for made, _ in runs[:step]))
    for start, (value, _) in enumerate(runs):
        if value is None:
            continue
        end = start
        for step in range(start + 1, len(runs)):
            if value in runs[step][1]:
                end = step
            if runs[step][0] == value:
                break
        copies.append((value, start, end))
    return copies


def simulate_schedule(graph: ComputeGraph, schedule: Sequence[int]) -> Outcome:
    n = len(graph.nodes)
    check(all(0 <= v < n for v in schedule) and set(schedule) == set(range(n)))
    runs = [(v, [u for u, w in graph.edges if w == v]) for v in schedule]
    copies = last_uses(runs)
    during = [
        sum(graph.nodes[v].bytes for v, start, end in copies if start <= step <= end)
        for step in range(len(schedule))
    ]
    return Outcome(max(during), sum(graph.nodes[v].time for v in schedule), during)


def simulate_actions(graph: LayerGraph, actions: Sequence[LayerAction]) -> Outcome:
    n, layers = len(graph.layers), graph.layers
    check(all(0 <= action.layer < n for action in actions))
    inputs = [[u for u, w in graph.edges if w == i] for i in range(n)]
    readers = [[w for u, w in graph.edges if u == i] for i in range(n)]
    backward: dict[int, int] = {}
    for step, action in enumerate(actions):
        if isinstance(action, Backward):
            check(action.layer not in backward)
            backward[action.layer] = step
    check(set(backward) == set(range(n)))
    kept: dict[int, int] = {}
    for step, action in enumerate(actions):
        if isinstance(action, Forward):
            check(step < backward[action.layer])
            if not layers[action.layer].recomputable:
                check(all(a.layer != action.layer for a in actions[:step]))
            if action.keep:
                check(action.layer not in kept)
                kept[action.layer] = step
    for i in range(n):
        check(i in kept and all(backward[j] < backward[i] for j in readers[i]))
    runs: list[tuple[int | None, list[int]]] = []
    for action in actions:
        i = action.layer
        if isinstance(action, Forward):
            runs.append((i, inputs[i]))
        else:
            saved = inputs[i] if layers[i].input_saved else []
            runs.append((None, [*saved, i] if layers[i].output_saved else saved))
    copies = last_uses(runs)
    during = []
    for step, action in enumerate(actions):
        i, layer = action.layer, layers[action.layer]
        live = graph.input_bytes
        live += sum(layers[u].output_bytes for u, start, end in copies if start <= step <= end)
        live += sum(layers[u].saved_bytes for u in range(n) if kept[u] <= step <= backward[u])
        for u in range(n):
            allocated = any(backward[j] < step for j in readers[u]) or not readers[u]
            if allocated and step <= backward[u]:
                live += layers[u].output_bytes  # its gradient
            if backward[u] < step:
                live += layers[u].gradient_bytes
        if any(backward[u] < step for u in range(n) if not inputs[u]):
            live += graph.input_bytes  # its gradient
        if isinstance(action, Backward):
            new = sum(layers[u].output_bytes for u in inputs[i]) if inputs[i] else graph.input_bytes
            live += new + layer.gradient_bytes
            live += layer.backward_transient_bytes - layer.backward_overlap_bytes
        else:
            live += layer.forward_transient_bytes if action.keep else layer.drop_transient_bytes
        during.append(live)
    time = sum(
        layers[a.layer].forward_time if isinstance(a, Forward) else layers[a.layer].backward_time
        for a in actions
    )
    return Outcome(max(during), time, during)


@dataclass(frozen=True)
class Operation:
    """A node of a compute graph; the forward or the backward of a layer."""

    layer: int
    backward: bool
    repeatable: bool


class Machine:
    """Either kind of graph as operations in the given order, run on what is held."""

    def __init__(self, graph: ComputeGraph | LayerGraph, budget: int) -> None:
        self.graph, self.budget = graph, budget
        n = self.n = len(graph)
        self.inputs = [frozenset(u for u, w in graph.edges if w == i) for i in range(n)]
        self.readers = [frozenset(w for u, w in graph.edges if u == i) for i in range(n)]
        if isinstance(graph, ComputeGraph):
            self.operations = [Operation(v, graph.nodes[v].backward, True) for v in range(n)]
        else:
            forwards = [Operation(i, False, graph.layers[i].recomputable) for i in range(n)]
            backwards = [Operation(i, True, False) for i in reversed(range(n))]
            self.operations = forwards + backwards

    def run(self, o: int, held: Held, ran: frozenset[int]) -> Iterator[tuple[Held, int]]:
        """What may be held after operation `o`, if it may run, and its time.

        `ran` are the operations that have run before. Nothing is dropped yet: that is free.
        """
        outputs, saved = held
        operation = self.operations[o]
        i = operation.layer
        if o in ran and not operation.repeatable:
            return
        if isinstance(self.graph, ComputeGraph):
            nodes = self.graph.nodes
            outputs = outputs - {i}
            used = sum(nodes[u].bytes for u in outputs) + nodes[i].bytes
            if self.inputs[i] <= outputs and used <= self.budget:
                yield (outputs | {i}, saved), nodes[i].time
            return
        layers, layer = self.graph.layers, self.graph.layers[i]
        gone = {self.operations[p].layer for p in ran if self.operations[p].backward}
        resident = self._resident(gone) + sum(layers[u].saved_bytes for u in saved)
        if operation.backward:
            needs = self.inputs[i] if layer.input_saved else frozenset()
            needs = needs | {i} if layer.output_saved else needs
            used = resident + sum(layers[u].output_bytes for u in outputs)
            used += sum(layers[u].output_bytes for u in self.inputs[i])
            used += 0 if self.inputs[i] else self.graph.input_bytes
            used += layer.gradient_bytes
            used += layer.backward_transient_bytes - layer.backward_overlap_bytes
            if i in saved and needs <= outputs and self.readers[i] <= gone and used <= self.budget:
                yield (outputs, saved - {i}), layer.backward_time
            return
        outputs = outputs - {i}
        used = resident + sum(layers[u].output_bytes for u in outputs) + layer.output_bytes
        if i in gone or not self.inputs[i] <= outputs:
            return
        if used + layer.drop_transient_bytes <= self.budget:
            yield (outputs | {i}, saved), layer.forward_time
        keeping = used + layer.saved_bytes + layer.forward_transient_bytes
        if i not in saved and keeping <= self.budget:
            yield (outputs | {i}, saved | {i}), layer.forward_time

    def _resident(self, gone: set[int]) -> int:
        """Bytes of inputs and gradients when the backwards of `gone` have run."""
        assert isinstance(self.graph, LayerGraph)
        total = self.graph.input_bytes
        for i, layer in enumerate(self.graph.layers):
            if i in gone:
                total += layer.gradient_bytes
            elif not self.readers[i] or self.readers[i] & gone:
                total += layer.output_bytes
        if any(not self.inputs[i] for i in gone):
            total += self.graph.input_bytes
        return total


def relax(costs: dict[Held, int], held: Held, cost: int) -> bool:
    if costs.get(held, cost + 1) <= cost:
        return False
    costs[held] = cost
    return True


def with_drops(costs: dict[Held, int]) -> dict[Held, int]:
    """The states, and all that come of them by dropping outputs. Saved sets cannot be dropped."""
    result: dict[Held, int] = {}
    todo = list(costs.items())
    while todo:
        (outputs, saved), cost = todo.pop()
        if relax(result, (outputs, saved), cost):
            todo += [((outputs - {u}, saved), cost) for u in outputs]
    return result


def best_staged(
    graph: ComputeGraph | LayerGraph, budget: int, forward_only: bool = False
) -> int | None:
    """Least time in class staged, or forward; None: nothing fits.

    Stage t ends with the first run of operation t; before it, any operations before t run again,
    in their order, each at most once. `forward_only`: none of the backward part, and only where t
    is of the backward part.
    """
    machine = Machine(graph, budget)
    nothing: frozenset[int] = frozenset()
    costs: dict[Held, int] = {(nothing, nothing): 0}
    for t, operation in enumerate(machine.operations):
        ran = frozenset(range(t))
        for k in range(t + 1):
            earlier = machine.operations[k]
            if k < t and forward_only and (earlier.backward or not operation.backward):
                continue
            after = {} if k == t else dict(costs)
            for held, cost in costs.items():
                for new, time in machine.run(k, held, ran):
                    relax(after, new, cost + time)
            costs = with_drops(after)
    return min(costs.values(), default=None)


def best_any(
    graph: ComputeGraph | LayerGraph, budget: int, first_in_order: bool = False
) -> int | None:
    """Least time of all schedules; `first_in_order`: of those whose first runs are in order."""
    machine = Machine(graph, budget)
    everything = range(len(machine.operations))
    nothing: frozenset[int] = frozenset()
    # By operations run at all, fewest first: within one of them, until nothing improves.
    layers: dict[frozenset[int], dict[Held, int]] = {nothing: {(nothing, nothing): 0}}
    for size in range(len(everything)):
        for ran in [ran for ran in layers if len(ran) == size]:
            costs = settle(machine, ran, layers.pop(ran))
            for o in everything:
                if o in ran or (first_in_order and o != size):
                    continue
                for held, cost in costs.items():
                    for new, time in machine.run(o, held, ran):
                        relax(layers.setdefault(ran | {o}, {}), new, cost + time)
    return min(layers.get(frozenset(everything), {}).values(), default=None)


def settle(machine: Machine, ran: frozenset[int], costs: dict[Held, int]) -> dict[Held, int]:
    """The states that repeats of what has run and drops lead to."""
    costs = with_drops(costs)
    todo = list(costs)
    while todo:
        held = todo.pop()
        for o in ran:
            for new, time in machine.run(o, held, ran):
                for state, cost in with_drops({new: costs[held] + time}).items():
                    if relax(costs, state, cost):
                        todo.append(state)
    return costs

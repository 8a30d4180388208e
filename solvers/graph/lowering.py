"""Lowering: compute graphs and layer graphs as one list of operations that make values.

A compute graph's node is an operation that makes its output. A layer i is two operations: its
forward makes a_i and, if asked, the saved set W_i in the same run; its backward needs W_i, the
inputs and the output that it saves, and d_i, and adds into d_u of each input u. Backwards run
once, in the reverse order of the layers, so what gradients occupy is known beforehand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from solvers.graph.problem import ComputeGraph, Graph, LayerGraph
from solvers.graph.schedule import Actions, GraphSchedule, LayerAction, Nodes
from solvers.schedule import Backward, Compute, Forward
from solvers.solution import PlanClass

__all__ = ["Operations", "Run", "Value", "lower"]


@dataclass(frozen=True, slots=True)
class Value:
    """What an operation makes and others read.

    Attributes
    ----------
    bytes
        Its size.
    maker
        The operation that makes it.
    uses
        The operations that read it, ascending.
    optional
        True: a saved set, which its maker makes only when asked.
    """

    bytes: int
    maker: int
    uses: tuple[int, ...]
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Run:
    """One run of an operation; `keep`: it makes its optional value too."""

    operation: int
    keep: bool = False


@dataclass(frozen=True)
class Operations:
    """Operations in the order of their first run.

    Attributes
    ----------
    graph
        What was lowered.
    times
        Of one run of each.
    values
        Everything that is made.
    outputs, saved
        For each operation the index of its output and of its optional value; None: it has none.
    backward
        Does an operation belong to the backward part?
    repeatable
        May it run again?
    resident
        For each operation, bytes of gradients and inputs that are live just before its first run.
    extra
        Bytes that a run needs on top of the values, without the optional one.
    keep_extra
        The same of a run that makes the optional value.
    layers
        Of a layer graph how many it has: their forwards, then their backwards in reverse; else 0.
    """

    graph: Graph
    times: tuple[int, ...]
    values: tuple[Value, ...]
    outputs: tuple[int | None, ...]
    saved: tuple[int | None, ...]
    backward: tuple[bool, ...]
    repeatable: tuple[bool, ...]
    resident: tuple[int, ...]
    extra: tuple[int, ...]
    keep_extra: tuple[int, ...]
    layers: int = 0

    def __len__(self) -> int:
        return len(self.times)

    @cached_property
    def reads(self) -> tuple[tuple[int, ...], ...]:
        """For each operation the values it reads."""
        rows: list[list[int]] = [[] for _ in self.times]
        for index, value in enumerate(self.values):
            for use in value.uses:
                rows[use].append(index)
        return tuple(tuple(row) for row in rows)

    @cached_property
    def floor(self) -> tuple[int, int]:
        """Bytes that any schedule needs, and the operation that needs them.

        Every operation runs, and every optional value is made in some run of its maker.
        """
        worst = (0, 0)
        lowest = min(self.resident)
        for i in range(len(self)):
            output, saved = self.outputs[i], self.saved[i]
            needs = sum(self.values[v].bytes for v in self.reads[i])
            needs += 0 if output is None else self.values[output].bytes
            least = self.extra[i]
            if saved is not None:
                keeping = self.values[saved].bytes + self.keep_extra[i]
                worst = max(worst, (lowest + needs + keeping, -i))
                least = min(least, keeping) if self.repeatable[i] else keeping
            worst = max(worst, (self.resident[i] + needs + least, -i))
        return worst[0], -worst[1]

    def everything(self) -> list[Run]:
        """Every operation once, keeping all: nothing runs again."""
        return [Run(i, saved is not None) for i, saved in enumerate(self.saved)]

    def useful_runs(self, runs: Sequence[Run]) -> list[Run]:
        """The runs without those whose results nothing reads; first runs stay."""
        firsts: dict[int, int] = {}
        for step, run in enumerate(runs):
            firsts.setdefault(run.operation, step)
        kept: list[Run] = []
        wanted: set[int | None] = set()  # values that are read after this step
        for step in reversed(range(len(runs))):
            run = runs[step]
            i = run.operation
            keep = run.keep and self.saved[i] in wanted
            made = {self.outputs[i], self.saved[i]} if keep else {self.outputs[i]}
            if not (keep or self.outputs[i] in wanted or firsts[i] == step):
                continue
            wanted -= made
            wanted.update(self.reads[i])
            kept.append(Run(i, keep))
        return kept[::-1]

    def useful(self, plan_class: PlanClass) -> list[list[int]]:
        """For each stage the operations worth running again there, ascending.

        Those that the class allows, of which something not yet run still depends on what they
        make.
        """
        rows: list[list[int]] = []
        for stage in range(len(self)):
            rows.append([])
            if plan_class is PlanClass.FORWARD and not self.backward[stage]:
                continue
            useful = [False] * stage
            for operation in range(stage - 1, -1, -1):
                if not self.repeatable[operation] or (
                    plan_class is PlanClass.FORWARD and self.backward[operation]
                ):
                    continue
                useful[operation] = any(
                    use >= stage or useful[use]
                    for made in (self.outputs[operation], self.saved[operation])
                    if made is not None
                    for use in self.values[made].uses
                )
            rows[-1] = [operation for operation, flag in enumerate(useful) if flag]
        return rows

    def action(self, operation: int) -> Compute | LayerAction:
        """What runs when an operation does, keeping what it can."""
        n = self.layers
        if not n:
            return Compute(operation)
        return Forward(operation, True) if operation < n else Backward(2 * n - 1 - operation)

    def schedule(self, runs: Sequence[Run]) -> GraphSchedule:
        """The runs as a schedule of the graph; a saved set is kept by its last keeping run only."""
        n = self.layers
        if not n:
            return Nodes(tuple(run.operation for run in runs))
        keeps = {run.operation: step for step, run in enumerate(runs) if run.keep}
        return Actions(
            tuple(
                Forward(i, keeps.get(i) == step) if i < n else Backward(2 * n - 1 - i)
                for step, i in enumerate(run.operation for run in runs)
            )
        )

    def follows(self, runs: Sequence[Run], plan_class: PlanClass) -> bool:
        """Whether runs are of a class, in this order: what each stage runs again is in order."""
        stage, last = 0, -1
        for run in runs:
            i = run.operation
            if i > stage or i <= last:
                return False
            if i == stage:
                stage, last = stage + 1, -1
                continue
            last = i
            if not self.repeatable[i]:
                return False
            if plan_class is PlanClass.FORWARD and (self.backward[i] or not self.backward[stage]):
                return False
        return stage == len(self)

    def runs(self, schedule: GraphSchedule) -> list[Run]:
        """The inverse of `schedule`."""
        last = 2 * self.layers - 1
        return [
            Run(last - step.layer)
            if isinstance(step, Backward)
            else Run(step.layer, isinstance(step, Forward) and step.keep)
            for step in schedule.actions(len(self.graph))
        ]


def lower(graph: Graph) -> Operations:
    """The operations of a graph."""
    if isinstance(graph, ComputeGraph):
        return _lower_nodes(graph)
    return _lower_layers(graph)


def _lower_nodes(graph: ComputeGraph) -> Operations:
    n = len(graph)
    nodes = graph.nodes
    return Operations(
        graph=graph,
        times=tuple(node.time for node in nodes),
        values=tuple(Value(node.bytes, i, graph.consumers[i]) for i, node in enumerate(nodes)),
        outputs=tuple(range(n)),
        saved=(None,) * n,
        backward=tuple(node.backward for node in nodes),
        repeatable=(True,) * n,
        resident=(0,) * n,
        extra=(0,) * n,
        keep_extra=(0,) * n,
    )


def _lower_layers(graph: LayerGraph) -> Operations:
    n = len(graph)
    layers = graph.layers
    backward_of = [2 * n - 1 - i for i in range(n)]
    values = []
    for i, layer in enumerate(layers):
        uses = list(graph.consumers[i])
        uses += [backward_of[j] for j in graph.consumers[i] if layers[j].input_saved]
        if layer.output_saved:
            uses.append(backward_of[i])
        values.append(Value(layer.output_bytes, i, tuple(sorted(uses))))
    values += [
        Value(layer.saved_bytes, i, (backward_of[i],), optional=True)
        for i, layer in enumerate(layers)
    ]
    resident, extra = _gradients(graph)
    reverse = tuple(reversed(layers))
    return Operations(
        graph=graph,
        times=(*(la.forward_time for la in layers), *(la.backward_time for la in reverse)),
        values=tuple(values),
        outputs=(*range(n), *(None,) * n),
        saved=(*range(n, 2 * n), *(None,) * n),
        backward=(False,) * n + (True,) * n,
        repeatable=(*(layer.recomputable for layer in layers), *(False,) * n),
        resident=tuple(resident),
        extra=(*(layer.drop_transient_bytes for layer in layers), *extra),
        keep_extra=(*(layer.forward_transient_bytes for layer in layers), *extra),
        layers=n,
    )


def _gradients(graph: LayerGraph) -> tuple[list[int], list[int]]:
    """What is resident before each operation, and what each backward needs on top."""
    n = len(graph)
    live = graph.input_bytes
    gradients = {i for i in range(n) if not graph.consumers[i]}
    live += sum(graph.layers[i].output_bytes for i in gradients)
    resident, extra = [live] * n, []
    for i in reversed(range(n)):
        layer = graph.layers[i]
        resident.append(live)
        extra.append(
            graph.input_bytes_of(i)
            + layer.gradient_bytes
            + layer.backward_transient_bytes
            - layer.backward_overlap_bytes
        )
        if graph.inputs[i]:
            new = set(graph.inputs[i]) - gradients
            live += sum(graph.layers[u].output_bytes for u in new)
            gradients |= new
        elif -1 not in gradients:
            gradients.add(-1)
            live += graph.input_bytes
        live += layer.gradient_bytes - layer.output_bytes
    return resident, extra

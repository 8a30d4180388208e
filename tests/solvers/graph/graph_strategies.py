"""Random graphs and legal schedules for hypothesis, and the replay of either kind."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from solvers.chain.problem import Chain
from solvers.graph.problem import ComputeGraph, Edges, LayerGraph, Node
from solvers.graph.schedule import GraphSchedule, LayerAction
from solvers.problem import Layer, Problem
from solvers.replay import Replay
from solvers.schedule import Backward, Forward

_SMALL = st.integers(0, 6)  # so that ties, and sums that tie, are frequent
_LARGE = st.integers(0, 2 * 10**9)  # beyond int32
_MIXED = st.one_of(_SMALL, _LARGE)
_QUANTITIES = st.sampled_from((_SMALL, _SMALL, st.integers(1, 9), _LARGE, _MIXED))


def examples(count: int) -> settings:
    return settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )


def replayed(graph: Problem[Any], schedule: GraphSchedule) -> Replay:
    """What a schedule does on the graph that it was made for."""
    return graph.replay(schedule)


@st.composite
def edges(draw: st.DrawFn, n: int) -> Edges:
    """Any edges from lower to higher, from none to all of them, in any order of listing."""
    wanted = draw(st.sampled_from((0, 1, 1, 2, 2, 3)))  # inputs a node has, about
    pairs: list[tuple[int, int]] = []
    for v in range(1, n):
        most = min(v, wanted)
        pairs += [(u, v) for u in draw(st.sets(st.integers(0, v - 1), max_size=most))]
    if draw(st.booleans()):  # most graphs hang together, so that values live long
        pairs += [(v - 1, v) for v in range(1, n) if (v - 1, v) not in pairs]
    return tuple(draw(st.permutations(pairs)))


@st.composite
def compute_graphs(draw: st.DrawFn, min_nodes: int = 1, max_nodes: int = 8) -> ComputeGraph:
    """Any directed acyclic graph: several sources and sinks, parts apart, zeros and ties.

    About half of them mark the nodes from some index on as backward.
    """
    n = draw(st.integers(min_nodes, max_nodes))
    sizes, times = draw(_QUANTITIES), draw(_QUANTITIES)
    first_backward = draw(st.one_of(st.just(n), st.integers(0, n)))
    nodes = tuple(
        Node(f"n{v}", draw(times), draw(sizes), backward=v >= first_backward) for v in range(n)
    )
    return ComputeGraph(nodes, draw(edges(n)))


@st.composite
def training_graphs(draw: st.DrawFn, min_pairs: int = 1, max_pairs: int = 4) -> ComputeGraph:
    """A forward graph and its backward nodes in reverse order.

    The backward of v reads those of v's consumers, and most often v's inputs and v's output; the
    backward of a sink reads the sink.
    """
    n = draw(st.integers(min_pairs, max_pairs))
    sizes, times = draw(_QUANTITIES), draw(_QUANTITIES)
    forward = draw(edges(n))
    nodes = [Node(f"f{v}", draw(times), draw(sizes)) for v in range(n)]
    nodes += [Node(f"b{v}", draw(times), draw(sizes), backward=True) for v in reversed(range(n))]
    mostly = st.sampled_from((True, True, False))
    pairs = list(forward)
    for v in range(n):
        back = 2 * n - 1 - v
        consumers = [w for u, w in forward if u == v]
        pairs += [(2 * n - 1 - w, back) for w in consumers]
        if not consumers or draw(mostly):
            pairs.append((v, back))
        pairs += [(u, back) for u, w in forward if w == v and draw(mostly)]
    return ComputeGraph(tuple(nodes), tuple(pairs))


@st.composite
def layer_graphs(draw: st.DrawFn, min_layers: int = 1, max_layers: int = 4) -> LayerGraph:
    """Layers with every field drawn, zeros and absurd combinations included."""
    n = draw(st.integers(min_layers, max_layers))
    sizes, times = draw(_QUANTITIES), draw(_QUANTITIES)
    # A field that is often zero, or weighs much, decides the peak in some graphs and not in others.
    factor = st.sampled_from((0, 1, 1, 3))
    w, tf, td, tb, g = (draw(factor) for _ in range(5))
    usually = draw(st.sampled_from((st.booleans(), st.just(True), st.just(False))))
    pairs = draw(edges(n))
    input_bytes = draw(sizes)
    layers: list[Layer] = []
    for i in range(n):
        layer = Layer(
            name=f"l{i}",
            forward_time=draw(times),
            backward_time=draw(times),
            output_bytes=draw(sizes),
            saved_bytes=w * draw(sizes),
            recompute_time=draw(times),
            forward_transient_bytes=tf * draw(sizes),
            drop_transient_bytes=td * draw(sizes),
            backward_transient_bytes=tb * draw(sizes),
            gradient_bytes=g * draw(sizes),
            input_saved=draw(usually),
            output_saved=draw(usually),
            recomputable=draw(st.sampled_from((True, True, True, False))),
        )
        read = [layers[u].output_bytes for u, v in pairs if v == i]
        most = _most_overlap(layer, sum(read) if read else input_bytes)
        overlap = draw(st.one_of(st.just(0), st.integers(0, most)))
        layers.append(replace(layer, backward_overlap_bytes=overlap))
    return LayerGraph(tuple(layers), pairs, input_bytes)


def _most_overlap(layer: Layer, read: int) -> int:
    held = layer.saved_bytes + layer.output_bytes * (2 if layer.output_saved else 1)
    return min(held, read + layer.gradient_bytes) + layer.backward_transient_bytes


def as_layer_graph(chain: Chain) -> LayerGraph:
    """The chain as a path; its layers' options are dropped, and forwards always cost f."""
    layers = tuple(replace(layer, options=()) for layer in chain.layers)
    return LayerGraph(layers, tuple((i, i + 1) for i in range(len(layers) - 1)), chain.input_bytes)


def dense_nodes(seed: int, n: int) -> ComputeGraph:
    """A seeded graph of which most budgets below keep-all ask for hard choices.

    Hypothesis draws small and equal numbers; here nothing ties, so one wrong choice shows.
    """
    rng = random.Random(seed)
    nodes = tuple(Node(f"n{v}", rng.randint(1, 999), rng.randint(1, 999)) for v in range(n))
    return ComputeGraph(nodes, _dense(rng, n))


def dense_layers(seed: int, n: int) -> LayerGraph:
    """The same of layers."""
    rng = random.Random(seed)

    def size() -> int:
        return rng.randint(1, 999)

    layers = tuple(
        Layer(
            name=f"l{i}",
            forward_time=size(),
            backward_time=size(),
            output_bytes=size(),
            saved_bytes=2 * size(),
            recompute_time=0,
            forward_transient_bytes=size() // 4,
            drop_transient_bytes=size() // 2,
            backward_transient_bytes=size() // 4,
            gradient_bytes=size() // 4,
            input_saved=rng.random() < 0.6,
            output_saved=rng.random() < 0.6,
            recomputable=rng.random() < 0.8,
        )
        for i in range(n)
    )
    return LayerGraph(layers, _dense(rng, n), size())


def _dense(rng: random.Random, n: int) -> Edges:
    pairs = [(v - 1, v) for v in range(1, n) if rng.random() < 0.8]
    pairs += [(u, v) for v in range(n) for u in range(v - 1) if rng.random() < 0.25]
    return tuple(pairs)


@st.composite
def schedules(draw: st.DrawFn, graph: ComputeGraph, max_repeats: int = 10) -> tuple[int, ...]:
    """Any legal schedule: first runs in any order, pointless repeats included."""
    inputs = graph.inputs
    steps: list[int] = []
    repeats = draw(st.integers(0, max_repeats))
    while len(set(steps)) < len(graph):
        ready = [v for v in range(len(graph)) if set(inputs[v]) <= set(steps)]
        if len(steps) - len(set(steps)) >= repeats:
            ready = [v for v in ready if v not in steps]
        steps.append(draw(st.sampled_from(ready)))
    steps += draw(st.lists(st.integers(0, len(graph) - 1), max_size=2))
    return tuple(steps)


@st.composite
def layer_actions(
    draw: st.DrawFn, graph: LayerGraph, max_repeats: int = 8
) -> tuple[LayerAction, ...]:
    """Any legal actions: backwards in any order, pointless forwards included."""
    n, layers = len(graph), graph.layers
    actions: list[LayerAction] = []
    ran: set[int] = set()
    kept: set[int] = set()
    done: set[int] = set()
    repeats = draw(st.integers(0, max_repeats))
    while len(done) < n:
        ready: list[LayerAction] = []
        for i in set(range(n)) - done:
            if not set(graph.inputs[i]) <= ran:
                continue
            again = i in ran
            if not again or layers[i].recomputable:
                if i not in kept:
                    ready.append(Forward(i, True))
                # The only run of a layer that cannot be recomputed must keep.
                if layers[i].recomputable and (not again or repeats):
                    ready.append(Forward(i, False))
            if i in kept and set(graph.consumers[i]) <= done:
                ready.append(Backward(i))
        action = draw(st.sampled_from(ready))
        actions.append(action)
        if isinstance(action, Backward):
            done.add(action.layer)
            continue
        if action.keep:
            kept.add(action.layer)
        elif action.layer in ran:
            repeats -= 1
        ran.add(action.layer)
    return tuple(actions)

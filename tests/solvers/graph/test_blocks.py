"""Layer graphs as chains of blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain as joined
from itertools import combinations
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from solvers.chain.brute import count_plans, every_plan
from solvers.chain.exact import frontier, optimum
from solvers.chain.problem import Chain
from solvers.graph.chains import blocks as blocks_module
from solvers.graph.chains.block import MOST_CHOICES, MOST_OPTIONS, Block
from solvers.graph.chains.blocks import as_chain, cuts, solve_blocks
from solvers.graph.lowering import lower
from solvers.graph.problem import LayerGraph
from solvers.graph.schedule import Actions
from solvers.problem import Layer
from solvers.schedule import Backward, Checkpoint, Forward, Item, Items, Keep, actions
from solvers.solution import PlanClass
from tests.oracles.oracle import pareto
from tests.oracles.strategies import chains, plans

T = TypeVar("T")
Edges = list[tuple[int, int]]

_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]


def residual(n: int) -> Edges:
    """A path of n layers after layer -1, which the last reads too."""
    return [(i - 1, i) for i in range(n)] + ([(-1, n - 1)] if n > 1 else [])


def diamond(n: int) -> Edges:
    """Branches of one layer each, joined by the last."""
    return [(-1, i) for i in range(n - 1)] + [(i, n - 1) for i in range(n - 1)] or [(-1, 0)]


def u_shape(n: int) -> Edges:
    """A path with skips between layers at the same depth."""
    skips = [(i, n - 1 - i) for i in range((n - 1) // 2) if n - 1 - i > i + 1]
    return [(i - 1, i) for i in range(n)] + skips


def dense(n: int) -> Edges:
    """Every layer reads all before it."""
    return [(u, v) for v in range(n) for u in range(-1, v)]


SHAPES = (residual, diamond, u_shape, dense)


def connect(shapes: Sequence[tuple[int, Edges]]) -> tuple[tuple[int, int], ...]:
    """Blocks one after the other; -1 is the last layer of the block before."""
    edges, start = [], 0
    for size, inner in shapes:
        edges += [(u + start, v + start) for u, v in inner if u + start >= 0]
        start += size
    return tuple(edges)


def graph_of(layers: Sequence[Layer], edges: Sequence[tuple[int, int]], x: int) -> LayerGraph:
    """The graph, with overlaps cut down to what it accepts."""
    plain = [replace(layer, options=(), backward_overlap_bytes=0) for layer in layers]
    bare = LayerGraph(tuple(plain), tuple(edges), x)
    result = []
    for i, layer in enumerate(plain):
        held = layer.saved_bytes + layer.output_bytes * (2 if layer.output_saved else 1)
        made = bare.input_bytes_of(i) + layer.gradient_bytes
        most = min(held, made) + layer.backward_transient_bytes
        overlap = min(layers[i].backward_overlap_bytes, most)
        result.append(replace(layer, backward_overlap_bytes=overlap))
    return LayerGraph(tuple(result), tuple(edges), x)


@st.composite
def block_graphs(draw: st.DrawFn, max_layers: int = 9, max_size: int = 4) -> LayerGraph:
    """Chains of random blocks of random layers, equal blocks among them."""
    drawn = draw(chains(min_layers=2, max_layers=max_layers, as_graph=True))
    layers = list(drawn.layers)
    sizes: list[int] = []
    while sum(sizes) < len(layers):
        sizes.append(draw(st.integers(1, min(max_size, len(layers) - sum(sizes)))))
    shapes = [(size, draw(st.sampled_from(SHAPES))(size)) for size in sizes]
    if draw(st.booleans()):  # the first block once more
        shapes.insert(1, shapes[0])
        again = [replace(la, name=f"{la.name}'") for la in layers[: sizes[0]]]
        layers[sizes[0] : sizes[0]] = again
    edges = set(connect(shapes))
    if draw(st.booleans()) and sizes[0] > 1:  # several sources
        edges -= {(u, 1) for u in range(sizes[0])}
    if draw(st.booleans()) and sizes[-1] > 1:  # several sinks
        last = len(layers) - 1
        edges -= {(last - 1, last)}
    return graph_of(layers, sorted(edges), drawn.input_bytes)


def brute_cuts(graph: LayerGraph) -> list[int]:
    """Layers without which nothing before reaches anything after, by the definition."""
    n = len(graph)
    result = []
    for v in range(n):
        jumps = any(u < v < w for u, w in graph.edges)
        sinks = any(not graph.consumers[u] for u in range(v))
        sources = any(not graph.inputs[w] for w in range(v + 1, n))
        if not (jumps or sinks or sources):
            result.append(v)
    return result


@given(block_graphs())
@settings(deadline=None, max_examples=100)
def test_cuts(graph: LayerGraph) -> None:
    assert cuts(graph) == brute_cuts(graph)


NOTHING = Layer("nothing", 1, 1, 0, 0, 1, input_saved=False, output_saved=False)
MOST_PLANS = 300


def keep_all(graph: LayerGraph) -> Actions:
    n = len(graph)
    forwards = [Forward(i, True) for i in range(n)]
    return Actions((*forwards, *(Backward(i) for i in reversed(range(n)))))


def ends_are_kept(items: Sequence[Item]) -> bool:
    """Whether every body ends with a layer that is kept, as those of the frontier solver do."""
    bodies = [item.body for item in items if isinstance(item, Checkpoint)]
    return isinstance(items[-1], Keep) and all(map(ends_are_kept, bodies))


def stops_with_option(action: object) -> bool:
    return isinstance(action, Forward) and action.ends_body and action.option is not None


@given(block_graphs())
@settings(deadline=None, max_examples=100, suppress_health_check=_SLOW)
def test_every_plan_of_the_frontier_runs_on_the_graph(graph: LayerGraph) -> None:
    operations = lower(graph)
    for blocks in as_chain(graph):
        whole = frontier.Frontier(blocks.chain)
        for peak, time in whole.points:
            items = whole.plan(peak)
            steps = blocks.actions(Items(items))
            done = graph.replay(steps)
            assert done.peak_bytes <= peak
            assert operations.follows(operations.runs(steps), PlanClass.FORWARD)
            # The block that ends a body is kept whole, which can only be quicker.
            if any(map(stops_with_option, actions(items, len(blocks.chain)))):
                assert done.time <= time
            else:
                assert done.time == time


@given(block_graphs(), st.data())
@settings(deadline=None, max_examples=150, suppress_health_check=_SLOW)
def test_no_plan_peaks_higher_on_the_graph(graph: LayerGraph, data: st.DataObject) -> None:
    # Whatever is nested in what, options of every kind among it: not only what a solver makes.
    for blocks in as_chain(graph):
        items = data.draw(plans(blocks.chain))
        on_chain = blocks.chain.replay(Items(items))
        on_graph = graph.replay(blocks.actions(Items(items)))
        assert on_graph.peak_bytes <= on_chain.peak_bytes
        assert on_graph.time <= on_chain.time


@given(chains(min_layers=4, max_layers=4, as_graph=True), st.booleans(), st.data())
@settings(deadline=None, max_examples=150, suppress_health_check=_SLOW)
def test_no_plan_of_one_block_peaks_higher(drawn: Chain, first: bool, data: st.DataObject) -> None:
    # Beside the block, or two, there is next to nothing, so that it decides the peak of each plan.
    front = replace(NOTHING, output_bytes=drawn.input_bytes)
    sizes = data.draw(st.sampled_from(((3,), (4,), (2, 2))))
    shapes = [(size, data.draw(st.sampled_from(SHAPES))(size)) for size in sizes]
    before = [] if first else [(1, residual(1))]
    layers = [*([] if first else [front]), *drawn.layers[: sum(sizes)], NOTHING]
    edges = connect([*before, *shapes, (1, residual(1))])
    graph = graph_of(layers, edges, drawn.input_bytes if first else 0)
    operations = lower(graph)
    for blocks in as_chain(graph):
        if count_plans(blocks.chain, MOST_PLANS) > MOST_PLANS:
            continue
        for items in every_plan(blocks.chain):
            steps = blocks.actions(Items(items))
            on_graph = graph.replay(steps)
            assert on_graph.peak_bytes <= blocks.chain.replay(Items(items)).peak_bytes
            if ends_are_kept(items):
                assert operations.follows(operations.runs(steps), PlanClass.FORWARD)


def test_an_input_held_for_an_option_alone_counts() -> None:
    # "a" and "b" read an input that no backward does. Where both run again, "a" does after the
    # backward of "b", whose peak then has the input in place of what "a" saves.
    a = replace(NOTHING, name="a", saved_bytes=1)
    b = replace(NOTHING, name="b", saved_bytes=100, backward_transient_bytes=1000)
    c = replace(NOTHING, name="c", saved_bytes=5, recomputable=False)
    front = replace(NOTHING, output_bytes=10)
    edges = connect([(1, residual(1)), (3, diamond(3)), (1, residual(1))])
    graph = LayerGraph((front, a, b, c, NOTHING), edges)
    blocks = as_chain(graph)[0]
    points = [(o.saved_bytes, o.recompute_time) for o in blocks.chain.layers[1].options]
    assert points == [(15, 2), (16, 1)]
    for items in every_plan(blocks.chain):
        on_graph = graph.replay(blocks.actions(Items(items)))
        assert on_graph.peak_bytes <= blocks.chain.replay(Items(items)).peak_bytes


@given(block_graphs(), st.sampled_from((0, 30, 50, 70, 90, 100)))
@settings(deadline=None, max_examples=75, suppress_health_check=_SLOW)
def test_solve_blocks(graph: LayerGraph, percent: int) -> None:
    budget = graph.replay(keep_all(graph)).peak_bytes * percent // 100
    found = solve_blocks(graph, budget)
    fitting = [
        time
        for blocks in as_chain(graph)
        for peak, time in frontier.Frontier(blocks.chain).points
        if peak <= budget
    ]
    if found is None:
        assert not fitting
        return
    done = graph.replay(found.actions)
    assert (found.peak_bytes, found.time) == (done.peak_bytes, done.time)
    assert found.peak_bytes <= budget
    assert graph.least_time <= found.time <= min(fitting, default=found.time)
    assert found.lower_bound_time <= found.time
    assert found == solve_blocks(graph, budget)


@given(chains(max_layers=7, as_graph=True))
@settings(deadline=None, max_examples=100)
def test_a_path_gets_the_optimum_of_the_frontier(drawn: Chain) -> None:
    layers = tuple(replace(layer, recompute_time=layer.forward_time) for layer in drawn.layers)
    n = len(layers)
    graph = LayerGraph(layers, tuple((i, i + 1) for i in range(n - 1)), drawn.input_bytes)
    (blocks,) = as_chain(graph)
    assert blocks.chain == Chain(layers, drawn.input_bytes)
    for peak, time in frontier.Frontier(blocks.chain).points:
        found = solve_blocks(graph, peak)
        assert found is not None
        assert found.exact
        assert found.count == n
        assert found.time == found.lower_bound_time == time


def held_and_time(
    layers: Sequence[Layer], inner: Edges, x: int, first: bool
) -> list[tuple[int, int]]:
    """Bytes held and time spent, over every set of tensors held and of layers run again.

    Tensors: saved sets, outputs inside the block, and its input (-1), which costs nothing where
    keeping everything holds it, too.
    """
    n = len(layers)
    reads = [[u for u, v in inner if v == i] for i in range(n)]
    inputs_held = first or any(-1 in reads[i] and layers[i].input_saved for i in range(n))
    wanted: set[tuple[str, int]] = {("W", i) for i in range(n)}
    for i, layer in enumerate(layers):
        wanted |= {("a", u) for u in reads[i] if layer.input_saved}
        wanted |= {("a", i)} if layer.output_saved else set()
    size = {("W", i): layer.saved_bytes for i, layer in enumerate(layers)}
    size |= {("a", i): layer.output_bytes for i, layer in enumerate(layers)}
    size |= {("a", -1): 0 if inputs_held else x}
    if layers[-1].output_saved:
        size["a", n - 1] = 0  # held by the chain
    points = []
    for held in subsets(list(size)):
        for again in subsets([i for i in range(n) if layers[i].recomputable]):
            live = set(held)
            for i in again:
                if any(("a", u) not in live for u in reads[i]):
                    break
                live |= {("W", i), ("a", i)}
            else:
                if wanted <= live:
                    time = sum(layers[i].forward_time for i in again)
                    points.append((sum(size[tensor] for tensor in held), time))
    return pareto(points)


def subsets(things: Sequence[T]) -> Iterator[tuple[T, ...]]:
    return joined.from_iterable(combinations(things, k) for k in range(len(things) + 1))


@given(chains(min_layers=4, max_layers=5, as_graph=True), st.booleans(), st.data())
@settings(deadline=None, max_examples=100)
def test_options_are_the_pareto_set(drawn: Chain, first: bool, data: st.DataObject) -> None:
    # A block at the start, of two sources, or after a first layer; then a last layer.
    before = [] if first else [(1, residual(1))]
    size = 3 if first else data.draw(st.integers(2, len(drawn) - 2))
    shape = diamond(3) if first else data.draw(st.sampled_from(SHAPES))(size)
    edges = connect([*before, (size, shape), (1, residual(1))])
    count = len(before) + size + 1
    graph = graph_of(drawn.layers[:count], edges, drawn.input_bytes)
    if len(as_chain(graph)[0].chain) != len(before) + 2:
        return  # a path inside the block: blocks of their own
    layer = as_chain(graph)[0].chain.layers[len(before)]
    inside = graph.layers[len(before) : len(before) + size]
    x = graph.layers[0].output_bytes if before else graph.input_bytes
    inner = [(u - len(before), v - len(before)) for u, v in edges if v < len(before) + size]
    inner = [(u, v) for u, v in inner if v >= 0]
    if first:
        inner += [(-1, v) for v in range(size) if not graph.inputs[v]]
    expected = held_and_time(inside, inner, x, first)
    made = [(option.saved_bytes, option.recompute_time) for option in layer.options]
    made.append((layer.saved_bytes, 0))
    if layer.recomputable:  # running all again is a checkpoint, which the chain has anyway
        nothing = 0 if layer.input_saved or first else x
        made.append((nothing, layer.forward_time))
    assert pareto(made) == expected


def one_block(layers: Sequence[Layer], edges: Edges) -> LayerGraph:
    """A block between two layers."""
    end = Layer("end", 1, 1, 1, 1, 1)
    size = len(layers)
    connected = connect([(1, residual(1)), (size, edges), (1, residual(1))])
    return LayerGraph((end, *layers, end), connected, 1)


def test_many_options_are_thinned() -> None:
    # Each layer twice as dear as the next, in bytes and in time: every set is on the frontier.
    layers = [Layer(str(i), 2**i, 1, 1, 2**i, 1) for i in range(6)]
    (blocks, _) = as_chain(one_block(layers, dense(6)))
    options = blocks.chain.layers[1].options
    assert MOST_OPTIONS // 2 < len(options) <= MOST_OPTIONS
    assert len({option.saved_bytes for option in options}) == len(options)
    times = [option.recompute_time for option in options]
    assert times == sorted(times, reverse=True)
    assert (times[0], times[-1]) == (62, 1)


def test_a_large_block_runs_neighbours_again_together() -> None:
    layers = [Layer(str(i), 5, 1, 10, 100, 5) for i in range(MOST_CHOICES * 2)]
    graph = one_block(layers, residual(len(layers)))
    (blocks, _) = as_chain(graph)
    options = blocks.chain.layers[1].options
    assert {option.recompute_time % 10 for option in options} == {0}
    peak = graph.replay(keep_all(graph)).peak_bytes
    assert solve_blocks(graph, peak) is not None


def test_what_must_be_kept_is_no_option() -> None:
    layers = [
        Layer("a", 1, 1, 10, 1000, 1, output_saved=False),
        Layer("b", 1, 1, 10, 5000, 1, output_saved=False, recomputable=False),
        Layer("c", 1, 1, 10, 1000, 1, output_saved=False),
    ]
    (blocks, whole) = as_chain(one_block(layers, residual(3)))
    layer = blocks.chain.layers[1]
    assert not layer.recomputable
    assert [(o.saved_bytes, o.recompute_time) for o in layer.options] == [(5010, 2), (6010, 1)]
    assert not whole.chain.layers[1].options


def res_net(count: int) -> LayerGraph:
    """Bottlenecks: two narrow layers, then a wide one with a residual."""
    layers = []
    for k in range(count):
        for i, width in enumerate((1, 1, 4)):
            x = width * 2**18
            time = 100 + 10 * i
            layers.append(Layer(f"{k}.{i}", time, 2 * time, x, 2 * x, time, gradient_bytes=1000))
    return graph_of(layers, connect([(3, residual(3))] * count), 2**20)


def test_options_save_time() -> None:
    graph = res_net(12)
    budget = graph.replay(keep_all(graph)).peak_bytes // 2
    blocks, whole = as_chain(graph)
    found = solve_blocks(graph, budget)
    assert found is not None
    assert not found.exact
    assert found.count == len(blocks.chain) == 14  # the first block is a path of its own
    assert found.time == found.lower_bound_time == optimum.solve(blocks.chain, budget).time
    assert found.time < optimum.solve(whole.chain, budget).time
    assert blocks.chain.layers[-2].options
    assert not blocks.chain.layers[-1].options  # its backward is next, whatever is held


def test_working_memory_of_a_block() -> None:
    whole = as_chain(res_net(3))[1]
    layer = whole.chain.layers[3]  # the second block: the first is three layers of the chain
    small, large = 2**18, 2**20
    assert layer.saved_bytes == 2 * (2 * small + large) + 2 * small
    assert layer.forward_transient_bytes == 0
    assert layer.drop_transient_bytes == small  # what the last layer reads
    # The last layer's backward makes the gradients of the block's input and of the middle one's
    # output, when those of the parameters of two layers are still to come.
    assert layer.backward_transient_bytes == small - 2000
    assert layer.backward_overlap_bytes == 0


def test_three_hundred_blocks() -> None:
    graph = res_net(300)
    keep = graph.replay(keep_all(graph))
    found = solve_blocks(graph, keep.peak_bytes // 2)
    assert found is not None
    assert found.peak_bytes <= keep.peak_bytes // 2
    assert found.time == found.lower_bound_time
    assert 1.0 < found.time / keep.time < 1.15


def test_equal_blocks_are_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    class Counted(Block):
        def _options(self) -> list[tuple[int, int, int]]:
            made.append(len(self.layers))
            return super()._options()

    monkeypatch.setattr(blocks_module, "Block", Counted)
    as_chain(res_net(50))
    # What the last block has before it is what the others have, but it needs no options.
    assert made == [3]


def test_names_change_nothing() -> None:
    graph = res_net(8)
    other = replace(graph, layers=tuple(replace(la, name="x") for la in graph.layers))
    budget = graph.replay(keep_all(graph)).peak_bytes // 2
    assert solve_blocks(graph, budget) == solve_blocks(other, budget)


def test_one_block_is_kept_or_nothing() -> None:
    layers = tuple(Layer(str(i), 1, 1, 10, 100, 1) for i in range(4))
    graph = LayerGraph(layers, ((0, 1), (0, 2), (1, 3)), 10)  # two last layers
    assert cuts(graph) == [0]
    single = LayerGraph(layers[:2], (), 10)  # two layers side by side
    assert cuts(single) == []
    peak = single.replay(keep_all(single)).peak_bytes
    found = solve_blocks(single, peak)
    assert found is not None
    assert found.actions == keep_all(single)
    assert solve_blocks(single, peak - 1) is None

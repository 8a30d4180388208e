"""Chains solved as graphs: never worse than the frontier's plan, and better for known reasons."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hypothesis import event, given, settings
from hypothesis import strategies as st

from solvers.chain import brute
from solvers.chain.exact import frontier
from solvers.chain.problem import Chain
from solvers.graph.methods import solve
from solvers.graph.problem import LayerGraph
from solvers.graph.schedule import Actions, LayerAction
from solvers.schedule import Backward, Forward, Item, actions
from solvers.solution import PlanClass, Status
from tests.oracles.graph_oracle import best_staged
from tests.oracles.strategies import chains
from tests.solvers.graph.graph_strategies import as_layer_graph


def without_early_stop(chain: Chain) -> Chain:
    """The chain whose every forward costs f, as in graphs."""
    layers = [replace(layer, recompute_time=layer.forward_time) for layer in chain.layers]
    return Chain(tuple(layers), chain.input_bytes)


def as_actions(items: tuple[Item, ...], length: int) -> tuple[LayerAction, ...]:
    """The forwards and backwards of a chain's plan; drops follow from their order."""
    found: list[LayerAction] = []
    for action in actions(items, length):
        if isinstance(action, Forward):
            found.append(Forward(action.layer, action.keep))
        elif isinstance(action, Backward):
            found.append(action)
    return tuple(found)


def smallest_budgets(chain: Chain) -> list[int]:
    peaks = [peak for peak, _ in brute.frontier(chain)]
    return sorted({*peaks, *((a + b) // 2 for a, b in pairwise(peaks))})


def best_chain_plan(chain: Chain, graph: LayerGraph, budget: int) -> int:
    """Least time of all chain plans that fit when replayed as a graph's schedules."""
    times = []
    for items in brute.every_plan(chain):
        done = graph.replay(Actions(as_actions(items, len(chain))))
        if done.peak_bytes <= budget:
            times.append(done.time)
    return min(times)


def holds_then_makes_again(graph: LayerGraph, steps: tuple[LayerAction, ...]) -> bool:
    """Whether an output is held across a backward, let go, and made again: not persistent."""
    made: dict[int, int] = {}
    last_read: dict[int, int] = {}
    for at, step in enumerate(steps):
        i = step.layer
        reads = list(graph.inputs[i])
        if isinstance(step, Backward):
            reads = reads if graph.layers[i].input_saved else []
            reads += [i] * graph.layers[i].output_saved
        for u in reads:
            last_read[u] = at
        if isinstance(step, Forward):
            if i in made:
                between = steps[made[i] : last_read.get(i, made[i])]
                if any(isinstance(other, Backward) for other in between):
                    return True
            made[i] = at
    return False


def makes_again_beside_its_saved_set(graph: LayerGraph, steps: tuple[LayerAction, ...]) -> bool:
    """Whether what a layer saves beside its saved set is made again while that is held.

    A chain's plan holds them together.
    """
    kept: set[int] = set()
    for step in steps:
        if isinstance(step, Backward):
            kept.discard(step.layer)
            continue
        beside = {i for i in kept if step.layer in graph.inputs[i] and graph.layers[i].input_saved}
        if beside or (step.layer in kept and graph.layers[step.layer].output_saved):
            return True
        if step.keep:
            kept.add(step.layer)
    return False


def makes_again_out_of_turn(graph: LayerGraph, steps: tuple[LayerAction, ...]) -> bool:
    """Whether a layer runs again before a later layer's backward, but not all between them.

    A chain's plan runs a segment on to the layer whose backward comes next.
    """
    ran: set[int] = set()
    for at, step in enumerate(steps):
        if isinstance(step, Backward):
            continue
        if step.layer in ran:
            after: list[int] = []
            for other in steps[at + 1 :]:
                if isinstance(other, Backward):
                    if not set(range(step.layer + 1, other.layer + 1)) <= set(after):
                        return True
                    break
                after.append(other.layer)
        ran.add(step.layer)
    return False


@given(chains(max_layers=6, as_graph=True), st.data())
@settings(max_examples=100, deadline=None, derandomize=True)
def test_never_worse(chain: Chain, data: st.DataObject) -> None:
    chain = without_early_stop(chain)
    points = frontier.Frontier(chain).points
    budget, time = data.draw(st.sampled_from(points))
    found = solve(as_layer_graph(chain), budget, optimal_in=PlanClass.FORWARD)
    assert found.status is Status.OPTIMAL
    assert found.time <= time
    assert found.peak_bytes <= budget


@given(chains(max_layers=4, as_graph=True), st.data())
@settings(max_examples=100, deadline=None, derandomize=True)
def test_better_for_a_known_reason(chain: Chain, data: st.DataObject) -> None:
    chain = without_early_stop(chain)
    graph = as_layer_graph(chain)
    budget = data.draw(st.sampled_from(smallest_budgets(chain)))
    found = solve(graph, budget, optimal_in=PlanClass.STAGED)
    assert found.time == best_staged(graph, budget)
    # A graph's replay frees a segment's input as soon as it can; the same plans may then fit.
    same_plans = best_chain_plan(chain, graph, budget)
    assert found.time <= same_plans <= brute.solve(chain, budget).time
    if found.time < same_plans:
        event("better than every chain plan")
        assert isinstance(found.schedule, Actions)
        steps = found.schedule.steps
        reasons = (
            holds_then_makes_again,
            makes_again_beside_its_saved_set,
            makes_again_out_of_turn,
        )
        assert any(reason(graph, steps) for reason in reasons)

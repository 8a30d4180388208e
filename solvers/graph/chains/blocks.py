"""A layer graph as a chain of blocks, joined by the chain solver.

A cut is a layer through which alone everything before it reaches everything after it. What lies
between two cuts is a block, and a block is a layer of a chain. Its options say which of its layers
run again at its own backward. For a set R of such layers what has to be held is given: the saved
sets of the others, and those of their outputs that a backward or a layer of R reads. So the Pareto
set of bytes held and time spent takes 2^layers sets, not one of every choice of tensors.

What the plans are
------------------
Where every block is one layer the graph is a chain, and the plan is the frontier solver's: optimal
among persistent plans. Otherwise it is a schedule of class FORWARD whose time is an upper bound of
the optimum, not more, since

- working memory is the worst over the options of a block, and over the moments in it;
- an option that runs a layer again holds the block's input if that layer reads it: it is never
  made again from what the blocks before hold inside;
- within a block's backward each layer runs again at most once;
- of a block nothing is held but what its option says, and all of that until its backward;
- a block's output that its own backward reads is held even where the option makes it again;
- options are thinned to `MOST_OPTIONS`, and large blocks have few to begin with.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from solvers.chain.exact import optimum
from solvers.chain.problem import Chain
from solvers.graph.chains.block import Block
from solvers.graph.problem import LayerGraph
from solvers.graph.schedule import Actions, LayerAction
from solvers.schedule import Backward, Forward, Items
from solvers.solution import Infeasible


@dataclass(frozen=True, slots=True)
class Blocks:
    """A schedule over blocks.

    Attributes
    ----------
    actions
        Of class FORWARD.
    peak_bytes, time
        What their replay on the graph gives.
    lower_bound_time
        No persistent plan over the blocks, at the costs of `as_chain`, takes less: a bound of this
        decomposition, which schedules of the graph may beat.
    count
        Number of blocks.
    exact
        Every block is one layer: `lower_bound_time` holds for all persistent plans.
    """

    actions: Actions
    peak_bytes: int
    time: int
    lower_bound_time: int
    count: int
    exact: bool


def cuts(graph: LayerGraph) -> list[int]:
    """Layers through which alone everything before them reaches everything after, ascending.

    No edge jumps over such a layer, no layer after it reads the graph's input, and every layer
    before it is read. The last layer is one if all others are read.
    """
    last_source = max(i for i in range(len(graph)) if not graph.inputs[i])
    found, furthest = [], 0  # the last layer that reads something before this one
    for v, readers in enumerate(graph.consumers):
        if v >= last_source and v >= furthest:
            found.append(v)
        if not readers:
            break
        furthest = max(furthest, readers[-1])
    return found


@dataclass(frozen=True, slots=True)
class BlockChain:
    """Blocks of a graph as the layers of a chain.

    Attributes
    ----------
    chain
        A plan's replay on it is never below that of its actions on the graph.
    starts
        The first layer of each block.
    """

    chain: Chain
    starts: tuple[int, ...]
    _blocks: tuple[Block, ...]

    def actions(self, schedule: Items) -> Actions:
        """A plan of the chain as actions of the graph, of class FORWARD.

        The plan must be one of the frontier solver's, in which the last item of a checkpoint's
        body is kept. Its own backward follows at once, so it is kept whole, whatever its option:
        that takes less time, and the costs of a block with options allow for it.
        """
        again = [0] * len(self.chain)
        result: list[LayerAction] = []
        for action in schedule.actions(len(self.chain)):
            if not isinstance(action, Forward | Backward):
                continue
            block, start = self._blocks[action.layer], self.starts[action.layer]
            if isinstance(action, Backward):
                steps = block.backward(again[action.layer])
            elif not action.keep:
                steps = block.dropped()
            else:
                chosen = 0 if action.ends_body else int(action.option or 0)
                again[action.layer] = chosen
                steps = block.kept(chosen)
            for step in steps:
                result.append(replace(step, layer=step.layer + start))
        return Actions(tuple(result))


def as_chain(graph: LayerGraph) -> tuple[BlockChain, ...]:
    """The graph as a chain of blocks: with options and, where that is a difference, without.

    Working memory is the worst over the options, so plans that use none may be dearer in the
    first.

    Raises
    ------
    InvalidProblem
        The sizes of the blocks add up beyond 2**62.
    """
    n = len(graph)
    ends = [v for v in cuts(graph) if v < n - 1] + [n - 1]
    starts = (0, *(end + 1 for end in ends[:-1]))
    seen: dict[object, Block] = {}
    blocks: list[Block] = []
    for start, end in zip(starts, ends, strict=True):
        layers = graph.layers[start : end + 1]
        # An edge from the cut before becomes one from -1.
        edges = tuple(
            (u - start, v - start) for v in range(start, end + 1) for u in graph.inputs[v]
        )
        before = graph.layers[start - 1].output_bytes if start else graph.input_bytes
        where = (start == 0, end == n - 1)
        key = (before, where, edges, tuple(layer.facts for layer in layers))
        if key not in seen:
            seen[key] = Block(layers, edges, before, *where)
        blocks.append(seen[key])
    result = []
    for with_options in (True, False):
        costs = {block: block.layer(with_options) for block in seen.values()}
        named = [
            replace(costs[block], name=graph.layers[end].name)
            for block, end in zip(blocks, ends, strict=True)
        ]
        chain = Chain(tuple(named), graph.input_bytes)
        result.append(BlockChain(chain, starts, tuple(blocks)))
        if not any(layer.options for layer in named):
            break
    return tuple(result)


def solve_blocks(graph: LayerGraph, budget: int) -> Blocks | None:
    """The fastest plan over the blocks of a graph within `budget` bytes; None: there is none.

    Raises
    ------
    InvalidProblem
        The sizes of the blocks add up beyond 2**62.
    """
    best: Blocks | None = None
    least = graph.least_time
    bounds: list[int] = []
    for blocks in as_chain(graph):
        try:
            found = optimum.solve(blocks.chain, budget)
            schedule, bound = found.schedule, found.lower_bound_time
        except Infeasible as error:
            schedule, bound = error.schedule, least  # its replay on the graph may fit even so
        steps = blocks.actions(schedule)
        done = graph.replay(steps)
        if done.peak_bytes > budget:
            continue
        bounds.append(bound)
        if best is None or done.time < best.time:
            count = len(blocks.chain)
            exact = count == len(graph)
            best = Blocks(steps, done.peak_bytes, done.time, done.time, count, exact)
        if done.time == least:
            break
    return best and replace(best, lower_bound_time=min(best.time, *bounds))

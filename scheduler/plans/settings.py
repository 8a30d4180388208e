"""What the flags of frameworks mean: each setting as a plan, and the best of a family of them.

Frameworks count the blocks of a stack, and nothing around it. The blocks of a chain are its
recomputable layers whose names end with a number (``model.layers.3``); where no name does, they
are all its recomputable layers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from scheduler.common.errors import InfeasibleBudget, UnsuitableMethod
from scheduler.plans.text import peak_text
from solvers.chain.problem import Chain
from solvers.chain.segments import Segments, Tables, evaluate, plan_of, tables
from solvers.schedule import Backward, Checkpoint, Item, Items, Keep

__all__ = [
    "TRACED_SELECTIVE",
    "Outcome",
    "Setting",
    "best",
    "block_settings",
    "blocks_of",
    "checkpointed",
    "even_settings",
    "evenly",
    "every_settings",
    "option_blocks",
    "option_settings",
    "outcome_of",
    "stages_of",
    "uniform_settings",
]

TRACED_SELECTIVE = "megatron-selective"
"""What `costs.options.policies` calls Megatron's ``selective core_attn`` in a traced block."""

_NUMBERED = re.compile(r"(?:^|\.)\d+$")


@dataclass(frozen=True, slots=True)
class Setting:
    """What somebody writes into a configuration, and the segments of the chain that it means.

    Attributes
    ----------
    text
        As a person writes it: ``megatron: full block 12``.
    segments
        Runs of layers, each one checkpoint whose body keeps everything.
    number
        The number in it, where there is one.
    option
        Under which each block is kept that no segment holds and that has options; None: fully.
    """

    text: str
    segments: Segments
    number: int | None = None
    option: str | None = None

    def items(self, chain: Chain) -> tuple[Item, ...]:
        """The plan that does the same."""
        items = plan_of(len(chain), self.segments)
        if self.option is None:
            return items
        blocks = set(option_blocks(chain))
        return tuple(
            Keep(item.layer, self.option)
            if isinstance(item, Keep) and item.layer in blocks
            else item
            for item in items
        )

    def measured(self, chain: Chain, t: Tables) -> tuple[int, int]:
        """Peak and time of that plan; `t` are the chain's `tables`."""
        if self.option is None:
            return evaluate(chain, t, self.segments)
        done = chain.replay(Items(self.items(chain)))
        return done.peak_bytes, done.time


@dataclass(frozen=True, slots=True)
class Outcome:
    """A setting, and what the replay of its plan gives.

    Attributes
    ----------
    setting, items
        The setting, and the plan that does the same.
    peak_bytes, ticks
        Peak, and time in the chain's integer unit.
    set_by
        What needs the peak: ``the backward of 'head'``.
    """

    setting: Setting
    items: tuple[Item, ...]
    peak_bytes: int
    ticks: int
    set_by: str


def blocks_of(chain: Chain) -> tuple[int, ...]:
    """Indices of the layers that a framework's flags count.

    Raises
    ------
    UnsuitableMethod
        Every layer must be kept.
    """
    free = [i for i, layer in enumerate(chain.layers) if layer.recomputable]
    if not free:
        raise UnsuitableMethod("every layer of these costs must be kept; no setting changes that")
    return tuple(i for i in free if _NUMBERED.search(chain.layers[i].name)) or tuple(free)


def option_blocks(chain: Chain) -> tuple[int, ...]:
    """The blocks that have options: one that has none can only be kept fully, or recomputed."""
    return tuple(i for i in blocks_of(chain) if chain.layers[i].options)


def outcome_of(chain: Chain, setting: Setting, others: int = 0) -> Outcome:
    """Replay the plan of a setting, beside `others` micro-batches between forward and backward."""
    items = setting.items(chain)
    done = chain.replay(Items(items))
    peak = done.peak_bytes
    if others:
        backward = next(i for i, s in enumerate(done.moments) if isinstance(s.action, Backward))
        # The gradient of the last output, which the replay counts from the start, is not there yet.
        held = done.moments[backward - 1].after_bytes - chain.layers[-1].output_bytes
        peak += others * held
    set_by = peak_text(done.peak_action, [layer.name for layer in chain.layers])
    return Outcome(setting, items, peak, done.time, set_by)


def best(
    chain: Chain, settings: Iterable[Setting], room: int, *, family: str, reserved: int = 0
) -> Outcome:
    """The fastest of `settings` within `room` bytes; ties to the smaller peak, then the first.

    Raises
    ------
    InfeasibleBudget
        None fits; carries the smallest budget that one does, `reserved` bytes included. `family`
        is what a message calls them.
    """
    t = tables(chain)
    found: list[tuple[int, int, int, Setting]] = []
    for n, setting in enumerate(settings):
        peak, ticks = setting.measured(chain, t)
        found.append((ticks, peak, n, setting))
    fitting = [each for each in found if each[1] <= room]
    if not fitting:
        least = outcome_of(chain, min(found, key=lambda each: (each[1], each[0], each[2]))[3])
        budget, smallest = room + reserved, least.peak_bytes + reserved
        raise InfeasibleBudget(budget, smallest, least.set_by, reserved, family)
    return outcome_of(chain, min(fitting, key=lambda each: each[:3])[3])


def stages_of(blocks: Sequence[int], stages: int) -> list[Sequence[int]]:
    """The blocks of each pipeline stage: runs whose lengths differ by at most one."""
    return [blocks[first : last + 1] for first, last in _cut(len(blocks), stages)]


def uniform_settings(
    framework: str, stages: Sequence[Sequence[int]], numbers: Iterable[int]
) -> Iterator[Setting]:
    """Segments of n blocks within each stage; the last of a stage may be shorter."""
    for n in numbers:
        runs = [stage[at : at + n] for stage in stages for at in range(0, len(stage), n)]
        yield Setting(f"{framework} {n}", tuple(span for run in runs for span in _spans(run)), n)


def block_settings(
    framework: str, stages: Sequence[Sequence[int]], numbers: Iterable[int]
) -> Iterator[Setting]:
    """The first n blocks of each stage, a segment each."""
    for n in numbers:
        singles = tuple((i, i) for stage in stages for i in stage[:n])
        yield Setting(f"{framework} {n}", singles, n)


def every_settings(
    framework: str, blocks: Sequence[int], numbers: Iterable[int], *, start: int = 0
) -> Iterator[Setting]:
    """One block in n, a segment each: the first, or the one at position ``n - 1`` (`start` -1)."""
    for n in numbers:
        yield Setting(f"{framework} {n}", tuple((i, i) for i in blocks[start % n :: n]), n)


def even_settings(
    framework: str, blocks: Sequence[int], numbers: Iterable[int]
) -> Iterator[Setting]:
    """The blocks in n segments whose lengths differ by at most one."""
    for n in numbers:
        yield Setting(f"{framework} {n}", evenly(blocks, n), n)


def evenly(blocks: Sequence[int], parts: int) -> Segments:
    """Blocks in `parts` segments whose lengths differ by at most one, the longer ones first."""
    runs = [blocks[first : last + 1] for first, last in _cut(len(blocks), parts)]
    return tuple(span for run in runs for span in _spans(run))


def option_settings(framework: str, chain: Chain) -> Iterator[Setting]:
    """Each option that every block with options has, on every such block."""
    known = [[option.name for option in chain.layers[i].options] for i in option_blocks(chain)]
    for name in known[0] if known else ():
        if all(name in names for names in known):
            yield Setting(f"{framework} {name}", (), option=name)


def checkpointed(items: Sequence[Item]) -> list[int]:
    """Layers that a plan's outermost checkpoints hold."""
    held = (item for item in items if isinstance(item, Checkpoint))
    return [i for item in held for i in range(item.first, item.last + 1)]


def _spans(run: Sequence[int]) -> list[tuple[int, int]]:
    """A run of blocks as segments, split where another layer stands between two of them."""
    spans: list[tuple[int, int]] = []
    for i in run:
        if spans and spans[-1][1] == i - 1:
            spans[-1] = (spans[-1][0], i)
        else:
            spans.append((i, i))
    return spans


def _cut(length: int, parts: int) -> list[tuple[int, int]]:
    """`length` things in `parts` runs, as (first, last), the longer ones first."""
    short, longer = divmod(length, parts)
    found, at = [], 0
    for part in range(parts):
        size = short + (part < longer)
        if size:
            found.append((at, at + size - 1))
        at += size
    return found

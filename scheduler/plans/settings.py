"""What the flags of frameworks mean: each setting as a plan, and the best of a family of them.

Frameworks count the blocks of a stack, and nothing around it. The blocks of a chain are its
recomputable layers whose names end with a number (``model.layers.3``); where no name does, they
are all its recomputable layers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from scheduler.common.errors import InfeasibleBudget, UnsuitableMethod
from scheduler.plans.text import peak_text
from solvers.chain.problem import Chain
from solvers.chain.segments import Segments, Tables, evaluate, plan_of
from solvers.schedule import Backward, Checkpoint, Item, Items, Keep

TRACED_SELECTIVE = "megatron-selective"
"""What `costs.options.policies` calls Megatron's ``selective core_attn`` in a traced block."""

Cut = Callable[[Sequence[int], int], Segments]
"""Blocks as segments, by the number that a setting has."""

_NUMBERED = re.compile(r"(?:^|\.)\d+$")


@dataclass(frozen=True, slots=True)
class Setting:
    """What somebody writes into a configuration, ``megatron: full block 12``, and what it means.

    Attributes
    ----------
    segments
        Runs of layers, each one checkpoint whose body keeps everything.
    number
        The number in the text, where there is one.
    option
        Under which each block is kept that no segment holds and that has options; None: fully.
    kept
        Layers and the options under which they are kept, in a segment or not.
    """

    text: str
    segments: Segments
    number: int | None = None
    option: str | None = None
    kept: tuple[tuple[int, str], ...] = ()

    def items(self, chain: Chain) -> tuple[Item, ...]:
        """The plan that does the same."""
        items = plan_of(len(chain), self.segments)
        if self.kept:
            return _kept(items, dict(self.kept))
        if self.option is None:
            return items
        outside = {item.layer for item in items if isinstance(item, Keep)}
        blocks = outside.intersection(option_blocks(chain))
        return _kept(items, dict.fromkeys(blocks, self.option))

    def measured(self, chain: Chain, t: Tables) -> tuple[int, int]:
        """Peak and time of that plan; `t` are the chain's `Tables`."""
        if self.option is None and not self.kept:
            return evaluate(chain, t, self.segments)
        done = chain.replay(Items(self.items(chain)))
        return done.peak_bytes, done.time


def _kept(items: tuple[Item, ...], options: Mapping[int, str]) -> tuple[Item, ...]:
    """The items, with these layers kept under these options, inside checkpoints too."""
    found: list[Item] = []
    for item in items:
        if isinstance(item, Checkpoint):
            item = replace(item, body=_kept(item.body, options))
        elif isinstance(item, Keep):
            item = replace(item, option=options.get(item.layer, item.option))
        found.append(item)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A setting, the plan that does the same, and what its replay gives.

    `ticks` is its time in the chain's integer unit, `set_by` what needs the peak: ``the backward
    of 'head'``.
    """

    setting: Setting
    items: tuple[Item, ...]
    peak_bytes: int
    ticks: int
    set_by: str


def blocks_of(chain: Chain) -> tuple[int, ...]:
    """Indices of the layers that a framework's flags count."""
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

    Where none fits, the error has the smallest budget that one does, `reserved` bytes included;
    `family` is what it calls them.
    """
    t = Tables(chain)
    measured = [(*setting.measured(chain, t), setting) for setting in settings]
    fitting = [(peak, ticks, setting) for peak, ticks, setting in measured if peak <= room]
    if not fitting:
        least = outcome_of(chain, min(measured, key=lambda found: found[:2])[2])
        budget, smallest = room + reserved, least.peak_bytes + reserved
        raise InfeasibleBudget(budget, smallest, least.set_by, reserved, family)
    return outcome_of(chain, min(fitting, key=lambda found: (found[1], found[0]))[2])


def stages_of(blocks: Sequence[int], parts: int) -> list[Sequence[int]]:
    """Blocks in runs whose lengths differ by at most one, the longer ones first."""
    short, longer = divmod(len(blocks), parts)
    ends = [short * part + min(part, longer) for part in range(parts + 1)]
    return [blocks[at:end] for at, end in pairwise(ends) if at < end]


def even(blocks: Sequence[int], n: int) -> Segments:
    """The blocks in n segments whose lengths differ by at most one."""
    return tuple(span for run in stages_of(blocks, n) for span in _spans(run))


def uniform(blocks: Sequence[int], n: int) -> Segments:
    """Segments of n blocks; the last may be shorter."""
    return tuple(span for at in range(0, len(blocks), n) for span in _spans(blocks[at : at + n]))


def first(blocks: Sequence[int], n: int) -> Segments:
    """The first n blocks, a segment each."""
    return singles(blocks[:n])


def every(blocks: Sequence[int], n: int) -> Segments:
    """One block in n, a segment each, from the first on."""
    return singles(blocks[::n])


def every_last(blocks: Sequence[int], n: int) -> Segments:
    """One block in n, a segment each, from the nth on."""
    return singles(blocks[n - 1 :: n])


def singles(layers: Iterable[int]) -> Segments:
    """Layers as a segment each."""
    return tuple((i, i) for i in layers)


def cut_settings(text: str, cut: Cut, blocks: Sequence[int], most: int) -> Iterator[Setting]:
    """The settings that cut blocks by a number from 1 to `most`."""
    for n in range(1, most + 1):
        yield Setting(f"{text} {n}", cut(blocks, n), n)


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

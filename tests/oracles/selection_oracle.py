"""What may be kept inside a block, found out by running the block.

Nothing here may use `solvers.selection.pareto` but the problem's own classes: the forward is run on
contents that say what they were made of, for every set of operations, and a set is legal when the
second run finds everything as the first did. Slow and plain on purpose.

When the second run reaches an object of a storage in two ways (one handed back, one made again),
nothing says which of them an operation means, so both must be right.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from hypothesis import strategies as st

from solvers.selection.problem import Block, Operation

Priced = tuple[int, int, int, tuple[int, ...]]
"""saved_bytes, recompute_time, number of operations, operations."""


@dataclass
class Memory:
    """Contents of the storages in a run."""

    made: dict[int, int] = field(default_factory=dict)
    """Storage to the content of the object that an operation of this run made."""
    handed: dict[int, int] = field(default_factory=dict)
    """Storage to the content of the object that was kept from the first run."""

    def copy(self) -> Memory:
        return Memory(dict(self.made), dict(self.handed))

    def objects(self, storage: int) -> list[int]:
        return [held[storage] for held in (self.made, self.handed) if storage in held]


class Oracle:
    """A block, run once in full."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.names: dict[object, int] = {}
        self.seen: list[dict[int, int]] = []
        memory = Memory({s: self.content("given", s) for s in block.given})
        self.at_stop: dict[int, int] = dict(memory.made)
        for i in range(len(block.operations)):
            self.seen.append({s: memory.made[s] for s in self.looks_at(i)})
            self.run(i, memory)
            if i + 1 == block.stop:
                self.at_stop = dict(memory.made)
        self.at_end = memory.made

    def content(self, *made_of: object) -> int:
        return self.names.setdefault(made_of, len(self.names))

    def looks_at(self, i: int) -> set[int]:
        operation = self.block.operations[i]
        return set() if operation.views and not operation.writes else set(operation.reads)

    def run(self, i: int, memory: Memory) -> None:
        read = tuple(tuple(memory.objects(s)) for s in sorted(self.looks_at(i)))
        single = tuple(contents[0] for contents in read)
        for s in set(self.block.operations[i].writes):
            if not memory.objects(s):
                memory.made[s] = self.content(i, s, single, None)
            else:
                for held in (memory.made, memory.handed):
                    if s in held:
                        held[s] = self.content(i, s, single, held[s])

    def stored(self, i: int) -> set[int]:
        operation = self.block.operations[i]
        return {*operation.writes, *operation.views} - self.block.given

    def legal(self) -> Iterator[tuple[int, ...]]:
        """Every legal set of operations."""
        start = Memory({s: self.content("given", s) for s in self.block.given})
        yield from self.from_here(0, (), start)

    def from_here(self, i: int, kept: tuple[int, ...], memory: Memory) -> Iterator[tuple[int, ...]]:
        block = self.block
        if i >= block.stop:
            storages = memory.made.keys() | memory.handed.keys()
            if any(c != self.at_stop[s] for s in storages for c in memory.objects(s)):
                return
            rest = range(block.stop, len(block.operations))
            for chosen in range(1 << len(rest)):  # of no use, and no harm
                yield kept + tuple(k for k in rest if chosen >> (k - block.stop) & 1)
            return
        if all(c == then for s, then in self.seen[i].items() for c in memory.objects(s)):
            again = memory.copy()
            self.run(i, again)
            yield from self.from_here(i + 1, kept, again)
        for s in self.stored(i):
            memory.handed.setdefault(s, self.at_end[s])
        yield from self.from_here(i + 1, (*kept, i), memory)

    def priced(self, kept: tuple[int, ...]) -> Priced:
        block = self.block
        stored: set[int] = set().union(*(self.stored(i) for i in kept))
        again = set(range(block.stop)) - set(kept)
        time = sum(block.operations[i].time for i in again)
        return sum(block.storage_bytes[s] for s in stored), time, len(kept), kept

    def pareto(self) -> list[Priced]:
        best: list[Priced] = []
        for point in sorted(self.priced(kept) for kept in self.legal()):
            if not best or point[1] < best[-1][1]:
                best.append(point)
        return best


def random_block(seed: int, count: int) -> Block:
    """A block of `count` operations of every kind, sizes and times small enough to be equal."""
    random = Random(seed)
    sizes = [random.randint(0, 9) for _ in range(random.randint(1, 2))]
    given = frozenset(range(len(sizes)))
    busy = random.random()  # how much of the block is in place or views
    operations = []
    for i in range(count):
        mine = sorted(set(range(len(sizes))) - given)
        kind = "new"
        if mine and random.random() < busy:
            kind = random.choice(["in place", "in place", "view", "beside", "number"])
        reads = random.choices(range(len(sizes)), k=random.randint(0, 3))
        views: list[int] = []
        writes: list[int] = []
        if kind == "view":
            views = random.choices(range(len(sizes)), k=random.randint(1, 2))
        elif kind == "beside":
            views = [random.choice(mine)]
        elif kind == "in place":
            writes = random.choices(mine, k=random.randint(1, 2))
        if kind in ("new", "beside") or (kind == "in place" and random.random() < 0.25):
            for _ in range(random.randint(1, 2)):
                writes.append(len(sizes))
                sizes.append(random.randint(0, 9))
        time = 0 if kind == "view" else random.randint(0, 6)
        operations.append(Operation(f"{kind} {i}", time, tuple(reads), tuple(writes), tuple(views)))
    stop = count - min(count, random.choice([0, 0, 0, 1, 2, 3]))
    return Block(tuple(operations), tuple(sizes), given, stop)


def blocks(most: int) -> st.SearchStrategy[Block]:
    """Random blocks of up to `most` operations; from a seed, for drawing each field is slow."""
    return st.builds(random_block, st.integers(0, 2**32 - 1), st.integers(0, most))

"""What has to be kept together: a block's operations as items of a knapsack with dependencies.

A kept operation hands back its stored outputs as they were at the END of the forward, and all that
is not kept runs again on what it finds. So, of the operations that run again at all:

- Operations that write one storage are kept all or none: with a part of them, the storage is
  written twice, or a tensor that was made again misses a write. They are one item (transitively:
  one operation may write several storages).
- Where that item is kept, whatever else reads a content that is overwritten later must be kept
  too: run again, it would find the last content.
- An operation that hands out a view beside what it writes stores the viewed storage as well. If
  the storage is written later, its writers must be kept too; else the view shows what it showed.
  Then it needs no more than the bytes, which are an item without operations when others need them.
- A storage that is written again by an operation that does not run again would be handed back with
  that last content, and the backward may read the one before: it cannot be stored.

Everything else finds the right contents whether it runs again or not. So exactly the sets
closed under `Item.needs` and free of barred items are legal.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from solvers.selection.problem import Block


@dataclass(slots=True)
class Item:
    """Operations that are kept all or none.

    Attributes
    ----------
    operations
        Their indices, ascending; none for a storage that several items share.
    bytes
        Sizes of the storages that this item alone stores.
    time
        Of all its operations.
    needs
        Indices of the items that must be kept with it, without what those need in turn.
    bar
        Why it can never be kept: a storage, and an operation that writes it too late. Else None.
    """

    operations: tuple[int, ...]
    bytes: int
    time: int
    needs: set[int] = field(default_factory=set)
    bar: tuple[int, int] | None = None


def items(block: Block) -> list[Item]:
    """The items of a block.

    Two kinds of operations are in none, for keeping them is of no use: views, which store a storage
    and save no time, and operations that do not run again.
    """
    candidates = [i for i in range(block.stop) if not block.operations[i].is_view]
    writers: dict[int, list[int]] = defaultdict(list)
    viewers: dict[int, list[int]] = defaultdict(list)
    readers: dict[int, list[int]] = defaultdict(list)
    for i in candidates:
        operation = block.operations[i]
        for table, storages in (
            (writers, operation.writes),
            (viewers, operation.views),
            (readers, operation.reads),
        ):
            for storage in set(storages) - block.given:
                table[storage].append(i)
    late = {
        storage: i
        for i in range(block.stop, len(block.operations))
        for storage in block.operations[i].writes
    }

    groups = _joined(candidates, writers.values())
    result = [Item(group, 0, sum(block.operations[i].time for i in group)) for group in groups]
    item_of = {i: index for index, group in enumerate(groups) for i in group}
    for storage in sorted(writers.keys() | viewers.keys()):
        written, viewed = writers[storage], viewers[storage]
        users = {item_of[i] for i in (*written, *viewed)}
        size = block.storage_bytes[storage]
        if len(users) == 1:
            result[min(users)].bytes += size
        else:
            for user in users:
                result[user].needs.add(len(result))
            result.append(Item((), size, 0))
        if storage in late:
            for user in users:
                result[user].bar = storage, late[storage]
        for i in viewed:
            if i < written[-1]:
                result[item_of[i]].needs.add(item_of[written[0]])
        for i in readers[storage]:
            if i < written[-1]:
                result[item_of[written[0]]].needs.add(item_of[i])
    for index, item in enumerate(result):
        item.needs.discard(index)
    return result


def closure(items: list[Item], chosen: Iterable[int]) -> set[int]:
    """The chosen items and all that they need."""
    found: set[int] = set()
    wanted = list(chosen)
    while wanted:
        index = wanted.pop()
        if index not in found:
            found.add(index)
            wanted += items[index].needs
    return found


def _joined(members: list[int], sets: Iterable[list[int]]) -> list[tuple[int, ...]]:
    """Parts of the ascending `members` that the sets hold together, by their first member."""
    parts = {i: [i] for i in members}
    for together in sets:
        first = parts[together[0]]
        for i in together[1:]:
            if parts[i] is not first:
                first += parts[i]
                for j in parts[i]:
                    parts[j] = first
    whole = {id(part): part for part in parts.values()}
    return sorted(tuple(sorted(part)) for part in whole.values())

"""The problem inside one block: its operations, and the storages that they make and read."""

from __future__ import annotations

from dataclasses import dataclass

from solvers.problem import LIMIT, InvalidProblem, check_quantity


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a block's forward; a storage is an index of `Block.storage_bytes`.

    Attributes
    ----------
    name
        For messages; need not be unique.
    time
        In the problem's one integer unit; 0 for a view.
    reads
        Storages whose content it uses. One that it writes again counts as read.
    writes
        Storages that it makes or changes in place.
    views
        Storages that its outputs alias unchanged. An operation with views that writes nothing is a
        view: it looks at no content, whatever `reads` says.

    Raises
    ------
    InvalidProblem
        A field has no meaning, or contradicts another.
    """

    name: str
    time: int
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    views: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        where = f"operation {self.name!r}"
        check_quantity(where, "time", self.time)
        for field in ("reads", "writes", "views"):
            for storage in getattr(self, field):
                check_quantity(where, field, storage)
        if both := set(self.writes) & set(self.views):
            raise InvalidProblem(
                f"{where}: storage {min(both)} is in writes and in views; "
                "what an operation changes is in writes alone"
            )
        if self.is_view and self.time:
            raise InvalidProblem(f"{where} is a view and takes no time; set its time to 0")

    @property
    def is_view(self) -> bool:
        """Its outputs are views and it writes nothing."""
        return bool(self.views) and not self.writes


@dataclass(frozen=True, slots=True)
class Block:
    """A block's forward.

    Attributes
    ----------
    operations
        In the order in which they run.
    storage_bytes
        Size of every storage.
    given
        Storages that exist whatever is kept: the block's input, parameters, outside arguments.
    stop
        Operations from here on are not run again.

    Raises
    ------
    InvalidProblem
        A field has no meaning; a storage is used before anything writes it; or a given storage is
        written, so that running again would not give the same.
    """

    operations: tuple[Operation, ...]
    storage_bytes: tuple[int, ...]
    given: frozenset[int]
    stop: int

    def __post_init__(self) -> None:
        for size in self.storage_bytes:
            check_quantity("the block", "storage_bytes", size)
        for storage in self.given:
            check_quantity("the block", "given", storage)
        check_quantity("the block", "stop", self.stop)
        if self.stop > len(self.operations):
            raise InvalidProblem(
                f"the block: stop is {self.stop}, but it has {len(self.operations)} operations"
            )
        known = set(self.given)
        self._check_known("the block", known)
        for i, operation in enumerate(self.operations):
            where = f"operation {i} ({operation.name!r})"
            used = {*operation.reads, *operation.views}
            self._check_known(where, used | set(operation.writes))
            if unknown := used - known:
                raise InvalidProblem(
                    f"{where} uses storage {min(unknown)} before anything writes it; "
                    "add it to given if it exists before the block"
                )
            if changed := self.given & set(operation.writes):
                raise InvalidProblem(
                    f"{where} writes storage {min(changed)}, which is given: running the block "
                    "again would not give the same; keep such a block whole"
                )
            known.update(operation.writes)
        for what, total in (
            ("times", sum(operation.time for operation in self.operations)),
            ("sizes", sum(self.storage_bytes)),
        ):
            if total >= LIMIT:
                raise InvalidProblem(
                    f"the block: {what} add up to {total}, beyond 2**62; use a larger unit"
                )

    def _check_known(self, where: str, storages: set[int]) -> None:
        most = max(storages, default=-1)
        if most >= len(self.storage_bytes):
            raise InvalidProblem(
                f"{where} names storage {most}, but storage_bytes has {len(self.storage_bytes)}"
            )

    @property
    def run_again_time(self) -> int:
        """Time of all operations before `stop`: what keeping nothing costs."""
        return sum(operation.time for operation in self.operations[: self.stop])

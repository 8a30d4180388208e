"""The options of a block from its shape alone, as `scheduler.pytorch` sees those in torch.

The block runs on paper once to write its operations down. The sets of results worth keeping are
chosen as they are in torch, and the block is run under each: as a selective checkpoint, forward,
forward again and backward.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

from scheduler.costs.options.both import TiledOptions, wanted_around
from scheduler.costs.options.inside import Inside, Operation
from scheduler.costs.options.pareto import SeenOption, Wanted, wanted
from scheduler.costs.peaks import Peaks
from scheduler.memory.errors import NoFormula
from scheduler.memory.gpus import Gpu
from scheduler.memory.simulate.selective import Selective
from scheduler.memory.simulate.setting import MLP, Setting
from scheduler.memory.simulate.step import Activations, Seen, block, flops_share, run_again
from scheduler.memory.simulate.tensors import Paper, Saved, Storage, Value
from scheduler.memory.simulate.tiles import block_tiles

_GIVEN = 0
"""The storage that stands for all that is not counted: input, parameters, tables, masks."""
_RANDOM = ("bernoulli", "dropout", "scaled_dot_product")


class Recorder(Paper):
    """Writes operations down as `scheduler.pytorch` does in torch, until `inside` is asked for."""

    def __init__(self, gpu: Gpu, *, flops_share: float = 1.0) -> None:
        super().__init__(gpu, flops_share=flops_share)
        self._operations: list[Operation] = []
        self._calls: Counter[str] = Counter()
        self._sizes = [0]
        self._known: WeakKeyDictionary[Storage, int] = WeakKeyDictionary()
        self._saved: set[int] = set()
        self._stop = 0
        self._tiled_time = self._tiled_before = 0.0

    def run(
        self, op: str, reads: Sequence[Value], makes: Sequence[tuple[int, int]], flops: float = 0
    ) -> list[Value]:
        """Run a kernel, and write it down."""
        before = self.seconds
        made = super().run(op, reads, makes, flops)
        if self._noted is not None:  # in tiles, what is made there is there whatever is kept
            self._tiled_time += self.seconds - before
            return made
        for value in made:
            assert value.storage is not None
            self._known[value.storage] = len(self._sizes)
            self._sizes.append(value.bytes)
        self._write(op, reads, self._storages(made), (), self.seconds - before)
        return made

    def change(self, op: str, value: Value, *reads: Value) -> None:
        """Run a kernel in place, and write it down."""
        before = self.seconds
        super().change(op, value, *reads)
        if self._noted is not None:
            self._tiled_time += self.seconds - before
            return
        self._write(op, (value, *reads), (), self._storages((value,)), self.seconds - before)

    def save(self, *values: Value) -> Saved:
        """Save tensors, and note where the last ones are."""
        if self._noted is None:
            self._saved.update(self._storages([value.part or value for value in values]))
            self._stop, self._tiled_before = len(self._operations), self._tiled_time
        return super().save(*values)

    def inside(self, output: Value) -> Inside:
        """All operations so far, as those of a block's forward; none of its backward."""
        return Inside(
            forward=tuple(self._operations),
            backward=(),
            storage_bytes=tuple(self._sizes),
            given=frozenset({_GIVEN}),
            output=self._storages((output,))[0],
            saved=frozenset(self._saved),
            stop=self._stop,
            tiled_time=self._tiled_before * 1e3,
        )

    def _write(
        self,
        op: str,
        reads: Sequence[Value],
        makes: tuple[int, ...],
        changes: tuple[int, ...],
        seconds: float,
    ) -> None:
        self._operations.append(
            Operation(
                name=op,
                call=self._calls[op],
                reads=self._storages(reads),
                makes=makes,
                changes=changes,
                views=changes,
                time=seconds * 1e3,
                random=any(word in op for word in _RANDOM),
            )
        )
        self._calls[op] += 1

    def _storages(self, values: Sequence[Value]) -> tuple[int, ...]:
        storages = (value.storage for value in values)
        found = (_GIVEN if each is None else self._known.get(each, _GIVEN) for each in storages)
        return tuple(dict.fromkeys(found))


def block_options(at: Setting, gpu: Gpu, kept: Activations, seen: Seen) -> list[SeenOption]:
    """The options of the shape's block; a result's call is one of transformers' code.

    `kept` and `seen` are of the whole block: what it keeps, and how it ran on paper.
    """
    if at.shape.experts and at.experts != "grouped":
        raise NoFormula(
            f"there are no options for experts={at.experts!r}, whose operations are not followed; "
            "say experts='grouped', or leave options out",
            argument="experts",
        )
    inside = look_inside(at, gpu)
    found, _gap = wanted(inside, seen.recompute_time * 1e3, kept.saved_bytes)
    return _seen(at, gpu, kept, inside, found)


def tiled_options(
    at: Setting, gpu: Gpu, kept: Activations, whole: Peaks, least: int | None
) -> tuple[TiledOptions, ...]:
    """The options of the shape's block that keep some of its results, and run its MLP in tiles."""
    found = []
    one = replace(at, one_tiled=True)
    for tile in block_tiles(one, gpu, least, whole) if MLP in at.tiled else ():
        tiled = replace(one, tiles=tile.count)
        inside = look_inside(tiled, gpu)
        ways = _seen(tiled, gpu, kept, inside, wanted_around(inside, tile.peaks))
        found.append(TiledOptions(MLP, tile, tuple(ways)))
    return tuple(found)


def _seen(
    at: Setting, gpu: Gpu, kept: Activations, inside: Inside, found: Iterable[Wanted]
) -> list[SeenOption]:
    """The block run with each of the sets kept."""
    # Under autocast activation functions and biases are cast too, which is not all followed.
    named = not at.autocast
    runs = Counter(operation.name for operation in inside.forward)
    options = []
    for want in found:
        way = run_again(Selective(gpu, want.kept, flops_share=flops_share(at, gpu)), block, at)
        if way.saved_bytes <= kept.saved_bytes:
            keeps = ((name, call, runs[name]) for name, call, *_ in want.keeps)
            want = replace(want, keeps=tuple(keeps) if named else ())
            options.append(SeenOption(want, way.peaks))
    return options


def look_inside(at: Setting, gpu: Gpu) -> Inside:
    """The operations of the shape's block, its backward left out."""
    paper = Recorder(gpu, flops_share=flops_share(at, gpu))
    made = block(paper, at, paper.source(at.features, at.stream))
    return paper.inside(made)

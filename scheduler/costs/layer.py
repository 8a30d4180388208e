"""Costs of one layer, checked when they are made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field, fields
from typing import Any

from scheduler.common.checks import (
    BYTES,
    COUNT,
    FLAG,
    NAME,
    TIME,
    as_records,
    check_keys,
    check_name,
    check_values,
    filled,
    is_needed,
)
from scheduler.common.errors import InvalidCosts
from scheduler.common.text import ordinal, shown
from scheduler.costs.keeps import Keeps, check_keeps, check_parts


def _keeps(where: str, name: str, value: object) -> Keeps:
    return check_keeps(f"{where}: {name}", value, InvalidCosts)


def _names(where: str, name: str, value: object) -> tuple[str, ...]:
    return check_parts(f"{where}: {name}", value, InvalidCosts)


def _options(where: str, name: str, value: object) -> tuple[OptionCost, ...]:
    if isinstance(value, Mapping | str) or not isinstance(value, Iterable):
        raise InvalidCosts(f"{where}: {name} must be a list of options, got {shown(value)}")
    made = tuple(_as_option(where, i, option) for i, option in enumerate(value))
    for i, option in enumerate(made):
        if option.name in [other.name for other in made[:i]]:
            raise InvalidCosts(f"{where}: two options are named {option.name!r}; rename one")
    return made


def _as_option(where: str, i: int, item: object) -> OptionCost:
    if isinstance(item, OptionCost):
        return item
    if not isinstance(item, Mapping):
        raise InvalidCosts(
            f"{where}: the {ordinal(i + 1)} option is {shown(item)}; an option is an OptionCost "
            "or a mapping of its fields"
        )
    known = is_needed(OptionCost)
    needed = [key for key in known if known[key]]
    check_keys(f"the {ordinal(i + 1)} option of {where}", item, known, needed, error=InvalidCosts)
    try:
        return OptionCost(**item)
    except InvalidCosts as error:
        raise InvalidCosts(f"{where}, {error}") from error


@dataclass(frozen=True, slots=True)
class OptionCost:
    """A cheaper way to keep a layer: save less of it, recompute the rest at its own backward.

    A field that is None is as for the layer itself. In torch an option is a selective checkpoint
    of the block: it holds the block's input, from which it starts again, whatever the layer does.
    Or what treats tokens alone, as a head with its loss does, runs in `tiles`, also in a layer that
    must be kept: its working memory is a tile's.

    Parameters
    ----------
    name
        What a plan calls it.
    saved_bytes
        Bytes of the layer's saved set that stay; at most the layer's own.
    recompute_time
        Time to make the rest again, once.
    forward_transient_bytes
        Working memory of the forward under this option, above output and what stays.
    backward_transient_bytes, backward_overlap_bytes
        Of the backward with the recomputation that begins it: bytes above all that is counted
        with the whole saved set live (and an output of its own, where the layer saves its output
        and the option does not), and bytes below that.
    input_saved, output_saved
        Does what stays hold the layer's input, its output?
    keeps
        Pairs (operation, n): the results that stay, as call n (from 0) of an operation such as
        ``aten.mm.default`` in the block's forward. What a plan is applied by in torch. Triples
        (operation, n, of) also say how many calls there must be, or the plan is refused.
    tiles
        Pieces, along the tokens, in which the layer runs; 0: it runs whole. Sums over tiles round
        otherwise than the layer's own. What runs in tiles keeps its input and is made again.
    tiled
        Which modules inside a block run in these tiles, by their names in it, such as ``mlp``; not
        said of a head, all of which does.
    ending_transient_bytes
        Working memory of the forward where it ends a recomputed segment; None: as of the others, or
        the layer's own where `forward_transient_bytes` is None, too.
    """

    name: str = field(metadata=NAME)
    saved_bytes: int = field(metadata=BYTES)
    recompute_time: float = field(metadata=TIME)
    forward_transient_bytes: int | None = field(default=None, metadata=BYTES)
    backward_transient_bytes: int | None = field(default=None, metadata=BYTES)
    backward_overlap_bytes: int | None = field(default=None, metadata=BYTES)
    input_saved: bool | None = field(default=None, metadata=FLAG)
    output_saved: bool | None = field(default=None, metadata=FLAG)
    keeps: Keeps = field(default=(), metadata={"check": _keeps})
    tiles: int = field(default=0, metadata=COUNT)
    tiled: tuple[str, ...] = field(default=(), metadata={"check": _names})
    ending_transient_bytes: int | None = field(default=None, metadata=BYTES)

    def __post_init__(self) -> None:
        if not check_name("an option", "name", self.name):
            raise InvalidCosts("an option has no name; a plan needs one to refer to it")
        check_values(f"option {self.name!r}", self)


@dataclass(frozen=True, slots=True)
class LayerCost:
    """Costs of one layer: times in the graph's time unit, sizes in bytes.

    numpy scalars are accepted everywhere and stored as plain Python numbers.

    What is counted: an activation (`output_bytes`) while a layer that needs it or a checkpoint
    holds it, a saved set until its backward, and the gradient of one activation: that of the last
    output is there from the start, and a backward makes that of its layer's input (of
    `input_bytes` for the first layer) before it lets its own go. During a kept forward
    ``output + saved + forward_transient`` are on top of what is live; during one that keeps
    nothing ``output + drop_transient`` (and what that forward alone needs); during a backward
    ``input + gradient + backward_transient - backward_overlap``.

    Parameters
    ----------
    name
        Empty: the graph calls it "layer 3" by its 0-based position.
    forward_time, backward_time
        Time of one forward, of one backward.
    output_bytes
        The activation handed to the next layer.
    saved_bytes
        What autograd keeps inside the layer for its backward, without its input and its output.
    recompute_time
        The forward where it ends a recomputed segment (torch stops at the last tensor it must
        save). Default: `forward_time`.
    forward_transient_bytes
        Working memory of a forward that keeps, above output and saved set.
    backward_transient_bytes
        Working memory of the backward, above everything that is counted.
    gradient_bytes
        Parameter gradients that this backward allocates and that stay until the optimizer step.
    input_saved, output_saved
        Does the saved set also hold the layer's input, its output? True is the safe side.
    options
        Cheaper ways to keep the layer, as `OptionCost` or mappings of its fields.
    drop_transient_bytes
        Working memory of a forward that keeps nothing, above its output: what the saved set would
        have held is a temporary there, so it can be larger. Default: `forward_transient_bytes`.
    backward_overlap_bytes
        Bytes by which the backward stays below the count, because saved tensors are freed before
        the gradients are allocated.
    ending_transient_bytes
        Working memory of a forward that keeps and ends a recomputed segment, all told: it begins in
        the backward, and may stop early. Default: `forward_transient_bytes`.
    first_transient_bytes, again_transient_bytes
        Working memory on top of that of a forward: of the first one (what the model's own code
        still refers to), of each other (what the backward has made by then).
    beside_bytes
        What the layer is handed beside its input and no later one is, such as masks, made by the
        last layer before it that must be kept, or before the first. It is let go when the layer has
        run forward; once one runs that will be recomputed, or is kept under an option, that one
        holds what it and those after it are handed until its backward is over. What kept layers
        hold as well is there throughout: a part of `input_bytes`, or of the saved set of the layer
        that made it. Of a graph all of it is there throughout.
    state_bytes
        Of a pipeline: what is resident of the layer on its stage's device, such as parameters, all
        their gradients and the optimizer's state. Elsewhere it is reserved, not counted.
    recomputable
        False: the layer must be kept, as when no module wraps it.
    time_spread
        Of measured times: by which share repeated runs were longer or shorter. No plan depends on
        it.

    Raises
    ------
    InvalidCosts
        A value is negative, not finite or of the wrong kind; the message names layer and field.
    """

    name: str = field(default="", metadata=NAME)
    _: KW_ONLY
    forward_time: float = field(metadata=TIME)
    backward_time: float = field(metadata=TIME)
    output_bytes: int = field(metadata=BYTES)
    saved_bytes: int = field(metadata=BYTES)
    recompute_time: float | None = field(
        default=None, metadata={**TIME, "otherwise": "forward_time"}
    )
    forward_transient_bytes: int = field(default=0, metadata=BYTES)
    backward_transient_bytes: int = field(default=0, metadata=BYTES)
    gradient_bytes: int = field(default=0, metadata=BYTES)
    input_saved: bool = field(default=True, metadata=FLAG)
    output_saved: bool = field(default=True, metadata=FLAG)
    options: tuple[OptionCost, ...] = field(default=(), metadata={"check": _options})
    drop_transient_bytes: int | None = field(
        default=None, metadata={**BYTES, "otherwise": "forward_transient_bytes"}
    )
    backward_overlap_bytes: int = field(default=0, metadata=BYTES)
    ending_transient_bytes: int | None = field(
        default=None, metadata={**BYTES, "otherwise": "forward_transient_bytes"}
    )
    first_transient_bytes: int = field(default=0, metadata=BYTES)
    again_transient_bytes: int = field(default=0, metadata=BYTES)
    beside_bytes: int = field(default=0, metadata=BYTES)
    state_bytes: int = field(default=0, metadata=BYTES)
    recomputable: bool = field(default=True, metadata=FLAG)
    time_spread: float = field(default=0.0, metadata=TIME)

    def __post_init__(self) -> None:
        check_name("a layer", "name", self.name)
        where = f"layer {self.name!r}" if self.name else "a layer without a name"
        check_values(where, self)
        for option in self.options:
            if option.saved_bytes > self.saved_bytes:
                raise InvalidCosts(
                    f"{where}, option {option.name!r}: saved_bytes {option.saved_bytes} is more "
                    f"than the layer's own {self.saved_bytes}; an option saves less"
                )


def as_layers(items: Iterable[object]) -> tuple[LayerCost, ...]:
    """Layers from `LayerCost` objects or mappings of their fields, each with a name of its own."""
    return as_records(items, LayerCost, "layer", "give the costs of at least one")


def to_record(cost: LayerCost | OptionCost) -> dict[str, Any]:
    """The fields of a layer or an option as JSON values, those at their default left out."""
    record = {
        each.name: getattr(cost, each.name)
        for each in fields(cost)
        if getattr(cost, each.name) != each.default
    }
    if "options" in record:
        record["options"] = [to_record(option) for option in record["options"]]
    if "keeps" in record:
        record["keeps"] = [list(pair) for pair in record["keeps"]]
    if "tiled" in record:
        record["tiled"] = list(record["tiled"])
    return record


def canonical_record(layer: LayerCost) -> dict[str, Any]:
    """As `to_record`, but the same for all ways to write the same layer."""
    record, values = to_record(layer), filled(layer)
    record.pop("time_spread", None)
    # Written out even where it is what stands for it.
    record |= {each.name: values[each.name] for each in fields(layer) if each.default is None}
    if values["ending_transient_bytes"] == values["forward_transient_bytes"]:
        del record["ending_transient_bytes"]  # as in plans of before that there was none
    for option in record.get("options", ()):
        for each in fields(OptionCost):
            if each.default is None and option.get(each.name) == values[each.name]:
                del option[each.name]
        if "keeps" in option:
            option["keeps"].sort()
    return record

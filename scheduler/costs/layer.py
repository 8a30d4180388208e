"""Costs of one layer, checked when they are made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, MISSING, dataclass, fields, replace
from typing import Any

from scheduler.common.checks import check_bytes, check_flag, check_name, check_time
from scheduler.common.errors import InvalidCosts
from scheduler.common.text import did_you_mean, ordinal, shown
from scheduler.costs.keeps import Keeps, check_keeps

__all__ = ["LAYER_FIELDS", "LayerCost", "OptionCost", "as_layers", "canonical_record"]
__all__ += ["drop_transient_of", "recompute_of", "to_record"]

_Check = Callable[[str, str, object], float]


@dataclass(frozen=True, slots=True)
class OptionCost:
    """A cheaper way to keep a layer: save less of it, recompute the rest at its own backward.

    A field that is None is as for the layer itself. In torch an option is a selective checkpoint
    of the block: it holds the block's input, from which it starts again, whatever the layer does.

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
        ``aten.mm.default`` in the block's forward. What a plan is applied by in torch.
    """

    name: str
    saved_bytes: int
    recompute_time: float
    forward_transient_bytes: int | None = None
    backward_transient_bytes: int | None = None
    backward_overlap_bytes: int | None = None
    input_saved: bool | None = None
    output_saved: bool | None = None
    keeps: Keeps = ()

    def __post_init__(self) -> None:
        _set(self, "name", check_name("an option", "name", self.name))
        if not self.name:
            raise InvalidCosts("an option has no name; a plan needs one to refer to it")
        where = f"option {self.name!r}"
        _check_fields(where, self, _OPTION_CHECKS)
        _set(self, "keeps", check_keeps(f"{where}: keeps", self.keeps, InvalidCosts))


@dataclass(frozen=True, slots=True)
class LayerCost:
    """Costs of one layer: times in the graph's time unit, sizes in bytes.

    numpy scalars are accepted everywhere and stored as plain Python numbers.

    What is counted: an activation (`output_bytes`) while a layer that needs it or a checkpoint
    holds it, a saved set until its backward, and the gradient of one activation: that of the last
    output is there from the start, and a backward makes that of its layer's input (of
    `input_bytes` for the first layer) before it lets its own go. During a kept forward
    ``output + saved + forward_transient`` are on top of what is live; during one that keeps
    nothing ``output + drop_transient``; during a backward
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
    recomputable
        False: the layer must be kept, as when no module wraps it.

    Raises
    ------
    InvalidCosts
        A value is negative, not finite or of the wrong kind; the message names layer and field.
    """

    name: str = ""
    _: KW_ONLY
    forward_time: float
    backward_time: float
    output_bytes: int
    saved_bytes: int
    recompute_time: float | None = None
    forward_transient_bytes: int = 0
    backward_transient_bytes: int = 0
    gradient_bytes: int = 0
    input_saved: bool = True
    output_saved: bool = True
    options: tuple[OptionCost, ...] = ()
    drop_transient_bytes: int | None = None
    backward_overlap_bytes: int = 0
    recomputable: bool = True

    def __post_init__(self) -> None:
        _set(self, "name", check_name("a layer", "name", self.name))
        where = f"layer {self.name!r}" if self.name else "a layer without a name"
        _check_fields(where, self, _CHECKS)
        _set(self, "options", _as_options(where, self.options))
        for option in self.options:
            if option.saved_bytes > self.saved_bytes:
                raise InvalidCosts(
                    f"{where}, option {option.name!r}: saved_bytes {option.saved_bytes} is more "
                    f"than the layer's own {self.saved_bytes}; an option saves less"
                )


LAYER_FIELDS = tuple(field.name for field in fields(LayerCost))
"""Names of a layer's fields, in the order they are written."""


def _checks(kind: type[LayerCost] | type[OptionCost]) -> dict[str, tuple[_Check, bool]]:
    """For each field that is a time, a size or a flag: its check, and whether it may be None."""
    checks: dict[str, tuple[_Check, bool]] = {}
    for field in fields(kind):
        may_be_none = field.default is None
        if field.name.endswith("_time"):
            checks[field.name] = (check_time, may_be_none)
        elif field.name.endswith("_bytes"):
            checks[field.name] = (check_bytes, may_be_none)
        elif field.name in ("input_saved", "output_saved", "recomputable"):
            checks[field.name] = (check_flag, may_be_none)
    return checks


_CHECKS = _checks(LayerCost)
_OPTION_CHECKS = _checks(OptionCost)


def as_layers(items: Iterable[object]) -> tuple[LayerCost, ...]:
    """Layers from `LayerCost` objects or mappings of their fields, each with a name of its own.

    Raises
    ------
    InvalidCosts
        There are none, two share a name, or one is not a layer.
    """
    layers = tuple(_as_layer(i, item) for i, item in enumerate(items))
    if not layers:
        raise InvalidCosts("there are no layers; give the costs of at least one")
    first: dict[str, int] = {}
    for i, layer in enumerate(layers):
        if first.setdefault(layer.name, i) != i:
            raise InvalidCosts(
                f"two layers are named {layer.name!r}, the {ordinal(first[layer.name] + 1)} and "
                f"the {ordinal(i + 1)}; give each a name of its own"
            )
    return layers


def to_record(cost: LayerCost | OptionCost) -> dict[str, Any]:
    """The fields of a layer or an option as JSON values, those at their default left out."""
    record = {
        field.name: getattr(cost, field.name)
        for field in fields(cost)
        if getattr(cost, field.name) != field.default
    }
    if "options" in record:
        record["options"] = [to_record(option) for option in record["options"]]
    if "keeps" in record:
        record["keeps"] = [list(pair) for pair in record["keeps"]]
    return record


def recompute_of(layer: LayerCost) -> float:
    """The layer's `recompute_time`, or what stands for it."""
    return layer.forward_time if layer.recompute_time is None else layer.recompute_time


def drop_transient_of(layer: LayerCost) -> int:
    """The layer's `drop_transient_bytes`, or what stands for it."""
    drop = layer.drop_transient_bytes
    return layer.forward_transient_bytes if drop is None else drop


def canonical_record(layer: LayerCost) -> dict[str, Any]:
    """As `to_record`, but the same for all ways to write the same layer."""
    record = to_record(layer)
    record["recompute_time"] = recompute_of(layer)
    record["drop_transient_bytes"] = drop_transient_of(layer)
    for option in record.get("options", ()):
        for field, (_, may_be_none) in _OPTION_CHECKS.items():
            if may_be_none and option.get(field) == getattr(layer, field):
                del option[field]
        if "keeps" in option:
            option["keeps"].sort()
    return record


def _as_layer(i: int, item: object) -> LayerCost:
    name = f"layer {i}"
    if isinstance(item, LayerCost):
        return item if item.name else replace(item, name=name)
    position = f"{ordinal(i + 1)} layer"
    if not isinstance(item, Mapping):
        raise InvalidCosts(
            f"the {position} is {shown(item)}; a layer is a LayerCost or a mapping of its fields"
        )
    given = item.get("name")
    given = name if given is None or given == "" else given
    _check_keys(f"layer {shown(given)} ({position})", item, LayerCost)
    return LayerCost(**{**item, "name": given})


def _as_options(where: str, options: object) -> tuple[OptionCost, ...]:
    if isinstance(options, Mapping | str) or not isinstance(options, Iterable):
        raise InvalidCosts(f"{where}: options must be a list of options, got {shown(options)}")
    made = tuple(_as_option(where, i, option) for i, option in enumerate(options))
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
    _check_keys(f"the {ordinal(i + 1)} option of {where}", item, OptionCost)
    try:
        return OptionCost(**item)
    except InvalidCosts as error:
        raise InvalidCosts(f"{where}, {error}") from error


def _check_keys(
    where: str, record: Mapping[Any, object], kind: type[LayerCost] | type[OptionCost]
) -> None:
    known = {field.name: field.default is MISSING for field in fields(kind)}
    for key in record:
        if key not in known:
            hint = did_you_mean(key, known) or f"; the fields are {', '.join(known)}"
            raise InvalidCosts(f"unknown field {shown(key)} in {where}{hint}")
    needed = [field for field, required in known.items() if required]
    for field in needed:
        if field not in record:
            raise InvalidCosts(
                f"{where} has no {field!r}; it needs {', '.join(needed[:-1])} and {needed[-1]}"
            )


def _check_fields(
    where: str, cost: LayerCost | OptionCost, checks: Mapping[str, tuple[_Check, bool]]
) -> None:
    for field, (check, may_be_none) in checks.items():
        value = getattr(cost, field)
        if value is not None or not may_be_none:
            _set(cost, field, check(where, field, value))


def _set(cost: LayerCost | OptionCost, field: str, value: object) -> None:
    # The one way to store a checked value in a frozen dataclass.
    object.__setattr__(cost, field, value)

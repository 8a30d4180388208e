"""A model without what other stages have: their weights are gone, and so is what they run.

The model's own code runs on every stage, so that masks and rotary embeddings are made where they
are needed: modules of the stages before pass on what they are given, the last block before hands
over what was received, and the first module behind ends the call.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from scheduler.common.errors import InvalidPlan, UnsupportedModel
from scheduler.pytorch.model.call import Call, activation_of
from scheduler.pytorch.model.calls import call_watched
from scheduler.pytorch.model.step import prepared

_ENDS = ("head", "loss")
"""What costs call what runs behind the blocks."""


class StageModel(nn.Module):
    """What one stage runs of a model: on the first its inputs, on others what was received."""

    def __init__(self, model: nn.Module, own: range, spans: Spans) -> None:
        super().__init__()
        self.model = model
        self._received: torch.Tensor | None = None
        self._is_first = own.start == 0
        self._takes_embeddings = hasattr(model, "get_input_embeddings")
        for name, place in spans.places.items():
            module = model.get_submodule(name)
            if place in own:
                continue
            for key in module._parameters:
                module._parameters[key] = None
            if name in spans.called:
                passes = self._pass_on if place < own.start else _end
                module.forward = _Absent(passes, name, name in spans.tuples)
        if not self._is_first:
            self._hand_over(model, own, spans)

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """The activation for the next stage; of the last one what the loss is made from."""
        if not self._is_first:
            (self._received,) = args
            if self._takes_embeddings:
                args, kwargs = (), {"inputs_embeds": self._received, **kwargs}
        try:
            made = self.model(*args, **kwargs)
        except _Ended as end:
            return end.activation
        finally:
            self._received = None
        logits = getattr(made, "logits", None)
        return activation_of(type(self.model).__name__, made) if logits is None else logits

    def _hand_over(self, model: nn.Module, own: range, spans: Spans) -> None:
        """What is received comes out of the block before, or goes into the very first one."""
        before = [name for name, place in spans.blocks.items() if place < own.start]
        if before:
            last = before[-1]
            absent = _Absent(self._get, last, last in spans.tuples)
            model.get_submodule(last).forward = absent
            return
        first = next(iter(spans.blocks))

        def hook(_: nn.Module, args: Any, kwargs: Any) -> Any:
            return Call.of(first, args, kwargs).arguments(self._received)

        model.get_submodule(first).register_forward_pre_hook(hook, with_kwargs=True)

    def _get(self, _: Call) -> torch.Tensor:
        assert self._received is not None
        return self._received

    def _pass_on(self, call: Call) -> torch.Tensor:
        given, received = call.activation, self._received
        if received is None or given.is_floating_point():
            return given
        return received.new_zeros(()).expand(*given.shape, received.size(-1))  # of an embedding


class _Ended(Exception):
    """The stage is over: what the first module behind it was given."""

    def __init__(self, activation: torch.Tensor) -> None:
        super().__init__()
        self.activation = activation


def _end(call: Call) -> torch.Tensor:
    raise _Ended(call.activation)


class _Absent:
    """The forward of a module that another stage has."""

    def __init__(self, passes: Any, name: str, is_tuple: bool) -> None:
        self._passes, self._name, self._is_tuple = passes, name, is_tuple

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        made = self._passes(Call.of(self._name, args, kwargs))
        return (made,) if self._is_tuple else made


class Spans:
    """Which layer of the whole chain each module belongs to.

    Attributes
    ----------
    blocks
        Names of the chain's blocks, in order, with their places in it.
    places
        Of all modules with parameters of their own, and of the blocks and all in them.
    called
        Modules whose forwards stand for them where they are absent: blocks, and what is outside.
    tuples
        Blocks that return tuples.
    """

    def __init__(self, model: nn.Module, layers: Sequence[str], inputs: Any) -> None:
        modules = dict(model.named_modules())
        self.blocks = {name: i for i, name in enumerate(layers) if name in modules}
        if not self.blocks:
            raise InvalidPlan(
                f"none of the plan's layers ({layers[0]!r}, ...) is a module of this "
                f"{type(model).__name__}; solve costs that `profile` or `costs_from_shape` gives"
            )
        self.tuples: set[str] = set()
        self.places = {
            name: place
            for block, place in self.blocks.items()
            for name in modules
            if name == block or name.startswith(f"{block}.")
        }
        outside = [
            name
            for name, module in modules.items()
            if name not in self.places
            and any(parameter is not None for parameter in module._parameters.values())
            and not any(block.startswith(f"{name}.") or not name for block in self.blocks)
        ]
        if outside:
            self._place(model, outside, len(layers) - 1, inputs)
        self.called = {*self.blocks, *outside}

    def _place(self, model: nn.Module, outside: list[str], end: int, inputs: Any) -> None:
        """See what runs before the blocks and what behind them."""
        if inputs is None:
            inputs = getattr(model, "dummy_inputs", None)
        if inputs is None:
            raise UnsupportedModel(
                f"{type(model).__name__} runs {outside[0]!r} outside of its blocks; give inputs=, "
                "a microbatch, by which it is seen what is before and what behind them"
            )
        seen: dict[str, list[int]] = defaultdict(list)
        done = 0

        def before(name: str, args: Any, kwargs: Any) -> None:
            if name not in self.blocks:
                seen[name].append(done)

        def after(name: str, _: nn.Module, output: Any) -> None:
            nonlocal done
            if name in self.blocks:
                done += 1
                if isinstance(output, tuple):
                    self.tuples.add(name)

        with prepared(model, inputs, fake=True) as (fake, given):
            call_watched(fake, given, [*self.blocks, *outside], before, after)
        for name in outside:
            when = set(seen[name])
            if when - {0, len(self.blocks)} or len(when) > 1:
                raise UnsupportedModel(
                    f"module {name!r} of {type(model).__name__} runs between its blocks, or before "
                    "and behind them, and cannot be on one stage"
                )
            if when:
                self.places[name] = end if when == {len(self.blocks)} else 0


def check_cuts(model: nn.Module, layers: Sequence[str], cuts: Sequence[int], spans: Spans) -> None:
    """Raise where a cut is not between two blocks, or a weight is on both sides of one."""
    for cut in cuts[1:-1]:
        if layers[cut] not in spans.blocks and layers[cut] not in _ENDS:
            raise UnsupportedModel(
                f"the plan cuts before {layers[cut]!r}, which is no block of "
                f"{type(model).__name__}: what the model runs there would run on both stages"
            )
    homes: dict[int, tuple[str, int]] = {}
    for name, place in spans.places.items():
        stage = max(s for s, first in enumerate(cuts[:-1]) if first <= place)
        for key, parameter in model.get_submodule(name)._parameters.items():
            if parameter is None:
                continue
            whole = f"{name}.{key}"
            other, where = homes.setdefault(id(parameter), (whole, stage))
            if where != stage:
                raise UnsupportedModel(
                    f"{whole!r} and {other!r} are one weight, and the plan has them on stages "
                    f"{stage} and {where}, whose gradients nobody adds up; untie them (in "
                    "transformers tie_word_embeddings=False)"
                )
